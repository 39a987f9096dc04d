"""The gate: what is deterministic, against `benches/gate.json`."""
import json, platform, re, subprocess
from pathlib import Path

from .counters import Instructions, count_syscalls
from .growth import held
from .report import put
from .rig import ROOT, WORK, Run, say
from .subjects import Subject

GATE = ROOT / "benches" / "gate.json"
COST = ROOT / "src" / "docs" / "cost.md"
RISE_MAX = 1.01
# How many events of a stream share a turn of the loop is up to the system's scheduling.
RISE_MAX_OF = {"instructions_per_event": 1.03, "instructions_per_translated_event": 1.03,
               "instructions_per_responses_event": 1.03, "instructions_per_event_of_200_streams": 1.5}
# Instructions of the loop by which two counts of the same program differ, mostly by how often a second begins.
NOISE = 30
# A figure above its bound is counted again so often, by a gateway that has just begun, and the least holds: what else a
# machine does only ever adds.
RECOUNTS_MAX = 2
# Rooms that are named where a figure has risen.
ROOMS_SHOWN = 5
# A room has a line on the page that takes so many instructions of any figure.
SHOWN_MIN = 100


def versions():
    """What instructions are counted by: libc and ring choose theirs by what the processor can do."""
    run = lambda *command: subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()[0]
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    can = [flag for flag in ("avx2", "erms", "fsrm") if flags and flag in flags[1].split()]
    return {"rustc": run("rustc", "--version"), "valgrind": run("valgrind", "--version"), "arch": platform.machine(),
            "libc": " ".join(platform.libc_ver()), "processor": " ".join(can)}


def room(function):
    """The room of a function: a folder or file of ours, or `libraries`."""
    found = re.search(r"(?<!::)\b(?:cold|engine|tollgate)::(\w+)(?:::(\w+))?|(lanes)::(\w+)", function)
    if not found:
        return "libraries"
    return "::".join(part for part in found.groups() if part and part[0].islower())


def rooms(functions):
    """Instructions by room, without what is next to nothing."""
    counts = {}
    for function, count in functions.items():
        counts[room(function)] = counts.get(room(function), 0) + count
    return {name: round(count) for name, count in sorted(counts.items(), key=lambda item: -item[1]) if count >= 1}


def spend(subject):
    """Uses up the allowance of the key whose plan has one token."""
    Run(subject.port(), connections=1, requests=1, warm=1, keys=WORK / "keys-spent", expect=429,
        **subject.way("whole")).end()


# What is counted for each figure, in this order: how, and how many.
COUNTED = {
    "request": ("whole", 1000, {}),
    "request_among_eight": ("eight", 1000, {}),
    "event": ("stream", 4, {"stream": True}),
    "translated_request": ("crossed", 300, {}),
    "translated_event": ("crossed", 4, {"stream": True}),
    "responses_request": ("answers", 1000, {}),
    "responses_event": ("answers", 4, {"stream": True}),
    "embedding": ("vectors", 1000, {"body_bytes": 1024}),
    "refused_401": ("whole", 1000, {"keys": WORK / "keys-unknown", "expect": 401}),
    "refused_429": ("whole", 1000, {"keys": WORK / "keys-spent", "expect": 429}),
    "quota": ("whole", 1000, {"path": "/v1/quota", "get": True}),
    # Last, since the alarms of so many connections fall due some seconds later, in whatever is counted then.
    "event_of_200_streams": ("stream", 200, {"connections": 200, "stream": True}),
}


def count_of(names):
    """Instructions of a new gateway's loop by room for each figure, and those of its helper threads for the first."""
    counted = Instructions("gateway")
    spend(counted.subject)
    found, helpers = {}, []
    for name, (kind, length, more) in COUNTED.items():
        if name in names:
            functions, helping = counted.count(kind, length, **more)
            found[name] = rooms(functions)
            helpers.append(helping)
    counted.end()
    return found, helpers[0]


def gate(record):
    subject = Subject("gateway").start()
    calls = count_syscalls(subject, "whole", 1, 3000)
    subject.stop()
    by_room, helpers = count_of(COUNTED)
    found = {f"instructions_per_{name}": sum(counts.values()) for name, counts in by_room.items()}
    found["system_calls_per_request"] = round(sum(calls.values()), 2)
    say(f"gate: {found}, helper threads {helpers:.0f} instructions per request")
    if record:
        GATE.write_text(json.dumps({"versions": versions(), "figures": found, "rooms": by_room}, indent=1) + "\n")
        put(COST, "<!-- scripts/gate --record -->", table(by_room))
        return 0
    known = json.loads(GATE.read_text())
    same = known["versions"] == versions()
    worse = risen(known["figures"], found, same)
    for _ in range(RECOUNTS_MAX):
        again = {name for figure in worse for name in (figure.removeprefix("instructions_per_"),) if name in COUNTED}
        if not again:
            break
        say(f"gate: counting again: {', '.join(sorted(again))}")
        for name, counts in count_of(again | {"request"})[0].items():
            if sum(counts.values()) < found[f"instructions_per_{name}"]:
                found[f"instructions_per_{name}"], by_room[name] = sum(counts.values()), counts
        worse = risen(known["figures"], found, same)
    for name, figure in known["figures"].items():
        verdict = "risen" if name in worse else "not above" if same else "not compared"
        print(f"gate: {name}: {found[name]} against {figure} recorded: {verdict}")
        if name in worse:
            tell_rooms(name.removeprefix("instructions_per_"), known["rooms"], by_room)
    for what, name in (("an embedding request of 1 kB", "embedding"), ("a request among eight equal targets",
                                                                      "request_among_eight")):
        more = found[f"instructions_per_{name}"] - found["instructions_per_request"]
        print(f"gate: {what} takes {more:+} of {found['instructions_per_request']} of a chat request")
    if not same:
        here = versions()
        other = "; ".join(f"{name} {was}, here {here[name]}" for name, was in known["versions"].items()
                          if here[name] != was)
        print(f"gate: NOTHING WAS COMPARED. The figures of benches/gate.json hold for {other}.")
        print("gate: `scripts/bench gate --record` on the commit before yours, then on yours, tells the difference.")
    grown, curves = held()
    failed = len(worse) + len(grown)
    passed = curves + (len(found) if same else 0) - failed
    print(f"{passed} passed, {failed} failed, {0 if same else len(found)} skipped")
    return 1 if failed else 0


def risen(known, found, same):
    """The figures above what they may be: an embedding may take no more than a chat request, whatever was recorded."""
    worse = {name for name, figure in known.items() if same and found[name] > bound(name, figure)}
    if found["instructions_per_embedding"] > found["instructions_per_request"]:
        worse.add("instructions_per_embedding")
    return worse


def table(by_room):
    """The figures of the page by room, the costliest of a whole request first."""
    names = list(by_room)
    every = {one: max(counts.get(one, 0) for counts in by_room.values()) for counts in by_room.values() for one in counts}
    shown = [one for one, most in every.items() if most >= SHOWN_MIN]
    shown.sort(key=lambda one: [-by_room[name].get(one, 0) for name in names])
    row = lambda title, values: f"| {title} | " + " | ".join(str(value) for value in values) + " |"
    rest = [sum(count for one, count in by_room[name].items() if one not in shown) for name in names]
    return "\n".join([row("module", [name.replace("_", " ") for name in names]), "|---" * (len(names) + 1) + "|",
                      *(row(f"`{one}`", [by_room[name].get(one, 0) for name in names]) for one in shown),
                      row("all others", rest), row("**all**", [sum(by_room[name].values()) for name in names])])


def bound(name, recorded):
    """What a figure may be at most."""
    return recorded * RISE_MAX_OF.get(name, RISE_MAX) + (NOISE if name.startswith("instructions") else 0)


def tell_rooms(name, known, found):
    """Where a figure has grown."""
    was, now = known.get(name, {}), found.get(name, {})
    grown = {one: now.get(one, 0) - was.get(one, 0) for one in was.keys() | now.keys()}
    for one, more in sorted(grown.items(), key=lambda item: -item[1])[:ROOMS_SHOWN]:
        if more > 0:
            print(f"gate:     {one}: {more} more, {now.get(one, 0)} now")
