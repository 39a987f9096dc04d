"""Counts the functions that a streamed request passes in the gateway, by callgrind on the dev profile."""
import re, subprocess
from collections import Counter

from .rig import ROOT, TARGET, WORK, log

# Functions that the driver calls for every event or iteration. They are not counted.
POLLED = re.compile(r"::(unsent|dirty|actions|orders|expire|turned|wants_read|next_deadline|stopping_due)$")
# Functions that run after an event is in the queue of its client.
AFTERWARDS = re.compile(r"::(settle_down|wrote|client_wrote)$")
DRIVER = re.compile(r"engine::gateway::Gateway(>| as |::)")


def calls(*arguments):
    """Calls of each function of `gateway/` in one run of benches/steady.rs."""
    out = WORK / "path.callgrind"
    program = TARGET / "debug" / "examples" / "steady"
    subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", str(program), *arguments],
                   check=True, capture_output=True)
    names, counted, callee = {}, Counter(), None
    for line in out.read_text().splitlines():
        if line.startswith("cfn="):
            number, _, name = line[4:].partition(" ")
            if name:
                names[number] = name
            callee = names[number]
        elif line.startswith("fn="):
            number, _, name = line[3:].partition(" ")
            if name:
                names[number] = name
        elif line.startswith("calls="):
            counted[re.sub(r"(::h[0-9a-f]{16}|'\d+)$", "", callee)] += int(line[6:].split()[0])
    return Counter({name: count for name, count in counted.items()
                    if "engine::gateway::" in name and "closure" not in name and "drop_in_place" not in name
                    and "as core::" not in name and not POLLED.search(name)})


def passed(less, more):
    """Functions that `more` calls more often than `less`: the driver's, and all."""
    names = sorted(name for name in more if more[name] > less[name])
    return [name for name in names if DRIVER.search(name)], names


def path():
    log("building ...")
    subprocess.run(["cargo", "build", "--example", "steady", "--quiet"], cwd=ROOT, check=True)
    WORK.mkdir(parents=True, exist_ok=True)
    # A stream on an open connection up to its first event, and one more event.
    runs = {what: calls(*what.split()) for what in ("kept 0", "kept 1", "event 1", "event 2")}
    for title, less, more in (("from the first byte of a request to its first event", "kept 0", "kept 1"),
                              ("for each further event", "event 1", "event 2")):
        driver, names = passed(runs[less], runs[more])
        before = [name for name in driver if not AFTERWARDS.search(name)]
        print(f"path: {title}: {len(before)} functions of the driver, {len(names)} of gateway/ in all")
        for name in before:
            print(f"    {name.split('::')[-1]}")
        print("    afterwards:", *(name.split("::")[-1] for name in driver if AFTERWARDS.search(name)))
    return 0
