"""Measures the rows of the table, in groups."""
import json, statistics, subprocess

from .counters import count_connections, count_syscalls, idle_memory, instructions, measure_cpu, stream_memory
from .report import Rounds, report, spread
from .rig import FIRST, GATEWAY, PORTS, PROGRAMS, ROOT, TARGET, WORK, Run, log, rss
from .subjects import Subject


def compare(rounds_wanted, wanted, table):
    """Rows 1, 2, 3, 6, 8, 9 and 11: all noisy metrics, with alternating subjects."""
    rounds = Rounds()
    scenes = []
    if wanted & {1, 8}:
        scenes.append(("cpu32", "whole", dict(connections=32, requests=20000)))
    if wanted & {2, 8, 11}:
        scenes.append(("cpu256", "whole", dict(connections=256, requests=20000)))
    if wanted & {3}:
        scenes.append(("tls", "tls", dict(connections=32, requests=15000)))
    if wanted & {6}:
        scenes.append(("sse", "stream", dict(connections=200, requests=200, stream=True, warm=1)))
    subjects = [Subject(name).start() for name in ("gateway", "nginx", "haproxy")]
    bare = Subject("bare").start()
    fresh = {subject.name: rss(subject.pid) for subject in subjects}
    if 11 in wanted:
        # First, since later loads add code and free memory that is not given back.
        for subject in subjects:
            rounds.add("first256-rss", subject.name, measure_cpu(subject, "whole", 256, 20000)["rss"])
    for number in range(rounds_wanted):
        log(f"round {number + 1} of {rounds_wanted}")
        for what, kind, options in scenes:
            for subject in subjects:
                if what == "tls" and subject.name == "haproxy":
                    continue
                result = measure_cpu(subject, kind, **options)
                rounds.add(what, subject.name, result["cpu_us"])
                rounds.add(what + "-loop", subject.name, result["loop_us"])
                rounds.add(what + "-p99", subject.name, result["p99_us"])
                rounds.add(what + "-rss", subject.name, result["rss"])
            if what in ("cpu32", "cpu256"):
                rounds.add(what, bare.name, measure_cpu(bare, kind, **options)["cpu_us"])
        if wanted & {8, 9}:
            one_core(rounds, subjects, wanted)
    for subject in (*subjects, bare):
        subject.stop()
    report(rounds, fresh, wanted, table)
    return rounds


def one_core(rounds, subjects, wanted):
    """Latency of one connection if load, upstream and subject share the first core."""
    subjects_by_name = [("direct", PORTS["near"], {})] + [(s.name, s.port(), s) for s in subjects]
    for name, port, subject in subjects_by_name:
        options = subject.load_options("near") if subject else {}
        if wanted & {8}:
            run = Run(port, core=FIRST, connections=1, requests=5000, **options)
            result = run.go()
            run.end()
            rounds.add("one-p50", name, result["p50_us"])
            rounds.add("one-p99", name, result["p99_us"])
        if wanted & {9}:
            options = subject.load_options("near-stream") if subject else {}
            run = Run(port, core=FIRST, connections=1, requests=150, stream=True, **options)
            result = run.go()
            run.end()
            rounds.add("first", name, result["first_p50_us"])


def exact(wanted, table):
    """Rows 4 and 5, and the system calls and instructions of row 6."""
    names = ("gateway", "nginx", "haproxy")
    total = lambda calls: sum(calls.values())
    if wanted & {4, 6}:
        subjects = {name: Subject(name).start() for name in names}
        if 4 in wanted:
            for kind, connections, limit in (("whole", 1, 6.05), ("whole", 32, 4.15), ("tls", 1, 6.05), ("tls", 32, 4.15)):
                counted = {name: total(count_syscalls(subjects[name], kind, connections, 3000 if connections == 1 else 20000))
                           for name in names if not (kind == "tls" and name == "haproxy")}
                plain = "plain" if kind == "whole" else "TLS upstream"
                table.add("4", f"system calls per request, {connections} connections, {plain}", f"<= {limit}",
                          *(f"{counted[name]:.2f}" if name in counted else "-" for name in names),
                          value=round(counted["gateway"], 2), limit=limit)
        if 6 in wanted:
            counted = {name: total(count_syscalls(subjects[name], "stream", 200, 200, stream=True, warm=1))
                       for name in names}
            table.add("6", "system calls per stream event", "<= 2.35", *(f"{counted[name]:.2f}" for name in names),
                      value=counted["gateway"], limit=2.35)
        for subject in subjects.values():
            subject.stop()
    if 5 in wanted:
        found = {name: instructions(name, "whole", (300, 1300)) for name in names}
        table.add("5", "user instructions per request, event loop", "<= 25500",
                  *(f"{found[name][0]:.0f}" for name in names), value=found["gateway"][0], limit=25500)
        table.add("5b", "the same, helper threads (ledger, log)", "", f"{found['gateway'][1]:.0f}")
    if 6 in wanted:
        found = {name: instructions(name, "stream", (20, 60), stream=True, connections=20) for name in names}
        table.add("6", "user instructions per stream event", "<= 4500", *(f"{found[name][0]:.0f}" for name in names),
                  value=found["gateway"][0], limit=4500)


def crossed(rounds_wanted, table):
    subjects = [Subject(name).start() for name in ("gateway", "nginx")]
    probe = subprocess.run([PROGRAMS["load"], "--addr", f"127.0.0.1:{PORTS['gateway']}", "--keys", WORK / "keys", "--model",
                            "crossed", "--requests", "0", "--warm", "1"], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True)
    if "HTTP/1.1" in probe.stderr:
        table.add("7", "translated", "<= 1.0 / <= 1.2", "not supported")
    else:
        rounds = Rounds()
        for _ in range(rounds_wanted):
            for subject in subjects:
                for what, kind, options in (
                        ("event", "stream", dict(connections=200, requests=200, stream=True, warm=1)),
                        ("whole", "whole", dict(connections=32, requests=10000))):
                    kind = "crossed" if subject.name == "gateway" else kind
                    rounds.add(what, subject.name, measure_cpu(subject, kind, **options)["cpu_us"])
        for what, limit in (("event", 1.0), ("whole", 1.2)):
            own = rounds.ratios(what, "gateway")
            name = {"event": "event", "whole": "request"}[what]
            table.add("7", f"translated, CPU per {name}, ratio to nginx's plain relay", f"<= {limit}", spread(own), "1",
                      value=statistics.median(own), limit=limit)
    for subject in subjects:
        subject.stop()


def governed(rounds_wanted, table):
    """Row 13: compares the gateway with itself with an unlimited plan and without a ledger."""
    subjects = [Subject(name).start() for name in ("gateway", "ungoverned")]
    rounds = Rounds()
    for number in range(rounds_wanted):
        # The order alternates.
        for subject in subjects if number % 2 else subjects[::-1]:
            found = measure_cpu(subject, "whole", connections=32, requests=20000)
            rounds.add("cpu", subject.name, found["cpu_us"])
            rounds.add("loop", subject.name, found["loop_us"])
    for subject in subjects:
        subject.stop()
    ratios = lambda scene: rounds.ratios(scene, "gateway", "ungoverned")
    middle = lambda name: statistics.median(rounds.get("cpu", name))
    table.add("13", "CPU per request, with limits and ledger against without", "<= 1.10",
              f"{spread(ratios('cpu'))}; {middle('gateway'):.1f} µs against {middle('ungoverned'):.1f}",
              value=statistics.median(ratios("cpu")), limit=1.10)
    table.add("13b", "the same, only the event loop", "", spread(ratios("loop")))


def variants(rounds_wanted, table):
    """Rows 18 and 19: compares the gateway with itself with eight targets, with its key in a tree of groups, and with
    the Responses format on both sides."""
    plain, grouped = [Subject(name).start() for name in ("gateway", "grouped")]
    scenes = {"plain": (plain, "whole", {}), "eight": (plain, "eight", {}),
              "tree": (grouped, "whole", {"keys": WORK / "keys-grouped"})}
    rounds = Rounds()
    for number in range(rounds_wanted):
        # The order rotates.
        names = list(scenes)
        for name in names[number % 3:] + names[:number % 3]:
            subject, kind, more = scenes[name]
            rounds.add("cpu", name, measure_cpu(subject, kind, connections=32, requests=20000, **more)["cpu_us"])
        events = dict(connections=200, requests=200, stream=True, warm=1)
        for kind in ("stream", "answers") if number % 2 else ("answers", "stream"):
            rounds.add("event", kind, measure_cpu(plain, kind, **events)["cpu_us"])
    plain.stop()
    grouped.stop()
    middle = lambda name: statistics.median(rounds.get("cpu", name))
    for name, what in (("eight", "eight equal targets and affinity against one target"),
                       ("tree", "four groups with budgets and limits above the key against none")):
        ratios = rounds.ratios("cpu", name, "plain")
        table.add("18", f"CPU per request, {what}", "<= 1.03",
                  f"{spread(ratios)}; {middle(name):.1f} µs against {middle('plain'):.1f}",
                  value=statistics.median(ratios), limit=1.03)
    ratios = rounds.ratios("event", "answers", "stream")
    table.add("19", "CPU per event, responses to responses against chat to chat", "<= 1.05", spread(ratios),
              value=statistics.median(ratios), limit=1.05)


def memory(table):
    cells = {}
    for name in ("gateway", "nginx", "haproxy"):
        subject = Subject(name).start()
        idle = idle_memory(subject, 4000)
        active = stream_memory(subject, 1000)
        subject.stop()
        cells[name] = (idle, active)
    table.add("10", "RSS per idle keep-alive connection, bytes", "<= 256", *(f"{c[0]:.0f}" for c in cells.values()),
              value=cells["gateway"][0], limit=256)
    table.add("10", "RSS per active stream, both connections, bytes", "<= 1024",
              *(f"{c[1]:.0f}" for c in cells.values()), value=cells["gateway"][1], limit=1024)


def inbound_tls(rounds_wanted, wanted, table):
    """Rows 16 and 17: compares the gateway with itself without TLS for clients, with full handshakes."""
    subjects_by_name = {"plain": ("tollgate.toml", {}), "TLS": ("secured.toml", {"tls": WORK / "ca.pem"})}
    rounds, found = Rounds(), {name: {} for name in subjects_by_name}
    for number in range(rounds_wanted):
        for name, (config, more) in subjects_by_name.items():
            subject = Subject("gateway", config).start()
            if 16 in wanted:
                rounds.add("cpu", name, measure_cpu(subject, "whole", 32, 20000, **more)["cpu_us"])
            if number == 0:
                found[name] = counted_once(subject, wanted, more)
            subject.stop()
    both = lambda what, digits: ", ".join(f"{found[name][what]:.{digits}f} {name}" for name in subjects_by_name)
    if 16 in wanted:
        table.add("16", "inbound TLS: CPU per request, 32 connections, ratio to plain", "",
                  spread(rounds.ratios("cpu", "TLS", "plain")))
        for connections in (1, 32):
            table.add("16", f"inbound TLS: system calls per request, {connections} connections", "",
                      both(f"calls{connections}", 2))
    if 17 in wanted:
        table.add("17", "inbound TLS: system calls per connection with one request", "", both("calls", 1))
        table.add("17", "inbound TLS: bytes on the wire per connection with one request", "", both("bytes", 0))
        table.add("17", "inbound TLS: RSS per idle keep-alive connection, bytes", "", both("idle", 0))


def counted_once(subject, wanted, more):
    """Figures of one subject that are the same in every round."""
    found = {}
    if 16 in wanted:
        for connections, requests in ((1, 3000), (32, 20000)):
            calls = count_syscalls(subject, "whole", connections, requests, **more)
            found[f"calls{connections}"] = sum(calls.values())
    if 17 in wanted:
        calls, found["bytes"] = count_connections(subject, 200, **more)
        found["calls"] = sum(calls.values())
        found["idle"] = idle_memory(subject, 4000, **more)
    return found


def sizes(table):
    """Row 12: sizes of the shipped binary, of a plain build without `redis`, and of the static one if scripts/release
    was run."""
    log("building without `redis` ...")
    slim = WORK / "slim"
    subprocess.run(["cargo", "build", "--release", "--bin", "tollgate", "--no-default-features", "--quiet",
                    "--target-dir", slim], cwd=ROOT, check=True)
    released = next((TARGET / "release-files").glob("*/bin"), WORK / "nowhere")
    for what, path, limit in (("as shipped, with `redis`", GATEWAY, 5.5e6),
                              ("of a plain build without `redis`", slim / "release" / "tollgate", 4.8e6),
                              ("static, with `redis`", released / "tollgate-static", 7.5e6)):
        if path.exists():
            size = path.stat().st_size
            table.add("12", f"stripped binary {what}, MB", f"<= {limit / 1e6}", f"{size / 1e6:.2f}", value=size,
                      limit=limit)


def large_body(table):
    """Row 14: criterion's measurement of the request scan for a 400 kB agent body."""
    bench = ["cargo", "bench", "--features", "bench", "--bench", "parse", "--", "agent body 400 kB", "--noplot"]
    subprocess.run(["taskset", "-c", str(FIRST), *bench], cwd=ROOT, capture_output=True, check=True)
    for estimate in (TARGET / "criterion").glob("**/agent body 400 kB/new/estimates.json"):
        nanos = json.loads(estimate.read_text())["median"]["point_estimate"]
        size = json.loads((estimate.parent / "benchmark.json").read_text())["throughput"]["Bytes"]
        per_mb = nanos / size
        table.add("14", "400 kB agent body: scan and checks, ms per MB", "<= 1.2", f"{per_mb:.2f}", value=per_mb, limit=1.2)
