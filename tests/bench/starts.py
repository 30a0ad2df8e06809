#!/usr/bin/env python3
"""CPU time that the recorder takes for a short process, from its hello to its names on disk: a program that allocates ten blocks is started
again and again. All processes of the command count (recorder, name saver and what it starts). Also: the time a start takes, bare and recorded.

usage: starts.py [--starts N] [--rounds N] [--folder FOLDER]    HEAPTAPE: the command; FOLDER: where it records, e.g. /dev/shm"""
import argparse, os, shutil, subprocess, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HEAPTAPE = os.path.realpath(os.environ.get("HEAPTAPE", os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release/heaptape")))


def recorders(folder):
    """The processes of the command that records into this folder."""
    def is_one(pid):
        try:
            with open(f"/proc/{pid}/cmdline") as line:
                return os.readlink(f"/proc/{pid}/exe") == HEAPTAPE and folder in line.read()
        except OSError:
            return False
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and is_one(pid)]


def cpu_ms(pids):
    """CPU time of processes, and of their children that have ended, in milliseconds."""
    ticks = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                ticks += sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:15]))
        except OSError:
            pass
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


def measure(program, before, folder):
    """Returns CPU and wall milliseconds for each start."""
    run = subprocess.Popen([*before, program, str(ARGS.starts)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    go_on = lambda: (run.stdin.write(b"\n"), run.stdin.flush())
    run.stdout.readline()
    time.sleep(0.5)
    pids = recorders(folder) if before else []
    cpu, wall = cpu_ms(pids), time.monotonic()
    go_on()
    run.stdout.readline()
    wall = time.monotonic() - wall
    # The last names are looked up now.
    time.sleep(1)
    cpu = cpu_ms(pids) - cpu
    go_on()
    run.wait()
    return cpu / ARGS.starts, wall * 1000 / ARGS.starts


def main():
    place = tempfile.mkdtemp(prefix="heaptape-bench-", dir=ARGS.folder)
    try:
        program, folder = os.path.join(place, "starts"), os.path.join(place, "recording")
        subprocess.run(["gcc", "-O1", "-fno-builtin", os.path.join(HERE, "starts.c"), "-o", program], check=True)
        rows = []
        for _ in range(ARGS.rounds):
            bare = measure(program, [], folder)[1]
            rows.append((*measure(program, [HEAPTAPE, "record", "-q", "-o", folder], folder), bare))
            shutil.rmtree(folder)
        cpu, wall, bare = (min(row[index] for row in rows) for index in range(3))
        print(f"{ARGS.rounds} rounds of {ARGS.starts} starts, least of each\n")
        print(f"the recorder's CPU time for a process: {cpu:.2f} ms\na start, bare: {bare:.2f} ms; recorded: {wall:.2f} ms")
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None)
    ARGS = parser.parse_args()
    main()
