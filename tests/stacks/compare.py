"""Compares the stacks of a recording with what other unwinders found at the same calls in the same processes (oracle.c)."""

import array
import bisect
import collections
import glob
import os
import re
import subprocess

MAGIC = 0x314B434154534F48
GUESSED, ENDS, INTERRUPTED = 1, 2, 4
# Addresses of labels, which are no frames.
LABELS = range(0x0100000000000000, 0x0200000000000000)
LIMIT = 1024

EVENT = re.compile(r'"kind":"(?:alloc|resize)".*"site":([1-9]\d*),"size":(\d+),"thread":(\d+),')

Sample = collections.namedtuple("Sample", "tid call size from_ before libunwind libgcc question")

# What a sample can be, in the order of the table.
EQUAL = "equal to both"
BY_LIBUNWIND, BY_LIBGCC, BY_GDB = "to libunwind, not libgcc", "to libgcc, not libunwind", "to gdb only"
# The others end, or go on at an address that is no code. Ours goes on to where other stacks of the
# thread begin, on which all agree.
ONLY_WHOLE = "only ours is whole"
OURS_EARLY, THEIRS_EARLY, DIFFER, ABSENT = "ours ends early", "the others end early", "differ", "not in the recording"
CLASSES = [EQUAL, BY_LIBUNWIND, BY_LIBGCC, BY_GDB, ONLY_WHOLE, THEIRS_EARLY, OURS_EARLY, DIFFER, ABSENT]
FAULTS = [OURS_EARLY, DIFFER, ABSENT]


class Modules:
    """Names of addresses, by the mappings that the oracle copied and the modules of the recording. What was mapped later is valid."""

    def __init__(self):
        self.ranges, self.code = [], set()

    def read_maps(self, path):
        if not os.path.exists(path):
            return
        with open(path, errors="replace") as file:
            for line in file:
                match = re.match(r"([0-9a-f]+)-([0-9a-f]+) (....) ([0-9a-f]+) \S+ \d+\s*(.*)", line)
                if match:
                    start, end, rights, offset, name = match.groups()
                    if "x" in rights:
                        self.code.add((int(start, 16), int(end, 16)))
                    name = name or "[generated code]" if "x" in rights else name or "[memory]"
                    self.ranges.append((int(start, 16), int(end, 16), int(start, 16) - int(offset, 16), name))

    def find(self, address):
        found = None
        for start, end, base, name in self.ranges:
            if start < address <= end:
                found = (name, address - base)
        return found or ("[unmapped]", address)

    def in_code(self, stack):
        """The frames of a stack before the first one that is in no code."""
        for index, address in enumerate(stack):
            if not any(start < address <= end for start, end in self.code):
                return stack[:index]
        return stack

    def name(self, address):
        module, offset = self.find(address)
        return f"{os.path.basename(module)}+{offset:#x}"


def samples(path):
    """Reads a file of the oracle. A last sample that was not written completely is left out."""
    words = array.array("Q")
    with open(path, "rb") as file:
        data = file.read()
    words.frombytes(data[: len(data) // 8 * 8])
    at, found = 0, []
    while at + 2 <= len(words) and words[at] == MAGIC and at + 2 + words[at + 1] <= len(words):
        tid, call, size, from_ = words[at + 2 : at + 6]
        rest, lists = at + 6, []
        for _ in range(4):
            length = words[rest]
            lists.append(words[rest + 1 : rest + 1 + length].tolist())
            rest += 1 + length
        before = list(zip(lists[0][0::2], lists[0][1::2]))
        question = b"".join(word.to_bytes(8, "little") for word in lists[3]).rstrip(b"\0").decode()
        found.append(Sample(tid, call, size, from_, before, lists[1], lists[2], question))
        at += 2 + words[at + 1]
    return found


class Process:
    """One process of a recording: its modules, its sites, and the allocations of each thread in their order."""

    def __init__(self, heaptape, folder, wanted):
        self.sites, self.tids, self.modules = {}, {}, []
        dump = subprocess.Popen([heaptape, "dump", f"{folder}/events.tape"], stdout=subprocess.PIPE, text=True, errors="replace")
        for line in dump.stdout:
            words = line.split(None, 8) or [""]
            if words[0] == "site" and words[2] == "parent":
                self.sites[int(words[1])] = (int(words[3]), int(words[4], 16), int(words[6]))
            elif len(words) > 4 and words[1] == "thread" and words[3] == "tid":
                self.tids[int(words[2])] = int(words[4])
            elif len(words) > 3 and words[1] == "module" and "-" in words[3]:
                start, end = (int(word, 16) for word in words[3].split("-"))
                self.modules.append((start, end, int(words[5], 16), line.rsplit('"', 2)[1]))
        dump.wait()
        # For each thread, (size, return address, site) of each allocation.
        self.events = collections.defaultdict(list)
        numbers = {number for number, tid in self.tids.items() if tid in wanted}
        events = subprocess.Popen(
            [heaptape, "export", "--format", "json", "--events", folder], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
        )
        for line in events.stdout:
            # A million of these lines are too many for a reader of JSON.
            match = EVENT.search(line)
            if match and int(match[3]) in numbers:
                site = int(match[1])
                self.events[self.tids[int(match[3])]].append((int(match[2]), self.sites[site][1], site))
        events.wait()

    def stack(self, site):
        """The return addresses of a stack from the innermost, and the flags of each."""
        addresses, flags = [], []
        while site:
            parent, address, flag = self.sites[site]
            if address not in LABELS:
                addresses.append(address)
                flags.append(flag)
            site = parent
        return addresses, flags


class Aligned:
    """Finds the event of a sample: by its number in the thread as long as size, caller, and the calls before it are the same."""

    def __init__(self, events):
        self.events, self.shift = events, 0
        self.places = collections.defaultdict(list)
        for index, (size, address, _) in enumerate(events):
            self.places[(size, address)].append(index)

    def score(self, sample, index):
        """How many of the calls before the sample are those before the event."""
        score = 0
        for back, key in enumerate(sample.before, 1):
            if index < back or self.events[index - back][:2] != key:
                break
            score += 1
        return score

    def find(self, sample):
        key = (sample.size, sample.from_)
        expected = sample.call + self.shift
        if 0 <= expected < len(self.events) and self.events[expected][:2] == key and self.score(sample, expected) == len(sample.before):
            return expected
        places = self.places[key]
        middle = bisect.bisect(places, expected)
        near = places[max(0, middle - 2000) : middle + 2000]
        best = max(near, key=lambda index: (self.score(sample, index), -abs(index - expected)), default=None)
        if best is None or self.score(sample, best) < min(4, len(sample.before)):
            return None
        self.shift = best - sample.call
        return best


def common(one, other):
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def judge(ours, flags, sample, answer, modules, starts):
    """The class of a sample, and the number of frames on which ours and theirs agree."""
    stacks = [sample.libunwind, sample.libgcc, answer or []]
    if LIMIT // 2 <= len(ours) and flags[-1] & ENDS and all(len(stack) >= LIMIT for stack in stacks[:2]):
        # Of a stack deeper than --max-frames, the library keeps at least the inner half of so many
        # frames, and says so.
        stacks = [stack[: len(ours)] for stack in stacks]
    libunwind, libgcc, gdb = stacks
    if ours == libunwind == libgcc:
        starts.add(ours[-1])
        return EQUAL, len(ours)
    if ours == libunwind:
        return BY_LIBUNWIND, common(ours, libgcc)
    if ours == libgcc:
        return BY_LIBGCC, common(ours, libunwind)
    if ours == gdb:
        return BY_GDB, max(common(ours, libgcc), common(ours, libunwind))
    stacks = [modules.in_code(stack) for stack in stacks]
    equal = max(common(ours, stack) for stack in stacks)
    if all(common(ours, stack) == len(stack) for stack in stacks):
        return (ONLY_WHOLE if ours[-1] in starts else THEIRS_EARLY), equal
    return (OURS_EARLY if equal == len(ours) else DIFFER), equal


def compare(heaptape, recording, folder):
    """Compares the samples in `folder` with a recording. Returns the counts of the classes, and of each class but the first the places
    with their counts and an example."""
    counts, places = collections.Counter(), {}
    ours = collections.defaultdict(list)
    for name in os.listdir(recording):
        if os.path.isdir(f"{recording}/{name}"):
            ours[int(name.split(".")[0])].append(name)
    theirs = [path for path in glob.glob(f"{folder}/*") if not path.endswith((".maps", ".ask", ".answer"))]
    programs = programs_of(heaptape, recording)
    for path in sorted(theirs):
        pid, _, exe = os.path.basename(path).split(".", 2)
        found = samples(path)
        if not found:
            continue
        # A process can run the same program several times: of the recordings with its pid, the one
        # that has the most of the samples. No time tells them apart: an oracle begins before or after
        # its recording.
        lives = [name for name in ours[int(pid)] if programs.get(name) == exe]
        if not lives:
            counts[ABSENT] += len(found)
            note(places, ABSENT, f"{exe}: no such process in the recording", f"pid {pid}")
            continue
        compared = [compare_process(heaptape, f"{recording}/{name}", path, found) for name in lives]
        own, own_places = min(compared, key=lambda of: of[0][ABSENT])
        counts.update(own)
        for key, (count, example) in own_places.items():
            places.setdefault(key, [0, example])[0] += count
    return counts, places


def programs_of(heaptape, recording):
    """The program of each process by its folder."""
    programs = {}
    for name in os.listdir(recording):
        tape = f"{recording}/{name}/events.tape"
        if os.path.exists(tape):
            dump = subprocess.Popen([heaptape, "dump", tape], stdout=subprocess.PIPE, text=True, errors="replace")
            for line in dump.stdout:
                match = re.search(r" process pid .* exe \"(.*?)\" cwd", line)
                if match:
                    programs[name] = os.path.basename(match[1])
                    break
            dump.stdout.close()
            dump.wait()
    return programs


def note(places, kind, place, example):
    entry = places.setdefault((kind, place), [0, example])
    entry[0] += 1


def answer_of(path, sample):
    """The stack of gdb from the return address of the call outwards: the frames inside of it are the oracle's."""
    file = f"{os.path.dirname(path)}/{sample.question}.answer"
    if not sample.question or not os.path.exists(file):
        return None
    with open(file) as text:
        frames = [int(word, 16) for word in text.read().split()]
    return frames[frames.index(sample.from_) :] if sample.from_ in frames else None


def compare_process(heaptape, recorded, path, found):
    """Compares the samples of one process with one recording, as compare() does."""
    counts, places = collections.Counter(), {}
    process = Process(heaptape, recorded, {sample.tid for sample in found})
    modules = Modules()
    modules.ranges = [(start, end, bias, name) for start, end, bias, name in process.modules]
    modules.read_maps(f"{path}.maps")
    aligned = {tid: Aligned(events) for tid, events in process.events.items()}
    starts = collections.defaultdict(set)
    for sample in found:
        index = aligned[sample.tid].find(sample) if sample.tid in aligned else None
        if index is None:
            counts[ABSENT] += 1
            note(places, ABSENT, modules.name(sample.from_), f"size {sample.size}, call {sample.call} of thread {sample.tid} in {recorded}")
            continue
        ours, flags = process.stack(process.events[sample.tid][index][2])
        answer = answer_of(path, sample)
        kind, equal = judge(ours, flags, sample, answer, modules, starts[sample.tid])
        counts[kind] += 1
        if kind == EQUAL:
            continue
        # The frame whose caller is in doubt.
        doubtful = modules.name(ours[equal - 1]) if 0 < equal <= len(ours) else "-"
        text = [f"size {sample.size}, call {sample.call} of thread {sample.tid} in {recorded}"]
        stacks = {"ours": ours, "libunwind": sample.libunwind, "libgcc": sample.libgcc, "gdb": answer or []}
        for who, stack in stacks.items():
            names = [modules.name(address) for address in stack[max(0, equal - 2) : equal + 4]]
            marks = "".join("?" if flag & GUESSED else "" for flag in flags[max(0, equal - 2) : equal + 4]) if who == "ours" else ""
            text.append(f"  {who:9} {len(stack):4} frames, from {max(0, equal - 2)}: {' < '.join(names)} {marks}")
        if kind == THEIRS_EARLY and equal and flags[equal - 1] & GUESSED:
            doubtful += " (by the frame pointer)"
        note(places, kind, doubtful, "\n".join(text))
    return counts, places
