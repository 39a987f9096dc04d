"""Runs the official SDKs' own tests of their API resources, from their source packages, against the gateway with the
simulated provider. The SDKs validate every response strictly.

`expected.toml` lists the cases that fail, with the reasons. The script prints the second table of
src/docs/reference/conformance.md; the last line is `N passed, N failed, N skipped`.
"""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "sdk" / "python"))

import gateway  # noqa: E402
import page  # noqa: E402

PATIENCE = 600
TOOLS = pathlib.Path(os.environ["CONFORMANCE_TOOLS"])

# Each SDK: the path of the base URL, arguments of pytest, and the tests of endpoints that Tollgate has.
SDKS = {
    "openai": ("/v1", [], [
        "audio/test_speech.py", "audio/test_transcriptions.py", "audio/test_translations.py",
        "chat/test_completions.py", "responses/test_input_tokens.py", "test_completions.py", "test_embeddings.py",
        "test_images.py", "test_models.py", "test_moderations.py", "test_responses.py",
    ]),
    "anthropic": ("", ["-p", "tests._alias_httpx"], [
        "beta/test_messages.py", "beta/test_models.py", "beta/test_output_format_conversion.py", "test_messages.py",
        "test_models.py",
    ]),
}


def run(sdk, started):
    """Runs the tests of an SDK; returns the report of `sdk_plugin.py`."""
    path, arguments, files = SDKS[sdk]
    source = next(TOOLS.glob(f"sources/{sdk}-*/tests")).parent
    report = pathlib.Path(started.folder.name) / f"{sdk}.json"
    environment = {
        "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1",
        "TEST_API_BASE_URL": f"http://{started.gateway}{path}", "TOLLGATE_KEY": started.key, "SDK": sdk,
        "SDK_REPORT": str(report),
    }
    # Without the options of the package, which require a plugin for several processes.
    command = [TOOLS / "sdks" / "bin" / "python", "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider",
               "-p", "sdk_plugin", "-qq", "--no-summary", "--tb=native", *arguments]
    command += [f"tests/api_resources/{file}" for file in files]
    subprocess.run(command, cwd=source, env=environment, timeout=PATIENCE, check=False)
    return source.name.replace("-", " "), json.loads(report.read_text())


def main():
    passed, failed, skipped, rows = 0, 0, 0, []
    started = gateway.Gateway(HERE / "sdks.toml")
    try:
        for sdk in SDKS:
            name, report = run(sdk, started)
            rows.append([name, report["passed"], "pass"])
            rows += [[name, count, f"fail: {reason}"] for reason, count in report["expected"].items()]
            passed, failed = passed + report["passed"], failed + report["failed"]
            skipped += report["skipped"]
    finally:
        codes = started.stop()
    if codes != [0, 0]:
        print(f"FAIL: exit codes {codes}")
        failed += 1
    failed += page.differs("sdks", page.table(["tests of", "cases", "result"], rows))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
