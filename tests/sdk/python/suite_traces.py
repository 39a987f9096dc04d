"""Checks exported spans with standard tools: OpenTelemetry's own messages decode them strictly, and a real collector
accepts and forwards them."""

import base64
import gzip
import http.server
import os
import pathlib
import re
import subprocess
import sysconfig
import tempfile
import threading
import unittest

import openai
from google.protobuf import json_format
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import gateway
from gateway import fetch, free_port, wait_until

GATEWAY = None
# A first target without a server, and a second one of another format.
TABLES = """
[[providers]]
name = "nobody"
shape = "chat"
base_url = "http://127.0.0.1:{dead}/v1"

[[models]]
id = "both"
context = "256K"
targets = [
    { provider = "nobody", model = "up-none", priority = 1 },
    { provider = "sim-messages", model = "up-both", priority = 2 },
]

[telemetry]
otlp = "http://127.0.0.1:{collector}"
"""


def decoded(body, kind):
    """Decodes an OTLP request in either encoding. In OTLP/JSON, ids are hexadecimal instead of base64, the only deviation
    from the JSON mapping of protocol buffers. An unknown member is an error."""
    if kind == "application/x-protobuf":
        return ExportTraceServiceRequest.FromString(body)
    assert kind == "application/json", kind
    ids = re.compile(rb'"(traceId|spanId|parentSpanId)":"([0-9a-f]+)"')
    text = ids.sub(lambda found: b'"%s":"%s"' % (found[1], base64.b64encode(bytes.fromhex(found[2].decode()))), body)
    return json_format.Parse(text, ExportTraceServiceRequest(), ignore_unknown_fields=False)


class Collector:
    """Receives /v1/traces and stores the data as messages."""

    def __init__(self):
        self.requests = []
        kept = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers["content-encoding"] == "gzip":
                    body = gzip.decompress(body)
                kept.append(decoded(body, self.headers["content-type"]))
                assert self.path == "/v1/traces", self.path
                self.send_response(200)
                self.send_header("content-type", self.headers["content-type"])
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self, trace_id):
        scopes = [scope for one in self.requests for resource in one.resource_spans for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans if span.trace_id.hex() == trace_id]

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def attributes(of):
    """Plain values by name."""
    def plain(value):
        kind = value.WhichOneof("value")
        found = getattr(value, kind)
        return [plain(one) for one in found.values] if kind == "array_value" else found

    found = {one.key: plain(one.value) for one in of.attributes}
    assert len(found) == len(of.attributes), of
    return found


class Running:
    """A separate gateway that exports to the collector, directly or through another one."""

    def __init__(self, collector):
        config = pathlib.Path(tempfile.mkdtemp(prefix="tollgate-traces-")) / "config.toml"
        tables = TABLES.replace("{dead}", str(free_port())).replace("{collector}", str(collector))
        config.write_text(gateway.CONFIG.read_text() + tables)
        self.gateway = gateway.Gateway(config, GATEWAY.provider)

    def stream(self, headers):
        """All events of a streamed request by the official package."""
        base = f"http://{self.gateway.gateway}/v1"
        client = openai.OpenAI(api_key=self.gateway.key, base_url=base, max_retries=0)
        messages = [{"role": "user", "content": "#sim tokens=10 pace=100\nhello"}]
        return list(client.chat.completions.create(
            model="both", messages=messages, stream=True, stream_options={"include_usage": True}, extra_headers=headers
        ))


def caller():
    """Returns a caller's trace, span, and headers from OpenTelemetry's own propagator."""
    trace_id, span_id = os.urandom(16), os.urandom(8)
    state = trace.TraceState([("vendor", "one"), ("other", "two")])
    numbers = [int.from_bytes(one, "big") for one in (trace_id, span_id)]
    context = trace.SpanContext(*numbers, True, trace.TraceFlags(1), state)
    headers = {}
    where = trace.set_span_in_context(trace.NonRecordingSpan(context))
    TraceContextTextMapPropagator().inject(headers, where)
    return trace_id, span_id, headers


class Traces(unittest.TestCase):
    def check(self, collector, running):
        trace_id, span_id, headers = caller()
        events = running.stream(headers)
        wait_until("the spans", lambda: len(collector.spans(trace_id.hex())) == 3)
        kinds = lambda span: (span.kind, span.start_time_unix_nano)
        own, first, second = sorted(collector.spans(trace_id.hex()), key=kinds)
        # Parents: the caller, then the request; and the provider received the span of its attempt.
        self.assertEqual((own.parent_span_id, first.parent_span_id, second.parent_span_id),
                         (span_id, own.span_id, own.span_id))
        self.assertEqual([own.kind, first.kind, second.kind],
                         [Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_CLIENT])
        told = {name.lower(): value for name, value in GATEWAY.last()["headers"]}
        context = trace.get_current_span(TraceContextTextMapPropagator().extract(told)).get_span_context()
        self.assertEqual(context.trace_id.to_bytes(16, "big"), trace_id)
        self.assertEqual(context.span_id.to_bytes(8, "big"), second.span_id)
        self.assertTrue(context.trace_flags.sampled)
        self.assertEqual(dict(context.trace_state), {"vendor": "one", "other": "two"})
        self.assertEqual(own.trace_state, headers["tracestate"])
        # Times.
        at = lambda span: (span.start_time_unix_nano, span.end_time_unix_nano)
        moments = [own.start_time_unix_nano, *at(first), *at(second), own.end_time_unix_nano]
        self.assertEqual(moments, sorted(moments))
        self.assertGreater(moments[4] - moments[3], 50_000_000)
        [event] = own.events
        self.assertTrue(second.start_time_unix_nano < event.time_unix_nano < second.end_time_unix_nano)
        # Attributes.
        of, tried, served = attributes(own), attributes(first), attributes(second)
        usage = events[-1].usage
        self.assertEqual((own.name, first.name, second.name), ("chat both", "chat up-none", "chat up-both"))
        for name, value in {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "both",
            "gen_ai.response.model": "both",
            "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "http.response.status_code": 200,
            "url.path": "/v1/chat/completions",
            "tollgate.request.id": events[0].id,
        }.items():
            self.assertEqual(of[name], value, name)
        self.assertEqual((tried["error.type"], first.status.code), ("connect", Status.STATUS_CODE_ERROR))
        self.assertEqual((served["gen_ai.provider.name"], served["http.response.status_code"]), ("sim-messages", 200))
        self.assertFalse(any(name.startswith("gen_ai.usage") for name in {**tried, **served}))
        self.assertEqual((own.status.code, second.status.code), (Status.STATUS_CODE_UNSET, Status.STATUS_CODE_UNSET))
        resource = attributes(collector.requests[0].resource_spans[0].resource)
        self.assertEqual(resource["service.name"], "tollgate")
        self.assertNotIn("hello", str(collector.requests))

    def test_opentelemetrys_messages_decode_exported_spans(self):
        collector = Collector()
        running = Running(collector.port)
        try:
            self.check(collector, running)
        finally:
            self.assertEqual(running.gateway.stop(), [0])
            collector.stop()

    def test_real_collector_accepts_and_forwards_spans(self):
        collector, folder = Collector(), tempfile.TemporaryDirectory(prefix="tollgate-rotel-")
        ports = [free_port() for _ in range(2)]
        program = pathlib.Path(sysconfig.get_path("purelib")) / "rotel/rotel-agent"
        process = subprocess.Popen(
            [program, "start", "--otlp-http-endpoint", f"127.0.0.1:{ports[0]}", "--otlp-grpc-endpoint",
             f"127.0.0.1:{ports[1]}", "--exporter", "otlp", "--otlp-exporter-protocol", "http",
             "--otlp-exporter-endpoint", f"http://127.0.0.1:{collector.port}"],
            cwd=folder.name,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until("the collector", lambda: fetch(f"http://127.0.0.1:{ports[0]}/")[0] != 0)
            running = Running(ports[0])
            try:
                self.check(collector, running)
            finally:
                self.assertEqual(running.gateway.stop(), [0])
        finally:
            process.terminate()
            process.wait()
            collector.stop()
            folder.cleanup()


if __name__ == "__main__":
    unittest.main()
