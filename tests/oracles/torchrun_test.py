"""Braid among torch's own programs: braid train as torchrun's worker, and torch.distributed under braid run."""
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from programs import TIMEOUT_S, run_program

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


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_run_under_torchrun_ends_without_a_failure(tmp_path, number, code):
    """A signal to all ranks, as torchrun and srun pass it on."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--no-python",
               "--redirects", "3", "--log-dir", tmp_path / "logs", "bash", "-c",
               f"env --default-signal=INT '{BRAID}' train '{tmp_path}/recipe.yaml' --train-iters 100000 "
               f"--save '{tmp_path}/ckpt' --metrics-file '{tmp_path}/metrics.jsonl' & echo $! > '{tmp_path}/pid_'$RANK; wait $!; "
               f"echo $? > '{tmp_path}/code_'$RANK"]
    run = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "metrics.jsonl").exists() or not (tmp_path / "metrics.jsonl").read_text():
        assert run.poll() is None
        time.sleep(0.1)
    for rank in range(4):
        os.kill(int((tmp_path / f"pid_{rank}").read_text()), number)
    run.wait(timeout=TIMEOUT_S)
    assert [(tmp_path / f"code_{rank}").read_text() for rank in range(4)] == [f"{code}\n"] * 4
    output = "".join(path.read_text() for path in (tmp_path / "logs").rglob("std*.log"))
    assert "saved iteration" in output and "root cause" not in output


def test_braid_run_starts_torch_distributed(tmp_path):
    script = tmp_path / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    run = run_program([BRAID, "run", "-n", "3", "--", sys.executable, script])
    assert run.returncode == 0, run.stderr
    for rank in range(3):
        assert f"[{rank}] rank {rank} of 3 has 6.0" in run.stdout
