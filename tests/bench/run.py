#!/usr/bin/env python3
"""Plain, heaptape and (where it is installed) heaptrack in turn, workload by workload, round by round; medians with least and most.

The traced process is measured from outside (measure.c): its CPU is that of the process and the children that it waited for, its end a
moment of the monotonic clock. Of the recorder's side the largest resident set is read from /proc while it runs; its CPU is that of all processes of
a run without the traced ones, also of those that look up names after the command has returned. heaptrack runs as its own script runs it: library, pipe, interpreter, compressor; it does not follow children.
Of the workload `mappings` the calls that map and unmap memory count as events.

With --modes also sampled (each 512 KiB) and dormant: the library without a recorder. Their cost is divided by the events of the full
recording.

With --before another command `heaptape` is measured in the same rounds.

`compare` adds the other profilers that are installed (compare.py), and appends the figures to a history.

usage: run.py [compare] [--rounds N] [--quick] [--only NAME,…] [--modes full,sampled,dormant] [--before COMMAND] [--json FILE]
              [--no-heaptrack] [--history FILE] [--release NAME]"""
import argparse, contextlib, ctypes, json, os, resource, shutil, signal, statistics, subprocess, sys, tempfile, threading, time
import compare

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
HEAPTAPE = os.environ.get("HEAPTAPE", os.path.join(TARGET, "release/heaptape"))
HEAPTRACK = {
    "library": "/usr/lib/heaptrack/libheaptrack_preload.so",
    "interpreter": "/usr/lib/heaptrack/libexec/heaptrack_interpret",
}


FULL, SAMPLED, DORMANT = "heaptape", "heaptape, sampled", "heaptape, dormant"
BEFORE = ", before"


def is_heaptape(tool):
    return tool.startswith(FULL)


def command_of(tool):
    """The command of heaptape that a tool stands for."""
    return ARGS.before if tool.endswith(BEFORE) else HEAPTAPE


def library_of(tool):
    """The library of that command."""
    return subprocess.run([command_of(tool), "library"], capture_output=True, text=True, check=True).stdout.strip()


def is_wanted(name):
    return not ARGS.only or any(word in name for word in ARGS.only.split(","))


def build(place):
    """The workloads, as (name, words, file to read, variables, whether it has children)."""
    micro = os.path.join(place, "micro")
    flags = ["-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]
    subprocess.run(["gcc", *flags, os.path.join(HERE, "micro.c"), "-o", micro], check=True)
    trees, pairs_program = os.path.join(place, "trees"), os.path.join(place, "pairs")
    for source, built in (("trees.cpp", trees), ("pairs.cpp", pairs_program)):
        subprocess.run(["g++", "-std=c++17", *flags, os.path.join(HERE, source), "-o", built], check=True)
    mappings = os.path.join(place, "mappings")
    subprocess.run(["gcc", *flags, os.path.join(HERE, "mappings.c"), "-o", mappings], check=True)
    subprocess.run(["gcc", "-O2", os.path.join(HERE, "measure.c"), "-o", os.path.join(place, "measure")], check=True)
    cargo = ["cargo", "build", "--quiet", "--release"]
    # A command that the environment names is measured as it is.
    if "HEAPTAPE" not in os.environ:
        subprocess.run([*cargo, "-p", "heaptape"], cwd=ROOT, check=True)
    program = os.path.join(TARGET, "release/json-program")
    scale = 10 if ARGS.quick else 1
    data = os.path.join(place, "data.json")
    if is_wanted("Rust json"):
        subprocess.run([*cargo, "-p", "heaptape-tests", "--bin", "json-program"], cwd=ROOT, check=True)
        subprocess.run([program, "make", str(600_000 // scale), data], check=True)
    with open(os.path.join(HERE, "bulk.sql")) as file:
        sql = file.read().replace("500000", str(500_000 // scale))
    bulk = os.path.join(place, "bulk.sql")
    with open(bulk, "w") as file:
        file.write(sql)
    pairs = str(2_000_000 // scale)
    heavy = os.path.join(ROOT, "tests/programs/heavy.cpp")
    of_compiler = lambda option: subprocess.run(["g++", option], capture_output=True, text=True, check=True).stdout.strip()
    compiler, folder = of_compiler("-print-prog-name=cc1plus"), of_compiler("-print-multiarch")
    rounds = str(600 // scale)
    return [
        ("micro, depth 8", [micro, pairs, "8", "1"], None, {}, False),
        ("micro, depth 40", [micro, pairs, "40", "1"], None, {}, False),
        ("micro, 2 threads", [micro, pairs, "8", "2"], None, {}, False),
        ("micro, 8 threads", [micro, pairs, "8", "8"], None, {}, False),
        ("micro, 2 threads, cross", [micro, pairs, "8", "2", "cross"], None, {}, False),
        ("C pairs", [pairs_program, pairs, "malloc"], None, {}, False),
        ("C++ pairs", [pairs_program, pairs, "new"], None, {}, False),
        ("C++ pairs of arrays", [pairs_program, pairs, "array"], None, {}, False),
        ("mappings", [mappings, str(500_000 // scale), "16"], None, {}, False),
        ("C++ trees", [trees, rounds, "1"], None, {}, False),
        ("C++ trees, 4 threads", [trees, rounds, "4"], None, {}, False),
        ("sqlite3", ["sqlite3", ":memory:"], bulk, {}, False),
        ("python3 json", ["/usr/bin/python3", os.path.join(HERE, "objects.py"), str(300_000 // scale)], None,
         {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}, False),
        ("Rust json", [program, "read", data], None, {}, False),
        ("cc1plus", [compiler, "-quiet", "-imultiarch", folder, "-D_GNU_SOURCE", "-O1", heavy, "-o", os.path.join(place, "heavy.s")], None, {}, False),
        ("g++ with children", ["g++", "-O1", "-c", heavy, "-o", os.path.join(place, "heavy.o")], None, {}, True),
        ("ls", ["ls", "/"], None, {}, False),
        # Large programs and code that is generated at run time; those that are installed.
        *[workload for workload in [
            ("node", ["node", "-e", "1"], None, {}, False),
            ("java", ["java", "-version"], None, {}, False),
            ("LuaJIT", ["luajit", os.path.join(HERE, "pairs.lua"), str(400_000 // scale)], None, {}, False),
        ] if shutil.which(workload[1][0])],
    ]


def tree(pid):
    """The process and all below it."""
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children") as file:
                    left += [int(word) for word in file.read().split()]
        except OSError:
            pass
    return found


def watch(roots, below, stop, peaks):
    """Largest resident sets, in KiB, of the recorder's own processes: the roots, and what they started where that is theirs."""
    while not stop.is_set():
        for pid in [one for root in roots for one in (tree(root) if below else [root])]:
            try:
                with open(f"/proc/{pid}/status") as file:
                    for line in file:
                        if line.startswith("VmHWM"):
                            peaks[pid] = int(line.split()[1])
            except OSError:
                pass
        stop.wait(0.005)


def children_cpu():
    """CPU time of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def adopt_orphans():
    """What outlives a command becomes a child of this process, whose CPU time is counted."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def await_orphans():
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def size(path):
    sizes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            # The search for names may go on after the command, and then removes its file.
            with contextlib.suppress(FileNotFoundError):
                sizes += os.path.getsize(os.path.join(folder, name))
    return sizes


def run(tool, workload, place):
    name, words, stdin, variables, _ = workload
    record = os.path.join(place, "recording")
    shutil.rmtree(record, ignore_errors=True)
    note = os.path.join(place, "note.json")
    if os.path.exists(note):
        os.unlink(note)
    measured = [os.path.join(place, "measure"), note]
    environment = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "HEAPTAPE_SOCKET")} | variables
    helpers = []
    records = is_heaptape(tool) and not tool.startswith(DORMANT)
    has_recorder = records or not (tool == "plain" or is_heaptape(tool))
    if tool == "plain":
        command = measured + words
    elif tool.startswith(DORMANT):
        command = measured + ["env", f"LD_PRELOAD={library_of(tool)}", "HEAPTAPE_SOCKET=/nonexistent"] + words
    elif is_heaptape(tool):
        options = ["--sample", "512KiB"] if tool.startswith(SAMPLED) else []
        command = [command_of(tool), "record", "-o", record, *options, "--"] + measured + words
    elif tool in compare.PROFILERS:
        os.makedirs(record)
        command = compare.PROFILERS[tool].command(measured, words, record)
    else:
        os.makedirs(record)
        pipe = os.path.join(record, "pipe")
        os.mkfifo(pipe)
        shell = f'"{HEAPTRACK["interpreter"]}" < "{pipe}" | {COMPRESSOR} > "{record}/data"'
        helpers.append(subprocess.Popen(["sh", "-c", shell], stderr=subprocess.DEVNULL))
        command = measured + ["env", f'LD_PRELOAD={HEAPTRACK["library"]}', f"DUMP_HEAPTRACK_OUTPUT={pipe}"] + words
    with open(stdin or os.devnull, "rb") as given, open(os.path.join(place, "error"), "w+b") as error:
        start, before = time.monotonic(), children_cpu()
        process = subprocess.Popen(command, stdin=given, stdout=subprocess.DEVNULL, stderr=error, env=environment, cwd=place, start_new_session=True)
        peaks, stop = {}, threading.Event()
        # What /proc says costs time itself: only the recorder's own processes are watched.
        roots = [process.pid] if records else [helper.pid for helper in helpers]
        watcher = threading.Thread(target=watch, args=(roots, not records, stop, peaks))
        if has_recorder:
            watcher.start()
        try:
            # Only another profiler may be so slow that its figures are of no use.
            status = process.wait(timeout=compare.LONGEST if tool in compare.PROFILERS else None)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = f"none after {compare.LONGEST} s"
        for helper in helpers:
            helper.wait()
        end = time.monotonic()
        await_orphans()
        stop.set()
        if has_recorder:
            watcher.join()
        error.seek(0)
        said = error.read().decode(errors="replace")
    if status != 0:
        raise SystemExit(f"{tool}, {name}: exit status {status}\n{said}")
    with open(note) as file:
        used = json.load(file)
    out = {
        "wall": end - start, "program_wall": used["wall"], "cpu": used["user"] + used["system"], "rss_kib": used["rss_kib"],
        "recorder_cpu": max(0.0, children_cpu() - before - used["user"] - used["system"]),
        "return_after": end - used["end"], "recorder_kib": sum(peaks.values()), "bytes": size(record),
    }
    if tool == "heaptrack":
        out["bytes"] = os.path.getsize(os.path.join(record, "data"))
    if records:
        said = subprocess.run([command_of(tool), "report", "--json", record], capture_output=True, check=True).stdout
        images = [p for p in json.loads(said)["processes"] if not p["exe"].endswith("/measure")]
        out["events"] = sum(p["emitted_events"] for p in images)
        out["lost"] = sum(p["lost_events"] for p in images)
        if name == "mappings":
            # Each range is mapped and unmapped.
            out["events"] = sum(2 * p["mappings"]["calls"] for p in images if "mappings" in p)
        residents = [p["resident"] for p in images if "resident" in p]
        out["snapshots"] = sum(one["snapshots"] for one in residents)
        out["snapshots_ms"] = sum(one.get("read_ns", 0) for one in residents) / 1e6
    shutil.rmtree(record, ignore_errors=True)
    return out


def middle(runs, key):
    values = [run[key] for run in runs]
    return statistics.median(values), min(values), max(values)


def spread(values, digits):
    return "{:.{d}f} ({:.{d}f}-{:.{d}f})".format(*values, d=digits)


def row(name, tool, runs, plain, events):
    """Ratios are of one round each: the runs of a round stood next to each other."""
    cpu = [(run["cpu"] - base["cpu"]) * 1e9 / events for run, base in zip(runs, plain)]
    wall = [run["wall"] / base["wall"] for run, base in zip(runs, plain)]
    ratio = [run["cpu"] / base["cpu"] for run, base in zip(runs, plain)]
    three = lambda values: (statistics.median(values), min(values), max(values))
    return {
        "workload": name, "tool": tool, "events": events,
        "ns_an_event": three(cpu), "wall_ratio": three(wall), "cpu_ratio": three(ratio),
        "plain_seconds": middle(plain, "wall"), "seconds": middle(runs, "wall"),
        "events_a_second": events / statistics.median([run["wall"] for run in runs]),
        "bytes_an_event": statistics.median([run["bytes"] for run in runs]) / events,
        "program_mib": statistics.median([run["rss_kib"] for run in runs]) / 1024,
        "plain_mib": statistics.median([run["rss_kib"] for run in plain]) / 1024,
        "recorder_mib": statistics.median([run["recorder_kib"] for run in runs]) / 1024,
        "return_after": middle(runs, "return_after"),
        "recorder_cpu": statistics.median([run["recorder_cpu"] for run in runs]),
        "all_cpu": three([run["cpu"] + run["recorder_cpu"] for run in runs]),
        "snapshots": statistics.median([run.get("snapshots", 0) for run in runs]),
        "snapshots_ms": statistics.median([run.get("snapshots_ms", 0.0) for run in runs]),
        "lost": max((run.get("lost", 0) for run in runs)),
    }


def table(rows):
    lines = [
        "| workload | tool | events | ns an event | wall ratio | CPU ratio | M events/s | bytes/event | program MiB (plain) | recorder MiB | recorder CPU, s | CPU of both, s | snapshots of pages, ms | return after, s | lost |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append("| {} | {} | {:,} | {} | {} | {} | {:.2f} | {:.2f} | {:.0f} ({:.0f}) | {:.0f} | {:.2f} | {} | {} | {} | {} |".format(
            r["workload"], r["tool"], r["events"], spread(r["ns_an_event"], 1), spread(r["wall_ratio"], 2), spread(r["cpu_ratio"], 2),
            r["events_a_second"] / 1e6, r["bytes_an_event"], r["program_mib"], r["plain_mib"], r["recorder_mib"],
            r["recorder_cpu"], spread(r["all_cpu"], 2), f'{r["snapshots"]:.0f} in {r["snapshots_ms"]:.1f}' if r["snapshots"] else "",
            spread(r["return_after"], 3), r["lost"]))
    return "\n".join(lines)


def main():
    place = tempfile.mkdtemp(prefix="heaptape-bench-")
    adopt_orphans()
    try:
        workloads = build(place)
        workloads = [workload for workload in workloads if is_wanted(workload[0])]
        rows = []
        for workload in workloads:
            modes = [FULL] + [tool for mode, tool in (("sampled", SAMPLED), ("dormant", DORMANT)) if mode in ARGS.modes]
            tools = ["plain"] + [tool + variant for tool in modes for variant in ["", *([BEFORE] if ARGS.before else [])]]
            if not ARGS.no_heaptrack and not workload[4] and all(os.path.exists(path) for path in HEAPTRACK.values()):
                tools.append("heaptrack")
            if ARGS.what == "compare" and not workload[4]:
                tools += [name for name, profiler in compare.PROFILERS.items() if profiler.can_run(workload[1])]
            runs = {tool: [] for tool in tools}
            for turn in range(ARGS.rounds):
                # Each round begins with another tool, so that none has always the warmest machine.
                for tool in tools[turn % len(tools):] + tools[:turn % len(tools)]:
                    try:
                        runs[tool].append(run(tool, workload, place))
                    except SystemExit as failure:
                        # heaptrack's interpreter ends early in some programs, which then cannot
                        # write. Another profiler may not support a program either.
                        if tool != "heaptrack" and tool not in compare.PROFILERS:
                            raise
                        print(failure, file=sys.stderr)
                        tools.remove(tool)
                print(f"{workload[0]}: round {turn + 1} of {ARGS.rounds}", file=sys.stderr)
            events = int(statistics.median([r["events"] for r in runs[FULL]]))
            rows += [row(workload[0], tool, runs[tool], runs["plain"], events) for tool in tools[1:]]
        machine = compare.machine()
        print(f"{ARGS.rounds} rounds, {machine}, medians (least-most); load {os.getloadavg()[0]:.1f} at the end\n")
        print(table(rows))
        if ARGS.json:
            with open(ARGS.json, "w") as file:
                json.dump({"rounds": ARGS.rounds, "processors": os.cpu_count(), "rows": rows}, file, indent=1)
        if ARGS.what == "compare":
            version = subprocess.run([HEAPTAPE, "-V"], capture_output=True, text=True, check=True).stdout.strip()
            entry = compare.entry(version, ARGS.release, machine, ARGS.quick, rows)
            print(compare.against_last(ARGS.history, entry))
            compare.append(ARGS.history, entry)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["compare"], help="compare: with all installed profilers, and with the history")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--only", help="workloads whose names contain one of these words, by commas")
    parser.add_argument("--modes", default="full", type=lambda text: text.split(","), help="full, sampled, dormant, by commas")
    parser.add_argument("--before", metavar="COMMAND", help="another command heaptape, such as one of an earlier commit, measured in the same rounds")
    parser.add_argument("--json", metavar="FILE", help="the same figures as JSON")
    parser.add_argument("--no-heaptrack", action="store_true")
    parser.add_argument("--history", metavar="FILE", default=os.path.join(TARGET, "bench-history.jsonl"), help="file to compare with, and to append to")
    parser.add_argument("--release", metavar="NAME", help="mark the figures as those of a release, with which later ones are compared")
    ARGS = parser.parse_args()
    COMPRESSOR = "zstd -c" if shutil.which("zstd") else "gzip -c"
    main()
