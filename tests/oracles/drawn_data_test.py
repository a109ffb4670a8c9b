"""Drawn data sets: Energon reads them, and `braid train` on them continues after any stop as if it had not stopped.

    BRAID=build/braid python -m pytest tests/oracles/drawn_data_test.py
"""

import io
import json
import os
import random
import signal
import subprocess
import time

import pytest
from megatron.energon import Cooker, DefaultTaskEncoder, TextSample, WorkerConfig, basic_sample_keys
from megatron.energon import get_loader, get_val_dataset, stateless
from PIL import Image

from energon_data import energon_loader, take
from programs import TIMEOUT_S, run_program

ITERATIONS = 30


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    result = run_program([os.environ["BRAID"], "data", "draw", folder, "--samples", 120, "--val", 60, "--per-shard", 50])
    assert result.returncode == 0, result.stderr
    return folder


@stateless
def describe(sample):
    """The conversation, and the size of the picture if there is one."""
    size = Image.open(io.BytesIO(sample["png"])).convert("RGB").size if "png" in sample else None
    return TextSample(**basic_sample_keys(sample), text=json.dumps([json.loads(sample["json"]), size]))


class Contents(DefaultTaskEncoder):
    decoder = None
    cookers = [Cooker(describe)]


def test_energon_reads_what_is_drawn(drawn):
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    data = get_val_dataset(drawn, split_part="val", worker_config=config, batch_size=None, task_encoder=Contents())
    samples = [json.loads(sample.text) for sample in get_loader(data)]
    assert len(samples) == 60
    assert len({record["task"] for record, _ in samples}) >= 6
    for record, size in samples:
        user, assistant = record["conversations"]
        assert (user["role"], assistant["role"]) == ("user", "assistant") and assistant["content"]
        assert (size is None) == (record["task"] == "text") == ("<image>" not in user["content"])
        assert size is None or set(size) <= {32, 48, 64}


def test_energon_has_the_same_order(drawn):
    command = [os.environ["BRAID"], "data", "order", drawn, "--lanes", 2, "--lane", 1, "--seed", 5, "--count", 150]
    assert run_program(command).stdout.split("\n")[:-1] == take(energon_loader(drawn, world=2, rank=1, seed=5), 150)


class Runs:
    """Runs of one recipe with several dp, which continue each other."""

    def __init__(self, folder, data):
        self.folder, self.data = folder, data
        self.metrics = folder / "metrics.jsonl"

    def command(self, dp, *more):
        recipe = self.folder / f"dp{dp}.yaml"
        recipe.write_text(f"""
topology: {{colocated: true, modules: {{images: {{kind: encoder, dp: {dp}}}, language: {{kind: language, dp: {dp}}}}}}}
model: {{provider: tiny-vlm, dtype: float64, language: {{pattern: "*-"}}, images: {{encoder: {{layers: 1}}}}}}
data: {{path: {self.data}, tokenizer: {self.data}/tokenizer, prompt_format: chatml, sequence_length: 64}}
loader: {{lanes: 4, num_workers: 2, packing_buffer: 8}}
train: {{iterations: {ITERATIONS}, micro_batch: 1, global_batch: 4, lr: 1e-3}}
""")
        saves = ["--save", self.folder / "ckpt", "--load", self.folder / "ckpt", "--save-interval", 3]
        return [str(word) for word in
                [os.environ["BRAID"], "train", recipe, *saves, "--metrics-file", self.metrics, *more]]

    def losses(self):
        """All (iteration, loss) that any run has logged; a killed run may have cut its last line."""
        lines = self.metrics.read_text().split("\n")[:-1] if self.metrics.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("}")]
        return [(entry["iteration"], entry["lm_loss"]) for entry in entries if "lm_loss" in entry]

    def run(self, dp, *more):
        result = run_program(self.command(dp, *more))
        assert result.returncode == 0, result.stdout + result.stderr

    def run_until(self, iteration, sent, dp):
        """Sends a signal once the iteration is logged; SIGKILL goes to all ranks."""
        before = len(self.losses())
        process = subprocess.Popen(self.command(dp), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        deadline = time.monotonic() + TIMEOUT_S
        while not any(reached >= iteration for reached, _ in self.losses()[before:]):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, sent) if sent == signal.SIGKILL else process.send_signal(sent)
        return process.wait(TIMEOUT_S)


def test_a_run_that_is_stopped_again_and_again_has_the_same_losses(drawn, tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    whole, stopped = Runs(tmp_path / "whole", drawn), Runs(tmp_path / "stopped", drawn)
    whole.run(1)
    expected = dict(whole.losses())
    assert len(expected) == ITERATIONS
    seeded = random.Random(3)
    kinds = seeded.sample(["exit", "kill", "term", "kill", "exit", "kill"], 6)
    for kind, iteration in zip(kinds, sorted(seeded.sample(range(2, 21), 6))):
        dp = seeded.choice([1, 2, 4])
        if kind == "exit":
            stopped.run(dp, "--exit-interval", iteration)
        elif kind == "term":
            assert stopped.run_until(iteration, signal.SIGTERM, dp) == 0
        else:
            assert stopped.run_until(iteration, signal.SIGKILL, dp) == -signal.SIGKILL
        assert max(reached for reached, _ in stopped.losses()) < ITERATIONS
    stopped.run(2)
    got = stopped.losses()
    assert {iteration for iteration, _ in got} == set(expected)
    for iteration, loss in got:
        assert loss == pytest.approx(expected[iteration], rel=1e-9), iteration
