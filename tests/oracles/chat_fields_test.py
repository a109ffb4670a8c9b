"""What a record has beside texts (tools, tool calls, thoughts, weights) against transformers, live.

The oracle is apply_chat_template(messages, tools=...) with the messages of the record. Hugging Face's generation tags
mark the answers, and an answer of weight 0 has no targets.

    BRAID_CHAT_PROBE=build/chat_probe python -m pytest tests/oracles/chat_fields_test.py
"""
import itertools
import json
import os
import random

import pytest
from transformers import AutoTokenizer

import chat_templates as templates
import tokenizer_files as files
from programs import run_program

NAMES = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "</s>", "unk_token": "<unk>"}
TOOLS = [{"type": "function", "function": {"name": name, "description": "does é", "strict": True, "parameters": {
    "type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "number", "default": 1.5}}}}}
    for name in ("look_up", "count")]
IGNORED = -100


def probe(folder, records, chat_format="nemotron6-moe"):
    requests = [{"tokenizer": str(folder), "format": chat_format, "record": record} for record in records]
    run = run_program([os.environ["BRAID_CHAT_PROBE"]], input="".join(json.dumps(request) + "\n" for request in requests))
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def make_tokenizer(folder, **settings):
    made = files.llama3_with(["<unk>", "<think>", "</think>", "<call>", "</call>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    return folder, make_tokenizer(folder, chat_template=templates.AGENT)


def arguments(rng):
    values = [1, 2.5, "x", "你好 \"q\"", [1, {"b": None}], True, {}]
    given = {key: rng.choice(values) for key in rng.sample(["z", "a", "m"], k=rng.randint(0, 3))}
    return json.dumps(given) if rng.random() < 0.3 else given


def records(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        messages = [{"role": "system", "content": "Be brief."}] if rng.random() < 0.5 else []
        rounds = rng.choice([1, 1, 2, 4])
        for _ in range(rounds):
            messages.append({"role": "user", "content": rng.choice(["Hello", "你好 😀", "line\nline"])})
            if rng.random() < 0.3:
                messages[-1]["name"] = "ann"
            for _ in range(rng.choice([0, 0, 1, 2])):
                calls = [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": arguments(rng)}}
                         for _ in range(rng.choice([1, 1, 3]))]
                messages.append({"role": "assistant", "tool_calls": calls})
                if rng.random() < 0.7:
                    messages[-1]["content"] = rng.choice([None, "", "Let me see."])
                messages += [{"role": "tool", "tool_call_id": "c1", "content": rng.choice(["42", "", '{"r": 1}'])} for _ in calls]
            messages.append({"role": "assistant", "content": rng.choice(["Yes.", "12345", "a b"])})
            for answer in messages:
                if answer["role"] == "assistant" and "weight" not in answer:
                    answer["weight"] = rng.choice([0, 1, 1])
                    if rng.random() < 0.5:
                        answer["reasoning_content"] = rng.choice(["hm", "\nlong 你好\n", "7"])
        yield {"id": 7, "messages": messages} | rng.choice([{}, {"tools": TOOLS}, {"tools": json.dumps(TOOLS)}])


def tools_of(record):
    tools = record.get("tools")
    return json.loads(tools) if isinstance(tools, str) else tools


def expected(tokenizer, record):
    marked = tokenizer.apply_chat_template(record["messages"], tools=tools_of(record), tokenize=True, return_dict=True,
                                           return_assistant_tokens_mask=True)
    weights = iter([message["weight"] for message in record["messages"] if message["role"] == "assistant"])
    targets = []
    for is_said, tokens in itertools.groupby(zip(marked["assistant_masks"], marked["input_ids"], strict=True), key=lambda pair: pair[0]):
        learned = is_said and next(weights)
        targets += [token if learned else IGNORED for _, token in tokens]
    assert next(weights, None) is None
    return marked["input_ids"], targets


def test_records_are_written_as_transformers_writes_them(agent):
    folder, tokenizer = agent
    some = list(records(38, 300))
    assert sum("tool_calls" in message for record in some for message in record["messages"]) > 100
    for record, ours in zip(some, probe(folder, some), strict=True):
        tokens, targets = expected(tokenizer, record)
        assert ours.get("tokens", ours) == tokens, record
        assert ours["targets"] == targets, record
        has_ids = any(message["role"] == "tool" for message in record["messages"])
        assert ours["unused"] == (["turn.tool_call_id"] if has_ids else [])


@pytest.mark.parametrize("name", ["qwen", "llama3"])
def test_published_templates(tmp_path, name):
    tokenizer = make_tokenizer(tmp_path, chat_template=templates.PUBLISHED[name])
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "count", "arguments": {"z": "x", "a": 1}}}]}
    messages = [{"role": "user", "content": "Hello"}, call, {"role": "tool", "content": "42"}, {"role": "assistant", "content": "Yes."}]
    tools = TOOLS if name == "qwen" else None
    ours, = probe(tmp_path, [{"messages": messages} | ({"tools": tools} if tools else {})], "default")
    assert ours.get("tokens", ours) == tokenizer.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=False)
    thought = messages[:3] + [messages[3] | {"reasoning_content": "hm"}]
    ours, = probe(tmp_path, [{"messages": thought}], "default")
    assert "does not write the reasoning_content of turn 4" in ours["error"]
    if name == "llama3":
        ours, = probe(tmp_path, [{"messages": messages, "tools": TOOLS}], "default")
        assert "does not write the sample's tools[0].name" in ours["error"]


def test_a_template_for_tools(tmp_path):
    """transformers chooses the template "tool_use" for conversations with tools."""
    named = [{"name": "default", "template": templates.CHATML}, {"name": "tool_use", "template": templates.AGENT}]
    (tmp_path / "list").mkdir()
    (tmp_path / "files/additional_chat_templates").mkdir(parents=True)
    (tmp_path / "files/chat_template.jinja").write_text(templates.CHATML)
    (tmp_path / "files/additional_chat_templates/tool_use.jinja").write_text(templates.AGENT)
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes."}]
    for folder, settings in ((tmp_path / "list", {"chat_template": named}), (tmp_path / "files", {})):
        tokenizer = make_tokenizer(folder, **settings)
        for tools in (None, [], TOOLS):
            ours, = probe(folder, [{"messages": messages} | ({} if tools is None else {"tools": tools})], "default")
            assert ours.get("tokens", ours) == tokenizer.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=False)
