"""Runs public conformance tools against the gateway with the simulated provider in each format: every combination.

llm-comply validates complete responses with the schemas that the vendors publish. compatcanary and
trustedrouter-provider-check evaluate providers. The script prints the table of src/docs/reference/conformance.md; the
last line is `N passed, N failed, N skipped`.
"""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "sdk" / "python"))

import gateway  # noqa: E402

UPSTREAMS = ["chat", "messages", "responses"]
PATIENCE = 300
PAGE = ROOT / "src" / "docs" / "reference" / "conformance.md"
MARKS = ("<!-- scripts/test conformance -->\n", "\n<!-- end -->")
TOOLS = pathlib.Path(os.environ["CONFORMANCE_TOOLS"])

# Checks that cannot pass, which are not counted; the page gives the reasons.
EXCEPTIONS = {"chat-error-handling", "error-handling", "chat.pong"}


def run(program, arguments, key):
    """Runs a tool; returns its report, which is JSON on standard output."""
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "OPENAI_API_KEY": key, "TR_PROVIDER_API_KEY": key}
    done = subprocess.run([str(TOOLS / program), *arguments], env=environment, capture_output=True, text=True,
                          timeout=PATIENCE, stdin=subprocess.DEVNULL)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        raise RuntimeError(f"{program} {arguments}: {done.stdout[-500:]} {done.stderr[-500:]}") from None


def comply(form, prefix, *headers):
    def checks(url, key, upstream):
        options = ["-u", url, "-k", key, "-m", f"{prefix}-{upstream}", "--format", form, *headers, "--json"]
        return run("venv/bin/llm-comply", options, key)["results"]

    return checks


def canary(url, key, upstream):
    options = ["scan", "--base-url", url, "--model", f"gpt-5-{upstream}", "--format", "json"]
    return run("node/node_modules/.bin/compatcanary", options, key)["results"]


def provider_check(url, key, upstream):
    options = ["--base-url", url, "--model", f"gpt-5-{upstream}", "--tier", "5", "--json", "-"]
    return run("venv/bin/trustedrouter-provider-check", options, key)["checks"]


ROWS = [
    ("llm-comply", "Chat Completions", comply("openai-chat", "gpt-5")),
    ("llm-comply", "Messages", comply("anthropic", "claude-sonnet-4", "-H", "anthropic-version:2023-06-01")),
    ("llm-comply", "Responses", comply("open-responses", "gpt-5")),
    ("compatcanary", "Chat Completions, Responses", canary),
    ("trustedrouter-provider-check", "Chat Completions", provider_check),
]


def version(package):
    """The version that the stage pins."""
    words = os.environ["CONFORMANCE_VERSIONS"].split()
    return next(word.replace("==", "@").split("@")[1] for word in words if word.startswith(package))


def main():
    passed, failed, skipped, rows = 0, 0, 0, []
    started = gateway.Gateway(HERE / "config.toml")
    try:
        for tool, form, checks in ROWS:
            cells = []
            for upstream in UPSTREAMS:
                counts = {"pass": 0, "fail": 0, "skip": 0}
                for check in checks(f"http://{started.gateway}/v1", started.key, upstream):
                    if check["id"] in EXCEPTIONS:
                        continue
                    # A warning is not about the format.
                    state = {"passed": "pass", "warn": "pass", "skipped": "skip"}.get(check["status"], check["status"])
                    counts["pass" if state == "pass" else "skip" if state == "skip" else "fail"] += 1
                    if state not in ["pass", "skip"]:
                        print(f"FAIL: {tool}, {form}, at {upstream}: {json.dumps(check)[:2000]}", flush=True)
                cells.append(f"{counts['pass']} of {counts['pass'] + counts['fail']}")
                passed, failed, skipped = passed + counts["pass"], failed + counts["fail"], skipped + counts["skip"]
            rows.append([f"{tool} {version(tool)}", form, *cells])
    finally:
        codes = started.stop()
    if codes != [0, 0]:
        print(f"FAIL: exit codes {codes}")
        failed += 1
    head = ["tool", "client format", *(f"{upstream} upstream" for upstream in UPSTREAMS)]
    text = "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])
    print(text)
    if PAGE.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0] != text:
        print(f"FAIL: the table in {PAGE.relative_to(ROOT)} differs from the one above")
        failed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
