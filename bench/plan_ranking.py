#!/usr/bin/env python3
"""Compares predicted with measured iteration times of layouts of one narrow model, as processes on this machine's CPU.

    bench/plan_ranking.py BRAID [--hardware cpu-2] [--rounds 3] [--iterations 12]

A search needs the right order of layouts more than the right seconds, so the last line is Kendall's tau: the pairs of
layouts in the right order, minus those in the wrong one, by all pairs. Each round trains every layout once; of all
iterations of a layout but the first two of a round, the tenth percentile counts, which other programs disturb least.
"""
import argparse
import itertools
import json
import os
import re
import subprocess
import sys

RECIPE = "recipes/nemotron-vlm-20l-small.yaml"
# encoder, language model, on the same ranks
LAYOUTS = {
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


def recipe_of(images, language, colocated):
    with open(RECIPE) as file:
        _, _, rest = file.read().partition("model:\n")
    return (
        f"topology:\n  colocated: {str(colocated).lower()}\n  modules:\n    images: {{kind: encoder, {images}}}\n"
        f"    language: {{kind: language, {language}}}\nmodel:\n{rest}"
    )


def predict(braid, recipe, hardware):
    run = subprocess.run([braid, "plan", "simulate", "-", "--hardware", hardware, "--steps", "8", "--json"],
                         input=recipe, capture_output=True, text=True, check=True)
    return 1e3 * json.loads(run.stdout)["iteration_s"]


def measure(braid, recipe, iterations):
    run = subprocess.run([braid, "train", "-", "--train-iters", str(iterations), "--log-interval", "1"], input=recipe,
                         capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    times = [float(t) for t in re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", run.stdout)]
    if run.returncode != 0 or len(times) != iterations:
        sys.exit(f"training failed:\n{run.stdout}{run.stderr}")
    return times[2:]


def kendall_tau(a, b):
    pairs = list(itertools.combinations(range(len(a)), 2))
    sign = lambda x: (x > 0) - (x < 0)
    return sum(sign(a[i] - a[j]) * sign(b[i] - b[j]) for i, j in pairs) / len(pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("braid")
    parser.add_argument("--hardware", default="cpu-2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    options = parser.parse_args()
    recipes = {name: recipe_of(*layout) for name, layout in LAYOUTS.items()}
    predicted = {name: predict(options.braid, recipe, options.hardware) for name, recipe in recipes.items()}
    times = {name: [] for name in recipes}
    for _ in range(options.rounds):
        for name, recipe in recipes.items():
            times[name] += measure(options.braid, recipe, options.iterations)
    measured = {name: sorted(all_times)[len(all_times) // 10] for name, all_times in times.items()}
    print(f"{'layout':30}{'measured ms':>12}{'predicted ms':>13}{'ratio':>7}")
    for name in sorted(recipes, key=measured.get):
        print(f"{name:30}{measured[name]:12.1f}{predicted[name]:13.1f}{predicted[name] / measured[name]:7.2f}")
    names = list(recipes)
    print(f"Kendall's tau: {kendall_tau([measured[n] for n in names], [predicted[n] for n in names]):.2f}")


if __name__ == "__main__":
    main()
