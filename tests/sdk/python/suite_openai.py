"""The official `openai` package, unmodified, at the chat endpoint: models behind an upstream of the same format, and
translated ones."""

import asyncio
import json
import re
import unittest

import openai

GATEWAY = None
REQUEST_ID = re.compile(r"^req_[0-9a-f]{32}$")
PIXEL = "data:image/png;base64,iVBORw0KGgo="
MID_STREAM = {"error_after=3": "upstream_error", "cut_after=3": "upstream_error", "stall_after=3": "timeout_error"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def client(key=None, **options):
    options = {"max_retries": 0, "timeout": 60, **options}
    return openai.OpenAI(api_key=key or GATEWAY.key, base_url=f"http://{GATEWAY.gateway}/v1", **options)


def user(text):
    return [{"role": "user", "content": text}]


class Answers(unittest.TestCase):
    model = "small"

    def test_whole(self):
        answer = client().chat.completions.create(model=self.model, messages=user("one two\n#sim tokens=6"))
        self.assertRegex(answer.id, REQUEST_ID)
        self.assertEqual(answer._request_id, answer.id)
        self.assertEqual((answer.object, answer.model), ("chat.completion", self.model))
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(len(answer.choices[0].message.content.split()), 6)
        usage = answer.usage
        self.assertEqual((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (4, 6, 10))

    def test_headers_by_the_raw_response(self):
        raw = client().chat.completions.with_raw_response.create(model=self.model, messages=user("x"))
        self.assertEqual(raw.headers["x-gateway-request-id"], raw.parse().id)
        self.assertTrue(int(raw.headers["x-ratelimit-remaining-requests"]) > 0)

    def test_streamed(self):
        stream = client().chat.completions.create(model=self.model, stream=True, messages=user("x\n#sim tokens=9"))
        chunks = list(stream)
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)
        self.assertRegex(chunks[0].id, REQUEST_ID)
        self.assertTrue(all(chunk.model == self.model and chunk.usage is None for chunk in chunks))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.assertEqual(len(text.split()), 9)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")

    def test_streamed_with_usage(self):
        options = {"include_usage": True}
        stream = client().chat.completions.create(
            model=self.model, stream=True, stream_options=options, messages=user("one\n#sim tokens=9")
        )
        last = list(stream)[-1]
        self.assertEqual((last.choices, last.usage.prompt_tokens, last.usage.completion_tokens), ([], 3, 9))

    def test_stream_helper_accumulates(self):
        with client().chat.completions.stream(model=self.model, messages=user("größe 東京\n#sim echo")) as stream:
            kinds = [event.type for event in stream]
            answer = stream.get_final_completion()
        self.assertIn("content.delta", kinds)
        self.assertEqual(answer.choices[0].message.content, "größe 東京")
        self.assertEqual((answer.model, answer.choices[0].finish_reason), (self.model, "stop"))

    def test_async_client(self):
        async def ask():
            url = f"http://{GATEWAY.gateway}/v1"
            async with openai.AsyncOpenAI(api_key=GATEWAY.key, base_url=url) as client:
                texts = [f"{n}\n#sim echo" for n in range(20)]
                create = client.chat.completions.create
                return await asyncio.gather(*[create(model=self.model, messages=user(text)) for text in texts])

        answers = asyncio.run(ask())
        self.assertEqual([answer.choices[0].message.content for answer in answers], [str(n) for n in range(20)])

    def test_abandoned_stream_affects_no_other_request(self):
        aborted = GATEWAY.stats()["aborted"]
        stream = client().chat.completions.create(
            model=self.model, stream=True, messages=user("x\n#sim tokens=100000 pace=100")
        )
        next(iter(stream))
        stream.close()
        from gateway import wait_until

        wait_until("the upstream to be closed", lambda: GATEWAY.stats()["aborted"] > aborted)


class TranslatedAnswers(Answers):
    model = "large"


class Tools(unittest.TestCase):
    model = "small"

    def test_call_and_loop(self):
        messages = user("What about get_weather?")
        first = client().chat.completions.create(model=self.model, messages=messages, tools=[WEATHER])
        self.assertEqual(first.choices[0].finish_reason, "tool_calls")
        message = first.choices[0].message
        call = message.tool_calls[0]
        self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
        self.assertEqual(json.loads(call.function.arguments), {"city": "Oslo"})
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "4 degrees"}]
        second = client().chat.completions.create(model=self.model, messages=messages, tools=[WEATHER])
        self.assertEqual(second.choices[0].finish_reason, "stop")
        self.check_loop(GATEWAY.last()["body"]["messages"], call)

    def check_loop(self, sent, call):
        self.assertEqual((sent[1]["tool_calls"][0]["id"], sent[2]["content"]), (call.id, "4 degrees"))

    def test_streamed_parallel_calls_by_the_helper(self):
        asked = user("x\n#sim tool calls=2")
        with client().chat.completions.stream(model=self.model, messages=asked, tools=[WEATHER]) as stream:
            for _ in stream:
                pass
            answer = stream.get_final_completion()
        calls = answer.choices[0].message.tool_calls
        self.assertEqual([call.function.name for call in calls], ["get_weather"] * 2)
        self.assertEqual([json.loads(call.function.arguments) for call in calls], [{"city": "Oslo"}] * 2)
        self.assertEqual(len({call.id for call in calls}), 2)

    def test_forced_choice(self):
        choice = {"type": "function", "function": {"name": "get_weather"}}
        answer = client().chat.completions.create(
            model=self.model, messages=user("x"), tools=[WEATHER], tool_choice=choice
        )
        self.assertEqual(answer.choices[0].message.tool_calls[0].function.name, "get_weather")
        self.check_choice(GATEWAY.last()["body"])

    def check_choice(self, sent):
        self.assertEqual(sent["tool_choice"]["function"], {"name": "get_weather"})

    def test_structured_output(self):
        from pydantic import BaseModel

        class Place(BaseModel):
            city: str
            number: int

        answer = client().chat.completions.parse(model=self.model, messages=user("x"), response_format=Place)
        self.assertEqual(answer.choices[0].message.parsed, Place(city="Oslo", number=1))

    def test_image(self):
        content = [
            {"type": "text", "text": "what is this?"},
            {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
        ]
        answer = client().chat.completions.create(model=self.model, messages=user(content))
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.check_image(GATEWAY.last()["body"]["messages"][0]["content"], content)

    def check_image(self, sent, content):
        self.assertEqual(sent, content)


class TranslatedTools(Tools):
    model = "large"

    def check_loop(self, sent, call):
        use = {"type": "tool_use", "id": call.id, "name": "get_weather", "input": {"city": "Oslo"}}
        self.assertEqual(sent[1]["content"][-1], use)
        result = sent[2]["content"][0]
        self.assertEqual((result["tool_use_id"], result["content"]), (call.id, "4 degrees"))

    def check_choice(self, sent):
        self.assertEqual(sent["tool_choice"]["name"], "get_weather")

    def check_image(self, sent, content):
        source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        self.assertEqual(sent[1]["source"], source)


class Models(unittest.TestCase):
    def test_list_and_retrieve(self):
        models = list(client().models.list())
        self.assertEqual([model.id for model in models], ["small", "large", "newer", "wide", "hasty", "hasty-large"])
        self.assertEqual((models[0].object, models[0].owned_by, models[0].context_window), ("model", "sim", 256_000))
        self.assertEqual(client().models.retrieve("large").context_window, 1_000_000)

    def test_quota(self):
        quota = client().get("/quota", cast_to=object)
        self.assertEqual((quota["object"], quota["plan"]), ("quota", "open"))


class Errors(unittest.TestCase):
    model, hasty = "small", "hasty"

    def check(self, kind, status, word, call):
        with self.assertRaises(kind) as raised:
            call()
        error = raised.exception
        self.assertIs(type(error), kind)
        self.assertEqual((error.status_code, error.type), (status, word))
        self.assertRegex(error.request_id, REQUEST_ID)
        self.assertEqual(error.body["request_id"], error.request_id)
        self.assertEqual(error.body["code"], status)
        return error

    def create(self, text="x", key=None, model=None, stream=False, **options):
        return lambda: client(key, **options).chat.completions.create(
            model=model or self.model, stream=stream, messages=user(text)
        )

    def test_400(self):
        call = lambda: client().chat.completions.create(model=self.model, messages=[])
        error = self.check(openai.BadRequestError, 400, "invalid_request_error", call)
        self.assertIn("messages", error.message)

    def test_401(self):
        self.check(openai.AuthenticationError, 401, "authentication_error", self.create(key="tg_live_wrong"))

    def test_401_revoked(self):
        key = GATEWAY.issue()
        self.create(key=key)()
        GATEWAY.revoke(key)
        self.check(openai.AuthenticationError, 401, "authentication_error", self.create(key=key))

    def test_403_model(self):
        key = GATEWAY.issue("--models", "hasty")
        self.check(openai.PermissionDeniedError, 403, "permission_error", self.create(key=key))

    def test_403_endpoint(self):
        key = GATEWAY.issue("--endpoints", "messages")
        self.check(openai.PermissionDeniedError, 403, "permission_error", self.create(key=key))

    def test_404_model(self):
        self.check(openai.NotFoundError, 404, "not_found_error", self.create(model="no-such"))
        self.check(openai.NotFoundError, 404, "not_found_error", lambda: client().models.retrieve("no-such"))

    def test_404_path(self):
        call = lambda: client().embeddings.create(model="x", input="x")
        self.check(openai.NotFoundError, 404, "not_found_error", call)

    def test_413(self):
        call = self.create("x" * (33 << 20))
        self.check(openai.APIStatusError, 413, "invalid_request_error", call)

    def test_429_rate_limit(self):
        key = GATEWAY.issue("--plan", "one")
        self.create(key=key)()
        error = self.check(openai.RateLimitError, 429, "rate_limit_error", self.create(key=key))
        self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)

    def test_429_spent_quota_is_not_retried(self):
        key = GATEWAY.issue("--plan", "spent")
        self.create(key=key)()
        error = self.check(openai.RateLimitError, 429, "rate_limit_error", self.create(key=key, max_retries=2))
        self.assertEqual(error.response.headers["x-should-retry"], "false")
        self.assertEqual(error.response.request.headers["x-stainless-retry-count"], "0")

    def test_500(self):
        for stream in [False, True]:
            call = self.create("x\n#sim status=500", stream=stream)
            self.check(openai.InternalServerError, 500, "upstream_error", call)

    def test_500_is_retried_unless_permanent(self):
        failed = GATEWAY.stats()["failed"]
        self.check(openai.InternalServerError, 500, "upstream_error", self.create("x\n#sim status=500", max_retries=1))
        after = GATEWAY.stats()["failed"]
        self.assertEqual(after - failed, 2)
        self.check(openai.InternalServerError, 500, "upstream_error", self.create("x\n#sim status=401", max_retries=2))
        self.assertEqual(GATEWAY.stats()["failed"] - after, 1)

    def test_504(self):
        for stream in [False, True]:
            call = self.create("x\n#sim stall_head", model=self.hasty, stream=stream)
            error = self.check(openai.InternalServerError, 504, "timeout_error", call)
            self.assertIn("timeout", error.message)

    def test_error_in_mid_stream(self):
        for how, kind in MID_STREAM.items():
            model = self.hasty if how.startswith("stall") else self.model
            stream = self.create(f"x\n#sim tokens=9 {how}", model=model, stream=True)()
            seen = []
            with self.assertRaises(openai.APIError) as raised:
                for chunk in stream:
                    seen.append(chunk)
            self.assertEqual(raised.exception.type, kind)
            self.assertRegex(raised.exception.body["request_id"], REQUEST_ID)
            self.assertEqual(raised.exception.body["request_id"], seen[0].id)


class TranslatedErrors(Errors):
    model, hasty = "large", "hasty-large"
