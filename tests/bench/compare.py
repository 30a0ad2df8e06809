"""The standing comparison (run.py compare): other profilers, and the history of the figures.

The history is a file of JSON lines, one for each comparison: version, release, machine, and the figures of each workload and tool. A new
line is compared with the last release on the same machine, or with the last line if there is none."""
import glob, json, os, platform, shutil, subprocess, time

# A figure that is larger by this factor is reported.
SLOWER = 1.05
# Seconds after which another profiler is given up for a workload.
LONGEST = 120


def library(*patterns):
    """The first file that matches."""
    return next((found for pattern in patterns for found in sorted(glob.glob(pattern))), None)


class Preloaded:
    """A profiler that is a library."""

    def __init__(self, path, variables, probe=None):
        self.path, self.variables, self.probe, self.works = path, variables, probe, None

    def can_run(self, words):
        if self.works is None:
            self.works = self.path is not None and (self.probe is None or self.probe(self.path))
        return self.works

    def command(self, measured, words, place):
        variables = [f"{name}={value.format(place=place)}" for name, value in self.variables.items()]
        return measured + ["env", f"LD_PRELOAD={self.path}", *variables, *words]


class Memray:
    """memray records Python programs."""

    def __init__(self):
        self.has = {}

    def can_run(self, words):
        if "python" not in os.path.basename(words[0]):
            return False
        if words[0] not in self.has:
            found = subprocess.run([words[0], "-c", "import memray"], capture_output=True)
            self.has[words[0]] = found.returncode == 0
        return self.has[words[0]]

    def command(self, measured, words, place):
        return measured + [words[0], "-m", "memray", "run", "--native", "--quiet", "--output", os.path.join(place, "memray.bin"), *words[1:]]


def has_profiling(path):
    """jemalloc refuses its options for profiles where it was built without."""
    environment = {**os.environ, "LD_PRELOAD": path, "MALLOC_CONF": "prof:true,prof_active:false"}
    return b"Invalid conf" not in subprocess.run(["true"], env=environment, capture_output=True).stderr


LIBRARIES = ["/usr/lib/*-linux-gnu/", "/usr/lib64/", "/usr/lib/", "/usr/local/lib/"]
of = lambda name: library(*[folder + name for folder in LIBRARIES])

# The profilers of jemalloc and tcmalloc sample: they are comparable with heaptape, sampled. The
# others record every event.
PROFILERS = {
    "memray --native": Memray(),
    "bytehound": Preloaded(os.environ.get("BYTEHOUND_LIBRARY") or of("libbytehound.so"), {"MEMORY_PROFILER_OUTPUT": "{place}/bytehound.dat"}),
    "jemalloc, sampled": Preloaded(of("libjemalloc.so.2"), {"MALLOC_CONF": "prof:true,lg_prof_sample:19,prof_final:true,prof_prefix:{place}/jeprof"}, has_profiling),
    "tcmalloc heap profiler": Preloaded(of("libtcmalloc.so.4"), {"HEAPPROFILE": "{place}/tcmalloc", "HEAP_PROFILE_ALLOCATION_INTERVAL": "0", "HEAP_PROFILE_INUSE_INTERVAL": "0"}),
}


def machine():
    """Processor, their number, kernel."""
    model = platform.machine()
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"{os.cpu_count()} x {model}, {platform.system()} {platform.release()}"


def entry(version, release, machine, is_quick, rows):
    figures = [{key: row[key] for key in ("workload", "tool", "events", "ns_an_event", "wall_ratio", "cpu_ratio", "bytes_an_event")} for row in rows]
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"date": date, "version": version, "release": release, "machine": machine, "quick": is_quick, "rows": figures}


def read(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file if line.strip()]


def against_last(path, new):
    """Reports what is slower than in the last release."""
    same = [old for old in read(path) if old["machine"] == new["machine"] and old["quick"] == new["quick"]]
    released = [old for old in same if old["release"]]
    if not same:
        return f"\n{path} has no figures of this machine yet."
    old = (released or same)[-1]
    before = {(row["workload"], row["tool"]): row for row in old["rows"]}
    lines = []
    for row in new["rows"]:
        past = before.get((row["workload"], row["tool"]))
        if past is None or not row["tool"].startswith("heaptape") or row["tool"].endswith(", before"):
            continue
        for key, name in (("wall_ratio", "wall to plain"), ("cpu_ratio", "CPU to plain")):
            (now, least, _), (then, _, most) = row[key], past[key]
            if then > 0 and now >= SLOWER * then:
                certain = "" if least > most else " (the ranges overlap)"
                lines.append(f"slower: {row['workload']}, {row['tool']}: {name} {now:.2f} instead of {then:.2f}{certain}")
    name = f"release {old['release']}" if old["release"] else f"{old['version']} of {old['date']}"
    return "\n" + "\n".join(lines or [f"Nothing is slower than {name} by {100 * (SLOWER - 1):.0f} % or more."])


def append(path, new):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "a") as file:
        file.write(json.dumps(new) + "\n")
