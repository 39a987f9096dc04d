"""Growth: instructions of the gateway's event loop for one more key, event, tool and so on, by their number. The
built-in client and provider send exact bytes, so that sizes and numbers are not limited."""
import json, re, socket, sqlite3, subprocess, threading, time

from .counters import Instructions
from .rig import GATEWAY, WORK

PORT, GATE_PORT, PROVIDER = 18070, 18071, 18072
PROVIDERS, GROUPS = 90, 500
# Points of each curve, and the unit that is measured.
POINTS = {
    "keys": ([1000, 20000, 200000], "one key changed, all threads"),
    "events": ([1000, 20000], "an event of 90 bytes in a separate chunk"),
    "backlog": ([1000, 20000, 100000], "such an event while the client does not read"),
    "tools": ([10, 210, 500], "a tool of a request"),
    "messages": ([10, 210, 1000], "a message of a request"),
    "providers": ([1, PROVIDERS], "a request to the last provider"),
    "groups": ([1, GROUPS], "a request in the last group"),
    "limits": ([1, 5, 9], "a request by the number of limits of its plan"),
    "levels": ([1, 4], "a request by the number of limits of each of four groups above each other"),
    "idle": ([1, 500, 2000], "a request with idle connections"),
    "body": ([64, 1024, 4096], "a kB of a request body"),
    "answer": ([64, 1024, 2048], "a kB of a response body"),
}
# Curves of the gate: the two compared points; the maximum ratio of their costs (RISE_MAX); a maximum of both
# (COST_MAX).
GATED = {"keys": (1000, 20000), "events": (1000, 20000), "backlog": (1000, 20000), "tools": (10, 210),
        "messages": (10, 210), "providers": (1, PROVIDERS), "groups": (1, GROUPS), "limits": (1, 5), "levels": (1, 4), "idle": (1, 500), "body": (64, 1024),
        "answer": (64, 2048)}
RISE_MAX = 1.1
# A limit with a time of its own costs about 220 instructions.
RISE_MAX_OF = {"messages": 1.7, "events": 1.3, "limits": 1.05, "levels": 1.12}
COST_MAX = {"backlog": 2000, "tools": 8000}
WARM, REQUESTS = 20, 100
# Seconds within which a gateway under callgrind must start or log a changed key.
LOG_WAIT = 60


def limits(count):
    """This number of limits that no request reaches."""
    kinds = ["requests", "tokens", "budget"]
    texts = (f"{kinds[n % 3]}=1000000000/{n + 1}h" for n in range(count))
    return "limits = [" + ", ".join(f'"{text}"' for text in texts) + "]\n"


def chain(levels, count):
    """Groups above each other, each with this number of limits."""
    return "".join(f'[[groups]]\nname = "g{n}"\n' + (f'parent = "g{n - 1}"\n' if n else "") + limits(count)
                   for n in range(levels))


def config(providers, groups, more=None):
    """A configuration with this number of providers, a model for each, and groups next to each other. `more`: limits of
    the plan, and groups instead of those."""
    text = (f'[server]\nlisten = "127.0.0.1:{PORT}"\nadmin_listen = "127.0.0.1:{GATE_PORT}"\nmax_body = "8MiB"\n'
            f'[store]\nurl = "sqlite:{WORK}/growth.db"\n[upstream]\nmax_response = "8MiB"\n')
    for n in range(providers):
        text += (f'[[providers]]\nname = "p{n}"\nshape = "chat"\nbase_url = "http://127.0.0.1:{PROVIDER}/v1"\n'
                 f'[[models]]\nid = "m{n}"\ncontext = "64M"\ninput_price = 1.0\noutput_price = 1.0\ntargets = [{{ provider = "p{n}", model = "up" }}]\n')
    if more:
        return text + '[[plans]]\nname = "team"\n' + more
    text += '[[plans]]\nname = "team"\ntokens = 1_000_000_000_000\n'
    return text + "".join(f'[[groups]]\nname = "g{n}"\nbudget = 1_000_000\n' for n in range(groups))


class Provider(threading.Thread):
    """Sends the current value of `answer` as the response to every request."""

    def __init__(self):
        super().__init__(daemon=True)
        self.answer, self.socket = b"", socket.create_server(("127.0.0.1", PROVIDER), backlog=256)
        self.start()

    def run(self):
        while True:
            threading.Thread(target=self.serve, args=(self.socket.accept()[0],), daemon=True).start()

    def serve(self, peer):
        stream = peer.makefile("rb", 1 << 20)
        while head := stream.readline():
            length = 0
            while head.strip():
                if head.lower().startswith(b"content-length:"):
                    length = int(head.split(b":")[1])
                head = stream.readline()
            stream.read(length)
            peer.sendall(self.answer)


def complete_response(size):
    """A complete response of this number of kB."""
    body = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "up", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "heron " * (size * 1000 // 6)}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def events(count):
    """A stream of this number of events, each in a separate chunk."""
    frame = lambda delta, finish: (b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"up","choices":'
                                   b'[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n' % (delta, finish))
    chunk = lambda text: b"%x\r\n%s\r\n" % (len(text), text)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return (head + chunk(frame(b'{"content":"a"}', b"null")) * count + chunk(frame(b"{}", b'"stop"'))
            + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def chat_request(key, model=0, messages=1, tools=0, size=0, stream=False):
    """A chat request of this number of messages and tools, with `size` kB of text in each message."""
    text = "The heron waits in the shallow water and stands. " * max(1, size * 1000 // 49)
    body = {"model": f"m{model}", "stream": stream, "max_tokens": 64,
            "messages": [{"role": ("user", "assistant")[n % 2], "content": text} for n in range(messages)]}
    if tools:
        body["tools"] = [{"type": "function", "function": {
            "name": f"look_{n}", "description": "Looks for herons.", "parameters": {"type": "object", "properties": {
                "where": {"type": "string", "description": "A name"}, "most": {"type": "integer"}}}}} for n in range(tools)]
    body = json.dumps(body).encode()
    return (b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % (key.encode(), len(body)) + body)


class Client:
    """One connection that reads each response completely."""

    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", PORT))

    def send(self, request, pause=0):
        self.socket.sendall(request)
        time.sleep(pause)
        got, ends = b"", None
        while True:
            part = self.socket.recv(1 << 20)
            got = (got[-64:] if ends == b"0\r\n\r\n" else got) + part
            if ends is None and b"\r\n\r\n" in got:
                head, _, rest = got.partition(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(got[:300])
                length = re.search(rb"content-length: (\d+)", head)
                ends, got = (int(length[1]) if length else b"0\r\n\r\n"), rest
            if (isinstance(ends, int) and len(got) >= ends) or (isinstance(ends, bytes) and got.endswith(ends)):
                return


class GrownGateway:
    """A gateway under callgrind with a ledger of this number of keys."""

    def __init__(self, provider, keys=1, providers=1, groups=1, more=None):
        (WORK / "growth.toml").write_text(config(providers, groups, more))
        for ledger in WORK.glob("growth.db*"):
            ledger.unlink()
        issue = [GATEWAY, "keys", "issue", "--config", WORK / "growth.toml", "--name", "one", "--group", f"g{groups - 1}"]
        self.key = subprocess.run(issue, check=True, capture_output=True, text=True).stdout.strip()
        ledger = sqlite3.connect(WORK / "growth.db")
        columns = [row[1] for row in ledger.execute("PRAGMA table_info(keys)")]
        known = ledger.execute("SELECT * FROM keys").fetchone()
        many = ({**dict(zip(columns, known)), "id": f"{n:012}", "digest": n.to_bytes(32, "big"), "name": f"k{n}"}
                for n in range(keys - 1))
        ledger.executemany(f"INSERT INTO keys ({','.join(columns)}) VALUES ({','.join('?' * len(columns))})",
                           (tuple(one.values()) for one in many))
        ledger.commit()
        ledger.close()
        self.provider, self.model = provider, providers - 1
        self.counted = Instructions("gateway", "growth.toml", PORT)
        # The port opens before the keys have been read, and an earlier change is not announced.
        self.wait_for_log("listening")

    def cost(self, units, request, answer, times=1, pause=0):
        """Instructions of the event loop for each of `units` in each of this number of requests."""
        self.provider.answer = answer
        client = Client()
        for _ in range(2 if times == 1 else WARM):
            client.send(request, 0)
        loop, _ = self.counted.around(lambda: [client.send(request, pause) for _ in range(times)])
        return sum(loop.values()) / times / units

    def cost_of_change(self, times=5):
        """Instructions of all threads for one changed key, minus those of an idle gateway in the same time."""
        command = [GATEWAY, "keys", "set", self.key[8:20], "--config", WORK / "growth.toml", "--name"]

        def changed(times):
            for n in range(times):
                name = f"one-{time.monotonic_ns()}"
                subprocess.run([*command, name], check=True, capture_output=True)
                self.wait_for_log(name)

        changed(1)
        began = time.time()
        loop, others = self.counted.around(lambda: changed(times))
        took = time.time() - began
        idle, rest = self.counted.around(lambda: time.sleep(took))
        return (sum(loop.values()) + others - sum(idle.values()) - rest) / times

    def wait_for_log(self, text):
        """Waits until the gateway has logged `text`."""
        until = time.time() + LOG_WAIT
        while text not in (WORK / "log").read_text(errors="replace"):
            if time.time() > until:
                raise RuntimeError(f"the gateway has not logged {text}")
            time.sleep(0.05)

    def end(self):
        self.counted.end()


def measure(provider, chosen):
    """Costs of every curve at the chosen points, by number."""
    found = {}
    one = lambda grown, **more: chat_request(grown.key, grown.model, **more)
    small = GrownGateway(provider)
    for name, of in (("events", lambda n: small.cost(n, one(small, stream=True), events(n))),
                     ("backlog", lambda n: small.cost(n, one(small, stream=True), events(n), pause=2)),
                     ("tools", lambda n: small.cost(1, one(small, tools=n), complete_response(1), REQUESTS)),
                     ("messages", lambda n: small.cost(1, one(small, messages=n), complete_response(1), REQUESTS)),
                     ("body", lambda n: small.cost(n, one(small, size=n), complete_response(1), 10)),
                     ("answer", lambda n: small.cost(n, one(small), complete_response(n), 10))):
        found[name] = {n: of(n) for n in chosen[name]}
    # Cost of each tool and each message of a request.
    base = small.cost(1, one(small), complete_response(1), REQUESTS)
    for name in ("tools", "messages"):
        found[name] = {n: (cost - base) / n for n, cost in found[name].items()}
    found["idle"] = {}
    idle = []
    for n in chosen["idle"]:
        idle += [Client() for _ in range(n - len(idle))]
        found["idle"][n] = small.cost(1, one(small), complete_response(1), REQUESTS)
    idle.clear()
    small.end()
    for name, limited in (("limits", lambda n: (1, limits(n) + chain(1, 1))), ("levels", lambda n: (4, chain(4, n)))):
        found[name] = {}
        for n in chosen[name]:
            groups, more = limited(n)
            grown = GrownGateway(provider, groups=groups, more=more)
            found[name][n] = grown.cost(1, one(grown), complete_response(1), REQUESTS)
            grown.end()
    found["providers"], found["groups"], found["keys"] = {1: base}, {1: base}, {}
    for n in chosen["keys"]:
        # The gateway of the second point of `keys` also has all providers and groups.
        many = n == chosen["keys"][1]
        grown = GrownGateway(provider, n, PROVIDERS if many else 1, GROUPS if many else 1)
        found["keys"][n] = grown.cost_of_change()
        if many:
            client = Client()
            for model in range(PROVIDERS):
                client.send(chat_request(grown.key, model))
            last = grown.cost(1, one(grown), complete_response(1), REQUESTS)
            found["providers"][PROVIDERS] = found["groups"][GROUPS] = last
        grown.end()
    return found


def growth():
    """`scripts/bench growth`."""
    found = measure(Provider(), {name: values for name, (values, _) in POINTS.items()})
    print("| what grows | instructions of | " + " | ".join(["at"] * 3) + " |\n|---|---|---|---|---|")
    for name, (_, what) in POINTS.items():
        cells = [f"{n}: {count:.0f}" for n, count in found[name].items()]
        print(f"| {name} | {what} | " + " | ".join(cells + [""] * (3 - len(cells))) + " |")
    return 0


def check_growth():
    """Prints a line for each curve; returns the curves above their limits, and the number of curves."""
    found, worse = measure(Provider(), GATED), []
    for name, (few, many) in GATED.items():
        cost, most = found[name], COST_MAX.get(name)
        is_worse = cost[many] > cost[few] * RISE_MAX_OF.get(name, RISE_MAX) or (most and max(cost.values()) > most)
        worse += [name] if is_worse else []
        print(f"gate: {POINTS[name][1]}: {cost[few]:.0f} at {few}, {cost[many]:.0f} at {many}"
              f"{f', at most {most} allowed' if most else ''}: {'grows' if is_worse else 'does not grow'}")
    return worse, len(GATED)
