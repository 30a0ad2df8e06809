-- What grows faster since a deploy (`heaptape daemon mark NAME`)? Growth in bytes an hour and process in the hours before and after the
-- mark, by call stack, on the hosts with the mark. A mark ends an epoch, which is the last one before. Without a deploy in `asked`,
-- all of them. A rise counts beyond three of its standard errors (`error`), which sampled processes have.
with ends as (select host, recording, max(moment_ns) as end_ns from sites group by host, recording),
deploys as (
  select name, marks.host, greatest(max(moment_ns), coalesce(max(end_ns), 0)) as mark_ns
  from marks left join ends on marks.host = ends.host and marks.recording = ends.recording cross join asked
  where deploy = '' or name = deploy group by name, marks.host
),
near as (
  select name, sites.*, case when moment_ns <= mark_ns then 0 else 1 end as is_after
  from sites join deploys on sites.host = deploys.host cross join asked
  where pid > 0 and abs(moment_ns - mark_ns) < hours * cast(3600000000000 as bigint)
),
spans as (
  select name, is_after, process, min(moment_ns) as first_ns, max(moment_ns) as last_ns from near
  group by name, is_after, process having min(moment_ns) < max(moment_ns)
),
hours as (
  select spans.name, spans.is_after, program, count(distinct host) as hosts, sum((last_ns - first_ns) / 3.6e12) as hours
  from spans join (select distinct name, is_after, process, host, program from near) lives
    on spans.name = lives.name and spans.is_after = lives.is_after and spans.process = lives.process
  group by spans.name, spans.is_after, program
),
names as (select stack, min(function) as function, min(folded) as folded from stacks group by stack),
growth as (
  select near.name, near.is_after, program, function, folded,
    sum(case when moment_ns = last_ns then live_bytes when moment_ns = first_ns then -live_bytes else 0 end) as bytes,
    sum(case when moment_ns in (first_ns, last_ns) then power(cast(coalesce(live_error, 0) as double), 2) else 0 end) as variance
  from near join spans on near.name = spans.name and near.is_after = spans.is_after and near.process = spans.process
  left join names on near.stack = names.stack
  group by near.name, near.is_after, program, function, folded
),
rates as (
  select growth.name, growth.is_after, growth.program, function, folded, bytes / hours as rate,
    variance / (hours * hours) as variance, hosts
  from growth join hours on growth.name = hours.name and growth.is_after = hours.is_after and growth.program = hours.program
)
select later.name as deploy, later.program, later.hosts, round(coalesce(earlier.rate, 0)) as before, round(later.rate) as after,
  round(sqrt(later.variance + coalesce(earlier.variance, 0))) as error, later.function, later.folded
from rates later
left join rates earlier on earlier.name = later.name and earlier.is_after = 0 and earlier.program = later.program
  and earlier.folded = later.folded
where later.is_after = 1
  and later.rate - coalesce(earlier.rate, 0) > 3 * sqrt(later.variance + coalesce(earlier.variance, 0))
order by later.rate - coalesce(earlier.rate, 0) desc
limit 20
