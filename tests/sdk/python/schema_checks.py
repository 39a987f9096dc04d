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


@schemathesis.hook
def before_call(context, case, kwargs):
    """Replaces most model names with existing ones, since otherwise hardly any request would reach a provider. Half of
    the requests ask for a stream."""
    model = case.body.get("model") if isinstance(case.body, dict) else None
    if isinstance(model, str) and len(model) < 12:
        case.body["model"] = ["small", "large"][len(model) % 2]
    if isinstance(case.body, dict) and case.body.get("stream", False) in (None, False) and len(str(case.body)) % 2:
        case.body["stream"] = True


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
    assert last == "[DONE]" or "error" in json.loads(last) or json.loads(last)["type"] == "message_stop", last
