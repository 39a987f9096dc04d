"""Test rig: folders, cores and ports; starts and stops processes; runs the load generator."""
import json, os, re, shutil, signal, socket, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "bench"
# Path of the shipped binary, and of a copy that the builds of other programs do not overwrite.
BUILT = TARGET / "release" / "tollgate"
GATEWAY = WORK / "gateway"
# The same binary with symbols.
NAMED = TARGET / "release" / "tollgate.named"
# Paths of the other programs, by name.
PROGRAMS = {}
CORES = sorted(os.sched_getaffinity(0))
FIRST, SECOND = CORES[0], CORES[-1]
NAMES = ("up", "slow", "near", "paced", "tls", "gateway", "admin", "ungoverned", "ungoverned_admin", "grouped",
         "grouped_admin", "nginx", "nginx_tls", "haproxy", "bare")


def free_ports():
    """Returns a free port for each name. All have five digits, since some figures count bytes, and are below the range
    of client ports. Concurrent runs start their search at different blocks."""
    for block in range(400):
        first = 19000 + (os.getpid() + block) % 400 * 16
        sockets = []
        try:
            for index in range(len(NAMES)):
                sockets.append(socket.socket())
                sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sockets[-1].bind(("127.0.0.1", first + index))
            return {name: first + index for index, name in enumerate(NAMES)}
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    sys.exit("no block of free ports between 19000 and 25400")


PORTS = free_ports()
KEYS = 1000
children = []


def install(binary, to):
    """Copies a binary to a file that is on disk only. The kernel keeps a file that was just written in large blocks, and
    maps all of a block if a page of it is used: up to a megabyte more than after a boot."""
    WORK.mkdir(parents=True, exist_ok=True)
    new = to.with_suffix(".new")
    shutil.copy2(binary, new)
    with open(new, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    # Replaced by renaming, since a running program's file cannot be overwritten.
    new.replace(to)


def log(text):
    print(text, file=sys.stderr, flush=True)


def start(command, core, **kwargs):
    kwargs.setdefault("stdout", subprocess.DEVNULL)
    kwargs.setdefault("stderr", subprocess.DEVNULL)
    process = subprocess.Popen(["taskset", "-c", str(core), *map(str, command)], cwd=WORK, **kwargs)
    children.append(process)
    return process


def stop(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process in children:
        children.remove(process)


def wait_for(port, seconds=60):
    until = time.time() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.time() > until:
                sys.exit(f"nothing listens on port {port}")
            time.sleep(0.002)


def child_of(pid):
    """The worker of a master process, or the process itself if it has none."""
    until = time.time() + 5
    while time.time() < until:
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if workers:
            return int(workers[0])
        time.sleep(0.01)
    return pid


def cpu(pid):
    """CPU time in nanoseconds: of all threads, and of the first thread."""
    threads = {int(task.name): int((task / "schedstat").read_text().split()[0])
               for task in Path(f"/proc/{pid}/task").iterdir()}
    return sum(threads.values()), threads[pid]


def rss(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


class Run:
    """One run of the load generator. The constructor returns after the warm-up; `go` sends the requests."""

    def __init__(self, port, core=None, **options):
        command = [PROGRAMS["load"], "--addr", f"127.0.0.1:{port}"]
        for name, value in {"keys": WORK / "keys", **options}.items():
            for one in value if isinstance(value, list) else [value]:
                command += [f"--{name.replace('_', '-')}"] + ([] if one is True else [one])
        self.process = start(command, SECOND if core is None else core, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"the load generator failed on port {port}")

    def go(self, wait=True):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.result() if wait else None

    def result(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the load generator failed")
        found = json.loads(line)
        if found["failed"]:
            sys.exit(f"{found['failed']} requests failed")
        return found

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        children.remove(self.process)
