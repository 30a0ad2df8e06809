-- When did the fleet hold most, and what held it? What a process holds at a moment counts until its next moment, or its end; after the last
-- moment for as long as the time before it, an hour at most. So of two processes that followed each other, one counts at any time.
with moments as (
  select host, process, moment_ns, max(running) as running, sum(live_bytes) as bytes, min(counted_ns) as counted_ns
  from sites group by host, process, moment_ns
),
ordered as (
  select moments.*, lag(moment_ns) over (partition by process order by moment_ns) as before_ns,
    lead(moment_ns) over (partition by process order by moment_ns) as next_ns
  from moments
),
lives as (
  select host, process, moment_ns, bytes, coalesce(next_ns, moment_ns
    + least(cast(3600000000000 as bigint), greatest(moment_ns - coalesce(before_ns, counted_ns), 1))) as end_ns
  from ordered where running = 1
),
changes as (
  select at_ns, sum(bytes) as bytes
  from (select moment_ns as at_ns, bytes from lives union all select end_ns as at_ns, -bytes as bytes from lives) steps group by at_ns
),
totals as (select at_ns, cast(sum(bytes) over (order by at_ns) as bigint) as fleet_bytes from changes),
peak as (select * from totals order by fleet_bytes desc, at_ns limit 1),
held as (
  select at_ns, fleet_bytes, sites.host, sites.process, program, stack, live_bytes
  from peak join lives on lives.moment_ns <= at_ns and at_ns < lives.end_ns
  join sites on sites.process = lives.process and sites.moment_ns = lives.moment_ns
),
holders as (select count(distinct host) as fleet_hosts from held),
names as (select stack, min(function) as function, min(folded) as folded from stacks group by stack)
select cast(floor(at_ns / 1e9) as bigint) as unix_s, fleet_bytes, fleet_hosts, count(distinct host) as hosts,
  count(distinct process) as processes, sum(live_bytes) as bytes, program, function, folded
from held cross join holders left join names on held.stack = names.stack
group by at_ns, fleet_bytes, fleet_hosts, program, function, folded
order by bytes desc
limit 20
