-- Which call stacks grow on the most hosts? Bytes that the processes hold more at their last moment of the last hours than at
-- their first one. A process counts whose growth is beyond three of its standard errors, which sampled processes have; `error` is
-- that of the sum.
with recent as (
  select sites.* from sites cross join asked
  where moment_ns > (select max(moment_ns) from sites) - hours * cast(3600000000000 as bigint)
),
spans as (
  select process, min(moment_ns) as first_ns, max(moment_ns) as last_ns from recent
  where running = 1 group by process having min(moment_ns) < max(moment_ns)
),
names as (select stack, min(function) as function, min(folded) as folded from stacks group by stack),
growth as (
  select recent.host, recent.program, recent.process, function, folded,
    sum(case when moment_ns = last_ns then live_bytes when moment_ns = first_ns then -live_bytes else 0 end) as bytes,
    sum(case when moment_ns in (first_ns, last_ns) then power(cast(coalesce(live_error, 0) as double), 2) else 0 end) as variance
  from recent join spans on recent.process = spans.process left join names on recent.stack = names.stack
  group by recent.host, recent.program, recent.process, function, folded
)
select count(distinct host) as hosts, count(distinct process) as processes, sum(bytes) as bytes,
  round(sqrt(sum(variance))) as error, program, function, folded
from growth
where bytes > 3 * sqrt(variance)
group by program, function, folded
order by hosts desc, bytes desc
limit 20
