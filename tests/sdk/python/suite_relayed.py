"""Relayed endpoints with unmodified clients: the official `openai` package, LangChain's embeddings and Cohere's
package."""

import base64
import json
import math
import re
import struct
import unittest

import cohere
import openai
from langchain_openai import OpenAIEmbeddings

from gateway import wait_until

GATEWAY = None
REQUEST_ID = re.compile(r"^req_[0-9a-f]{32}$")


def client(key=None, **options):
    options = {"max_retries": 0, "timeout": 60, **options}
    return openai.OpenAI(api_key=key or GATEWAY.key, base_url=f"http://{GATEWAY.gateway}/v1", **options)


def provider():
    """A client of the provider itself."""
    return openai.OpenAI(api_key="any", base_url=f"http://{GATEWAY.provider}/v1", max_retries=0)


class Embeddings(unittest.TestCase):
    def test_package_requests_base64_and_decodes_it(self):
        answer = client().embeddings.create(model="wide", input=["one", "two three"], dimensions=64)
        self.assertEqual(GATEWAY.last()["body"]["encoding_format"], "base64")
        self.assertEqual((answer.model, answer.usage.prompt_tokens, len(answer.data)), ("wide", 3, 2))
        for entry in answer.data:
            self.assertEqual(len(entry.embedding), 64)
            self.assertAlmostEqual(math.fsum(part * part for part in entry.embedding), 1.0, places=5)
        straight = provider().embeddings.create(model="up-wide", input=["one", "two three"], dimensions=64)
        self.assertEqual([entry.embedding for entry in answer.data], [entry.embedding for entry in straight.data])

    def test_vectors_equal_those_of_the_provider(self):
        for form in ["float", "base64"]:
            asked = {"input": [[1, 2, 3], [4]], "encoding_format": form, "dimensions": 1536}
            ours = client().embeddings.with_raw_response.create(model="wide", **asked)
            theirs = provider().embeddings.with_raw_response.create(model="up-wide", **asked)
            self.assertEqual(ours.text.replace('"wide"', '"up-wide"'), theirs.text)

    def test_floats_and_base64_give_equal_vectors(self):
        floats = client().embeddings.create(model="wide", input="x", encoding_format="float").data[0].embedding
        text = client().embeddings.create(model="wide", input="x", encoding_format="base64").data[0].embedding
        packed = struct.unpack(f"<{len(floats)}f", base64.b64decode(text))
        self.assertEqual([struct.unpack("<f", struct.pack("<f", part))[0] for part in floats], list(packed))

    def test_large_response(self):
        texts = [str(n) for n in range(64)]
        answer = client().embeddings.create(model="wide", input=texts, dimensions=3072, encoding_format="float")
        self.assertEqual([len(entry.embedding) for entry in answer.data], [3072] * 64)

    def test_errors_raise_the_packages_exceptions(self):
        with self.assertRaises(openai.NotFoundError) as refused:
            client().embeddings.create(model="small", input="x")
        self.assertIn("`small` does not serve embeddings, only chat", refused.exception.message)
        with self.assertRaises(openai.BadRequestError):
            client().embeddings.create(model="wide", input=[])
        with self.assertRaises(openai.PermissionDeniedError):
            client(GATEWAY.issue("--endpoints", "chat")).embeddings.create(model="wide", input="x")
        with self.assertRaises(openai.InternalServerError):
            client().embeddings.create(model="wide", input="x\n#sim status=503")
        with self.assertRaises(openai.RateLimitError):
            key = GATEWAY.issue("--plan", "one")
            for _ in range(2):
                client(key).embeddings.create(model="wide", input="x")

    def test_usage_records_have_the_reported_counts(self):
        key = GATEWAY.issue()
        told = [client(key).embeddings.create(model="wide", input="w " * n).usage.prompt_tokens for n in (1, 5, 9)]
        asked = ["usage", "--key", key.split("live_")[1][:12], "--json", "--by", "endpoint"]

        def used():
            return {line["name"]: line for line in json.loads(GATEWAY.run(*asked))}.get("embeddings", {"requests": 0})

        wait_until("the rows", lambda: used()["requests"] == len(told))
        line = used()
        self.assertEqual((line["uncached_input_tokens"], line["output_tokens"]), (sum(told), 0))


class Completions(unittest.TestCase):
    def test_whole(self):
        answer = client().completions.create(model="wide", prompt="def f(\n#sim tokens=6", suffix="return x")
        self.assertRegex(answer.id, REQUEST_ID)
        self.assertEqual((answer.object, answer.model), ("text_completion", "wide"))
        self.assertEqual((len(answer.choices[0].text.split()), answer.choices[0].finish_reason), (6, "stop"))
        usage = answer.usage
        self.assertEqual((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (6, 6, 12))
        self.assertEqual(GATEWAY.last()["body"]["suffix"], "return x")

    def test_streamed(self):
        events = list(client().completions.create(model="wide", prompt="x\n#sim tokens=9", stream=True))
        self.assertEqual(len({event.id for event in events}), 1)
        self.assertTrue(all(event.model == "wide" and event.usage is None for event in events))
        self.assertEqual(len("".join(event.choices[0].text for event in events).split()), 9)
        self.assertEqual(events[-1].choices[0].finish_reason, "stop")

    def test_streamed_with_usage(self):
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        last = list(client().completions.create(model="wide", prompt="one\n#sim tokens=9", **asked))[-1]
        self.assertEqual((last.choices, last.usage.prompt_tokens, last.usage.completion_tokens), ([], 3, 9))

    def test_several_texts_whole_and_streamed(self):
        asked = {"model": "wide", "prompt": ["x", "y\n#sim tokens=3"], "n": 2}
        answer = client().completions.create(**asked, best_of=3)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        self.assertEqual((len({choice.text for choice in answer.choices}), answer.usage.completion_tokens), (1, 18))
        texts, ends = [""] * 4, [0] * 4
        for event in client().completions.create(**asked, stream=True):
            for choice in event.choices:
                texts[choice.index] += choice.text
                ends[choice.index] += choice.finish_reason == "stop"
        self.assertEqual((texts, ends), ([answer.choices[0].text] * 4, [1] * 4))

    def test_failure_in_mid_stream_is_raised(self):
        with self.assertRaises(openai.APIError) as broken:
            list(client().completions.create(model="wide", prompt="x\n#sim tokens=9 error_after=3", stream=True))
        self.assertEqual(broken.exception.type, "upstream_error")

    def test_abandoned_stream_affects_no_other_request(self):
        aborted = GATEWAY.stats()["aborted"]
        stream = client().completions.create(model="wide", prompt="x\n#sim tokens=100000 pace=100", stream=True)
        next(iter(stream))
        stream.close()
        wait_until("the upstream to be closed", lambda: GATEWAY.stats()["aborted"] > aborted)


class Media(unittest.TestCase):
    SPOKEN = {"model": "wide", "voice": "alloy"}

    def test_speech_equals_the_providers_bytes_and_arrives_in_pieces(self):
        asked = {**self.SPOKEN, "input": "one two\n#sim tokens=40 pace=200", "response_format": "wav"}
        with client().audio.speech.with_streaming_response.create(**asked) as answer:
            self.assertEqual(answer.headers["content-type"], "audio/wav")
            pieces = list(answer.iter_bytes(chunk_size=256))
        straight = provider().audio.speech.create(**{**asked, "model": "up-wide"}).content
        self.assertEqual((b"".join(pieces), len(straight)), (straight, 40 * 256))
        self.assertEqual(client().audio.speech.create(**asked).content, straight)

    def test_speech_as_events(self):
        asked = {**self.SPOKEN, "input": "one two", "extra_body": {"stream_format": "sse"}}
        text = client().audio.speech.create(**asked).content.decode()
        kinds = [json.loads(line[6:])["type"] for line in text.splitlines() if line.startswith("data: ")]
        self.assertEqual(kinds, ["speech.audio.delta"] * 12 + ["speech.audio.done"])

    def test_speech_that_breaks_is_not_complete(self):
        with self.assertRaises(Exception) as broken:
            client().audio.speech.create(**self.SPOKEN, input="x\n#sim tokens=40 cut_after=20")
        self.assertRegex(repr(broken.exception), "(?i)protocol|connection|incomplete")

    def test_images(self):
        answer = client().images.generate(model="wide", prompt="a red fox", n=2)
        self.assertEqual((len(answer.data), answer.usage.input_tokens, answer.usage.output_tokens), (2, 3, 544))
        self.assertTrue(base64.b64decode(answer.data[0].b64_json).startswith(b"\x89PNG"))
        answer = client().images.generate(model="wide", prompt="a red fox", response_format="url")
        self.assertTrue(answer.data[0].url.startswith("https://"))

    def test_images_streamed(self):
        asked = {"model": "wide", "prompt": "x\n#sim tokens=2", "stream": True, "partial_images": 2}
        events = list(client().images.generate(**asked))
        partial = "image_generation.partial_image"
        self.assertEqual([event.type for event in events], [partial, partial, "image_generation.completed"])
        self.assertEqual(events[-1].usage.output_tokens, 272)

    def test_transcriptions_in_every_format(self):
        sound = ("a \u20ac.wav", b"RIFF" * 8000, "audio/wav")
        for form, expected in [("json", "This answer"), ("verbose_json", "This answer")]:
            answer = client().audio.transcriptions.create(model="wide", file=sound, response_format=form)
            self.assertTrue(answer.text.startswith(expected))
        self.assertEqual(answer.duration, 2.0)
        for form, expected in [("text", "This"), ("vtt", "WEBVTT"), ("srt", "1\n")]:
            answer = client().audio.transcriptions.create(model="wide", file=sound, response_format=form)
            self.assertTrue(answer.startswith(expected), answer)
        last = GATEWAY.last()["body"]
        self.assertEqual((last["model"], last["file"], last["response_format"]), ("up-wide", 32000, "srt"))
        lists = {"timestamp_granularities": ["word", "segment"], "include": ["logprobs"], "language": "de"}
        client().audio.transcriptions.create(model="wide", file=sound, response_format="verbose_json", **lists)
        self.assertEqual(GATEWAY.last()["body"]["timestamp_granularities"], ["word", "segment"])

    def test_transcription_streamed(self):
        sound = ("a.wav", b"RIFF", "audio/wav")
        events = list(client().audio.transcriptions.create(model="wide", file=sound, stream=True))
        self.assertEqual([event.type for event in events[-2:]], ["transcript.text.delta", "transcript.text.done"])
        self.assertEqual(len(events), 13)

    def test_translation(self):
        self.assertTrue(client().audio.translations.create(model="wide", file=("a.mp3", b"ID3")).text)
        self.assertEqual(GATEWAY.last()["body"]["file"], 3)

    def test_image_edits(self):
        pictures = [("a.png", b"\x89PNG" * 9, "image/png"), ("b.png", b"\x89PNG", "image/png")]
        answer = client().images.edit(model="wide", image=pictures, mask=pictures[0], prompt="a red fox", n=2)
        self.assertEqual((len(answer.data), answer.usage.output_tokens), (2, 544))
        body = GATEWAY.last()["body"]
        self.assertEqual((body["image"], body["mask"], body["n"]), ([36, 4], 36, 2))

    def test_large_upload_passes(self):
        sound = ("a.wav", b"RIFF" * 5_000_000, "audio/wav")
        client().audio.transcriptions.create(model="wide", file=sound)
        self.assertEqual(GATEWAY.last()["body"]["file"], 20_000_000)

    def test_moderations(self):
        answer = client().moderations.create(model="wide", input=["a fox", "some violence"])
        self.assertEqual((answer.model, [result.flagged for result in answer.results]), ("wide", [False, True]))
        parts = [{"type": "text", "text": "a fox"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
        self.assertFalse(client().moderations.create(model="wide", input=parts).results[0].flagged)

    def test_errors_raise_the_packages_exceptions(self):
        with self.assertRaises(openai.NotFoundError):
            client().moderations.create(model="small", input="x")
        with self.assertRaises(openai.BadRequestError):
            client().images.generate(model="wide", prompt=7)
        with self.assertRaises(openai.PermissionDeniedError):
            client(GATEWAY.issue("--endpoints", "chat")).audio.speech.create(**self.SPOKEN, input="x")
        with self.assertRaises(openai.InternalServerError):
            client().audio.speech.create(**self.SPOKEN, input="x\n#sim status=503")


class Others(unittest.TestCase):
    def test_langchain(self):
        known = {"base_url": f"http://{GATEWAY.gateway}/v1", "api_key": GATEWAY.key, "max_retries": 0}
        vectors = OpenAIEmbeddings(model="wide", check_embedding_ctx_length=False, **known)
        one = vectors.embed_query("red fox")
        self.assertEqual([one, vectors.embed_query("a dog")], vectors.embed_documents(["red fox", "a dog"]))
        self.assertAlmostEqual(math.fsum(part * part for part in one), 1.0, places=5)

    def test_cohere(self):
        ranker = cohere.Client(api_key=GATEWAY.key, base_url=f"http://{GATEWAY.gateway}")
        documents = ["a dog", "the red fox", "one red hen"]
        answer = ranker.rerank(model="wide", query="red fox", documents=documents, top_n=2, return_documents=True)
        self.assertRegex(answer.id, REQUEST_ID)
        self.assertEqual([result.index for result in answer.results], [1, 2])
        self.assertEqual([result.relevance_score for result in answer.results], [1.0, 0.5])
        self.assertEqual(answer.results[0].document.text, "the red fox")
        self.assertEqual(answer.meta.tokens.input_tokens, 14)
