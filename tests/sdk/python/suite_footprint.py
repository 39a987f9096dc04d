"""Footprint of the release binary: memory when idle and after work, and system calls per request in steady state."""

import json
import re
import signal
import socket
import statistics
import subprocess
import time
import unittest

from gateway import Gateway

GATEWAY = None
IDLE_KB_MAX = 6 * 1024
STARTS = 9
AFTER_WORK_KB_MAX = 16 * 1024
CALLS_PER_REQUEST_MAX = 6.05
OTHER_CALLS_SHARE_MAX = 0.001
TRACED_REQUESTS = 3000


def work(count, stream):
    """Sends this number of requests on one connection, each in one piece."""
    host, port = GATEWAY.gateway.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = connection.makefile("rb")
        for number in range(count):
            message = {"role": "user", "content": "#sim tokens=5"}
            body = json.dumps({"model": "small", "stream": stream(number), "messages": [message]})
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway.test\r\ncontent-type: application/json\r\n"
                f"authorization: Bearer {GATEWAY.key}\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            connection.sendall((head + body).encode())
            take(reader)


def take(reader):
    """Reads one complete response."""
    status = reader.readline()
    if b" 200 " not in status:
        raise AssertionError(status)
    length = None
    while line := reader.readline().strip():
        name, _, value = line.partition(b": ")
        if name == b"content-length":
            length = int(value)
    if length is not None:
        reader.read(length)
        return
    while size := int(reader.readline(), 16):
        reader.read(size + 2)
    reader.readline()


def traced(run):
    """System calls of the event loop's thread during `run`: name to count; `None` if tracing is not allowed."""
    command = ["strace", "-c", "-qq", "-U", "calls,name", "-p", str(GATEWAY.process.pid)]
    try:
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        return None
    end = time.monotonic() + 5
    while GATEWAY.status("TracerPid") == 0:
        if tracer.poll() is not None or time.monotonic() > end:
            return None
        time.sleep(0.01)
    run()
    tracer.send_signal(signal.SIGINT)
    table = tracer.communicate(timeout=60)[1]
    rows = re.findall(r"^\s*(\d+)\s+([a-z_0-9]+)\s*$", table, re.MULTILINE)
    return {name: int(count) for count, name in rows if name != "total"}


class Footprint(unittest.TestCase):
    def test_1_idle_gateway_uses_at_most_six_mebibytes(self):
        # The kernel maps more or less of the binary's file around each used page: some hundred kB from start to start.
        starts = [(GATEWAY.idle_kb, GATEWAY.used_kb)]
        while len(starts) < STARTS:
            fresh = Gateway(provider=GATEWAY.provider)
            starts.append((fresh.idle_kb, fresh.used_kb))
            fresh.stop()
        for moment, residents in zip(("when ready", "after the first key and request"), zip(*starts)):
            middle = statistics.median(residents)
            self.assertLessEqual(middle, IDLE_KB_MAX, f"{residents} kB resident {moment}")
            print(f"{middle} [{min(residents)} {max(residents)}] kB resident {moment}")

    def test_2_memory_is_released_after_work(self):
        work(2000, lambda number: number % 2 == 0)
        resident = GATEWAY.status("VmRSS")
        self.assertLessEqual(resident, AFTER_WORK_KB_MAX, f"{resident} kB resident after 2000 requests")

    def test_3_request_makes_six_system_calls(self):
        work(200, lambda number: False)
        calls = traced(lambda: work(TRACED_REQUESTS, lambda number: False))
        if calls is None:
            self.skipTest("strace is not there or may not attach")
        total = sum(calls.values())
        wanted = sum(calls.get(name, 0) for name in ["recvfrom", "sendto", "epoll_wait", "epoll_pwait"])
        print(f"{total / TRACED_REQUESTS:.3f} calls per request: {calls}")
        self.assertLessEqual(total / TRACED_REQUESTS, CALLS_PER_REQUEST_MAX, calls)
        self.assertLessEqual((total - wanted) / total, OTHER_CALLS_SHARE_MAX, calls)
