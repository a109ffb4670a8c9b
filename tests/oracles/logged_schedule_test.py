"""The learning rate in a run's log line, event and metrics file against megatron-core's OptimizerParamScheduler, live.

Megatron's loop steps the optimizer, then, if that made an update, the scheduler by the global batch, and then logs the
rate of the first parameter group. The same loop drives the oracle here, for 200 iterations.
"""
import json
import os
import re
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from tensorboard.backend.event_processing import event_accumulator

from programs import run_program

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny-vlm-colocated.yaml"
SMALL = ["--encoder-dp", 1, "--llm-tp", 1, "--llm-dp", 1, "--llm-ep", 1, "--model.language.pattern", "M-",
         "--model.images.encoder.layers", 1, "--seq-length", 32, "--micro-batch-size", 3]
ITERATIONS, BATCH = 200, 3
RELATIVE = 1e-14  # a handful of roundings in float64
RATES = dict(max_lr=1.2e-3, min_lr=1.2e-5)

# Lengths in samples that no iteration ends at, a weight decay that rises, and two resumes.
SAMPLES = SimpleNamespace(
    flags=["--lr-warmup-samples", 100, "--lr-decay-samples", 580, "--lr-wsd-decay-samples", 161,
           "--lr-wsd-decay-style", "minus_sqrt", "--weight-decay", 0.01, "--end-weight-decay", 0.1,
           "--weight-decay-incr-style", "cosine", "--exit-interval", 70],
    oracle=dict(init_lr=0.0, lr_warmup_steps=100, lr_decay_steps=580, wsd_decay_steps=161,
                lr_wsd_decay_style="minus_sqrt", start_wd=0.01, end_wd=0.1, wd_incr_style="cosine"),
    ends=[70, 140, 200])
# Lengths in iterations, a frozen language model, and a loss scale that overflows now and then, so that steps are skipped.
ITERATED = SimpleNamespace(
    flags=["--lr-warmup-iters", 20, "--lr-decay-iters", 190, "--lr-wsd-decay-iters", 60, "--lr-wsd-decay-style",
           "exponential", "--lr-warmup-init", 1e-5, "--weight-decay", 0.1, "--train.freeze_language", "true",
           "--loss_scale.dynamic", "true", "--loss_scale.initial", 2.0**126, "--loss_scale.growth", 2.0**60,
           "--loss_scale.backoff", 2.0**-60, "--loss_scale.growth_interval", 15, "--loss_scale.hysteresis", 1],
    oracle=dict(init_lr=1e-5, lr_warmup_steps=20 * BATCH, lr_decay_steps=190 * BATCH, wsd_decay_steps=60 * BATCH,
                lr_wsd_decay_style="exponential", start_wd=0.1, end_wd=0.1, wd_incr_style="constant"),
    ends=[200])


def train(folder, case):
    flags = ["--lr-decay-style", "WSD", "--lr", RATES["max_lr"], "--min-lr", RATES["min_lr"], "--train-iters",
             ITERATIONS, "--global-batch-size", BATCH, "--log-interval", 1, "--metrics-file", folder / "metrics.jsonl",
             "--tensorboard-dir", folder / "events", "--save", folder / "ckpt", "--load", folder / "ckpt"]
    run = run_program([os.environ["BRAID"], "train", RECIPE, *SMALL, *flags, *case.flags])
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def logged(text):
    line = re.compile(r" iteration +(\d+)/ .* \| learning rate: (\S+) \|")
    return {int(found[1]): found[2] for found in line.finditer(text)}


def scalars(folder, tag):
    """By step. Each start of a run has its own event file."""
    values = {}
    for file in folder.iterdir():
        events = event_accumulator.EventAccumulator(str(file), size_guidance={event_accumulator.SCALARS: 0})
        events.Reload()
        values |= {event.step: event.value for event in events.Scalars(tag)}
    return values


def scheduler(case):
    return OptimizerParamScheduler(SimpleNamespace(param_groups=[{}]), lr_decay_style="WSD",
                                   wd_incr_steps=ITERATIONS * BATCH, **RATES, **case.oracle)


def saved(folder, iteration):
    """What Megatron would find in the checkpoint: the scheduler's state, and a parameter group that decays."""
    place = folder / "ckpt" / f"iter_{iteration:07d}"
    keys = dcp.FileSystemReader(place).read_metadata().state_dict_metadata
    state = {next(key for key in keys if ".param_groups/" in key): None}
    dcp.load(state, checkpoint_id=place, no_dist=True)
    (groups,) = state.popitem()[1]
    scheduler_state = torch.load(place / "common.pt", weights_only=True)["opt_param_scheduler"]
    return scheduler_state, next(group for group in groups if group["wd_mult"] == 1)


def close(ours, theirs):
    return abs(ours - theirs) <= RELATIVE * abs(theirs)


@pytest.mark.parametrize("case", [SAMPLES, ITERATED], ids=["samples", "iterations"])
def test_every_log_has_megatrons_learning_rate(tmp_path, case):
    lines = {}
    for _ in case.ends:
        lines |= logged(train(tmp_path, case))
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    events, by_samples = (scalars(tmp_path / "events", tag) for tag in ("learning-rate", "learning-rate vs samples"))
    assert [line["iteration"] for line in metrics] == list(range(1, ITERATIONS + 1))
    assert list(lines) == list(range(1, ITERATIONS + 1)) and len(events) == ITERATIONS

    oracle, skipped = scheduler(case), 0
    for line in metrics:
        iteration = line["iteration"]
        skipped += line["skipped"]
        if not line["skipped"]:
            oracle.step(increment=BATCH)
        rate = oracle.optimizer.param_groups[0]["lr"]
        assert close(line["learning_rate"], rate), iteration
        assert lines[iteration] == f"{rate:.6E}", iteration
        assert events[iteration] == by_samples[iteration * BATCH] == struct.unpack("f", struct.pack("f", rate))[0]
        if iteration in case.ends:
            state, group = saved(tmp_path, iteration)
            assert state == oracle.state_dict()
            assert close(group["lr"], rate)
            assert close(group["weight_decay"], oracle.optimizer.param_groups[0]["weight_decay"])
            oracle = scheduler(case)
            oracle.load_state_dict(state)
    assert skipped >= 5 if case is ITERATED else skipped == 0
