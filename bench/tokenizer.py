"""Braid's tokenizer against Hugging Face's `tokenizers` (Rust), both on one core, on the same texts.

Trains a tokenizer for each split pattern on the texts, checks that both give the same ids, then times both, in turns.
The texts are this repository's documents and sources, or the files of the command line.

    python bench/tokenizer.py [--program build/bench_tokenizer] [FILE...]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
root = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root / "tests/oracles"))

from tokenizers import Tokenizer, models, trainers, pre_tokenizers, decoders, normalizers  # noqa: E402
import tokenizer_files as files  # noqa: E402

PATTERNS = {
    "gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None),
    "llama3": (files.split_then_bytes(files.LLAMA3), None),
    "tekken": (files.split_then_bytes(files.TEKKEN), None),
    "qwen2": (files.split_then_bytes(files.QWEN2), normalizers.NFC()),
}


def texts_of(paths):
    texts = []
    for path in paths:
        text = pathlib.Path(path).read_text(errors="replace")
        texts += [text[i:i + 8000] for i in range(0, len(text), 8000)]
    return texts


def trained(pre_tokenizer, normalizer, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=32000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    return tokenizer


def ours(program, folder, texts):
    run = subprocess.run([program, folder, "1"], input="".join(json.dumps(text) + "\n" for text in texts),
                         capture_output=True, text=True, check=True)
    seconds, *ids = map(json.loads, run.stdout.splitlines())
    return seconds[0], ids


def theirs(folder, texts):
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")  # its cache of words starts empty
    start = time.perf_counter()
    encodings = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return time.perf_counter() - start, [encoding.ids for encoding in encodings]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=root / "build/bench_tokenizer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    paths = options.files or sorted([*root.glob("docs/**/*.md"), *root.glob("src/**/*.cpp"), *root.glob("tests/**/*.py")])
    texts = texts_of(paths)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{megabytes:.1f} MB in {len(texts)} texts, best of {options.rounds}")
    print(f"{'pattern':10}{'tokens':>10}{'braid MB/s':>12}{'HF MB/s':>10}{'ratio':>8}")
    for name, parts in PATTERNS.items():
        with tempfile.TemporaryDirectory() as folder:
            trained(*parts, texts).save(f"{folder}/tokenizer.json")
            rounds = [(ours(options.program, folder, texts), theirs(folder, texts)) for _ in range(options.rounds)]
        (_, mine), (_, expected) = rounds[0]
        if mine != expected:
            sys.exit(f"{name}: the ids differ")
        best = [min(run[side][0] for run in rounds) for side in (0, 1)]
        tokens = sum(map(len, mine))
        print(f"{name:10}{tokens:>10}{megabytes / best[0]:>12.1f}{megabytes / best[1]:>10.1f}{best[1] / best[0]:>8.1f}")


if __name__ == "__main__":
    main()
