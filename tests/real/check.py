#!/usr/bin/env python3
"""Runs real programs and test suites bare and under `heaptape record`, and compares output and exit status. Called by `scripts/dev real`.

  check.py HEAPTAPE NOTES [NAME…]

programs.txt beside this file has the programs. A name is a part of the programs' names. The table goes to NOTES/real.md, for docs/torture.md; what
did not run keeps its row. The exit status is 1 if a program behaves differently when it is recorded, or its recording does not say what is missing.
"""

import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST = 900  # seconds, on a machine that does other things

Program = collections.namedtuple("Program", "name needs script")
Run = collections.namedtuple("Run", "status stdout stderr")


def programs():
    with open(f"{HERE}/programs.txt", encoding="utf-8") as file:
        parts = file.read().split("\n= ")[1:]
    for part in parts:
        head, script = part.split("\n", 1)
        name, needs = head.rsplit(" : ", 1)
        # `COMMAND+PACKAGE`; commands may end with `++`.
        yield Program(name, [need.rsplit("+", 1)[0] if need[-1] != "+" and "+" in need.strip("+") else need for need in needs.split()], script)


def is_there(need):
    return os.path.exists(need) if need.startswith("/") else shutil.which(need) is not None


def run(program, work, heaptape=None, recording=None):
    shutil.rmtree(work, ignore_errors=True)
    os.mkdir(work)
    command = ["/bin/bash", "-c", program.script, "bash"]
    if heaptape:
        command = [heaptape, "record", "-q", "-o", recording, "--"] + command
    keep = ("PATH", "CARGO_HOME", "RUSTUP_HOME")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    environment |= {"HOME": work, "REAL_HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8", "TERM": "dumb", "TZ": "UTC"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        try:
            status = child.wait(LONGEST)
        except subprocess.TimeoutExpired:
            status = "does not end"
        # What it left running must not disturb the next run.
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        out.seek(0)
        err.seek(0)
        # Shells say by its number which process a signal has ended.
        return Run(status, out.read(), re.sub(rb"(line \d+:|process)\s+\d+", rb"\1", err.read()))


def difference(one, two):
    for name, left, right in zip(Run._fields, one, two):
        if left == right:
            continue
        if name == "status":
            return f"exit status {left}, recorded {right}; stderr ends {two.stderr[-300:]!r}"
        left, right = left.split(b"\n"), right.split(b"\n")
        lines = [at for at in range(max(len(left), len(right))) if left[at : at + 1] != right[at : at + 1]]
        at = lines[0]
        return f"{name}, line {at + 1}: {left[at : at + 3]!r}, recorded {right[at : at + 3]!r}"
    return None


def ask(heaptape, *arguments):
    return subprocess.run([heaptape, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")


def facts(heaptape, recording):
    """The numbers of processes, events and lost events, of processes that are named as unrecorded, and what is wrong with the recording."""
    report = ask(heaptape, "report", "--json", recording)
    try:
        processes = json.loads(report.stdout)["processes"]
    except (ValueError, KeyError):
        return 0, 0, 0, 0, f"report: {report.stderr[-300:]}"
    with open(f"{recording}/recording.json", encoding="utf-8") as file:
        named = len(json.load(file).get("not_traced", []))
    events = sum(process["emitted_events"] for process in processes)
    lost = sum(process["lost_events"] for process in processes)
    verify = ask(heaptape, "verify", recording)
    wrong = None if verify.returncode in (0, 1) else f"verify: {verify.stdout[-300:]}{verify.stderr[-300:]}"
    return len(processes), events, lost, named, wrong


def table(path, rows):
    """Writes the table, with the rows of an earlier one for programs that did not run."""
    known = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            lines = [line.strip("| \n").split(" | ") for line in file if line.count(" | ") == 6]
        known = {line[0]: line[1:] for line in lines if line[1].isdigit()}
    known |= rows
    rows = {program.name: known[program.name] for program in programs() if program.name in known}
    sums = [sum(int(row[column]) for row in rows.values()) for column in range(1, 5)]
    lines = [["program", "status", "processes", "events", "lost, counted", "unrecorded, named", "bare and recorded"], ["---"] * 7]
    lines += [[name, *row] for name, row in rows.items()] + [[f"all {len(rows)}", "", *map(str, sums), ""]]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"| {' | '.join(line)} |\n" for line in lines)


def main():
    heaptape, notes, *wanted = sys.argv[1:]
    heaptape = os.path.abspath(heaptape)
    rows, faults, absent, unsteady = {}, [], [], []
    # Programs drop their rights, and look for their files all the same.
    folder = tempfile.mkdtemp(prefix="real-")
    os.chmod(folder, 0o755)
    work, recording = f"{folder}/work", f"{folder}/recording"
    for program in programs():
        if wanted and not any(name in program.name for name in wanted):
            continue
        missing = [need for need in program.needs if not is_there(need)]
        if missing:
            absent.append(f"{program.name} ({', '.join(missing)})")
            print(f"{program.name}: not here: {', '.join(missing)}", flush=True)
            continue
        bare = run(program, work)
        seen = run(program, work, heaptape, recording)
        what = difference(bare, seen)
        if what and difference(bare, run(program, work)):
            unsteady.append(program.name)
            print(f"{program.name}: two bare runs differ, too: {what}", flush=True)
        elif what:
            faults.append(program.name)
            print(f"{program.name}: DIFFERS: {what}", flush=True)
        *numbers, wrong = facts(heaptape, recording)
        if wrong:
            faults.append(program.name)
            print(f"{program.name}: RECORDING: {wrong}", flush=True)
        result = "differs" if program.name in faults else "unsteady" if program.name in unsteady else "equal"
        print(f"{program.name}: {result}: status {bare.status}, {len(bare.stdout)} bytes, {numbers[0]} processes, {numbers[1]} events, {numbers[2]} lost, {numbers[3]} named", flush=True)
        rows[program.name] = [str(bare.status), *map(str, numbers), result]
        shutil.rmtree(recording, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    table(f"{notes}/real.md", rows)
    print(f"{len(rows)} programs, {len(faults)} with differences, {len(unsteady)} not deterministic, {len(absent)} not installed")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
