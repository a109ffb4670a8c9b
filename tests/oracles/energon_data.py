"""Data sets for the comparison with Energon, and the order in which Energon reads them."""
import contextlib
import io
import json
import tarfile

import yaml
from megatron.energon import Cooker, DefaultTaskEncoder, TextSample, WorkerConfig, basic_sample_keys
from megatron.energon import get_savable_loader, get_train_dataset, get_val_dataset, stateless
from megatron.energon.flavors import BaseWebdatasetFactory

CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def write_tar(path, samples, tar_format=tarfile.GNU_FORMAT):
    """`samples`: a list of (key, {part: bytes})."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tar_format) as tar:
        for key, parts in samples:
            for part, content in parts.items():
                member = tarfile.TarInfo(f"{key}.{part}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_shards(folder, counts, name, **more):
    """Shards name_0.tar, name_1.tar, ... with the keys name0, name1, ..."""
    at = 0
    for shard, count in enumerate(counts):
        samples = [(f"{name}{i}", {"txt": b"text %d" % i, "json": json.dumps({"n": i}).encode()})
                   for i in range(at, at + count)]
        write_tar(folder / f"{name}_{shard}.tar", samples, **more)
        at += count


def energon_prepare(folder, **splits):
    """As `energon prepare` does after it has asked for the splits."""
    tars = [str(path.relative_to(folder)) for path in sorted(folder.glob("**/*.tar"))]
    splits = {"shuffle_seed": None, "split_parts_ratio": None} | splits
    with contextlib.redirect_stdout(io.StringIO()):
        BaseWebdatasetFactory.prepare_dataset(folder, tars, workers=1, **splits)
    (folder / ".nv-meta/dataset.yaml").write_text(yaml.safe_dump(CRUDE))


def edit_split(folder, **changes):
    path = folder / ".nv-meta/split.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


@stateless
def cook(sample):
    return TextSample(**basic_sample_keys(sample), text=sample["__shard__"])


class Keys(DefaultTaskEncoder):
    """Reduces a sample to its key and shard."""

    decoder = None
    cookers = [Cooker(cook)]


def energon_loader(path, *, world=1, rank=0, workers=0, seed=0, split="train", shuffle_buffer=None, sequence=None,
                   evaluates=False):
    config = WorkerConfig(rank=rank, world_size=world, num_workers=workers, seed_offset=seed)
    # Energon prints the slices of JSONL files.
    with contextlib.redirect_stdout(io.StringIO()):
        if evaluates:
            data = get_val_dataset(path, split_part=split, worker_config=config, batch_size=None, task_encoder=Keys())
        else:
            data = get_train_dataset(path, split_part=split, worker_config=config, batch_size=None, task_encoder=Keys(),
                                     shuffle_buffer_size=shuffle_buffer, max_samples_per_sequence=sequence)
        return get_savable_loader(data, gc_collect_every_n_steps=0)


@contextlib.contextmanager
def ending(loader):
    """Ends the worker processes of a loader with the block.

    A loader that is not read to its end refers to itself, so that the garbage collector ends its processes at some later
    time: inside another test, which waits for them and fails if one of them has been killed, or inside that test's own
    worker processes.
    """
    try:
        yield loader
    finally:
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()


def take(loader, count):
    lines = []
    for sample in loader:
        lines.append(f"{sample.text} {sample.__key__}")
        if len(lines) == count:
            break
    return lines
