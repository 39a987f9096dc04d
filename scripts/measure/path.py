"""Counts the functions that a request passes in the gateway, by callgrind on the dev profile."""
import re, subprocess
from collections import Counter

from .rig import ROOT, TARGET, WORK, log

# Functions that the driver calls for every event or iteration. They are not counted.
POLLED = re.compile(r"::(unsent|dirty|actions|orders|expire|turned|wants_read|next_deadline|stopping_due)$")
# Functions that run after an event is in the queue of its client.
AFTERWARDS = re.compile(r"::(settle_down|wrote|client_wrote)$")
DRIVER = re.compile(r"engine::gateway::(Gateway(>| as |::)|drive::)")
OWN = re.compile(r"\b(engine|base|policy|wire)::")
# Building blocks without knowledge of requests.
BLOCKS = re.compile(r"\b(base|wire::json|lanes)::")
# Lines that a function of several steps runs at least: its head, two steps and its end.
STEPS = 4
# Code that the compiler makes, or that belongs to the standard library.
MADE = re.compile(r"closure|drop_in_place|as core::|as alloc::")


def calls(*arguments):
    """Calls in one run of benches/steady.rs by caller, line and function called; the file of each function, and the
    number of its lines that were run."""
    out = WORK / "path.callgrind"
    program = TARGET / "debug" / "examples" / "steady"
    subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", str(program), *arguments],
                   check=True, capture_output=True)
    known, files, counted, lines = {}, {}, Counter(), {}
    caller = callee = file = file_called = count = None
    line = 0

    def name(key, text):
        """Names are numbered, and written in full where they occur first."""
        number, _, full = text.partition(" ")
        kind = "file" if key in ("fl", "fi", "fe", "cfi", "cfl") else "function"
        return known.setdefault((kind, number), re.sub(r"(::h[0-9a-f]{16}|'\d+)$", "", full))

    for text in out.read_text().splitlines():
        key, _, value = text.partition("=")
        if key == "fl":
            file = name(key, value)
        elif key in ("fi", "fe"):
            name(key, value)
        elif key == "fn":
            caller = name(key, value)
            files.setdefault(caller, file)
        elif key in ("cfi", "cfl"):
            file_called = name(key, value)
        elif key == "cfn":
            callee = name(key, value)
            files.setdefault(callee, file_called or file)
            file_called = None
        elif key == "calls":
            count = int(value.split()[0])
        elif text and text[0] in "0123456789+-*":
            at = text.split()[0]
            line = line if at == "*" else line + int(at) if at[0] in "+-" else int(at)
            lines.setdefault(caller, set()).add(line)
            if count is not None:
                counted[caller, line, callee] += count
                count = None
    own = lambda function: OWN.search(function) and not MADE.search(function) and not POLLED.search(function)
    sizes = {function: len(own_lines) for function, own_lines in lines.items()}
    return Counter({call: count for call, count in counted.items() if own(call[2])}), files, sizes


def passed(less, more):
    """Functions of gateway/ that `more` calls more often than `less`: the driver's, and all."""
    counts = [Counter(), Counter()]
    for of, (counted, *_) in zip(counts, (less, more)):
        for (_, _, function), count in counted.items():
            of[function] += count
    names = sorted(name for name in counts[1] if counts[1][name] > counts[0][name] and "engine::gateway::" in name)
    return [name for name in names if DRIVER.search(name)], names


def walk(less, more, has_meaning):
    """Functions and files that `more` passes in addition, in the order of their calls, and how often a call leads back
    to a file that was left: none of its functions is under way. Other functions are passed through without a count."""
    (before, *_), (after, files, _) = less, more
    following = {}
    for caller, line, callee in sorted(call for call in after if after[call] > before[call]):
        following.setdefault(caller, []).append(callee)
    called = {callee for callees in following.values() for callee in callees}
    functions, entered, under_way, returns = set(), set(), Counter(), 0
    pending = [(callee, False) for caller in following if caller not in called for callee in following[caller]][::-1]
    while pending:
        function, is_over = pending.pop()
        file = files[function]
        if is_over:
            under_way[file] -= 1
        elif function not in functions:
            functions.add(function)
            if has_meaning(function):
                returns += file in entered and not under_way[file]
                entered.add(file)
                under_way[file] += 1
                pending.append((function, True))
            pending.extend((callee, False) for callee in following.get(function, [])[::-1])
    return sum(map(has_meaning, functions)), len(entered), returns


def path():
    log("building ...")
    subprocess.run(["cargo", "build", "--example", "steady", "--quiet"], cwd=ROOT, check=True)
    WORK.mkdir(parents=True, exist_ok=True)
    # A stream on an open connection up to its first event, one more event, and a whole request.
    runs = {what: calls(*what.split()) for what in ("kept 0", "kept 1", "event 1", "event 2", "whole 2", "whole 3")}
    for title, less, more in (("from the first byte of a request to its first event", "kept 0", "kept 1"),
                              ("for each further event", "event 1", "event 2")):
        driver, names = passed(runs[less], runs[more])
        before = [name for name in driver if not AFTERWARDS.search(name)]
        print(f"path: {title}: {len(before)} functions of the driver, {len(names)} of gateway/ in all")
        for name in before:
            print(f"    {name.split('::')[-1]}")
        print("    afterwards:", *(name.split("::")[-1] for name in driver if AFTERWARDS.search(name)))
    sizes = runs["whole 3"][2]
    has_steps = lambda function: sizes.get(function, 0) >= STEPS and not BLOCKS.search(function)
    for title, counts in (("with accessors and building blocks", lambda _: True), ("of several steps", has_steps)):
        functions, files, returns = walk(runs["whole 2"], runs["whole 3"], counts)
        print(f"path: a whole request: {functions} functions {title} in {files} files; {returns} calls lead back to a "
              "file that was left")
    return 0
