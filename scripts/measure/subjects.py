"""The compared subjects, and the upstreams behind them."""
from .rig import FIRST, GATEWAY, PORTS, PROGRAMS, SECOND, WORK, child_of, start, stop, wait_for
from .setup import fresh_ledger, ledgers


CONFIGS = {"gateway": "tollgate.toml", "grouped": "grouped.toml", "ungoverned": "ungoverned.toml", "nginx": "nginx.conf"}


class Subject:
    """A process between load generator and upstream."""

    def __init__(self, name, config=None, port=None):
        self.name, self.config, self.process, self.pid = name, config or CONFIGS.get(name), None, None
        self.own_port = port

    def start(self, wrap=(), gateway=None, ledger="fresh"):
        """Starts the subject. The gateway's ledger is `fresh`, with all keys, or the one `kept` from the last start, or
        there is `none`."""
        if self.name == "gateway":
            if ledger != "kept":
                fresh_ledger()
            if ledger == "none":
                for path in ledgers(WORK, "ledger"):
                    path.unlink()
            command = [gateway or GATEWAY, "serve", "--config", WORK / self.config]
            # The log is written to a file.
            self.process = start([*wrap, *command], FIRST, stderr=open(WORK / "log", "wb"))
        elif self.name == "grouped":
            fresh_ledger("grouped")
            command = [gateway or GATEWAY, "serve", "--config", WORK / self.config]
            self.process = start([*wrap, *command], FIRST, stderr=open(WORK / "log-grouped", "wb"))
        elif self.name == "ungoverned":
            command = [PROGRAMS["ungoverned"], "--config", WORK / self.config]
            self.process = start([*wrap, *command], FIRST, stderr=open(WORK / "log-ungoverned", "wb"))
        elif self.name == "nginx":
            # Under a tool nginx runs without a master process, so that the tool observes the worker.
            single = ["-g", "master_process off;"] if wrap else []
            self.process = start([*wrap, "nginx", "-c", WORK / self.config, "-e", WORK / "nginx" / "e", *single], FIRST)
        elif self.name == "bare":
            addresses = ["--listen", f"127.0.0.1:{PORTS['bare']}", "--upstream", f"127.0.0.1:{PORTS['up']}"]
            self.process = start([*wrap, PROGRAMS["bare"], *addresses], FIRST)
        else:
            self.process = start([*wrap, "haproxy", "-db", "-f", WORK / "haproxy.cfg"], FIRST)
        wait_for(self.port())
        self.pid = self.process.pid
        if self.name == "nginx" and not wrap:
            self.pid = child_of(self.pid)
        return self

    def port(self):
        return self.own_port or PORTS[self.name]

    def load_options(self, kind):
        """Options of the load generator to send a request through this subject to an upstream of this kind."""
        if self.name in ("gateway", "grouped", "ungoverned"):
            model = {"whole": "bench", "stream": "bench", "slow": "slow", "near": "near", "near-stream": "near",
                     "tls": "secure", "crossed": "crossed", "eight": "eight", "answers": "answers", "vectors": "vectors"}[kind]
            path = {"answers": "/v1/responses", "vectors": "/v1/embeddings"}.get(kind)
            return {"model": model} | ({"path": path} if path else {})
        prefix = "" if kind in ("whole", "crossed") else f"/{kind}"
        return {"path": f"{prefix}/v1/chat/completions", "model": "bench"}

    def stop(self):
        stop(self.process)


def upstream():
    start([PROGRAMS["upstream"], "--listen", f"127.0.0.1:{PORTS['up']}"], SECOND)
    wait_for(PORTS["up"])


def upstreams():
    upstream()
    start([PROGRAMS["upstream"], "--listen", f"127.0.0.1:{PORTS['slow']}", "--events", 12, "--pace-ms", 1000], SECOND)
    start([PROGRAMS["upstream"], "--listen", f"127.0.0.1:{PORTS['near']}", "--events", 3, "--pace-ms", 2], FIRST)
    start(["nginx", "-c", WORK / "tls.conf", "-e", WORK / "nginx" / "e"], SECOND)
    for name in ("slow", "near", "tls"):
        wait_for(PORTS[name])
