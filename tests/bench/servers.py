#!/usr/bin/env python3
"""Servers under load, bare and under one daemon in each mode, in turn, round by round: throughput against bare (paired), the daemon's own
cost, and, for redis, live bytes against the server's own statistics. Then a microbenchmark of a dormant process.

usage: servers.py [--rounds N] [--seconds S] [--modes MODE,…] [--only redis,postgres,nginx,micro,kills,rate] [--together]"""
import argparse, json, os, shutil, signal, statistics, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
HEAPTAPE = os.environ.get("HEAPTAPE", os.path.join(TARGET, "release/heaptape"))
PORT = 17_000


def wait(what, holds):
    for _ in range(400):
        if holds():
            return
        time.sleep(0.02)
    raise SystemExit(f"waited for long: {what}")


def answers(*words):
    return subprocess.run(words, capture_output=True).returncode == 0


class Daemon:
    def __init__(self, place):
        self.place = place
        self.socket, self.control = os.path.join(place, "run/socket"), os.path.join(place, "run/control")
        self.words = [HEAPTAPE, "daemon", "--socket", self.socket, "--state", os.path.join(place, "state"), "--keep-bytes", "2GiB"]
        self.log = open(os.path.join(place, "daemon.log"), "w")
        self.start()
        self.library = subprocess.run([HEAPTAPE, "library"], capture_output=True, text=True, check=True).stdout.strip()
        # Servers of other users must be able to read it.
        copy = os.path.join(place, "libheaptape.so")
        shutil.copy(self.library, copy)
        os.chmod(copy, 0o755)
        self.library = copy

    def start(self):
        self.process = subprocess.Popen(self.words, stderr=self.log)
        wait("the daemon", lambda: answers(HEAPTAPE, "ctl", "--control", self.control, "status"))

    def ctl(self, *words):
        said = subprocess.run([HEAPTAPE, "ctl", "--control", self.control, "--json", *words], capture_output=True, text=True, check=True)
        return json.loads(said.stdout)

    def environment(self, mode):
        if mode == "bare":
            return {}
        return {"LD_PRELOAD": self.library, "HEAPTAPE_SOCKET": self.socket, "HEAPTAPE_MODE": mode}

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.ctl("stop")
        self.process.wait()


def tree_cpu(root):
    """Processor seconds of a process, all that live below it, and all of those that have ended."""
    fields, children = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields[int(pid)] = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[int(pid)][1]), []).append(int(pid))
    ticks, todo = 0, [root]
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        ticks += sum(map(int, fields[pid][11:15])) if pid in fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def started(words, environment, **more):
    clean = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "HEAPTAPE_SOCKET", "HEAPTAPE_MODE")}
    return subprocess.Popen(words, env=clean | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)


class Redis:
    name, program = "redis-server", "redis-server"
    needs = ["redis-server", "redis-benchmark", "redis-cli"]

    def start(self, environment, place):
        words = ["redis-server", "--port", str(PORT), "--save", "", "--appendonly", "no", "--dir", place]
        self.process = started(words, environment)
        wait("redis", lambda: answers("redis-cli", "-p", str(PORT), "ping"))

    def load(self, seconds):
        # Values of 300 bytes over 100,000 keys, and lists: the server allocates and frees steadily.
        count = str(int(seconds * 25_000))
        words = ["redis-benchmark", "-p", str(PORT), "-c", "20", "-n", count, "-r", "100000", "-d", "300", "-t", "set,get,lpush,lpop", "--csv"]
        begun = time.monotonic()
        subprocess.run(words, capture_output=True, check=True)
        return 4 * int(count) / (time.monotonic() - begun)

    def own_bytes(self):
        text = subprocess.run(["redis-cli", "-p", str(PORT), "info", "memory"], capture_output=True, text=True, check=True).stdout
        return int(next(line.split(":")[1] for line in text.splitlines() if line.startswith("used_memory:")))

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Postgres:
    name, program = "PostgreSQL", "postgres"
    needs = ["pgbench", "psql", "runuser"]

    def start(self, environment, place):
        binaries = sorted(os.listdir("/usr/lib/postgresql"))[-1]
        self.bin = f"/usr/lib/postgresql/{binaries}/bin"
        self.place = os.path.join(place, "pg")
        self.user = ["runuser", "-u", "postgres", "--"]
        if not os.path.exists(self.place):
            os.makedirs(self.place)
            shutil.chown(self.place, "postgres")
            subprocess.run([*self.user, f"{self.bin}/initdb", "-D", f"{self.place}/data", "-A", "trust"], capture_output=True, check=True)
        settings = ["-c", f"port={PORT + 1}", "-c", f"unix_socket_directories={self.place}", "-c", "listen_addresses=", "-c", "fsync=off"]
        variables = [f"{name}={value}" for name, value in environment.items()]
        self.process = started([*self.user, "env", *variables, f"{self.bin}/postgres", "-D", f"{self.place}/data", *settings], {})
        os.environ["PGDATABASE"] = "postgres"
        self.to = ["-h", self.place, "-p", str(PORT + 1), "-U", "postgres"]
        wait("postgres", lambda: answers("psql", *self.to, "-c", "select 1"))
        if not answers("psql", *self.to, "-c", "select count(*) from pgbench_branches"):
            subprocess.run(["pgbench", *self.to, "-i", "-s", "2", "-q"], capture_output=True, check=True)

    def load(self, seconds):
        said = subprocess.run(["pgbench", *self.to, "-S", "-c", "4", "-j", "1", "-T", str(seconds)], capture_output=True, text=True, check=True).stdout
        return float(next(line.split("=")[1].split()[0] for line in said.splitlines() if line.startswith("tps")))

    def stop(self):
        subprocess.run([*self.user, f"{self.bin}/pg_ctl", "-D", f"{self.place}/data", "-m", "fast", "stop"], capture_output=True)
        self.process.wait()


class Nginx:
    name, program = "nginx", "nginx"
    needs = ["nginx", "wrk"]

    def start(self, environment, place):
        os.makedirs(f"{place}/web", exist_ok=True)
        with open(f"{place}/web/index.html", "w") as file:
            file.write("x" * 4000)
        os.chmod(place, 0o755)
        with open(f"{place}/nginx.conf", "w") as file:
            file.write(f"""worker_processes 1; pid {place}/nginx.pid; error_log {place}/nginx.log; daemon off;
                events {{ worker_connections 512; }}
                http {{ access_log off; gzip on; gzip_types *; gzip_min_length 1; client_body_temp_path {place}/t1; proxy_temp_path {place}/t2;
                fastcgi_temp_path {place}/t3; uwsgi_temp_path {place}/t4; scgi_temp_path {place}/t5;
                server {{ listen 127.0.0.1:{PORT + 2}; root {place}/web; location /status {{ stub_status; }} }} }}""")
        self.process = started(["nginx", "-p", place, "-c", f"{place}/nginx.conf"], environment)
        wait("nginx", lambda: answers("curl", "-sf", f"http://127.0.0.1:{PORT + 2}/"))

    def load(self, seconds):
        words = ["wrk", "-t", "1", "-c", "16", "-d", f"{seconds}s", "-H", "Accept-Encoding: gzip", f"http://127.0.0.1:{PORT + 2}/"]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return float(next(line.split()[1] for line in said.splitlines() if line.startswith("Requests/sec")))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def measure(group, daemon, mode, place):
    """One run of servers that are under load at the same time."""
    for server in group:
        server.start(daemon.environment(mode), place)
        server.load(1)  # what is made once is made
    outs = [{} for _ in group]
    before, own, begun = daemon.cpu(), [tree_cpu(server.process.pid) for server in group], time.monotonic()

    def one(server, own, out):
        rate = server.load(ARGS.seconds)
        # On a busy machine the CPU time of an operation is more accurate than its wall time.
        each = (tree_cpu(server.process.pid) - own) / (rate * (time.monotonic() - begun))
        out |= {"rate": rate, "speed": 1 / each}

    loads = [threading.Thread(target=one, args=each) for each in zip(group, own, outs)]
    for load in loads:
        load.start()
    for load in loads:
        load.join()
    cpu = (daemon.cpu() - before) / (time.monotonic() - begun)
    if mode not in ("bare", "off"):
        daemon.ctl("flush")
        time.sleep(1.2)
    for server, out in zip(group, outs):
        out["cpu"] = cpu
        if mode not in ("bare", "off"):
            ours = [one for one in daemon.ctl("list") if one["name"] == server.program]
            out["live"], out["lost"] = sum(one["live_bytes"] for one in ours), sum(one["lost"] for one in ours)
            if hasattr(server, "own_bytes"):
                out["own"] = server.own_bytes()
        server.stop()
    return outs


def spread(values, digits=3):
    return "{:.{d}f} ({:.{d}f}-{:.{d}f})".format(statistics.median(values), min(values), max(values), d=digits)


def servers(daemon, place):
    modes = ["bare", *ARGS.modes.split(",")]
    print("| server | mode | throughput against bare | operations a second of the server's processor time against bare | a second | daemon's processors | live bytes | its own figure | lost |")
    print("|---|---|---|---|---|---|---|---|---|")
    wanted = []
    for server in [Redis(), Postgres(), Nginx()]:
        if ARGS.only and server.program.split("-")[0] not in ARGS.only.replace("postgresql", "postgres"):
            continue
        missing = [name for name in server.needs if not shutil.which(name)]
        if missing:
            print(f"{server.name}: {', '.join(missing)} not installed: scripts/install-tools", file=sys.stderr)
            continue
        wanted.append(server)
    for group in [wanted] if ARGS.together and wanted else [[server] for server in wanted]:
        runs = {mode: [[] for _ in group] for mode in modes}
        for turn in range(ARGS.rounds):
            for mode in modes[turn % len(modes):] + modes[:turn % len(modes)]:
                for run, out in zip(runs[mode], measure(group, daemon, mode, place)):
                    run.append(out)
            print(f"{', '.join(server.name for server in group)}: round {turn + 1} of {ARGS.rounds}", file=sys.stderr)
        for at, server in enumerate(group):
            for mode in modes:
                table(server, mode, runs[mode][at], runs["bare"][at])


def table(server, mode, runs, bare):
    ratios, speeds = ([run[key] / plain[key] for run, plain in zip(runs, bare)] for key in ("rate", "speed"))
    median = lambda key: statistics.median(run.get(key, 0) for run in runs)
    show = lambda key: f"{int(median(key)):,}" if key in runs[0] else ""
    print(f"| {server.name} | {mode} | {spread(ratios)} | {spread(speeds)} | {median('rate'):,.0f} | {median('cpu'):.2f} | {show('live')} | {show('own')} | {show('lost')} |", flush=True)


def micro(daemon, place):
    program = os.path.join(place, "calls")
    subprocess.run(["gcc", "-O2", os.path.join(HERE, "calls.c"), "-o", program], check=True)
    cases = {"bare": {}, "inert": {"LD_PRELOAD": daemon.library}, "off": daemon.environment("off"), "profile:2%": daemon.environment("profile:2%"), "profile": daemon.environment("profile")}
    least = {name: [] for name in cases}
    for _ in range(max(ARGS.rounds, 5)):
        for name, environment in cases.items():
            said = subprocess.run([program], env=os.environ | environment, capture_output=True, text=True, check=True).stdout
            least[name].append(float(said.split()[0]))
    print("\n| a pair of malloc and free, least of chunks, ns | least | median of rounds |\n|---|---|---|")
    for name, values in least.items():
        print(f"| {name} | {min(values):.2f} | {statistics.median(values):.2f} |")


def kills(daemon, place):
    """The longest call of a program whose daemon is killed and started anew twice a second."""
    program = os.path.join(place, "longest")
    subprocess.run(["gcc", "-O2", os.path.join(HERE, "longest.c"), "-o", program], check=True)
    print("\n| a pair of malloc and free | pairs | longest without another program on the processor, us | of them over 1 ms | waits | kills |\n|---|---|---|---|---|---|")
    for mode in ["bare", "profile", "trace"]:
        running = subprocess.Popen([program, str(4 * ARGS.seconds)], env=os.environ | daemon.environment(mode), stdout=subprocess.PIPE, text=True)
        count = 0
        while running.poll() is None:
            time.sleep(0.5)
            if mode != "bare":
                daemon.process.kill()
                daemon.process.wait()
                daemon.start()
                count += 1
        pairs, longest, slow, waits = map(int, running.stdout.read().split())
        print(f"| {mode} | {pairs:,} | {longest / 1000:.0f} | {slow} | {waits} | {count} |", flush=True)


def full_rate(daemon, place):
    """A program that allocates without pause, under the command and under the daemon in mode trace."""
    program = os.path.join(place, "micro")
    subprocess.run(["gcc", "-O2", "-pthread", os.path.join(HERE, "micro.c"), "-o", program], check=True)
    record = os.path.join(place, "recording")
    epochs = lambda: {folder for folder, _, files in os.walk(os.path.join(place, "state")) if "recording.json" in files}
    for threads in ["1", "4"]:
        words = [program, "1000000", "8", threads]
        cases = ["bare", "heaptape record", "trace,overflow=wait:10s", "trace"]
        runs = {name: [] for name in cases}
        for _ in range(ARGS.rounds):
            for name in cases:
                shutil.rmtree(record, ignore_errors=True)
                command = words
                environment = daemon.environment(name) if name.startswith("trace") else {}
                if name == "heaptape record":
                    command = [HEAPTAPE, "record", "-q", "-o", record, "--", *words]
                begun = time.monotonic()
                process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL)
                if process.wait() != 0:
                    raise SystemExit(f"{command}: exit status {process.returncode}")
                run = {"wall": time.monotonic() - begun, "events": 0, "lost": 0}
                if environment:
                    daemon.ctl("flush")
                for folder in [record] if name == "heaptape record" else sorted(epochs()) if environment else []:
                    said = subprocess.run([HEAPTAPE, "report", "--json", folder], capture_output=True, check=True).stdout
                    for one in json.loads(said)["processes"]:
                        if folder == record or one["pid"] == process.pid:
                            run["events"] += one["emitted_events"]
                            run["lost"] += one["lost_events"]
                runs[name].append(run)
        print(f"\n| allocates without pause, {threads} threads | wall to bare | events | lost |\n|---|---|---|---|")
        for name, found in runs.items():
            ratios = [run["wall"] / bare["wall"] for run, bare in zip(found, runs["bare"])]
            median = lambda key: statistics.median(run[key] for run in found)
            print(f"| {name} | {spread(ratios)} | {median('events'):,.0f} | {median('lost'):,.0f} |", flush=True)


def main():
    place = tempfile.mkdtemp(prefix="heaptape-servers-")
    os.chmod(place, 0o755)
    daemon = Daemon(place)
    try:
        print(f"{ARGS.rounds} rounds of {ARGS.seconds} s, {os.cpu_count()} processors, medians (least-most)\n")
        servers(daemon, place)
        if not ARGS.only or "micro" in ARGS.only:
            micro(daemon, place)
        if not ARGS.only or "kills" in ARGS.only:
            kills(daemon, place)
        if not ARGS.only or "rate" in ARGS.only:
            full_rate(daemon, place)
        status = daemon.ctl("status")
        print(f"\nthe daemon: {status['own']['resident_bytes'] / 2**20:.0f} MiB resident, {status['own']['cpu_seconds_total']:.1f} s of processor time; load {os.getloadavg()[0]:.1f} at the end")
    finally:
        daemon.stop()
        shutil.rmtree(place, ignore_errors=True)


def options(doc, rounds, seconds, modes, more=""):
    """The options that benchmarks of servers share, with what they are unless told."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=type(seconds), default=seconds)
    parser.add_argument("--modes", default=modes)
    parser.add_argument("--only", help=f"servers whose names contain one of these words, by commas{more}")
    return parser


if __name__ == "__main__":
    parser = options(__doc__, 5, 5, "off,profile,profile:2%,trace",
                     "; micro for the microbenchmark, kills for the longest call under a daemon that is killed, "
                     "rate for a program that allocates without pause")
    parser.add_argument("--together", action="store_true", help="all servers under load at the same time")
    ARGS = parser.parse_args()
    main()
