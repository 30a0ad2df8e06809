-- When did the fleet hold most, and what held it? Of each process the last moment of each hour in which it ran, or that of an earlier hour
-- if it has none in this one and lived on; the stacks of the highest hour.
with moments as (
  select host, process, moment_ns, cast(floor(moment_ns / 3.6e12) as bigint) as hour, max(running) as running,
    sum(live_bytes) as bytes
  from sites group by host, process, moment_ns
),
hourly as (
  select process, hour, max(case when running = 1 then moment_ns end) as last_ns from moments group by process, hour
),
ordered as (
  select hourly.*, lead(hour) over (partition by process order by hour) as next_hour from hourly
),
-- The hours for which a moment counts: from its own one to the one before the next moment's.
lasts as (
  select host, ordered.process, moment_ns, bytes, ordered.hour as first_hour, coalesce(next_hour, ordered.hour + 1) as end_hour
  from ordered join moments on moments.process = ordered.process and moments.moment_ns = ordered.last_ns
),
totals as (
  select hours.hour, sum(bytes) as fleet_bytes, count(distinct host) as fleet_hosts
  from (select distinct hour from moments) hours join lasts on hours.hour >= first_hour and hours.hour < end_hour
  group by hours.hour
),
peak as (select * from totals order by fleet_bytes desc, hour limit 1),
held as (
  select peak.hour, fleet_bytes, fleet_hosts, sites.host, sites.process, program, stack, live_bytes
  from peak join lasts on peak.hour >= first_hour and peak.hour < end_hour
  join sites on sites.process = lasts.process and sites.moment_ns = lasts.moment_ns
),
names as (select stack, min(function) as function, min(folded) as folded from stacks group by stack)
select hour * 3600 as unix_s, fleet_bytes, fleet_hosts, count(distinct host) as hosts, count(distinct process) as processes,
  sum(live_bytes) as bytes, program, function, folded
from held left join names on held.stack = names.stack
group by hour, fleet_bytes, fleet_hosts, program, function, folded
order by bytes desc
limit 20
