-- The tables that `heaptape ship` wrote, for DuckDB. Set these variables before, if the defaults do not fit:
--   set variable tables = 's3://tables/fleet';   set variable hours = 72;
--   set variable build = 'ab12';                 set variable deploy = 'deploy-42';
create or replace view sites as select cast(null as bigint) as live_error where false union all by name select * from read_parquet(coalesce(getvariable('tables'), 'tables') || '/sites/**/*.parquet',
  hive_partitioning = true, hive_types = {'date': varchar, 'host': varchar, 'recording': varchar}, union_by_name = true);
create or replace view stacks as select * from read_parquet(coalesce(getvariable('tables'), 'tables') || '/stacks/**/*.parquet',
  hive_partitioning = true, hive_types = {'date': varchar, 'host': varchar, 'recording': varchar}, union_by_name = true);
create or replace view processes as select * from read_parquet(coalesce(getvariable('tables'), 'tables') || '/processes/**/*.parquet',
  hive_partitioning = true, hive_types = {'date': varchar, 'host': varchar, 'recording': varchar}, union_by_name = true);
create or replace view marks as select * from read_parquet(coalesce(getvariable('tables'), 'tables') || '/marks/**/*.parquet',
  hive_partitioning = true, hive_types = {'date': varchar, 'host': varchar, 'recording': varchar}, union_by_name = true);
create or replace view asked as select coalesce(getvariable('hours'), 24) as hours, coalesce(getvariable('build'), '') as build,
  coalesce(getvariable('deploy'), '') as deploy;
