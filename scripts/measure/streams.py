"""Maximum number of concurrent streams on one core, each with twenty events a second. The number increases until one
event in a hundred is more than five milliseconds late. Load and upstream share the second core; their own maximum is
measured without a gateway in between."""
from .awake import awake
from .report import Rounds, spread
from .rig import PORTS, PROGRAMS, SECOND, WORK, Run, log, start, stop, wait_for
from .subjects import Subject

EVENTS_A_SECOND, SECONDS, DELAY_US = 20, 2, 5_000
# Pause between the starts of two streams, so that their events do not form one burst; initial number; growth until
# events are late; number of bisections afterwards; maximum number of rounds, each of which takes three minutes.
GAP_US, FIRST_STREAMS, GROWTH, HALVINGS, ROUNDS_MAX = 400, 1500, 1.4, 3, 3
STREAMS_MAX = 9_000


def configure():
    """Writes configurations of all subjects that allow this number of streams and use the paced upstream instead of
    `near`."""
    near, paced = f"127.0.0.1:{PORTS['near']}", f"127.0.0.1:{PORTS['paced']}"
    for name in ("tollgate.toml", "nginx.conf"):
        text = (WORK / name).read_text().replace(near, paced)
        text = text.replace("worker_connections 9000", f"worker_connections {STREAMS_MAX * 3}")
        (WORK / f"wide-{name}").write_text(text)


def delay(port, options, streams):
    """The 99th percentile of the delay, in microseconds."""
    run = Run(port, connections=streams, requests=streams, warm=0, gap_us=GAP_US, stream=True, delays=True, **options)
    found = run.go()
    run.end()
    # If few events arrive while all streams run, the subject has fallen behind, whatever the delays of these events.
    enough = found["delays"] >= streams * EVENTS_A_SECOND * SECONDS / 4
    return found["delay_p99_us"] if enough else float("inf")


def max_streams_of(name, port, options):
    reached, streams = 0, FIRST_STREAMS
    while streams <= STREAMS_MAX and delay(port, options, streams) <= DELAY_US:
        reached, streams = streams, int(streams * GROWTH)
    for _ in range(HALVINGS):
        middle = (reached + streams) // 2
        if middle <= STREAMS_MAX and delay(port, options, middle) <= DELAY_US:
            reached = middle
        else:
            streams = middle
    log(f"{name}: {reached} streams")
    return reached


def max_streams(rounds_wanted, table):
    configure()
    # Long enough for the first streams to run until the last ones have been observed.
    events = int(EVENTS_A_SECOND * (SECONDS + STREAMS_MAX * GAP_US / 1e6))
    upstream = start([PROGRAMS["upstream"], "--listen", f"127.0.0.1:{PORTS['paced']}", "--events", events, "--pace-ms",
                      1000 // EVENTS_A_SECOND, "--stamp", "yes"], SECOND)
    wait_for(PORTS["paced"])
    rounds = Rounds()
    with awake():
        for number in range(min(rounds_wanted, ROUNDS_MAX)):
            for name in ("gateway", "nginx", "direct")[:: 1 if number % 2 else -1]:
                if name == "direct":
                    rounds.add("streams", name, max_streams_of(name, PORTS["paced"], {"model": "bench"}))
                    continue
                subject = Subject(name, {"gateway": "wide-tollgate.toml", "nginx": "wide-nginx.conf"}[name]).start()
                rounds.add("streams", name, max_streams_of(name, subject.port(), subject.load_options("near-stream")))
                subject.stop()
    stop(upstream)
    cells = [spread(rounds.get("streams", name), 0) for name in ("gateway", "nginx")]
    table.add("21", f"concurrent streams on one core, {EVENTS_A_SECOND} events a second each, p99 of an event's delay "
              f"at most {DELAY_US // 1000} ms", "", *cells)
    table.add("21b", "the same without a gateway: the maximum of load and upstream", "",
              spread(rounds.get("streams", "direct"), 0))
