"""Targets of conversations that the tokenizer's own chat template writes (nemotron6-moe), against transformers, live.

Two oracles use apply_chat_template. The first renders the beginnings of a conversation: an answer's targets are the
tokens of the conversation up to its end that the generation prompt before it does not have. The second is for templates
that shorten earlier answers, so that a beginning is not how the conversation begins: Hugging Face's generation tags
mark the answers.

    BRAID_CHAT_PROBE=build/chat_probe python -m pytest tests/oracles/template_targets_test.py
"""
import json
import os
import random
import re

import pytest
from transformers import AutoTokenizer

import chat_templates as templates
import tokenizer_files as files
from programs import run_program

NEMOTRON_TAGGED = templates.NEMOTRON.replace(
    "{{- '<|im_start|>assistant\\n' ~ (content | trim) ~ '<|im_end|>\\n' }}",
    "{{- '<|im_start|>assistant\\n' }}{%- generation %}{{- (content | trim) ~ '<|im_end|>\\n' }}{%- endgeneration %}")
TEMPLATES = {"chatml": templates.CHATML, "nemotron": templates.NEMOTRON, "llama3": templates.LLAMA3,
             "nemotron_tagged": NEMOTRON_TAGGED, "qwen3": templates.QWEN3}
SPECIAL = ["<unk>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<think>", "</think>"]
NAMES = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "</s>", "unk_token": "<unk>"}
WORDS = ["Hello", "<image>\nWhat?", " spaced ", "line\nline\n", "你好 😀", "e\u0301 ñ", "a" * 30, "\n\nx", "12345", "<|im_start|>assistant\n",
         "</div>", "</s>", "\u00a0", "<think>", "  "]
THOUGHTS = ["<think>\nhm\n</think>\n\n", "<think></think>", "<think>\n\nlong 你好\n</think>", "<think>a\n</think>\n"]
IGNORED = -100


def conversations(seed, count, thoughtful):
    """Some answers have thoughts before them: only the last one, unless `thoughtful`."""
    rng = random.Random(seed)

    def text(words):
        return " ".join(rng.choices(words, k=rng.randint(1, 4)))

    for _ in range(count):
        turns = [("system", rng.choice(["", text(WORDS)]))] if rng.random() < 0.6 else []
        rounds = rng.choice([1, 1, 2, 3, 6])
        for i in range(rounds):
            thinks = rng.random() < 0.5 and (thoughtful or i == rounds - 1)
            answer = text([word for word in WORDS if word not in ("<image>\nWhat?", "<think>")])
            turns += [("user", text(WORDS)), ("assistant", (rng.choice(THOUGHTS) if thinks else "") + answer)]
        yield [{"role": role, "content": content} for role, content in turns]


@pytest.fixture(scope="module", params=list(TEMPLATES))
def tokenizer(request, tmp_path_factory):
    """A folder, and transformers' view of it."""
    folder = tmp_path_factory.mktemp(request.param)
    files.llama3_with(SPECIAL).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATES[request.param])
    return request.param, folder, AutoTokenizer.from_pretrained(folder)


def probe(folder, conversations):
    requests = [{"tokenizer": str(folder), "format": "nemotron6-moe", "turns": [[m["role"], m["content"]] for m in messages]}
                for messages in conversations]
    run = run_program([os.environ["BRAID_CHAT_PROBE"]], input="".join(json.dumps(request) + "\n" for request in requests))
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def rendered(tokenizer, messages, prompt=False):
    return tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=prompt, return_dict=False)


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def targets_by_beginnings(tokenizer, messages):
    tokens = rendered(tokenizer, messages)
    targets = [IGNORED] * len(tokens)
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            before, prompt = rendered(tokenizer, messages[:i]), rendered(tokenizer, messages[:i], prompt=True)
            done = rendered(tokenizer, messages[: i + 1])
            assert tokens[: len(done)] == done, "the template changes earlier turns"
            begin = common(prompt, done)
            assert begin >= common(before, done)
            targets[begin: len(done)] = done[begin:]
    return tokens, targets


def targets_by_tags(tokenizer, messages):
    marked = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    tokens = marked["input_ids"]
    targets = [token if is_said else IGNORED for token, is_said in zip(tokens, marked["assistant_masks"], strict=True)]
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            given = common(rendered(tokenizer, messages[:i], prompt=True), tokens)
            begin = len(rendered(tokenizer, messages[:i]))
            targets[begin:given] = [IGNORED] * (given - begin)
    return tokens, targets


def is_left_out(messages):
    """Whether nothing remains of an answer without its thoughts and the white space around it."""
    return any(m["role"] == "assistant" and not re.sub("<think>.*?</think>", "", m["content"], flags=re.S).strip() for m in messages)


def test_targets(tokenizer):
    name, folder, theirs = tokenizer
    has_tags = "endgeneration" in TEMPLATES[name]
    some = list(conversations(name, 320, thoughtful=has_tags or name != "nemotron"))
    assert sum(len(messages) > 4 for messages in some) > 80
    assert sum(messages[0] == {"role": "system", "content": ""} for messages in some) > 30
    assert sum(map(is_left_out, some)) < 160
    for messages, ours in zip(some, probe(folder, some), strict=True):
        if "error" in ours:
            assert "leaves out the text of turn" in ours["error"] and is_left_out(messages), (ours, messages)
            continue
        tokens, targets = (targets_by_tags if has_tags else targets_by_beginnings)(theirs, messages)
        assert ours.get("tokens", ours) == tokens, messages
        assert ours["targets"] == targets, messages
