"""Comparison with other gateways: LiteLLM (PyPI) and Portkey (npm), if they can be installed. Both run with less work:
a fixed key or none, no limits and no ledger, since these require a database or another service."""
import math, os, shutil, statistics, subprocess, sys

from .counters import measure_cpu
from .report import Rounds
from .rig import FIRST, PORTS, TARGET, WORK, log, start, stop, wait_for
from .subjects import Subject

FOLDER = TARGET / "peers"
KEY = "sk-bench-0123456789abcdef"
LITELLM, PORTKEY = "litellm[proxy]==1.106.2", "@portkey-ai/gateway@1.15.2"
CONNECTIONS = 32
# Requests per round: each gateway needs about one second or a few.
REQUESTS = {"gateway": 20000, "nginx": 20000, "litellm": 150, "portkey": 800}
PORTS.update({"litellm": 18100, "portkey": 18101})


class Peer:
    """Another gateway: installs and starts it."""

    name = pid = process = None

    def port(self):
        return PORTS[self.name]

    def stop(self):
        stop(self.process)


class LiteLlm(Peer):
    name = "litellm"

    def install(self):
        venv = FOLDER / "litellm"
        if not (venv / "done").exists():
            shutil.rmtree(venv, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            subprocess.run([venv / "bin" / "pip", "install", "--quiet", LITELLM], check=True)
            (venv / "done").touch()

    def start(self):
        (WORK / "litellm.yaml").write_text(
            "model_list:\n  - model_name: bench\n    litellm_params: {model: openai/bench, api_key: none, api_base: "
            f"\"http://127.0.0.1:{PORTS['up']}/v1\"}}\ngeneral_settings: {{master_key: {KEY}}}\n")
        (WORK / "litellm.keys").write_text(f"{KEY}\n" * CONNECTIONS)
        self.process = start([FOLDER / "litellm" / "bin" / "litellm", "--config", WORK / "litellm.yaml", "--host",
                              "127.0.0.1", "--port", self.port(), "--telemetry", "False"], FIRST,
                             env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
        wait_for(self.port(), 120)
        self.pid = self.process.pid
        return self

    def load_options(self, kind):
        return {"model": "bench", "keys": WORK / "litellm.keys"}


class Portkey(Peer):
    name = "portkey"

    def install(self):
        folder = FOLDER / "portkey"
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "package.json").write_text('{ "private": true }')
            subprocess.run(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error", PORTKEY],
                           check=True)
            (folder / "done").touch()

    def start(self):
        program = FOLDER / "portkey" / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
        self.process = start(["node", program, f"--port={self.port()}", "--headless"], FIRST)
        wait_for(self.port())
        self.pid = self.process.pid
        return self

    def load_options(self, kind):
        return {"model": "bench", "header": ["x-portkey-provider: openai",
                                             f"x-portkey-custom-host: http://127.0.0.1:{PORTS['up']}/v1"]}


def installed():
    """The peers that can be installed here."""
    for peer in (LiteLlm(), Portkey()):
        try:
            log(f"installing {peer.name} ...")
            peer.install()
            yield peer
        except (subprocess.CalledProcessError, OSError) as error:
            log(f"{peer.name} is skipped: {error}")


def display_name(name):
    """Name of a gateway in tables and plots."""
    return "Tollgate" if name == "gateway" else name


def peers(rounds_wanted):
    """Measures all gateways alternately. Returns the table, and requests per second and memory by name."""
    subjects = [Subject("gateway"), Subject("nginx"), *installed()]
    rounds, memory = Rounds(), {}
    for subject in subjects:
        subject.start()
        # Peers load modules during their first requests.
        measure_cpu(subject, "whole", CONNECTIONS, CONNECTIONS, warm=1)
    for number in range(rounds_wanted):
        log(f"round {number + 1} of {rounds_wanted}")
        for subject in subjects:
            count = REQUESTS[subject.name]
            result = measure_cpu(subject, "whole", CONNECTIONS, count, warm=1)
            rounds.add("rate", subject.name, count / result["seconds"])
            rounds.add("cpu", subject.name, result["cpu_us"])
            rounds.add("p99", subject.name, result["p99_us"] / 1000)
            memory[subject.name] = max(memory.get(subject.name, 0), result["rss"])
    for subject in subjects:
        subject.stop()
    names = [subject.name for subject in subjects]
    lines = ["| on one core, 32 connections | " + " | ".join(map(display_name, names)) + " |",
             "|" + "---|" * (1 + len(names))]
    for head, what, digits in (("requests a second", "rate", 0), ("CPU per request, µs", "cpu", 1), ("p99, ms", "p99", 2)):
        lines.append(f"| {head} | " + " | ".join(f"{statistics.median(rounds.get(what, name)):,.{digits}f}" for name in names)
                     + " |")
    lines.append("| RSS, MB | " + " | ".join(f"{memory[name] / 1e6:.1f}" for name in names) + " |")
    return "\n".join(lines), {name: statistics.median(rounds.get("rate", name)) for name in names}, memory


def plot(rates, memory, path):
    """Draws the two figures with the largest differences as bars on logarithmic scales."""
    width, bar, label = 640, 22, 110

    def panel(top, title, values, unit, digits):
        most = math.log10(max(values.values()) * 1.5)
        least = min(0.0, math.log10(min(values.values())))
        parts = [f'<text x="0" y="{top}" font-weight="bold">{title}</text>']
        for index, (name, value) in enumerate(values.items()):
            y = top + 12 + index * (bar + 6)
            length = (math.log10(value) - least) / (most - least) * (width - label - 120)
            colour = "#2a6f97" if name == "gateway" else "#a9b4bd"
            parts.append(f'<text x="{label - 8}" y="{y + 16}" text-anchor="end">{display_name(name)}</text>'
                         f'<rect x="{label}" y="{y}" width="{length:.0f}" height="{bar}" fill="{colour}"/>'
                         f'<text x="{label + length + 6:.0f}" y="{y + 16}">{value:,.{digits}f}{unit}</text>')
        return parts, top + 12 + len(values) * (bar + 6) + 30

    first, below = panel(16, "requests a second on one core (logarithmic)", rates, "", 0)
    second, end = panel(below, "memory under that load (logarithmic)",
                        {name: memory[name] / 1e6 for name in rates}, " MB", 1)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {end}" font-family="sans-serif" '
                    f'font-size="13" fill="#222"><rect width="{width}" height="{end}" fill="#fff"/>\n'
                    + "\n".join(first + second) + "\n</svg>\n")
