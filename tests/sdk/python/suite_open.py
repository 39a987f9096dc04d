"""The seven cases of the Open Responses compliance test and some more. Every complete response and every event of a
stream is checked strictly with the published schema (`openresponses-types`) and with the types of the `openai` package.
The models have a chat upstream and a messages upstream, since Tollgate writes their responses itself.
"""

import json
import unittest
import urllib.request

import openai.types.responses as sdk
import openresponses_types.types as published
from pydantic import TypeAdapter

GATEWAY = None
MODELS = {"chat": "small", "messages": "large"}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a place",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "City and state"}},
        "required": ["location"],
    },
}
PATCH = {"type": "custom", "name": "patch", "description": "Changes files."}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
SDK_EVENT = TypeAdapter(sdk.ResponseStreamEvent)


def said(role, content):
    return {"type": "message", "role": role, "content": content}


def user(text):
    return [said("user", text)]


# The cases of the compliance test, by name: input, other members of the request, true if streamed, required kinds of
# items in the response.
CASES = {
    "basic-response": (user("Say hello in three words. #sim tokens=3"), {}, False, ["message"]),
    "streaming-response": (user("Count from 1 to 5. #sim tokens=5"), {}, True, ["message"]),
    "system-prompt": ([said("system", "Speak as a pirate."), *user("Say hello.")], {}, False, ["message"]),
    "tool-calling": (user("The weather? #sim tool=get_weather"), {"tools": [WEATHER]}, False, ["function_call"]),
    "tool-calling-streaming": (user("The weather? #sim tool=get_weather"), {"tools": [WEATHER]}, True, ["function_call"]),
    "image-input": (
        user([{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PIXEL}]),
        {},
        False,
        ["message"],
    ),
    "multi-turn": (
        [said("user", "My name is Alice."), said("assistant", "Hello Alice!"), said("user", "What is my name?")],
        {},
        False,
        ["message"],
    ),
}
# Further cases that agents encounter.
MORE = {
    "reasoning": (user("x #sim think=4 tokens=3"), {"reasoning": {"summary": "auto"}}, ["reasoning", "message"]),
    "several calls": (user("x #sim tool=get_weather calls=3"), {"tools": [WEATHER]}, ["function_call"] * 3),
    "cut": (user("x #sim tokens=40"), {"max_output_tokens": 20}, ["message"]),
    "refusal": (user("x #sim refuse tokens=3"), {}, ["message"]),
    "said again": (
        user("x"),
        {"temperature": 0.5, "top_p": 0.5, "metadata": {"a": "b"}, "tool_choice": "auto", "tools": [WEATHER],
         "parallel_tool_calls": False, "prompt_cache_key": "k", "safety_identifier": "u", "instructions": "be brief"},
        ["message"],
    ),
}


def event_types():
    """The published types of events, by their first word."""
    found = {}
    for name, kind in vars(published).items():
        if name.endswith("StreamingEvent"):
            [word] = kind.model_fields["type"].annotation
            found[word.value] = kind
    return found


PUBLISHED_EVENTS = event_types()


def ask(body):
    """The bytes of a response."""
    request = urllib.request.Request(
        f"http://{GATEWAY.gateway}/v1/responses",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {GATEWAY.key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


class Open(unittest.TestCase):
    def check_response(self, text):
        """Checks a complete response against both schemas."""
        published.ResponseResource.model_validate_json(text, strict=True)
        sdk.Response.model_validate_json(text, strict=True)
        return json.loads(text)

    def events(self, text):
        """Checks a stream against both schemas; returns its final response."""
        events = [event.split("data: ", 1)[1] for event in text.decode().strip().split("\n\n")]
        self.assertEqual([json.loads(event)["sequence_number"] for event in events], list(range(len(events))))
        for event in events:
            PUBLISHED_EVENTS[json.loads(event)["type"]].model_validate_json(event, strict=True)
            SDK_EVENT.validate_json(event, strict=True)
        self.check_response(json.dumps(json.loads(events[-1])["response"]))
        return [json.loads(event) for event in events]

    def run_case(self, model, items, more, streamed, kinds, status):
        text = ask({"model": model, "input": items, **more, "stream": streamed})
        if streamed:
            events = self.events(text)
            answer = events[-1]["response"]
            told = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            self.assertEqual(told, answer["output"])
            heard = {event["type"] for event in events}
            if "function_call" in kinds:
                self.assertLessEqual({f"response.function_call_arguments.{end}" for end in ["delta", "done"]}, heard)
        else:
            answer = self.check_response(text)
        self.assertEqual([item["type"] for item in answer["output"]], kinds)
        self.assertEqual(answer["status"], status)

    def test_compliance(self):
        for model in MODELS.values():
            for name, (items, more, streamed, kinds) in CASES.items():
                with self.subTest(f"{name} at {model}"):
                    self.run_case(model, items, more, streamed, kinds, "completed")

    def test_more(self):
        for model in MODELS.values():
            for name, (items, more, kinds) in MORE.items():
                for streamed in [False, True]:
                    with self.subTest(f"{name} at {model}, streamed: {streamed}"):
                        status = "incomplete" if name in ["cut", "refusal"] else "completed"
                        self.run_case(model, items, more, streamed, kinds, status)

    def test_members_of_only_one_schema(self):
        """A custom tool, and a schema for the response; the published schema has only null for both."""
        format = {"type": "json_schema", "name": "s", "schema": {"type": "object", "properties": {}}}
        for model in MODELS.values():
            for text, more, kind in [("x #sim tool=patch", {"tools": [PATCH]}, "custom_tool_call"),
                                     ("x", {"text": {"format": format}}, "message")]:
                with self.subTest(f"{kind} at {model}"):
                    said = ask({"model": model, "input": user(text), **more, "stream": True})
                    events = [event.split("data: ", 1)[1] for event in said.decode().strip().split("\n\n")]
                    for event in events:
                        SDK_EVENT.validate_json(event, strict=True)
                    self.assertEqual(json.loads(events[-1])["response"]["output"][0]["type"], kind)

    def test_failure_in_mid_stream(self):
        for model in MODELS.values():
            with self.subTest(model):
                text = ask({"model": model, "input": user("x #sim tokens=9 error_after=3"), "stream": True})
                events = [event.split("data: ", 1)[1] for event in text.decode().strip().split("\n\n")]
                self.assertEqual([json.loads(event)["type"] for event in events[-2:]], ["error", "response.failed"])
                for event in events:
                    SDK_EVENT.validate_json(event, strict=True)
                failed = json.dumps(json.loads(events[-1])["response"])
                published.ResponseResource.model_validate_json(failed, strict=True)
