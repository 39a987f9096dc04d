"""Where the CPU time of a request goes: user and kernel, event loop and helper threads, beside the bare relay."""
import os, statistics, time
from pathlib import Path

from .rig import ROOT, Run, log
from .subjects import Subject

COST = ROOT / "src" / "docs" / "cost.md"
MARK = "<!-- scripts/bench threads -->"
TICKS = os.sysconf("SC_CLK_TCK")
# Enough for the kernel to tell user from kernel time, since it samples a thread a hundred times a second.
REQUESTS = 100_000


def times(pid):
    """User and kernel time in microseconds: of the first thread, and of all others."""
    sums = {True: [0, 0], False: [0, 0]}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        for place, field in enumerate((11, 12)):
            sums[int(task.name) == pid][place] += int(fields[field]) * 1e6 / TICKS
    return sums[True] + sums[False]


def measured(subject, connections):
    """Microseconds per request: user and kernel of the first thread, then of all others."""
    run = Run(subject.port(), connections=connections, requests=REQUESTS, **subject.load_options("whole"))
    before = times(subject.pid)
    run.go()
    # Helper threads still work for these requests.
    time.sleep(0.1)
    after = times(subject.pid)
    run.end()
    return [(late - early) / REQUESTS for early, late in zip(before, after)]


def threads(rounds):
    """Returns the table."""
    subjects = [Subject("gateway").start(), Subject("bare").start()]
    found = {(subject.name, connections): [] for subject in subjects for connections in (32, 256)}
    for number in range(rounds):
        log(f"round {number + 1} of {rounds}")
        for connections in (32, 256):
            for subject in subjects:
                found[subject.name, connections].append(measured(subject, connections))
    for subject in subjects:
        subject.stop()
    lines = ["| CPU per request, µs | event loop, user | event loop, kernel | helper threads, user | helper threads, kernel "
             "| all |", "|---|---|---|---|---|---|"]
    for (name, connections), results in found.items():
        parts = [statistics.median(column) for column in zip(*results)]
        title = "Tollgate" if name == "gateway" else "bare relay"
        lines.append(f"| {title}, {connections} connections | " + " | ".join(f"{part:.1f}" for part in parts)
                     + f" | {statistics.median(map(sum, results)):.1f} |")
    return "\n".join(lines)
