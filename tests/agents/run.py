"""Real, unmodified clients at the gateway, with a scripted provider of each format: every combination of formats.

    AGENTS=codex,claude run.py     only these clients
    AGENTS_TIMES=3 run.py          the newest Codex this number of times at each provider, instead of 20

Each client runs in a separate folder with its block of the guide, and can reach only 127.0.0.1. The script checks the
files that the client wrote and its last message. At the end it prints the tables of src/docs/agents.md; the last line
is `N passed, N failed, N skipped`. """

import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "sdk" / "python"))

import gateway  # noqa: E402
import play  # noqa: E402

UPSTREAMS = ["chat", "messages", "responses"]
TIMES = int(os.environ.get("AGENTS_TIMES", "20"))
PATIENCE = 180
# Maximum time until a client ends after an error for a spent quota.
SPENT_SECONDS = 5
MARKS = ("<!-- scripts/test agents -->\n", "\n<!-- end -->")
# The sentence between the two tables of the guide.
AFTER_OVERFLOW = "Agents whose provider refused a prompt as too long compacted the conversation and went on:"
TOOLS = pathlib.Path(os.environ["AGENTS_TOOLS"])


def block(title, language):
    """The code block of the guide for a client."""
    text = (ROOT / "src" / "docs" / "agents.md").read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    return text.split(f"\n```{language}\n")[1].split("\n```\n")[0]


@dataclasses.dataclass
class Client:
    """A client in the table, and how to run it."""

    name: str
    shape: str
    start: object
    times: int = 1
    # The package with its version.
    version: str = ""
    # Number of turns whose reasoning must be sent back with the last request, in every format.
    keeps: int = 0
    # True if the client compacts after an overflow; False for libraries, which leave that to their user.
    compacts: bool = False
    # Exit code after an overflow, even if the client did the whole task.
    code: int = 0
    # Arguments that continue the conversation, if the client compacts at the beginning of the next turn.
    resumes: tuple = ()


@dataclasses.dataclass
class Task:
    """One run: a folder, a model, a prompt."""

    folder: pathlib.Path
    home: pathlib.Path
    address: str
    model: str
    key: str

    @property
    def prompt(self):
        return f"Write a program that prints 42, in the folder {self.folder}, and run it."

    def filled(self, title, language):
        """The guide's block with this run's address and model."""
        text = block(title, language).replace("127.0.0.1:8080", self.address).replace("/home/you", str(self.home))
        return re.sub(r"\bsmall\b", self.model, text)

    def run(self, command, **more):
        """Exit code and output of a command that can reach only 127.0.0.1."""
        nowhere = "http://127.0.0.1:9"
        environment = {
            "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(self.home), "TOLLGATE_KEY": self.key,
            "http_proxy": nowhere, "https_proxy": nowhere, "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere,
            "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1", **more,
        }
        done = subprocess.run(command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, timeout=PATIENCE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout


def program(name):
    return str(TOOLS / "node" / "node_modules" / ".bin" / name)


def codex(package):
    """Starts the Codex of a folder of packages: two versions cannot share a name in `.bin`."""

    def start(task, *command):
        home = task.home / ".codex"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(task.filled("Codex", "toml"))
        (home / "models.json").write_text(task.filled("Codex", "json"))
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        script = str(TOOLS / "node" / "node_modules" / package / "bin" / "codex.js")
        return task.run(["node", script, "exec", *command, *options, task.prompt], CODEX_HOME=str(home))

    return start


def claude(task):
    script = task.filled("Claude Code", "sh") + '\nexec "$@"\n'
    options = ["--permission-mode", "acceptEdits", "--allowedTools", "Bash", "Write", "Edit"]
    return task.run(["bash", "-c", script, "bash", program("claude"), "-p", task.prompt, *options])


def opencode(package):
    def start(task):
        text = task.filled("opencode", "json").replace("@ai-sdk/openai-compatible", package)
        (task.folder / "opencode.json").write_text(text)
        features = ["AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"]
        environment = {f"OPENCODE_DISABLE_{name}": "1" for name in features}
        return task.run([program("opencode"), "run", task.prompt], **environment)

    return start


def library(title, name, shape, venv="venv"):
    def start(task):
        python = str(TOOLS / venv / "bin" / "python")
        text = task.filled(title, "python")
        return task.run([python, str(HERE / "library.py"), name, shape, text, task.prompt], PYTHONDONTWRITEBYTECODE="1")

    return start


def vercel(shape):
    def start(task):
        # Next to the packages, since modules search them from their own folder.
        path = TOOLS / "node" / f"task-{task.folder.name}.mjs"
        path.write_text(task.filled("Vercel's AI SDK", "js") + "\n" + (HERE / "vercel.mjs").read_text())
        try:
            return task.run(["node", str(path), shape, task.prompt])
        finally:
            path.unlink()

    return start


# The newest three versions of Codex, the newest first.
CODEX = ["@openai/codex", "codex-0.169", "codex-0.167"]
CLIENTS = [
    *(Client("Codex", "responses", codex(package), times, package, 5, True, 0, ("resume", "--last"))
      for package, times in zip(CODEX, [TIMES, 1, 1])),
    Client("Claude Code", "messages", claude, 1, "@anthropic-ai/claude-code", 5, True),
    Client("opencode", "chat", opencode("@ai-sdk/openai-compatible"), 1, "opencode-ai", 0, True, 1),
    Client("opencode", "messages", opencode("@ai-sdk/anthropic"), 1, "opencode-ai", 0, True, 1),
    Client("opencode", "responses", opencode("@ai-sdk/openai"), 1, "opencode-ai", 0, True, 1),
    *(Client("OpenAI Agents SDK", shape, library("OpenAI Agents SDK", "agents", shape), 1, "openai-agents")
      for shape in ["chat", "responses"]),
    *(Client("Pydantic AI", shape, library("Pydantic AI", "pydantic_ai", shape), 1, "pydantic-ai-slim")
      for shape in UPSTREAMS),
    *(Client("LangChain", shape, library("LangChain", "langchain", shape), 1, "langchain-core") for shape in UPSTREAMS),
    *(Client("LlamaIndex", shape, library("LlamaIndex", "llama_index", shape, "llama"), 1, "llama-index-core")
      for shape in ["chat", "responses"]),
    *(Client("Vercel's AI SDK", shape, vercel(shape), 1, "ai") for shape in UPSTREAMS),
]


def version(package):
    """The version that the stage pins."""
    words = os.environ["AGENTS_VERSIONS"].split()
    return next(word.rpartition("@")[2].rpartition("==")[2] for word in words if re.split(r"\[|==|(?<=.)@", word)[0] == package)


class Runs:
    """A gateway, a provider, and the results of the runs."""

    def __init__(self, folder):
        self.folder, self.player = folder, play.Player()
        self.gateway = gateway.Gateway(HERE / "config.toml", self.player.address)
        self.failed, self.passed = [], 0

    def task(self, model, key=None):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        home = folder / "home"
        work = folder / f"work-{folder.name}"
        home.mkdir()
        work.mkdir()
        return Task(work, home, self.gateway.gateway, model, key or self.gateway.key)

    def note(self, name, why):
        """Counts a check; `why` is empty if it passed."""
        if why:
            self.failed.append(name)
            print(f"FAIL: {name}: {why}", flush=True)
        else:
            self.passed += 1

    def done(self, client, model):
        """True if one run did the whole task, otherwise the reason."""
        task = self.task(model)
        try:
            code, said = client.start(task)
            if model.startswith("full-") and client.resumes:
                code, said = client.start(task, *client.resumes)
        except subprocess.TimeoutExpired:
            return "took too long"
        wrote = task.folder / play.FILE
        wrote = wrote.read_text() if wrote.exists() else ""
        shutil.rmtree(task.folder.parent, ignore_errors=True)
        if model.startswith("full-"):
            good = code == client.code and play.DONE in said and str(task.folder) in self.player.compacted
            return "" if good else f"it did not compact and continue, exit code {code}, output:\n{said[-2000:]}"
        if model.startswith("via-") and self.player.kept.get(str(task.folder), 0) < client.keeps:
            return "it did not send back its reasoning of earlier turns"
        if code == 0 and wrote.strip() == play.RIGHT and play.DONE in said:
            return ""
        return f"exit code {code}, wrote {wrote!r}, said:\n{said[-2000:]}"

    def rows(self, clients):
        """Runs the task with each client at each provider; returns the rows of the table."""
        return self.each(clients, "via", lambda client: client.times)

    def overflows(self, clients):
        """Likewise with a provider that refuses one prompt as too long, so that the client compacts and continues."""
        return self.each(clients, "full", lambda _: 1)

    def each(self, clients, models, times):
        """Runs everything, two clients at a time."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            cells = [
                [[pool.submit(self.done, client, f"{models}-{upstream}") for _ in range(times(client))]
                 for upstream in UPSTREAMS]
                for client in clients
            ]
            return [[f"{client.name} {version(client.version)}", client.shape,
                     *(self.cell(client, f"{models}-{upstream}", runs) for upstream, runs in zip(UPSTREAMS, row))]
                    for client, row in zip(clients, cells)]

    def cell(self, client, model, runs):
        name = f"{client.name} {version(client.version)} ({client.shape}) at {model}"
        said = [run.result() for run in runs]
        self.note(name, next((why for why in said if why), ""))
        good = f"{said.count('')} of {len(said)}"
        print(f"{name}: {good}", flush=True)
        return good

    def spent(self):
        """Codex with too small a quota: it ends soon and shows the gateway's message."""
        key = self.gateway.issue("--plan", "spent")
        began = None
        for _ in range(2):
            began = time.monotonic()
            code, said = CLIENTS[0].start(self.task("via-chat", key))
        seconds = time.monotonic() - began
        print(f"Codex with too small a quota: ended after {seconds:.1f} s")
        good = code != 0 and "of 1 token per month, of which 1 are left" in said and seconds < SPENT_SECONDS
        self.note("Codex with too small an allowance", "" if good else f"exit code {code} after {seconds:.1f} s: {said[-500:]}")

    def stop(self):
        codes = self.gateway.stop()
        self.player.stop()
        self.note("the gateway's end", "" if codes == [0] else f"exit code {codes}")
        self.note("the provider refused", "; ".join(sorted(set(self.player.refused))))


def table(rows):
    head = ["client", "speaks", *(f"{upstream} upstream" for upstream in UPSTREAMS)]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main():
    wanted = [word for word in os.environ.get("AGENTS", "").lower().split(",") if word]
    clients = [client for client in CLIENTS if not wanted or any(word in client.name.lower() for word in wanted)]
    with tempfile.TemporaryDirectory(prefix="agents-", dir=TOOLS) as folder:
        runs = Runs(pathlib.Path(folder))
        try:
            rows = runs.rows(clients)
            overflows = runs.overflows([client for client in clients if client.compacts])
            for client in clients:
                if client.keeps:
                    runs.note(f"{client.name} {version(client.version)} at Gemini", runs.done(client, "via-gemini"))
            if clients[0] is CLIENTS[0]:
                for model, what in [("fails", "whose provider fails once"), ("breaks", "whose provider breaks off once")]:
                    runs.note(f"Codex {what}", runs.done(clients[0], model))
                runs.spent()
        finally:
            runs.stop()
    text = f"{table(rows)}\n\n{AFTER_OVERFLOW}\n\n{table(overflows)}"
    print(text)
    if not wanted and TIMES == 20:
        _, _, rest = (ROOT / "src/docs/agents.md").read_text().partition(MARKS[0])
        same = rest.partition(MARKS[1])[0] == text
        runs.note("the tables of src/docs/agents.md", "" if same else "they are not those above")
    print(f"{runs.passed} passed, {len(runs.failed)} failed, 0 skipped")
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
