-- When did the fleet hold most, and what held it? Of each process the last moment of each hour; the stacks of the highest hour.
with lasts as (
  select process, cast(floor(moment_ns / 3600000000000.0) as bigint) as hour, max(moment_ns) as last_ns
  from sites where running = 1
  group by process, cast(floor(moment_ns / 3600000000000.0) as bigint)
),
held as (
  select hour, sites.host, sites.process, program, stack, live_bytes
  from sites join lasts on sites.process = lasts.process and sites.moment_ns = lasts.last_ns
),
totals as (
  select hour, sum(live_bytes) as fleet_bytes, count(distinct host) as fleet_hosts from held group by hour
),
peak as (select * from totals order by fleet_bytes desc, hour limit 1),
names as (select stack, min(function) as function, min(folded) as folded from stacks group by stack)
select held.hour * 3600 as unix_s, fleet_bytes, fleet_hosts, count(distinct host) as hosts, count(distinct process) as processes,
  sum(live_bytes) as bytes, program, function, folded
from held join peak on held.hour = peak.hour left join names on held.stack = names.stack
group by held.hour, fleet_bytes, fleet_hosts, program, function, folded
order by bytes desc
limit 20
