"""Checks the HTTP of responses of both listeners with httplint. The last line is `N passed, N failed, N skipped`."""

import argparse
import json
import pathlib
import socket
import sys
import time

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "sdk" / "python"))

from httplint.cli.http_parser import HttpCliParser, modes  # noqa: E402
from httplint.note import levels  # noqa: E402

import gateway  # noqa: E402

# Notes that are accepted, by the name of their class. Each must occur.
ACCEPTED = {
    "FRESHNESS_NO_CACHE_NO_VALIDATOR",  # Nothing can validate a stream; `no-cache` is what clients expect of one.
    "STATUS_BAD_REQUEST",  # The requests are wrong.
    "CONTENT_TYPE_MISMATCH",  # The simulated provider's audio is no MPEG.
}

CHAT = {"model": "small", "messages": [{"role": "user", "content": "hello"}]}
MESSAGES = {**CHAT, "model": "large", "max_tokens": 100}
RESPONSES = {"model": "newer", "input": "hello"}
EMBEDDINGS = {"model": "wide", "input": "hello"}
SPEECH = {"model": "wide", "input": "hello", "voice": "alloy"}
ANTHROPIC = {"anthropic-version": "2023-06-01"}
NO_KEY = {"authorization": ""}
CLIENT = [
    ("GET", "/v1/models"), ("GET", "/v1/models", None, ANTHROPIC), ("GET", "/v1/models/small"), ("GET", "/v1/quota"),
    ("HEAD", "/v1/models"), ("GET", "/v1/models/none"), ("GET", "/none"), ("DELETE", "/v1/models"),
    ("GET", "/v1/models", None, NO_KEY), ("POST", "/v1/messages", MESSAGES, {**NO_KEY, **ANTHROPIC}),
    ("POST", "/v1/chat/completions", CHAT), ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    ("POST", "/v1/chat/completions", {"model": "small"}), ("POST", "/v1/chat/completions", {**CHAT, "model": "none"}),
    ("POST", "/v1/messages", MESSAGES), ("POST", "/v1/messages", {**MESSAGES, "stream": True}),
    ("POST", "/v1/messages/count_tokens", MESSAGES), ("POST", "/v1/responses", RESPONSES),
    ("POST", "/v1/responses", {**RESPONSES, "stream": True}), ("POST", "/v1/embeddings", EMBEDDINGS),
    ("POST", "/v1/audio/speech", SPEECH),
    ("POST", "/v1/responses", {"model": "newer", "input": "#sim status=429 retry_after=7"}),
    ("GET", "/v1/responses", None, {"connection": "close, upgrade", "upgrade": "websocket"}),
]
ADMIN = [
    ("GET", "/"), ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/openapi.json"),
    ("GET", "/admin/openapi.json"), ("GET", "/admin/v1/status"), ("GET", "/admin/v1/keys?limit=1"),
    ("GET", "/admin/v1/requests"), ("GET", "/admin/v1/usage?by=model"), ("HEAD", "/healthz"), ("GET", "/none"),
    ("DELETE", "/healthz"), ("POST", "/admin/v1/keys", {}), ("GET", "/admin/v1/keys?limit=x"),
    ("GET", "/healthz", None, {"authorization": "Bearer wrong"}),
]


class Reader(HttpCliParser):
    """Keeps the notes that it would print."""

    def __init__(self, method):
        super().__init__(argparse.Namespace(mode=modes.RESPONSE), time.time())
        self.method, self.notes, self.error = method, None, None

    def input_start(self, *line_and_fields):
        has_body, is_final = super().input_start(*line_and_fields)
        self.linter.is_head_response = self.method == "HEAD"
        return has_body and not self.linter.is_head_response, is_final

    def input_end(self, trailers):
        self.linter.finish_content(True, trailers)
        self.notes = [note for note in self.linter.notes if note.level in (levels.BAD, levels.WARN)]

    def input_error(self, err, close=True):
        self.error = f"{err.desc} {err.detail or ''}"


def exchange(address, key, method, path, body=None, headers=None):
    """The bytes of a response."""
    data = b"" if body is None else json.dumps(body).encode()
    fields = {"host": address, "connection": "close", "authorization": f"Bearer {key}" if key else ""}
    if body is not None:
        fields |= {"content-type": "application/json", "content-length": str(len(data))}
    fields |= headers or {}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value)]
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=gateway.PATIENCE) as link:
        link.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        return b"".join(iter(lambda: link.recv(65536), b""))


def main():
    passed, failed, met = 0, 0, set()
    started = gateway.Gateway()
    try:
        cases = [(started.gateway, started.key, *case) for case in CLIENT]
        cases += [(started.admin, "", *case) for case in ADMIN]
        for case in cases:
            data = exchange(*case)
            reader = Reader(case[2])
            reader.handle_input(data)
            names = {type(note).__name__: note.summary for note in reader.notes or []}
            met |= names.keys() & ACCEPTED
            wrong = {name: summary for name, summary in names.items() if name not in ACCEPTED}
            if reader.notes is None or wrong:
                head = data.partition(b"\r\n\r\n")[0].decode()
                print(f"FAIL: {case[2:4]}: {reader.error or wrong or 'incomplete'}\n{head}\n")
                failed += 1
            else:
                passed += 1
    finally:
        codes = started.stop()
    for name in ACCEPTED - met:
        print(f"FAIL: no response has the accepted note {name}")
        failed += 1
    if codes != [0, 0]:
        print(f"FAIL: exit codes {codes}")
        failed += 1
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
