#!/usr/bin/env python3
"""Compares the blocks that `heaptape holds` calls lost in real programs with those that LeakSanitizer finds. Called by `scripts/dev holders`.

  check.py HEAPTAPE NOTES [NAME…]

programs.txt beside this file has the programs, which run unmodified: once with GCC's run-time of AddressSanitizer preloaded, whose leak check looks
at the end of a program, as ours does, and once under `record --references`. The sums of all their processes are compared, exactly. Where LeakSanitizer
cannot look, nothing may be lost. A name is a part of the programs' names; without one, the table goes to NOTES/holders.md, for docs/torture.md. The exit status is
1 if a program differs that is not marked as one that may.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST = 100  # seconds
LEAKED = re.compile(rb"SUMMARY: AddressSanitizer: (\d+) byte\(s\) leaked in (\d+) allocation\(s\)")


def programs():
    """Yields the name of each program, why it may differ or why LeakSanitizer cannot look (`alone, …`), or nothing, and the script."""
    with open(f"{HERE}/programs.txt", encoding="utf-8") as file:
        parts = file.read().split("\n= ")[1:]
    for part in parts:
        head, script = part.split("\n", 1)
        name, _, reason = head.partition(" : ")
        yield name, reason, script


def run(command, work):
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    environment = {"PATH": os.environ["PATH"], "HOME": work, "LANG": "C.UTF-8", "TERM": "dumb", "PYTHONMALLOC": "malloc"}
    command = ["timeout", "-k", "5", str(LONGEST)] + command
    return subprocess.run(command, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True)


def leaked(script, work, library, more=""):
    """Returns how the program ended, and the blocks and bytes that LeakSanitizer finds in it, or what went wrong."""
    logs = f"{work}.asan"
    for log in glob.glob(f"{logs}.*"):
        os.remove(log)
    options = {
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": f"detect_leaks=1:log_path={logs}:exitcode=0:verify_asan_link_order=0:alloc_dealloc_mismatch=0",
        "LSAN_OPTIONS": f"max_leaks=0{more}",
    }
    # Not in the shell that comes before the program.
    options = " ".join(f"{name}={value}" for name, value in options.items())
    done = run(["/bin/sh", "-c", f"exec env {options} {script.strip()}"], work)
    if done.returncode == 124:
        return done, "does not end"
    blocks = size = 0
    for log in glob.glob(f"{logs}.*"):
        with open(log, "rb") as file:
            text = file.read()
        found = LEAKED.search(text)
        if found is None:
            return done, text[-200:].decode(errors="replace")
        blocks, size = blocks + int(found[2]), size + int(found[1])
    return done, (blocks, size)


def lost(heaptape, script, work, recording):
    """Returns how the program ended, and as heaptape has it the blocks and bytes that nothing holds, the number of live ones, and those that nothing holds for sure, or what is missing."""
    shutil.rmtree(recording, ignore_errors=True)
    done = run(["/bin/sh", "-c", f"exec {heaptape} record -q --references -o {recording} -- {script.strip()}"], work)
    report = subprocess.run([heaptape, "holds", recording, "--json"], capture_output=True)
    if report.returncode:
        return done, report.stderr.decode(errors="replace")
    blocks = size = live = unsure_blocks = unsure_size = 0
    for process in json.loads(report.stdout)["processes"]:
        holds = process["holds"]
        # It ended by `_exit` or a signal, or executed another program: LeakSanitizer does not look at it, either.
        if holds is None:
            continue
        if holds["lacks"]:
            return done, f"{process['exe']}: {holds['lacks']}"
        live += holds["blocks"]
        blocks += holds["lost_blocks"]
        size += holds["lost_bytes"]
        unsure_blocks += holds["lost_blocks"] + holds["stale_blocks"]
        unsure_size += holds["lost_bytes"] + holds["stale_bytes"]
    return done, (blocks, size, live, (unsure_blocks, unsure_size))


def judged(theirs, ours, reason, without_registers):
    """Returns what the two say of a program beside each other; DIFFERENT if nobody has explained it."""
    if theirs is None:
        return reason if ours[0] == 0 or "; lost: " in reason else "DIFFERENT"
    if theirs == ours[:2]:
        return "equal"
    if theirs == ours[3]:
        return "equal with what only unused memory leads to"
    if reason:
        return reason
    return "equal without registers, one of which still has an address that nobody uses" if without_registers() == ours[:2] else "DIFFERENT"


def main():
    heaptape, notes, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    library = os.path.realpath(library)
    work = f"{notes}/holders"
    os.makedirs(notes, exist_ok=True)
    rows, failed = [], 0
    for name, reason, script in programs():
        if wanted and not any(part in name for part in wanted):
            continue
        if shutil.which(script.split()[0]) is None:
            print(f"{name}: not installed", flush=True)
            continue
        recorded, ours = lost(heaptape, script, f"{work}/work", f"{work}/recording")
        if reason.startswith("alone, "):
            bare, theirs = None, None
        else:
            bare, theirs = leaked(script, f"{work}/work", library)
        if isinstance(ours, str) or recorded.returncode:
            print(f"{name}: exit status {recorded.returncode}, {ours}: {recorded.stderr[-300:].decode(errors='replace')}", flush=True)
            failed += 1
            continue
        # Some do not run with it at all.
        if isinstance(theirs, str) or (bare and bare.returncode):
            print(f"{name}: not beside LeakSanitizer: {bare.returncode}, {theirs}; {ours[0]} lost in heaptape's words", flush=True)
            continue
        verdict = judged(theirs, ours, reason, lambda: leaked(script, f"{work}/work", library, ":use_registers=0")[1])
        failed += verdict == "DIFFERENT"
        beside = f"{theirs[1]} B in {theirs[0]}" if bare else "cannot look"
        verdict = verdict.removeprefix("alone, ") if bare or ours[0] else f"{reason.removeprefix('alone, ')}; none lost"
        print(f"{name}: {ours[2]} live, LeakSanitizer {beside}, heaptape {ours[1]} B in {ours[0]}: {verdict}", flush=True)
        rows.append(f"| {name} | {ours[2]} | {beside} | {ours[1]} B in {ours[0]} | {verdict} |")
    if not wanted:
        with open(f"{notes}/holders.md", "w", encoding="utf-8") as file:
            file.write("| program | live blocks | LeakSanitizer: lost | heaptape: lost | |\n| --- | --- | --- | --- | --- |\n" + "\n".join(rows) + "\n")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
