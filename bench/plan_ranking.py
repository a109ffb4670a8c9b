#!/usr/bin/env python3
"""Compares predicted with measured iteration times of layouts of one narrow model, as processes on this machine's CPU.

    bench/plan_ranking.py BRAID [--set first] [--hardware cpu-2] [--rounds 3] [--iterations 12]

A search needs the right order of layouts more than the right seconds, so the last lines are Kendall's tau: the pairs of
layouts in the right order, minus those in the wrong one, by all pairs. Each round trains every layout once; the first
two iterations do not count. Two measures, since the first one needs a machine that does nothing else:

wall   the tenth percentile of the iterations' times
cpu    what the iterations take if nothing else runs and messages take no time: the CPU time of the busiest rank or, if
       that is longer, of all ranks divided by the number of cores
"""
import argparse
import itertools
import json
import os
import re
import subprocess
import sys

RECIPE = "recipes/nemotron-vlm-20l-small.yaml"
# encoder, language model, on the same ranks. The second set has a wider model with larger batches, the third one
# microbatches of one sample, the fourth one longer sequences and a wider encoder, the fifth one more experts
# and shorter sequences. The model of predictions was developed with the first three in view; the others were
# chosen when it was finished.
FIRST = {
    "one rank": ("dp: 1", "dp: 1", True),
    "colocated dp 2": ("dp: 2", "dp: 2", True),
    "colocated tp 2": ("dp: 2", "tp: 2", True),
    "colocated tp 2, dp 2, ep 2": ("dp: 4", "tp: 2, dp: 2, ep: 2", True),
    "1 + dp 1": ("dp: 1", "dp: 1", False),
    "1 + dp 2": ("dp: 1", "dp: 2", False),
    "1 + cp 2": ("dp: 1", "cp: 2", False),
    "1 + pp 2": ("dp: 1", "pp: 2", False),
    "2 + dp 4, ep 4": ("dp: 2", "dp: 4, ep: 4", False),
    "2 + tp 2, dp 2, ep 2": ("dp: 2", "tp: 2, dp: 2, ep: 2", False),
    "1 + tp 2, cp 2": ("dp: 1", "tp: 2, cp: 2", False),
    "2 + tp 2, pp 3, ep 2": ("dp: 2", "tp: 2, pp: 3, ep: 2", False),
}
SECOND = {
    "one rank": ("dp: 1", "dp: 1", True),
    "colocated dp 4": ("dp: 4", "dp: 4", True),
    "colocated cp 2": ("dp: 2", "cp: 2", True),
    "colocated dp 2, ep 2": ("dp: 2", "dp: 2, ep: 2", True),
    "colocated tp 2, cp 2": ("dp: 4", "tp: 2, cp: 2", True),
    "1 + tp 2": ("dp: 1", "tp: 2", False),
    "1 + pp 3": ("dp: 1", "pp: 3", False),
    "1 + dp 2, cp 2": ("dp: 1", "dp: 2, cp: 2", False),
    "2 + dp 4": ("dp: 2", "dp: 4", False),
    "2 + dp 2, pp 2": ("dp: 2", "dp: 2, pp: 2", False),
}
THIRD = {
    "one rank": ("dp: 1", "dp: 1", True),
    "colocated tp 2, dp 2": ("tp: 2, dp: 2", "tp: 2, dp: 2", True),
    "colocated cp 2, dp 2": ("tp: 2, dp: 2", "cp: 2, dp: 2", True),
    "colocated dp 4, ep 4": ("dp: 4", "dp: 4, ep: 4", True),
    "1 + dp 4": ("dp: 1", "dp: 4", False),
    "1 + pp 4": ("dp: 1", "pp: 4", False),
    "1 + tp 2, dp 2": ("dp: 1", "tp: 2, dp: 2", False),
    "1 + dp 2, ep 2": ("dp: 1", "dp: 2, ep: 2", False),
    "2 + dp 2": ("dp: 2", "dp: 2", False),
    "2 + tp 2, pp 2": ("tp: 2", "tp: 2, pp: 2", False),
}
FOURTH = {
    "one rank": ("dp: 1", "dp: 1", True),
    "colocated dp 2": ("dp: 2", "dp: 2", True),
    "colocated tp 2, ep 2": ("tp: 2", "tp: 2, ep: 2", True),
    "colocated cp 4": ("tp: 4", "cp: 4", True),
    "1 + dp 1": ("dp: 1", "dp: 1", False),
    "1 + tp 2, ep 2": ("dp: 1", "tp: 2, ep: 2", False),
    "1 + cp 4": ("dp: 1", "cp: 4", False),
    "1 + dp 2, pp 2": ("dp: 1", "dp: 2, pp: 2", False),
    "2 + pp 3": ("tp: 2", "pp: 3", False),
    "2 + dp 2, cp 2": ("dp: 2", "dp: 2, cp: 2", False),
}
FIFTH = {
    "one rank": ("dp: 1", "dp: 1", True),
    "colocated dp 4": ("dp: 4", "dp: 4", True),
    "colocated cp 2": ("tp: 2", "cp: 2", True),
    "colocated tp 2, dp 2, ep 4": ("dp: 4", "tp: 2, dp: 2, ep: 4", True),
    "1 + tp 2": ("dp: 1", "tp: 2", False),
    "1 + pp 2": ("dp: 1", "pp: 2", False),
    "1 + dp 4, ep 2": ("dp: 1", "dp: 4, ep: 2", False),
    "1 + dp 2, cp 2, ep 2": ("dp: 1", "dp: 2, cp: 2, ep: 2", False),
    "2 + tp 2, pp 3": ("tp: 2", "tp: 2, pp: 3", False),
    "4 + dp 2": ("tp: 2, dp: 2", "dp: 2", False),
}
WIDER = {"hidden: 64": "hidden: 128", "output: 64": "output: 128", "expert_ffn: 48": "expert_ffn: 96",
         "micro_batch: 2": "micro_batch: 4", "global_batch: 8": "global_batch: 16"}
LONGER = {"sequence_length: 128": "sequence_length: 256", "micro_batch: 2": "micro_batch: 1",
          "hidden: 32, layers: 8, heads: 4, ffn: 128": "hidden: 64, layers: 8, heads: 4, ffn: 256",
          "input: 128": "input: 256"}
SHORTER = {"sequence_length: 128": "sequence_length: 96", "experts: 8": "experts: 16",
           "expert_ffn: 48": "expert_ffn: 64", "global_batch: 8": "global_batch: 16"}
SETS = {"first": (FIRST, {}), "second": (SECOND, WIDER), "third": (THIRD, {"micro_batch: 2": "micro_batch: 1"}),
        "fourth": (FOURTH, LONGER), "fifth": (FIFTH, SHORTER)}


def recipe_of(layout, changes):
    images, language, colocated = layout
    with open(RECIPE) as file:
        _, _, rest = file.read().partition("model:\n")
    for before, after in changes.items():
        assert before in rest, f"{RECIPE} has no '{before}'"
        rest = rest.replace(before, after)
    return (
        f"topology:\n  colocated: {str(colocated).lower()}\n  modules:\n    images: {{kind: encoder, {images}}}\n"
        f"    language: {{kind: language, {language}}}\nmodel:\n{rest}"
    )


def predict(braid, recipe, hardware):
    run = subprocess.run([braid, "plan", "simulate", "-", "--hardware", hardware, "--steps", "8", "--json"],
                         input=recipe, capture_output=True, text=True, check=True)
    return 1e3 * json.loads(run.stdout)["iteration_s"]


def cpu_seconds(launcher):
    """Of each rank, by process."""
    ticks = os.sysconf("SC_CLK_TCK")
    ranks = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == launcher:
            ranks[entry] = (int(fields[11]) + int(fields[12])) / ticks
    return ranks


def measure(braid, recipe, iterations):
    """Milliseconds: the times of the iterations, and the CPU time of each rank per iteration."""
    run = subprocess.Popen([braid, "train", "-", "--train-iters", str(iterations + 3), "--log-interval", "1"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                           env=os.environ | {"OMP_NUM_THREADS": "1"})
    run.stdin.write(recipe)
    run.stdin.close()
    times, cpu = [], []
    for line in run.stdout:
        if time := re.search(r"elapsed time per iteration \(ms\): ([\d.]+)", line):
            times.append(float(time[1]))
            cpu.append(cpu_seconds(run.pid))
    if run.wait() != 0 or len(times) != iterations + 3:
        sys.exit(f"training failed with exit code {run.returncode}")
    # While the last line is printed, ranks may already end.
    return times[2:], [1e3 * (cpu[-2][rank] - cpu[1][rank]) / iterations for rank in cpu[1]]


def kendall_tau(a, b):
    pairs = list(itertools.combinations(range(len(a)), 2))
    sign = lambda x: (x > 0) - (x < 0)
    return sum(sign(a[i] - a[j]) * sign(b[i] - b[j]) for i, j in pairs) / len(pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("braid")
    parser.add_argument("--set", choices=SETS, default="first")
    parser.add_argument("--hardware", default="cpu-2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    options = parser.parse_args()
    layouts, changes = SETS[options.set]
    recipes = {name: recipe_of(layout, changes) for name, layout in layouts.items()}
    predicted = {name: predict(options.braid, recipe, options.hardware) for name, recipe in recipes.items()}
    times = {name: [] for name in recipes}
    cpu = {name: [] for name in recipes}
    for _ in range(options.rounds):
        for name, recipe in recipes.items():
            all_times, of_ranks = measure(options.braid, recipe, options.iterations)
            times[name] += all_times
            cpu[name].append(max(max(of_ranks), sum(of_ranks) / len(os.sched_getaffinity(0))))
            print(f"{name}: {min(all_times):.0f} ms, {cpu[name][-1]:.0f} ms of CPU time", file=sys.stderr)
    wall = {name: sorted(all_times)[len(all_times) // 10] for name, all_times in times.items()}
    cpu = {name: min(rounds) for name, rounds in cpu.items()}
    print(f"{'layout':30}{'wall ms':>10}{'cpu ms':>10}{'predicted ms':>14}")
    for name in sorted(recipes, key=cpu.get):
        print(f"{name:30}{wall[name]:10.1f}{cpu[name]:10.1f}{predicted[name]:14.1f}")
    names = list(recipes)
    for what, measured in (("wall", wall), ("cpu", cpu)):
        tau = kendall_tau([measured[n] for n in names], [predicted[n] for n in names])
        print(f"Kendall's tau, {what}: {tau:.2f}")


if __name__ == "__main__":
    main()
