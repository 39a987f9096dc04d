"""Two llama.cpp servers (PyPI's llama-cpp-python) behind the gateway: time to first token of the later turns of a
conversation, with `affinity = "session"` and with `"off"`.

Each server has one core, one thread, and a cache in memory for the last states of the maximum number of concurrent
conversations. The order of the conversations is random for each turn and the same for both settings. Only one request
runs at a time, so the measured time is the evaluation of the prompt. Each setting starts new servers in each round, and
the conversations differ between rounds."""
import http.client, json, os, random, re, shutil, statistics, subprocess, sys, time

from .report import Rounds, spread
from .rig import FIRST, GATEWAY, PORTS, ROOT, SECOND, TARGET, WORK, log, start, stop, wait_for

PACKAGES = ["llama-cpp-python[server]==0.3.36", "gguf==0.19.0", "numpy==2.4.6"]
FOLDER = TARGET / "peers" / "llama"
PYTHON = FOLDER / "bin" / "python"
RUN_FOLDER = WORK / "llama"
PORTS.update({"llama_one": 18110, "llama_two": 18111, "llama_gateway": 18112, "llama_admin": 18113})
SERVERS = {"llama_one": FIRST, "llama_two": SECOND}
ARMS = ("session", "off")
# Concurrent conversations; turns of each; tokens (one per character in this model) of the system prompt, of a user
# message, of a response.
CONVERSATIONS = (1, 2, 6)
TURNS, SYSTEM, USER, ANSWER = 10, 1500, 200, 32
# Bytes in llama.cpp's cache per token of this model: keys and values of a head of 64 in 3 layers, 2 bytes each.
STATE_BYTES = 2 * 64 * 3 * 2
CACHE_BYTES = max(CONVERSATIONS) * (SYSTEM + TURNS * (USER + ANSWER + 25)) * STATE_BYTES
READ = re.compile(r"Llama\.generate: (\d+) prefix-match hit, remaining (\d+) prompt tokens to eval")


def install():
    """Installs llama.cpp, which pip compiles if necessary (about ten minutes on two cores), and writes the model."""
    if not (FOLDER / "done").exists():
        log("installing llama-cpp-python, which compiles llama.cpp ...")
        shutil.rmtree(FOLDER, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        # Without image support and OpenMP, which one thread does not need.
        cmake = {"CMAKE_ARGS": "-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAVA_BUILD=OFF"}
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *PACKAGES], check=True, env={**cmake, **os.environ})
        (FOLDER / "done").touch()
    shutil.rmtree(RUN_FOLDER, ignore_errors=True)
    RUN_FOLDER.mkdir(parents=True)
    subprocess.run([PYTHON, ROOT / "scripts" / "measure" / "tiny.py", RUN_FOLDER / "tiny.gguf"], check=True)


def configure():
    """Configures two models that differ only in their affinity, with both servers as equal targets; returns a key."""
    local = lambda name: f"127.0.0.1:{PORTS[name]}"
    equal = ", ".join(f'{{ provider = "{name}", model = "tiny", priority = 1 }}' for name in SERVERS)
    (RUN_FOLDER / "tollgate.toml").write_text(
        f'[server]\nlisten = "{local("llama_gateway")}"\nadmin_listen = "{local("llama_admin")}"\n'
        f'[store]\nurl = "sqlite:{RUN_FOLDER}/ledger.db"\n'
        + "".join(f'[[providers]]\nname = "{name}"\nshape = "chat"\nbase_url = "http://{local(name)}/v1"\n'
                  for name in SERVERS)
        + "".join(f'[[models]]\nid = "{arm}"\naffinity = "{arm}"\ncontext = "8K"\ntargets = [{equal}]\n'
                  for arm in ARMS)
        + '[[plans]]\nname = "all"\n')
    command = [GATEWAY, "keys", "issue", "--config", RUN_FOLDER / "tollgate.toml", "--name", "bench", "--plan", "all"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Server:
    """One llama.cpp server; its log reports the cached tokens."""

    def __init__(self, name):
        path = RUN_FOLDER / f"{name}.log"
        options = {"model": RUN_FOLDER / "tiny.gguf", "model_alias": "tiny", "host": "127.0.0.1", "port": PORTS[name],
                   "n_ctx": 8192, "n_threads": 1, "n_threads_batch": 1, "logits_all": "false",
                   "chat_format": "chatml", "cache": "true", "cache_size": CACHE_BYTES}
        words = [word for option, value in options.items() for word in (f"--{option}", value)]
        command = [PYTHON, "-m", "llama_cpp.server", *words]
        self.process = start(command, SERVERS[name], stderr=open(path, "wb"))
        self.log = open(path, errors="replace")

    def new_log(self):
        """The log since the last call."""
        return self.log.read()


def send(connection, key, model, messages):
    """Returns the milliseconds to the first token of a response, and its text."""
    body = json.dumps({"model": model, "messages": messages, "stream": True, "max_tokens": ANSWER, "temperature": 0})
    began, first, parts = time.perf_counter(), None, []
    connection.request("POST", "/v1/chat/completions", body,
                       {"content-type": "application/json", "authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{answer.status}: {answer.read().decode()}")
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        choices = json.loads(line[6:]).get("choices") or [{}]
        text = choices[0].get("delta", {}).get("content")
        if text:
            first = first or time.perf_counter()
            parts.append(text)
    if not first:
        sys.exit("a response without a token")
    return (first - began) * 1000, "".join(parts)


def text(draw, length):
    """This number of characters of words."""
    words = []
    while sum(map(len, words)) + len(words) < length:
        words.append("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))))
    return " ".join(words)[:length].strip()


def run_conversations(key, model, count, seed):
    """Runs concurrent conversations, turn by turn. Returns, for all turns after the first, the milliseconds to the
    first token, and the cached fraction of the prompt tokens."""
    draw = random.Random(seed)
    conversations = [[{"role": "system", "content": text(draw, SYSTEM)}] for _ in range(count)]
    servers = [Server(name) for name in SERVERS]
    connection = http.client.HTTPConnection("127.0.0.1", PORTS["llama_gateway"], timeout=120)
    waited, cached, whole = [], 0, 0
    try:
        for name in SERVERS:
            wait_for(PORTS[name])
            # The first evaluation of a process is slower than those after it.
            direct = http.client.HTTPConnection("127.0.0.1", PORTS[name], timeout=120)
            send(direct, "none", "tiny", [{"role": "user", "content": text(draw, 100)}])
            direct.close()
        for turn in range(TURNS):
            for messages in draw.sample(conversations, count):
                messages.append({"role": "user", "content": text(draw, USER)})
                for server in servers:
                    server.new_log()
                milliseconds, answer = send(connection, key, model, messages)
                messages.append({"role": "assistant", "content": answer})
                found, evaluated = map(int, READ.search("".join(server.new_log() for server in servers)).groups())
                if turn:
                    waited.append(milliseconds)
                    cached, whole = cached + found, whole + found + evaluated
    finally:
        connection.close()
        for server in servers:
            stop(server.process)
    return waited, cached / whole


def llama(rounds_wanted):
    """Returns the table, with medians over rounds."""
    install()
    key = configure()
    command = [GATEWAY, "serve", "--config", RUN_FOLDER / "tollgate.toml"]
    gateway = start(command, FIRST, stderr=open(RUN_FOLDER / "log", "wb"))
    wait_for(PORTS["llama_gateway"])
    rounds = Rounds()
    for number in range(rounds_wanted):
        for count in CONVERSATIONS:
            for arm in ARMS[::1 if number % 2 else -1]:
                waited, cached = run_conversations(key, arm, count, f"{number} {count}")
                rounds.add(f"median {count}", arm, statistics.median(waited))
                rounds.add(f"tenth {count}", arm, statistics.quantiles(waited, n=10)[-1])
                rounds.add(f"mean {count}", arm, statistics.mean(waited))
                rounds.add(f"cached {count}", arm, cached * 100)
                log(f"round {number + 1} of {rounds_wanted}, {count} at once, {arm}: "
                    f"{statistics.mean(waited):.0f} ms, {cached:.0%} in cache")
    stop(gateway)
    lines = ["| concurrent conversations | `affinity` | first token, median, ms | 90th percentile, ms | mean, ms | "
             "mean, ratio | prompt in cache, % |", "|" + "---|" * 7]
    for count in CONVERSATIONS:
        for arm in ARMS:
            cells = [spread(rounds.get(f"{what} {count}", arm), 0) for what in ("median", "tenth", "mean")]
            ratio = "1" if arm == "off" else spread(rounds.ratios(f"mean {count}", arm, "off"))
            lines.append(" | ".join([f"| {count}", f'`"{arm}"`', *cells, ratio,
                                     f"{spread(rounds.get(f'cached {count}', arm), 0)} |"]))
    return "\n".join(lines)
