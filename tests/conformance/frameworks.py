"""Runs LangChain's standard tests against the scripted model behind two gateways: `test_langchain.py`. The last line is
`N passed, N failed, N skipped`."""

import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "sdk" / "python"))

import chain  # noqa: E402

PATIENCE = 600


def main():
    started = chain.Chain()
    try:
        environment = {
            "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
            "LANGSMITH_TRACING": "false", "GATEWAY": started.gateway, "GATEWAY_KEY": started.key,
        }
        # One loop for all tests, since the clients keep their connections.
        options = [
            "asyncio_mode=auto", "asyncio_default_test_loop_scope=session",
            "asyncio_default_fixture_loop_scope=session",
        ]
        command = [pathlib.Path(os.environ["CONFORMANCE_TOOLS"]) / "langchain" / "bin" / "python", "-m", "pytest"]
        command += ["-p", "no:cacheprovider", "--tb=native", "--disable-warnings", "-r", "fE"]
        command += [word for option in options for word in ("-o", option)]
        command.append(HERE / "test_langchain.py")
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    finally:
        codes = started.stop()
    print(done.stdout)
    words = done.stdout.strip().splitlines()[-1]
    passed, failed, errors, skipped = (
        sum(map(int, re.findall(rf"(\d+) {word}", words))) for word in ["passed", "failed", "error", "skipped"]
    )
    failed += errors
    if any(codes) or (done.returncode != 0 and failed == 0):
        print(f"FAIL: exit codes {codes} of the gateways, {done.returncode} of the tests")
        failed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
