"""The cases of the matrix and their results with both families of SDK: one neutral answer for each kind of request.

Used by suite_matrix. Sends and records only; does not judge the results.
"""

import dataclasses
import json

import anthropic
import openai
from pydantic import BaseModel

PNG = "iVBORw0KGgo="
EXPLANATION = "The simulated provider was told to refuse."
MODES = ["whole", "stream", "helper"]


class Place(BaseModel):
    city: str
    number: int


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "number": {"type": "integer"}},
    "required": ["city", "number"],
    "additionalProperties": False,
}


@dataclasses.dataclass
class Case:
    """One row of the matrix, in a neutral form."""

    name: str
    say: str
    system: str | None = None
    tools: tuple = ()
    history: bool = False
    image: bool = False
    think: bool = False
    schema: bool = False
    max_tokens: int = 4000
    stop: str | None = None
    no_meaning: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Answer:
    """The result, in a neutral form; `pieces` are texts in the order of their arrival."""

    id: str = ""
    model: str = ""
    text: str = ""
    thought: str = ""
    refusal: str | None = None
    calls: list = dataclasses.field(default_factory=list)
    ids: list = dataclasses.field(default_factory=list)
    stop: str | None = None
    sequence: str | None = None
    parsed: object = None
    prompt: int = 0
    completion: int = 0
    thinking_tokens: int | None = None
    pieces: int = 0
    signature: str | None = None
    raised: Exception | None = None


CASES = [
    Case("text", "one two\n#sim tokens=6"),
    Case("system", "one two\n#sim tokens=6", system="be brief"),
    Case("one tool", "go\n#sim tool", tools=("look",)),
    Case("three parallel tools", "go\n#sim tool calls=3 tokens=2", tools=("look", "read", "list")),
    Case("tool results", "go on\n#sim report", tools=("seek",), history=True),
    Case("image in", "what?\n#sim tokens=3", image=True),
    Case("thinking", "hm\n#sim think=5 tokens=4", think=True),
    Case("JSON schema", "where", schema=True),
    Case("stop by length", "x\n#sim tokens=30", max_tokens=16),
    Case("stop sequence", "x", stop="made", no_meaning={"responses": "the responses shape has no stop sequences"}),
    Case("refusal", "x\n#sim refuse tokens=4"),
    Case("error before", "x\n#sim status=529 message=too_much"),
    Case(
        "error in the middle",
        "x\n#sim tokens=9 error_after=3",
        no_meaning={"whole": "a whole answer has no middle: nothing is relayed before all of it is there"},
    ),
]


def parameters():
    return {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}}


class OpenAi:
    """The `openai` package."""

    error, refused = openai.APIError, openai.InternalServerError

    def __init__(self, gateway):
        self.client = openai.OpenAI(
            api_key=gateway.key, base_url=f"http://{gateway.gateway}/v1", max_retries=0, timeout=60
        )

    def request(self, case, model):
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
        messages = [{"role": "system", "content": case.system}] if case.system else []
        if case.history:
            call = lambda id: {"id": id, "type": "function", "function": {"name": "seek", "arguments": '{"n":1}'}}
            messages += [
                {"role": "user", "content": "seek both"},
                {"role": "assistant", "tool_calls": [call("c1"), call("c2")]},
                {"role": "tool", "tool_call_id": "c1", "content": "seen"},
                {"role": "tool", "tool_call_id": "c2", "content": "it broke"},
            ]
        parts = [image] if case.image or case.history else []
        content = [*parts, {"type": "text", "text": case.say}] if parts else case.say
        asked = {"model": model, "max_tokens": case.max_tokens, "messages": [*messages, {"role": "user", "content": content}]}
        if case.tools:
            function = lambda name: {"name": name, "description": "a tool", "parameters": parameters()}
            asked["tools"] = [{"type": "function", "function": function(name)} for name in case.tools]
        if case.think:
            asked["reasoning_effort"] = "low"
        if case.schema:
            named = {"name": "place", "strict": True, "schema": SCHEMA}
            asked["response_format"] = {"type": "json_schema", "json_schema": named}
        if case.stop:
            asked["stop"] = [case.stop]
        return asked

    def whole(self, case, asked):
        return self.read(self.client.chat.completions.create(**asked))

    def read(self, answer, parsed=None):
        [choice] = answer.choices
        message = choice.message
        calls = message.tool_calls or []
        details = answer.usage.completion_tokens_details
        return Answer(
            id=answer.id,
            model=answer.model,
            text=message.content or "",
            thought=(message.model_extra or {}).get("reasoning_content") or "",
            refusal=message.refusal,
            calls=[(call.function.name, json.loads(call.function.arguments)) for call in calls],
            ids=[call.id for call in calls],
            stop=choice.finish_reason,
            parsed=parsed,
            prompt=answer.usage.prompt_tokens,
            completion=answer.usage.completion_tokens,
            thinking_tokens=details and details.reasoning_tokens,
        )

    def stream(self, case, asked):
        answer, arguments, names = Answer(), {}, {}
        options = {"include_usage": True}
        stream = self.client.chat.completions.create(**asked, stream=True, stream_options=options)
        try:
            for chunk in stream:
                answer.id, answer.model = chunk.id, chunk.model
                if chunk.usage:
                    answer.prompt, answer.completion = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                    details = chunk.usage.completion_tokens_details
                    answer.thinking_tokens = details and details.reasoning_tokens
                for choice in chunk.choices:
                    delta = choice.delta
                    answer.pieces += bool(delta.content)
                    answer.text += delta.content or ""
                    answer.thought += (delta.model_extra or {}).get("reasoning_content") or ""
                    if delta.refusal is not None:
                        answer.refusal = (answer.refusal or "") + delta.refusal
                    answer.stop = choice.finish_reason or answer.stop
                    for call in delta.tool_calls or []:
                        if call.id:
                            answer.ids.append(call.id)
                            names[call.index] = call.function.name
                        arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
        except openai.APIError as error:
            answer.raised = error
        answer.calls = [(names[at], json.loads(text)) for at, text in sorted(arguments.items())]
        return answer

    def helper(self, case, asked):
        if case.schema:
            asked = {**asked, "response_format": Place}
        seen = 0
        options = {"include_usage": True}
        with self.client.chat.completions.stream(**asked, stream_options=options) as stream:
            try:
                for event in stream:
                    seen += event.type == "content.delta"
                answer = stream.get_final_completion()
            except (openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError) as error:
                # The helper always raises for these two ends; the answer so far remains available.
                answer = stream.current_completion_snapshot
                return dataclasses.replace(self.read(answer), raised=error, pieces=seen)
            except openai.APIError as error:
                snapshot = stream.current_completion_snapshot
                text = snapshot.choices[0].message.content
                return Answer(id=snapshot.id, model=snapshot.model, text=text, pieces=seen, raised=error)
        return self.read(answer, answer.choices[0].message.parsed)


class Anthropic:
    """The `anthropic` package."""

    error, refused = anthropic.APIError, anthropic.InternalServerError

    def __init__(self, gateway):
        self.client = anthropic.Anthropic(
            api_key=gateway.key, base_url=f"http://{gateway.gateway}", max_retries=0, timeout=60
        )

    def request(self, case, model):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
        messages, parts = [], []
        if case.history:
            call = lambda id: {"type": "tool_use", "id": id, "name": "seek", "input": {"n": 1}}
            messages += [{"role": "user", "content": "seek both"}, {"role": "assistant", "content": [call("c1"), call("c2")]}]
            seen = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "seen"}, image]}
            broke = {"type": "tool_result", "tool_use_id": "c2", "content": "it broke", "is_error": True}
            parts = [seen, broke]
        parts += [image] if case.image else []
        content = [*parts, {"type": "text", "text": case.say}] if parts else case.say
        asked = {"model": model, "max_tokens": case.max_tokens, "messages": [*messages, {"role": "user", "content": content}]}
        if case.system:
            asked["system"] = case.system
        if case.tools:
            tool = lambda name: {"name": name, "description": "a tool", "input_schema": parameters()}
            asked["tools"] = [tool(name) for name in case.tools]
        if case.think:
            asked["thinking"] = {"type": "enabled", "budget_tokens": 2048}
        if case.schema:
            asked["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
        if case.stop:
            asked["stop_sequences"] = [case.stop]
        return asked

    def whole(self, case, asked):
        return self.read(self.client.messages.create(**asked))

    def read(self, answer, parsed=None):
        blocks = lambda kind: [block for block in answer.content if block.type == kind]
        calls, details = blocks("tool_use"), answer.usage.output_tokens_details
        return Answer(
            id=answer.id,
            model=answer.model,
            text="".join(block.text for block in blocks("text")),
            thought="".join(block.thinking for block in blocks("thinking")),
            signature=next((block.signature for block in blocks("thinking")), None),
            refusal=answer.stop_details and answer.stop_details.explanation,
            calls=[(call.name, call.input) for call in calls],
            ids=[call.id for call in calls],
            stop=answer.stop_reason,
            sequence=answer.stop_sequence,
            parsed=parsed,
            prompt=answer.usage.input_tokens,
            completion=answer.usage.output_tokens,
            thinking_tokens=details and details.thinking_tokens,
        )

    def stream(self, case, asked):
        answer, blocks = Answer(), []
        stream = self.client.messages.create(**asked, stream=True)
        try:
            for event in stream:
                self.note(event, answer, blocks)
        except anthropic.APIError as error:
            answer.raised = error
        tools = [block for block in blocks if block["type"] == "tool_use"]
        answer.calls = [(block["name"], json.loads(block["json"] or "{}")) for block in tools]
        answer.ids = [block["id"] for block in tools]
        return answer

    def note(self, event, answer, blocks):
        if event.type == "message_start":
            answer.id, answer.model = event.message.id, event.message.model
            assert event.message.usage.input_tokens > 0
        elif event.type == "content_block_start":
            assert event.index == len(blocks)
            block = event.content_block
            blocks.append({"type": block.type, "id": getattr(block, "id", None), "name": getattr(block, "name", None), "json": ""})
        elif event.type == "content_block_delta":
            assert event.index == len(blocks) - 1
            delta = event.delta
            if delta.type == "text_delta":
                answer.text += delta.text
                answer.pieces += 1
            elif delta.type == "thinking_delta":
                answer.thought += delta.thinking
            elif delta.type == "signature_delta":
                answer.signature = delta.signature
            elif delta.type == "input_json_delta":
                blocks[-1]["json"] += delta.partial_json
        elif event.type == "message_delta":
            answer.stop, answer.sequence = event.delta.stop_reason, event.delta.stop_sequence
            details = event.delta.stop_details
            answer.refusal = details and details.explanation
            answer.prompt, answer.completion = event.usage.input_tokens, event.usage.output_tokens
            details = event.usage.output_tokens_details
            answer.thinking_tokens = details and details.thinking_tokens

    def helper(self, case, asked):
        if case.schema:
            asked = {key: value for key, value in asked.items() if key != "output_config"} | {"output_format": Place}
        seen = 0
        with self.client.messages.stream(**asked) as stream:
            try:
                for event in stream:
                    seen += event.type == "text"
            except anthropic.APIError as error:
                so_far = stream.current_message_snapshot
                text = "".join(block.text for block in so_far.content if block.type == "text")
                return Answer(id=so_far.id, model=so_far.model, text=text, pieces=seen, raised=error)
            answer = stream.get_final_message()
        return self.read(answer, getattr(answer, "parsed_output", None))
