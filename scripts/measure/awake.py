"""Keeps the cores of this machine from sleeping while something is measured: a core of a virtual machine that has nothing
to do is given back, and to wake it again takes milliseconds now and then, which are the host's and not ours. On each core a
process counts in the scheduler's idle class, where whatever else is ready comes at once before it.

    python3 scripts/measure/awake.py COMMAND ...     runs the command with all cores awake"""
import contextlib, os, subprocess, sys

# Seconds after which one ends by itself, if whoever began it has gone.
ENDS_AFTER = 7200


def count(core):
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    until = os.times().elapsed + ENDS_AFTER
    parent = os.getppid()
    while os.times().elapsed < until and os.getppid() == parent:
        for _ in range(100_000):
            pass


@contextlib.contextmanager
def awake():
    counting = []
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
