"""How the tests run a program."""
import subprocess

TIMEOUT_S = 900  # for one that hangs; a busy machine may need long


def run_program(command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT_S, **more)
