"""Keeps the cores of this machine from sleeping while something is measured: a core of a virtual machine that has nothing
to do is given back, and to wake it again takes milliseconds now and then, which are the host's and not ours. The kernel is
asked for cores that wake in no time at all, which it answers with a loop of its own where nothing else wants to run. Where
it cannot be asked, a process on each core counts in the scheduler's idle class, where whatever else is ready comes at once
before it; beside that one, others of the class have half of their time, and the kernel's own work may come late.

    python3 scripts/measure/awake.py COMMAND ...     runs the command with all cores awake"""
import contextlib, os, struct, subprocess, sys
from pathlib import Path

# Seconds after which a process ends by itself, if its parent is gone.
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
    """What holds the kernel to it as long as it is open (Documentation/power/pm_qos_interface); `None` where there is no
    driver that would listen."""
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
