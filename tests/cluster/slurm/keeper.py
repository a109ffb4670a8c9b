"""Starts processes for whoever holds the other end of its pipes; when that end closes, ends them and all that came of
them, and removes the folder it was given.

A daemon's steps leave their parent, and ctest ends a test by SIGKILL: neither can be answered by the test itself. The
keeper becomes the parent of every orphan below it, so what to end is known by descent.
A request is a line of JSON, {"argv": [...], "env": {...}, "output": FILE}; the answer is a line with the pid.
"""
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36


def parents():
    """{pid: parent's pid} of all processes, zombies left out."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            found[int(name)] = int(parent)
    return found


def descendants(ancestor):
    found, generation, parent_of = [], {ancestor}, parents()
    while generation:
        generation = {pid for pid, parent in parent_of.items() if parent in generation}
        found += generation
    return found


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def end_all():
    while pids := descendants(os.getpid()):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
        reap()


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the other end decides, by closing the pipe
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    for line in sys.stdin:
        request = json.loads(line)
        with open(request["output"], "ab") as output:
            child = subprocess.Popen(request["argv"], env=request["env"], stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=output, start_new_session=True)
        child.returncode = 0  # reaped above, not by subprocess
        print(child.pid, flush=True)
    end_all()
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
