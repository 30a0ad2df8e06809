#!/usr/bin/env python3
"""Runs real programs under `heaptape record`, and compares the stacks of sampled calls frame by frame with libunwind's and libgcc's in
the same process, and where these disagree, with gdb's. Called by `scripts/dev stacks`.

  check.py HEAPTAPE NOTES [--quick] [PROGRAM…]

Packages of PyPI and npm are in NOTES/../stacks. The table of all programs goes to NOTES/stacks.md, for docs/torture.md. --quick runs the cheap programs that are installed, with fewer
samples. The exit status is 1 if a stack of a program ends early, differs, or was sampled and is not in the recording.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

# No files beside the sources.
sys.dont_write_bytecode = True

import compare
from programs import PROGRAMS

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST = 240  # seconds, on a machine that does other things

# Prints the program counter of each real frame.
FRAMES = """
import gdb
frame = gdb.newest_frame()
while frame is not None and frame.is_valid():
    if frame.type() != gdb.INLINE_FRAME:
        print("pc %#x" % frame.pc())
    try:
        frame = frame.older()
    except gdb.error:
        break
"""


class Gdb(threading.Thread):
    """Answers the questions of the oracle: the stack of a thread that waits, without the frames of the oracle itself."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.is_over = folder, False
        self.script = f"{folder}.py"
        with open(self.script, "w") as file:
            file.write(FRAMES)

    def run(self):
        while not self.is_over:
            for name in os.listdir(self.folder):
                if name.endswith(".ask"):
                    self.answer(name)
            time.sleep(0.05)

    def answer(self, name):
        tid = name.split(".")[-3]
        command = ["gdb", "-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off", "-p", tid]
        command += ["-x", self.script]
        try:
            result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
            words = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("pc ")]
        except (OSError, subprocess.TimeoutExpired):
            words = []
        with open(f"{self.folder}/{name}.answer", "w") as file:
            file.write("\n".join(words))
        os.remove(f"{self.folder}/{name}")


def build(folder):
    library = f"{folder}/oracle.so"
    source = f"{HERE}/oracle.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-static-libgcc", "-o", library, source], check=True)
    return library


def run(heaptape, library, program, folder, is_quick):
    """Runs a program. Returns its status, or None after too long a time, with the folders of recording and samples."""
    recording, samples, work = f"{folder}/recording", f"{folder}/samples", f"{folder}/work"
    os.makedirs(samples)
    os.makedirs(work)
    environment = dict(os.environ, LC_ALL="C", HOME=work, STACKS_LIBRARY=library, STACKS_ORACLE=samples, PYTHONHASHSEED="0", PERL_HASH_SEED="0")
    environment.update(STACKS_EVERY="97" if is_quick else "29", STACKS_MOST="400" if is_quick else "3000", STACKS_QUESTIONS="0" if is_quick else "4")
    for name in ("LD_PRELOAD", "PYTHONPATH"):
        environment.pop(name, None)
    if program.setup:
        subprocess.run(["bash", "-c", program.setup], cwd=work, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LONGEST)
    shell = 'export LD_PRELOAD="$STACKS_LIBRARY:$LD_PRELOAD"; ' + program.line
    command = [heaptape, "record", "-q", "-o", recording, "--", "/bin/bash", "-c", shell]
    gdb = Gdb(samples)
    if not is_quick:
        gdb.start()
    with open(f"{folder}/output", "wb") as output:
        process = subprocess.Popen(command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        try:
            status = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            status = None
    gdb.is_over = True
    return status, recording, samples


def is_there(need, packages):
    """Whether a command is installed, a file exists, or with + a file of the packages."""
    if need.startswith("+"):
        return os.path.exists(f"{packages}/{need[1:]}")
    return os.path.exists(need) if need.startswith("/") else shutil.which(need) is not None


def main():
    words = sys.argv[1:]
    is_quick = "--quick" in words
    words = [word for word in words if not word.startswith("--")]
    heaptape, notes, names = os.path.abspath(words[0]), words[1], words[2:]
    packages = os.path.abspath(f"{notes}/../stacks")
    os.environ.update(STACKS_PACKAGES=packages, STACKS_SOURCES=os.path.abspath(f"{HERE}/../programs"))
    top = tempfile.mkdtemp(prefix="heaptape-stacks-")
    library = build(top)
    rows, has_failed, skipped = [], False, []
    for program in PROGRAMS:
        if (names and program.name not in names) or (is_quick and not program.is_quick):
            continue
        missing = [need for need in program.needs if not is_there(need, packages)]
        if missing:
            skipped.append(program.name)
            print(f"stacks: skipped {program.name}: {', '.join(missing)} is not installed", flush=True)
            continue
        folder = f"{top}/{program.name.replace(' ', '-')}"
        os.mkdir(folder)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status, recording, samples = run(heaptape, library, program, folder, is_quick)
        counts, places = {}, {}
        if os.path.exists(f"{recording}/recording.json"):
            counts, places = compare.compare(heaptape, recording, samples)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        total = sum(counts.values())
        print(f"stacks: {program.name}: status {status}, {total} captures, {cpu:.1f} s of CPU", flush=True)
        for kind in compare.CLASSES:
            if counts.get(kind, 0):
                print(f"  {kind}: {counts[kind]}")
        for (kind, place), (count, example) in sorted(places.items(), key=lambda item: (compare.CLASSES.index(item[0][0]), -item[1][0]))[: int(os.environ.get("STACKS_EXAMPLES", "12"))]:
            print(f"    {kind}: {count} at {place}\n      " + example.replace("\n", "\n      "))
        is_faulty = status != program.status or not total or any(counts.get(kind, 0) for kind in compare.FAULTS)
        if is_faulty:
            has_failed = True
            if status != program.status:
                with open(f"{folder}/output", errors="replace") as output:
                    print("  " + output.read()[-2000:].replace("\n", "\n  "))
        rows.append((program.name, counts, places))
        sys.stdout.flush()
        if not os.environ.get("STACKS_KEEP"):
            # Names may still be written.
            shutil.rmtree(folder, ignore_errors=True)
    write(rows, skipped, notes, is_quick or names)
    if not os.environ.get("STACKS_KEEP"):
        shutil.rmtree(top, ignore_errors=True)
    sys.exit(1 if has_failed else 0)


def write(rows, skipped, notes, is_part):
    """Prints the sums, and stores the table after a run of all programs."""
    total = sum(sum(counts.values()) for _, counts, _ in rows)
    faults = sum(counts.get(kind, 0) for _, counts, _ in rows for kind in compare.FAULTS)
    print(f"stacks: {len(rows)} programs, {total} captures, {faults} unexplained differences, {len(skipped)} programs skipped")
    if is_part:
        return
    lines = ["| program | captures | " + " | ".join(compare.CLASSES) + " | where |", "|---" * (len(compare.CLASSES) + 3) + "|"]
    for name, counts, places in rows:
        where = "; ".join(f"{kind}: {place}" for kind, place in sorted(places, key=lambda item: -places[item][0])[:3])
        cells = [str(counts.get(kind, 0)) for kind in compare.CLASSES]
        lines.append(f"| {name} | {sum(counts.values())} | " + " | ".join(cells) + f" | {where or '-'} |")
    sums = [str(sum(counts.get(kind, 0) for _, counts, _ in rows)) for kind in compare.CLASSES]
    lines.append(f"| all {len(rows)} | {total} | " + " | ".join(sums) + " | |")
    os.makedirs(notes, exist_ok=True)
    with open(f"{notes}/stacks.md", "w") as file:
        file.write("\n".join(lines) + "\n")


main()
