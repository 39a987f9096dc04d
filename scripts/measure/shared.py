"""Cost of a shared ledger: compares a gateway that uses Redis with a gateway that uses a file. Measures CPU per request
in the gateway and in the Redis server, CPU of two gateways compared with one, latency of one connection, and memory of
the server.

Gateway and server are on the first core, load and upstream on the second. Plans have limits of every kind except
`concurrency`, which needs a call for each request. With many keys, each key is used rarely, and the cost is highest."""
import subprocess, tempfile, time
from pathlib import Path
from statistics import median

from .report import Rounds, spread
from .rig import FIRST, GATEWAY, PORTS, WORK, Run, cpu, start, stop, wait_for

PORTS.update({"redis": 18120, "shared": 18121, "shared_admin": 18122, "second": 18123, "second_admin": 18124,
              "alone": 18125, "alone_admin": 18126})
REQUESTS, SOME, MANY = 30_000, 8, 500


def configured(name, url):
    (WORK / f"{name}.toml").write_text(
        f'[server]\nlisten = "127.0.0.1:{PORTS[name]}"\nadmin_listen = "127.0.0.1:{PORTS[name + "_admin"]}"\n'
        f'[store]\nurl = "{url}"\nhosts = 2\n'
        f'[[providers]]\nname = "plain"\nshape = "chat"\nbase_url = "http://127.0.0.1:{PORTS["up"]}/v1"\n'
        '[[models]]\nid = "bench"\ncontext = "1M"\ninput_price = 2.5\noutput_price = 10.0\n'
        'targets = [{ provider = "plain", model = "upstream-model-2026-11-01" }]\n'
        '[[plans]]\nname = "team"\ntokens = 1_000_000_000_000\nrequests = 1_000_000_000\n'
        'tokens_per_window = 1_000_000_000_000\nbudget = 1_000_000.0\n')


def gateway(name):
    process = start([GATEWAY, "serve", "--config", WORK / f"{name}.toml"], FIRST, stderr=open(WORK / f"log-{name}", "wb"))
    wait_for(PORTS[name])
    return process


def issue(name, count):
    """Issues keys in the ledger of a configuration, and writes them for the load generator."""
    file = WORK / f"keys-{name}"
    command = [GATEWAY, "keys", "issue", "--config", WORK / f"{name}.toml", "--name", "bench", "--plan", "team"]
    file.write_text("".join(subprocess.run(command, check=True, capture_output=True, text=True).stdout
                            for _ in range(count)))
    lines = file.read_text().splitlines(keepends=True)
    (WORK / f"keys-{name}-some").write_text("".join(lines[:SOME]))


def measure(names, pids, connections, keys, requests=REQUESTS):
    """CPU microseconds of each process per request, and the result of the first run. Two gateways serve half of the
    requests each, concurrently."""
    count = len(names)
    runs = [Run(PORTS[name], connections=connections // count, requests=requests // count, warm=200,
                model="bench", keys=WORK / keys) for name in names]
    before = [cpu(pid)[0] for pid in pids]
    [run.go(wait=False) for run in runs]
    results = [run.result() for run in runs]
    # Deferred work of these requests belongs to them.
    time.sleep(0.1)
    after = [cpu(pid)[0] for pid in pids]
    [run.end() for run in runs]
    return [(end - begin) / requests / 1000 for begin, end in zip(before, after)], results[0]


def shared(rounds, table):
    folder = Path(tempfile.mkdtemp(dir=WORK))
    server = start(["redis-server", "--port", PORTS["redis"], "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes",
                    "--dir", folder], FIRST)
    wait_for(PORTS["redis"])
    for ledger in WORK.glob("alone.db*"):
        ledger.unlink()
    configured("alone", f"sqlite:{WORK}/alone.db")
    for name in ("shared", "second"):
        configured(name, f"redis://127.0.0.1:{PORTS['redis']}/0")
    issue("alone", MANY)
    issue("shared", MANY)
    subjects = {name: gateway(name) for name in ("alone", "shared", "second")}
    pid, found = {name: process.pid for name, process in subjects.items()}, Rounds()
    for _ in range(rounds):
        for some, count in (("", MANY), ("-some", SOME)):
            own, _ = measure(["alone"], [pid["alone"]], 32, f"keys-alone{some}")
            one, _ = measure(["shared"], [pid["shared"], server.pid], 32, f"keys-shared{some}")
            two, _ = measure(["shared", "second"], [pid["shared"], pid["second"], server.pid], 32, f"keys-shared{some}")
            for what, value in (("alone", own[0]), ("shared", one[0]), ("server", one[1]), ("second", two[2]),
                                ("two", sum(two) / sum(one))):
                found.add(what, count, value)
        _, alone = measure(["alone"], [pid["alone"]], 1, "keys-alone-some", REQUESTS // 10)
        _, result = measure(["shared"], [pid["shared"]], 1, "keys-shared-some", REQUESTS // 10)
        found.add("latency", SOME, result["p50_us"] - alone["p50_us"])
    for count in (SOME, MANY):
        of = found.get("server", count)
        table.add("18", f"shared ledger, {count} keys: CPU of the server per request, µs", "<= 5", spread(of),
                  value=median(of), limit=5)
        of = [a / b for a, b in zip(found.get("shared", count), found.get("alone", count))]
        table.add("18", f"shared ledger, {count} keys: CPU of the gateway, ratio to a file", "<= 1.25", spread(of),
                  value=median(of), limit=1.25)
        of = found.get("two", count)
        table.add("18", f"two gateways on one ledger, {count} keys: CPU per request with the server's, ratio to one", "",
                  spread(of), value=median(of))
        of = found.get("second", count)
        table.add("18", f"two gateways on one ledger, {count} keys: CPU of the server per request, µs", "<= 5", spread(of),
                  value=median(of), limit=5)
    of = found.get("latency", SOME)
    table.add("18", "shared ledger: added latency, one connection, µs", "<= 10", spread(of, 1), value=median(of), limit=10)
    command = ["redis-cli", "-p", str(PORTS["redis"])]
    size = subprocess.run([*command, "MEMORY", "USAGE", "tollgate:rows", "SAMPLES", "0"], capture_output=True, text=True)
    rows = rounds * (2 * 2 * (REQUESTS + 32 * 200) + REQUESTS // 10 + 200)
    table.add("18", "shared ledger: memory of the server per row, bytes", "", f"{int(size.stdout) / rows:.0f}")
    for process in [*subjects.values(), server]:
        stop(process)
