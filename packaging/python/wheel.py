#!/usr/bin/env python3
"""Packs a command into a wheel, without building anything.

A wheel is a zip file: the command in NAME-VERSION.data/scripts, and METADATA, WHEEL and RECORD in NAME-VERSION.dist-info
(https://packaging.python.org/en/latest/specifications/binary-distribution-format/). Its tag says for which glibc it was linked, so
the versions of the symbols that the command asks for are read from the command itself.

usage: wheel.py COMMAND VERSION OUT [FILE=PATH-BELOW-THE-PREFIX]...
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import time
import zipfile

# https://peps.python.org/pep-0600/: manylinux_2_17 is manylinux2014.
GLIBC = (2, 17)
HERE = os.path.dirname(os.path.abspath(__file__))


def glibc_of(path):
    """The newest version of glibc that a program asks for."""
    symbols = subprocess.run(["readelf", "--dyn-syms", "--wide", path], check=True, capture_output=True, text=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    return max(versions, default=(0,))


def machine_of(path):
    """The machine that a program runs on, as tags have it."""
    with open(path, "rb") as file:
        header = file.read(20)
    return {0x3E: "x86_64", 0xB7: "aarch64"}[int.from_bytes(header[18:20], "little")]


def metadata(version):
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    fields = [
        "Metadata-Version: 2.4", "Name: heaptape", f"Version: {version}",
        "Summary: A tape recorder for the heap: what leaks, since when and from where",
        "Keywords: heap,memory,leak,profiler,malloc", "License-Expression: MIT OR Apache-2.0",
        "Classifier: Environment :: Console", "Classifier: Intended Audience :: Developers",
        "Classifier: Operating System :: POSIX :: Linux", "Classifier: Programming Language :: C",
        "Classifier: Programming Language :: C++", "Classifier: Programming Language :: Rust",
        "Classifier: Programming Language :: Python :: 3", "Classifier: Topic :: Software Development :: Debuggers",
        "Classifier: Topic :: System :: Monitoring", "Requires-Python: >=3.7", "Description-Content-Type: text/markdown"]
    repository = os.environ.get("HEAPTAPE_REPOSITORY")
    if repository:
        fields.insert(4, f"Project-URL: Repository, {repository}")
    return "\n".join(fields) + "\n\n" + readme


def main():
    command, version, out, *more = sys.argv[1:]
    files = {f"heaptape-{version}.data/scripts/heaptape": command}
    for pair in more:
        path, place = pair.split("=", 1)
        files[f"heaptape-{version}.data/data/{place}"] = path
    for path in files.values():
        found = glibc_of(path)
        if found > GLIBC:
            sys.exit(f"wheel: {path} needs glibc {'.'.join(map(str, found))}, newer than {'.'.join(map(str, GLIBC))}")
    machine = machine_of(command)
    tag = f"py3-none-manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}.manylinux2014_{machine}"
    tags = "".join(f"Tag: py3-none-{one}\n" for one in tag.split("-")[2].split("."))
    info = f"heaptape-{version}.dist-info"
    texts = {f"{info}/METADATA": metadata(version),
             f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: heaptape\nRoot-Is-Purelib: false\n{tags}"}
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        with open(os.path.join(HERE, "..", "..", name), encoding="utf-8") as file:
            texts[f"{info}/licenses/{name}"] = file.read()
    path = os.path.join(out, f"heaptape-{version}-{tag}.whl")
    date = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", 315532800)))[:6]
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        def add(name, data, mode):
            about = zipfile.ZipInfo(name, date)
            about.external_attr = (0o100000 | mode) << 16
            about.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(about, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        for name, source in files.items():
            with open(source, "rb") as file:
                add(name, file.read(), 0o755)
        for name, text in texts.items():
            add(name, text.encode(), 0o644)
        record.append(f"{info}/RECORD,,")
        add(f"{info}/RECORD", ("\n".join(record) + "\n").encode(), 0o644)
    print(path)


if __name__ == "__main__":
    main()
