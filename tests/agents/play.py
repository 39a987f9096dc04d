"""A scripted model in all three formats, complete and streamed: it writes a program, runs it, finds that it is wrong,
fixes it in two steps, runs it again while reading the file, and reports the result.

It is as strict as the providers that it imitates. It returns 400 for a call without its result, a result without its
call, reasoning that it did not send, or a member that is not part of the format. If a result is not the tools' real
output, the script ends with a message about that.
"""

import http.server
import json
import re
import threading

FILE = "sum.py"
WRONG, BETTER, RIGHT = "print(6 * 9)", "print(6 * 8)", "print(6 * 7)"
DONE = "It prints 42 now."
THOUGHT = "Let me see."
FOLDER = re.compile(r"in the folder (/[\w./-]+)")
# Part of the prompt with which a client requests a summary of its conversation.
COMPACTS = re.compile(r"create a detailed summary|CONTEXT CHECKPOINT COMPACTION|Create a new anchored summary")
# Errors of providers of each format for a prompt that is too long.
TOO_LONG = {
    "chat": {"message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 8227 tokens.",
             "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"},
    "messages": {"type": "invalid_request_error", "message": "prompt is too long: 200251 tokens > 200000 maximum"},
    "responses": {"message": "Your input exceeds the context window of this model. Please adjust your input and try again.",
                  "type": "invalid_request_error", "param": "input", "code": "context_length_exceeded"},
}
# Required text in a result, by the number of results.
SEEN = {2: "54", 5: "42", 6: RIGHT}

MEMBERS = {
    "chat": "model messages stream stream_options tools tool_choice parallel_tool_calls max_tokens max_completion_tokens "
    "temperature top_p stop user reasoning_effort prompt_cache_key response_format verbosity n seed",
    "messages": "model messages max_tokens system stream tools tool_choice thinking output_config temperature top_p "
    "stop_sequences metadata cache_control context_management",
    "responses": "model input instructions stream tools tool_choice parallel_tool_calls max_output_tokens temperature "
    "top_p reasoning text include store prompt_cache_key safety_identifier truncation metadata user "
    "service_tier client_metadata",
}


class Wrong(Exception):
    """A request that the provider refuses."""


def patch(*lines):
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])


def moves(tools, folder):
    """The calls of the script for the available tools; each step is a list of (tool, arguments or text)."""
    path = f"{folder}/{FILE}"
    if "apply_patch" in tools:
        write = ("apply_patch", patch(f"*** Add File: {FILE}", f"+{WRONG}"))
        edit = lambda old, new: ("apply_patch", patch(f"*** Update File: {FILE}", "@@", f"-{old}", f"+{new}"))
        shell = lambda command: ("exec_command", {"cmd": command})
    elif "Write" in tools:
        write = ("Write", {"file_path": path, "content": WRONG + "\n"})
        edit = lambda old, new: ("Edit", {"file_path": path, "old_string": old, "new_string": new})
        shell = lambda command: ("Bash", {"command": f"cd {folder} && {command}", "description": "Runs it"})
    elif "filePath" in json.dumps(tools.get("write", {})):
        write = ("write", {"filePath": path, "content": WRONG + "\n"})
        edit = lambda old, new: ("edit", {"filePath": path, "oldString": old, "newString": new})
        shell = lambda command: ("bash", {"command": command, "description": "Runs it"})
    elif "write_file" in tools:
        write = ("write_file", {"path": FILE, "content": WRONG + "\n"})
        edit = lambda old, new: ("edit_file", {"path": FILE, "old": old, "new": new})
        shell = lambda command: ("run_command", {"command": command})
    else:
        return None
    run = f"python3 {FILE}"
    return [[write], [shell(run)], [edit(WRONG, BETTER)], [edit(BETTER, RIGHT)], [shell(run), shell(f"cat {FILE}")]]


def text_of(content):
    """All text in a content, in any format."""
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, dict):
        return text_of(content.get("text") or content.get("content") or content.get("output") or "")
    return content if isinstance(content, str) else ""


class Turn:
    """A request in a neutral form, and the answer of the script."""

    def __init__(self, shape, body, given):
        self.shape, self.given = shape, given
        # Gemini 3 and later refuse a call of the current turn without its thought signature.
        self.signs = str(body.get("model")).startswith("gemini-3")
        unknown = {name for name, value in body.items() if value is not None} - set(MEMBERS[shape].split())
        if unknown:
            raise Wrong(f"unknown members: {sorted(unknown)}")
        self.calls, self.results, self.texts = [], {}, []
        # What the model said, which after a compaction includes the task.
        self.said = []
        # Reasoning of earlier turns that was sent back.
        self.kept = 0
        getattr(self, f"read_{shape}")(body)
        if set(self.results) != set(self.calls):
            raise Wrong(f"calls {self.calls} and results {sorted(self.results)}")
        folder = FOLDER.search("\n".join(self.texts + self.said))
        self.folder = folder.group(1) if folder else ""
        self.compacts = bool(self.texts and COMPACTS.search(self.texts[-1]))
        self.answer(moves(self.tools, self.folder))
        if self.compacts:
            self.say, self.next = f"The task: write a program that prints 42, in the folder {self.folder}, and run it.", []

    def read_chat(self, body):
        self.tools = {tool["function"]["name"]: tool for tool in body.get("tools") or []}
        self.thinks, open_calls, unsigned = True, [], []
        for message in body["messages"]:
            if message["role"] == "tool":
                if message["tool_call_id"] not in open_calls:
                    raise Wrong("a tool message must follow its call")
                self.results[message["tool_call_id"]] = text_of(message["content"])
                continue
            self.kept += message.get("reasoning_content") == THOUGHT
            calls = message.get("tool_calls") or []
            open_calls = [call["id"] for call in calls]
            self.calls += open_calls
            if message["role"] == "assistant":
                self.said.append(text_of(message.get("content")))
            if message["role"] == "user":
                self.texts.append(text_of(message["content"]))
                unsigned = []
            if self.signs and calls and calls[0].get("extra_content") != signature(open_calls[0]):
                unsigned.append(open_calls[0])
        if unsigned:
            raise Wrong(f"Function call is missing a thought_signature: {unsigned}")

    def read_messages(self, body):
        if "max_tokens" not in body:
            raise Wrong("max_tokens: Field required")
        self.tools = {tool["name"]: tool for tool in body.get("tools") or []}
        self.thinks = (body.get("thinking") or {}).get("type") in ["enabled", "adaptive"]
        open_calls, before = [], None
        for message in body["messages"]:
            blocks = message["content"] if isinstance(message["content"], list) else [{"type": "text", "text": message["content"]}]
            if message["role"] == before and message["role"] == "assistant":
                raise Wrong("roles must alternate")
            before = message["role"]
            here = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            if message["role"] == "user" and sorted(here) != sorted(open_calls):
                raise Wrong(f"tool_use ids without tool_result blocks immediately after: {open_calls}, {here}")
            open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
            self.calls += open_calls
            for block in blocks:
                if block["type"] == "tool_result":
                    self.results[block["tool_use_id"]] = text_of(block.get("content"))
                elif block["type"] == "thinking":
                    if block["signature"] not in self.given:
                        raise Wrong("Invalid `signature` in `thinking` block")
                    self.kept += 1
                elif block["type"] == "text":
                    (self.texts if message["role"] == "user" else self.said).append(block["text"])

    def read_responses(self, body):
        self.tools = {tool["name"]: tool for tool in body.get("tools") or [] if "name" in tool}
        self.thinks = True
        items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        for item in items:
            kind = item.get("type", "message")
            if kind in ["function_call", "custom_tool_call"]:
                self.calls.append(item["call_id"])
            elif kind.endswith("_call_output"):
                if item["call_id"] not in self.calls:
                    raise Wrong(f"No tool call found for function call output with call_id {item['call_id']}")
                self.results[item["call_id"]] = text_of(item["output"])
            elif kind == "reasoning" and item.get("encrypted_content"):
                if item["encrypted_content"] not in self.given:
                    raise Wrong("The encrypted content could not be verified")
                self.kept += 1
            elif kind == "message" and item["role"] in ["user", "assistant"]:
                (self.texts if item["role"] == "user" else self.said).append(text_of(item["content"]))

    def answer(self, steps):
        """The next step, by the results so far: calls, or the last message."""
        self.say, self.next, n = "ok", [], len(self.results)
        self.number = n
        if not steps or not self.folder:
            return
        seen = list(self.results.values())
        for at, want in SEEN.items():
            if n >= at and not any(want in text for text in (seen[at - 1 : at] if at < 5 else seen[4:])):
                self.say = f"Wrong result {at}: {seen}"
                return
        at = 0
        for step in steps:
            if n == at:
                self.next = [(f"{name}_{n + nth}", name, arguments) for nth, (name, arguments) in enumerate(step)]
            at += len(step)
        if not self.next:
            self.say = DONE if n == at else f"Wrong number of results: {n}"

    def arguments(self, arguments):
        """As a JSON text: free text is one argument for a function."""
        return json.dumps(arguments if isinstance(arguments, dict) else {"input": arguments})


def signature(call):
    """The member that Gemini adds to a call and requires back."""
    return {"google": {"thought_signature": f"SIG+/{call}=="}}


def halves(text):
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def chat(turn, stream, ids):
    usage = {"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 109}
    head = {"id": "chatcmpl-1", "created": 1, "model": "up"}
    stop = "tool_calls" if turn.next else "stop"
    calls = [
        {"id": ids(name), "type": "function", "function": {"name": tool, "arguments": turn.arguments(arguments)}}
        for name, tool, arguments in turn.next
    ]
    if turn.signs and calls:
        calls[0]["extra_content"] = signature(calls[0]["id"])
    if not stream:
        message = {"role": "assistant", "content": None if calls else turn.say, "reasoning_content": THOUGHT}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": stop}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    chunk = lambda delta, end=None: (None, {
        **head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": end}]
    })
    out = [chunk({"role": "assistant", "content": ""}), chunk({"reasoning_content": THOUGHT})]
    for index, call in enumerate(calls):
        first, second = halves(call["function"]["arguments"])
        opened = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        out.append(chunk({"tool_calls": [opened]}))
        out += [chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]}) for part in [first, second]]
    if not calls:
        out += [chunk({"content": part}) for part in halves(turn.say)]
    out += [chunk({}, stop), (None, {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})]
    return out + [(None, "[DONE]")]


def messages(turn, stream, ids):
    blocks = []
    if turn.thinks:
        signature = f"SIG{turn.number}"
        turn.given.add(signature)
        blocks.append({"type": "thinking", "thinking": THOUGHT, "signature": signature})
    for name, tool, arguments in turn.next:
        value = json.loads(turn.arguments(arguments))
        blocks.append({"type": "tool_use", "id": ids(name), "name": tool, "input": value})
    if not turn.next:
        blocks.append({"type": "text", "text": turn.say})
    stop = "tool_use" if turn.next else "end_turn"
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "up", "stop_sequence": None}
    usage = {"input_tokens": 100, "output_tokens": 9}
    if not stream:
        return {**message, "content": blocks, "stop_reason": stop, "usage": usage}
    out = [("message_start", {"message": {**message, "content": [], "stop_reason": None, "usage": usage}})]
    for index, block in enumerate(blocks):
        empty = {"thinking": {"thinking": "", "signature": ""}, "text": {"text": ""}, "tool_use": {"input": {}}}
        deltas = {
            "thinking": lambda: [("thinking", block["thinking"]), ("signature", block["signature"])],
            "text": lambda: [("text", part) for part in halves(block["text"])],
            "tool_use": lambda: [("input_json", part) for part in halves(json.dumps(block["input"]))],
        }[block["type"]]
        out.append(("content_block_start", {"index": index, "content_block": {**block, **empty[block["type"]]}}))
        for kind, text in deltas():
            name = {"input_json": "partial_json"}.get(kind, kind)
            out.append(("content_block_delta", {"index": index, "delta": {"type": f"{kind}_delta", name: text}}))
        out.append(("content_block_stop", {"index": index}))
    out.append(("message_delta", {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}))
    return [(kind, {"type": kind, **event}) for kind, event in [*out, ("message_stop", {})]]


def responses(turn, stream, ids):
    sealed = f"ENC{turn.number}"
    turn.given.add(sealed)
    items = [{"id": f"rs_{turn.number}", "type": "reasoning", "summary": [], "encrypted_content": sealed}]
    for name, tool, arguments in turn.next:
        call = {"status": "completed", "call_id": ids(name), "name": tool}
        if turn.tools[tool]["type"] == "custom":
            items.append({"id": f"ctc_{name}", "type": "custom_tool_call", **call, "input": arguments})
        else:
            items.append({"id": f"fc_{name}", "type": "function_call", **call, "arguments": turn.arguments(arguments)})
    if not turn.next:
        part = {"type": "output_text", "text": turn.say, "annotations": []}
        items.append({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]})
    usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 9,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 109}
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "up", "error": None, "tools": [],
                "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True,
                "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0, "store": False}
    whole = {**response, "status": "completed", "output": items, "usage": usage}
    if not stream:
        return whole
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    out = [("response.created", {"response": begun}), ("response.in_progress", {"response": begun})]
    for index, item in enumerate(items):
        place = {"output_index": index, "item_id": item["id"]}
        fresh = {"message": {"content": [], "status": "in_progress"}, "reasoning": {},
                 "function_call": {"arguments": "", "status": "in_progress"},
                 "custom_tool_call": {"input": "", "status": "in_progress"}}[item["type"]]
        out.append(("response.output_item.added", {"output_index": index, "item": {**item, **fresh}}))
        if item["type"] == "message":
            place["content_index"] = 0
            [part] = item["content"]
            out.append(("response.content_part.added", {**place, "part": {**part, "text": ""}}))
            for piece in halves(turn.say):
                out.append(("response.output_text.delta", {**place, "delta": piece, "logprobs": []}))
            out.append(("response.output_text.done", {**place, "text": turn.say, "logprobs": []}))
            out.append(("response.content_part.done", {**place, "part": part}))
        elif item["type"] in ["function_call", "custom_tool_call"]:
            name, kind = {"function_call": ("arguments", "function_call_arguments"),
                          "custom_tool_call": ("input", "custom_tool_call_input")}[item["type"]]
            for piece in halves(item[name]):
                out.append((f"response.{kind}.delta", {**place, "delta": piece}))
            out.append((f"response.{kind}.done", {**place, name: item[name], "name": item["name"]}))
        out.append(("response.output_item.done", {"output_index": index, "item": item}))
    out.append(("response.completed", {"response": whole}))
    return [(kind, {"type": kind, "sequence_number": at, **event}) for at, (kind, event) in enumerate(out)]


SHAPES = {
    "/v1/chat/completions": ("chat", chat, "call_{}"),
    "/v1/messages": ("messages", messages, "toolu_{}"),
    "/v1/responses": ("responses", responses, "call_{}"),
}


class Player:
    """The provider, on its own port. `refused` contains the requests that it refused."""

    def __init__(self):
        self.refused, self.given, self.failed = [], {}, set()
        # Amount of reasoning sent back with the last request of each folder.
        self.kept = {}
        # Folders of clients that were refused for the length of their prompt, and of those that compacted after that.
        self.full, self.compacted = set(), set()
        player = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                player.serve(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def serve(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        shape, write, form = SHAPES[handler.path]
        try:
            turn = Turn(shape, body, self.given.setdefault(shape, set()))
        except Wrong as wrong:
            self.refused.append(f"{shape}: {wrong}")
            return self.send(handler, 400, {"error": {"type": "invalid_request_error", "message": str(wrong)}})
        self.kept[turn.folder] = turn.kept
        if body["model"] == "full" and turn.number == 2 and turn.folder not in self.full:
            self.full.add(turn.folder)
            return self.send(handler, 400, {"type": "error", "error": TOO_LONG[shape]})
        if turn.compacts and turn.folder in self.full:
            self.compacted.add(turn.folder)
        elif turn.folder in self.compacted:
            # The client has continued, which is all that this step requires.
            turn.say, turn.next = DONE, []
        once = (body["model"], turn.folder)
        fails = turn.number == 1 and body["model"] in ["fails", "breaks"] and once not in self.failed
        if fails:
            self.failed.add(once)
        if fails and body["model"] == "fails":
            return self.send(handler, 500, {"error": {"type": "api_error", "message": "down"}})
        stream = body.get("stream") is True
        answer = write(turn, stream, form.format)
        if not stream:
            return self.send(handler, 200, answer)
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.close_connection = True
        for name, data in answer[:2] if fails else answer:
            text = data if isinstance(data, str) else json.dumps(data)
            handler.wfile.write(((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode())

    def send(self, handler, status, body):
        text = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
