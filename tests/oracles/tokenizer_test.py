"""Braid's tokenizers against the libraries `tokenizers` and `sentencepiece`, live.

The ids of every generated text must be identical, and so must the texts that ids become. The four split patterns of
GPT-2, Llama 3, Tekken and Qwen 2 share 10,000 texts; the other parts of a tokenizer.json get fewer.

    BRAID=build/braid python -m pytest tests/oracles/tokenizer_test.py
"""
import io
import json
import os
import random

import pytest
import sentencepiece
from tokenizers import Tokenizer

import tokenizer_files as files
from programs import run_program

SEED = os.environ.get("BRAID_TEXT_SEED", "20260801")
MAIN = ["gpt2", "llama3", "tekken", "qwen2"]
BRAID = os.environ["BRAID"]


def braid(*arguments, lines, check=True):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run = run_program([BRAID, "data", "tokenize", *arguments], input=text)
    if not check:
        return run
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def compare(texts, ours, theirs):
    assert len(ours) == len(texts)
    for text, mine, expected in zip(texts, ours, theirs, strict=True):
        assert mine == expected, ascii(text)


@pytest.mark.parametrize("name", list(files.TOKENIZERS))
def test_tokenizer_json(name, tmp_path):
    tokenizer = files.TOKENIZERS[name]()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    texts = files.hard_texts(f"{SEED} {name}", 2500 if name in MAIN else 600)
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    compare(texts, braid(path, lines=texts), ids)
    few = texts[:300]
    compare(few, braid(path, "--special", lines=few), [tokenizer.encode(text).ids for text in few])
    compare(few, braid(path, "--decode", "--special", lines=ids[:300]),
            tokenizer.decode_batch(ids[:300], skip_special_tokens=False))
    compare(few, braid(path, "--decode", lines=ids[:300]), tokenizer.decode_batch(ids[:300]))


def test_ids_in_any_order_decode_alike(tmp_path):
    """Tokens of byte-level models can be parts of characters."""
    rng = random.Random(SEED)
    for name in ("llama3", "llama2"):
        tokenizer = files.TOKENIZERS[name]()
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        ids = [[rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(12))] for _ in range(500)]
        compare(ids, braid(tmp_path, "--decode", lines=ids), tokenizer.decode_batch(ids))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece(kind, tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(files.corpus()), model_writer=model, model_type=kind, vocab_size=450 if kind == "unigram" else 900, byte_fallback=True,
        character_coverage=0.98, user_defined_symbols=["<image>", "<|im_start|>"], minloglevel=2, num_threads=1)
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    texts = [text for text in files.hard_texts(f"{SEED} {kind}", 1500)]
    ids = oracle.encode(texts)
    compare(texts, braid(tmp_path, lines=texts), ids)
    compare(texts, braid(tmp_path, "--special", lines=texts), oracle.encode(texts, add_bos=True))
    compare(texts, braid(tmp_path, "--decode", lines=ids), oracle.decode(ids))


def test_merges_as_strings_and_pairs(tmp_path):
    """Files of older versions have "a b" instead of ["a", "b"]."""
    tokenizer = files.gpt2()
    state = json.loads(tokenizer.to_str())
    state["model"]["merges"] = [" ".join(merge) for merge in state["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    assert Tokenizer.from_str(json.dumps(state)).encode("they're").ids == tokenizer.encode("they're").ids
    texts = files.hard_texts(SEED, 100)
    compare(texts, braid(tmp_path, lines=texts), [tokenizer.encode(text).ids for text in texts])


def test_bad_lines_are_named(tmp_path):
    files.gpt2().save(str(tmp_path / "tokenizer.json"))
    run = run_program([BRAID, "data", "tokenize", tmp_path], input='"fine"\n"also fine"\n{"text": "no"}\n')
    assert run.returncode == 1 and "line 3" in run.stderr and len(run.stdout.splitlines()) == 2
    run = braid(tmp_path, "--decode", lines=[[1], [999999]], check=False)
    assert run.returncode == 1 and "line 2" in run.stderr and "999999" in run.stderr
