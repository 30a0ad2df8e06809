"""Thirty days of a daemon in some minutes: epochs, deploys, restarts, kills of the daemon, days with a full disk, 200 short processes a
minute, redis, PostgreSQL and nginx under load, services with planted faults (`services.py`), and a service whose build of day 20 leaks
until the kernel kills it. Memory, descriptors and disk of the daemon stay bounded,
and the sums of jobs with known sums are true on each day. Afterwards: what `why` says of the service, the packaged alert six hours
before its end (promtool), and the fleet question that names the build. As root; called by `scripts/dev month`.

  check.py HEAPTAPE ROOT [MINUTES] [NOTES]        NOTES: folder for what is shown, and for the state of days with a broken promise
"""
import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from services import Services

heaptape, root = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
minutes = float(sys.argv[3]) if len(sys.argv) > 3 else 15.0
notes = sys.argv[4] if len(sys.argv) > 4 else None

DAYS, DAY = 30, minutes * 60 / 30
HOUR = DAY / 24
KEEP, LIMIT = 24 << 20, 96 << 20  # KEEP is what each of two users may keep
LEAK_DAY, FULL_DAYS = 20, (9, 17)
# What it leaks in a second: the limit is reached after about three days.
LEAK = int((LIMIT - (28 << 20)) / (3.2 * DAY))
folder = tempfile.mkdtemp(prefix="heaptape-month-")
state, control, tables = f"{folder}/disk/state", f"{folder}/run/control", f"{folder}/tables"
started, faults = [], []


def run(*words, **more):
    more = {"check": True, "stderr": subprocess.PIPE} | more
    return subprocess.run([str(word) for word in words], text=True, stdout=subprocess.PIPE, **more).stdout


def ctl(*words, **more):
    return run(heaptape, "ctl", "--control", control, *words, **more)


def until(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def hold(condition, what):
    """A promise: broken ones are listed at the end, so that one run shows all of them."""
    if not condition:
        faults.append(what)
        recent = [line for line in open(f"{folder}/log", errors="replace") if "debug" not in line.lower()][-12:]
        print(f"BROKEN: {now()}: {what}\n    the daemon's log: " + "                      ".join(recent), flush=True)
    return condition


begin = time.monotonic()


def now():
    """The simulated time, as day and hour."""
    day, rest = divmod((time.monotonic() - begin) / DAY, 1)
    return f"day {int(day) + 1:2}, {int(rest * 24):02}:{int(rest * 24 % 1 * 60):02}"


def clean_up():
    if services:
        services.stop()
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    subprocess.run(["umount", "-l", f"{folder}/disk"], stderr=subprocess.DEVNULL)
    shutil.rmtree(folder, ignore_errors=True)
    for path in groups:
        try:
            os.rmdir(path)
        except OSError:
            pass


groups, services = [], None
atexit.register(clean_up)
os.makedirs(f"{folder}/disk")
os.makedirs(f"{folder}/run")
run("mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", f"{folder}/disk")
for build, flags in {"old": [], "new": ["-DLEAK"]}.items():
    os.makedirs(f"{folder}/{build}")
    run("cc", "-g", "-O1", "-Wl,--build-id=sha1", *flags, "-o", f"{folder}/{build}/shop", f"{root}/tests/month/programs.c")
for name in ["ledger", "brief"]:
    shutil.copy(f"{folder}/old/shop", f"{folder}/{name}")
library = run(heaptape, "library").strip()
environment = os.environ | {"LD_PRELOAD": library, "HEAPTAPE_SOCKET": f"{folder}/run/socket", "HEAPTAPE_ATTACH_MS": "5000"}
for path, file in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]:
    group = f"{path}/heaptape-month-{os.getpid()}"
    try:
        os.mkdir(group)
        groups.append(group)
        open(f"{group}/{file}", "w").write(str(LIMIT))
        break
    except OSError:
        group = None
if group is None:
    raise SystemExit("no control group with a limit on memory can be made here")


def start_daemon():
    log = open(f"{folder}/log", "a")
    words = [heaptape, "daemon", "--socket", f"{folder}/run/socket", "--control", control, "--state", state, "--snapshot", f"{max(int(HOUR * 500), 200)}ms",
             "--epoch", f"{int(6 * HOUR * 1000)}ms", "--keep-bytes", 2 * KEEP, "--keep-age", f"{int(12 * DAY)}s", "--program", "ledger=trace,overflow=wait:10s", "--ship-to", tables]
    process = subprocess.Popen([str(word) for word in words], stderr=log)
    started.append(process)
    until("the daemon answers", lambda: subprocess.run([heaptape, "ctl", "--control", control, "status"], capture_output=True).returncode == 0)
    return process


def start_shop(build):
    def enter():
        open(f"{group}/cgroup.procs", "w").write("0")

    process = subprocess.Popen([f"{folder}/{build}/shop", str(24 << 20), str(LEAK)], env=environment | {"HEAPTAPE_LABEL": "shop.service"}, preexec_fn=enter)
    started.append(process)
    return process


daemon, shop = start_daemon(), start_shop("old")
services = Services(folder, root, environment)
begin = time.monotonic()
over, briefs, scrapes = threading.Event(), [0], []


def start_briefs():
    """200 short processes a minute."""
    while not over.wait(0.3):
        subprocess.run([f"{folder}/brief"], env=environment)
        briefs[0] += 1


def scrape():
    """The metrics of the service, each half hour, with the simulated time in hours."""
    for number in range(1, 100000):
        if over.wait(max(begin + number * HOUR / 2 - time.monotonic(), 0)):
            break
        text = subprocess.run([heaptape, "ctl", "--control", control, "metrics"], capture_output=True, text=True).stdout
        found = dict(re.findall(r'^heaptape_program_(resident_bytes|live_bytes|memory_limit_bytes)\{program="shop",label="shop.service"\} (\S+)', text, re.M))
        scrapes.append(((time.monotonic() - begin) / HOUR, {name: float(value) for name, value in found.items()}))


threads = [threading.Thread(target=work, daemon=True) for work in [start_briefs, scrape]]
for thread in threads:
    thread.start()


def of_job(question, job):
    """Returns the epochs of all jobs, and what a command says of one of them."""
    while True:
        epochs = run(heaptape, "epochs", "--state", state, "--program", "ledger", "--each", check=False).split()
        if not epochs:
            return epochs, None
        answer = subprocess.run([heaptape, question, "--json", "--process", str(job.pid), *epochs], capture_output=True, text=True)
        # An epoch may be removed between the list and the question.
        if "No such file or directory" not in answer.stderr:
            return epochs, answer


def check_day(day, job, count, was_full):
    """The promises of each day."""
    job.wait()
    # On a full disk it ends with 2 and says what could not be written.
    ctl("flush", check=False)
    epochs, answer = of_job("report", job)
    found = json.loads(answer.stdout)["processes"] if answer and answer.stdout.startswith("{") else None
    if not found:
        hold(was_full, f"day {day}: the job's recording is there: {answer.stderr[-300:] if epochs else 'no epoch'}")
        return
    # A killed daemon ends the known live set, never the sums: all segments together have each
    # allocation once.
    emitted, recorded, lost = (sum(process[key] for process in found) for key in ["emitted_events", "recorded_events", "lost_events"])
    hold(emitted == recorded + lost, f"day {day}: {emitted} emitted, {recorded} recorded, {lost} lost")
    epochs, answer = of_job("sites", job)
    sites = json.loads(answer.stdout or "{}")
    all_sites = [site for process in sites.get("processes", []) for site in process["sites"]]
    planted = [site for site in all_sites if any(frame["function"] == "work" for frame in site["stack"])]
    allocs, size = sum(site["allocs"] for site in planted), sum(site["bytes"] for site in planted)
    where = f"of {job.pid} in {len(epochs)} folders, {emitted} events, {len(all_sites)} call sites, {answer.stderr[-300:]!r}"
    if lost == 0:
        is_true = hold((allocs, size) == (count, count * 100), f"day {day}: {allocs} blocks with {size} bytes, not {count} with {count * 100}, {where}")
    else:
        is_true = hold(was_full and allocs <= count and allocs + lost >= count, f"day {day}: {allocs} blocks and {lost} events lost of {count}, {where}")
    if not is_true and notes:
        shutil.copytree(state, f"{notes}/day{day}", dirs_exist_ok=True, ignore_dangling_symlinks=True)


def check_daemon(day):
    text = open(f"/proc/{daemon.pid}/status").read()
    resident = int(re.search(r"VmRSS:\s+(\d+)", text)[1]) >> 10
    descriptors = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    disk = sum(os.path.getsize(os.path.join(path, file)) for path, _, files in os.walk(f"{state}/0") for file in files if os.path.exists(os.path.join(path, file)))
    status = json.loads(ctl("--json", "status"))
    epochs = len(run(heaptape, "epochs", "--state", state, check=False).split())
    print(f"{now()}: daemon {resident} MiB, {descriptors} descriptors; {disk >> 10} KiB in {epochs} epochs; {status['processes']} processes, {briefs[0]} short ones, shop {'alive' if shop.poll() is None else 'dead'}", flush=True)
    hold(resident < 200, f"day {day}: {resident} MiB of memory")
    hold(descriptors < 200, f"day {day}: {descriptors} descriptors")
    hold(disk < KEEP + (8 << 20), f"day {day}: {disk} bytes on disk")
    return resident, descriptors


def check_services(day):
    listed = json.loads(ctl("--json", "list"))
    unserved = services.unserved(listed)
    hold(not unserved, f"day {day}: {', '.join(unserved)} not served")
    if day % 8 == 0 or day == DAYS:
        wrong = services.wrong(lambda *words: run(heaptape, *words, "--control", control, check=False))
        hold(not wrong, f"day {day}: planted faults: {'; '.join(wrong)}")


history, killed_at = [], None
for day in range(1, DAYS + 1):
    full = day in FULL_DAYS
    if full:
        left = shutil.disk_usage(f"{folder}/disk").free
        assert left <= 160 << 20, "the small file system is gone"
        with open(f"{folder}/disk/other", "wb") as other:
            try:
                os.posix_fallocate(other.fileno(), 0, max(left - (32 << 10), 1))
            except OSError:
                pass
    count = 20000
    job = subprocess.Popen([f"{folder}/ledger", str(count), str(int(DAY * 550))], env=environment)
    started.append(job)
    time.sleep(DAY / 4)
    if day in (7, 14, 28):
        daemon.terminate()
        daemon.wait()
        daemon = start_daemon()
    if day in (11, 25):
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        daemon = start_daemon()
    if day % 5 == 0 and day <= LEAK_DAY:
        build = "new" if day >= LEAK_DAY else "old"
        ctl("mark", f"deploy-{day}")
        shop.terminate()
        shop.wait()
        shop = start_shop(build)
        print(f"{now()}: deploy-{day}, the {build} build", flush=True)
    if full:
        time.sleep(DAY / 4)
        os.remove(f"{folder}/disk/other")
    # The daemon looks at the disk each ten seconds, which is half a day here: on the next day a job
    # may still be a profile, and as a short one only a part of its program's sums.
    check_day(day, job, count, full or day - 1 in FULL_DAYS)
    while time.monotonic() - begin < day * DAY:
        if killed_at is None and shop.poll() == -signal.SIGKILL:
            killed_at = (time.monotonic() - begin) / HOUR
            print(f"{now()}: the kernel has killed the service", flush=True)
            ctl("flush")
            screen = run(heaptape, "why", "--control", control, "--state", state, "shop", check=False)
            print(screen)
        time.sleep(0.05)
    check_services(day)
    history.append(check_daemon(day))

over.set()
for thread in threads:
    thread.join()
said = json.loads(run(heaptape, "why", "--json", "--control", control, "--state", state, services.crashes[-1], check=False) or "{}")
hold("render_invoice" in json.dumps(said) and "signal 6" in json.dumps(said), f"why of the last crash: {json.dumps(said)[:500]}")
hold(services.found_fragments, "rss of the fragmented service names what holds its pages")
hold(not services.failed, f"{len(services.failed)} failed rounds of requests: {services.failed[:3]}")
print(f"rounds of requests: {services.requests}, {len(services.crashes)} crashes", flush=True)
services.stop()
services = None
hold(killed_at is not None, "the kernel has killed the leaking service")
first, last = history[4], history[-1]
hold(last[0] <= first[0] + 40 and last[1] <= first[1] + 20, f"memory and descriptors of day 30 are those of day 5: {first}, {last}")
ctl("stop")
daemon.wait()

# The alert: the month's own figures, at their simulated times, and the packaged rules.
if killed_at is not None:
    series = {"resident_bytes": [], "live_bytes": [], "memory_limit_bytes": []}
    steps = int(killed_at * 2)
    for name, values in series.items():
        for step in range(steps):
            # The last figure before, as Prometheus does it, if it is not older than an hour.
            at = [row[name] for time_of, row in scrapes if name in row and step / 2 - 1 <= time_of <= step / 2]
            values.append(f"{at[-1]:.0f}" if at else "_")
    minute = (int((killed_at - 6) * 2)) * 30
    test = {
        "rule_files": [f"{root}/packaging/prometheus-alerts.yml"], "evaluation_interval": "30m",
        "tests": [{
            "interval": "30m",
            "input_series": [{"series": f'heaptape_program_{name}{{program="shop",label="shop.service"}}', "values": " ".join(values)} for name, values in series.items()],
            "alert_rule_test": [
                {"alertname": "HeaptapeMemoryReachesLimit", "eval_time": f"{minute}m", "exp_alerts": [{"exp_labels": {"severity": "warning", "program": "shop", "label": "shop.service"}, "exp_annotations": {
                    "summary": "shop shop.service reaches its memory limit within a day",
                    "description": "Live bytes have grown for six hours. `heaptape why shop` names the call site."}}]},
                # Before the deploy there was nothing to say.
                {"alertname": "HeaptapeMemoryReachesLimit", "eval_time": f"{(LEAK_DAY - 1) * 24 * 60}m", "exp_alerts": []},
            ],
        }],
    }
    path = f"{folder}/alert-test.yml"
    json.dump(test, open(path, "w"))
    if shutil.which("promtool"):
        verdict = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
        hold(verdict.returncode == 0, f"promtool: {verdict.stdout[-1500:]}{verdict.stderr[-500:]}")
        alert = f"$ promtool test rules (packaging/prometheus-alerts.yml, with the month's figures each half hour)\nHeaptapeMemoryReachesLimit fires at hour {minute // 60} of the month; the kernel killed the service at hour {killed_at:.1f}; nothing fires on day {LEAK_DAY - 1}\n{verdict.stdout}"
        print(alert)

# The fleet question: the build.
try:
    import duckdb
except ImportError:
    duckdb = None
if duckdb:
    run(heaptape, "ship", "--to", tables, "--state", state, check=False)
    db = duckdb.connect()
    db.execute(f"set variable tables = '{tables}'")
    db.execute(open(f"{root}/packaging/fleet/tables.sql").read())
    answer = db.execute(open(f"{root}/packaging/fleet/builds.sql").read())
    columns = [column[0] for column in answer.description]
    rows = [dict(zip(columns, row)) for row in answer.fetchall()]
    expected = run("readelf", "-n", f"{folder}/new/shop").split("Build ID: ")[1].split()[0]
    hold(bool(rows) and rows[0]["build"] == expected and "remember_session" in rows[0]["folded"], f"builds.sql: {rows[:2]}")
    question = f"$ duckdb -c \".read tables.sql\" -c \".read builds.sql\"      (build of day {LEAK_DAY}: {expected})\n" + "\n".join(json.dumps(row, default=float) for row in rows[:3])
    print(question)
    shipped = db.execute("select count(*), sum(allocations) from (select process, max(allocations) as allocations from sites where program = 'brief' and stack in (select stack from stacks where folded like '%;work') group by process, stack)").fetchall()
    print(f"short processes: {briefs[0]} ran, rows and allocations in the tables of the fleet: {shipped}")

if notes:
    os.makedirs(notes, exist_ok=True)
    if killed_at is not None:
        open(f"{notes}/19-why.txt", "w").write(f"$ heaptape why shop          (hour {killed_at % 24:.1f} of day {int(killed_at // 24) + 1} of the simulated month, of which a day is {DAY:.0f} s)\n{screen}")
        if shutil.which("promtool"):
            open(f"{notes}/19-alert.txt", "w").write(alert)
    if duckdb:
        open(f"{notes}/19-build.txt", "w").write(question + "\n")
log = open(f"{folder}/log").read()
print(f"{log.count('removed because of')} epochs removed, {log.count('cannot be written')} failed writes logged, {log.count('panic')} panics")
hold("panicked" not in log, "no panic in the log")
print(f"{len(faults)} broken promises" + "".join(f"\n  {fault}" for fault in faults))
raise SystemExit(bool(faults))
