#!/usr/bin/env python3
"""Where the nanoseconds of the traced thread go: each line is a difference between two runs of tests/bench/hook.c that differ in one thing.

Runs are interleaved; the least of all rounds counts, since other programs only ever add. The stages of the recorder have their own benchmark:
scripts/bench stages.

usage: hooks.py [--rounds N] [--pairs N]"""
import argparse, os, shutil, subprocess, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
HEAPTAPE = os.environ.get("HEAPTAPE", os.path.join(TARGET, "release/heaptape"))

# name: (options of `record`, or None for plain and "" for the library without a recorder;
# arguments of the program)
RUNS = {
    "plain": (None, "2"), "plain, fresh": (None, "2 fresh"), "plain, fresh 24": (None, "24 fresh"),
    "no recorder": ("", "2"),
    "sampled": ("--sample 512KiB", "2"),
    "caller": ("--stacks none", "2"), "caller, thread": ("--stacks none", "2 thread"), "caller, fresh": ("--stacks none", "2 fresh"),
    "full, 2": ("--stacks full", "2"), "full, 8": ("--stacks full", "8"), "full, 40": ("--stacks full", "40"), "full, 200": ("--stacks full", "200"),
    "full, fresh": ("--stacks full", "2 fresh"), "full, fresh 24": ("--stacks full", "24 fresh"),
}
# what: (unit, function of the runs' nanoseconds a pair)
LINES = [
    ("hook of a process that is not traced", "call", lambda r: (r["no recorder"] - r["plain"]) / 2),
    ("event, sampled each 512 KiB", "event", lambda r: (r["sampled"] - r["plain"]) / 2),
    ("event, caller only: hook, activation, record, publication, a sixteenth of a timestamp", "event", lambda r: (r["caller"] - r["plain"]) / 2),
    ("what a second thread adds", "event", lambda r: (r["caller, thread"] - r["caller"]) / 2),
    ("whole stack of a known path, 5 frames", "capture", lambda r: r["full, 2"] - r["caller"]),
    ("unchanged frame, up to the twelfth: a word read again", "frame", lambda r: (r["full, 8"] - r["full, 2"]) / 6),
    ("unchanged frame further out: a word read again", "frame", lambda r: (r["full, 200"] - r["full, 40"]) / 160),
    ("new frame: step by its rule, node looked up", "frame",
     lambda r: ((r["full, fresh 24"] - r["plain, fresh 24"]) - (r["full, fresh"] - r["plain, fresh"])) / 22),
]


def main():
    place = tempfile.mkdtemp(prefix="heaptape-bench-")
    try:
        program = os.path.join(place, "hook")
        flags = ["-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]
        subprocess.run(["gcc", *flags, os.path.join(HERE, "hook.c"), "-o", program], check=True)
        subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "heaptape"], cwd=ROOT, check=True)
        library = subprocess.run([HEAPTAPE, "library"], capture_output=True, text=True, check=True).stdout.strip()
        best = {}
        for _ in range(ARGS.rounds):
            for name, (options, arguments) in RUNS.items():
                words, variables = [program, str(ARGS.pairs), *arguments.split()], dict(os.environ)
                if options == "":
                    variables |= {"LD_PRELOAD": library, "HEAPTAPE_SOCKET": "/nonexistent"}
                elif options is not None:
                    words = [HEAPTAPE, "record", "-q", "-o", os.path.join(place, "recording"), *options.split(), "--", *words]
                said = subprocess.run(words, capture_output=True, text=True, check=True, env=variables).stdout
                shutil.rmtree(os.path.join(place, "recording"), ignore_errors=True)
                best[name] = min(best.get(name, float("inf")), float(said))
        print(f"{ARGS.rounds} rounds of {ARGS.pairs:,} pairs, least of each; a plain pair takes {best['plain']:.1f} ns\n")
        print("| what | ns | an |\n|---|---|---|")
        for what, unit, figure in LINES:
            print(f"| {what} | {figure(best):.1f} | {unit} |")
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    ARGS = parser.parse_args()
    main()
