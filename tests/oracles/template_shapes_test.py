"""Masks of templates that end turns, or take content, in their own way, against transformers, live.

transformers renders the same template with generation tags around what is learned, and says which characters they
enclose; the tokenizer's offsets make them tokens. The tokenizer splits the names of roles.

    BRAID_CHAT_PROBE=build/chat_probe python -m pytest tests/oracles/template_shapes_test.py
"""
import itertools
import json
import os
import re

import pytest
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

import chat_templates as templates
import tokenizer_files as files
from programs import run_program

MARKERS = ["<unk>", "<|user|>", "<|assistant|>", "<|start|>", "<|end|>", "<|eot_id|>", "<|message|>", "<|channel|>", "<|return|>", "<|stop|>",
           "[INST]", "[/INST]", "<|vision|>", "<|vision_end|>"]
IGNORED = -100
TURNS = [("user", "Which colour?"), ("assistant", " red\n"), ("user", "assistant\nuser"), ("assistant", "blue assistant"), ("user", "And é?"),
         ("assistant", "12345 你好.")]


def untagged(source):
    return source.replace(templates.TAGS[0], "").replace(templates.TAGS[1], "")


def folder_of(path, source, stops=()):
    files.llama3_with(MARKERS).save(str(path / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    (path / "chat_template.jinja").write_text(untagged(source))
    tokenizer = AutoTokenizer.from_pretrained(path)
    if stops:
        ids = [tokenizer.convert_tokens_to_ids(stop) for stop in stops]
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return path, tokenizer


def probe(folder, conversations, **more):
    requests = [{"tokenizer": str(folder), "format": "nemotron6-moe", "turns": turns, **more} for turns in conversations]
    run = run_program([os.environ["BRAID_CHAT_PROBE"]], input="".join(json.dumps(request) + "\n" for request in requests))
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def expected(tokenizer, source, messages, added=""):
    """The tokens, and those that overlap with what the tags enclose, of a text with `added` learned at its end."""
    texts, spans = render_jinja_template([messages], chat_template=source, return_assistant_tokens_mask=True, eos_token="</s>", bos_token="<s>")
    text, spans = texts[0] + added, list(spans[0]) + ([(len(texts[0]), len(texts[0]) + len(added))] if added else [])
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    overlaps = [any(begin < stop and start < end for start, stop in spans) for begin, end in encoded["offset_mapping"]]
    return encoded["input_ids"], [id if learned else IGNORED for id, learned in zip(encoded["input_ids"], overlaps, strict=True)]


STOPS = {"always_prompts": ["<|stop|>"], "next_turn_ends": ["<|user|>"]}


@pytest.mark.parametrize("name", list(templates.SHAPES))
def test_shapes(name, tmp_path):
    source, added = templates.SHAPES[name]
    folder, tokenizer = folder_of(tmp_path, source, stops=STOPS.get(name, ()))
    assert len(tokenizer.tokenize("assistant")) > 1
    some = [TURNS[:2], TURNS[:4], TURNS, [("user", "<end>"), ("assistant", "<thin>")]]
    if name == "other_system_header":
        some += [[("system", "Be kind."), *TURNS]]
    if name == "no_prompt":
        some += [[["assistant", "Begin."], *TURNS[:2]]]
    for turns, ours in zip(some, probe(folder, some), strict=True):
        messages = [{"role": role, "content": text} for role, text in turns]
        assert (ours.get("tokens", ours), ours["targets"]) == expected(tokenizer, source, messages, added), turns


def test_a_beginning_of_turns_is_added_only_if_it_stops(tmp_path):
    source, _ = templates.SHAPES["next_turn_ends"]
    folder, tokenizer = folder_of(tmp_path, source)
    for turns, ours in zip([TURNS[:2], TURNS], probe(folder, [TURNS[:2], TURNS]), strict=True):
        messages = [{"role": role, "content": text} for role, text in turns]
        assert (ours["tokens"], ours["targets"]) == expected(tokenizer, source, messages), turns


def test_calls_and_thoughts_end_with_stop_tokens(tmp_path):
    """The template leaves out earlier thoughts, and repeats the name of the tool before its answer."""
    source = ("{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% elif m.role == 'tool' %}"
              "<|stop|>{{ messages[loop.index0 - 1].tool_calls[0].function.name }}: {{ m.content }}{% else %}<|assistant|>"
              "{% if m.reasoning_content and loop.last %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
              "{% for c in m.tool_calls or [] %}<|start|>{{ c.function.name }}{{ c.function.arguments | tojson }}<|end|>{% endfor %}{% endif %}{% endfor %}"
              "{% if add_generation_prompt %}<|assistant|>{% endif %}")
    folder, tokenizer = folder_of(tmp_path, source, stops=["<|user|>", "<|stop|>"])
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "count", "arguments": {}}}]}
    question, answer = {"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Two.", "reasoning_content": "hm"}
    records = [[question, answer], [question, answer, question, answer], [question, call], [question, call, {"role": "tool", "content": "2"}, answer]]
    learned = [["(hm)Two.<|user|>"], ["Two.<|user|>", "(hm)Two.<|user|>"], ["<|start|>count{}<|end|><|stop|>"],
               ["<|start|>count{}<|end|><|stop|>", "(hm)Two.<|user|>"]]
    requests = [{"tokenizer": str(folder), "format": "nemotron6-moe", "record": {"messages": messages}} for messages in records]
    run = run_program([os.environ["BRAID_CHAT_PROBE"]], input="".join(json.dumps(request) + "\n" for request in requests))
    for line, texts in zip(run.stdout.split("\n")[:-1], learned, strict=True):
        ours = json.loads(line)
        runs = [list(pairs) for is_learned, pairs in itertools.groupby(zip(ours["tokens"], ours["targets"]), key=lambda pair: pair[1] != IGNORED) if is_learned]
        assert [tokenizer.decode([token for token, _ in pairs]) for pairs in runs] == texts


def parts(text, image_as_part=True):
    cut = re.split("(<image>)", text) if image_as_part else [text]
    return [{"type": "image"} if part == "<image>" else {"type": "text", "text": part} for part in cut if part]


@pytest.mark.parametrize("name", list(templates.LISTS))
def test_content_as_a_list(name, tmp_path):
    source = templates.LISTS[name]
    folder, tokenizer = folder_of(tmp_path, source)
    pictured = [["user", "<image>\nWhat, or <image>?"], ["assistant", "A star."], ["user", "And<image>"], ["assistant", "One."]]
    talked = TURNS[2:]
    if name == "lists_but_of_system":
        pictured, talked = [["system", "Be brief."], *pictured], [["system", "Be brief."], *talked]
    for turns, ours in zip([pictured, talked], probe(folder, [pictured, talked]), strict=True):
        listed = {"both": ["user", "assistant"] if turns is pictured else [], "lists_of_users": ["user"]}.get(name, ["user", "assistant"])
        messages = [{"role": role, "content": parts(text) if role in listed else text} for role, text in turns]
        tokens, targets = expected(tokenizer, source, messages)
        assert ours.get("tokens", ours) == tokens, turns
        if templates.TAGS[0] in source:
            assert ours["targets"] == targets, turns
        assert tokenizer.decode([id for id in ours["targets"] if id != IGNORED]).count("star") == (turns is pictured)


def test_answers_that_are_left_out_are_errors(tmp_path):
    loop = "{% for m in messages %}"
    cases = {"": TURNS[:2], loop + "{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}": TURNS[:2],
             loop + "{{ m.content[0].words }}{% endfor %}": TURNS[:2],
             loop + "<|start|>{{ m.content.split('</think>')[-1] if not loop.last else m.content }}{% endfor %}":
             [["user", "a"], ["assistant", "<think>b</think>"], ["user", "c"], ["assistant", "d"]]}
    for i, (source, turns) in enumerate(cases.items()):
        (tmp_path / str(i)).mkdir()
        folder, _ = folder_of(tmp_path / str(i), source)
        (ours,) = probe(folder, [turns])
        assert "leaves out the text of turn" in ours.get("error", ""), (source, ours)


def test_texts_that_are_cut_or_repeated_are_errors(tmp_path):
    loop = "{% for m in messages %}<|start|>"
    cases = {loop + "{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}": (["user", "say </think> now"], "a part of turn 1 (user): 'say'"),
             loop + "{{ m.content[:8] if m.role == 'user' else m.content }}<|end|>{% endfor %}": (["user", "Which colour?"], "a part of turn 1 (user): 'colour?'"),
             loop + "{{ m.content }}{{ loop.nextitem.content if loop.nextitem }}<|stop|>{% endfor %}": (["user", "a"], "turn 2 (assistant) twice")}
    for i, (source, (question, reason)) in enumerate(cases.items()):
        (tmp_path / str(i)).mkdir()
        folder, _ = folder_of(tmp_path / str(i), source, stops=["<|stop|>"])
        (ours,) = probe(folder, [[question, ["assistant", "red"]]])
        assert reason in ours.get("error", ""), (source, ours)


def test_answers_that_a_normaliser_changes(tmp_path):
    """The tab of the answer becomes spaces, each of which is a token."""
    source = templates.SHAPES["no_prompt"][0]
    folder, _ = folder_of(tmp_path, source)
    data = json.loads((folder / "tokenizer.json").read_text())
    data["normalizer"] = {"type": "Replace", "pattern": {"String": "\t"}, "content": "  "}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for answer in ["\tx", "\t", "x\ty", "x\t"]:
        turns = [["user", "a"], ["assistant", answer]]
        (ours,) = probe(folder, [turns])
        assert (ours["tokens"], ours["targets"]) == expected(tokenizer, source, [{"role": role, "content": text} for role, text in turns]), answer


def test_conversations_that_begin_with_the_assistant_say_so(tmp_path):
    source = ("{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
              "{{ m.content }}</s>{% endfor %}")
    folder, _ = folder_of(tmp_path, source)
    turns = [["assistant", "Hello."], ["user", "Hi."], ["assistant", "Yes."]]
    (template,) = probe(folder, [turns])
    assert "roles must alternate" in template["error"] and "begins with the assistant" in template["error"]
    (fixed,) = probe(folder, [turns], format="mistral")
    assert "begins with the assistant" in fixed["error"]
