"""Runs inside the emulated machine: the tests that it's given, each in a process of its own, one line for each result.

usage: guest.py TESTS TIMEOUT FILTER…
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor


def tests(binary):
    """The names of the tests in a binary; none if it cannot start."""
    listed = subprocess.run([binary, "--list", "--format", "terse"], stdout=subprocess.PIPE, text=True).stdout
    return [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]


def run(binary, name, timeout):
    start = time.monotonic()
    # A session of its own, so that nothing of it survives.
    test = subprocess.Popen([binary, "--exact", name, "--nocapture"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        text, result = test.communicate(timeout=timeout)[0], "passed" if test.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        os.killpg(test.pid, 9)
        text, result = test.communicate()[0], "late"
    # A long assertion's place is far before the end.
    said = "" if result == "passed" else text[text.find("panicked at"):][:300] + "\n...\n" + text[-1500:]
    print(f"RESULT {result} {time.monotonic() - start:.1f} {os.path.basename(binary).rsplit('-', 1)[0]}::{name} {said!r}", flush=True)


def main():
    listed, timeout, filters = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    with open(listed, encoding="utf-8") as file:
        binaries = file.read().split()
    chosen = [(binary, name) for binary in binaries for name in tests(binary) if not filters or any(one in name for one in filters)]
    print(f"CHOSEN {len(chosen)}", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda one: run(*one, timeout), chosen))


if __name__ == "__main__":
    main()
