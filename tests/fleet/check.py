"""Simulated hosts, each with a daemon and services of its own that record, mark a deploy and ship: the tables add up to the hosts' own
reports, on DuckDB and on Spark, and the questions of packaging/fleet name the planted leak and the build that brought it. The same
epochs go to object storage (moto) and by HTTPS. Each tenth host records a trace, and each tenth one samples. Called by
`scripts/dev fleet`.

  check.py HEAPTAPE ROOT [HOSTS]
"""
import atexit
import collections
import concurrent.futures
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import duckdb

heaptape, root = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
hosts = int(sys.argv[3]) if len(sys.argv) > 3 else 100
folder = tempfile.mkdtemp(prefix="heaptape-fleet-")
tables = f"{folder}/tables"
LEAKY = hosts // 2
HOUR_NS = 3600 * 10**9
QUESTIONS = ["growing", "builds", "deploys", "peak"]
# The hosts' own reports count the same in each table.
SUMS = "select host, cast(sum(live_bytes) as bigint) as live, cast(sum(live_blocks) as bigint) as blocks, cast(sum(allocated_bytes) as bigint) as allocated from {table} group by host"
SUMMED = ["sites", "processes"]
FIELDS = ["live_bytes", "live_blocks", "bytes_allocated"]
# A host mostly waits for its service.
AT_ONCE = 16
begin = time.monotonic()


def stage(what):
    print(f"{time.monotonic() - begin:7.1f} s: {what}", flush=True)


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def equal(what, found, expected):
    assert found == expected, f"{what}: {str(found)[:2000]}, not {str(expected)[:2000]}"
    print(f"{what}: {str(found)[:120]}")


def until(what, condition):
    end = time.monotonic() + 120
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within two minutes")
        time.sleep(0.2)


for name, flags in {"old": [], "new": ["-DLEAK"]}.items():
    os.makedirs(f"{folder}/{name}")
    run("cc", "-g", "-O1", "-Wl,--build-id=sha1", *flags, "-o", f"{folder}/{name}/service", f"{root}/tests/fleet/service.c")
library = run(heaptape, "library").strip()
started = []


def stop_all():
    """A daemon that is told to stop leaves no process behind."""
    for process in started:
        process.terminate()


atexit.register(stop_all)


def simulate(number):
    """One host: the old build for two epochs, a deploy, then the new build on half of the hosts."""
    home = f"{folder}/host{number}"
    os.makedirs(home)
    control = ["--control", f"{home}/control"]
    log = open(f"{home}/log", "w")
    start = [heaptape, "daemon", "--socket", f"{home}/socket", *control, "--state", f"{home}/state", "--snapshot", "1s"]
    daemon = subprocess.Popen(start, stderr=log)
    started.append(daemon)
    until("a daemon", lambda: os.path.exists(f"{home}/control") and os.path.exists(f"{home}/socket"))
    environment = os.environ | {"LD_PRELOAD": library, "HEAPTAPE_SOCKET": f"{home}/socket", "HEAPTAPE_LABEL": f"shop-{number}", "HEAPTAPE_ATTACH_MS": "10000"}

    def serve(build, epochs):
        end = f"{home}/end"
        mode = {7: {"HEAPTAPE_MODE": "trace"}, 3: {"HEAPTAPE_MODE": "profile:1KiB"}}.get(number % 10, {})
        service = subprocess.Popen([f"{folder}/{build}/service", str(number), end], env=environment | mode)
        listed = lambda: json.loads(run(heaptape, "ctl", *control, "--json", "list"))
        until("a service", lambda: any(one["name"] == "service" and one["live_bytes"] > 100000 for one in listed()))
        for epoch in range(epochs):
            time.sleep(0.3)
            run(heaptape, "ctl", *control, *(["mark", "deploy-7"] if (build, epoch) == ("old", 1) else ["epoch"]))
        open(end, "w").close()
        service.wait()
        os.remove(end)

    serve("old", 2)
    serve("new" if number < LEAKY else "old", 3)
    run(heaptape, "ctl", *control, "stop")
    daemon.wait()
    # The hosts' own reports: of each epoch, as a person would ask.
    own = {}
    for epoch in run(heaptape, "epochs", "--state", f"{home}/state").split():
        processes = json.loads(run(heaptape, "report", "--all-processes", "--json", epoch))["processes"]
        own[os.path.basename(epoch)] = [sum(process[field] for process in processes) for field in FIELDS]
    shutil.rmtree(f"{home}/state/carried", ignore_errors=True)
    return own


def ship(number, to=tables, **more):
    words = ["ship", "--json", "--to", to, "--state", f"{folder}/host{number}/state", "--host", f"web{number}"]
    return json.loads(run(heaptape, *words, **more))


with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    truth = dict(enumerate(pool.map(simulate, range(hosts))))
epochs = sum(map(len, truth.values()))
stage(f"{hosts} hosts, {epochs} epochs")


def ship_all(number):
    """A host ships. Some are killed while they do, and begin again."""
    if number % 5 == 0:
        words = [heaptape, "ship", "--to", tables, "--state", f"{folder}/host{number}/state", "--host", f"web{number}"]
        killed = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
        time.sleep(0.02 + 0.01 * (number % 7))
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    ship(number)
    again = ship(number)
    assert (again["epochs"], again["files"], again["waiting"]) == (0, 0, 0), again


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(ship_all, range(hosts)))
files = sorted(str(path.relative_to(tables)) for path in pathlib.Path(tables).rglob("*") if path.is_file() and not path.name.startswith("."))
equal("files", len(files), 4 * epochs)
sizes = collections.Counter()
for name in files:
    sizes[name.split("/")[0]] += os.path.getsize(f"{tables}/{name}")
# The daemon's epochs take an hour.
stage(f"shipped; bytes of an epoch: {sum(sizes.values()) // epochs}: {({table: size // epochs for table, size in sizes.items()})}")

# Without the ledger everything is there already.
shutil.rmtree(f"{folder}/host1/state/shipped")
again = ship(1)
equal("shipped without a ledger", (again["files"], again["known_files"]), (0, 4 * len(truth[1])))

expected = {f"web{number}": [sum(values) for values in zip(*epochs.values())] for number, epochs in truth.items()}
db = duckdb.connect()
db.execute(f"set variable tables = '{tables}'")
db.execute(open(f"{root}/packaging/fleet/tables.sql").read())
for table in SUMMED:
    equal(f"DuckDB, {table}", {host: list(values) for host, *values in db.execute(SUMS.format(table=table)).fetchall()}, expected)
equal("DuckDB, stacks without a name", db.execute("select count(*) from sites where stack <> 0 and stack not in (select stack from stacks)").fetchall(), [(0,)])


def duck(question):
    answer = db.execute(open(f"{root}/packaging/fleet/{question}.sql").read())
    columns = [column[0] for column in answer.description]
    return [dict(zip(columns, row)) for row in answer.fetchall()]


def build_of(path):
    notes = run("readelf", "-n", path)
    return notes.split("Build ID: ")[1].split()[0]


def peak_of(moments):
    """The first second at which the fleet held most, the bytes and the hosts, from rows of host, process, time, whether it ran, bytes, and since
    when they count. What a process holds counts until its next moment; after the last one for as long as the time before it, an hour at most."""
    lives = collections.defaultdict(list)
    for host, process, *moment in moments:
        lives[host, process].append(moment)
    spans = []
    for (host, _), life in lives.items():
        life.sort()
        for at, (moment, runs, size, counted) in enumerate(life):
            before = life[at - 1][0] if at else counted
            end = life[at + 1][0] if at + 1 < len(life) else moment + min(HOUR_NS, max(moment - before, 1))
            if runs:
                spans.append((moment, end, size, host))
    held = {moment: [span for span in spans if span[0] <= moment < span[1]] for moment, *_ in spans}
    sums = {moment: sum(span[2] for span in live) for moment, live in held.items()}
    best = max(sums, key=lambda moment: (sums[moment], -moment))
    return best // 10**9, sums[best], len({span[3] for span in held[best]})


def judge(engine, ask):
    growing = ask("growing")
    assert growing[0]["function"] == "remember_session" and growing[0]["hosts"] == LEAKY, growing[:2]
    builds = ask("builds")
    assert builds[0]["function"] == "remember_session" and builds[0]["build"] == build_of(f"{folder}/new/service"), builds[:2]
    assert builds[0]["elsewhere"] == 0 and builds[0]["bytes_an_hour"] > 0, builds[0]
    deploys = ask("deploys")
    assert (deploys[0]["function"], deploys[0]["deploy"], deploys[0]["before"]) == ("remember_session", "deploy-7", 0), deploys[:2]
    peak = ask("peak")
    highest = peak_of(db.execute("select host, process, moment_ns, max(running), sum(live_bytes)::bigint, min(counted_ns) from sites group by all").fetchall())
    assert tuple(peak[0][key] for key in ["unix_s", "fleet_bytes", "fleet_hosts"]) == highest, (peak[:2], highest)
    assert len(peak) == 20 or sum(row["bytes"] for row in peak) == peak[0]["fleet_bytes"], peak
    print(f"{engine}: growing on {growing[0]['hosts']} hosts, new in {builds[0]['build'][:8]}, since {deploys[0]['deploy']}, peak {peak[0]['fleet_bytes']:,}")
    return [growing, builds, deploys, peak]  # as in QUESTIONS


run(sys.executable, f"{root}/tests/fleet/questions.py")
answers = judge("DuckDB", duck)
stage("DuckDB")

# Object storage: moto's S3 server. HTTPS: a server that stores what is put, with a certificate of
# its own authority.
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
server = subprocess.Popen([f"{os.path.dirname(sys.executable)}/moto_server", "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    import boto3

    keys = {"AWS_ACCESS_KEY_ID": "fleet", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "eu-central-1"}
    endpoint = f"http://127.0.0.1:{port}"
    until("object storage", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
    s3 = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id="fleet", aws_secret_access_key="not-a-secret", region_name="eu-central-1")
    s3.create_bucket(Bucket="tables", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    environment = os.environ | keys | {"AWS_ENDPOINT_URL": endpoint}
    shipped = ship(2, "s3://tables/fleet", env=environment)
    equal("object storage", (shipped["epochs"], shipped["waiting"]), (len(truth[2]), 0))
    shutil.rmtree(f"{folder}/host2/state/shipped")
    again = ship(2, "s3://tables/fleet", env=environment)
    equal("object storage without a ledger", (again["files"], again["known_files"]), (0, shipped["files"]))
    listed = s3.list_objects_v2(Bucket="tables")["Contents"]
    own = [name for name in files if "/host=web2/" in name]
    equal("objects", sorted(one["Key"] for one in listed), [f"fleet/{name}" for name in own])
    for name in own:
        stored = s3.get_object(Bucket="tables", Key=f"fleet/{name}")["Body"].read()
        if name.startswith("sites/"):
            assert stored == pathlib.Path(f"{tables}/{name}").read_bytes(), name
finally:
    server.terminate()
    server.wait()

stored, tokens = {}, collections.Counter()
fails = [3]


class Store(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        tokens[self.headers["Authorization"]] += 1
        status = 201
        if fails[0] > 0:
            fails[0], status = fails[0] - 1, 503
        elif self.path in stored:
            status = 412
        else:
            stored[self.path] = body
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.pem", "-days", "2", "-subj", "/CN=fleet", stderr=subprocess.DEVNULL)
run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/request", "-subj", "/CN=localhost", stderr=subprocess.DEVNULL)
pathlib.Path(f"{folder}/names").write_text("subjectAltName=DNS:localhost\n")
run("openssl", "x509", "-req", "-in", f"{folder}/request", "-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{folder}/names", "-out", f"{folder}/cert.pem", stderr=subprocess.DEVNULL)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"https://localhost:{server.server_address[1]}/fleet"
pathlib.Path(f"{folder}/token").write_text("token-of-the-fleet\n")
words = [heaptape, "ship", "--json", "--to", url, "--state", f"{folder}/host3/state", "--host", "web3", "--token-file", f"{folder}/token"]
refused = subprocess.run(words, text=True, capture_output=True)
assert refused.returncode == 1 and not stored and "token-of" not in refused.stdout + refused.stderr, refused
equal("HTTPS with an unknown certificate", json.loads(refused.stdout)["waiting"], len(truth[3]))
shipped = json.loads(run(*words, env=os.environ | {"SSL_CERT_FILE": f"{folder}/ca.pem"}))
equal("HTTPS", (shipped["epochs"], shipped["waiting"], sorted(stored)), (len(truth[3]), 0, [f"/fleet/{name}" for name in files if "/host=web3/" in name]))
equal("tokens", set(tokens), {"Bearer token-of-the-fleet"})

stage("object storage and HTTPS")

# Spark: the same questions, by one job.
spark = f"{os.path.dirname(__import__('pyspark').__file__)}/bin/spark-submit"
environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
words = [spark, "--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=8", f"{root}/packaging/fleet/fleet.py", tables, "--json"]
for table in SUMMED:
    pathlib.Path(f"{folder}/{table}.sql").write_text(SUMS.format(table=table))
for question in [f"{folder}/{table}.sql" for table in SUMMED] + QUESTIONS:
    words += ["--question", question]
with open(f"{folder}/spark.log", "a") as log:
    lines = run(*words, env=environment, stderr=log).splitlines()
answered = {found["question"]: found["rows"] for found in map(json.loads, (line for line in lines if line.startswith("{")))}
stage("Spark")
for table in SUMMED:
    equal(f"Spark, {table}", {host: values for host, *values in map(dict.values, answered[f"{folder}/{table}.sql"])}, expected)
equal("Spark says the same", [[list(row.values()) for row in rows] for rows in judge("Spark", answered.get)], [[list(row.values()) for row in rows] for rows in json.loads(json.dumps(answers, default=int))])
shutil.rmtree(folder)
stage("passed")
