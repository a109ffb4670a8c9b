"""Braid among torch's own programs: braid train as torchrun's worker, and torch.distributed under braid run."""
import os
import re
import sys

from programs import run_program

BRAID = os.environ["BRAID"]

RECIPE = """
topology:
  modules:
    images: {kind: encoder, dp: 2}
    language: {tp: 2}
model: {dtype: float32, language: {pattern: "*-"}, images: {encoder: {layers: 1}}}
data: {sequence_length: 32}
train: {iterations: 6, micro_batch: 4, global_batch: 8, lr: 1e-2}
log: {interval: 6}
dist: {device: cpu}
"""

# What a program that knows nothing of Braid does with the variables it finds.
ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has {x.item()}")
dist.destroy_process_group()
"""


def last_loss(output):
    return re.findall(r"lm loss: (\S+)", output)[-1]


def test_torchrun_starts_braid(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--no-python"]
    ours = run_program([BRAID, "train", recipe])
    theirs = run_program(torchrun + [BRAID, "train", recipe])
    assert ours.returncode == 0, ours.stderr
    assert theirs.returncode == 0, theirs.stderr
    assert last_loss(theirs.stdout) == last_loss(ours.stdout)


def test_braid_run_starts_torch_distributed(tmp_path):
    script = tmp_path / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    run = run_program([BRAID, "run", "-n", "3", "--", sys.executable, script])
    assert run.returncode == 0, run.stderr
    for rank in range(3):
        assert f"[{rank}] rank {rank} of 3 has 6.0" in run.stdout
