"""Compares the running gateway with both OpenAPI documents, of the API for clients and of the admin API: Schemathesis
generates valid and invalid requests from the document, and checks every response with it.

SCHEMA_EXAMPLES is the number of requests for each operation and phase, SCHEMA_SEED the seed of the generator.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import gateway

GATEWAY = None
CONFIGS = pathlib.Path(__file__).parent.parent
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "20"))
SEED = os.environ.get("SCHEMA_SEED")


def run(tested, config, document, address, token):
    """Runs Schemathesis with a document of the gateway; returns its report."""
    report = pathlib.Path(tested.folder.name) / "schema.json"
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    command = [program, "--config-file", CONFIGS / config, "run", f"http://{tested.admin}{document}", "--no-color"]
    command += ["--url", f"http://{address}", "--max-examples", str(EXAMPLES), "--continue-on-failure"]
    command += ["--generation-database", "none", "--report", "json", "--report-json-path", report]
    command += ["--seed", SEED] if SEED else []
    env = {**os.environ, "TOLLGATE_TOKEN": token, "PYTHONPATH": str(pathlib.Path(__file__).parent)}
    subprocess.run(command, cwd=tested.folder.name, env=env, check=False)
    result = json.loads(report.read_text())
    cases = result["test_cases"]
    print(f"{document}: {cases['generated']} requests, {cases['unique_failures']} failures,", end=" ")
    print(f"seed {result['seed']}, {result['running_time']:.0f} s", flush=True)
    return result


class Both:
    """The tests of both documents."""

    def test_every_response_matches_the_document(self):
        self.assertEqual((self.report["failures"], self.report["errors"]), ([], []))
        self.assertEqual((self.report["exit_code"], self.report["complete"]), (0, True))

    def test_every_operation_succeeds(self):
        operations = self.report["operations"]
        self.assertEqual((operations["selected"], operations["tested"]), (operations["total"], operations["total"]))
        self.assertGreaterEqual(operations["total"], 7)
        rates = self.report["valid_rates"]
        self.assertEqual(len(rates), operations["total"])
        for name, phases in rates.items():
            self.assertGreater(sum(phase["accepted"] for phase in phases.values()), 0, name)

    def test_many_requests_were_made(self):
        self.assertGreater(self.report["test_cases"]["generated"], 10 * EXAMPLES)


class Client(Both, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.report = run(GATEWAY, "schema.toml", "/openapi.json", GATEWAY.gateway, GATEWAY.key)

    def test_responses_include_streams(self):
        log = (pathlib.Path(GATEWAY.folder.name) / "serve.log").read_text()
        lines = [json.loads(line) for line in log.splitlines()]
        streams = [line for line in lines if line.get("stream") and line.get("status") == 200]
        self.assertGreater(len(streams), 10)


class Admin(Both, unittest.TestCase):
    """With a gateway of its own, which permits changes: the requests change and revoke keys."""

    @classmethod
    def setUpClass(cls):
        os.environ["ADMIN_WRITE_TOKEN"] = "may-change-everything"
        setting = '[server]\nadmin_write_token = { env = "ADMIN_WRITE_TOKEN" }\n'
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write(gateway.CONFIG.read_text().replace("[server]\n", setting))
            config.flush()
            own = gateway.Gateway(pathlib.Path(config.name))
        try:
            token = os.environ["ADMIN_WRITE_TOKEN"]
            cls.report = run(own, "schema-admin.toml", "/admin/openapi.json", own.admin, token)
        finally:
            cls.codes = own.stop()

    def test_gateway_ends_well(self):
        self.assertEqual(self.codes, [0, 0])
