"""Distributed checkpoints against torch.distributed.checkpoint and megatron-core, both ways, tensor for tensor.

Two processes of this file load what we wrote and save what we then read; `workers` starts them once for all tests.
"""
import argparse
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

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
    done = subprocess.run([os.environ["BRAID_CKPT_PROBE"], *map(str, arguments)], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(folder, tmp_path):
    probe("read", folder, tmp_path / "read.safetensors")
    return load_file(tmp_path / "read.safetensors")


# ---- in the two processes


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


def work(rank, port, folder):
    # megatron-core asks CUDA even where all tensors are on the CPU
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
    import torch.distributed as dist
    from megatron.core import dist_checkpointing
    from megatron.core.enums import ModelType
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    sharded = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in tensors().items()}
    dcp.save({**sharded, "iteration": {"count": [3]}}, checkpoint_id=folder / "dcp_sharded")
    (folder / "mcore").mkdir(exist_ok=True)
    common = {"iteration": 5, "args": argparse.Namespace(path=Path("x"), kind=ModelType.encoder_or_decoder,
                                                         dtype=torch.bfloat16, shape=torch.Size([1, 2]), names={"a"})}
    dist.barrier()
    dist_checkpointing.save({**mcore_state(rank, fill=True), **common}, str(folder / "mcore"))

    empty = {name: torch.zeros_like(tensor) for name, tensor in sharded.items()}
    dcp.load(empty, checkpoint_id=folder / "ours")
    from_dcp = {name: tensor.full_tensor() for name, tensor in empty.items()}
    from_mcore = dist_checkpointing.load(mcore_state(rank, fill=False), str(folder / "ours"))
    with open(folder / f"loaded_{rank}", "wb") as file:
        pickle.dump((from_dcp, from_mcore), file)
    dist.destroy_process_group()


# ---- in the test


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    save_file(tensors(), folder / "tensors.safetensors")
    probe("write", folder / "tensors.safetensors", folder / "ours", "--writers", 3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, __file__, str(rank), str(port), folder], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) for rank in range(WORLD)]
    output = "\n".join(rank.communicate(timeout=120)[0] for rank in ranks)
    assert all(rank.returncode == 0 for rank in ranks), output
    return folder


@pytest.fixture(scope="module")
def loaded(workers):
    return [pickle.loads((workers / f"loaded_{rank}").read_bytes()) for rank in range(WORLD)]


def test_torch_reads_ours_into_shards(loaded):
    for from_dcp, _ in loaded:
        equal(from_dcp, tensors())


def test_torch_converts_ours(workers, tmp_path):
    dcp_to_torch_save(workers / "ours", tmp_path / "all.pt")
    converted = torch.load(tmp_path / "all.pt", weights_only=False)
    assert isinstance(converted.pop("rng_state/shard_0_1"), (list, object))
    flat = {}

    def flatten(prefix, value):
        for key, item in value.items():
            flatten(f"{prefix}{key}.", item) if isinstance(item, dict) else flat.__setitem__(prefix + key, item)

    flatten("", converted)
    equal(flat, tensors())


def test_megatron_reads_ours(loaded):
    for rank, (_, state) in enumerate(loaded):
        assert state.pop("rng_state") == [{"seed": 1234}]
        assert state.pop("iteration") == 7
        assert state.pop("checkpoint_version") == 3.0
        wanted = {name: tensor.chunk(WORLD)[rank] for name, tensor in tensors().items()}
        layers = wanted.pop("model.layers.weight")
        wanted |= {f"model.layers.weight.{rank * len(layers) + i}": layer for i, layer in enumerate(layers)}
        equal(state, wanted)


def test_our_metadata_json_is_megatrons(workers):
    assert (workers / "ours" / "metadata.json").read_text() == FORMAT
    assert (workers / "mcore" / "metadata.json").read_text() == FORMAT


def test_common_state_of_ours_is_what_torch_loads(workers):
    assert torch.load(workers / "ours" / "common.pt", weights_only=True) == {"iteration": 7, "checkpoint_version": 3.0}


@pytest.mark.parametrize("folder", ["dcp_sharded", "mcore", "ours"])
def test_we_read_shards(workers, tmp_path, folder):
    equal(read(workers / folder, tmp_path), tensors())


def test_we_read_plain_tensors_of_one_process(tmp_path):
    everything = {**tensors(), "scalar": torch.tensor(3.5), "none": torch.zeros(0, 4)}
    dcp.save(everything, checkpoint_id=tmp_path / "plain", no_dist=True)
    equal(read(tmp_path / "plain", tmp_path), everything)


def test_we_read_megatrons_objects(workers):
    assert probe("object", workers / "mcore", "rng_state/shard_0_1").strip() == "[{'seed': 1234}]"
    common = probe("object", workers / "mcore", "common.pt")
    for part in ["'iteration': 5", "argparse.Namespace", "ModelType", "torch.bfloat16", "torch.Size"]:
        assert part in common


def test_we_read_an_object_of_torch(workers):
    assert "3" in probe("object", workers / "dcp_sharded", "iteration.count")


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
