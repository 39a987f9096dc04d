"""Maximum number of concurrent conversations on one core: streams of twenty events a second each, increased until one
event in a hundred arrives more than five milliseconds late. Load and upstream share the second core; their own maximum
is measured without a gateway in between."""
from .awake import awake
from .report import Rounds, spread
from .rig import PORTS, PROGRAMS, SECOND, WORK, Run, say, start, stop, wait_for
from .subjects import Subject

EVENTS_A_SECOND, SECONDS, DELAY_US = 20, 2, 5_000
# Pause between the starts of two streams, so that their events do not form one burst; initial number; growth until there
# are too many; number of bisections afterwards. A round takes three minutes, so there are few.
GAP_US, FIRST_STREAMS, GROWTH, HALVINGS, ROUNDS_MAX = 400, 1500, 1.4, 3, 3
STREAMS_MAX = 9_000


def wide():
    """The configurations of all subjects with space for this number of streams, and with the upstream that streams
    instead of the near one."""
    near, talk = f"127.0.0.1:{PORTS['near']}", f"127.0.0.1:{PORTS['talk']}"
    for name in ("tollgate.toml", "nginx.conf"):
        text = (WORK / name).read_text().replace(near, talk)
        (WORK / f"wide-{name}").write_text(text.replace("worker_connections 9000", f"worker_connections {STREAMS_MAX * 3}"))


def delay(port, way, streams):
    """The 99th percentile of the delay, in microseconds."""
    run = Run(port, connections=streams, requests=streams, warm=0, gap_us=GAP_US, stream=True, delays=True, **way)
    found = run.go()
    run.end()
    # A peer that falls so far behind that few events arrive while all streams run has failed, whatever their delays.
    enough = found["delays"] >= streams * EVENTS_A_SECOND * SECONDS / 4
    return found["delay_p99_us"] if enough else float("inf")


def most(name, port, way):
    held, streams = 0, FIRST_STREAMS
    while streams <= STREAMS_MAX and delay(port, way, streams) <= DELAY_US:
        held, streams = streams, int(streams * GROWTH)
    for _ in range(HALVINGS):
        middle = (held + streams) // 2
        if middle <= STREAMS_MAX and delay(port, way, middle) <= DELAY_US:
            held = middle
        else:
            streams = middle
    say(f"{name}: {held} streams")
    return held


def talk(rounds_wanted, table):
    wide()
    # Long enough to observe the streams that begin last together with the first ones.
    events = int(EVENTS_A_SECOND * (SECONDS + STREAMS_MAX * GAP_US / 1e6))
    upstream = start([PROGRAMS["upstream"], "--listen", f"127.0.0.1:{PORTS['talk']}", "--events", events, "--pace-ms",
                      1000 // EVENTS_A_SECOND, "--stamp", "yes"], SECOND)
    wait_for(PORTS["talk"])
    rounds = Rounds()
    with awake():
        for number in range(min(rounds_wanted, ROUNDS_MAX)):
            for name in ("gateway", "nginx", "direct")[:: 1 if number % 2 else -1]:
                if name == "direct":
                    rounds.add("held", name, most(name, PORTS["talk"], {"model": "bench"}))
                    continue
                subject = Subject(name, {"gateway": "wide-tollgate.toml", "nginx": "wide-nginx.conf"}[name]).start()
                rounds.add("held", name, most(name, subject.port(), subject.way("near-stream")))
                subject.stop()
    stop(upstream)
    cells = [spread(rounds.get("held", name), 0) for name in ("gateway", "nginx")]
    table.add("21", f"streams at once on one core, {EVENTS_A_SECOND} events a second each, p99 of an event's delay at most "
              f"{DELAY_US // 1000} ms", "", *cells)
    table.add("21b", "the same without anything between: what load and upstream can do", "",
              spread(rounds.get("held", "direct"), 0))
