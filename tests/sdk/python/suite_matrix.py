"""Both families of official SDK with every kind of upstream: complete, streamed, and with the accumulating helper.

Every cell is a test. At the end the matrix is printed, with the number of checks in each cell.
"""

import re
import unittest

import openai

import cases
from cases import CASES, EXPLANATION, PNG, SCHEMA, MODES

GATEWAY = None
REQUEST_ID = re.compile(r"^req_[0-9a-f]{32}$")
FAMILIES = {"openai": cases.OpenAi, "anthropic": cases.Anthropic}
MODELS = {"chat": "small", "messages": "large", "responses": "newer"}
STOPS = {
    "end": ("stop", "end_turn"),
    "tools": ("tool_calls", "tool_use"),
    "length": ("length", "max_tokens"),
    "refusal": ("content_filter", "refusal"),
    "sequence": ("stop", "stop_sequence"),
}
COUNTS = {}


class Cell:
    """One cell: client, upstream, kind of request and case, and the checks of the response."""

    def __init__(self, test, family, upstream, mode, case):
        self.test, self.family, self.upstream, self.mode, self.case = test, family, upstream, mode, case
        self.checked = 0

    def same(self, got, expected, what):
        self.test.assertEqual(got, expected, what)
        self.checked += 1

    def run(self):
        sdk = FAMILIES[self.family](GATEWAY)
        asked = sdk.request(self.case, MODELS[self.upstream])
        method = self.case.name.replace(" ", "_").lower()
        if self.case.name == "error before":
            return self.error_before(sdk, asked)
        answer = getattr(sdk, self.mode)(self.case, asked)
        self.same(bool(REQUEST_ID.match(answer.id)), True, "the id is the gateway's")
        self.same(answer.model, MODELS[self.upstream], "the model is the catalog's")
        getattr(self, method)(answer, GATEWAY.last()["body"])
        if self.case.name != "error in the middle":
            self.raised(answer)
            self.same(answer.prompt > 0 and answer.completion > 0, True, "usage is there")

    def stop(self, answer, kind):
        word = STOPS[kind][self.family == "anthropic"]
        self.same(answer.stop, word, "the reason for the end")

    def raised(self, answer):
        """Checks that the `openai` helper raises its two errors for a cut or filtered response, and nothing else
        raises."""
        kind = {"stop by length": openai.LengthFinishReasonError, "refusal": openai.ContentFilterFinishReasonError}
        if (self.family, self.mode) != ("openai", "helper"):
            kind = {}
        self.same(type(answer.raised), kind.get(self.case.name, type(None)), f"what was raised: {answer.raised}")

    def text(self, answer, heard):
        self.same(answer.text, "This answer was made by the", "the text")
        self.same((answer.calls, answer.thought, answer.refusal), ([], "", None), "nothing else")
        self.same((answer.prompt, answer.completion), (4, 6), "the usage")
        [said] = self.talk(heard)
        blocks = [{"type": "text", "text": self.case.say}]
        as_blocks = (self.family, self.upstream) == ("openai", "messages")
        self.same(said, {"role": "user", "content": blocks if as_blocks else self.case.say}, "what the upstream heard")
        self.stop(answer, "end")

    def talk(self, heard):
        """The messages that the upstream received; in the responses format, without the types of items."""
        if self.upstream != "responses":
            return heard["messages"]
        return [{k: v for k, v in item.items() if (k, v) != ("type", "message")} for item in heard["input"]]

    def system(self, answer, heard):
        self.same(answer.text, "This answer was made by the", "the text")
        self.same(answer.prompt, 6, "the prompt's tokens")
        if self.upstream == "responses":
            self.same(heard["instructions"], "be brief", "what the upstream heard")
        elif self.upstream == "chat":
            self.same(heard["messages"][0], {"role": "system", "content": "be brief"}, "what the upstream heard")
        else:
            blocks = [{"type": "text", "text": "be brief"}]
            self.same(heard["system"], "be brief" if self.family == "anthropic" else blocks, "what the upstream heard")
        self.same(len(self.talk(heard)), 2 if self.upstream == "chat" else 1, "the other messages")
        self.stop(answer, "end")

    def heard_tools(self, heard):
        if self.upstream == "chat":
            functions = [tool["function"] for tool in heard["tools"]]
            return [(function["name"], function["parameters"]) for function in functions]
        name = "parameters" if self.upstream == "responses" else "input_schema"
        return [(tool["name"], tool[name]) for tool in heard["tools"]]

    def one_tool(self, answer, heard):
        self.same(answer.calls, [("look", {"city": "Oslo", "n": 1})], "the call")
        self.same(answer.text, "", "no text")
        self.same(self.heard_tools(heard), [("look", cases.parameters())], "the tool that the upstream heard of")
        self.stop(answer, "tools")

    def three_parallel_tools(self, answer, heard):
        expected = [(name, {"city": "Oslo", "n": at + 1}) for at, name in enumerate(self.case.tools)]
        self.same(answer.calls, expected, "the calls")
        self.same(answer.text, "This answer", "the text before them")
        self.same(len(set(answer.ids)), 3, "each call has an id of its own")
        self.same(len(self.heard_tools(heard)), 3, "the tools that the upstream heard of")
        self.stop(answer, "tools")

    def tool_results(self, answer, heard):
        told = {
            ("anthropic", "chat"): "seen\n[see the attachment in the next user message] [tool_error] it broke",
            ("anthropic", "responses"): "seen [tool_error] it broke",
        }.get((self.family, self.upstream), "seen it broke")
        self.same(answer.text, told, "the results as the upstream read them")
        messages = self.talk(heard)
        if self.upstream == "responses":
            kinds = ["user", "function_call", "function_call", "function_call_output", "function_call_output", "user"]
            self.same([item.get("type") or item["role"] for item in messages], kinds, "the order")
            self.same([item["call_id"] for item in messages[1:5]], ["c1", "c2"] * 2, "the pairs")
            places = messages[3]["output"] if self.family == "anthropic" else messages[5]["content"]
            images = [part["image_url"] for part in places if part["type"] == "input_image"]
            self.same(images, [f"data:image/png;base64,{PNG}"], "the image")
        elif self.upstream == "chat":
            roles = ["user", "assistant", "tool", "tool", "user"]
            self.same([message["role"] for message in messages], roles, "the order")
            self.same([message["tool_call_id"] for message in messages[2:4]], ["c1", "c2"], "the pairs")
            parts = [part for part in messages[4]["content"] if part["type"] == "image_url"]
            self.same([part["image_url"]["url"] for part in parts], [f"data:image/png;base64,{PNG}"], "the image")
        else:
            self.same([message["role"] for message in messages], ["user", "assistant", "user"], "the order")
            results = [block for block in messages[2]["content"] if block["type"] == "tool_result"]
            self.same([block["tool_use_id"] for block in results], ["c1", "c2"], "the pairs")
            self.same(messages[2]["content"][:2], results, "results come first")
            places = results[0]["content"] if self.family == "anthropic" else messages[2]["content"]
            images = [block["source"] for block in places if block["type"] == "image"]
            self.same(images, [{"type": "base64", "media_type": "image/png", "data": PNG}], "the image")
            if self.family == "anthropic":
                self.same(results[1]["is_error"], True, "the error")
        self.stop(answer, "end")

    def image_in(self, answer, heard):
        self.same(answer.text, "This answer was", "the text")
        image, text = self.talk(heard)[0]["content"]
        kind = "input_text" if self.upstream == "responses" else "text"
        self.same(text, {"type": kind, "text": self.case.say}, "the text beside it")
        if self.upstream == "responses":
            self.same(image["image_url"], f"data:image/png;base64,{PNG}", "the image")
        elif self.upstream == "chat":
            self.same(image["image_url"]["url"], f"data:image/png;base64,{PNG}", "the image")
        else:
            self.same(image["source"], {"type": "base64", "media_type": "image/png", "data": PNG}, "the image")
        self.stop(answer, "end")

    def thinking(self, answer, heard):
        self.same(answer.thought, "This answer was made by", "the reasoning")
        self.same(answer.text, "This answer was made", "the text")
        self.same((answer.completion, answer.thinking_tokens), (9, 5), "the usage")
        if self.family == "anthropic":
            # For a responses upstream it carries the reasoning that the upstream requires back.
            start = {"chat": "", "messages": "c2ltdWxhdGVk", "responses": "tg1."}[self.upstream]
            signature = answer.signature[: len(start)] if self.upstream == "responses" else answer.signature
            self.same(signature, start, "the signature")
        if self.family == "anthropic" and self.upstream == "messages":
            self.same(heard["thinking"]["budget_tokens"], 2048, "what the upstream heard")
        self.stop(answer, "end")

    def json_schema(self, answer, heard):
        self.same(cases.Place.model_validate_json(answer.text), cases.Place(city="Oslo", number=1), "the text")
        if self.mode == "helper":
            self.same(answer.parsed, cases.Place(city="Oslo", number=1), "the object the helper made of it")
        if self.upstream == "responses":
            schema = heard["text"]["format"]["schema"]
        elif self.upstream == "chat":
            schema = heard["response_format"]["json_schema"]["schema"]
        else:
            schema = heard["output_config"]["format"]["schema"]
        self.same(sorted(schema["properties"]), sorted(SCHEMA["properties"]), "the schema")
        self.same(schema["additionalProperties"], False, "the schema is closed")
        self.stop(answer, "end")

    def stop_by_length(self, answer, heard):
        self.same(len(answer.text.split()), 16, "the text")
        name = "max_output_tokens" if self.upstream == "responses" else "max_tokens"
        self.same(heard[name], 16, "what the upstream heard")
        self.same(answer.completion, 16, "the usage")
        self.stop(answer, "length")

    def stop_sequence(self, answer, heard):
        self.same(answer.text, "This answer was ", "the text")
        self.same(heard["stop" if self.upstream == "chat" else "stop_sequences"], ["made"], "what the upstream heard")
        told = self.family == "anthropic" and self.upstream == "messages"
        # A chat upstream reports neither that a sequence ended the answer nor which one.
        self.same(answer.sequence, "made" if told else None, "the sequence")
        self.stop(answer, "sequence" if told or self.family == "openai" else "end")

    def refusal(self, answer, heard):
        said = "This answer was made"
        explained = EXPLANATION if self.upstream == "messages" else None
        if self.family == "openai" and self.upstream != "messages":
            self.same((answer.text, answer.refusal), ("", said), "the refusal")
        else:
            self.same((answer.text, answer.refusal), (said, explained), "the refusal")
        self.stop(answer, "refusal")

    def error_before(self, sdk, asked):
        with self.test.assertRaises(sdk.refused) as raised:
            getattr(sdk, self.mode)(self.case, asked)
        error = raised.exception
        self.same(error.status_code, 500, "the status")
        self.same(error.type, "upstream_error", "the type")
        self.same(bool(REQUEST_ID.match(error.request_id)), True, "the id")

    def error_in_the_middle(self, answer, heard):
        self.same(answer.text, "This answer was", "what came before it")
        self.same(isinstance(answer.raised, FAMILIES[self.family].error), True, f"raised: {answer.raised!r}")
        self.same(answer.raised.type, "upstream_error", "the type")
        body = answer.raised.body if self.family == "openai" else answer.raised.body["error"]
        self.same(body["request_id"], answer.id, "the id is that of the stream")
        self.same(answer.stop, None, "no reason for an end")


def test_of(family, upstream, mode, case):
    def test(self):
        cell = Cell(self, family, upstream, mode, case)
        COUNTS[family, upstream, mode, case.name] = "FAIL"
        cell.run()
        COUNTS[family, upstream, mode, case.name] = cell.checked

    return test


class Matrix(unittest.TestCase):
    """The code below adds one test for each meaningful cell."""


for family in FAMILIES:
    for upstream in MODELS:
        for mode in MODES:
            for case in CASES:
                if not {mode, upstream} & set(case.no_meaning):
                    name = f"test_{family}_at_{upstream}_{mode}_{case.name.replace(' ', '_')}"
                    setattr(Matrix, name, test_of(family, upstream, mode, case))


def tearDownModule():
    columns = [(family, upstream, mode) for family in FAMILIES for upstream in MODELS for mode in MODES]
    print("\nchecks in each cell of the matrix; - is not applicable")
    for part in range(3):
        print(f"{'':<22}" + "".join(f"{column[part]:>10}" for column in columns))
    for case in CASES:
        lacks = lambda column: set(column[1:]) & set(case.no_meaning)
        cells = ["-" if lacks(column) else COUNTS.get((*column, case.name), "") for column in columns]
        print(f"{case.name:<22}" + "".join(f"{cell:>10}" for cell in cells))
    for case in CASES:
        for mode, why in case.no_meaning.items():
            print(f"- {case.name}, {mode}: {why}")
    done = [count for count in COUNTS.values() if count != "FAIL"]
    print(f"{len(done)} of {len(COUNTS)} cells passed, {sum(done)} checks")
