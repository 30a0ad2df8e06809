#!/usr/bin/env python3
"""The questions on large recordings: CPU, wall and the largest resident set of each, under a hard limit of memory. The recordings are made
by tests/src/bin/make-recording.rs.

usage: reports.py [EVENTS …]     default: 16e6 100e6; 1e9 takes about 6 GB of disk"""
import os, resource, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
HEAPTAPE = os.environ.get("HEAPTAPE", os.path.join(TARGET, "release/heaptape"))
LIMIT = 512 << 20
WORDS = [
    ["report"], ["leaks"], ["peak"], ["sites"], ["sizes"], ["lifetimes"], ["temporary"], ["timeline"], ["threads"], ["realloc"],
    ["fragmentation"], ["verify"], ["leaks", "--min-age", "1s"], ["timeline", "--from", "50%", "--to", "51%"],
    ["sites", "--from", "50%", "--to", "51%"], ["peak", "--from", "50%", "--to", "51%"], ["diff", "--from", "50%", "--to", "51%"],
    ["diff", "--from", "40%", "--to", "60%"],
]


def limited():
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))


def main():
    cargo = ["cargo", "build", "--quiet", "--release"]
    if "HEAPTAPE" not in os.environ:
        subprocess.run([*cargo, "-p", "heaptape"], cwd=ROOT, check=True)
    subprocess.run([*cargo, "-p", "heaptape-tests", "--bin", "make-recording"], cwd=ROOT, check=True)
    maker = os.path.join(TARGET, "release/make-recording")
    for events in sys.argv[1:] or ["16e6", "100e6"]:
        with tempfile.TemporaryDirectory(prefix="heaptape-bench-") as place:
            folder = os.path.join(place, "recording")
            subprocess.run([maker, events, folder], check=True)
            size = sum(os.path.getsize(os.path.join(where, name)) for where, _, names in os.walk(folder) for name in names)
            print(f"{float(events):.0f} events, {size / 2**20:.0f} MiB ({size / float(events):.2f} bytes an event), limit {LIMIT >> 20} MiB")
            print(f"{'question':34} {'CPU s':>8} {'wall s':>8} {'MiB':>7}  exit")
            for words in WORDS:
                start = time.monotonic()
                child = subprocess.Popen([HEAPTAPE, *words, folder], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=limited)
                said = child.stderr.read()
                _, status, used = os.wait4(child.pid, 0)
                wall = time.monotonic() - start
                child.returncode = os.waitstatus_to_exitcode(status)
                told = said.decode(errors="replace").strip().splitlines()[:1]
                print(f"{' '.join(words):34} {used.ru_utime + used.ru_stime:8.2f} {wall:8.2f} {used.ru_maxrss / 1024:7.0f}  "
                      f"{child.returncode} {' '.join(told)}", flush=True)


main()
