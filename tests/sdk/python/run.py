"""Runs the Python suites against one gateway; the last line is `N passed, N failed, N skipped`.

Arguments name suites (openai, anthropic, footprint, ...); the default is the suites of the two SDKs.
"""

import functools
import importlib
import ssl
import sys
import unittest

import gateway

# Every client of an SDK reads all certificate authorities, which takes longer than its tests: share them.
ssl.create_default_context = functools.cache(ssl.create_default_context)

SUITES = ["openai", "anthropic", "responses", "relayed", "open", "matrix", "agents", "played", "traces"]


class Result(unittest.TextTestResult):
    """Counts passed tests, too."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def main(names):
    running = gateway.Gateway()
    suites = unittest.TestSuite()
    for name in names or SUITES:
        module = importlib.import_module(f"suite_{name}")
        module.GATEWAY = running
        suites.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    try:
        result = unittest.TextTestRunner(resultclass=Result, verbosity=2, stream=sys.stdout).run(suites)
    finally:
        codes = running.stop()
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    passed = result.passed
    if codes == [0, 0]:
        passed += 1
    else:
        failed += 1
        print(f"FAIL: gateway and provider must end with code 0 on SIGTERM, got {codes}")
    print(f"{passed} passed, {failed} failed, {len(result.skipped)} skipped")
    return 0 if failed == 0 and passed > 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
