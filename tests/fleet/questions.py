"""The questions to the tables of a fleet, on made-up tables (DuckDB): what sampling makes up is not ranked, and processes that follow each other
are not added up. `target/parquet-venv/bin/python tests/fleet/questions.py`; tests/fleet/check.py runs it, too."""

import os
import tempfile

import duckdb

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MINUTE = 60 * 10**9
SITE = "moment_ns bigint, stack bigint, live_bytes bigint, counted_ns bigint, process bigint, running int, pid int, program varchar, build varchar, host varchar, recording varchar, date varchar, live_error bigint"


def ask(question, rows, marks=((0, "first"),), has_errors=True, **variables):
    """Returns the answer to a question from rows of (minute, stack, bytes, process, runs, error) and a build, if that is not b1."""
    db = duckdb.connect()
    with tempfile.TemporaryDirectory() as folder:
        db.execute(f"create table sites ({SITE})")
        for minute, stack, size, process, runs, error, *build in rows:
            build = (build or ["b1"])[0]
            db.execute("insert into sites values (?, ?, ?, 0, ?, ?, 7, 'shop', ?, 'h1', ?, 'd', ?)", [minute * MINUTE, stack, size, process, runs, build, f"r{minute}", error])
        if not has_errors:
            db.execute("alter table sites drop live_error")
        db.execute("create table marks (moment_ns bigint, name varchar, host varchar, recording varchar, date varchar)")
        for minute, name in marks:
            db.execute("insert into marks values (?, ?, 'h1', ?, 'd')", [minute * MINUTE, name, f"r{minute}"])
        db.execute("create table stacks as select distinct stack, 'f' || stack as function, 'main;f' || stack as folded, host, recording, date from sites")
        db.execute("create table processes as select distinct process, host, recording, date from sites")
        for table in ["sites", "marks", "stacks", "processes"]:
            db.execute(f"copy {table} to '{folder}/{table}' (format parquet, partition_by (date, host, recording))")
            db.execute(f"drop table {table}")
        db.execute(f"set variable tables = '{folder}'")
        for name, value in variables.items():
            db.execute(f"set variable {name} = '{value}'")
        db.execute(open(f"{ROOT}/packaging/fleet/tables.sql").read())
        answer = db.execute(open(f"{ROOT}/packaging/fleet/{question}.sql").read())
        columns = [column[0] for column in answer.description]
        return [dict(zip(columns, row)) for row in answer.fetchall()]


def restarts_are_not_added_up():
    """A service of 100 bytes that is started anew each ten minutes, with epochs of two: at no time are there more than 100."""
    rows = []
    for process in range(6):
        start = process * 10
        rows += [(start + minute, 1, 100, process + 1, 1, 0) for minute in (2, 4, 6, 8)]
        rows.append((start + 9, 1, 100, process + 1, 0, 0))
    [row] = ask("peak", rows)
    assert (row["fleet_bytes"], row["processes"], row["bytes"], row["unix_s"]) == (100, 1, 100, 120), row
    # Beside it another one, with epochs of an hour: it counts between its moments, too.
    rows += [(0, 2, 1000, 50, 1, 0), (60, 2, 1, 50, 1, 0)]
    rows = ask("peak", rows)
    assert [(row["fleet_bytes"], row["function"], row["bytes"]) for row in rows] == [(1100, "f2", 1000), (1100, "f1", 100)], rows
    # One of which nothing is known any more counts for as long as between its last two moments.
    lost = [(0, 1, 100, 1, 1, 0), (2, 1, 100, 1, 1, 0), (5, 1, 100, 2, 1, 0), (7, 1, 100, 2, 1, 0)]
    [row] = ask("peak", lost)
    assert (row["fleet_bytes"], row["processes"]) == (100, 1), row


def noise_of_samples_is_not_ranked():
    """After a deploy one stack grows, and another one seems to, by less than three standard errors."""
    rows = []
    for minute in range(0, 121, 20):
        after = max(0, minute - 60)
        # The process that is not sampled, and the two stacks of one that is.
        rows += [(minute, 1, 1000 + 10 * after, 1, 1, 0), (minute, 2, 50_000 + 40 * after, 2, 1, 2_000), (minute, 3, 50_000 + 400 * after, 2, 1, 2_000)]
    found = ask("deploys", rows, marks=[(60, "deploy-7")], deploy="deploy-7")
    assert [row["function"] for row in found] == ["f3", "f1"], found
    assert all(row["error"] > 0 for row in found if row["function"] == "f3") and found[1]["after"] == 300, found
    # Tables from before the column: all rises are ranked, as before.
    found = ask("deploys", rows, marks=[(60, "deploy-7")], has_errors=False)
    assert [row["function"] for row in found] == ["f3", "f2", "f1"], found
    # The same growth, by hosts. Its error is that of both ends of the process.
    found = ask("growing", rows)
    assert [row["function"] for row in found] == ["f3", "f1"], found
    assert [(row["function"], row["hosts"], row["bytes"], row["error"]) for row in found] == [("f3", 1, 24_000, 2_828), ("f1", 1, 600, 0)], found
    found = ask("growing", rows, has_errors=False)
    assert [row["function"] for row in found] == ["f3", "f2", "f1"], found
    # A build after another one: what grew in both is not new, nor what seems to by less than three
    # errors of the difference. In two hours f2 grows by 8,000 more than in the other build, f3 by
    # 48,000, f1 by 500, f4 as much. The error of the difference is 4,000 for f2 and f3.
    rows = []
    for process, build in enumerate(["b1", "b2"]):
        for minute in (0, 120):
            grown = [(1, 1000 + 500 * process, 0), (2, 8_000 * process, 2_000), (3, 48_000 * process, 2_000), (4, 90_000, 0)]
            rows += [(minute + 120 * process, stack, 50_000 + (size if minute else 0), process + 1, 1, error, build) for stack, size, error in grown]
    found = ask("builds", rows)
    assert [row["function"] for row in found] == ["f3", "f1"], found
    assert [(row["function"], row["build"], row["bytes_an_hour"], row["elsewhere"], row["error"]) for row in found] == [("f3", "b2", 24_000, 0, 2_000), ("f1", "b2", 750, 500, 0)], found
    found = ask("builds", rows, has_errors=False)
    assert [row["function"] for row in found] == ["f3", "f2", "f1"], found


restarts_are_not_added_up()
noise_of_samples_is_not_ranked()
print("questions: passed")
