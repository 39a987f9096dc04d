"""Figures for a small host: memory, bytes written to the ledger's files and syncs by rate, wake-ups, start, sizes. Uses
a gateway and a simulated provider, both of the shipped binary (or TOLLGATE_BIN), and one client."""
import http.client, os, re, resource, shutil, socket, statistics, subprocess, time
from pathlib import Path

from .rig import BUILT, TARGET, WORK, children, install, log, rss, stop

FLASH = 'commit_every = "10s"\nsync_every = "1m"\npage_size = 1024\n'
# Requests per second, and duration in seconds.
RATES = [(1, 60), (10, 20), (500, 10)]
IDLE = 20
# Connections of a burst, each with one request, and seconds after their end within which its memory is returned.
BURST, RETURN = 5000, 10
FOLDER = WORK / "small"
BODY = '{"model":"m","messages":[{"role":"user","content":"hello\\n#sim tokens=5"}]}'


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Host:
    """A gateway with a simulated provider and a key."""

    def __init__(self, binary, store="", server="", wrapper=()):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        self.port, self.admin, up = free_port(), free_port(), free_port()
        (FOLDER / "tollgate.toml").write_text(
            f'[server]\nlisten = "127.0.0.1:{self.port}"\nadmin_listen = "127.0.0.1:{self.admin}"\n{server}\n'
            f'[store]\nurl = "sqlite:tollgate.db"\n{store}\n'
            f'[[providers]]\nname = "p"\nshape = "chat"\nbase_url = "http://127.0.0.1:{up}/v1"\n'
            f'[[models]]\nid = "m"\ncontext = "1M"\ntargets = [{{ provider = "p" }}]\n')
        self.binary = binary
        self.key = subprocess.run([binary, "keys", "issue", "--name", "small"], cwd=FOLDER, capture_output=True,
                                  text=True, check=True).stdout.strip()
        self.provider = self.spawn([binary, "provider", "--listen", f"127.0.0.1:{up}"], "provider")
        began = time.monotonic()
        self.gateway = self.spawn([*wrapper, binary, "serve"], "gateway")
        while self.status("/readyz") != 200:
            if self.gateway.poll() is not None:
                raise SystemExit((FOLDER / "gateway.log").read_text())
            time.sleep(0.0005)
        self.start_ms = (time.monotonic() - began) * 1000
        self.client = None

    def spawn(self, command, name):
        with open(FOLDER / f"{name}.log", "w") as log:
            process = subprocess.Popen([str(word) for word in command], cwd=FOLDER, stdout=log, stderr=log)
        children.append(process)
        return process

    def status(self, path):
        try:
            client = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
            client.request("GET", path)
            return client.getresponse().status
        except OSError:
            return 0

    def send_request(self):
        """Sends one request on the open connection; returns the status."""
        if self.client is None:
            self.client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        self.client.request("POST", "/v1/chat/completions", BODY, headers)
        answer = self.client.getresponse()
        answer.read()
        return answer.status

    def load(self, rate, seconds):
        """Sends requests at a rate; returns their number."""
        began, count = time.monotonic(), rate * seconds
        for number in range(count):
            time.sleep(max(0, began + number / rate - time.monotonic()))
            if self.send_request() != 200:
                raise SystemExit("a request failed")
        time.sleep(max(0, began + seconds - time.monotonic()))
        return count

    def burst(self):
        """Opens all connections of a burst, sends a request on each, reads the answers, and closes them."""
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {self.key}\r\n"
                f"connection: close\r\ncontent-length: {len(BODY)}\r\n\r\n")
        connections = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(BURST)]
        for connection in connections:
            connection.sendall((head + BODY).encode())
        for connection in connections:
            with connection.makefile("rb") as answer:
                if not answer.read().startswith(b"HTTP/1.1 200 "):
                    raise SystemExit("a request of the burst failed")
            connection.close()

    def wakeups(self):
        """Voluntary context switches of all threads since the start."""
        found = 0
        for task in Path(f"/proc/{self.gateway.pid}/task").iterdir():
            found += int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M)[1])
        return found

    def end(self):
        stop(self.gateway)
        stop(self.provider)
        result = subprocess.run([self.binary, "ledger", "verify"], cwd=FOLDER, capture_output=True, text=True)
        if result.returncode:
            raise SystemExit(f"ledger verify: {result.stdout}{result.stderr}")


def written(binary, store, rate, seconds):
    """Bytes and syncs of the ledger's files per request."""
    host = Host(binary, store, wrapper=("strace", "-f", "-y", "-o", FOLDER / "trace", "-e", "trace=pwrite64,fsync,fdatasync"))
    trace = FOLDER / "trace"
    host.send_request()
    time.sleep(0.3)
    before = trace.stat().st_size
    count = host.load(rate, seconds)
    with open(trace) as file:
        file.seek(before)
        lines = [line for line in file if "tollgate.db" in line]
    # The tracer ends with the gateway; a signal to the tracer would not reach the gateway.
    gateway = int(Path(f"/proc/{host.gateway.pid}/task/{host.gateway.pid}/children").read_text().split()[0])
    os.kill(gateway, 15)
    host.gateway.wait(30)
    host.end()
    sizes = [int(found[1]) for line in lines if (found := re.search(r"pwrite64\(.* = (\d+)$", line))]
    syncs = sum("sync(" in line for line in lines)
    return sum(sizes) / count, syncs / count


def small():
    binary = WORK / "installed"
    install(Path(os.environ.get("TOLLGATE_BIN", BUILT)).resolve(), binary)
    rows = []
    starts, fresh, full = [], [], []
    for _ in range(7):
        host = Host(binary)
        starts.append(host.start_ms)
        time.sleep(0.3)
        fresh.append(rss(host.gateway.pid) / 1e6)
        idle = [socket.create_connection(("127.0.0.1", host.port)) for _ in range(256)]
        time.sleep(0.3)
        full.append(rss(host.gateway.pid) / 1e6)
        for connection in idle:
            connection.close()
        host.end()
    rows.append(("start to the first 200 of /readyz, ms", f"{statistics.median(starts):.1f}"))
    rows.append(("resident when ready, MB", f"{statistics.median(fresh):.2f}"))
    rows.append(("resident with 256 connections, MB", f"{statistics.median(full):.2f}"))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    host = Host(binary, server="max_connections_per_ip = 10000")
    host.burst()
    end = rss(host.gateway.pid) / 1e6
    time.sleep(RETURN)
    rows.append((f"resident at the end of a burst of {BURST:,} connections, MB", f"{end:.2f}"))
    rows.append((f"resident {RETURN} s later, MB", f"{rss(host.gateway.pid) / 1e6:.2f}"))
    host.end()
    for name, store in (("default", ""), ("flash", FLASH)):
        log(f"{name}: wake-ups")
        host = Host(binary, store)
        host.send_request()
        # Threads poll for some seconds after work, the default settings sync its records after 30 s, idle connections
        # are closed after 75 s, and minutes are counted until one has no request.
        time.sleep(125)
        before = host.wakeups()
        time.sleep(IDLE)
        rows.append((f"wake-ups a second, idle, {name}", f"{(host.wakeups() - before) / IDLE:.2f}"))
        host.client = None
        before = host.wakeups()
        host.load(1, IDLE)
        rows.append((f"wake-ups a second, 1 request a second, {name}", f"{(host.wakeups() - before) / IDLE:.2f}"))
        host.end()
        for rate, seconds in RATES:
            log(f"{name}: {rate} requests a second for {seconds} s")
            bytes_, syncs = written(binary, store, rate, seconds)
            rows.append((f"bytes written a request, {rate} a second, {name}", f"{bytes_:,.0f}"))
            rows.append((f"syncs a request, {rate} a second, {name}", f"{syncs:.4f}"))
    for path in sorted([BUILT, *TARGET.glob("cross/*/release/tollgate")]):
        if path.exists():
            rows.append((f"bytes of {path.relative_to(TARGET)}", f"{path.stat().st_size:,}"))
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {value:>12}" for name, value in rows))
    return 0
