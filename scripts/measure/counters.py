"""Measurements of one subject: time on a core, system calls, instructions, memory, a cold start."""
import re, signal, socket, subprocess, time

from .rig import FIRST, GATEWAY, NAMED, PORTS, WORK, Run, children, cpu, rss, start, stop
from .setup import fresh_ledger
from .subjects import Subject


def measure_cpu(subject, kind, connections, requests, **more):
    run = Run(subject.port(), connections=connections, requests=requests, **subject.load_options(kind), **more)
    time.sleep(0.05)
    before = cpu(subject.pid)
    result = run.go()
    # Helper threads still work for these requests, and that time counts.
    time.sleep(0.05)
    after = cpu(subject.pid)
    run.end()
    units = result["events"] if more.get("stream") else requests
    result["cpu_us"] = (after[0] - before[0]) / units / 1000
    result["loop_us"] = (after[1] - before[1]) / units / 1000
    result["rss"] = rss(subject.pid)
    return result


def count_syscalls(subject, kind, connections, requests, **more):
    """System calls of the first thread per request (per event of a stream), by name."""
    run = Run(subject.port(), connections=connections, requests=requests, **subject.load_options(kind), **more)
    result, calls = traced(subject, run.go)
    run.end()
    units = result["events"] if more.get("stream") else requests
    return {name: count / units for name, count in calls.items()}


def count_connections(subject, connections, **more):
    """System calls by name, and bytes on the wire, of a connection with one request, from connect to close."""
    def work():
        run = Run(subject.port(), connections=connections, requests=0, warm=1, **subject.load_options("whole"), **more)
        result = run.go()
        run.end()
        time.sleep(0.2)
        return result

    result, calls = traced(subject, work)
    return {name: count / connections for name, count in calls.items()}, result["wire_bytes"] / connections


def traced(subject, work):
    """Runs `work`; returns its result, and the system calls of the subject's first thread during it, by name."""
    out = WORK / "strace"
    out.unlink(missing_ok=True)
    tracer = subprocess.Popen(["strace", "-c", "-o", out, "-p", str(subject.pid)], stderr=subprocess.PIPE, text=True)
    children.append(tracer)
    tracer.stderr.readline()  # "attached"
    result = work()
    tracer.send_signal(signal.SIGINT)
    tracer.wait()
    children.remove(tracer)
    calls = {}
    for line in out.read_text().splitlines():
        fields = line.split()
        if len(fields) >= 5 and re.fullmatch(r"[\d.]+", fields[0]) and fields[-1] != "total":
            calls[fields[-1]] = int(fields[3])
    return result, calls


class Instructions:
    """A gateway under callgrind. Counts are read before and after each run, so one start serves all runs."""

    def __init__(self, name, config=None, port=None):
        for old in WORK.glob("callgrind.out*"):
            old.unlink()
        self.dumps = 0
        self.subject = Subject(name, config, port).start(["valgrind", "--tool=callgrind", "--separate-threads=yes",
                                            f"--callgrind-out-file={WORK}/callgrind.out"], NAMED)

    def dump(self):
        """Instructions since the last dump by function, for each thread."""
        self.dumps += 1
        subprocess.run(["callgrind_control", "--dump", str(self.subject.pid)], check=True, capture_output=True)
        files, until = [], time.time() + 20
        while not files:
            files = sorted(WORK.glob(f"callgrind.out.{self.dumps}-*"))
            if time.time() > until:
                raise RuntimeError("callgrind did not write a dump")
            time.sleep(0.05)
        return {int(file.name.rsplit("-", 1)[1]): functions(file) for file in files}

    def count(self, kind, length, connections=1, **more):
        """User instructions per request (per event of a stream): of the first thread by function, and of all others."""
        run = Run(self.subject.port(), connections=connections, requests=length, warm=20,
                  **{**self.subject.load_options(kind), **more})
        results = []
        loop, others = self.around(lambda: results.append(run.go()))
        run.end()
        units = results[0]["events"] if more.get("stream") else length
        return {name: count / units for name, count in loop.items()}, others / units

    def around(self, work):
        """User instructions while `work` runs: of the first thread by function, and of all others."""
        self.dump()
        work()
        found = self.dump()
        return found[1], sum(sum(thread.values()) for number, thread in found.items() if number != 1)

    def end(self):
        self.subject.stop()


def functions(file):
    """Instructions of one dump by function, without those of its callees."""
    names, counts, current, called = {}, {}, None, False
    for line in file.read_text().splitlines():
        if line.startswith("fn="):
            number, _, name = line[3:].partition(" ")
            names.setdefault(number, name or number)
            current = names[number]
        elif line.startswith(("cfn=", "cob=", "cfi=", "cfl=", "fl=", "fi=", "fe=", "ob=")):
            if line.startswith("cfn="):
                number, _, name = line[4:].partition(" ")
                names.setdefault(number, name or number)
        elif line.startswith("calls="):
            # The next line has the instructions of the callee.
            called = True
        elif re.match(r"(\d|\+|-|\*)\S* \d", line):
            if not called and current is not None:
                counts[current] = counts.get(current, 0) + int(line.split()[1])
            called = False
    return counts


def instructions(name, kind, lengths, stream=False, connections=1):
    """User instructions per request (per event): the difference of two run lengths under callgrind, by thread."""
    totals, units = [], []
    for length in lengths:
        for old in WORK.glob("callgrind.out*"):
            old.unlink()
        subject = Subject(name).start(["valgrind", "--tool=callgrind", "--separate-threads=yes",
                                       f"--callgrind-out-file={WORK}/callgrind.out"])
        more = {"stream": True} if stream else {}
        options = subject.load_options(kind) | more
        run = Run(subject.port(), connections=connections, requests=length, warm=20, **options)
        result = run.go()
        run.end()
        subject.stop()
        units.append(result["events"] if stream else length)
        threads = {}
        for out in sorted(WORK.glob("callgrind.out-*")):
            found = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.M)
            threads[int(out.name.rsplit("-", 1)[1])] = int(found[1]) if found else 0
        totals.append(threads)
    per = {thread: (totals[1][thread] - totals[0].get(thread, 0)) / (units[1] - units[0]) for thread in totals[1]}
    return per[1], sum(count for thread, count in per.items() if thread != 1)


def cold_start():
    fresh_ledger()
    began = time.perf_counter()
    process = start([GATEWAY, "serve", "--config", WORK / "tollgate.toml"], FIRST)
    while True:
        try:
            with socket.create_connection(("127.0.0.1", PORTS["gateway"]), 1) as link:
                link.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
                if link.recv(64).startswith(b"HTTP/1.1 200"):
                    break
        except OSError:
            pass
        time.sleep(0.0005)
    took = (time.perf_counter() - began) * 1000
    stop(process)
    return took


def warm_up(subject, **more):
    """Fills the ledger's page cache, the pools and the state of the 64 keys that follow, so that their memory is not
    charged to connections. Returns the file with these keys."""
    few = WORK / "keys-few"
    few.write_text("".join((WORK / "keys").read_text().splitlines(True)[:64]))
    warm = Run(subject.port(), connections=64, requests=20000, keys=few, **subject.load_options("whole"), **more)
    warm.go()
    warm.end()
    return few


def idle_memory(subject, connections, **more):
    """Bytes per connection that is idle after one request."""
    few = warm_up(subject, **more)
    before = rss(subject.pid)
    run = Run(subject.port(), connections=connections, requests=connections, warm=0, at_once=8, hold=True,
              keys=few, **subject.load_options("whole"), **more)
    run.go()
    time.sleep(0.2)
    grown = rss(subject.pid) - before
    run.end()
    time.sleep(0.2)
    return grown / connections


def stream_memory(subject, streams):
    """Bytes per active stream, including its two connections."""
    few = warm_up(subject)
    before = rss(subject.pid)
    run = Run(subject.port(), connections=streams, requests=streams, warm=0, gap_us=3000, stream=True, keys=few,
              **subject.load_options("slow"))
    run.go(wait=False)
    time.sleep(streams * 0.003 + 3)
    grown = rss(subject.pid) - before
    run.result()
    run.end()
    return grown / streams
