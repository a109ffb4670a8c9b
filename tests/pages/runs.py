"""Folders as runs leave them, with numbers that a formula gives."""

import json
import math
import os

START = 1_790_000_000  # seconds since 1970


def loss_of(iteration, scale=1.0):
    return scale * (2.0 + 4.3 * math.exp(-iteration / 60) + 0.08 * math.sin(iteration * 1.7))


def metrics_line(iteration, started, time, scale, skipped):
    rate = 3e-3 * min(iteration / 20, 0.5 + 0.5 * math.cos(math.pi * iteration / 400))
    return json.dumps({
        "iteration": iteration, "consumed_samples": 8 * iteration, "lm_loss": None if skipped else loss_of(iteration, scale),
        "grad_norm": 0.7 + 1.5 * math.exp(-iteration / 30) + 0.1 * math.sin(iteration), "learning_rate": rate, "loss_scale": 1.0,
        "num_zeros": None, "seq_load_balancing_loss": 1.02 + 0.01 * math.sin(iteration / 9),
        "iteration_ms": 450 + 40 * math.sin(iteration / 5) + (800 if iteration == 1 else 0), "tokens_per_s": 2300.0,
        "skipped": skipped, "time": time, "started": started})


PHASES = """\
 time (ms) | images   | bridge wait (language):   355.6 (73 %) | data wait:     1.0 ( 0 %) | forward:    12.5 ( 3 %) | \
backward:    19.6 ( 4 %) | pipeline wait:    21.1 ( 4 %) | reduce:    56.8 (12 %) | optimizer:     5.6 ( 1 %) | other:    13.9 ( 3 %) |
 time (ms) | language | bridge wait (images):       1.9 ( 0 %) | data wait:     0.8 ( 0 %) | forward:   197.9 (41 %) | \
backward:   201.1 (42 %) | pipeline wait:    25.4 ( 5 %) | reduce:    25.4 ( 5 %) | optimizer:    19.9 ( 4 %) | other:    11.3 ( 2 %) |
 comm (ms) | images   | bridge:  355.0/ 1500.4 (hidden  76 %) | gradients:   50.0/   91.5 (hidden  45 %) | tp:                             - |
 comm (ms) | language | bridge:    2.8/  163.0 (hidden  98 %) | gradients:   20.6/   78.2 (hidden  74 %) | tp:   97.3/   97.5 (hidden   0 %) |
"""


def log_lines(iterations, scale):
    yield "initialized the weights of images.encoder, images.projector, language in 0.2 s"
    for iteration in range(20, iterations + 1, 20):
        yield (f" [2026-09-21 17:39:02.500000] iteration {iteration:8d}/     400 | consumed samples: {8 * iteration:12d} | "
               f"elapsed time per iteration (ms): 460.0 | throughput per GPU (TFLOP/s/GPU): 3.2 | tokens per GPU "
               f"(tokens/s/GPU): 383.3 | lm loss: {loss_of(iteration, scale):E} | number of skipped iterations:   0 |")
        yield from PHASES.splitlines()
        if iteration == 20:
            yield ("[maximum over 6 ranks] (after 20 iterations) memory (MB) | allocated: 90.00 | max allocated: 95.50 | "
                   "max reserved: 128.00 | host: 160.07 | max host: 171.21")
        if iteration % 100 == 0:
            yield f"saved iteration {iteration} to ckpt: 6.96 MiB in 0.3 s (23.58 MiB/s)"
            yield (f" validation loss at iteration {iteration} | lm loss value: {1.1 * loss_of(iteration, scale):E} | "
                   "lm loss PPL: 4.885690E+01 | right tokens: 48.9 % | right answers: 12.5 % | ")


RECIPE = """\
topology:
  colocated: false
  modules:
    images: {{kind: encoder, dp: 2}}
    language: {{kind: language, tp: 2, dp: 2}}
model: {{provider: tiny-vlm}}
train: {{iterations: 400, lr: {lr}, seed: 1234}}
"""


def write(folder, name, text):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def make_run(folder, scale=1.0, lr="0.003"):
    """400 iterations; restarted after 250, from the checkpoint of 200; two steps were skipped."""
    lines = []
    started, time = START, START + 12.0
    for attempt in (range(1, 251), range(201, 401)):
        for iteration in attempt:
            time += 0.46
            lines.append(metrics_line(iteration, started, round(time, 3), scale, skipped=iteration in (77, 301)))
        started, time = round(time + 600, 3), time + 615
    write(folder, "metrics.jsonl", "\n".join(lines) + "\n")
    log = "\n".join([*log_lines(400, scale), "", "run ended              all iterations done", ""])
    write(folder, "rank_2.log", log)
    write(folder, "recipe.yaml", RECIPE.format(lr=lr))
    write(folder, "plan.json", json.dumps({"iteration_s": 0.43, "spread_s": 0.01, "tokens_per_s_per_gpu": 410.0,
                                           "tflops_per_gpu": 3.4, "bubble": 0.1, "exposed_communication_s": 0.3}))


def make_failed_run(folder):
    """Killed in iteration 130, in the middle of a line."""
    lines = [metrics_line(iteration, START, START + iteration, 1.15, skipped=False) for iteration in range(1, 131)]
    write(folder, "metrics.jsonl", "\n".join(lines)[:-40])
    write(folder, "rank_2.log", "\n".join(log_lines(120, 1.15)) + "\n")
    write(folder, "rank_5.log", "braid: root cause: rank 5 (host a12, language[tp=1 cp=0 dp=1 pp=0]) failed in iteration 130: "
          "CUDA out of memory. Tried to allocate 1.50 GiB\n")
    write(folder, "recipe.yaml", RECIPE.format(lr="0.004"))
