"""Relayed endpoints of a real server: llama.cpp from PyPI's llama-cpp-python, with a tiny model of random weights that
scripts/measure/tiny.py writes. Its direct responses and those through the gateway are compared byte for byte, except
for the gateway's names and values that differ between responses. Runs in the environment of that server, without an
SDK."""

import http.client
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import gateway

# The gateway of the other suites; here it is in front of another provider.
GATEWAY = None
HERE = pathlib.Path(__file__).parent
TINY = HERE.parent.parent.parent / "scripts" / "measure" / "tiny.py"
OWN = re.compile(rb'("id": ?)"[^"]*"|("created": ?)\d+|("model": ?)"[^"]*"')


def setUpModule():
    global FOLDER, SERVER, AT, LOCAL
    FOLDER = tempfile.TemporaryDirectory(prefix="tollgate-llamacpp-")
    model = pathlib.Path(FOLDER.name) / "tiny.gguf"
    subprocess.run([sys.executable, TINY, model], check=True)
    AT = f"127.0.0.1:{gateway.free_port()}"
    options = {"model": model, "model_alias": "tiny", "host": "127.0.0.1", "port": AT.split(":")[1], "n_ctx": 2048,
               "n_threads": 1, "n_threads_batch": 1, "embedding": "true"}
    words = [str(word) for option, value in options.items() for word in (f"--{option}", value)]
    log = open(pathlib.Path(FOLDER.name) / "log", "wb")
    SERVER = subprocess.Popen([sys.executable, "-m", "llama_cpp.server", *words], stdout=log, stderr=log)
    gateway.wait_until("llama.cpp to be ready", lambda: gateway.fetch(f"http://{AT}/v1/models")[0] == 200)
    LOCAL = gateway.Gateway(HERE.parent / "llamacpp.toml", AT)


def tearDownModule():
    codes = LOCAL.stop()
    SERVER.terminate()
    SERVER.wait(timeout=60)
    FOLDER.cleanup()
    if codes != [0]:
        raise RuntimeError(f"the gateway ended with {codes}")


def ask(at, path, model, body, key="none"):
    """Status, content type and body of an answer."""
    connection = http.client.HTTPConnection(at, timeout=120)
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    connection.request("POST", f"/v1/{path}", json.dumps({"model": model, **body}), headers)
    answer = connection.getresponse()
    found = (answer.status, answer.getheader("content-type"), answer.read())
    connection.close()
    return found


def both(path, body):
    """The direct answer of the server, and the one through the gateway."""
    return ask(AT, path, "tiny", body), ask(LOCAL.gateway, path, "local", body, LOCAL.key)


def named(body):
    """Replaces varying names, so that answers can be compared."""
    return OWN.sub(lambda found: next(filter(None, found.groups())) + b'"own"', body)


def row():
    """Requests, input and output tokens so far, by endpoint."""
    lines = json.loads(LOCAL.run("usage", "--by", "endpoint", "--json"))
    return {line["name"]: (line["requests"], line["uncached_input_tokens"], line["output_tokens"]) for line in lines}


def grown(endpoint, before, by):
    """Waits until the rows have grown by this amount."""
    want = tuple(old + more for old, more in zip(before.get(endpoint, (0, 0, 0)), by))
    gateway.wait_until(f"{want} of {endpoint}: {row()}", lambda: row().get(endpoint) == want)


class Relayed(unittest.TestCase):
    def test_vectors_arrive_byte_for_byte_with_reported_usage(self):
        for given in ["red fox", ["red fox", "a", "grey heron"], ["x" * 300] * 8]:
            before = row()
            direct, ours = both("embeddings", {"input": given})
            self.assertEqual((direct[0], ours[0]), (200, 200), ours)
            self.assertEqual(direct[2].replace(b'"model":"tiny"', b'"model":"local"'), ours[2])
            used = json.loads(direct[2])["usage"]["prompt_tokens"]
            grown("embeddings", before, (1, used, 0))

    def test_complete_completions_equal_direct_ones_also_with_suffix(self):
        for more in [{}, {"suffix": "\n    return a + b"}, {"stop": ["a", "e"]}, {"echo": True}]:
            before = row()
            body = {"prompt": "def add(", "max_tokens": 24, "temperature": 0, "seed": 7, **more}
            direct, ours = both("completions", body)
            self.assertEqual((direct[0], ours[0]), (200, 200), ours)
            self.assertEqual(named(direct[2]), named(ours[2]))
            self.assertEqual(json.loads(ours[2])["model"], "local")
            used = json.loads(direct[2])["usage"]
            grown("completions", before, (1, used["prompt_tokens"], used["completion_tokens"]))

    def test_streams_equal_direct_ones_event_by_event(self):
        for more in [{}, {"suffix": "\n    return a + b"}, {"stop": ["a", "e"]}]:
            body = {"prompt": "def add(", "max_tokens": 24, "temperature": 0, "seed": 7, "stream": True, **more}
            direct, ours = both("completions", body)
            self.assertEqual((direct[0], ours[0]), (200, 200), ours)
            events = lambda answer: [line for line in named(answer[2]).splitlines() if line.startswith(b"data: ")]
            self.assertEqual(events(direct), events(ours))
            self.assertEqual(events(ours)[-1], b"data: [DONE]")
            self.assertGreater(len(events(ours)), 1)

    def test_disconnected_client_frees_its_slot(self):
        connection = http.client.HTTPConnection(LOCAL.gateway, timeout=120)
        body = {"model": "local", "prompt": "def add(", "max_tokens": 1500, "temperature": 0, "stream": True}
        headers = {"content-type": "application/json", "authorization": f"Bearer {LOCAL.key}"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        self.assertTrue(answer.readline().startswith(b"data: "))
        connection.sock.close()
        answer.close()
        metrics = lambda: gateway.fetch(f"http://{LOCAL.admin}/metrics")[1].decode()
        gateway.wait_until("nothing to be under way", lambda: "\ntollgate_open_reservations 0\n" in metrics())
        direct, ours = both("completions", {"prompt": "x", "max_tokens": 3, "temperature": 0})
        self.assertEqual(named(direct[2]), named(ours[2]))

    def test_errors_keep_the_servers_message(self):
        direct, ours = both("completions", {"prompt": "x" * 4000, "max_tokens": 3})
        self.assertEqual((direct[0], ours[0]), (400, 400), ours)
        self.assertIn("context", json.loads(ours[2])["error"]["message"])
