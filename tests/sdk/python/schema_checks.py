"""Hooks for Schemathesis: insert existing model names, and check the events of streams."""

import functools
import json

import jsonschema_rs
import schemathesis


@functools.cache
def validator(document, path):
    """A validator for the events of a path's stream."""
    document = json.loads(document)
    answer = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
    data = answer["schema"]["properties"]["data"]
    schema = data.get("anyOf", [data])[0]["contentSchema"]
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})


# Beginnings of the paths of requests that the gateway translates; one model serves all other endpoints.
TRANSLATED = ("/v1/chat", "/v1/messages", "/v1/responses")
# Types of the last events of streams that do not end with `[DONE]`.
LAST = (
    "message_stop",
    "response.completed",
    "response.incomplete",
    "image_generation.completed",
    "image_edit.completed",
    "speech.audio.done",
    "transcript.text.done",
)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Replaces most model names with existing ones, since otherwise hardly any request would be accepted. Half of the
    requests ask for a stream. A provider knows few formats of responses."""
    body = case.body
    if not isinstance(body, dict):
        return
    is_translated = case.operation.path.startswith(TRANSLATED)
    # The default model serves only translated requests.
    model = body.get("model", None if is_translated else "")
    if isinstance(model, str) and len(model) < 12:
        body["model"] = ["small", "large"][len(model) % 2] if is_translated else "wide"
    if "response_format" in body and not is_translated:
        body["response_format"] = "json"
    if body.get("stream", False) in (None, False) and len(str(body)) % 2:
        body["stream"] = True


@schemathesis.check
def events_conform(ctx, response, case):
    """Checks that every event conforms to the document, and that the last event ends the stream."""
    if not response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        return
    check = validator(json.dumps(case.operation.schema.raw_schema), case.operation.path)
    data = [line[6:] for line in response.content.decode().split("\n") if line.startswith("data: ")]
    for event in data:
        if event != "[DONE]":
            check.validate(json.loads(event))
    last = data[-1]
    assert last == "[DONE]" or "error" in json.loads(last) or json.loads(last).get("type") in LAST, last
