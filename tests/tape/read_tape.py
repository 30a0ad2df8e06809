#!/usr/bin/env python3
"""Reads `events.tape` with its trace, counts everything once, and compares the sums with the tape's own.

    read_tape.py FOLDER…          folders of processes, as heaptape record writes them

An independent reader: it was written from docs/tape.md, and shares no code with heaptape. It needs Python 3.9 and,
for compressed chunks, the programs zstd and lz4. Prints a line `KEY VALUE` for each sum. The exit status is 1 if
something is missing, damaged, or differs from what the tape states.
"""

import os
import struct
import subprocess
import sys
import zlib
from collections import Counter

MAGIC = b"\xb7Rec"
MAX_PAYLOAD = 64 << 20
MAX_CHUNK = 16 << 20
PAGE, HUGETLB = 4096, 8
INHERITED, IMPLIED, CARRIED, INHERITED_EMPTY = 40, 41, 42, 43
TRACES = {0: "trace.mtrc", 1: "trace.mtrc.lz4", 2: "trace.mtrc.zst", 3: "trace.mtrc.columns"}
TOOLS = {1: ["lz4", "-d", "-c"], 2: ["zstd", "-d", "-c", "-q"]}


class Damaged(Exception):
    """Bytes that are not what the page says."""


class Bytes:
    """Numbers and texts, one after the other."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def more(self):
        return self.at < len(self.data)

    def byte(self):
        if not self.more():
            raise Damaged("truncated")
        self.at += 1
        return self.data[self.at - 1]

    def number(self, bits=64):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= 70:
                raise Damaged("a number of more than 10 bytes")
        if value >> bits:
            raise Damaged(f"a number of more than {bits} bits")
        return value

    def text(self):
        length = self.number()
        if length > len(self.data) - self.at:
            raise Damaged("a text longer than the record")
        self.at += length
        return self.data[self.at - length : self.at]

    def list(self, read):
        count = self.number()
        if count > len(self.data) - self.at:
            raise Damaged("a list longer than the record")
        return [read(self) for _ in range(count)]


def fields(text):
    """Returns a reader of the fields in `text`: `name:type`, where a type is a width in bits or `t`, `b`, `[t]`, `[64]`."""
    parts = [part.split(":") for part in text.split()]
    types = {
        "t": Bytes.text,
        "b": lambda data: data.byte() != 0,
        "[t]": lambda data: data.list(Bytes.text),
        "[64]": lambda data: data.list(Bytes.number),
    }
    readers = [(name, types.get(kind) or (lambda data, bits=int(kind): data.number(bits))) for name, kind in parts]
    return lambda data: {name: read(data) for name, read in readers}


def joined(text, name, item):
    """Returns a reader of the fields in `text`, then of a list of items."""
    before = fields(text)
    return lambda data: {**before(data), name: data.list(item)}


def history(data):
    """Reads the history of the call sites. Older recorders did not write the sums of all sites."""
    record = joined("ticks:[64]", "sites", fields("site:32 blocks:[64] bytes:[64]"))(data)
    added = fields("live_blocks:[64] live_bytes:[64]")
    return {**record, **(added(data) if data.at < len(data.data) else {"live_blocks": [], "live_bytes": []})}


def module(data):
    """Reads a module. Older recorders did not write what identifies its file."""
    record = fields("number:32 start:64 end:64 bias:64 path:t build_id:t")(data)
    added = fields("bytes:64 changed_unix_ns:64 head:32 load:32")
    return {**record, "file": added(data) if data.at < len(data.data) else dict.fromkeys(("bytes", "changed_unix_ns", "head", "load"), 0)}


def segment(data):
    """Reads the identity of a process. Older recorders did not write from when the live blocks are known."""
    record = fields("host:t boot:t start_ticks:64 begins:8 carried:64")(data)
    added = fields("live_since_unix_ns:64")
    return {**record, **(added(data) if data.at < len(data.data) else {"live_since_unix_ns": 0})}


def residency(data):
    """Reads a snapshot of the pages."""
    record = fields("tick:64 end_tick:64 cause:8 method:8 resident:64 anonymous:64 file:64 shared:64 swapped:64 lacks:t unlisted:64")(data)
    record["names"] = data.list(Bytes.text)
    record["mappings"] = data.list(fields("gap:64 length:64 kind:8 name:32"))
    return {**record, **fields("codec:8 plain_length:32 stored:t")(data)}


USES = "live slack held free_pages never_block undivided files"


def division(data):
    """Reads the memory of a snapshot by use. The sums are not compared, as the pages may be of another time."""
    numbers = f"{USES} written shared stacks heaptape unlisted untouched swapped swapped_live zero huge"
    sums = " ".join(f"{name}:64" for name in numbers.split())
    head = "tick:64 lacks:t allocator:8 blocks:64 inherited_blocks:64 inherited_bytes:64 blocks_since_tick:64 freed_since_tick:64 cpu_ns:64 "
    record = fields(head + sums)(data)
    record["heaps"] = data.list(fields("kind:8 address:64 live:64 slack:64 held:64 free_pages:64 never_block:64"))
    record["sites"] = data.list(fields("site:32 pinned:64 blocks:64 live:64 alone_pages:64 alone_occupied:64 untouched:64"))
    record.update(fields("other_pinned:64 other_untouched:64")(data))
    record["never_blocks"] = data.list(fields("gap:64 length:64 bytes:64"))
    return record


def mappings(data):
    """Reads calls that map memory."""
    record = fields("first_name:32 names:[t]")(data)
    record["events"] = data.list(fields("tick:64 thread:32 kind:8 address:64 size:64 site:32 flags:32 name:32"))
    record.update(fields("allocator_calls:64 allocator_bytes:64")(data))
    # Older recorders did not count what allocators return.
    added = fields("allocator_returned_calls:64 allocator_returned_bytes:64")
    returned = added(data) if data.at < len(data.data) else dict.fromkeys(("allocator_returned_calls", "allocator_returned_bytes"), 0)
    return {**record, **returned}


# The longest range whose pages are counted one by one.
MOST_BYTES = 1 << 32
# Flags of mappings.
READ, ACCESS, BREAK, SEGMENT, FROM_PARENT = 1, 7, 1 << 12, 1 << 13, 1 << 15


def apply_mapping(event, pages, undo):
    """Applies a call to the mapped pages, each with the flags of its mapping. `undo` has what the last call of each thread unmapped."""
    if event["size"] > MOST_BYTES:
        raise Damaged("a range that is too long to count its pages")
    first = event["address"] // PAGE
    touched, thread, kind = range(first, first + event["size"] // PAGE), event["thread"], event["kind"]
    flags = event["flags"]
    if kind in (2, 3):
        undo[thread] = {page: pages.pop(page) for page in touched if page in pages}
    elif kind in (4, 5):
        old = undo.pop(thread, {})
        if kind == 5 or flags & 4:
            pages |= old
        # A range that was moved keeps its flags.
        flags = next(iter(old.values()), READ) & ~FROM_PARENT
    if kind in (1, 4):
        pages |= dict.fromkeys(touched, flags)
    elif kind == 6:
        pages |= {page: pages[page] & ~ACCESS | flags & ACCESS for page in touched if page in pages}


def mapped_as(flags):
    """Returns what memory of a mapping is. It is reserved if it has no access, unless it is of brk or shmat."""
    if not flags & (ACCESS | BREAK | SEGMENT):
        return "reserved"
    return "inherited_mapped" if flags & FROM_PARENT else "mapped"


TOTALS = [
    "allocs", "resizes", "frees", "bytes_allocated", "live_blocks", "live_bytes", "peak_bytes", "peak_blocks",
    "peak_tick", "unknown_frees", "inherited_blocks", "inherited_bytes", "implied_frees",
]  # fmt: skip
COLUMN = fields("kind:8 codec:8 plain_length:32 stored:t")
UNMATCHED = fields("position:32 address:64 thread:32 entry:8 tick:64")
RECORDS = {
    1: ("process", fields("pid:32 ppid:32 uid:32 origin:8 ticks_per_second:64 start_tick:64 start_unix_ns:64"
                          " page_size:32 exe:t cwd:t argv:[t] label:t recorder:t sample_bytes:64 free_sites:b")),
    2: ("module", module),
    3: ("module gone", fields("number:32")),
    4: ("sites", joined("first:32", "sites", fields("parent:32 address:64 flags:8"))),
    5: ("thread", fields("number:32 tid:32 name:t first_tick:64")),
    6: ("chunk", joined("number:32 codec:8 stored_offset:64 stored_length:64 plain_offset:64 plain_length:64"
                        " checksum:32 events:64 allocations:64 first_index:64 first_tick:64 last_tick:64"
                        " live_blocks:64 live_bytes:64 peak_bytes:64", "columns", COLUMN)),
    7: ("accounts", joined("", "accounts", fields("thread:32 emitted:64 recorded:64 lost:64 sampled_out:64"))),
    8: ("loss", fields("thread:32 events:64 from_tick:64 to_tick:64")),
    9: ("clock", fields("tick:64 unix_ns:64 monotonic_ns:64")),
    10: ("summary", joined(" ".join(f"{name}:64" for name in TOTALS), "sites",
                           fields("site:32 allocs:64 bytes:64 frees:64 freed_bytes:64 peak_blocks:64 peak_bytes:64"))),
    11: ("end", fields("tick:64 unix_ns:64 reason:8 status:32")),
    12: ("note", fields("tick:64 text:t")),
    13: ("inherited", fields("parent:t tick:64 blocks:64 bytes:64")),
    14: ("history", history),
    15: ("code", joined("", "ranges", fields("start:64 length:64 name:t"))),
    17: ("segment", segment),
    19: ("mark", fields("tick:64 thread:32 text:t")),
    20: ("residency", residency),
    22: ("division", division),
    21: ("mappings", mappings),
}  # fmt: skip


def records(data, complain):
    """Yields kind and fields of each intact record."""
    if data[:8] != b"HEAPTAPE":
        raise Damaged("not a tape")
    (version,) = struct.unpack_from("<I", data, 8)
    if version != 1:
        raise Damaged(f"version {version} is not known")
    at = 16
    while at < len(data):
        frame = data[at : at + 16]
        payload = None
        if frame[:4] == MAGIC and len(frame) == 16:
            kind, _, length, checksum = struct.unpack("<HHII", frame[4:])
            payload = data[at + 16 : at + 16 + length]
            is_intact = length <= MAX_PAYLOAD and len(payload) == length
            if not is_intact or zlib.crc32(frame[4:12] + payload) != checksum:
                payload = None
        if payload is None:
            after = data.find(MAGIC, at + 1)
            after = len(data) if after < 0 else after
            complain(f"the tape is damaged or truncated from {at} to {after}")
            at = after
            continue
        if kind in RECORDS:
            name, read = RECORDS[kind]
            try:
                yield name, read(Bytes(payload))
            except Damaged as error:
                complain(f"record of kind {kind} at {at}: {error}")
        at += 16 + length


def number(value):
    """Returns a number in its shortest encoding."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def signed(value):
    return value >> 1 ^ -(value & 1)


def records_of_columns(stored):
    """Returns the plain bytes of a frame of columns."""
    magic, plain_length, length, packed_length = struct.unpack_from("<4sIII", stored)
    if magic != b"\xb7Col" or packed_length != len(stored) - 16:
        raise Damaged("not a frame of columns")
    joined = unpacked(2, stored[16:], length)
    lengths, at, columns = struct.unpack_from("<6I", joined), 24, []
    for each in lengths:
        columns.append(Bytes(joined[at : at + each]))
        at += each
    if at != length:
        raise Damaged("columns of another length")
    kinds, threads, indexes, addresses, sizes, others = columns
    out, thread, last, known = [], 0, 0, [0] * 16
    while kinds.more():
        kind = kinds.byte()
        if kind & 3 == 3:
            out.append(others.text())
            continue
        thread = threads.number() if kind & 4 else thread
        difference = signed(indexes.number()) if kind & 8 else 0
        index = (last + 1 + difference if kind & 3 == 0 else last - difference) % 2**64
        last = index if kind & 3 == 0 else last
        record = b"ARF"[kind & 3 : (kind & 3) + 1] + number(index)
        if kind & 3 != 2:
            difference = signed(addresses.number())
            known[thread % 16] = (known[thread % 16] + (difference if kind & 16 else difference * 16)) % 2**64
            record += number(known[thread % 16]) + number(sizes.number())
        out.append(record + number(thread) + bytes(3))
    if any(column.more() for column in columns):
        raise Damaged("more values than records")
    return b"".join(out)


def unpacked(codec, stored, length):
    if length > MAX_CHUNK or len(stored) > MAX_CHUNK:
        raise Damaged("longer than 16 MiB")
    if codec == 0:
        plain = stored
    elif codec in TOOLS:
        tool = subprocess.run(TOOLS[codec], input=stored, capture_output=True)
        if tool.returncode:
            raise Damaged(f"{TOOLS[codec][0]}: {tool.stderr.decode(errors='replace').strip()}")
        plain = tool.stdout
    elif codec == 3:
        plain = records_of_columns(stored)
    else:
        raise Damaged(f"codec {codec} is not known")
    if len(plain) != length:
        raise Damaged(f"{len(plain)} bytes instead of {length}")
    return plain


class Counts:
    """The sums of a process, made of its events alone."""

    def __init__(self, inherited):
        self.totals = Counter()
        self.sites = {}
        self.recorded = Counter()
        self.blocks = {}
        self.unknown = set()
        self.inherited = inherited

    def site(self, number):
        return self.sites.setdefault(number, Counter())

    def live(self, tick, blocks, size):
        totals = self.totals
        totals["live_blocks"] += blocks
        totals["live_bytes"] += size
        totals["peak_blocks"] = max(totals["peak_blocks"], totals["live_blocks"])
        if totals["live_bytes"] > totals["peak_bytes"]:
            totals["peak_bytes"], totals["peak_tick"] = totals["live_bytes"], tick

    def start(self, index, site, size, tick, kind):
        totals = self.totals
        totals[kind] += 1
        totals["bytes_allocated"] += size
        self.blocks[index] = (site, size)
        self.site(site).update(allocs=1, bytes=size)

    def stop(self, block):
        site, size = block
        self.site(site).update(frees=1, freed_bytes=size)

    def event(self, tag, index, size, thread, entry, site, weight, tick):
        if entry not in (INHERITED, IMPLIED, CARRIED, INHERITED_EMPTY):
            self.recorded[thread] += 1
        size = weight or size
        if tag == b"A" and entry in (INHERITED, INHERITED_EMPTY):
            self.blocks[index] = (None, size)
            if entry == INHERITED and size == 0:
                self.unknown.add(index)
        elif tag == b"A":
            self.start(index, site, size, tick, "allocs")
            self.live(tick, 1, size)
        elif tag == b"R":
            old = self.blocks[index]
            self.start(index, site, size, tick, "resizes")
            if old[0] is None:
                self.totals["unknown_frees"] += index in self.unknown
                self.inherited.subtract(blocks=index not in self.unknown, bytes=old[1])
                self.live(tick, 1, size)
            else:
                self.stop(old)
                self.live(tick, 0, size - old[1])
        else:
            old = self.blocks.pop(index)
            self.totals["implied_frees" if entry == IMPLIED else "frees"] += 1
            if old[0] is None:
                self.inherited.subtract(blocks=1, bytes=old[1])
            else:
                self.stop(old)
                self.live(tick, -1, -old[1])

    def unmatched(self, item):
        self.totals.update(frees=1, unknown_frees=1)
        self.recorded[item["thread"]] += 1


def chunk(folder, record, free_sites, counts):
    """Reads the events of a chunk."""
    path = os.path.join(folder, TRACES[record["codec"]])
    with open(path, "rb") as trace:
        trace.seek(record["stored_offset"])
        stored = trace.read(record["stored_length"])
    if len(stored) != record["stored_length"] or zlib.crc32(stored) != record["checksum"]:
        raise Damaged("its bytes in the trace do not match the checksum")
    data = Bytes(unpacked(record["codec"], stored, record["plain_length"]))
    if record["plain_offset"] == 0:
        header = struct.pack("<4sQQ", b"MTRC", 1, 10501)
        if data.data[:20] != header:
            raise Damaged("the header of the trace is not that of version 10501")
        data.at = 20
    columns = {
        column["kind"]: Bytes(unpacked(column["codec"], column["stored"], column["plain_length"]))
        for column in record["columns"]
    }
    entries, ticks, sites, weights, lost, previous = (columns.get(kind) for kind in range(1, 7))
    unmatched = []
    while lost and lost.more():
        unmatched.append(UNMATCHED(lost))
    tick, number, allocations, expected = record["first_tick"], 0, 0, record["first_index"]
    while data.more():
        while unmatched and unmatched[0]["position"] <= number:
            counts.unmatched(unmatched.pop(0))
        tag = bytes([data.byte()])
        if tag not in (b"A", b"R", b"F"):
            raise Damaged(f"the record {tag} is not known")
        index = data.number()
        size = 0
        if tag != b"F":
            data.number()  # address
            size = data.number()
        thread = data.number()
        for _ in range(3):
            if data.number() != 0:
                raise Damaged("a name or line in the trace")
        entry = entries.byte() if entries else 0
        tick += ticks.number() if ticks else 0
        takes = tag != b"F"
        site = sites.number() if sites and (takes or free_sites) else 0
        weight = weights.number() if weights and takes else 0
        if tag == b"A":
            if index != expected:
                raise Damaged(f"allocation {index} instead of {expected}")
            expected += 1
            allocations += 1
        elif previous and index < record["first_index"]:
            block = counts.blocks[index]
            before = previous.number()
            before = (before - 1, previous.number()) if before else None
            if before != (None if block[0] is None else block):
                raise Damaged(f"block {index} was {block} and not {before}")
        counts.event(tag, index, size, thread, entry, site, weight, tick)
        number += 1
    for item in unmatched:
        counts.unmatched(item)
    if (number, allocations, tick) != (record["events"], record["allocations"], record["last_tick"]):
        raise Damaged("events, allocations or the last tick are not those of the record")
    for kind, column in columns.items():
        if kind in range(1, 7) and column.more():
            raise Damaged(f"column {kind} has more values than the chunk has events")


def resident_pages(record):
    """Returns the number of pages that count as resident, and those of huge page mappings."""
    runs, at, pages = Bytes(unpacked(record["codec"], record["stored"], record["plain_length"])), 0, 0
    hugetlb, start = [], 0
    for mapping in record["mappings"]:
        start += mapping["gap"]
        if mapping["kind"] == HUGETLB:
            hugetlb.append((start, start + mapping["length"]))
        start += mapping["length"]
        if mapping["name"] > len(record["names"]):
            raise Damaged(f"a mapping has the name {mapping['name']}")
    while runs.more():
        at += runs.number()
        run = runs.number()
        is_counted = run & 3 in (0, 1) and not any(start <= at * PAGE < end for start, end in hugetlb)
        pages += run >> 3 if is_counted else 0
        at += run >> 3
    return pages + record["unlisted"]


def accounting(accounts, recorded, gaps):
    """Returns the accounting of all threads. Where the tape's accounts do not count all chunks, `recorded` does."""
    threads = {account["thread"]: account for account in accounts}
    sums = Counter(emitted=0, recorded=0, lost=0, sampled_out=0)
    for thread in {*threads, *gaps, *(recorded or {})}:
        account = Counter(threads.get(thread, {}))
        known = account["recorded"] if recorded is None else recorded[thread]
        lost = max(account["lost"], gaps[thread])
        sums.update(recorded=known, lost=lost, sampled_out=account["sampled_out"], emitted=known + lost + account["sampled_out"])
    return sums


def process(folder):
    """Reads one process. Returns whether everything is there and agrees."""
    wrong = []
    kinds, accounts, summary, gaps, unfinished = Counter(), [], None, Counter(), True
    counts = Counts(Counter())
    is_last, has_events, sites = False, False, 0
    mapped, undo = {}, {}
    stored = plain = 0
    about = {"free_sites": False, "sample_bytes": 0}
    with open(os.path.join(folder, "events.tape"), "rb") as file:
        tape = file.read()
    for name, record in records(tape, wrong.append):
        kinds[name] += 1
        if name == "process":
            about = record
        elif name == "sites":
            if record["first"] != sites + 1:
                wrong.append(f"sites from {record['first']} follow site {sites}")
            for number, site in enumerate(record["sites"], record["first"]):
                if site["parent"] >= number:
                    wrong.append(f"site {number} has the parent {site['parent']}")
            sites = record["first"] + len(record["sites"]) - 1
        elif name == "inherited":
            counts.inherited.update(blocks=record["blocks"], bytes=record["bytes"])
        elif name == "chunk":
            has_events, is_last = True, False
            if (record["stored_offset"], record["plain_offset"]) != (stored, plain):
                wrong.append(f"chunk {record['number']} is not behind the one before")
            stored, plain = stored + record["stored_length"], plain + record["plain_length"]
            live = (counts.totals["live_blocks"], counts.totals["live_bytes"])
            if live != (record["live_blocks"], record["live_bytes"]):
                wrong.append(f"chunk {record['number']}: live is {live}")
            try:
                chunk(folder, record, about["free_sites"], counts)
            except (Damaged, KeyError, OSError) as error:
                wrong.append(f"chunk {record['number']}: {error}")
        elif name == "accounts":
            accounts, is_last = record["accounts"], True
        elif name == "loss":
            gaps[record["thread"]] += record["events"]
        elif name == "summary":
            summary = record
        elif name == "mappings":
            try:
                for event in record["events"]:
                    apply_mapping(event, mapped, undo)
            except Damaged as error:
                wrong.append(f"mappings: {error}")
        elif name == "residency" and record["method"]:
            try:
                pages = resident_pages(record)
            except Damaged as error:
                wrong.append(f"snapshot of the pages: {error}")
                continue
            # The kernel's count is made later than that of the pages, and some kernels round it.
            if abs(pages * PAGE - record["resident"]) > max(record["resident"] // 5, 1 << 20):
                wrong.append(f"snapshot of the pages: {pages * PAGE} bytes, the kernel counts {record['resident']}")
        elif name == "end":
            unfinished = False
    if unfinished:
        wrong.append("the tape has no end")

    totals = counts.totals
    totals["inherited_blocks"], totals["inherited_bytes"] = counts.inherited["blocks"], counts.inherited["bytes"]
    if not has_events and summary:
        totals = Counter({name: summary[name] for name in TOTALS})
    elif summary and not unfinished:
        wrong += [
            f"{name}: the events say {totals[name]}, the tape says {summary[name]}"
            for name in TOTALS
            if totals[name] != summary[name]
        ]
        for row in summary["sites"]:
            own = counts.sites.get(row["site"], Counter())
            wrong += [f"site {row['site']}: {name}" for name in ("allocs", "bytes", "frees", "freed_bytes") if own[name] != row[name]]
    for account in accounts:
        thread = account["thread"]
        if account["emitted"] != account["recorded"] + account["lost"] + account["sampled_out"]:
            wrong.append(f"thread {thread}: the account does not add up")
        if is_last and has_events and counts.recorded[thread] != account["recorded"]:
            wrong.append(f"thread {thread}: {counts.recorded[thread]} events, the account says {account['recorded']}")
        if gaps[thread] > account["lost"]:
            wrong.append(f"thread {thread}: gaps of {gaps[thread]} events, the account says {account['lost']}")

    print(f"process {os.path.basename(os.path.normpath(folder))}")
    for name in sorted(kinds):
        print(f"  records {name} {kinds[name]}")
    for name in TOTALS:
        print(f"  {name} {totals[name]}")
    for name, value in accounting(accounts, counts.recorded if has_events and not is_last else None, gaps).items():
        print(f"  {name} {value}")
    if kinds["mappings"]:
        pages = Counter(map(mapped_as, mapped.values()))
        for what in ("mapped", "reserved", "inherited_mapped"):
            print(f"  {what}_bytes {pages[what] * PAGE}")
    for what in wrong:
        print(f"  ! {what}")
    return not wrong


def main(folders):
    if not folders:
        sys.exit(__doc__)
    results = [process(folder) for folder in folders]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
