"""Braid's schedules of learning rate and weight decay against megatron-core's OptimizerParamScheduler, live.

Seeded random settings of every style go through the test program lr_probe, and the same lengths, in samples, to the
oracle. Rates, weight decays and the state at the end must agree, and so must what is refused.

    BRAID_LR_PROBE=build/lr_probe python -m pytest tests/oracles/lr_schedule_test.py
"""

import itertools
import os
import random
from types import SimpleNamespace

import pytest

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from programs import run_program

DECAYS = [(style, None) for style in ("constant", "linear", "cosine", "inverse-square-root")]
DECAYS += [("WSD", style) for style in ("exponential", "linear", "cosine", "minus_sqrt")]
INCREASES = ["constant", "linear", "cosine"]
SETTINGS_EACH = 8
POINTS = 300
RELATIVE = 1e-12


def random_settings(rng, decay_style, wsd_style, increase):
    """Settings as a person writes them: each length in iterations, in samples, in both, or left out."""
    batch = rng.choice([1, 3, 16, 768, 4096])
    iterations = rng.choice([2, 10, 1000, rng.randrange(2, 1_000_000)])
    settings = {"global_batch": batch, "iterations": iterations, "decay_style": decay_style}
    if rng.random() < 0.5:
        settings["samples"] = rng.randrange(batch, 150_000_000)
        iterations = -(-settings["samples"] // batch)
    if rng.random() < 0.5:
        settings["decay_iterations"] = iterations = rng.randrange(2, iterations + 3)
    decay = iterations * batch
    if rng.random() < 0.3:
        settings["decay_samples"] = decay = rng.randrange(2, min(2 * decay, 2**31) + 2)
    if rng.random() < 0.7:
        settings["warmup_iterations"] = rng.randrange(-(-decay // batch))
    if rng.random() < 0.3:
        settings["warmup_samples"] = rng.randrange(min(decay, 2**31))
    if wsd_style:
        settings["wsd_decay_style"] = wsd_style
        settings["wsd_decay_iterations"] = rng.randrange(-(-decay // batch) + 1)
        if rng.random() < 0.5:
            settings["wsd_decay_samples"] = rng.randrange(min(decay, 2**31))
    settings["lr"] = 10 ** rng.uniform(-6, 0)
    settings["min_lr"] = rng.choice([0.0, settings["lr"] * rng.random(), settings["lr"]])
    settings["init_lr"] = rng.choice([0.0, settings["lr"] * rng.random(), settings["lr"]])
    settings["weight_decay"] = rng.choice([0.0, rng.random()])
    if increase != "constant":
        settings["weight_decay_incr_style"] = increase
        settings["end_weight_decay"] = settings["weight_decay"] + rng.choice([0.0, rng.random()])
    return settings


def in_samples(settings, length, default):
    if f"{length}_samples" in settings:
        return settings[f"{length}_samples"]
    if f"{length}_iterations" in settings:
        return settings[f"{length}_iterations"] * settings["global_batch"]
    return default


def oracle_of(settings):
    batch = settings["global_batch"]
    train = -(-settings["samples"] // batch) * batch if "samples" in settings else settings["iterations"] * batch
    return OptimizerParamScheduler(
        SimpleNamespace(param_groups=[{}]),
        init_lr=settings["init_lr"],
        max_lr=settings["lr"],
        min_lr=settings["min_lr"],
        lr_warmup_steps=in_samples(settings, "warmup", 0),
        lr_decay_steps=in_samples(settings, "decay", train),
        lr_decay_style=settings["decay_style"],
        start_wd=settings["weight_decay"],
        end_wd=settings.get("end_weight_decay", settings["weight_decay"]),
        wd_incr_steps=train,
        wd_incr_style=settings.get("weight_decay_incr_style", "constant"),
        wsd_decay_steps=in_samples(settings, "wsd_decay", None),
        lr_wsd_decay_style=settings.get("wsd_decay_style"),
    )


def points_of(rng, oracle):
    """Ascending sample counts: both sides of every border, and any in between and beyond."""
    borders = [0, oracle.lr_warmup_steps, oracle.lr_decay_steps, oracle.wd_incr_steps]
    borders.append(oracle.lr_decay_steps - (oracle.wsd_decay_steps or 0))
    points = {max(border + side, 0) for border in borders for side in (-1, 0, 1)}
    points |= {rng.randrange(max(borders) * 5 // 4 + 2) for _ in range(POINTS)}
    return sorted(points)


def probe(*lines):
    text = "".join(f"{line}\n" for line in lines)
    run = run_program([os.environ["BRAID_LR_PROBE"]], input=text)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def words(settings):
    return " ".join(f"{key}={value}" for key, value in settings.items())


def state_of(line):
    return dict(pair.split("=") for pair in line.split())


def close(ours, theirs):
    return abs(ours - theirs) <= RELATIVE * abs(theirs)


@pytest.mark.parametrize("decay, increase", list(itertools.product(DECAYS, INCREASES)))
def test_every_style(decay, increase):
    rng = random.Random(f"{decay} {increase}")
    trials = []
    for _ in range(SETTINGS_EACH):
        settings = random_settings(rng, *decay, increase)
        oracle = oracle_of(settings)
        trials.append((settings, oracle, points_of(rng, oracle)))
    answers = iter(probe(*(f"{words(settings)} {' '.join(map(str, points))}" for settings, _, points in trials)))
    for (settings, oracle, points), values, state in zip(trials, answers, answers, strict=True):
        group = oracle.optimizer.param_groups[0]
        values = [float(value) for value in values.split()]
        assert len(values) == 2 * len(points)
        for n, lr, weight_decay in zip(points, values[::2], values[1::2]):
            oracle.step(n - oracle.num_steps)
            assert close(lr, group["lr"]), f"{lr} and {group['lr']} at {n}: {settings}"
            assert close(weight_decay, group["weight_decay"]), f"at {n}: {settings}"
        theirs = oracle.state_dict()
        ours = state_of(state)
        assert list(ours) == list(theirs)
        assert {key: type(theirs[key])(value) for key, value in ours.items()} == theirs


GOOD = dict(iterations=10, global_batch=4, decay_style="cosine", lr=1e-3, min_lr=1e-5, init_lr=0.0, weight_decay=0.1)


@pytest.mark.parametrize("change, blamed", [
    (dict(min_lr=-1e-5), "min_lr"),
    (dict(min_lr=2e-3), "min_lr"),
    (dict(init_lr=2e-3), "init_lr"),
    (dict(decay_samples=0), "decay_samples"),
    (dict(decay_iterations=-1), "decay_iterations"),
    (dict(warmup_iterations=10), "warmup_iterations"),
    (dict(warmup_samples=8, decay_iterations=2), "warmup_samples"),
    (dict(decay_style="WSD", wsd_decay_style="linear"), "wsd_decay_samples"),
    (dict(weight_decay=-0.1), "weight_decay"),
    (dict(end_weight_decay=0.05, weight_decay_incr_style="linear"), "end_weight_decay"),
    (dict(end_weight_decay=0.2), "weight_decay_incr_style"),
])
def test_both_refuse(change, blamed):
    oracle_of(GOOD)
    settings = {**GOOD, **change}
    with pytest.raises(AssertionError):
        oracle_of(settings)
    values, state, refused = probe(words(GOOD), words(settings))
    assert not values.startswith("refused") and "=" in state
    assert refused == f"refused: schedule.{blamed}"
