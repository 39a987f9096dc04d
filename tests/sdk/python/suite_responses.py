"""The official `openai` package, unmodified, at the responses endpoint: models behind an upstream of every format; and
both families at a model whose provider has only this format."""

import json
import re
import unittest

import anthropic
import openai
from pydantic import BaseModel

GATEWAY = None
REQUEST_ID = re.compile(r"^req_[0-9a-f]{32}$")
PIXEL = "data:image/png;base64,iVBORw0KGgo="
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
TEXT = "This answer was made by the"


def client(key=None, **options):
    options = {"max_retries": 0, "timeout": 60, **options}
    return openai.OpenAI(api_key=key or GATEWAY.key, base_url=f"http://{GATEWAY.gateway}/v1", **options)


class Place(BaseModel):
    city: str
    number: int


class Chat(unittest.TestCase):
    """A model behind a chat upstream."""

    model = "small"

    def ask(self, text, **more):
        return client().responses.create(model=self.model, input=text, **more)

    def test_whole(self):
        answer = self.ask("one two\n#sim tokens=6", instructions="be brief")
        self.assertEqual((answer.output_text, answer.status, answer.model), (TEXT, "completed", self.model))
        self.assertEqual((answer.usage.output_tokens, answer.usage.total_tokens), (6, answer.usage.input_tokens + 6))
        self.assertEqual((answer.store if "store" in answer.model_fields_set else False), False)
        self.assertRegex(answer.id, REQUEST_ID)

    def test_streamed(self):
        events = list(self.ask("x\n#sim tokens=6", stream=True))
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual(events[-1].type, "response.completed")
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        self.assertEqual(("".join(deltas), events[-1].response.output_text), (TEXT, TEXT))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))

    def test_helper(self):
        with client().responses.stream(model=self.model, input="x\n#sim tokens=6") as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertIn("response.output_text.done", kinds)
        self.assertEqual((final.output_text, final.usage.output_tokens), (TEXT, 6))

    def test_parsed(self):
        answer = client().responses.parse(model=self.model, input="where?", text_format=Place)
        self.assertEqual(answer.output_parsed, Place(city="Oslo", number=1))

    def test_tools_and_results(self):
        items = [{"role": "user", "content": "weather? #sim tool=get_weather calls=2"}]
        with client().responses.stream(model=self.model, input=items, tools=[WEATHER]) as stream:
            for _ in stream:
                pass
            answer = stream.get_final_response()
        calls = [item for item in answer.output if item.type == "function_call"]
        self.assertEqual([(call.name, json.loads(call.arguments)) for call in calls], [("get_weather", {"city": "Oslo"})] * 2)
        self.assertEqual({call.status for call in calls}, {"completed"})
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": "4 C"} for call in calls]
        again = client().responses.create(model=self.model, input=items, tools=[WEATHER])
        self.assertEqual(again.status, "completed")

    def test_image(self):
        content = [{"type": "input_image", "image_url": PIXEL, "detail": "auto"}, {"type": "input_text", "text": "what?"}]
        answer = self.ask([{"role": "user", "content": content}])
        self.assertEqual(answer.status, "completed")

    def test_reasoning_is_sent_back(self):
        items = [{"role": "user", "content": "think #sim think=4 tokens=3"}]
        answer = client().responses.create(model=self.model, input=items, reasoning={"summary": "auto"})
        [thought] = [item for item in answer.output if item.type == "reasoning"]
        self.assertEqual(thought.summary[0].text, "This answer was made")
        items += [item.model_dump(exclude_none=True) for item in answer.output] + [{"role": "user", "content": "so?"}]
        self.assertEqual(client().responses.create(model=self.model, input=items).status, "completed")

    def test_truncated(self):
        answer = self.ask("x #sim tokens=40", max_output_tokens=20)
        self.assertEqual((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))

    def test_refused(self):
        events = list(self.ask("x #sim refuse tokens=3", stream=True))
        self.assertEqual(events[-1].type, "response.incomplete")
        self.assertEqual(events[-1].response.incomplete_details.reason, "content_filter")
        parts = [part.type for item in events[-1].response.output for part in item.content]
        self.assertIn("refusal", parts)

    def test_error_before_the_stream(self):
        with self.assertRaises(openai.InternalServerError) as caught:
            self.ask("x #sim status=503")
        self.assertEqual((caught.exception.code, caught.exception.type), ("server_error", "upstream_error"))

    def test_error_in_mid_stream(self):
        for fault in ["error_after=3", "cut_after=3", "reset_after=3"]:
            with self.subTest(fault), self.assertRaises(openai.APIError) as caught:
                list(self.ask(f"x #sim tokens=9 {fault}", stream=True))
            self.assertEqual(caught.exception.code, "server_error")

    def test_stored_responses_are_refused(self):
        for more in [{"previous_response_id": "resp_1"}, {"background": True}]:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask("x", **more)
            self.assertEqual((caught.exception.code, caught.exception.param), ("invalid_value", next(iter(more))))

    def test_tokens_are_counted(self):
        count = client().responses.input_tokens.count(model=self.model, input="one two three")
        self.assertGreater(count.input_tokens, 0)


class Messages(Chat):
    model = "large"


class Responses(Chat):
    model = "newer"


class Limits(unittest.TestCase):
    def test_spent_period_is_reported(self):
        key = GATEWAY.issue("--plan", "spent")
        client(key).responses.create(model="small", input="x")
        with self.assertRaises(openai.RateLimitError) as caught:
            client(key).responses.create(model="small", input="x")
        self.assertEqual(caught.exception.code, "insufficient_quota")


class Others(unittest.TestCase):
    """Clients of the other formats with a model whose provider has only this one."""

    def test_chat(self):
        messages = [{"role": "user", "content": "x\n#sim tokens=6"}]
        answer = client().chat.completions.create(model="newer", messages=messages)
        self.assertEqual((answer.choices[0].message.content, answer.choices[0].finish_reason), (TEXT, "stop"))
        with client().chat.completions.stream(model="newer", messages=messages) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_completion().choices[0].message.content, TEXT)

    def test_messages(self):
        sdk = anthropic.Anthropic(api_key=GATEWAY.key, base_url=f"http://{GATEWAY.gateway}", max_retries=0)
        tools = [{"name": "get_weather", "input_schema": WEATHER["parameters"]}]
        messages = [{"role": "user", "content": "think #sim think=4 tool=get_weather"}]
        asked = {"model": "newer", "max_tokens": 900, "tools": tools, "messages": messages}
        with sdk.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
        thought, call = answer.content
        self.assertEqual((thought.thinking, call.input), ("This answer was made", {"city": "Oslo"}))
        self.assertTrue(thought.signature.startswith("tg1."))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "4 C"}
        asked["messages"] = messages + [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        sdk.messages.create(**asked)
        kinds = [item["type"] for item in GATEWAY.last()["body"]["input"]]
        self.assertEqual(kinds, ["message", "reasoning", "function_call", "function_call_output"])
