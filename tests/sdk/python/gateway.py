"""A simulated provider and a gateway in front of it, as separate processes, for one run of the suites.

TOLLGATE_BIN is the path of the binary. All files are in a folder that is removed at the end.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

CONFIG = pathlib.Path(__file__).parent.parent / "config.toml"
PATIENCE = 60.0


def free_port():
    """A free port, below the range of outgoing connections."""
    start = 10_000 + os.getpid() % 700 * 30
    for offset in range(20_000):
        port = 10_000 + (start - 10_000 + offset) % 21_000
        if port in free_port.given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        free_port.given.add(port)
        return port
    raise RuntimeError("no free port")


free_port.given = set()


def fetch(url, headers=None):
    """Returns status and body of a GET; status 0 means no response."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0, b""


def wait_until(what, test):
    """Waits until `test` is true."""
    end = time.monotonic() + PATIENCE
    while not test():
        if time.monotonic() > end:
            raise RuntimeError(f"waited in vain for {what}")
        time.sleep(0.02)


class Gateway:
    """A gateway and a provider. If `provider` is an address, only the gateway is started."""

    def __init__(self, config=CONFIG, provider=None):
        self.binary = os.environ["TOLLGATE_BIN"]
        self.folder = tempfile.TemporaryDirectory(prefix="tollgate-sdk-")
        self.provider = provider or f"127.0.0.1:{free_port()}"
        self.gateway = f"127.0.0.1:{free_port()}"
        self.admin = f"127.0.0.1:{free_port()}"
        text = config.read_text()
        for name in ["provider", "gateway", "admin"]:
            text = text.replace("{" + name + "}", getattr(self, name))
        (pathlib.Path(self.folder.name) / "tollgate.toml").write_text(text)
        self.processes = []
        if provider is None:
            self._start(["provider", "--listen", self.provider], f"http://{self.provider}/healthz")
        self._start(["serve"], f"http://{self.admin}/readyz")
        self.process = self.processes[-1]
        # Memory when ready, before any request.
        self.idle_kb = self.status("VmRSS")
        self.key = self.issue()
        # Memory after a key was accepted and its quota returned.
        self.used_kb = self.status("VmRSS")

    def _start(self, args, probe):
        with open(pathlib.Path(self.folder.name) / f"{args[0]}.log", "wb") as log:
            process = subprocess.Popen([self.binary, *args], cwd=self.folder.name, stdout=log, stderr=log)
        self.processes.append(process)

        def ready():
            if process.poll() is not None:
                text = (pathlib.Path(self.folder.name) / f"{args[0]}.log").read_text()
                raise RuntimeError(f"{args} ended with {process.returncode}: {text}")
            return fetch(probe)[0] == 200

        wait_until(f"{args[0]} to be ready", ready)

    def run(self, *args):
        """Standard output of a command of the binary."""
        command = [self.binary, *args]
        return subprocess.run(command, cwd=self.folder.name, check=True, capture_output=True, text=True).stdout

    def issue(self, *args):
        """A new key that the gateway already knows."""
        key = self.run("keys", "issue", "--name", "sdk", *args).strip()
        header = {"authorization": f"Bearer {key}"}
        wait_until("the key to be known", lambda: fetch(f"http://{self.gateway}/v1/quota", header)[0] != 401)
        return key

    def revoke(self, key):
        """Revokes a key and waits until the gateway refuses it."""
        self.run("keys", "revoke", key.split("live_")[1][:12])
        header = {"authorization": f"Bearer {key}"}
        wait_until("the key to be revoked", lambda: fetch(f"http://{self.gateway}/v1/quota", header)[0] == 401)

    def last(self):
        """The last request that the provider received."""
        return json.loads(fetch(f"http://{self.provider}/last")[1])

    def stats(self):
        """The provider's own count."""
        return json.loads(fetch(f"http://{self.provider}/stats")[1])

    def status(self, name):
        """A number of kB from the gateway's process status."""
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(name + ":")))

    def stop(self):
        """Ends the processes and checks how they ended."""
        codes = []
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                codes.append(process.wait(timeout=PATIENCE))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        self.folder.cleanup()
        return codes
