"""The gate: compares the deterministic figures with `benches/gate.json`."""
import json, platform, re, subprocess
from pathlib import Path

from .counters import Instructions, count_syscalls
from .growth import check_growth
from .report import replace_block
from .rig import ROOT, WORK, Run, log
from .subjects import Subject

GATE = ROOT / "benches" / "gate.json"
COST = ROOT / "src" / "docs" / "cost.md"
RISE_MAX = 1.01
# The scheduler decides how many events of a stream share an iteration of the event loop.
RISE_MAX_OF = {"instructions_per_event": 1.03, "instructions_per_translated_event": 1.03,
               "instructions_per_responses_event": 1.03, "instructions_per_event_of_200_streams": 1.5}
# Instructions by which two counts of the same program differ, mostly because of work done once a second.
NOISE = 30
# Maximum number of recounts of a figure above its bound, each with a new gateway. The lowest count is used, since other
# work on the machine can only add instructions.
RECOUNTS_MAX = 2
# Number of modules printed for a figure that rose.
MODULES_SHOWN = 5
# Modules below this number of instructions in every figure share one line of the table.
SHOWN_MIN = 100


def versions():
    """Versions that affect the counts, and processor features by which libc and ring choose their code."""
    run = lambda *command: subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()[0]
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    features = [flag for flag in ("avx2", "erms", "fsrm") if flags and flag in flags[1].split()]
    return {"rustc": run("rustc", "--version"), "valgrind": run("valgrind", "--version"), "arch": platform.machine(),
            "libc": " ".join(platform.libc_ver()), "processor": " ".join(features)}


def module_of(function):
    """The module of a function: a folder or file of this repository, or `libraries`."""
    found = re.search(r"(?<!::)\b(?:control|engine|tollgate)::(\w+)(?:::(\w+))?|(?<!::)\b(base|lanes|policy|wire)::(\w+)", function)
    if not found:
        return "libraries"
    return "::".join(part for part in found.groups() if part and part[0].islower())


def count_by_module(functions):
    """Instructions by module, without modules below one instruction."""
    counts = {}
    for function, count in functions.items():
        counts[module_of(function)] = counts.get(module_of(function), 0) + count
    return {name: round(count) for name, count in sorted(counts.items(), key=lambda item: -item[1]) if count >= 1}


def use_up_quota(subject):
    """Uses up the quota of the key whose plan has one token."""
    Run(subject.port(), connections=1, requests=1, warm=1, keys=WORK / "keys-spent", expect=429,
        **subject.load_options("whole")).end()


# For each figure, in order: the kind of request, the number of requests, and options of the load generator.
FIGURES = {
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
    # Last, since the timers of these connections expire some seconds later, during the next count.
    "event_of_200_streams": ("stream", 200, {"connections": 200, "stream": True}),
}


def count_figures(names):
    """Starts a gateway; returns the instructions of its event loop by module for each figure, and the instructions of
    its helper threads for the first figure."""
    counted = Instructions("gateway")
    use_up_quota(counted.subject)
    found, helpers = {}, []
    for name, (kind, length, more) in FIGURES.items():
        if name in names:
            functions, helping = counted.count(kind, length, **more)
            found[name] = count_by_module(functions)
            helpers.append(helping)
    counted.end()
    return found, helpers[0]


def gate(record):
    subject = Subject("gateway").start()
    calls = count_syscalls(subject, "whole", 1, 3000)
    subject.stop()
    by_module, helpers = count_figures(FIGURES)
    found = {f"instructions_per_{name}": sum(counts.values()) for name, counts in by_module.items()}
    found["system_calls_per_request"] = round(sum(calls.values()), 2)
    log(f"gate: {found}, helper threads {helpers:.0f} instructions per request")
    if record:
        GATE.write_text(json.dumps({"versions": versions(), "figures": found, "modules": by_module}, indent=1) + "\n")
        replace_block(COST, "<!-- scripts/gate --record -->", table(by_module))
        return 0
    known = json.loads(GATE.read_text())
    same = known["versions"] == versions()
    worse = risen(known["figures"], found, same)
    for _ in range(RECOUNTS_MAX):
        again = {name for figure in worse for name in (figure.removeprefix("instructions_per_"),) if name in FIGURES}
        if not again:
            break
        log(f"gate: counting again: {', '.join(sorted(again))}")
        for name, counts in count_figures(again | {"request"})[0].items():
            if sum(counts.values()) < found[f"instructions_per_{name}"]:
                found[f"instructions_per_{name}"], by_module[name] = sum(counts.values()), counts
        worse = risen(known["figures"], found, same)
    for name, figure in known["figures"].items():
        result = "risen" if name in worse else "not above" if same else "not compared"
        print(f"gate: {name}: {found[name]} against {figure} recorded: {result}")
        if name in worse:
            print_risen_modules(name.removeprefix("instructions_per_"), known["modules"], by_module)
    for what, name in (("an embedding request of 1 kB", "embedding"), ("a request among eight equal targets",
                                                                      "request_among_eight")):
        more = found[f"instructions_per_{name}"] - found["instructions_per_request"]
        print(f"gate: {what} takes {more:+} of {found['instructions_per_request']} of a chat request")
    if not same:
        here = versions()
        other = "; ".join(f"{name} {was}, not {here[name]}" for name, was in known["versions"].items()
                          if here[name] != was)
        print(f"gate: NOTHING WAS COMPARED. The figures of benches/gate.json were recorded with {other}.")
        print("gate: to compare, run `scripts/gate --record` on the commit before yours, then on yours.")
    grown, curves = check_growth()
    failed = len(worse) + len(grown)
    passed = curves + (len(found) if same else 0) - failed
    print(f"{passed} passed, {failed} failed, {0 if same else len(found)} skipped")
    return 1 if failed else 0


def risen(known, found, same):
    """Names of the figures above their bounds. Independent of the record, an embedding request must not take more
    instructions than a chat request."""
    worse = {name for name, figure in known.items() if same and found[name] > bound(name, figure)}
    if found["instructions_per_embedding"] > found["instructions_per_request"]:
        worse.add("instructions_per_embedding")
    return worse


def table(by_module):
    """The table of figures by module for the manual, the modules with most instructions of a chat request first."""
    names = list(by_module)
    figures = by_module.values()
    every = {one: max(counts.get(one, 0) for counts in figures) for counts in figures for one in counts}
    shown = [one for one, most in every.items() if most >= SHOWN_MIN]
    shown.sort(key=lambda one: [-by_module[name].get(one, 0) for name in names])
    row = lambda title, values: f"| {title} | " + " | ".join(str(value) for value in values) + " |"
    rest = [sum(count for one, count in by_module[name].items() if one not in shown) for name in names]
    return "\n".join([row("module", [name.replace("_", " ") for name in names]), "|---" * (len(names) + 1) + "|",
                      *(row(f"`{one}`", [by_module[name].get(one, 0) for name in names]) for one in shown),
                      row("all others", rest), row("**all**", [sum(by_module[name].values()) for name in names])])


def bound(name, recorded):
    """Maximum of a figure."""
    return recorded * RISE_MAX_OF.get(name, RISE_MAX) + (NOISE if name.startswith("instructions") else 0)


def print_risen_modules(name, known, found):
    """Prints the modules with most additional instructions in a figure."""
    was, now = known.get(name, {}), found.get(name, {})
    grown = {one: now.get(one, 0) - was.get(one, 0) for one in was.keys() | now.keys()}
    for one, more in sorted(grown.items(), key=lambda item: -item[1])[:MODULES_SHOWN]:
        if more > 0:
            print(f"gate:     {one}: {more} more, {now.get(one, 0)} now")
