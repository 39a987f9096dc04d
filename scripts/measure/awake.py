"""Keeps the cores of this machine awake during a measurement. A virtual machine gives an idle core back to its host,
and waking it can take milliseconds, which are not Tollgate's. This module requests a wake-up latency of zero, so that
the kernel spins on an idle core. If the kernel does not support that, a busy process runs on each core in the
scheduler's idle class. Every other ready process has precedence; but other processes of that class get half of their
time, and kernel threads may be late.

python3 scripts/measure/awake.py COMMAND ...     runs the command with all cores awake"""
import contextlib, os, struct, subprocess, sys
from pathlib import Path

# Maximum seconds that a busy process runs.
ENDS_AFTER = 7200


def spin(core):
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    until = os.times().elapsed + ENDS_AFTER
    parent = os.getppid()
    while os.times().elapsed < until and os.getppid() == parent:
        for _ in range(100_000):
            pass


def latency_request():
    """Returns an open file that keeps the request active until it is closed (Documentation/power/pm_qos_interface), or
    `None` without a driver that supports it."""
    driver = Path("/sys/devices/system/cpu/cpuidle/current_driver")
    if not driver.exists() or driver.read_text().strip() == "none":
        return None
    try:
        latency = open("/dev/cpu_dma_latency", "wb", buffering=0)
    except OSError:
        return None
    latency.write(struct.pack("i", 0))
    return latency


@contextlib.contextmanager
def awake():
    latency, spinning = latency_request(), []
    if latency:
        with latency:
            yield
        return
    try:
        for core in sorted(os.sched_getaffinity(0)):
            pid = os.fork()
            if pid == 0:
                try:
                    spin(core)
                finally:
                    os._exit(0)
            spinning.append(pid)
        yield
    finally:
        for pid in spinning:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    with awake():
        sys.exit(subprocess.call(sys.argv[1:]))
