"""Two llama.cpp servers (PyPI's llama-cpp-python) behind the gateway: time to first token of the later turns of a
conversation, with `affinity = "session"` and with `"off"`.

Each server has one core, one thread, and its cache of states in memory, with space for the last states of the maximum
number of concurrent conversations. The order of the conversations is drawn for each turn, the same for both arms. Only
one request runs at a time, so no request waits for another: the measured time is the reading of the prompt. Each arm of
each round begins with new servers; the conversations differ in every round."""
import http.client, json, os, random, re, shutil, statistics, subprocess, sys, time

from .report import Rounds, spread
from .rig import FIRST, GATEWAY, PORTS, ROOT, SECOND, TARGET, WORK, say, start, stop, wait_for

PACKAGES = ["llama-cpp-python[server]==0.3.36", "gguf==0.19.0", "numpy==2.4.6"]
FOLDER = TARGET / "peers" / "llama"
PYTHON = FOLDER / "bin" / "python"
PLACE = WORK / "llama"
PORTS.update({"llama_one": 18110, "llama_two": 18111, "llama_gateway": 18112, "llama_admin": 18113})
SERVERS = {"llama_one": FIRST, "llama_two": SECOND}
ARMS = ("session", "off")
# Concurrent conversations; turns of each; tokens (one per character in this model) of the system prompt, of a user
# message, of an answer.
HELD = (1, 2, 6)
TURNS, SYSTEM, USER, ANSWER = 10, 1500, 200, 32
# Bytes that llama.cpp keeps per token of this model: keys and values of a head of 64 in 3 layers, 2 bytes each.
STATE_BYTES = 2 * 64 * 3 * 2
CACHE_BYTES = max(HELD) * (SYSTEM + TURNS * (USER + ANSWER + 25)) * STATE_BYTES
READ = re.compile(r"Llama\.generate: (\d+) prefix-match hit, remaining (\d+) prompt tokens to eval")


def install():
    """llama.cpp, compiled by pip if necessary (about ten minutes on two cores), and the model."""
    if not (FOLDER / "done").exists():
        say("installing llama-cpp-python, which compiles llama.cpp ...")
        shutil.rmtree(FOLDER, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        # Without image support and OpenMP, which one thread does not need.
        cmake = {"CMAKE_ARGS": "-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAVA_BUILD=OFF"}
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *PACKAGES], check=True, env={**cmake, **os.environ})
        (FOLDER / "done").touch()
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    subprocess.run([PYTHON, ROOT / "scripts" / "measure" / "tiny.py", PLACE / "tiny.gguf"], check=True)


def configure():
    """Two models that differ only in their affinity, each with both servers as equal targets; a key."""
    local = lambda name: f"127.0.0.1:{PORTS[name]}"
    equal = ", ".join(f'{{ provider = "{name}", model = "tiny", priority = 1 }}' for name in SERVERS)
    (PLACE / "tollgate.toml").write_text(
        f'[server]\nlisten = "{local("llama_gateway")}"\nadmin_listen = "{local("llama_admin")}"\n'
        f'[store]\nurl = "sqlite:{PLACE}/ledger.db"\n'
        + "".join(f'[[providers]]\nname = "{name}"\nshape = "chat"\nbase_url = "http://{local(name)}/v1"\n'
                  for name in SERVERS)
        + "".join(f'[[models]]\nid = "{arm}"\naffinity = "{arm}"\ncontext = "8K"\ntargets = [{equal}]\n'
                  for arm in ARMS)
        + '[[plans]]\nname = "all"\n')
    command = [GATEWAY, "keys", "issue", "--config", PLACE / "tollgate.toml", "--name", "bench", "--plan", "all"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Server:
    """One llama.cpp server; its log reports the cached tokens."""

    def __init__(self, name):
        path = PLACE / f"{name}.log"
        options = {"model": PLACE / "tiny.gguf", "model_alias": "tiny", "host": "127.0.0.1", "port": PORTS[name],
                   "n_ctx": 8192, "n_threads": 1, "n_threads_batch": 1, "logits_all": "false",
                   "chat_format": "chatml", "cache": "true", "cache_size": CACHE_BYTES}
        words = [word for option, value in options.items() for word in (f"--{option}", value)]
        command = [PYTHON, "-m", "llama_cpp.server", *words]
        self.process = start(command, SERVERS[name], stderr=open(path, "wb"))
        self.log = open(path, errors="replace")

    def said(self):
        """The log since the last call."""
        return self.log.read()


def ask(connection, key, model, messages):
    """Milliseconds to the first token of an answer, and the answer."""
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
        sys.exit("an answer without a token")
    return (first - began) * 1000, "".join(parts)


def text(draw, length):
    """This number of characters of words."""
    words = []
    while sum(map(len, words)) + len(words) < length:
        words.append("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))))
    return " ".join(words)[:length].strip()


def hold(key, model, held, seed):
    """So many conversations, turn by turn: of the later turns, the milliseconds to the first token, and of all their
    prompts' tokens the part that was found in a cache."""
    draw = random.Random(seed)
    conversations = [[{"role": "system", "content": text(draw, SYSTEM)}] for _ in range(held)]
    servers = [Server(name) for name in SERVERS]
    connection = http.client.HTTPConnection("127.0.0.1", PORTS["llama_gateway"], timeout=120)
    waited, cached, whole = [], 0, 0
    try:
        for name in SERVERS:
            wait_for(PORTS[name])
            # The first evaluation of a process is slower than those after it.
            direct = http.client.HTTPConnection("127.0.0.1", PORTS[name], timeout=120)
            ask(direct, "none", "tiny", [{"role": "user", "content": text(draw, 100)}])
            direct.close()
        for turn in range(TURNS):
            for messages in draw.sample(conversations, held):
                messages.append({"role": "user", "content": text(draw, USER)})
                for server in servers:
                    server.said()
                milliseconds, answer = ask(connection, key, model, messages)
                messages.append({"role": "assistant", "content": answer})
                found, evaluated = map(int, READ.search("".join(server.said() for server in servers)).groups())
                if turn:
                    waited.append(milliseconds)
                    cached, whole = cached + found, whole + found + evaluated
    finally:
        connection.close()
        for server in servers:
            stop(server.process)
    return waited, cached / whole


def llama(rounds_wanted):
    """The table: medians over rounds."""
    install()
    key = configure()
    gateway = start([GATEWAY, "serve", "--config", PLACE / "tollgate.toml"], FIRST, stderr=open(PLACE / "log", "wb"))
    wait_for(PORTS["llama_gateway"])
    rounds = Rounds()
    for number in range(rounds_wanted):
        for held in HELD:
            for arm in ARMS[::1 if number % 2 else -1]:
                waited, cached = hold(key, arm, held, f"{number} {held}")
                rounds.add(f"median {held}", arm, statistics.median(waited))
                rounds.add(f"tenth {held}", arm, statistics.quantiles(waited, n=10)[-1])
                rounds.add(f"mean {held}", arm, statistics.mean(waited))
                rounds.add(f"cached {held}", arm, cached * 100)
                say(f"round {number + 1} of {rounds_wanted}, {held} at once, {arm}: "
                    f"{statistics.mean(waited):.0f} ms, {cached:.0%} in cache")
    stop(gateway)
    lines = ["| conversations at once | `affinity` | first token, median, ms | slowest tenth from, ms | mean, ms | "
             "mean, ratio | of the prompt in cache, % |", "|" + "---|" * 7]
    for held in HELD:
        for arm in ARMS:
            cells = [spread(rounds.get(f"{what} {held}", arm), 0) for what in ("median", "tenth", "mean")]
            ratio = "1" if arm == "off" else spread(rounds.ratios(f"mean {held}", arm, "off"))
            lines.append(" | ".join([f"| {held}", f'`"{arm}"`', *cells, ratio,
                                     f"{spread(rounds.get(f'cached {held}', arm), 0)} |"]))
    return "\n".join(lines)
