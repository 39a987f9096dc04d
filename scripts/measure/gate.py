"""The gate: what is deterministic, against `benches/gate.json`."""
import json, platform, re, subprocess
from pathlib import Path

from .counters import count_syscalls, instructions
from .rig import ROOT, say
from .subjects import Subject

GATE = ROOT / "benches" / "gate.json"
RISE_MAX = 1.03


def versions():
    """What instructions are counted by: libc and ring choose theirs by what the processor can do."""
    run = lambda *command: subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()[0]
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    can = [flag for flag in ("avx2", "erms", "fsrm") if flags and flag in flags[1].split()]
    return {"rustc": run("rustc", "--version"), "valgrind": run("valgrind", "--version"), "arch": platform.machine(),
            "libc": " ".join(platform.libc_ver()), "processor": " ".join(can)}


def gate(record):
    subject = Subject("gateway").start()
    calls = count_syscalls(subject, "whole", 1, 3000)
    subject.stop()
    request, helpers = instructions("gateway", "whole", (300, 1300))
    event, _ = instructions("gateway", "stream", (2, 6), stream=True)
    found = {"instructions_per_request": round(request), "instructions_per_event": round(event),
             "system_calls_per_request": round(sum(calls.values()), 2)}
    say(f"gate: {found}, helper threads {helpers:.0f} instructions per request")
    if record:
        GATE.write_text(json.dumps({"versions": versions(), "figures": found}, indent=2) + "\n")
        return 0
    known = json.loads(GATE.read_text())
    same = known["versions"] == versions()
    worse = {name for name, figure in known["figures"].items() if same and found[name] > figure * RISE_MAX}
    for name, figure in known["figures"].items():
        verdict = "risen by more than 3 %" if name in worse else "within 3 %" if same else "not compared"
        print(f"gate: {name}: {found[name]} against {figure} recorded: {verdict}")
    if not same:
        here = versions()
        other = "; ".join(f"{name} {was}, here {here[name]}" for name, was in known["versions"].items()
                          if here[name] != was)
        print(f"gate: NOTHING WAS COMPARED. The figures of benches/gate.json hold for {other}.")
        print("gate: `scripts/bench gate --record` on the commit before yours, then on yours, tells the difference.")
    passed = len(found) - len(worse) if same else 0
    print(f"{passed} passed, {len(worse)} failed, {0 if same else len(found)} skipped")
    return 1 if worse else 0
