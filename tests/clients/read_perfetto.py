#!/usr/bin/env python3
"""Reads a Perfetto trace by the rules of protocol buffers and the field numbers of Perfetto's own definitions, and prints its heap profiles
and counters as JSON. Where the package `perfetto` is installed, its classes decode the trace as well, and both must agree.

usage: read_perfetto.py FILE
"""

import json
import sys


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """The fields of a message: number and value, a number or bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length, "truncated"
        else:
            raise ValueError(f"wire type {wire}")
        yield number, value


def message(data):
    """The fields of a message: a list of values for each number."""
    found = {}
    for number, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


def numbers(values):
    """Repeated numbers, packed or not."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = varint(value, at)
            found.append(number)
    return found


def graph_sums(graph):
    """The objects and bytes of a graph, what its roots lead to, and the types."""
    objects, types = graph["objects"], graph["types"]
    assert not graph["open"], "the graph has no end"
    seen, next_ones = set(), list(graph["roots"])
    while next_ones:
        at = next_ones.pop()
        if at not in seen:
            seen.add(at)
            next_ones += objects[at][2]
    return {"objects": len(objects) - len(graph["roots"]), "bytes": sum(size for _, size, _ in objects.values()),
            "held_bytes": sum(objects[at][1] for at in seen), "types": sorted({types[kind] for kind, _, _ in objects.values()}),
            "roots": sorted(types[objects[at][0]] for at in graph["roots"])}


def one(found, number, default=0):
    return found.get(number, [default])[-1]


def read(data):
    # Of each sequence of packets, and the sequence of each process.
    all_tables, sequences, graphs = {}, {}, {}
    heaps, counters, names, times, indexes, clocks = {}, {}, {}, [], {}, {}
    for number, raw in fields(data):
        assert number == 1, number
        packet = message(raw)
        at = one(packet, 8, None)
        tables = all_tables.setdefault(one(packet, 10), {number: {} for number in (5, 6, 7, 16, 17, 18, 19)})
        for snapshot in packet.get(6, []):
            for clock in message(snapshot).get(1, []):
                clock = message(clock)
                clocks[one(clock, 1)] = one(clock, 2)
        for track in packet.get(60, []):
            track = message(track)
            names[one(track, 1)] = one(track, 2, b"").decode()
        for event in packet.get(11, []):
            event = message(event)
            assert one(event, 9) == 4, "no counter"
            counters.setdefault(names[one(event, 11)], []).append((at, one(event, 30)))
        for interned in packet.get(12, []):
            for table, entries in message(interned).items():
                for entry in entries:
                    entry = message(entry)
                    assert one(entry, 1) not in tables[table], "an identifier twice"
                    tables[table][one(entry, 1)] = entry
        for part in packet.get(56, []):
            part = message(part)
            graph = graphs.setdefault(str(one(part, 1)), {"objects": {}, "types": {}, "roots": [], "index": 0, "open": True})
            assert graph["open"] and one(part, 6) == graph["index"], "parts of a graph are missing"
            graph["index"] += 1
            graph["open"] = bool(one(part, 5))
            for item in map(message, part.get(2, [])):
                assert one(item, 1) not in graph["objects"], "an object twice"
                held = numbers(item.get(5, []))
                assert len(held) == len(numbers(item.get(4, []))), "a field has no name"
                graph["objects"][one(item, 1)] = (one(item, 2), one(item, 3), held)
            for kind in map(message, part.get(9, [])):
                graph["types"][one(kind, 1)] = one(kind, 3).decode()
            for root in map(message, part.get(7, [])):
                graph["roots"] += numbers(root.get(1, []))
        for profile in packet.get(37, []):
            profile = message(profile)
            indexes.setdefault(one(packet, 10), []).append(one(profile, 7))
            for dump in profile.get(5, []):
                dump = message(dump)
                assert one(dump, 9) == at, "two times"
                times.append(at)
                heap = heaps.setdefault(one(dump, 1), {})
                assert sequences.setdefault(one(dump, 1), one(packet, 10)) == one(packet, 10), "two sequences"
                for sample in dump.get(2, []):
                    sample = message(sample)
                    heap[one(sample, 1)] = [one(sample, field) for field in (2, 3, 5, 6)]
    # The trace processor sorts the packets of a sequence by time.
    for own in indexes.values():
        assert own == list(range(len(own))), "profiles are missing"
    assert clocks.keys() >= {1, 4, 6} and clocks[4] == clocks[6], "the times of profiles have no clock"

    def stack(tables, iid):
        frames = [tables[6][frame] for frame in tables[7][iid][2]]
        for frame in frames:
            path = tables[19][one(frame, 3)]
            assert all(part in tables[17] for part in path.get(7, [])), "a path without its parts"
        return [one(tables[5][one(frame, 2)], 2, b"").decode(errors="replace") for frame in frames]

    processes = {}
    for pid, heap in heaps.items():
        sums = [sum(sample[field] for sample in heap.values()) for field in range(4)]
        processes[str(pid)] = {"allocated": sums[0], "freed": sums[1], "allocs": sums[2], "frees": sums[3],
                               "stacks": [stack(all_tables[sequences[pid]], iid) for iid in heap]}
    return {"processes": processes, "graphs": {pid: graph_sums(graph) for pid, graph in graphs.items()}, "profiles": len(times), "in_order": times == sorted(times),
            "counters": {name: {"last": points[-1][1], "most": max(value for _, value in points), "points": len(points)}
                         for name, points in counters.items()}}


def agree(data, found):
    """Decodes the trace with Perfetto's own classes."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
    trace = proto.Trace()
    trace.ParseFromString(data)
    heaps = {}
    for packet in trace.packet:
        for dump in packet.profile_packet.process_dumps:
            assert dump.heap_name == "libc.malloc"
            for sample in dump.samples:
                heaps.setdefault(str(dump.pid), {})[sample.callstack_id] = sample.self_allocated
    assert {pid: sum(heap.values()) for pid, heap in heaps.items()} == {
        pid: process["allocated"] for pid, process in found["processes"].items()}
    return trace


def main():
    data = open(sys.argv[1], "rb").read()
    found = read(data)
    try:
        agree(data, found)
        found["by_perfetto"] = True
    except ImportError:
        found["by_perfetto"] = False
    print(json.dumps(found))


if __name__ == "__main__":
    main()
