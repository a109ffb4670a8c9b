"""Braid's order of samples against megatron-energon, live: the same shards and keys in the same order.

A lane with several workers is compared with Energon's streams of single workers, taken in turn, because starting
Energon's worker processes is slow; a few tests start them to show that this is the same.

    BRAID=build/braid python -m pytest tests/oracles/energon_test.py
"""

import fractions
import itertools
import json
import os
import sqlite3
import tarfile

import pytest
import yaml
from braceexpand import braceexpand
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from megatron.energon.flavors.jsonl.crude_jsonl_dataset import CrudeJsonlDatasetFactory

from energon_data import edit_split, ending, energon_loader, energon_prepare, take, write_shards, write_tar
from programs import run_program

V2 = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
METADATASETS = {
    "v1": {"splits": {"train": {"datasets": [{"path": "a", "weight": 3}, {"path": "b"}]}}},
    "v2": V2 | {"splits": {"train": {"blend": [{"weight": 0.3, "path": "a", "subflavors": {"kind": "x"}}, {"weight": 0.45, "path": "b"},
                                               {"weight": 0.1, "path": "c"}, {"weight": 0.15, "path": "lines.jsonl"}]}}},
    "nested": V2 | {"splits": {"train": {"blend": [{"weight": 2, "path": "v1.yaml"}, {"weight": 1, "path": "c"},
                                                   {"weight": 0.7, "path": "v2.yaml"}]}}},
    "epochized": V2 | {"splits": {"train": {"blend_epochized": [{"repetitions": 2, "path": "a"}, {"repetitions": 0.6, "path": "b"},
                                                                {"path": "c", "repetitions": 1.5}]}}},
    "nested_epochized": V2 | {"splits": {"train": {"blend_epochized": [{"repetitions": 0.5, "path": "epochized.yaml"}, {"path": "b"}]}}},
    "subset": V2 | {"splits": {"train": {"subset": {"range": ["10%", "80%"]}, "blend": [
        {"weight": 1, "path": "a", "subset": {"range": ["20%", "90%"]}}, {"weight": 2, "path": "c", "subset": {"range": [2, 21]}},
        {"weight": 1, "path": "b"}]}}},
    "subset_open": V2 | {"splits": {"train": {"path": "a", "subset": {"range": [7, "end"]}}}},
    "subset_epochized": V2 | {"splits": {"train": {"blend_epochized": [
        {"path": "a", "subset": {"range": ["0%", "50%"]}, "repetitions": 3}, {"path": "c", "subset": {"range": ["25%", "75%"]}}]}}},
    "shuffled_over": V2 | {"splits": {"train": {"blend": [
        {"path": "a", "shuffle_over_epochs_multiplier": 3}, {"path": "c", "shuffle_over_epochs_multiplier": -1}]}}},
    "single": V2 | {"splits": {"train": {"path": "v1.yaml", "shuffle_over_epochs_multiplier": 2}}},
    "split_parts": V2 | {"splits": {"train": {"blend": [{"path": "halves", "split_part": "val"}, {"path": "halves"}]},
                                    "val": {"path": "halves", "split_part": "train"}}},
}


def write_data(root):
    write_shards(root / "a", [4, 5, 6, 10], "a")
    write_shards(root / "b", [5, 4], "b", tar_format=tarfile.PAX_FORMAT)
    write_shards(root / "c", [7, 1, 12, 3, 9], "c/" + "long" * 40)  # names that need an extension header
    write_shards(root / "excluding", [6, 5, 4, 8], "e")
    write_shards(root / "halves", [3, 6, 2, 5, 4, 7], "h")
    for name in ("a", "b", "c", "excluding"):
        energon_prepare(root / name, split_parts_ratio=[("train", 1)])
    energon_prepare(root / "halves", split_parts_ratio=[("train", 0.6), ("val", 0.4)], shuffle_seed=42)
    edit_split(root / "excluding", exclude=["e_1.tar", "e_2.tar/e12", "e_{0,3}.tar/e{2,3,16}"])
    lines = [json.dumps({"n": i}) for i in range(17)]
    (root / "lines.jsonl").write_text("\n\n".join(lines) + "\n")
    CrudeJsonlDatasetFactory.prepare_dataset(root / "lines.jsonl")
    for name, document in METADATASETS.items():
        (root / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("energon")
    write_data(root)
    return root


def braid(*words):
    run = run_program([os.environ["BRAID"], "data", *words])
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def braid_order(path, count, *, world=1, rank=0, workers=0, seed=0, split="train", shuffle_buffer=None, sequence=None,
                evaluates=False, skip=0):
    words = ["order", path, "--lanes", world, "--lane", rank, "--workers", workers, "--seed", seed, "--split", split,
             "--count", count, "--skip", skip]
    words += ["--shuffle-buffer", shuffle_buffer] if shuffle_buffer else []
    words += ["--max-samples-per-sequence", sequence] if sequence else []
    words += ["--eval"] if evaluates else []
    return braid(*words)


def energon_lane(path, count, *, world=1, rank=0, workers=0, **more):
    """The samples of one rank, without worker processes."""
    workers = max(workers, 1)
    share = -(-count // workers)
    streams = [take(energon_loader(path, world=world * workers, rank=rank * workers + i, **more), share)
               for i in range(workers)]
    return list(itertools.chain(*zip(*streams)))[:count]


def compare(path, count, *, world=1, **more):
    for rank in range(world):
        theirs = energon_lane(path, count, world=world, rank=rank, **more)
        assert len(theirs) == count
        assert braid_order(path, count, world=world, rank=rank, **more) == theirs, f"rank {rank}"


@pytest.mark.parametrize("name, settings", [
    ("a", dict()),
    ("a", dict(seed=1234, world=2)),
    ("a", dict(world=4, workers=1, sequence=3)),
    ("a", dict(workers=3, shuffle_buffer=5)),
    ("a", dict(sequence=3, shuffle_buffer=4, seed=-3)),
    ("b", dict(world=2, workers=3)),
    ("c", dict(world=2, workers=2, sequence=2, shuffle_buffer=7)),
    ("excluding", dict()),
    ("excluding", dict(world=2, sequence=2, shuffle_buffer=3)),
    ("lines.jsonl", dict(workers=2, sequence=4)),
    ("v1.yaml", dict()),
    ("v1.yaml", dict(world=2, workers=2, seed=99)),
    ("v2.yaml", dict(world=4)),
    ("v2.yaml", dict(shuffle_buffer=20, sequence=2)),
    ("nested.yaml", dict(world=2, workers=2, sequence=3, shuffle_buffer=10)),
    ("nested.yaml", dict(seed=5)),
    ("epochized.yaml", dict()),
    ("epochized.yaml", dict(world=2, workers=2, shuffle_buffer=6, sequence=4)),
    ("nested_epochized.yaml", dict(seed=2, world=2)),
    ("subset.yaml", dict(world=2, sequence=4)),
    ("subset_open.yaml", dict(world=2, workers=2)),
    ("subset_epochized.yaml", dict(world=4, seed=8)),
    ("shuffled_over.yaml", dict(world=2, shuffle_buffer=4, sequence=2)),
    ("single.yaml", dict(workers=2)),
    ("split_parts.yaml", dict(world=2)),
])
def test_same_order(data, name, settings):
    compare(data / name, 150, **settings)


def test_many_epochs(data):
    compare(data / "nested.yaml", 1500, workers=2, shuffle_buffer=16, sequence=3)
    compare(data / "epochized.yaml", 1500, sequence=2)


@pytest.mark.parametrize("name, settings", [
    ("a", dict()),
    ("c", dict(world=2)),
    ("v2.yaml", dict(world=4)),
    ("split_parts.yaml", dict(split="val", world=2)),
])
def test_same_order_in_evaluation(data, name, settings):
    for rank in range(settings.get("world", 1)):
        theirs = take(energon_loader(data / name, rank=rank, evaluates=True, **settings), None)
        assert theirs
        assert braid_order(data / name, 1000, rank=rank, evaluates=True, **settings) == theirs


@pytest.mark.parametrize("name, settings", [
    ("nested.yaml", dict(workers=2, world=2, rank=1, shuffle_buffer=6)),
    ("a", dict(workers=3, evaluates=True)),  # 25 samples: one worker ends later than the others
])
def test_same_order_as_worker_processes(data, name, settings):
    with ending(energon_loader(data / name, **settings)) as loader:
        theirs = take(loader, None if "evaluates" in settings else 100)
    assert theirs == braid_order(data / name, 100, **settings)


@pytest.mark.parametrize("name, settings, at", [
    ("v1.yaml", dict(shuffle_buffer=6, sequence=3), 57),
    ("epochized.yaml", dict(world=2, rank=1), 41),
    ("v1.yaml", dict(workers=2, shuffle_buffer=5), 33),
])
def test_energon_resumes_where_braid_skips_to(data, name, settings, at):
    with ending(energon_loader(data / name, **settings)) as loader:
        take(loader, at)
        state = loader.save_state_rank()
    with ending(energon_loader(data / name, **settings)) as loader:
        loader.restore_state_rank(state)
        theirs = take(loader, 80)
    assert theirs == braid_order(data / name, 80, skip=at, **settings)


# What `braid data prepare` writes


def prepared_files(folder):
    """The files of a prepared data set that both programs must write alike."""
    meta = folder / ".nv-meta"
    counts = json.loads((meta / ".info.json").read_text())["shard_counts"]
    splits = {name: [shard for pattern in shards for shard in braceexpand(pattern)]
              for name, shards in yaml.safe_load((meta / "split.yaml").read_text())["split_parts"].items()}
    indexes = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("**/*.tar.idx"))}
    with sqlite3.connect(meta / "index.sqlite") as database:
        schema = sorted(" ".join(row[0].split()).replace("IF NOT EXISTS ", "").replace("( ", "(").replace(" )", ")")
                        for row in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))
        rows = [sorted(database.execute(f"SELECT * FROM {table}")) for table in ("samples", "sample_parts")]
    return list(counts.items()), splits, indexes, schema, rows


def write_unprepared(folder):
    write_shards(folder / "x/y", [3, 2, 4], "x")
    write_shards(folder / "x-1", [1, 6], "y", tar_format=tarfile.PAX_FORMAT)
    write_shards(folder, [5, 2, 2, 3, 1, 4], "long/" + "z" * 120)
    extra = [("__meta__/info", {"txt": b"skipped"}), ("k.d/s", {"a.b.c": b"1", "json": b"{}"}), ("nodot", {}), ("f/", {"txt": b"?"})]
    write_tar(folder / "odd name.tar", extra)
    write_shards(folder / "cut", [2], "c")
    shard = folder / "cut/c_0.tar"
    used = len(shard.read_bytes().rstrip(b"\0"))
    os.truncate(shard, (used + 511) // 512 * 512 + 100)  # within the end mark


@pytest.mark.parametrize("ours, theirs", [
    (["--split", "train:8,val:1,test:1"], dict(split_parts_ratio=[("train", 8.0), ("val", 1.0), ("test", 1.0)])),
    (["--split", "train:0.7,val:0.3", "--shuffle-tars"], dict(split_parts_ratio=[("train", 0.7), ("val", 0.3)], shuffle_seed=42)),
    (["--split-parts", "train:(x|x-1)/.*", "--split-parts", "val:long/z*_{1,3}", "--split-parts", "rest:odd"],
     dict(split_parts_patterns=[("train", "(x|x-1)/.*"), ("val", "long/z*_{1,3}"), ("rest", "odd")])),
])
def test_prepares_as_energon_does(tmp_path, ours, theirs):
    for name in ("ours", "theirs"):
        write_unprepared(tmp_path / name)
    braid("prepare", tmp_path / "ours", *ours)
    energon_prepare(tmp_path / "theirs", **theirs)
    assert prepared_files(tmp_path / "ours") == prepared_files(tmp_path / "theirs")


def test_every_shard_is_in_one_split(tmp_path):
    """The cuts are Energon's, unless it leaves a shard out."""
    lost = 0
    for count, ratios in itertools.product((7, 10), ([6, 3, 1], [0.7, 0.2, 0.1], [8, 1, 1], [1, 1, 1], [0.6, 0.3, 0.1, 0])):
        folder = tmp_path / f"{count}-{'-'.join(map(str, ratios))}"
        write_shards(folder, [1] * count, "s")
        named = [(f"s{i}", ratio) for i, ratio in enumerate(ratios)]
        energon_prepare(folder, split_parts_ratio=named)
        theirs = yaml.safe_load((folder / ".nv-meta/split.yaml").read_text())["split_parts"]
        braid("prepare", folder, "--force", "--split", ",".join(f"{name}:{ratio}" for name, ratio in named))
        ours = yaml.safe_load((folder / ".nv-meta/split.yaml").read_text())["split_parts"]
        assert sorted(sum(ours.values(), [])) == sorted(path.name for path in folder.glob("*.tar"))
        if sum(map(len, theirs.values())) == count:
            assert ours == theirs, (count, ratios)
        else:
            lost += 1
            exact = [fractions.Fraction(str(ratio)) for ratio in ratios]
            ends = [int(count * sum(exact[:i]) / sum(exact)) for i in range(len(exact) + 1)]
            assert [len(ours[name]) for name, _ in named] == [end - begin for begin, end in itertools.pairwise(ends)], (count, ratios)
    assert lost > 0


def test_energon_reads_what_braid_prepares(tmp_path):
    write_unprepared(tmp_path)
    braid("prepare", tmp_path, "--split", "train:0.7,val:0.3", "--shuffle-tars")
    compare(tmp_path, 100, world=2, sequence=3, shuffle_buffer=4)
    theirs = take(energon_loader(tmp_path, split="val", evaluates=True), None)
    assert theirs == braid_order(tmp_path, 100, split="val", evaluates=True)


def test_energon_reads_the_field_map_that_braid_writes(tmp_path):
    write_shards(tmp_path, [3, 4], "t")
    braid("prepare", tmp_path, "--sample-type", "TextSample", "--field-map", "text=json[n],txt")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    data = get_train_dataset(tmp_path, worker_config=config, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None)
    sample = next(iter(get_savable_loader(data, gc_collect_every_n_steps=0)))
    assert f"t{sample.text}" == sample.__key__


def test_lines_are_indexed_as_by_energon(tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text('\n \n{"a": 1}\n\n\t{"b": 2} \r\n{"c": 3}')
    braid("prepare", lines)
    ours = (tmp_path / "lines.jsonl.idx").read_bytes()
    CrudeJsonlDatasetFactory.prepare_dataset(lines)
    assert ours == (tmp_path / "lines.jsonl.idx").read_bytes()
    compare(lines, 12)
