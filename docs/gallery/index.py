"""The program of the gallery: an index of the names in Python's standard library, made by three threads, then asked.

What makes it worth a look: a burst while sources are parsed, an index that is kept, and a log of answers that nobody ever
empties. It ends without tearing anything down (os._exit), as servers do.
"""
import ast
import os
import sysconfig
import threading
import time

LIBRARY = sysconfig.get_path("stdlib")
FILES = sorted(name for name in os.listdir(LIBRARY) if name.endswith(".py"))[:16]
index, answers = {}, []


def read(files):
    for name in files:
        with open(os.path.join(LIBRARY, name), encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                index.setdefault(node.name, []).append((name, node.lineno))


def ask(question):
    found = [(name, places) for name, places in index.items() if question in name]
    answers.append([question, time.time(), [f"{name} in {file}:{line}" for name, places in found for file, line in places]])


threads = [threading.Thread(target=read, args=(FILES[part::3],), name=f"reader {part}") for part in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for round in range(int(os.environ.get("ROUNDS", "40"))):
    for question in ("read", "write", "parse", "__init__"):
        ask(question)
    time.sleep(0.02)
os._exit(0)
