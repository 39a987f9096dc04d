"""Cost of admin reports for clients: latency of paced requests with one report after the other over a ledger of a
million rows, and without.

The gateway with its helper threads is on the first core; load, upstream and the reader of reports are on the second."""
import http.client, os, shutil, threading, time
from statistics import median

from .awake import awake
from .report import Rounds, spread
from .rig import FIRST, GATEWAY, PORTS, SECOND, WORK, Run, say, start, stop, wait_for
from .subjects import Subject

# Enough for several checkpoints of the ledger in each run: one more or less would be a tenth of the slowest requests.
ROWS, REQUESTS, GAP_US = 1_000_000, 24_000, 500
REPORT = "/admin/v1/usage?by=key,model"


def million():
    """A ledger with a million rows of a thousand keys, created once."""
    folder = WORK / "million"
    if not folder.exists():
        say(f"writing {ROWS} rows ...")
        subject = Subject("gateway").start()
        run = Run(PORTS["gateway"], connections=256, requests=ROWS, **subject.way("whole"))
        run.go()
        run.end()
        subject.stop()
        folder.mkdir()
        for ledger in [*WORK.glob("ledger.db*")]:
            shutil.move(ledger, folder)
        shutil.copy(WORK / "keys", folder)
    for ledger in [*WORK.glob("ledger.db*")]:
        ledger.unlink()
    # Including the keys.
    for file in folder.iterdir():
        shutil.copy(file, WORK)
    # A slow disk is busy with these for seconds, during which no commit completes.
    os.sync()


class Looker(threading.Thread):
    """Requests one report after the other until stopped."""

    def __init__(self):
        super().__init__()
        self.ends, self.took = threading.Event(), []

    def run(self):
        # The reader would run on another machine: here it yields to load and upstream.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        admin = http.client.HTTPConnection("127.0.0.1", PORTS["admin"], timeout=60)
        while not self.ends.is_set():
            began = time.monotonic()
            admin.request("GET", REPORT)
            answer = admin.getresponse()
            text = answer.read()
            assert answer.status == 200 and b"bench" in text, text[:200]
            self.took.append((time.monotonic() - began) * 1000)
        admin.close()


def measure(looks):
    run = Run(PORTS["gateway"], connections=8, requests=REQUESTS, gap_us=GAP_US, model="bench")
    looker = Looker()
    if looks:
        looker.start()
    result = run.go()
    looker.ends.set()
    if looks:
        looker.join()
    run.end()
    return result, looker.took


def looked(rounds, table):
    os.sched_setaffinity(0, {SECOND})
    million()
    rounds_of(rounds, table, "cores as they are")
    # A reader keeps the cores from sleeping, which makes all answers faster. Here they never sleep, so the difference
    # is the cost of taking a core from the report.
    with awake():
        rounds_of(rounds, table, "cores kept awake")


def rounds_of(rounds, table, cores):
    gateway = start([GATEWAY, "serve", "--config", WORK / "tollgate.toml"], FIRST, stderr=open(WORK / "log", "wb"))
    wait_for(PORTS["gateway"])
    found, took = Rounds(), []
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        # The first of one round is second in the next; also twice without reports, which shows the noise.
        for name in ("quiet", "looked", "again")[:: 1 if number % 2 else -1]:
            result, times = measure(name == "looked")
            took += times
            for part in ("p50_us", "p99_us"):
                found.add(part, name, result[part])
    stop(gateway)
    for part, limit in (("p99_us", 1.05), ("p50_us", None)):
        quiet = median(found.get(part, "quiet"))
        table.add("20", f"{part[:3]} with reports over {ROWS:,} rows, {cores}, ratio to without",
                  f"<= {limit}" if limit else "",
                  f"{spread(found.ratios(part, 'looked', 'quiet'), 3)}; {quiet:.0f} µs without",
                  value=median(found.ratios(part, "looked", "quiet")), limit=limit)
        table.add("20", f"{part[:3]} without, {cores}, ratio to itself (noise)", "",
                  spread(found.ratios(part, "again", "quiet"), 3))
    table.add("20", f"a report, {cores}, ms", "", f"{spread(took, 1)}, {len(took)} of them")
