"""Tokens that a tokenizer_config.json adds to its tokenizer.json, against transformers' AutoTokenizer, live.

    BRAID=build/braid python -m pytest tests/oracles/tokenizer_config_test.py
"""
import json
import os
import random

import pytest
from transformers import AutoTokenizer

import tokenizer_files as files
from programs import run_program

FIRST = 2510  # the first id that none of these tokenizers has


def added(content, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": False, **flags}


CONFIGS = {
    "new": {"added_tokens_decoder": {str(FIRST + 1): added("<second>"), str(FIRST): added("<first>", special=True, lstrip=True)}},
    "other flags": {"added_tokens_decoder": {"2502": added("<image>", rstrip=True), "2506": added("[WORD]", lstrip=True, special=True),
                                             "2509": added("Norm", normalized=False)}},
    "of the vocabulary": {"added_tokens_decoder": {"300": None}},  # the content is filled in
    "named": {"bos_token": "<bos>", "pad_token": added("<pad>", rstrip=True, __type="AddedToken"), "eos_token": "</s>", "unk_token": "the",
              "added_tokens_decoder": {str(FIRST): added("<bos>", normalized=True)}},
    "more": {"additional_special_tokens": ["<one>", "<image>", "<two>", "<mask>"], "mask_token": "<mask>"},
    "newer name": {"additional_special_tokens": ["<one>"], "extra_special_tokens": ["<two>", "<one>"], "sep_token": None},
    "nothing": {"added_tokens_decoder": {}},
}
TOKENS = ["<first>", "<second>", "<image>", "[WORD]", "Norm", "<bos>", "<pad>", "the", "<one>", "<two>", "<mask>", "</s>"]


def write(folder, tokenizer, config):
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))


def tokenize(folder, *flags, lines):
    run = run_program([os.environ["BRAID"], "data", "tokenize", folder, *flags], input="".join(json.dumps(line) + "\n" for line in lines))
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


@pytest.mark.parametrize("name", list(CONFIGS))
def test_ids(name, tmp_path):
    tokenizer = files.llama3()
    config = json.loads(json.dumps(CONFIGS[name]))
    words = list(TOKENS)
    if name == "of the vocabulary":
        words.append(tokenizer.id_to_token(300))
        config["added_tokens_decoder"]["300"] = added(words[-1])
    write(tmp_path, tokenizer, config)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    rng = random.Random(name)
    texts = ["".join(rng.choice(["", " ", "  ", "\n", "a", "word "]) + rng.choice(words) for _ in range(8)) for _ in range(100)]
    ids = [theirs.encode(text, add_special_tokens=False) for text in texts]
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert (ids == plain) == (name == "nothing")
    assert tokenize(tmp_path, lines=texts) == ids
    assert tokenize(tmp_path, "--decode", lines=ids) == [theirs.decode(some, skip_special_tokens=True) for some in ids]


@pytest.mark.parametrize("config, message", [
    ({"added_tokens_decoder": {str(FIRST + 5): added("<new>")}}, f"is {FIRST + 5}, but '<new>' would be given by others {FIRST}"),
    ({"added_tokens_decoder": {"7": added("<image>")}}, "is 7, but '<image>' is in the vocabulary with 2502"),
    ({"added_tokens_decoder": {"x": added("<new>")}}, "added_tokens_decoder['x'] should have an id as its key"),
    ({"added_tokens_decoder": [1]}, "added_tokens_decoder should be an object"),
    ({"added_tokens_decoder": {"1": 2}}, "should be an object"),
    ({"bos_token": 5}, "bos_token should be a string")])
def test_refusals_name_the_place(config, message, tmp_path):
    write(tmp_path, files.llama3(), config)
    run = run_program([os.environ["BRAID"], "data", "tokenize", tmp_path], input='"a"\n')
    assert run.returncode != 0
    assert "tokenizer_config.json" in run.stderr and message in run.stderr, run.stderr
