"""`braid data bench` with two threads against megatron-energon, Pillow and tokenizers with two worker processes.

Both read the same shards and do the same work: decode, resize to the same sizes, cut into patches, tokenize with the
same tokenizer, mask what is not predicted, and pack greedily. The totals of one pass must agree before anything is
timed. Three rounds in turn; the best of each counts. The time of Energon starts with its first batch, so that the start
of its processes does not count.

    python bench/data_loader.py [--program build/braid] [--small 6000] [--photos 120] [--folder FOLDER]

Photographs are those of the scikit-image and scikit-learn packages if they are installed, else noise; each becomes a
JPEG of 2 megapixels.
"""
import argparse
import importlib.util
import io
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings

os.environ["TOKENIZERS_PARALLELISM"] = "false"
warnings.filterwarnings("ignore")
root = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root / "tests/oracles"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from megatron.energon import Cooker, DefaultTaskEncoder, Sample, WorkerConfig, basic_sample_keys  # noqa: E402
from megatron.energon import edataclass, get_loader, get_val_dataset, stateless  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from energon_data import energon_prepare, write_tar  # noqa: E402

PATCH, WORKERS, BUFFER, BATCH, IGNORED = 16, 2, 64, 8, -100


@edataclass
class Encoded(Sample):
    ids: list
    targets: list
    pictures: list  # (bytes, columns, rows)


@edataclass
class Packed(Sample):
    samples: int
    tokens: int
    ids: torch.Tensor
    targets: torch.Tensor
    patches: torch.Tensor


@stateless
def cook(sample):
    return sample


def divisible(side, other, budget):
    if side % 2 == 0:
        return max(side, 2)
    return max(side + 1 if (side + 1) * other <= budget else side - 1, 2)


def grid_of(width, height, budget):
    """Columns and rows of patches, as Megatron's dynamic resolution chooses them for one picture."""
    columns, rows = round(width / PATCH + 0.5), round(height / PATCH + 0.5)
    factor = min(math.sqrt(budget / (columns * rows)), 1)
    columns, rows = max(math.floor(factor * columns), 1), max(math.floor(factor * rows), 1)
    rows = divisible(rows, columns, budget)
    return divisible(columns, rows, budget), rows


def patches_of(data, columns, rows):
    image = Image.open(io.BytesIO(data)).convert("RGB").resize((columns * PATCH, rows * PATCH), Image.Resampling.BICUBIC)
    pixels = np.asarray(image).reshape(rows, PATCH, columns, PATCH, 3)
    return np.ascontiguousarray(pixels.transpose(0, 2, 4, 1, 3)).reshape(rows * columns, 3 * PATCH * PATCH)


class Encoder(DefaultTaskEncoder):
    """The work of `braid data bench`, with the tools that a Python trainer would use."""

    decoder = None
    cookers = [Cooker(cook)]

    def __init__(self, tokenizer, length, most_patches):
        super().__init__()
        self.tokenizer = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
        self.image_id = self.tokenizer.token_to_id("<image>")
        self.length, self.most_patches = length, most_patches

    @stateless
    def encode_sample(self, sample):
        ids, targets = [], []
        for turn in json.loads(sample["json"])["conversations"]:
            text = f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n"
            tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
            masked = 3 if turn["role"] == "assistant" else len(tokens)
            ids += tokens
            targets += [IGNORED] * masked + tokens[masked:]
        data, pictures = sample.get("png") or sample.get("jpg"), []
        if data is not None:
            budget = min((self.length - len(ids) - 4) * 4, self.most_patches or sys.maxsize)
            with Image.open(io.BytesIO(data)) as image:
                columns, rows = grid_of(*image.size, budget)
            at, embeddings = ids.index(self.image_id), columns * rows // 4
            ids[at:at + 1] = [self.image_id] * embeddings
            targets[at:at + 1] = [IGNORED] * embeddings
            pictures.append((data, columns, rows))
        return Encoded(**basic_sample_keys(sample), ids=ids, targets=targets, pictures=pictures)

    def select_samples_to_pack(self, samples):
        left, packs = sorted(samples, key=lambda sample: len(sample.ids)), []
        while left:
            pack, room = [], self.length
            for i in range(len(left) - 1, -1, -1):
                if len(left[i].ids) <= room:
                    room -= len(left[i].ids)
                    pack.append(left.pop(i))
            packs.append(pack)
        return packs

    @stateless
    def pack_selected_samples(self, samples):
        ids, targets = np.zeros(self.length, np.int64), np.full(self.length, IGNORED, np.int64)
        at, patches = 0, []
        for sample in samples:
            ids[at:at + len(sample.ids)] = sample.ids
            targets[at:at + len(sample.ids)] = sample.targets
            at += len(sample.ids)
            patches += [patches_of(*picture) for picture in sample.pictures]
        pixels = np.concatenate(patches) if patches else np.zeros((0, 3 * PATCH * PATCH), np.uint8)
        return Packed.derive_from(samples[0], samples=len(samples), tokens=at, ids=torch.from_numpy(ids),
                                  targets=torch.from_numpy(targets), patches=torch.from_numpy(pixels))

    def batch(self, samples):
        return Packed.derive_from(samples[0], samples=sum(s.samples for s in samples), tokens=sum(s.tokens for s in samples),
                                  ids=torch.stack([s.ids for s in samples]), targets=torch.stack([s.targets for s in samples]),
                                  patches=torch.cat([s.patches for s in samples]))


def run_energon(case):
    """The totals of one pass, and samples per second after the first batch."""
    data = get_val_dataset(case["path"], split_part="train", batch_size=BATCH, packing_buffer_size=BUFFER,
                           worker_config=WorkerConfig(rank=0, world_size=1, num_workers=WORKERS),
                           task_encoder=Encoder(case["tokenizer"], case["length"], case["most_patches"]))
    totals, start, first = {"samples": 0, "tokens": 0, "patches": 0}, None, 0
    for batch in get_loader(data):
        totals["samples"] += batch.samples
        totals["tokens"] += batch.tokens
        totals["patches"] += len(batch.patches)
        if start is None:
            start, first = time.perf_counter(), totals["samples"]
    return totals, (totals["samples"] - first) / (time.perf_counter() - start)


def run_braid(program, case, *more):
    command = [program, "data", "bench", case["path"], "--json", "--threads", WORKERS, "--data.tokenizer", case["tokenizer"],
               "--data.prompt_format", "chatml", "--data.sequence_length", case["length"], "--loader.packing_buffer", BUFFER,
               "--loader.num_workers", WORKERS, "--data.pictures.max_patches", case["most_patches"], *more]
    result = json.loads(subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout)
    return {name: result[name] for name in ("samples", "tokens", "patches")}, result["samples"] / result["seconds"]


def photographs():
    files = []
    for package, folder in (("skimage", "data"), ("sklearn", "datasets/images")):
        if spec := importlib.util.find_spec(package):
            files += sorted((pathlib.Path(spec.origin).parent / folder).glob("*.jpg"))
    if files:
        return [Image.open(file).convert("RGB") for file in files]
    print("scikit-image and scikit-learn are not installed: noise instead of photographs")
    noise = np.random.default_rng(1).integers(0, 256, (4, 204, 153, 3), np.uint8)
    return [Image.fromarray(pixels) for pixels in noise]


def write_photographs(folder, count):
    sources, random, samples = photographs(), np.random.default_rng(0), []
    for i in range(count):
        image = sources[i % len(sources)]
        left, top = (int(side * random.uniform(0, 0.2)) for side in image.size)
        crop = image.crop((left, top, left + int(image.width * 0.8), top + int(image.height * 0.8)))
        file = io.BytesIO()
        crop.resize((1632, 1224), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        turns = [{"role": "user", "content": "<image>\nwhat colour is the circle?"}, {"role": "assistant", "content": "red"}]
        samples.append((f"{i:06}", {"jpg": file.getvalue(), "json": json.dumps({"conversations": turns}).encode()}))
    for shard in range(4):
        write_tar(folder / f"photos_{shard}.tar", samples[shard::4])
    energon_prepare(folder, split_parts_ratio=[("train", 1)])


def decoding_limit(program, photos):
    """Photographs per second and core if nothing but decoding is done."""
    bench = pathlib.Path(program).parent / "bench_image"
    if not bench.exists():
        print("\nthe limit of decoding is not measured: build bench_image")
        return
    with tempfile.TemporaryDirectory() as folder, tarfile.open(photos / "photos_0.tar") as shard:
        files = []
        for i, member in enumerate([member for member in shard if member.name.endswith(".jpg")][:12]):
            files.append(pathlib.Path(folder) / f"{i}.jpg")
            files[-1].write_bytes(shard.extractfile(member).read())
        command = [bench, "576", "448", "10", *files]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    whole, scaled = (statistics.mean(json.loads(line)[name] for line in lines) for name in ("limit_ms", "scaled_ms"))
    print(f"\none core: libjpeg-turbo alone decodes {1e3 / whole:.0f} photographs/s, Braid at the reduced scale {1e3 / scaled:.0f}")


def compare(program, name, case, changes, bars):
    expected, _ = run_energon(case)
    for change in changes:
        totals, _ = run_braid(program, case, "--one-pass", *change)
        if totals != expected:
            sys.exit(f"{name}: Energon has {expected}, Braid {totals}")
    rounds = [[run_energon(case)[1], *(run_braid(program, case, "--seconds", 3, *change)[1] for change in changes)]
              for _ in range(3)]
    energon, *ours = (max(rates) for rates in zip(*rounds))
    for change, rate, bar in zip(changes, ours, bars):
        print(f"| {name}{', scaled decoding' if change else ''} | {expected['samples']} | {expected['tokens']} | "
              f"{expected['patches']} | {energon:.0f} | {rate:.0f} | {rate / energon:.1f} | {bar} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=root / "build/braid")
    parser.add_argument("--small", type=int, default=6000, help="drawn samples")
    parser.add_argument("--photos", type=int, default=120, help="photographs")
    parser.add_argument("--folder", help="where to write the data sets; default: a temporary folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.folder or temporary)
        if not (folder / "small").exists():
            subprocess.run([options.program, "data", "draw", folder / "small", "--samples", str(options.small), "--val", "1"],
                           check=True, stdout=subprocess.DEVNULL)
        if not (folder / "photos").exists():
            write_photographs(folder / "photos", options.photos)
        tokenizer = folder / "small/tokenizer"
        small = {"path": folder / "small", "tokenizer": tokenizer, "length": 1024, "most_patches": 0}
        photos = {"path": folder / "photos", "tokenizer": tokenizer, "length": 1024, "most_patches": 1024}
        print("| data | samples | tokens | patches | Energon, samples/s | Braid, samples/s | ratio | wanted |\n" + "|---" * 8 + "|")
        compare(options.program, "small pictures and text", small, [()], [4])
        compare(options.program, "photographs of 2 megapixels", photos, [(), ("--data.pictures.scaled_decode", "true")], [2, 4])
        decoding_limit(options.program, folder / "photos")


if __name__ == "__main__":
    main()
