"""The services of the month: redis, PostgreSQL and nginx under load, and one with each planted fault (`planted.c`). The servers must go
on through everything that happens to the daemon, with no failed request, and be served each day; `leaks` and `why` must name each
planted fault, and nothing of the cache."""
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench"))
import servers

servers.PORT = 17_400
# Service, its planted function, and the verdicts that are right.
GROW = {"growing", "slow_growth", "container_growth"}
PLANTED = {"shopd": "remember_order", "prefork": "note_worker", "dforkd": "keep_reply", "renamed": "keep_mail"}


def quiet(*words):
    return subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


class Services:
    def __init__(self, folder, root, environment):
        self.folder, self.environment, self.over = folder, environment, threading.Event()
        self.failed, self.requests, self.crashes, self.detached, self.found_fragments = [], {}, [], set(), False
        for name in [*PLANTED, "fragd", "crashd"]:
            subprocess.run(["cc", "-g", "-O1", "-fno-builtin", "-pthread", "-o", f"{folder}/{name}", f"{root}/tests/month/planted.c"], check=True)
        ours = {key: value for key, value in environment.items() if key in ("LD_PRELOAD", "HEAPTAPE_SOCKET", "HEAPTAPE_ATTACH_MS")}
        self.servers = [server for server in [servers.Redis(), servers.Postgres(), servers.Nginx()] if all(map(shutil.which, server.needs))]
        os.chmod(folder, 0o755)
        # The copy is in a folder that the servers' users can read.
        shutil.copy(ours["LD_PRELOAD"], f"{folder}/libheaptape.so")
        os.chmod(f"{folder}/libheaptape.so", 0o755)
        ours["LD_PRELOAD"] = f"{folder}/libheaptape.so"
        for server in self.servers:
            mode = {"HEAPTAPE_MODE": "profile:2%"} if server.program == "redis-server" else {}
            place = f"{folder}/{server.program}"
            os.makedirs(place, mode=0o755)
            server.start(ours | mode | {"HEAPTAPE_LABEL": f"{server.program}.service"}, place)
        self.started = [self.start(name) for name in [*PLANTED, "fragd"]]
        self.threads = [threading.Thread(target=self.load, args=[server], daemon=True) for server in self.servers]
        self.threads.append(threading.Thread(target=self.crash, daemon=True))
        for thread in self.threads:
            thread.start()

    def start(self, name, **more):
        return subprocess.Popen([f"{self.folder}/{name}"], env=self.environment | more | {"HEAPTAPE_LABEL": f"{name}.service"})

    def load(self, server):
        """Light requests all the time: the machine is a month old, not a benchmark."""
        port = str(servers.PORT)
        if server.program == "redis-server":
            quiet("redis-cli", "-p", port, "config", "set", "maxmemory", "24mb")
            quiet("redis-cli", "-p", port, "config", "set", "maxmemory-policy", "allkeys-lru")
            words = ["redis-benchmark", "-p", port, "-c", "5", "-n", "400", "-r", "100000", "-d", "300", "-t", "set,get,lpush,lpop", "-q"]
        elif server.program == "postgres":
            words = ["pgbench", *server.to, "-S", "-C", "-c", "1", "-t", "5"]
        else:
            words = ["ab", "-q", "-n", "50", "-c", "5", "-H", "Accept-Encoding: gzip", f"http://127.0.0.1:{servers.PORT + 2}/"]
        while not self.over.wait(1):
            done = quiet(*words)
            self.requests[server.program] = self.requests.get(server.program, 0) + 1
            if done.returncode:
                self.failed.append(f"{' '.join(words)}: {done.returncode} {done.stderr[-200:]}")

    def crash(self):
        while not self.over.wait(10):
            process = self.start("crashd", HEAPTAPE_MODE="flight")
            process.wait()
            self.crashes.append(process.pid)

    def unserved(self, listed):
        """Returns what runs and is not served."""
        names = {one["name"] for one in listed}
        self.detached |= {one["pid"] for one in listed if one["name"] == "dforkd"}
        wanted = [server.program for server in self.servers] + [*PLANTED, "fragd"]
        return [name for name in wanted if name not in names and not (name == "renamed" and "mailer-worker" in names)]

    def wrong(self, ask):
        """Returns what is not answered as it was planted. `ask` runs a command with --json."""
        wrong = []
        for name, function in PLANTED.items():
            answer = json.loads(ask("leaks", "--json", "--live", f"{name}.service") or "{}")
            leaks = [(leak["verdict"], json.dumps(leak["stack"])) for leak in answer.get("leaks", [])]
            found = [verdict for verdict, stack in leaks if f'"{function}"' in stack]
            if not GROW & set(found):
                wrong.append(f"{name}: {function} is {found or 'not listed'}")
            false = [verdict for verdict, stack in leaks if "cached_page" in stack and verdict in GROW]
            if false:
                wrong.append(f"{name}: the full cache is {false}")
        # Once the daemon was killed it does not know the older blocks, and must say so.
        pages = ask("rss", "--live", "fragd.service") or ""
        if "make_session" not in pages and "are not known" not in pages:
            wrong.append(f"fragd: {pages[:600]}")
        self.found_fragments |= "make_session" in pages
        return wrong

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        for server in self.servers:
            server.stop()
        for process in self.started:
            process.kill()
            process.wait()
        for pid in self.detached:
            if os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(f"{self.folder}/dforkd"):
                os.kill(pid, signal.SIGKILL)
