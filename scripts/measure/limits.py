"""Strict limits under concurrency, in the scenario that Hardcap publishes: 8 tenants with 20,000 tokens each, and 128
clients of every tenant on 3 replicas, which stream until the budget is spent. The same with budgets in dollars on a tree
of groups, whose company has less than its departments, and these less than their tenants. Hardcap (PyPI) runs the first
scenario, too, if it can be installed.

What counts is what the provider has counted for each tenant, not what the gateway reports. Lengths of responses are
log-normal with a median of 150 tokens. A prompt has one token for each 4 characters. Events are slower than in Hardcap's
own benchmark, and clients wait as long as `retry-after` says, so that two cores suffice."""
import asyncio, itertools, json, math, multiprocessing, random, shutil, subprocess, sys, tempfile, time
from pathlib import Path
from statistics import mean, median

from .peers import FOLDER
from .report import spread
from .rig import FIRST, GATEWAY, PORTS, WORK, log, start, stop, wait_for

HARDCAP = "hardcap==0.1.0"
PYTHON = FOLDER / "hardcap" / "bin" / "python"
TENANTS, REPLICAS, CLIENTS, TOKENS, LONGEST = 8, 3, 128, 20_000, 1024
# The share of the budget that Hardcap publishes.
USABLE = 98.7
MEDIAN, SIGMA, TOKENS_OF_EVENT, EVENT_SECONDS = 150, 0.8, 4, 0.03
PROMPT = "Extract the job title, company and location from the posting below. " * 3
# Dollars per million tokens of prompts and of completions; budgets of a tenant, of four of them, and of all.
PRICES, BUDGETS = (5.0, 20.0), (0.30, 0.96, 1.80)
# No run takes longer. Waiting clients ask again at most this often.
RUN_SECONDS, PAUSE = 180, 1.0
PORTS.update({"counting": 18130, "limits_redis": 18131})
REPLICA_PORTS, ADMIN_PORTS = [18132, 18133, 18134], [18135, 18136, 18137]


class Provider:
    """Streams responses of random lengths, and counts the tokens of each tenant, which is the request's `user`."""

    def __init__(self):
        self.random, self.counts = random.Random(7), {}

    async def serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                body = await reader.readexactly(int(fields.get(b"content-length", 0)))
                if head.startswith(b"GET"):
                    text = json.dumps(self.counts).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
                else:
                    await self.stream(json.loads(body), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def stream(self, ask, writer):
        bound = ask.get("max_completion_tokens") or ask.get("max_tokens") or LONGEST
        length = max(1, round(math.exp(self.random.gauss(math.log(MEDIAN), SIGMA))))
        finish = "length" if length > bound else "stop"
        length, prompt = min(length, bound), sum(len(message["content"]) // 4 + 4 for message in ask["messages"]) + 3
        count = self.counts.setdefault(ask["user"], {"requests": 0, "prompt": 0, "completion": 0})
        count["requests"] += 1
        count["prompt"] += prompt

        async def event(delta, finish=None, **more):
            choices = [{"index": 0, "delta": delta, "finish_reason": finish}] if not more else []
            text = json.dumps({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": ask["model"],
                               "choices": choices, **more})
            text = f"data: {text}\n\n"
            writer.write(f"{len(text):x}\r\n{text}\r\n".encode())
            await writer.drain()

        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for sent in range(0, length, TOKENS_OF_EVENT):
            some = min(TOKENS_OF_EVENT, length - sent)
            await asyncio.sleep(EVENT_SECONDS)
            await event({"content": "tok " * some})
            count["completion"] += some
        await event({}, finish)
        if (ask.get("stream_options") or {}).get("include_usage"):
            await event({}, usage={"prompt_tokens": prompt, "completion_tokens": length,
                                   "total_tokens": prompt + length})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()


def run_provider():
    async def serve():
        server = await asyncio.start_server(Provider().serve, "127.0.0.1", PORTS["counting"], backlog=4096)
        await server.serve_forever()
    asyncio.run(serve())


async def exchange(port, request):
    """The status and the body of a response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        text = await reader.read()
        head, body = text.split(b"\r\n\r\n", 1)
        return int(head.split(b" ")[1]), body.decode()
    finally:
        writer.close()


async def provider_counts():
    # The provider keeps the connection open, so only a part of the answer is read.
    reader, writer = await asyncio.open_connection("127.0.0.1", PORTS["counting"])
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.rsplit(b": ", 1)[1]))
    writer.close()
    return json.loads(body)


async def load(tenant, key, ports, is_spent, found):
    """The clients of a tenant: each sends requests until the budget is spent."""
    body = json.dumps({"model": "bench", "stream": True, "max_tokens": LONGEST, "user": tenant,
                       "messages": [{"role": "user", "content": PROMPT}]})
    request = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
               f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}")
    until = time.time() + RUN_SECONDS

    async def client():
        while time.time() < until:
            try:
                status, text = await exchange(next(ports), request.encode())
            except ConnectionError:
                found["reset"] += 1
                await asyncio.sleep(PAUSE)
                continue
            if status == 200:
                found["streams"] += 1
                found["cut"] += '"length"' in text and text.count("tok ") < LONGEST
            elif status == 429 and is_spent(text):
                return
            elif status == 429:
                found["busy"] += 1
                await asyncio.sleep(PAUSE)
            else:
                sys.exit(f"{status}: {text}")
        sys.exit(f"the budget of {tenant} is not spent after {RUN_SECONDS} s")

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def race(keys, is_spent):
    """All tenants until their budgets are spent: counts of the clients, and counts of the provider."""
    found = {tenant: {"streams": 0, "cut": 0, "busy": 0, "reset": 0} for tenant in keys}
    ports = itertools.cycle(REPLICA_PORTS)
    await asyncio.gather(*(load(tenant, key, ports, is_spent, found[tenant]) for tenant, key in keys.items()))
    counts = await provider_counts()
    return found, {tenant: counts[tenant] for tenant in keys}


def tokens_of(count):
    return count["prompt"] + count["completion"]


def dollars_of(count):
    return (count["prompt"] * PRICES[0] + count["completion"] * PRICES[1]) / 1e6


def redis(folder):
    server = start(["redis-server", "--port", PORTS["limits_redis"], "--bind", "127.0.0.1", "--save", "", "--dir", folder],
                   FIRST)
    wait_for(PORTS["limits_redis"])
    return server


def tree():
    """Tables of a company, two departments, and their tenants."""
    group = lambda name, parent, budget: (f'[[groups]]\nname = "{name}"\nstrict = true\nbudget = {budget}\n'
                                          + (f'parent = "{parent}"\n' if parent else ""))
    return (group("company", "", BUDGETS[2]) + "".join(group(f"department{n}", "company", BUDGETS[1]) for n in range(2))
            + "".join(group(f"group{n}", f"department{n % 2}", BUDGETS[0]) for n in range(TENANTS)))


def tollgate(round_number, in_dollars):
    """Runs one round: three replicas on a new ledger."""
    # A gateway notes beside its configuration which ledger it knows, so each round has its own folder.
    folder = Path(tempfile.mkdtemp(dir=WORK))
    server, config = redis(folder), [folder / f"limits-{n}.toml" for n in range(REPLICAS)]
    for n, file in enumerate(config):
        file.write_text(
            f'[server]\nlisten = "127.0.0.1:{REPLICA_PORTS[n]}"\nadmin_listen = "127.0.0.1:{ADMIN_PORTS[n]}"\n'
            f'max_connections = 4096\nstrict_min_tokens = 32\n'
            f'[store]\nurl = "redis://127.0.0.1:{PORTS["limits_redis"]}/0"\nhosts = {REPLICAS}\n'
            f'[[providers]]\nname = "counting"\nshape = "chat"\nbase_url = "http://127.0.0.1:{PORTS["counting"]}/v1"\n'
            f'[[models]]\nid = "bench"\ncontext = "256K"\ninput_price = {PRICES[0]}\noutput_price = {PRICES[1]}\n'
            'targets = [{ provider = "counting", model = "bench" }]\n'
            '[[plans]]\nname = "open"\n'
            f'[[plans]]\nname = "tokens"\nstrict = true\ntokens = {TOKENS}\n' + tree())
    keys = {}
    for n in range(TENANTS):
        limits = ["--plan", "open", "--group", f"group{n}"] if in_dollars else ["--plan", "tokens"]
        command = [GATEWAY, "keys", "issue", "--config", config[0], "--name", f"tenant{n}", *limits]
        keys[f"{'dollars' if in_dollars else 'tokens'}-{round_number}-{n}"] = subprocess.run(
            command, check=True, capture_output=True, text=True).stdout.strip()
    processes = [start([GATEWAY, "serve", "--config", file], FIRST, stderr=open(folder / "log", "ab"))
                 for file in config]
    for port in REPLICA_PORTS:
        wait_for(port)
    try:
        return asyncio.run(race(keys, lambda text: "reserved by running requests" not in text))
    finally:
        for process in [*processes, server]:
            stop(process)


def install_hardcap():
    if not (FOLDER / "hardcap" / "done").exists():
        shutil.rmtree(FOLDER / "hardcap", ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", FOLDER / "hardcap"], check=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", HARDCAP], check=True)
        (FOLDER / "hardcap" / "done").touch()


def hardcap(round_number):
    """Runs one round of Hardcap in its default mode: the 95th percentile is reserved, and streams are cut."""
    folder = Path(tempfile.mkdtemp(dir=WORK))
    server, file = redis(folder), folder / "hardcap.yaml"
    keys = {name: name for name in (f"hardcap-{round_number}-{n}" for n in range(TENANTS))}
    tenants = "".join(f"  {name}: {{api_keys: [{name}], budget: {{window_s: 10000000, total: {TOKENS}}}}}\n" for name in keys)
    file.write_text(
        f"redis_url: redis://127.0.0.1:{PORTS['limits_redis']}/0\nredis_max_connections: 512\n"
        f"upstreams:\n  mock: {{base_url: \"http://127.0.0.1:{PORTS['counting']}\", read_timeout_s: 60}}\n"
        "routes:\n  bench: {targets: [{upstream: mock, model: bench}]}\n"
        f"tenants:\n  warm: {{api_keys: [warm], budget: {{window_s: 10000000}}}}\n{tenants}")
    processes = [start([PYTHON, "-m", "hardcap", "serve", "-c", file, "--host", "127.0.0.1", "--port", port], FIRST)
                 for port in REPLICA_PORTS]
    for port in REPLICA_PORTS:
        wait_for(port)

    async def warm_then_race():
        # As in its own benchmark: every replica learns the lengths of responses first.
        body = json.dumps({"model": "bench", "stream": True, "max_tokens": LONGEST, "user": "warm",
                           "messages": [{"role": "user", "content": PROMPT}]})
        request = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer warm\r\nconnection: close"
                   f"\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}").encode()
        for _ in range(3):
            await asyncio.gather(*(exchange(REPLICA_PORTS[n % REPLICAS], request) for n in range(100)))
        return await race(keys, lambda text: "budget_exceeded" in text)

    try:
        return asyncio.run(warm_then_race())
    finally:
        for process in [*processes, server]:
            stop(process)


class Column:
    """Figures of all rounds of a subject."""

    def __init__(self):
        self.over, self.share, self.cut, self.streams, self.busy, self.reset, self.seconds = ([] for _ in range(7))

    def add(self, result, seconds, used_of_limits, reached):
        """`used_of_limits`: use and total of every limit; `reached`: those of limits that end the round."""
        found, _ = result
        self.over.append(max(100 * (used - total) / total for used, total in used_of_limits))
        self.share.append(mean(100 * min(used, total) / total for used, total in reached))
        for own, name in ((self.cut, "cut"), (self.streams, "streams"), (self.busy, "busy"), (self.reset, "reset")):
            own.append(mean(one[name] for one in found.values()))
        self.seconds.append(seconds)


def limits(rounds):
    provider = multiprocessing.Process(target=run_provider, daemon=True)
    provider.start()
    wait_for(PORTS["counting"])
    columns = {"Tollgate, tokens": Column(), "Tollgate, dollars on a tree": Column()}
    try:
        install_hardcap()
        columns["Hardcap, tokens"] = Column()
    except (subprocess.CalledProcessError, OSError) as error:
        log(f"Hardcap is not compared: {error}")
    for number in range(rounds):
        for name, column in columns.items():
            began = time.time()
            result = hardcap(number) if name.startswith("Hardcap") else tollgate(number, "dollars" in name)
            counts = list(result[1].values())
            if "dollars" in name:
                of = [dollars_of(count) for count in counts]
                total = [(sum(of), BUDGETS[2])]
                used = [(one, BUDGETS[0]) for one in of] + [(sum(of[n::2]), BUDGETS[1]) for n in range(2)] + total
                column.add(result, time.time() - began, used, total)
            else:
                used = [(tokens_of(count), TOKENS) for count in counts]
                column.add(result, time.time() - began, used, used)
            log(f"  {name}: overshoot {column.over[-1]:.3f} %, {column.share[-1]:.2f} % used, "
                f"{column.cut[-1]:.2f} of {column.streams[-1]:.0f} streams of a tenant cut")
    provider.terminate()
    rows = [("worst overshoot by the provider's count, %", lambda of: f"{max(of.over):+.3f}"),
            ("share of the budget used, %", lambda of: spread(of.share)),
            ("streams cut short per tenant", lambda of: spread(of.cut)),
            ("streams per tenant", lambda of: spread(of.streams, 0)),
            ("refusals because running requests reserve the rest, per tenant", lambda of: spread(of.busy, 0)),
            ("connections that the gateway resets, per tenant", lambda of: spread(of.reset)),
            ("seconds", lambda of: spread(of.seconds, 0))]
    text = "\n".join([f"| what | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 1),
                      *(f"| {what} | {' | '.join(cell(column) for column in columns.values())} |" for what, cell in rows)])
    own = [column for name, column in columns.items() if name.startswith("Tollgate")]
    met = all(max(column.over) <= 0 and median(column.share) >= USABLE for column in own)
    return text, met
