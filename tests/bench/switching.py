#!/usr/bin/env python3
"""What a mode costs servers that run: redis, PostgreSQL and nginx stay under load all at once while `ctl mode` switches their processes from
dormant to a mode and back, second by second. Operations a second of a server's own processor time in each stretch, against the mean of
the dormant stretches before and behind it: the same process, the same data, the same neighbours.

usage: switching.py [--rounds N] [--seconds S] [--modes MODE,…] [--only redis,postgres,nginx]"""
import glob, os, random, shutil, statistics, subprocess, sys, tempfile, time, urllib.request

import servers
from servers import PORT, Daemon, Nginx, Postgres, Redis, started


class BusyRedis(Redis):
    def work(self, place):
        # One client program for each command: their mix stays the same.
        words = ["redis-benchmark", "-p", str(PORT), "-c", "7", "-n", "1000000", "-r", "100000", "-d", "300", "-l", "-q", "-t"]
        return [started([*words, command], {}) for command in ("set", "get", "hset")]

    def count(self):
        text = subprocess.run(["redis-cli", "-p", str(PORT), "info", "stats"], capture_output=True, text=True, check=True).stdout
        return int(next(line.split(":")[1] for line in text.splitlines() if line.startswith("total_commands_processed:")))


class BusyPostgres(Postgres):
    def work(self, place):
        self.log, self.read, self.lines = f"{place}/transactions", {}, 0
        return [started(["pgbench", *self.to, "-S", "-n", "-c", "4", "-j", "1", "-T", "36000", "-l", f"--log-prefix={self.log}"], {})]

    def count(self):
        # A line a transaction, written in blocks of some hundred.
        for path in glob.glob(f"{self.log}.*"):
            with open(path, "rb") as file:
                file.seek(self.read.get(path, 0))
                new = file.read()
            self.read[path] = self.read.get(path, 0) + len(new)
            self.lines += new.count(b"\n")
        return self.lines


class BusyNginx(Nginx):
    def work(self, place):
        return [started(["wrk", "-t", "1", "-c", "16", "-d", "36000s", "-H", "Accept-Encoding: gzip", f"http://127.0.0.1:{PORT + 2}/"], {})]

    def count(self):
        text = urllib.request.urlopen(f"http://127.0.0.1:{PORT + 2}/status").read().decode()
        return int(text.split()[9])


def cpu_ns(pids):
    """Time on a processor, in ns: finer than the ticks of `stat`."""
    total = 0
    for pid in pids:
        for task in glob.glob(f"/proc/{pid}/task/*/schedstat"):
            try:
                with open(task) as file:
                    total += int(file.read().split()[0])
            except OSError:
                pass
    return total


def stretch(group, daemon, pids, mode):
    """Operations a second of processor time of each server, in this mode."""
    for server in group:
        for pid in pids[server.name]:
            daemon.ctl("mode", str(pid), mode)
    time.sleep(0.3)
    measure = lambda: [(server.count(), cpu_ns(pids[server.name])) for server in group]
    before = measure()
    time.sleep(ARGS.seconds)
    return [(count - was) * 1e9 / (cpu - used) for (was, used), (count, cpu) in zip(before, measure())]


def calls(group, daemon, pids, mode):
    """How often each server calls the allocator: what a mode costs a call says the rest."""
    for server in group:
        for pid in pids[server.name]:
            daemon.ctl("mode", str(pid), mode)
    time.sleep(2)

    def counted():
        listed = daemon.ctl("list")
        of = lambda name: sum(one["recorded"] + one["lost"] + one["sampled_out"] for one in listed if one["pid"] in pids[name])
        return [(of(server.name), cpu_ns(pids[server.name])) for server in group]

    before = counted()
    time.sleep(4)
    return [f"{server.name} {(now - was) * 1e9 / (cpu - used):,.0f}" for server, (was, used), (now, cpu) in zip(group, before, counted())]


def main():
    wanted = [server for server in [BusyRedis(), BusyPostgres(), BusyNginx()] if not ARGS.only or server.program.split("-")[0] in ARGS.only.replace("postgresql", "postgres")]
    missing = [name for server in wanted for name in server.needs if not shutil.which(name)]
    if missing:
        raise SystemExit(f"{', '.join(missing)} not installed: scripts/install-tools")
    place = tempfile.mkdtemp(prefix="heaptape-switching-")
    os.chmod(place, 0o777)
    daemon, loads = Daemon(place), []
    modes = ARGS.modes.split(",")
    ratios = {mode: [[] for _ in wanted] for mode in ["off", *modes]}
    try:
        for server in wanted:
            server.start(daemon.environment("profile"), place)
            loads += server.work(place)
        time.sleep(3)
        listed = daemon.ctl("list")
        pids = {server.name: [one["pid"] for one in listed if one["name"] == server.program] for server in wanted}
        for name, known in pids.items():
            print(f"{name}: {len(known)} processes", file=sys.stderr)
            if not known:
                raise SystemExit(f"the daemon does not list {name}: {listed}")
        dormant = stretch(wanted, daemon, pids, "off")
        for turn in range(ARGS.rounds):
            order = random.sample(["off", *modes], len(modes) + 1)
            for mode in order:
                now = stretch(wanted, daemon, pids, mode)
                again = stretch(wanted, daemon, pids, "off")
                for into, *speeds in zip(ratios[mode], dormant, now, again):
                    into.append(speeds[1] / ((speeds[0] + speeds[2]) / 2))
                dormant = again
            print(f"round {turn + 1} of {ARGS.rounds}", file=sys.stderr)
        print(f"{ARGS.rounds} stretches of {ARGS.seconds} s in each mode, {os.cpu_count()} processors; median, and the middle half\n")
        print(f"| mode | {' | '.join(server.name for server in wanted)} |\n|---|{'---|' * len(wanted)}")
        for mode, all_of in ratios.items():
            shown = []
            for values in all_of:
                low, middle, high = statistics.quantiles(values, n=4)
                shown.append(f"{middle:.3f} ({low:.3f}-{high:.3f})")
            print(f"| {mode} | {' | '.join(shown)} |")
        print(f"\nallocator calls a second of the server's processor time, in the last mode: {', '.join(calls(wanted, daemon, pids, modes[-1]))}")
        lost = sum(one["lost"] for one in daemon.ctl("list"))
        print(f"\nevents lost: {lost}; load {os.getloadavg()[0]:.1f} at the end")
    finally:
        for load in loads:
            load.kill()
        for server in wanted:
            if hasattr(server, "process"):
                server.stop()
        daemon.stop()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    ARGS = servers.ARGS = servers.options(__doc__, 20, 1.5, "profile:2%,profile").parse_args()
    main()
