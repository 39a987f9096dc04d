"""A plugin of pytest for the tests of the official SDKs: sets the gateway's key, and marks the cases that
`expected.toml` expects to fail. Such a case that passes has failed, and so has a pattern without a case.

SDK names the SDK, SDK_REPORT the file of the report, TOLLGATE_KEY the key.
"""

import collections
import fnmatch
import functools
import json
import os
import pathlib
import ssl
import sys
import tomllib

import pytest

EXPECTED = tomllib.loads((pathlib.Path(__file__).parent / "expected.toml").read_text())[os.environ["SDK"]]
REASON = pytest.StashKey()
# Cases that send nothing: they check that the SDK refuses an empty id.
LOCAL = "test_path_params_"

# Every client reads all certificate authorities, which takes longer than its tests: share them.
ssl.create_default_context = functools.cache(ssl.create_default_context)


@pytest.fixture(scope="session", autouse=True)
def gateway_key():
    """The tests make their clients with a fixed key, after this fixture."""
    sys.modules["tests.conftest"].api_key = os.environ["TOLLGATE_KEY"]


def pytest_collection_modifyitems(config, items):
    config.hook.pytest_deselected(items=[item for item in items if item.name.startswith(LOCAL)])
    items[:] = [item for item in items if not item.name.startswith(LOCAL)]
    for group in EXPECTED:
        for case in group["cases"]:
            file, pattern = case.split()
            found = [item for item in items if item.nodeid.startswith(f"tests/api_resources/{file}::")
                     and fnmatch.fnmatchcase(item.name, "test_" + pattern.replace("[", "[[]"))]
            if not found:
                raise pytest.UsageError(f"expected.toml: no case matches: {case}")
            for item in found:
                if REASON in item.stash:
                    raise pytest.UsageError(f"expected.toml: {item.nodeid} is expected twice")
                item.stash[REASON] = group["reason"]
                item.add_marker(pytest.mark.xfail(reason=group["reason"], strict=True))


def pytest_terminal_summary(terminalreporter):
    stats = terminalreporter.stats
    for report in stats.get("failed", []) + stats.get("error", []):
        # The last lines of an SDK's error contain the status and the body.
        lines = str(report.longrepr).splitlines()[-8:]
        terminalreporter.write_line("\n    ".join([f"FAIL: {report.nodeid}", *lines]))
    expected = collections.Counter(report.wasxfail for report in stats.get("xfailed", []))
    counts = {
        "passed": len(stats.get("passed", [])),
        "failed": len(stats.get("failed", [])) + len(stats.get("error", [])),
        "skipped": len(stats.get("skipped", [])),
        # In the order of the list.
        "expected": {group["reason"]: expected[group["reason"]] for group in EXPECTED},
    }
    pathlib.Path(os.environ["SDK_REPORT"]).write_text(json.dumps(counts))
