"""Recorded answers: the fixtures under tests/fixtures/cross as bytes, and a server that replays them.

The format of a fixture is described in src/engine/dialect/tests/rows.rs; this file expands the short lines of its streams.
"""

import dataclasses
import http.server
import json
import pathlib
import threading

FOLDER = pathlib.Path(__file__).parent.parent.parent / "fixtures" / "cross"
OTHER = {"chat": "messages", "messages": "chat"}


@dataclasses.dataclass
class Recording:
    """An answer of an upstream of format `shape`, and the expected answer for a client of the other format."""

    name: str
    kind: str
    shape: str
    said: str
    heard: str | None
    fault: bool = False
    request: dict | None = None
    tool: bool = False


def chunk(members):
    head = '{"id":"c1","object":"chat.completion.chunk","created":1795158000,"model":"upstream-model",'
    return f"data: {head}{members}}}\n\n"


def written_out(shape, text):
    """Short lines as the bytes of a stream."""
    out = ""
    choice = lambda delta, finish: chunk(f'"choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}]')
    for line in filter(None, text.split("\n")):
        word, _, rest = line.partition(" ")
        if word == "fault":
            continue
        if word == "raw":
            out += rest.replace("\\n", "\n") + "\n\n"
        elif word == "ping":
            out += ":\n\n" if shape == "chat" else 'event: ping\ndata: {"type":"ping"}\n\n'
        elif shape == "messages":
            if word == "start":
                usage = '{"input_tokens":7,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}'
                members = '"type":"message","role":"assistant","model":"upstream-model","content":[]'
                message = f'{{"id":"c1",{members},"stop_reason":null,"stop_sequence":null,"usage":{usage}}}'
                line = f'{{"type":"message_start","message":{message}}}'
            out += f"event: {json.loads(line)['type']}\ndata: {line}\n\n"
        elif word == "role":
            out += choice('{"role":"assistant","content":"","refusal":null}', "null")
        elif word == "delta":
            out += choice(rest, "null")
        elif word == "finish":
            out += choice("{}", rest)
        elif word == "usage":
            out += chunk(f'"choices":[],"usage":{rest}')
        elif word == "chunk":
            out += chunk(rest[1:-1])
        elif word == "done":
            out += "data: [DONE]\n\n"
        else:
            raise ValueError(f"unknown line {line!r}")
    return out


def of_rows():
    """The replies and streams of row-NN-*.txt."""
    for path in sorted(FOLDER.glob("row-*.txt")):
        request, tool = None, False
        for at, part in enumerate(path.read_text().split("=== ")[1:]):
            head, rest = part.split("\n", 1)
            kind, shape, *options = head.split()
            said, _, heard = rest.split("--- in\n", 1)[1].partition("--- out\n")
            said, heard = said.strip(), heard.strip()
            if kind == "request":
                request, tool = json.loads(said), "tool" in options
                continue
            name = f"{path.name[:6].replace('-', '_')}_{at}"
            fault = "\nfault " in f"\n{heard}" or heard.startswith("broken")
            if kind == "stream":
                said, heard = written_out(shape, said), written_out(OTHER[shape], heard)
            # A preceding request in the other format belongs to this answer; it may rename tools or require JSON.
            asked = request if request and ("max_tokens" in request) == (shape == "chat") else None
            yield Recording(name, kind, shape, said, heard, fault, asked, tool)


def of_examples():
    """The pairs NN-scenario.upstream.SHAPE.{response.json,stream.sse}."""
    for path in sorted(FOLDER.glob("*.upstream.*")):
        scenario, _, shape, kind, _ = path.name.split(".")
        if kind != "request" and shape in OTHER:
            pair = FOLDER / path.name.replace(f"upstream.{shape}", f"client.{OTHER[shape]}")
            heard = pair.read_text() if pair.exists() else None
            kind = "reply" if kind == "response" else kind
            name = f"{scenario.replace('-', '_')}_{kind}"
            yield Recording(name, kind, shape, path.read_bytes().decode(), heard, "error" in scenario)


def recordings():
    return [*of_rows(), *of_examples()]


class Player:
    """A server that sends one answer, the last one set, to every request."""

    def __init__(self):
        player = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("content-type", player.kind)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for at in range(0, len(player.body), 100):
                    piece = player.body[at : at + 100]
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def play(self, kind, text):
        self.kind = "text/event-stream" if kind == "stream" else "application/json"
        self.body = text.encode()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
