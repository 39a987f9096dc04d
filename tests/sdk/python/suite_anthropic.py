"""The official `anthropic` package, unmodified, at the messages endpoint: models behind an upstream of the same format,
and translated ones."""

import asyncio
import re
import unittest

import anthropic

GATEWAY = None
REQUEST_ID = re.compile(r"^req_[0-9a-f]{32}$")
MID_STREAM = {"error_after=3": "upstream_error", "cut_after=3": "upstream_error", "stall_after=3": "timeout_error"}
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def client(key=None, **options):
    options = {"max_retries": 0, "timeout": 60, **options}
    return anthropic.Anthropic(api_key=key or GATEWAY.key, base_url=f"http://{GATEWAY.gateway}", **options)


def user(text):
    return [{"role": "user", "content": text}]


def asked(model, text, **more):
    return {"model": model, "max_tokens": 1000, "messages": user(text), **more}


class Answers(unittest.TestCase):
    model = "large"

    def test_whole(self):
        answer = client().messages.create(**asked(self.model, "one two\n#sim tokens=6", system="be brief"))
        self.assertRegex(answer.id, REQUEST_ID)
        self.assertEqual(answer._request_id, answer.id)
        self.assertEqual((answer.type, answer.role, answer.model), ("message", "assistant", self.model))
        self.assertEqual(answer.stop_reason, "end_turn")
        self.assertEqual(len(answer.content[0].text.split()), 6)
        self.assertEqual((answer.usage.input_tokens, answer.usage.output_tokens), (6, 6))
        self.check_system(GATEWAY.last()["body"])

    def check_system(self, sent):
        self.assertEqual(sent["system"], "be brief")

    def test_key_in_either_header(self):
        other = anthropic.Anthropic(auth_token=GATEWAY.key, api_key=None, base_url=f"http://{GATEWAY.gateway}")
        self.assertEqual(other.messages.create(**asked(self.model, "x")).role, "assistant")
        headers = {"x-api-key": GATEWAY.key, "authorization": anthropic.omit} if hasattr(anthropic, "omit") else {}
        self.assertEqual(client().messages.create(**asked(self.model, "x"), extra_headers=headers).role, "assistant")

    def test_streamed(self):
        events = list(client().messages.create(**asked(self.model, "x\n#sim tokens=9"), stream=True))
        kinds = [event.type for event in events if event.type != "ping"]
        self.assertEqual(kinds[:2], ["message_start", "content_block_start"])
        self.assertEqual(kinds[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertRegex(events[0].message.id, REQUEST_ID)
        self.assertEqual(events[0].message.model, self.model)
        text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
        self.assertEqual(len(text.split()), 9)

    def test_stream_helper_accumulates(self):
        with client().messages.stream(**asked(self.model, "größe 東京\n#sim echo")) as stream:
            text = "".join(stream.text_stream)
            answer = stream.get_final_message()
        self.assertEqual((text, answer.content[0].text), ("größe 東京", "größe 東京"))
        self.assertEqual((answer.model, answer.stop_reason), (self.model, "end_turn"))
        self.assertEqual(answer.usage.output_tokens, 2)

    def test_async_client(self):
        async def ask():
            url = f"http://{GATEWAY.gateway}"
            async with anthropic.AsyncAnthropic(api_key=GATEWAY.key, base_url=url) as client:
                bodies = [asked(self.model, f"{n}\n#sim echo") for n in range(20)]
                return await asyncio.gather(*[client.messages.create(**body) for body in bodies])

        answers = asyncio.run(ask())
        self.assertEqual([answer.content[0].text for answer in answers], [str(n) for n in range(20)])


class TranslatedAnswers(Answers):
    model = "small"

    def check_system(self, sent):
        self.assertEqual((sent["messages"][0]["role"], sent["messages"][0]["content"]), ("system", "be brief"))


class Tools(unittest.TestCase):
    model = "large"

    def test_call_and_loop(self):
        messages = user("What about get_weather?")
        more = {"model": self.model, "max_tokens": 1000, "tools": [WEATHER]}
        first = client().messages.create(messages=messages, **more)
        self.assertEqual(first.stop_reason, "tool_use")
        call = first.content[-1]
        self.assertEqual((call.type, call.name, call.input), ("tool_use", "get_weather", {"city": "Oslo"}))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "4 degrees"}
        messages = messages + [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = client().messages.create(messages=messages, **more)
        self.assertEqual(second.stop_reason, "end_turn")
        self.check_loop(GATEWAY.last()["body"]["messages"], call, result)

    def check_loop(self, sent, call, result):
        self.assertEqual((sent[1]["content"][-1]["id"], sent[2]["content"]), (call.id, [result]))

    def test_streamed_parallel_calls_by_the_helper(self):
        with client().messages.stream(**asked(self.model, "x\n#sim tool calls=2", tools=[WEATHER])) as stream:
            for _ in stream:
                pass
            answer = stream.get_final_message()
        calls = [block for block in answer.content if block.type == "tool_use"]
        self.assertEqual([call.input for call in calls], [{"city": "Oslo"}] * 2)
        self.assertEqual(len({call.id for call in calls}), 2)

    def test_forced_choice(self):
        choice = {"type": "tool", "name": "get_weather"}
        answer = client().messages.create(**asked(self.model, "x", tools=[WEATHER], tool_choice=choice))
        self.assertEqual(answer.content[-1].name, "get_weather")
        self.check_choice(GATEWAY.last()["body"])

    def check_choice(self, sent):
        self.assertEqual(sent["tool_choice"]["name"], "get_weather")

    def test_image(self):
        source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        content = [{"type": "image", "source": source}, {"type": "text", "text": "what is this?"}]
        answer = client().messages.create(**asked(self.model, content))
        self.assertEqual(answer.stop_reason, "end_turn")
        self.check_image(GATEWAY.last()["body"]["messages"][0]["content"], content)

    def check_image(self, sent, content):
        self.assertEqual(sent, content)

    def test_cached_tokens(self):
        usage = client().messages.create(**asked(self.model, "one two three\n#sim cached=2 written=1 tokens=3")).usage
        self.assertEqual((usage.cache_read_input_tokens, usage.cache_creation_input_tokens), (2, 1))


class TranslatedTools(Tools):
    model = "small"

    def check_loop(self, sent, call, result):
        self.assertEqual((sent[1]["tool_calls"][0]["id"], sent[2]["tool_call_id"]), (call.id, call.id))
        self.assertEqual((sent[2]["role"], sent[2]["content"]), ("tool", "4 degrees"))

    def check_choice(self, sent):
        self.assertEqual(sent["tool_choice"]["function"], {"name": "get_weather"})

    def check_image(self, sent, content):
        self.assertEqual(sent[0]["image_url"]["url"], "data:image/png;base64,iVBORw0KGgo=")


class Models(unittest.TestCase):
    model = "large"

    def test_list_and_retrieve(self):
        models = list(client().models.list(limit=1000))
        self.assertEqual([model.id for model in models], ["small", "large", "newer", "wide", "hasty", "hasty-large"])
        self.assertEqual((models[1].type, models[1].display_name), ("model", "Large One"))
        self.assertEqual(client().models.retrieve("small").display_name, "Small One")

    def test_count_tokens(self):
        count = client().messages.count_tokens(model="large", messages=user("one two three four"))
        self.assertGreater(count.input_tokens, 0)


class Errors(unittest.TestCase):
    model, hasty = "large", "hasty-large"

    def check(self, kind, status, word, call):
        with self.assertRaises(kind) as raised:
            call()
        error = raised.exception
        self.assertIs(type(error), kind)
        self.assertEqual(error.status_code, status)
        self.assertRegex(error.request_id, REQUEST_ID)
        self.assertEqual(error.body["type"], "error")
        self.assertEqual((error.body["error"]["type"], error.body["error"]["code"]), (word, status))
        self.assertEqual(error.body["error"]["request_id"], error.request_id)
        return error

    def create(self, text="x", key=None, options=None, model=None, **more):
        return lambda: client(key, **(options or {})).messages.create(**asked(model or self.model, text, **more))

    def test_400(self):
        error = self.check(anthropic.BadRequestError, 400, "invalid_request_error", self.create(max_tokens=0))
        self.assertIn("max_tokens", str(error))

    def test_401(self):
        self.check(anthropic.AuthenticationError, 401, "authentication_error", self.create(key="tg_live_wrong"))

    def test_401_revoked(self):
        key = GATEWAY.issue()
        self.create(key=key)()
        GATEWAY.revoke(key)
        self.check(anthropic.AuthenticationError, 401, "authentication_error", self.create(key=key))

    def test_403_model(self):
        key = GATEWAY.issue("--models", "hasty-large")
        self.check(anthropic.PermissionDeniedError, 403, "permission_error", self.create(key=key))

    def test_403_endpoint(self):
        key = GATEWAY.issue("--endpoints", "chat")
        self.check(anthropic.PermissionDeniedError, 403, "permission_error", self.create(key=key))

    def test_404_model(self):
        self.check(anthropic.NotFoundError, 404, "not_found_error", self.create(model="no-such"))

    def test_404_path(self):
        with self.assertRaises(anthropic.NotFoundError) as raised:
            client().post("/v1/no/such/path", cast_to=object, body={})
        self.assertRegex(raised.exception.request_id, REQUEST_ID)

    def test_413(self):
        self.check(anthropic.ContentTooLargeError, 413, "invalid_request_error", self.create("x" * (33 << 20)))

    def test_429_rate_limit(self):
        key = GATEWAY.issue("--plan", "one")
        self.create(key=key)()
        error = self.check(anthropic.RateLimitError, 429, "rate_limit_error", self.create(key=key))
        self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)

    def test_429_spent_quota_is_not_retried(self):
        key = GATEWAY.issue("--plan", "spent")
        self.create(key=key)()
        call = self.create(key=key, options={"max_retries": 2})
        error = self.check(anthropic.RateLimitError, 429, "rate_limit_error", call)
        self.assertEqual(error.response.request.headers["x-stainless-retry-count"], "0")

    def test_500(self):
        for stream in [False, True]:
            call = self.create("x\n#sim status=529", stream=stream)
            self.check(anthropic.InternalServerError, 500, "upstream_error", call)

    def test_504(self):
        for stream in [False, True]:
            call = self.create("x\n#sim stall_head", model=self.hasty, stream=stream)
            self.check(anthropic.GatewayTimeoutError, 504, "timeout_error", call)

    def test_error_in_mid_stream(self):
        for how, kind in MID_STREAM.items():
            model = self.hasty if how.startswith("stall") else self.model
            stream = self.create(f"x\n#sim tokens=9 {how}", model=model, stream=True)()
            seen = []
            with self.assertRaises(anthropic.APIStatusError) as raised:
                for event in stream:
                    seen.append(event)
            self.assertEqual(raised.exception.type, kind)
            self.assertEqual(raised.exception.body["error"]["request_id"], seen[0].message.id)


class TranslatedErrors(Errors):
    model, hasty = "small", "hasty"
