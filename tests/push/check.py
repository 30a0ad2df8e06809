"""A daemon pushes profiles of services with known sums to servers that sometimes fail: what arrives adds up to what was allocated,
also over epochs, other segments, restarts of the daemon, ends of processes, and HTTPS. The pprof profiles are decoded by `go tool pprof`,
those of OTLP by the messages of opentelemetry-proto. Called by `scripts/dev push`.

  check.py HEAPTAPE ROOT
"""
import atexit
import collections
import email
import http.server
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

heaptape, root = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
folder = tempfile.mkdtemp(prefix="heaptape-push-")
started = []
TOKEN = "token-of-the-profiles"
VALUES = ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]


def clean_up():
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)


atexit.register(clean_up)


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def until(what, condition, seconds=60, more=str):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds} s {more()}")
        time.sleep(0.05)


class Server:
    """Takes profiles, and keeps them as rows of program, label, kind of value, function and value."""

    def __init__(self, certificate=None):
        self.pushes, self.fails, self.names, self.ids = [], False, set(), collections.Counter()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = 200
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    status = 401
                elif outer.fails:
                    status = 503
                else:
                    outer.take(self.path, self.headers["Content-Type"], body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"{'https://localhost' if certificate else 'http://127.0.0.1'}:{server.server_address[1]}"

    def take(self, path, kind, body):
        url = urllib.parse.urlsplit(path)
        if url.path == "/ingest":
            query = urllib.parse.parse_qs(url.query)
            form = email.message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
            [part] = form.get_payload()
            assert part.get_param("name", header="content-disposition") == "profile", part.items()
            self.names.add(query["name"][0])
            rows = pprof(part.get_payload(decode=True))
            times = [int(query[key][0]) for key in ["from", "until"]]
        else:
            assert (url.path, kind) == ("/v1development/profiles", "application/x-protobuf"), (path, kind)
            rows, times = self.otlp(body)
        assert times[0] < times[1] <= time.time_ns(), times
        self.pushes.append((times, rows))

    def otlp(self, body):
        request = profiles_service_pb2.ExportProfilesServiceRequest.FromString(body)
        tables = request.dictionary
        assert len(request.SerializeToString()) == len(body), "unknown fields"
        for table in [tables.mapping_table, tables.location_table, tables.function_table, tables.link_table, tables.attribute_table, tables.stack_table]:
            assert table[0] == type(table[0])(), table[0]
        text = tables.string_table
        assert text[0] == "" and len(set(text)) == len(text)
        rows = collections.Counter()
        for resource in request.resource_profiles:
            self.names.add(tuple(sorted((one.key, one.value.string_value) for one in resource.resource.attributes)))
            for profile in resource.scope_profiles[0].profiles:
                kind = text[profile.sample_type.type_strindex]
                self.ids[profile.profile_id] += 1
                for sample in profile.samples:
                    for index in tables.stack_table[sample.stack_index].location_indices:
                        location = tables.location_table[index]
                        name = text[tables.function_table[location.lines[0].function_index].name_strindex]
                        if name in ("keep", "work"):
                            mapping = tables.mapping_table[location.mapping_index]
                            assert text[mapping.filename_strindex].endswith("service") and mapping.attribute_indices, mapping
                            rows[kind, name] += sample.values[0]
        return rows, [profile.time_unix_nano, profile.time_unix_nano + profile.duration_nano]

    def total(self, kind, function):
        return sum(rows[kind, function] for _, rows in self.pushes)

    def held(self, kind, function):
        return self.pushes[-1][1][kind, function]


def pprof(profile):
    """The sums of keep and work in a profile, as Go's pprof reads it."""
    path = f"{folder}/profile.{threading.get_ident()}"
    open(path, "wb").write(profile)
    text = run("go", "tool", "pprof", "-raw", path, stderr=subprocess.DEVNULL)
    samples, locations = text.split("\nSamples:\n")[1].split("\nLocations\n")
    names = {}
    for line in locations.split("\nMappings\n")[0].splitlines():
        found = re.match(r" *(\d+): \S+ (?:M=\d+ )?(\S+)", line)
        if found:
            names[int(found[1])] = found[2]
    kinds = [kind.split("/")[0].split("[")[0] for kind in samples.splitlines()[0].split()]
    assert kinds == VALUES, kinds
    rows = collections.Counter()
    for line in samples.splitlines()[1:]:
        found = re.match(r" *([\d -]+): ([\d ]+)$", line)
        if not found:
            continue
        for function in {names[int(number)] for number in found[2].split()} & {"keep", "work"}:
            for kind, value in zip(kinds, found[1].split()):
                rows[kind, function] += int(value)
    return rows


class Service:
    """A service with a known number of steps."""

    def __init__(self, mode):
        self.process = subprocess.Popen([f"{folder}/service"], env=environment | {"HEAPTAPE_MODE": mode, "HEAPTAPE_LABEL": mode}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(self.process)
        self.steps = 0
        until("the service is served", lambda: str(self.process.pid) in run(heaptape, "ctl", *control, "list"))

    def step(self, count):
        for _ in range(count):
            self.process.stdin.write("step\n")
            self.process.stdin.flush()
            self.process.stdout.readline()
        self.steps += count


def start_daemon(*more, **environment):
    log = open(f"{folder}/log", "a")
    words = [heaptape, "daemon", "--socket", f"{folder}/socket", *control, "--state", f"{folder}/state", "--snapshot", "1s", *more]
    process = subprocess.Popen(words, stderr=log, env=os.environ | environment)
    started.append(process)
    until("the daemon answers", lambda: subprocess.run([heaptape, "ctl", *control, "status"], capture_output=True).returncode == 0)
    return process


def push(server, protocol, *more):
    answer = subprocess.run([heaptape, "push", "--json", "--to", server.url, "--protocol", protocol, "--token-file", f"{folder}/token", *control, *more], text=True, capture_output=True)
    return answer.returncode, json.loads(answer.stdout)


def expect(what, server, services, protocol=None):
    """Pushes, if there is a protocol, and compares the sums of all profiles. What is in the rings may arrive with a later push, never twice."""
    for _ in range(10 if protocol else 1):
        if protocol:
            assert push(server, protocol)[0] == 0
        if server.total("alloc_space", "keep") >= 100000 * sum(one.steps for one in services):
            break
        time.sleep(0.2)
    steps, live = sum(one.steps for one in services), sum(one.steps for one in services if one.process.poll() is None)
    found = {(kind, name): server.total(kind, name) for kind in VALUES[:2] for name in ("keep", "work")}
    expected = {("alloc_objects", "keep"): 100 * steps, ("alloc_space", "keep"): 100000 * steps, ("alloc_objects", "work"): 50 * steps, ("alloc_space", "work"): 3200 * steps}
    assert found == expected, f"{what}: {found}, not {expected}; {[rows for _, rows in server.pushes]}"
    print(f"{what}: {steps} steps in {len(server.pushes)} profiles, {100000 * live} bytes live")


control = ["--control", f"{folder}/control"]
open(f"{folder}/token", "w").write(TOKEN + "\n")
run("cc", "-g", "-O1", "-Wl,--build-id=sha1", "-o", f"{folder}/service", f"{root}/tests/push/service.c")
environment = os.environ | {"LD_PRELOAD": run(heaptape, "library").strip(), "HEAPTAPE_SOCKET": f"{folder}/socket", "HEAPTAPE_ATTACH_MS": "10000"}

# By hand, to both protocols: each service of its own label is a profile of its own.
daemon = start_daemon()
for protocol in ["pyroscope", "otlp"]:
    server = Server()
    early = Service("profile")
    early.step(3)
    assert push(server, protocol)[0] == 0
    # The first push has what is held. What was allocated before belongs to no interval.
    assert server.total("alloc_space", "keep") == 0 and server.held("inuse_space", "keep") == 300000, server.pushes
    early.process.stdin.close()
    early.process.wait()
    server.pushes.clear()
    services = [Service("profile"), Service("trace")]
    for one in services:
        one.step(4)
    expect(f"{protocol}, first", server, services, protocol)
    for one in services:
        one.step(5)
    run(heaptape, "ctl", *control, "epoch")
    for one in services:
        one.step(2)
    expect(f"{protocol}, an epoch later", server, services, protocol)
    expect(f"{protocol}, nothing new", server, services, protocol)
    assert sum(rows["inuse_space", "keep"] for _, rows in server.pushes[-2:]) == 100000 * sum(one.steps for one in services), server.pushes[-2:]
    # The server fails: what it does not take waits, and arrives once.
    server.fails = True
    for one in services:
        one.step(1)
    code, answer = push(server, protocol)
    assert code == 1 and answer["waiting"] == 2 and "503" in answer["error"] and TOKEN not in json.dumps(answer), answer
    run(heaptape, "ctl", *control, "rotate")
    for one in services:
        one.step(1)
    code, answer = push(server, protocol)
    assert code == 1 and answer["waiting"] == 4, answer
    server.fails = False
    code, answer = push(server, protocol)
    assert code == 0 and answer["waiting"] == 0 and answer["profiles"] == 6, answer
    expect(f"{protocol}, after failures", server, services, protocol)
    # A full queue drops the oldest profiles, and says how many.
    server.fails = True
    code, answer = push(server, protocol, "--queue", "1KiB")
    assert code == 1 and answer["dropped"] > 0, answer
    server.fails = False
    push(server, protocol)
    # A daemon that ends in good order hands the services over; then both end.
    for one in services:
        one.step(3)
    daemon.terminate()
    daemon.wait()
    daemon = start_daemon()
    for one in services:
        one.step(2)
    expect(f"{protocol}, another daemon", server, services, protocol)
    for one in services:
        one.step(7)
        one.process.stdin.close()
        one.process.wait()
    until("the services have ended", lambda: "service" not in run(heaptape, "ctl", *control, "list"))
    run(heaptape, "ctl", *control, "flush")
    # The trace keeps its folder. A profile of less than a minute is in the sums of its program.
    assert push(server, protocol)[0] == 0
    assert server.total("alloc_space", "keep") >= 100000 * (sum(one.steps for one in services) - 7), server.pushes[-2:]
    assert all(count == 1 for count in server.ids.values()), server.ids
    print(f"{protocol}: {sorted(server.names)}")
run(heaptape, "ctl", *control, "stop")
daemon.wait()

# By the daemon: at intervals, through a restart, with a server that fails meanwhile.
server = Server()
words = ["--push-to", server.url, "--push-token", f"{folder}/token", "--push-interval", "1s"]
daemon = start_daemon(*words)


def metric(name):
    found = re.search(rf"^heaptape_{name} (\S+)", run(heaptape, "ctl", *control, "metrics"), re.M)
    return float(found[1])


until("a first push", lambda: metric("push_success_timestamp_seconds") > 0)
services = [Service("profile"), Service("trace")]
for _ in range(5):
    for one in services:
        one.step(2)
    time.sleep(0.7)
server.fails = True
until("a failure", lambda: metric("push_failures_total") > 1 and metric("push_waiting_profiles") > 1)
for one in services:
    one.step(4)
server.fails = False
steps = sum(one.steps for one in services)
until("all is pushed", lambda: server.total("alloc_space", "keep") == 100000 * steps, more=lambda: f"{steps} steps, {server.pushes}")
expect("by the daemon", server, services)
until("the metrics", lambda: metric("pushed_profiles_total") >= len(server.pushes) > 4 and metric("push_waiting_profiles") == 0)
assert metric("push_dropped_profiles_total") == 0
daemon.terminate()
daemon.wait()
daemon = start_daemon(*words)
for one in services:
    one.step(3)
steps = sum(one.steps for one in services)
until("all is pushed by the next daemon", lambda: server.total("alloc_space", "keep") == 100000 * steps, more=lambda: f"{steps} steps, {server.pushes}")
time.sleep(2.5)
expect("by the next daemon", server, services)
log = open(f"{folder}/log").read()
assert "profiles cannot be pushed" in log and TOKEN not in log, log[-2000:]
run(heaptape, "ctl", *control, "stop")
daemon.wait()

# By HTTPS: an unknown certificate is refused, and what waits is pushed once it is known.
run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.pem", "-days", "2", "-subj", "/CN=push", stderr=subprocess.DEVNULL)
run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/request", "-subj", "/CN=localhost", stderr=subprocess.DEVNULL)
open(f"{folder}/names", "w").write("subjectAltName=DNS:localhost\n")
run("openssl", "x509", "-req", "-in", f"{folder}/request", "-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{folder}/names", "-out", f"{folder}/cert.pem", stderr=subprocess.DEVNULL)
server = Server((f"{folder}/cert.pem", f"{folder}/key.pem"))
words = ["--push-to", server.url, "--push-protocol", "otlp", "--push-token", f"{folder}/token", "--push-interval", "1s"]
daemon = start_daemon(*words)
services = [Service("profile")]
services[0].step(5)
until("the first push is refused", lambda: metric("push_failures_total") > 0)
assert not server.pushes and "UnknownIssuer" in open(f"{folder}/log").read()
daemon.terminate()
daemon.wait()
daemon = start_daemon(*words, SSL_CERT_FILE=f"{folder}/ca.pem")
until("a push", lambda: metric("push_success_timestamp_seconds") > 0)
services[0].step(5)
until("all is pushed by HTTPS", lambda: server.held("inuse_space", "keep") == 100000 * services[0].steps, more=lambda: f"{server.pushes}")
print(f"HTTPS: {sorted(server.names)}")
run(heaptape, "ctl", *control, "stop")
