"""A scripted model behind Chat Completions and embeddings, for suites that judge what a model does with tools and
schemas. It calls the tools that a prompt is about, and fills schemas: texts with the prompt, numbers with those of the
prompt. The gateway translates it for clients of the other formats."""

import http.server
import itertools
import json
import re
import threading

# Prompts that forbid tools, that need none unless they are about one, and that need a tool twice.
FORBIDDEN = re.compile(r"(do not|don't|without|no) (use |call )?(any |a )?tool", re.IGNORECASE)
PLAIN = re.compile(FORBIDDEN.pattern + r"|2 ?\+ ?2|\b(hello|hi|joke)\b", re.IGNORECASE)
TWICE = re.compile(r"\b(both|two|twice|parallel|each|per)\b", re.IGNORECASE)
ABOUT = re.compile(r"\b(weather|magic|magic_function|tool|call)\b", re.IGNORECASE)
IDS = itertools.count(1)


def text_of(content):
    """All text of a content."""
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content)
    return content or ""


def value_of(schema, prompt, root):
    """A value that conforms to a schema."""
    if "$ref" in schema:
        place = root
        for step in schema["$ref"].lstrip("#/").split("/"):
            place = place[step]
        return value_of(place, prompt, root)
    for word in ["anyOf", "oneOf", "allOf"]:
        if schema.get(word):
            return value_of(schema[word][0], prompt, root)
    if "const" in schema or schema.get("enum"):
        return schema.get("const", (schema.get("enum") or [None])[0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    number = re.search(r"-?\d+", prompt)
    if kind == "object":
        return {name: value_of(part, prompt, root) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return [value_of(schema.get("items", {}), prompt, root) for _ in range(schema.get("minItems", 2))]
    return {"integer": int(number[0]) if number else 3, "number": 3.5, "boolean": True, "null": None}.get(kind, prompt)


def schema_in(text):
    """The first schema of an object in a text; some clients describe the format in the prompt."""
    for match in re.finditer(r'\{"', text):
        try:
            found, _ = json.JSONDecoder().raw_decode(text[match.start():])
        except json.JSONDecodeError:
            continue
        if "properties" in found:
            return found
    return None


def written(value):
    return json.dumps(value, ensure_ascii=False)


def chosen(body, prompt):
    """The tools to call."""
    tools = [tool["function"] for tool in body.get("tools") or [] if tool["type"] == "function"]
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        return [tool for tool in tools if tool["name"] == choice["function"]["name"]]
    if choice == "required":
        return tools[:1]
    needs_none = PLAIN.search(prompt) and (FORBIDDEN.search(prompt) or not ABOUT.search(prompt))
    if choice == "none" or body["messages"][-1]["role"] == "tool" or needs_none:
        return []
    tools = [tool for tool in tools if tool["name"] in prompt] or tools[:1]
    return tools * 2 if TWICE.search(prompt) and len(tools) == 1 else tools


def answer(body):
    """The model's text and calls."""
    messages = body["messages"]
    prompt = next((text_of(message["content"]) for message in reversed(messages) if message["role"] == "user"), "")
    calls = []
    for tool in chosen(body, prompt):
        schema = tool.get("parameters") or {"type": "object"}
        function = {"name": tool["name"], "arguments": written(value_of(schema, prompt, schema))}
        calls.append({"id": f"call_{next(IDS):08}", "type": "function", "function": function})
    wanted = body.get("response_format") or {"type": "text"}
    if calls:
        return None, calls
    if wanted["type"] == "json_schema":
        schema = wanted["json_schema"]["schema"]
    else:
        texts = [text_of(message.get("content")) for message in messages if message["role"] != "tool"]
        schema = schema_in(" ".join(texts))
    if schema:
        return written(value_of(schema, prompt, schema)), []
    if wanted["type"] == "json_object" or re.search(r"\bJSON\b", prompt, re.IGNORECASE):
        return '{"setup": "a setup", "punchline": "a punchline"}', []
    results = [text_of(message["content"]) for message in messages if message["role"] == "tool"]
    return " ".join(["An answer of some words:", *results, "1 2 3."]), []


def pieces(text):
    return [text[at:at + 7] for at in range(0, len(text), 7)]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, kind, data):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("/embeddings"):
            return self.embeddings(body)
        text, calls = answer(body)
        usage = {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21}
        common = {"id": f"chatcmpl-{next(IDS)}", "created": 1_700_000_000, "model": body["model"]}
        end = "tool_calls" if calls else "stop"
        if not body.get("stream"):
            message = {"role": "assistant", "content": text, "refusal": None}
            if calls:
                message["tool_calls"] = calls
            choice = {"index": 0, "message": message, "finish_reason": end, "logprobs": None}
            whole = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
            return self.reply("application/json", json.dumps(whole).encode())
        deltas = [{"role": "assistant", "content": "" if text else None}]
        deltas += [{"content": piece} for piece in pieces(text or "")]
        for index, call in enumerate(calls):
            begun = {"name": call["function"]["name"], "arguments": ""}
            deltas.append({"tool_calls": [{**call, "index": index, "function": begun}]})
            deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
                       for piece in pieces(call["function"]["arguments"])]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": end}]})
        chunks.append({"choices": [], "usage": usage})
        lines = [json.dumps({**common, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
        return self.reply("text/event-stream", "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode())

    def embeddings(self, body):
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [{"object": "embedding", "index": index, "embedding": [len(json.dumps(one)) / 1000, 0.5, 0.25]}
                for index, one in enumerate(inputs)]
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        whole = {"object": "list", "model": body["model"], "data": data, "usage": usage}
        self.reply("application/json", json.dumps(whole).encode())


class Model:
    """The model, at a free port."""

    def __init__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
