-- Which call stacks grow on the most hosts? Bytes that the processes hold more at their last moment of the last hours than at
-- their first one.
with recent as (
  select sites.* from sites cross join asked
  where moment_ns > (select max(moment_ns) from sites) - hours * cast(3600000000000 as bigint)
),
spans as (
  select process, min(moment_ns) as first_ns, max(moment_ns) as last_ns from recent
  where running = 1 group by process having min(moment_ns) < max(moment_ns)
),
growth as (
  select recent.host, recent.program, recent.process, recent.stack,
    sum(case when moment_ns = last_ns then live_bytes when moment_ns = first_ns then -live_bytes else 0 end) as bytes
  from recent join spans on recent.process = spans.process
  group by recent.host, recent.program, recent.process, recent.stack
),
names as (select stack, min(function) as function, min(folded) as folded from stacks group by stack)
select count(distinct host) as hosts, count(distinct process) as processes, sum(bytes) as bytes, program, function, folded
from growth left join names on growth.stack = names.stack
where bytes > 0
group by program, function, folded
order by hosts desc, bytes desc
limit 20
