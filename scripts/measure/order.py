"""The order of functions in the release binary."""
import bisect, re, subprocess, time, urllib.request
from pathlib import Path

from .rig import GATEWAY, NAMED, PORTS, ROOT, WORK, Run, log, wait_for
from .subjects import Subject

ORDER = ROOT / "scripts" / "order.txt"
# More than the bytes of any function.
FUNCTION_BYTES_MAX = 1 << 20
ORDER_HEAD = """# Sections of the functions that run at a start and for ordinary requests. scripts/release places them
# next to each other. Written by `scripts/bench order`.
"""
# Functions that run only outside valgrind: it hides the vDSO, and its threads seldom wait for each other.
UNSEEN = {
    "_RNvMs3_NtNtCs*_4core3ffi5c_strNtB5_4CStr8from_ptr*",
    "_RNvXsf_NtNtCs*_4core3ffi5c_strNtB5_4CStrNtNtB9_3cmp9PartialEq2eq*",
    "_ZN6rustix7backend4vdso4Vdso9check_sym17h*",
    "_ZN6rustix7backend4vdso8elf_hash17h*",
    "_RNvNtNtCs*_3std6thread7current12init_current*",
    "_RNvMs_NtNtCs*_3std6thread6threadNtB4_6Thread12park_timeout*",
    "_RNvMs0_NtNtNtCs*_3std4sync4mpmc5wakerNtB5_9SyncWaker10unregister*",
    "_ZN3std3sys12thread_local6native4lazy20Storage$LT$T$C$D$GT$16get_or_init_slow17h*",
}
# Functions that run for plain requests outside valgrind, but not in every run under it.
SELDOM = {
    "_ZN4core3ptr102drop_in_place$LT$core..option..Option$LT$engine..gateway..client..connection..ClientConnection"
    "$GT$$GT$17h*",
    "_ZN6engine2io7reactor16Reactor$LT$C$GT$7enqueue17h*",
    "cellSizePtr",
    "defragmentPage",
    "pageFindSlot",
}
# Added to the configuration of the runs: a key of a provider, and a group.
MORE_CONFIG = """
[[providers]]
name = "openai"
shape = "chat"
base_url = "https://api.openai.com/v1"
api_key = { env = "HOME" }
[[groups]]
name = "research"
budget = 500.0
"""


def functions(binary):
    """Address and name of every function, by address."""
    lines = subprocess.run(["nm", binary], capture_output=True, text=True, check=True).stdout.splitlines()
    found = (line.split(maxsplit=2) for line in lines)
    return sorted((int(fields[0], 16), fields[2]) for fields in found if len(fields) == 3 and fields[1] in "tTwW")


def executed(profile, binary, base):
    """Addresses of the executed instructions of one binary, from a callgrind profile with `--dump-instr=yes`. Valgrind
    knows only the binary's section `.text`. Code of other sections belongs to no file in the profile, and its addresses
    are those of the process, in which the binary begins at `base`."""
    names, offset, at, found = {}, None, 0, set()
    offsets = {str(binary): 0, "???": base}
    for line in profile.read_text().splitlines():
        if named := re.match(r"c?ob=\((\d+)\)(?: (.*))?", line):
            names.setdefault(named[1], named[2])
            offset = offsets.get(names[named[1]]) if line.startswith("ob") else offset
        elif step := re.match(r"(?:0x([0-9a-f]+)|([+-]\d+)|\*) ", line):
            at = int(step[1], 16) if step[1] else at + int(step[2] or 0)
            if offset is not None:
                found.add(at - offset)
    return found


def base_of(pid, binary):
    """The address at which a process has mapped a binary."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return min(int(line.split("-")[0], 16) for line in lines if line.endswith(f" {binary}"))


def section(name):
    """The section of a function, without the hashes and numbers that change from build to build."""
    name = re.sub(r"\.llvm\.\d+$", "", name)
    if name.startswith("_ZN"):
        return re.sub(r"17h[0-9a-f]{16}E(\.\d+)?$", "17h*", name)
    if name.startswith("_R"):
        return re.sub(r"Cs[0-9A-Za-z]+_(?=\d)", "Cs*_", re.sub(r"\.\d+$", "", name)) + "*"
    return name


def first_requests(config):
    """Sends the first requests after a start: readiness, and the quota of a new key."""
    get = lambda port, path, more={}: urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{PORTS[port]}{path}", headers=more)).read()
    # The admin listener is bound after the other one.
    wait_for(PORTS["admin"])
    get("admin", "/readyz")
    key = subprocess.run([GATEWAY, "keys", "issue", "--config", WORK / config, "--name", "first", "--plan", "team"],
                         check=True, capture_output=True, text=True).stdout.strip()
    get("gateway", "/v1/quota", {"authorization": f"Bearer {key}"})


def order():
    """Writes the functions that run at a start, and those that run for complete and streamed responses, plain, over TLS
    and translated."""
    binary = NAMED
    known = functions(binary)
    addresses = sorted({address for address, _ in known})
    # Behind the last function; other code without a file is the kernel's or valgrind's.
    end = addresses[-1] + FUNCTION_BYTES_MAX
    # The linker merges identical functions into the section of one of them, which is unknown here.
    named = {}
    for address, name in known:
        named.setdefault(address, set()).add(section(name))
    runs = []
    (WORK / "order.toml").write_text((WORK / "tollgate.toml").read_text() + MORE_CONFIG)
    # The first start creates its ledger. Enough complete responses for the ledger to write its sums and to checkpoint
    # its log. They have a start of their own, so that their functions are apart from those for other requests. The last
    # start has that ledger.
    others = (("tls", 200, {}), ("crossed", 200, {}), ("stream", 8, {"stream": True}), ("crossed", 8, {"stream": True}))
    starts = (("none", ()), ("fresh", others), ("fresh", (("whole", 10000, {}),)), ("kept", ()))
    for ledger, scenes in starts:
        profile = WORK / "order.out"
        subject = Subject("gateway", "order.toml")
        valgrind = ["valgrind", "--tool=callgrind", "--dump-instr=yes", f"--callgrind-out-file={profile}"]
        subject.start(valgrind, binary, ledger)
        base = base_of(subject.pid, binary)
        if ledger == "none":
            first_requests(subject.config)
        for kind, count, more in scenes:
            options = subject.load_options(kind) | more
            run = Run(subject.port(), connections=min(count, 64), requests=count, warm=1, **options)
            run.go()
            run.end()
        # Helper threads are slow under valgrind.
        time.sleep(5)
        subject.stop()
        steps = [step for step in executed(profile, binary, base) if addresses[0] <= step < end]
        at = {addresses[bisect.bisect_right(addresses, step) - 1] for step in steps}
        runs.append(set().union(*(named[address] for address in at)))
    created, others, whole, start = runs
    start |= UNSEEN
    whole |= SELDOM
    served = whole | others
    groups = (created - start - served, start - served, start & others - whole, start & whole, whole - start,
              others - whole - start)
    ORDER.write_text(ORDER_HEAD + "".join(f"{name}\n" for group in groups for name in sorted(group)))
    log(f"order: {len(start)} functions of a start, {len(whole - start)} more of plain requests, {len(groups[-1])} of "
        "others")
    return 0
