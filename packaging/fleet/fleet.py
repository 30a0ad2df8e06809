#!/usr/bin/env python3
"""Answers about all hosts and days of a folder of tables, by Apache Spark: totals and the stacks that hold most (of heaptape export
--format parquet), or one of the questions beside this file (of heaptape ship).

  spark-submit --master spark://HOST:7077 fleet.py TABLES [--since 2026-11-01] [--top 20] [--json]
  spark-submit --master spark://HOST:7077 fleet.py TABLES --question growing|builds|peak|deploys|FILE.sql [--hours 24] [--build ID] [--deploy NAME] [--json]

Several questions (--question growing --question peak) read the tables once. A question of your own is a file with a query of the views
sites, stacks, processes and marks.
"""
import argparse
import json
import os

from pyspark.sql import SparkSession, functions as F

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("tables", help="folder of the tables; a path that every worker can read")
arguments.add_argument("--since", help="first day, such as 2026-11-01")
arguments.add_argument("--top", type=int, default=20)
arguments.add_argument("--json", action="store_true")
arguments.add_argument("--question", action="append", metavar="NAME", help="growing, builds, peak, deploys, or a file FILE.sql: a question to the tables that were shipped; may be repeated")
arguments.add_argument("--hours", type=int, default=24, help="growing: the last hours; deploys: those before and after")
arguments.add_argument("--build", default="", help="builds: start of a build-id")
arguments.add_argument("--deploy", default="", help="deploys: name of a mark")
asked = arguments.parse_args()
FOLDER = os.path.dirname(os.path.abspath(__file__))
queries = {}
for question in asked.question or []:
    path = question if question.endswith(".sql") else os.path.join(FOLDER, f"{question}.sql")
    try:
        queries[question] = open(path).read()
    except OSError as error:
        arguments.error(f"--question {question}: {error}")

spark = SparkSession.builder.appName("heaptape fleet").getOrCreate()
# A host may be called 17.
spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
spark.sparkContext.setLogLevel("ERROR")


def table(name):
    """A table, of the days that were asked for: partitions outside are not even read."""
    rows = spark.read.option("mergeSchema", "false").parquet(f"{asked.tables}/{name}")
    return rows if asked.since is None else rows.where(F.col("date") >= asked.since)


def shipped(name):
    """A table of `heaptape ship`, which several questions keep in memory or on the local disk of the workers."""
    rows = table(name)
    if name == "sites" and "live_error" not in rows.columns:
        # Older tables are exact, or do not say how exact they are.
        rows = rows.withColumn("live_error", F.lit(None).cast("bigint"))
    return rows.cache() if len(queries) > 1 else rows


def answer(question, query):
    found = spark.sql(query)
    rows = [row.asDict() for row in found.collect()]
    if asked.json:
        print(json.dumps({"question": question, "columns": found.columns, "rows": rows}, default=float), flush=True)
        return
    if len(queries) > 1:
        print(f"{question}:")
    print("  ".join(found.columns))
    for row in rows:
        print("  ".join(f"{value:,}" if isinstance(value, (int, float)) else str(value) for value in row.values()))


if queries:
    for name in ["sites", "stacks", "processes", "marks"]:
        shipped(name).createOrReplaceTempView(name)
    spark.createDataFrame([(asked.hours, asked.build, asked.deploy)], "hours int, build string, deploy string").createOrReplaceTempView("asked")
    for question, query in queries.items():
        answer(question, query)
    spark.stop()
    raise SystemExit(0)

events, allocations = table("events"), table("allocations")
takes = F.col("kind").isin("alloc", "resize")
totals = events.agg(
    F.count_if(F.col("kind") == "alloc").alias("allocs"),
    F.count_if(F.col("kind") == "resize").alias("resizes"),
    F.count_if(F.col("kind") == "free").alias("frees"),
    F.coalesce(F.sum(F.when(takes, F.col("weight"))), F.lit(0)).alias("bytes_allocated"),
).first().asDict()
live = allocations.where("died_ns is null")
totals |= live.agg(F.count("*").alias("live_blocks"), F.coalesce(F.sum("size"), F.lit(0)).alias("live_bytes")).first().asDict()

# A stack has the same number on all hosts that run the same build.
stacks = table("stacks").groupBy("stack").agg(F.first("function").alias("function"), F.first("folded").alias("folded"))
held = live.groupBy("stack").agg(F.sum("size").alias("bytes"), F.count("*").alias("blocks"), F.count_distinct("host").alias("hosts"))
top = held.join(stacks, "stack", "left").orderBy(F.desc("bytes"), "stack").limit(asked.top).collect()

if asked.json:
    print(json.dumps({"totals": totals, "top": [row.asDict() for row in top]}))
else:
    print("  ".join(f"{name} {value:,}" for name, value in totals.items()))
    for row in top:
        print(f"{row.bytes:>16,} bytes {row.blocks:>12,} blocks {row.hosts:>5} hosts  {row.function or '(no stack)'}")
spark.stop()
