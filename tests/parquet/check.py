"""The tables of real recordings, read by DuckDB and by Spark on a standalone cluster: both add up to what `heaptape report --json` says, and the
queries of docs/parquet.md run. Called by `scripts/dev parquet`.

  check.py HEAPTAPE ROOT
"""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

import duckdb

heaptape, root = sys.argv[1:]
FIELDS = ["allocs", "resizes", "frees", "bytes_allocated", "live_blocks", "live_bytes"]


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def equal(what, found, expected):
    assert found == expected, f"{what}: {found}, and the reports say {expected}"
    print(f"{what}: {found}")


folder = tempfile.mkdtemp(prefix="heaptape-parquet-")
tables = f"{folder}/tables"
truth = dict.fromkeys(FIELDS, 0)
programs = [["ls", "-lR", "/usr/share/doc"], ["bash", "-c", "seq 3000 | sort -n | tail -1; ls / | wc -l"], ["/usr/bin/python3", "-c", "print(sum(range(9)))"]]
for number, program in enumerate(programs):
    recording = f"{folder}/run{number}"
    run(heaptape, "record", "-q", "-o", recording, "--", *program)
    for process in json.loads(run(heaptape, "report", "--json", recording))["processes"]:
        for field in FIELDS:
            truth[field] += process[field]
    run(heaptape, "export", "--to", "parquet", "-o", tables, recording, stderr=subprocess.DEVNULL)

# DuckDB: the totals, then every query of the document.
db = duckdb.connect()
for name in ["events", "allocations", "stacks", "frames", "processes"]:
    db.sql(f"create view {name} as from read_parquet('{tables}/{name}/**/*.parquet', hive_partitioning = true)")
found = db.sql(
    "select count(*) filter (kind = 'alloc'), count(*) filter (kind = 'resize'), count(*) filter (kind = 'free'),"
    " coalesce(sum(weight) filter (kind in ('alloc', 'resize')), 0) from events"
).fetchall()[0] + db.sql("select count(*), coalesce(sum(size), 0) from allocations where died_ns is null").fetchall()[0]
equal("DuckDB", dict(zip(FIELDS, map(int, found))), truth)
missing = db.sql("select count(*) from events where stack <> 0 and stack not in (select stack from stacks)").fetchall()[0]
equal("DuckDB, events of unknown stacks", missing[0], 0)
frames = db.sql("select count(*) from (select unnest(frames) as frame from stacks) where frame not in (select frame from frames)")
equal("DuckDB, unknown frames", frames.fetchall()[0][0], 0)
unsorted = db.sql(
    "select count(*) from (select time_ns < lag(time_ns) over (partition by filename order by file_row_number) as back from"
    f" read_parquet('{tables}/events/**/*.parquet', filename = true, file_row_number = true)) where back"
)
equal("DuckDB, events behind later ones", unsorted.fetchall()[0][0], 0)
text = open(f"{root}/docs/parquet.md").read()
queries = [query for block in re.findall(r"```sql\n(.*?)```", text, re.S) for query in block.split(";") if query.strip()]
assert len(queries) >= 4, queries
for query in queries:
    rows = db.sql(query.replace("'tables/", f"'{tables}/"))
    print("DuckDB:", " ".join(query.split())[:90], "->", "view" if rows is None else f"{len(rows.fetchall())} rows")

# Spark: a master and a worker as on a cluster, and the script that is run there.
import pyspark  # noqa: E402

home = os.path.dirname(pyspark.__file__)
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
surroundings = os.environ | {
    "SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": f"{folder}/work", "SPARK_LOG_DIR": folder,
}
log = open(f"{folder}/spark.log", "w")
quiet = {"env": surroundings, "stdout": log, "stderr": log}
spark_class = f"{home}/bin/spark-class"
master = f"spark://127.0.0.1:{port}"
started = [subprocess.Popen([spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"], **quiet)]
try:
    for _ in range(120):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.5)
    worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "2g", "--webui-port", "0", master]
    started.append(subprocess.Popen([spark_class, *worker], **quiet))
    said = run(f"{home}/bin/spark-submit", "--master", master, f"{root}/packaging/fleet/fleet.py", tables, "--json", env=surroundings, stderr=log)
    answer = json.loads([line for line in said.splitlines() if line.startswith("{")][-1])
    equal("Spark", answer["totals"], truth)
    expected = db.sql("select stack, sum(size)::bigint as bytes from allocations where died_ns is null group by stack order by bytes desc, stack limit 20").fetchall()
    equal("Spark, stacks that hold most", [(row["stack"], row["bytes"]) for row in answer["top"]], expected)
finally:
    for process in started:
        process.terminate()
        process.wait()
