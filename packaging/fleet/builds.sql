-- What is new in a build? Growth by call stack in bytes an hour and process, in each build of a program and in its other builds.
-- Stacks are compared by their names, since a new build has other addresses. Without a build in `asked`, all builds. Growth counts
-- that is beyond `elsewhere` by three standard errors of their difference (`error`), which sampled processes have.
with spans as (
  select process, min(moment_ns) as first_ns, max(moment_ns) as last_ns from sites
  where pid > 0 and build <> '' group by process having min(moment_ns) < max(moment_ns)
),
hours as (
  select program, build, count(distinct host) as hosts, count(*) as processes, sum(hours) as hours from (
    select sites.host, sites.program, sites.build, sites.process, (max(last_ns) - min(first_ns)) / 3.6e12 as hours
    from sites join spans on sites.process = spans.process
    group by sites.host, sites.program, sites.build, sites.process
  ) lives group by program, build
),
names as (select stack, min(function) as function, min(folded) as folded from stacks group by stack),
growth as (
  select program, build, function, folded,
    sum(case when moment_ns = last_ns then live_bytes when moment_ns = first_ns then -live_bytes else 0 end) as bytes,
    sum(case when moment_ns in (first_ns, last_ns) then power(cast(coalesce(live_error, 0) as double), 2) else 0 end) as variance
  from sites join spans on sites.process = spans.process left join names on sites.stack = names.stack
  group by program, build, function, folded
),
rates as (
  select growth.program, growth.build, function, folded, bytes, variance, hours, hosts, processes
  from growth join hours on growth.program = hours.program and growth.build = hours.build
),
-- The other builds of the program, also those that do not have the stack.
others as (
  select one.program, one.build, one.folded, sum(other.bytes) as bytes, sum(other.variance) as variance from rates one
  join rates other on other.program = one.program and other.folded = one.folded and other.build <> one.build
  group by one.program, one.build, one.folded
),
other_hours as (
  select one.program, one.build, sum(other.hours) as hours from hours one
  join hours other on other.program = one.program and other.build <> one.build
  group by one.program, one.build
),
rises as (
  select rates.program, rates.build, hosts, processes, rates.bytes / rates.hours as rate,
    coalesce(others.bytes, 0) / other_hours.hours as other_rate,
    rates.variance / power(rates.hours, 2) + coalesce(others.variance, 0) / power(other_hours.hours, 2) as rate_variance,
    function, rates.folded
  from rates
  join other_hours on rates.program = other_hours.program and rates.build = other_hours.build
  left join others on rates.program = others.program and rates.build = others.build and rates.folded = others.folded
)
select program, rises.build, hosts, processes, round(rate) as bytes_an_hour, round(other_rate) as elsewhere,
  round(sqrt(rate_variance)) as error, function, folded
from rises cross join asked
where rate > 0 and rate - other_rate > 3 * sqrt(rate_variance) and rises.build like concat(asked.build, '%')
order by rate - other_rate desc
limit 20
