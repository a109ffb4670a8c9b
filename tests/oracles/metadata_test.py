"""The index of a distributed checkpoint, against those who define it: torch.distributed.checkpoint and megatron-core write
checkpoints, in one and in two processes; we read their `.metadata` as they do, and they load it after we wrote it again."""
import json
import multiprocessing
import os
import pathlib
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from programs import TIMEOUT_S, run_program

METADATA_PROBE = os.environ["BRAID_METADATA_PROBE"]
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}


def torch_state(full):
    """A nested state with a sharded tensor, replicated ones of every dtype, and objects. Zeros unless `full`."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    values = torch.arange(30.0).reshape(5, 6) if full else torch.zeros(5, 6)
    few = torch.ones(1) if full else torch.zeros(1)  # with two ranks, one holds none of it
    return {"model": {"sharded": distribute_tensor(values, mesh, [Shard(0)]), "few": distribute_tensor(few, mesh, [Shard(0)]),
                      "scalar": torch.tensor(3.0 if full else 0.0), "empty": torch.zeros(0, 4)},
            "dtypes": {name: torch.full((3,), int(full)).to(dtype) for name, dtype in DTYPES.items()},
            "optimizer": [{"lr": 0.1 if full else None}, "größer" if full else None], "step": 7 if full else 0}


def megatron_state(full):
    from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor

    rank, world = dist.get_rank(), dist.get_world_size()
    rows = torch.arange(rank * 12, (rank + 1) * 12).float().reshape(6, 2) if full else torch.zeros(6, 2)
    layer = torch.full((3,), rank + 1.0).bfloat16() if full else torch.zeros(3).bfloat16()
    return {"rows": ShardedTensor.from_rank_offsets("rows", rows, (0, rank, world)),
            "layer": ShardedTensor.from_rank_offsets("layers", layer, (0, rank, world), prepend_axis_num=1),
            "rng": ShardedObject("rng", {"seed": rank} if full else None, (world,), (rank,)), "iteration": 3}


def flat(state):
    """What a state is equal to another in."""
    if isinstance(state, dict):
        return {key: flat(value) for key, value in state.items()}
    if isinstance(state, list):
        return [flat(value) for value in state]
    if isinstance(state, torch.Tensor):
        return (state.dtype, getattr(state, "full_tensor", lambda: state)().tolist())
    return getattr(state, "data", state)


def save_all(folder):
    dcp.save(torch_state(True), checkpoint_id=f"{folder}/torch")
    dcp.save(torch_state(True), checkpoint_id=pathlib.Path(f"{folder}/torch_path"))
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        os.makedirs(f"{folder}/megatron")
    dist.barrier()
    dist_checkpointing.save(megatron_state(True), f"{folder}/megatron")


def load_all(folder):
    """Raises where what is loaded is not what was saved."""
    from megatron.core import dist_checkpointing

    for name in "torch", "torch_path":
        state = torch_state(False)
        dcp.load(state, checkpoint_id=f"{folder}/{name}")
        assert flat(state) == flat(torch_state(True)), name
    state = dist_checkpointing.load(megatron_state(False), f"{folder}/megatron")
    wanted = megatron_state(True)
    assert torch.equal(state["rows"], wanted["rows"].data)
    assert torch.equal(state["layer"], wanted["layer"].data.reshape(state["layer"].shape))
    assert (state["rng"], state["iteration"]) == ({"seed": dist.get_rank()}, 3)


def run_rank(act, rank, world, folder):
    torch.cuda.synchronize = lambda *args: None  # Megatron takes a GPU for granted
    torch.cuda.current_device = lambda: "cpu"
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    # Megatron would start a fresh Python for it, which imports torch again.
    manager = multiprocessing.get_context("fork").Manager()
    filesystem_async._results_queue = manager.Queue()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting_{act}", rank=rank, world_size=world)
    {"save": save_all, "load": load_all}[act](folder)
    dist.destroy_process_group()
    manager.shutdown()


def serve():
    """Importing Megatron takes longer than all the rest, so one process does it and its children are the ranks."""
    import megatron.core.dist_checkpointing  # noqa: F401

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        act, world, folder = line.rstrip("\n").split("\t")
        ranks = [multiprocessing.get_context("fork").Process(target=run_rank, args=(act, rank, int(world), folder))
                 for rank in range(int(world))]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(TIMEOUT_S)
            rank.kill()
        print("done" if all(rank.exitcode == 0 for rank in ranks) else "failed", file=replies, flush=True)


@pytest.fixture(scope="module")
def in_processes():
    # Not as a script, which processes that Megatron starts would import again.
    server = subprocess.Popen([sys.executable, "-c", "import metadata_test; metadata_test.serve()"],
                              cwd=os.path.dirname(__file__), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(act, world, folder):
        print(act, world, folder, sep="\t", file=server.stdin, flush=True)
        assert server.stdout.readline() == "done\n"

    yield run
    server.stdin.close()
    assert server.wait(TIMEOUT_S) == 0


def probe(path, *more):
    run = run_program([METADATA_PROBE, path, *more])
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def in_python(path):
    """What the probe should print, from torch's own reading of the index."""
    with open(path, "rb") as file:
        metadata = pickle.load(file)
    tensors, objects = {}, {}

    def part(index):
        info = metadata.storage_data[index]
        return {"file": info.relative_path, "offset": info.offset, "length": info.length}

    for key, value in metadata.state_dict_metadata.items():
        if isinstance(value, BytesStorageMetadata):
            objects[key] = part(MetadataIndex(key))
            continue
        dtype = next(name for name, dtype in DTYPES.items() if dtype == value.properties.dtype)
        chunks = [{"begin": list(chunk.offsets), "size": list(chunk.sizes), **part(MetadataIndex(key, chunk.offsets))}
                  for chunk in value.chunks]
        tensors[key] = {"dtype": dtype, "shape": list(value.size), "chunks": chunks}
    return {"tensors": tensors, "objects": objects, "problems": []}


@pytest.mark.parametrize("world", [1, 2])
def test_indices_of_torch_and_megatron(tmp_path, in_processes, world):
    in_processes("save", world, tmp_path)
    for name, (tensors, objects) in {"torch": (14, 3), "torch_path": (14, 3), "megatron": (2, world)}.items():
        index = tmp_path / name / ".metadata"
        got = probe(index, "--rewrite", tmp_path / "rewritten")
        assert got == in_python(index)
        assert (len(got["tensors"]), len(got["objects"])) == (tensors, objects)
        assert in_python(tmp_path / "rewritten") == got
        shutil.move(tmp_path / "rewritten", index)
    in_processes("load", world, tmp_path)


def test_what_is_no_index_is_refused(tmp_path):
    path = tmp_path / ".metadata"
    for value, message in [(os.system, "'posix.system', which is not one that checkpoints use"), ({}, "this is not an index")]:
        path.write_bytes(pickle.dumps(value))
        run = run_program([METADATA_PROBE, path])
        assert run.returncode == 1
        assert str(path) in run.stderr and message in run.stderr
