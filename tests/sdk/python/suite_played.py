"""Replays every recorded response of an upstream through the real gateway to both families of official SDK.

A client of the other format must get the same result as from the recorded translation directly. A client of the same
format must get the same result as from the upstream. A failing upstream must raise an error of the SDK. Streams are
read raw and with the accumulating helper. """

import json
import re
import unittest

import anthropic
import openai

import gateway as places
import played

GATEWAY = None
MADE_ID = re.compile(r"^call_[0-9a-f]{24}$")
RUNNING = {}


def setUpModule():
    RUNNING["player"] = played.Player()
    RUNNING["gateway"] = places.Gateway(places.CONFIG.with_name("played.toml"), RUNNING["player"].address)


def tearDownModule():
    RUNNING["player"].stop()
    codes = RUNNING["gateway"].stop()
    if codes != [0]:
        raise RuntimeError(f"the gateway must end with code 0 on SIGTERM, got {codes}")


class Chat:
    """The `openai` package; results are (text, refusal, reasoning, calls, finish reason)."""

    error = openai.APIError
    least = {"messages": [{"role": "user", "content": "go"}]}

    def __init__(self, place, key):
        self.completions = openai.OpenAI(api_key=key, base_url=f"http://{place}/v1", max_retries=0, timeout=60).chat.completions

    def ask(self, call, asked, **more):
        rest = {name: value for name, value in asked.items() if name not in ("model", "messages")}
        return call(model=asked["model"], messages=asked["messages"], extra_body=rest, **more)

    def reply(self, asked):
        return self.told(self.ask(self.completions.create, asked))

    def raw(self, asked):
        return "".join(
            choice.delta.content or ""
            for chunk in self.ask(self.completions.create, asked, stream=True)
            for choice in chunk.choices
        )

    def helper(self, asked):
        with self.ask(self.completions.stream, asked) as stream:
            try:
                for _ in stream:
                    pass
                answer = stream.get_final_completion()
            except (openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError):
                answer = stream.current_completion_snapshot
        return self.told(answer)

    def told(self, answer):
        [choice] = answer.choices
        message = choice.message
        thought = (message.model_extra or {}).get("reasoning_content")
        calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []]
        return (message.content or "", message.refusal, thought, calls, choice.finish_reason)


class Messages:
    """The `anthropic` package; results are (blocks without ids, ids, stop reason, stop sequence)."""

    error = anthropic.APIError
    least = {"max_tokens": 100, "messages": [{"role": "user", "content": "go"}]}

    def __init__(self, place, key):
        self.messages = anthropic.Anthropic(api_key=key, base_url=f"http://{place}", max_retries=0, timeout=60).messages

    def ask(self, call, asked, **more):
        known = ("model", "messages", "max_tokens")
        rest = {name: value for name, value in asked.items() if name not in known}
        return call(**{name: asked[name] for name in known}, extra_body=rest, **more)

    def reply(self, asked):
        return self.told(self.ask(self.messages.create, asked))

    def raw(self, asked):
        events = self.ask(self.messages.create, asked, stream=True)
        return "".join(getattr(event.delta, "text", "") for event in events if event.type == "content_block_delta")

    def helper(self, asked):
        with self.ask(self.messages.stream, asked) as stream:
            return self.told(stream.get_final_message())

    def told(self, answer):
        assert answer.usage.input_tokens >= 0 and answer.usage.output_tokens >= 0
        blocks = [block.to_dict() for block in answer.content]
        calls = [(block.pop("id"), block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"]
        return (blocks, "", "", calls, (answer.stop_reason, answer.stop_sequence))


FAMILIES = {"chat": Chat, "messages": Messages}


class Played(unittest.TestCase):
    """The code below adds one test for each recording and family."""

    def same(self, got, expected):
        """Compares results, except ids that the gateway generates."""
        if isinstance(got, tuple):
            pairs = list(zip(got[3], expected[3]))
            made = [(one, other) for one, other in pairs if MADE_ID.match(one[0]) and MADE_ID.match(other[0])]
            for one, other in made:
                self.assertEqual(one[1:], other[1:])
            if len(made) == len(pairs) == len(got[3]) == len(expected[3]):
                got, expected = (*got[:3], [], got[4]), (*expected[:3], [], expected[4])
        self.assertEqual(got, expected)

    def outcome(self, sdk, mode, asked):
        try:
            return getattr(sdk, mode)(asked), None
        except Exception as error:  # any exception is a result to compare
            return None, error

    def play(self, recording, family):
        player, gateway = RUNNING["player"], RUNNING["gateway"]
        kind = FAMILIES[family]
        crossed = family != recording.shape
        own = recording.request if crossed else None
        asked = {**(own or kind.least), "model": recording.shape + ("-tool" if own and recording.tool else "")}
        asked.pop("stream", None)
        text = recording.heard if crossed else recording.said
        for mode in ["raw", "helper"] if recording.kind == "stream" else ["reply"]:
            expected, trouble = None, None
            if text is not None and not recording.fault:
                player.play(recording.kind, text)
                expected, trouble = self.outcome(kind(player.address, "none"), mode, asked)
                self.assertFalse(crossed and trouble, f"the recording itself is not read: {trouble!r}")
            player.play(recording.kind, recording.said)
            answer, error = self.outcome(kind(gateway.gateway, gateway.key), mode, asked)
            if recording.fault:
                self.assertIsInstance(error, kind.error, f"{mode}: {answer}")
            elif trouble is None:
                self.assertIsNone(error, mode)
                if text is not None:
                    self.same(answer, expected)


def test_of(recording, family):
    return lambda self: self.play(recording, family)


for recording in played.recordings():
    for family in FAMILIES:
        test = test_of(recording, family)
        setattr(Played, f"test_{recording.name}_{recording.shape}_to_{family}", test)
