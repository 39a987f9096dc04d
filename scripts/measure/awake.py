"""Keeps the cores of this machine awake during a measurement. A virtual machine gives an idle core back to its host,
and waking it can take milliseconds, which are the host's and not Tollgate's. The kernel is asked for a wake-up latency
of zero, so that it spins on an idle core. If it cannot be asked, a process on each core counts in the scheduler's idle
class, and any other ready process takes precedence; but other processes of that class then get half of their time, and
the kernel's own work may be late.

python3 scripts/measure/awake.py COMMAND ...     runs the command with all cores awake"""
import contextlib, os, struct, subprocess, sys
from pathlib import Path

# Seconds after which a process ends by itself if its parent is gone.
ENDS_AFTER = 7200


def count(core):
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    until = os.times().elapsed + ENDS_AFTER
    parent = os.getppid()
    while os.times().elapsed < until and os.getppid() == parent:
        for _ in range(100_000):
            pass


def asked():
    """File that keeps the request active while it is open (Documentation/power/pm_qos_interface); `None` without a
    driver that supports it."""
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
    latency, counting = asked(), []
    if latency:
        with latency:
            yield
        return
    try:
        for core in sorted(os.sched_getaffinity(0)):
            pid = os.fork()
            if pid == 0:
                try:
                    count(core)
                finally:
                    os._exit(0)
            counting.append(pid)
        yield
    finally:
        for pid in counting:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    with awake():
        sys.exit(subprocess.call(sys.argv[1:]))
