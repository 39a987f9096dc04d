"""Cost of admin reports for clients: latency of paced requests with and without one report after the other over a
ledger of a million rows.

The gateway with its helper threads is on the first core; load, upstream and the reader of reports are on the second."""
import http.client, os, shutil, threading, time
from statistics import median

from .awake import awake
from .report import Rounds, spread
from .rig import FIRST, GATEWAY, PORTS, SECOND, WORK, Run, log, start, stop, wait_for
from .subjects import Subject

# Enough requests for several checkpoints of the ledger in each run: a single one would be a tenth of the slowest
# requests.
ROWS, REQUESTS, GAP_US = 1_000_000, 24_000, 500
REPORT = "/admin/v1/usage?by=key,model"


def prepare_ledger():
    """A ledger with a million rows of a thousand keys, created once."""
    folder = WORK / "million"
    if not folder.exists():
        log(f"writing {ROWS} rows ...")
        subject = Subject("gateway").start()
        run = Run(PORTS["gateway"], connections=256, requests=ROWS, **subject.load_options("whole"))
        run.go()
        run.end()
        subject.stop()
        folder.mkdir()
        for ledger in [*WORK.glob("ledger.db*")]:
            shutil.move(ledger, folder)
        shutil.copy(WORK / "keys", folder)
    for ledger in [*WORK.glob("ledger.db*")]:
        ledger.unlink()
    # The keys as well.
    for file in folder.iterdir():
        shutil.copy(file, WORK)
    # On a slow disk these writes would delay the commits of the first run by seconds.
    os.sync()


class ReportReader(threading.Thread):
    """Requests one report after the other until stopped."""

    def __init__(self):
        super().__init__()
        self.ends, self.took = threading.Event(), []

    def run(self):
        # In production the reader is another machine: here it yields to load and upstream.
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


def measure(with_reports):
    run = Run(PORTS["gateway"], connections=8, requests=REQUESTS, gap_us=GAP_US, model="bench")
    reader = ReportReader()
    if with_reports:
        reader.start()
    result = run.go()
    reader.ends.set()
    if with_reports:
        reader.join()
    run.end()
    return result, reader.took


def admin_reports(rounds, table):
    os.sched_setaffinity(0, {SECOND})
    prepare_ledger()
    run_rounds(rounds, table, "cores may sleep")
    # The reader keeps the cores from sleeping, which makes all responses faster. With cores that never sleep, the
    # difference is only the cost of preempting the report.
    with awake():
        run_rounds(rounds, table, "cores kept awake")


def run_rounds(rounds, table, cores):
    gateway = start([GATEWAY, "serve", "--config", WORK / "tollgate.toml"], FIRST, stderr=open(WORK / "log", "wb"))
    wait_for(PORTS["gateway"])
    found, took = Rounds(), []
    for number in range(rounds):
        log(f"round {number + 1} of {rounds}")
        # The order alternates. The second run without reports shows the noise.
        for name in ("quiet", "reports", "again")[:: 1 if number % 2 else -1]:
            result, times = measure(name == "reports")
            took += times
            for part in ("p50_us", "p99_us"):
                found.add(part, name, result[part])
    stop(gateway)
    for part, limit in (("p99_us", 1.05), ("p50_us", None)):
        quiet = median(found.get(part, "quiet"))
        table.add("20", f"{part[:3]} with reports over {ROWS:,} rows, {cores}, ratio to without",
                  f"<= {limit}" if limit else "",
                  f"{spread(found.ratios(part, 'reports', 'quiet'), 3)}; {quiet:.0f} µs without them",
                  value=median(found.ratios(part, "reports", "quiet")), limit=limit)
        table.add("20", f"{part[:3]} without, {cores}, ratio to itself (noise)", "",
                  spread(found.ratios(part, "again", "quiet"), 3))
    table.add("20", f"a report, {cores}, ms", "", f"{spread(took, 1)}, {len(took)} reports")
