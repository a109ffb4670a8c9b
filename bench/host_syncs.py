#!/usr/bin/env python3
"""Counts host synchronisations per training step, by where in Braid they are.

    bench/host_syncs.py BUILD_FOLDER RECIPE [OPTION of braid train ...]

Runs the recipe for 4 and for 12 iterations under libhost_syncs.so; the difference over 8 is what a step does.
"""
import collections
import glob
import os
import subprocess
import sys
import tempfile

SHORT, LONG = 4, 12


def counts(build, recipe, options, iterations, folder):
    prefix = f"{folder}/syncs_{iterations}"
    run = subprocess.run([f"{build}/braid", "train", recipe, "--train-iters", str(iterations), *options],
                         env={**os.environ, "LD_PRELOAD": f"{build}/libhost_syncs.so", "BRAID_HOST_SYNCS": prefix},
                         capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stdout + run.stderr)
    found = collections.Counter()
    for file in glob.glob(f"{prefix}.*"):
        with open(file) as lines:
            for line in lines:
                count, call, *frames = line.split()
                found[call, tuple(frame for frame in frames if "braid" in os.path.basename(frame.split("+")[0]))] += int(count)
    return found


def names(frames):
    """The innermost three functions of ours."""
    found = []
    for frame in frames[:3]:
        module, offset = frame.rsplit("+", 1)
        where = subprocess.run(["addr2line", "-Cfe", module, hex(int(offset, 16) - 1)], capture_output=True, text=True).stdout
        found.append(where.split("\n")[0].split("(")[0])
    return " < ".join(found) or "(a thread of libtorch)"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    build, recipe, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        short = counts(build, recipe, options, SHORT, folder)
        long = counts(build, recipe, options, LONG, folder)
    by_name = collections.Counter()
    for (call, frames), count in long.items():
        by_name[call, names(frames)] += count - short[call, frames]
    total = 0
    for (call, where), count in by_name.most_common():
        if count > 0:
            print(f"{count / (LONG - SHORT):8.2f}  {call:22} {where}")
            total += count
    print(f"{total / (LONG - SHORT):8.2f}  all, per step of all ranks")


main()
