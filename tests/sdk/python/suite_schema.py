"""Compares the running gateway with the OpenAPI document of its admin listener: Schemathesis generates valid and
invalid requests from the document, and checks every response with it.

SCHEMA_EXAMPLES is the number of requests for each operation and phase, SCHEMA_SEED the seed of the generator.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

GATEWAY = None
CONFIG = pathlib.Path(__file__).parent.parent / "schema.toml"
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "20"))
SEED = os.environ.get("SCHEMA_SEED")


def run():
    """Runs Schemathesis; returns its report."""
    report = pathlib.Path(GATEWAY.folder.name) / "schema.json"
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    command = [program, "--config-file", CONFIG, "run", f"http://{GATEWAY.admin}/openapi.json", "--no-color"]
    command += ["--url", f"http://{GATEWAY.gateway}", "--max-examples", str(EXAMPLES), "--continue-on-failure"]
    command += ["--generation-database", "none", "--report", "json", "--report-json-path", report]
    command += ["--seed", SEED] if SEED else []
    env = {**os.environ, "TOLLGATE_KEY": GATEWAY.key, "PYTHONPATH": str(pathlib.Path(__file__).parent)}
    subprocess.run(command, cwd=GATEWAY.folder.name, env=env, check=False)
    return json.loads(report.read_text())


class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.report = run()
        cases = cls.report["test_cases"]
        print(f"schema: {cases['generated']} requests, {cases['unique_failures']} failures,", end=" ")
        print(f"seed {cls.report['seed']}, {cls.report['running_time']:.0f} s", flush=True)

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

    def test_responses_include_streams(self):
        log = (pathlib.Path(GATEWAY.folder.name) / "serve.log").read_text()
        lines = [json.loads(line) for line in log.splitlines()]
        streams = [line for line in lines if line.get("stream") and line.get("status") == 200]
        self.assertGreater(len(streams), 10)

    def test_many_requests_were_made(self):
        self.assertGreater(self.report["test_cases"]["generated"], 10 * EXAMPLES)
