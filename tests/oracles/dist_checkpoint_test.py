"""Distributed checkpoints against torch.distributed.checkpoint and megatron-core, both ways, tensor for tensor.

Two ranks load what we wrote and save what we then read; `checkpoints` starts them once for all tests.
"""
import argparse
import multiprocessing
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from programs import run_program

WORLD = 2
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool]
FORMAT = ('{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", '
          '"common_backend_version": 1}')


def tensors():
    """Of every dtype and some shapes; every element differs as far as the dtype allows."""
    counting = torch.arange(6 * 4, dtype=torch.float64)
    named = {f"model.{str(dtype).split('.')[1]}": (counting.reshape(6, 4) % (2 if dtype == torch.bool else 101)).to(dtype)
             for dtype in DTYPES}
    named["model.layers.weight"] = torch.arange(6 * 5 * 3).float().reshape(6, 5, 3)  # layers in front
    named["model.vector"] = torch.arange(10).float()
    named["large"] = torch.arange(6 * 300000).float().reshape(6, 300000)  # several blocks of checksums
    return named


def equal(got, wanted):
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape, name
        assert torch.equal(got[name], tensor), name


def probe(*arguments):
    done = run_program([os.environ["BRAID_CKPT_PROBE"], *map(str, arguments)])
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(folder, tmp_path):
    probe("read", folder, tmp_path / "read.safetensors")
    return load_file(tmp_path / "read.safetensors")


# ---- in the two ranks


def mcore_state(rank, fill):
    """This rank's share of tensors(): rows, or layers in front of the local shape."""
    from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor

    state = {}
    for name, tensor in tensors().items():
        local = tensor.chunk(WORLD)[rank].clone() if fill else torch.zeros_like(tensor.chunk(WORLD)[rank])
        if name == "model.layers.weight":
            for i, layer in enumerate(local):
                number = rank * len(local) + i
                state[f"{name}.{number}"] = ShardedTensor.from_rank_offsets(
                    name, layer.clone(), (0, number, len(tensor)), prepend_axis_num=1)
        else:
            state[name] = ShardedTensor.from_rank_offsets(name, local, (0, rank, WORLD))
    state["rng_state"] = ShardedObject("rng_state", [{"seed": 1234}] if fill else None, (1,), (0,), replica_id=rank)
    return state


def work(folder):
    """Both ranks. Imports take the most time by far, so the second one is a fork that has them already."""
    # megatron-core asks CUDA even where all tensors are on the CPU
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
    import torch.distributed as dist
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.enums import ModelType
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    folder = Path(folder)
    child = os.fork()
    rank = 1 if child == 0 else 0
    # otherwise made by a spawned process, which imports everything once more
    filesystem_async._results_queue = multiprocessing.get_context("fork").Manager().Queue()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    sharded = {name: DTensor.from_local(tensor.chunk(WORLD)[rank].clone(), mesh, [Shard(0)], run_check=False)
               for name, tensor in tensors().items()}
    dcp.save({**sharded, "iteration": {"count": [3]}}, checkpoint_id=folder / "dcp_sharded")
    (folder / "mcore").mkdir(exist_ok=True)
    common = {"iteration": 5, "args": argparse.Namespace(path=Path("x"), kind=ModelType.encoder_or_decoder,
                                                         dtype=torch.bfloat16, shape=torch.Size([1, 2]), names={"a"})}
    dist.barrier()
    dist_checkpointing.save({**mcore_state(rank, fill=True), **common}, str(folder / "mcore"))

    empty = {name: torch.zeros_like(tensor) for name, tensor in sharded.items()}
    dcp.load(empty, checkpoint_id=folder / "ours")
    from_dcp = {name: tensor.to_local() for name, tensor in empty.items()}
    from_mcore = dist_checkpointing.load(mcore_state(rank, fill=False), str(folder / "ours"))
    with open(folder / f"loaded_{rank}", "wb") as file:
        pickle.dump((from_dcp, from_mcore), file)
    dist.destroy_process_group()
    if child:
        assert os.waitpid(child, 0)[1] == 0


# ---- in the test


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    save_file(tensors(), folder / "tensors.safetensors")
    probe("write", folder / "tensors.safetensors", folder / "ours", "--writers", 3)
    # not as a script: megatron-core spawns processes, and each would run this file's imports again
    ranks = run_program([sys.executable, "-c", f"import {Path(__file__).stem} as test; test.work('{folder}')"],
                        cwd=Path(__file__).parent)
    assert ranks.returncode == 0, ranks.stderr
    return folder


@pytest.fixture(scope="module")
def loaded(checkpoints):
    return [pickle.loads((checkpoints / f"loaded_{rank}").read_bytes()) for rank in range(WORLD)]


def test_torch_reads_ours_into_shards(loaded):
    for rank, (from_dcp, _) in enumerate(loaded):
        equal(from_dcp, {name: tensor.chunk(WORLD)[rank] for name, tensor in tensors().items()})


def test_torch_converts_ours(checkpoints, tmp_path):
    dcp_to_torch_save(checkpoints / "ours", tmp_path / "all.pt")
    converted = torch.load(tmp_path / "all.pt", weights_only=False)
    converted.pop("rng_state/shard_0_1")
    equal(converted, tensors())


def test_megatron_reads_ours(loaded):
    for rank, (_, state) in enumerate(loaded):
        assert state.pop("rng_state") == [{"seed": 1234}]
        assert state.pop("iteration") == 7
        assert state.pop("checkpoint_version") == 3.0
        wanted = {name: tensor.chunk(WORLD)[rank] for name, tensor in tensors().items()}
        layers = wanted.pop("model.layers.weight")
        wanted |= {f"model.layers.weight.{rank * len(layers) + i}": layer for i, layer in enumerate(layers)}
        equal(state, wanted)


def test_our_metadata_json_is_megatrons(checkpoints):
    assert (checkpoints / "ours" / "metadata.json").read_text() == FORMAT
    assert (checkpoints / "mcore" / "metadata.json").read_text() == FORMAT


def test_common_state_of_ours_is_what_torch_loads(checkpoints):
    assert torch.load(checkpoints / "ours" / "common.pt", weights_only=True) == {"iteration": 7, "checkpoint_version": 3.0}


@pytest.mark.parametrize("folder", ["dcp_sharded", "mcore", "ours"])
def test_we_read_shards(checkpoints, tmp_path, folder):
    equal(read(checkpoints / folder, tmp_path), tensors())


def test_we_read_plain_tensors_of_one_process(tmp_path):
    everything = {**tensors(), "scalar": torch.tensor(3.5), "none": torch.zeros(0, 4)}
    dcp.save(everything, checkpoint_id=tmp_path / "plain", no_dist=True)
    equal(read(tmp_path / "plain", tmp_path), everything)


def test_we_read_megatrons_objects(checkpoints):
    assert probe("object", checkpoints / "mcore", "rng_state/shard_0_1").strip() == "[{'seed': 1234}]"
    common = probe("object", checkpoints / "mcore", "common.pt")
    for part in ["'iteration': 5", "argparse.Namespace", "ModelType", "torch.bfloat16", "torch.Size"]:
        assert part in common


def test_we_read_an_object_of_torch(checkpoints):
    assert "3" in probe("object", checkpoints / "dcp_sharded", "iteration.count")
