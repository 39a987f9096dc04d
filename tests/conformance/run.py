"""Runs public conformance tools against the gateway with the simulated provider in each format: every combination.

llm-comply validates complete responses with the schemas that the vendors publish. compatcanary and
trustedrouter-provider-check evaluate providers. canitoolcall compares calls of tools, complete and streamed, and needs
a model that calls tools by itself: that of `model.py`. The script prints the first table of
src/docs/reference/conformance.md; the last line is `N passed, N failed, N skipped`.
"""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "sdk" / "python"))

import chain  # noqa: E402
import gateway  # noqa: E402
import page  # noqa: E402

UPSTREAMS = ["chat", "messages", "responses"]
PATIENCE = 300
TOOLS = pathlib.Path(os.environ["CONFORMANCE_TOOLS"])

# Checks that cannot pass, which are not counted; the page gives the reasons.
EXCEPTIONS = {"chat-error-handling", "error-handling", "chat.pong"}


def run(program, arguments, key):
    """Runs a tool; returns its report, which is JSON on standard output."""
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "OPENAI_API_KEY": key, "TR_PROVIDER_API_KEY": key,
                   "CANITOOLCALL_API_KEY": key}
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


def tool_calls(url, key, upstream):
    options = ["probe", "--base-url", url, "--model", f"gpt-5-{upstream}", "--json", "-"]
    outcomes = run("venv/bin/canitoolcall", options, key)["outcomes"]
    return [{"id": outcome["scenario_id"], **outcome} for outcome in outcomes]


ROWS = [
    ("llm-comply", "Chat Completions", comply("openai-chat", "gpt-5")),
    ("llm-comply", "Messages", comply("anthropic", "claude-sonnet-4", "-H", "anthropic-version:2023-06-01")),
    ("llm-comply", "Responses", comply("open-responses", "gpt-5")),
    ("compatcanary", "Chat Completions, Responses", canary),
    ("trustedrouter-provider-check", "Chat Completions", provider_check),
    ("canitoolcall", "Chat Completions", tool_calls),
]


def version(package):
    """The version that the stage pins."""
    words = os.environ["CONFORMANCE_VERSIONS"].split()
    return next(word.replace("==", "@").split("@")[1] for word in words if word.startswith(package))


def main():
    passed, failed, skipped, rows = 0, 0, 0, []
    started, model = gateway.Gateway(HERE / "config.toml"), chain.Chain()
    try:
        for tool, form, checks in ROWS:
            tested = model if checks is tool_calls else started
            cells = []
            for upstream in UPSTREAMS:
                counts = {"pass": 0, "fail": 0, "skip": 0}
                for check in checks(f"http://{tested.gateway}/v1", tested.key, upstream):
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
        codes = started.stop() + model.stop()
    if any(codes):
        print(f"FAIL: exit codes {codes}")
        failed += 1
    head = ["tool", "client format", *(f"{upstream} upstream" for upstream in UPSTREAMS)]
    failed += page.differs("tools", page.table(head, rows))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
