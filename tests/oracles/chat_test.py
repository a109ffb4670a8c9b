"""Braid's chat templates and chat formats against transformers, live.

Templates must render to the same text as transformers' apply_chat_template. For the formats, transformers renders a
template with generation tags around the answers and their ends, and the tokenizer's offsets make targets of them.

    BRAID_CHAT_PROBE=build/chat_probe python -m pytest tests/oracles/chat_test.py
"""
import itertools
import json
import os
import random

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

import chat_templates as templates
import tokenizer_files as files
from programs import run_program

SPECIAL = ["<unk>", "<pad>", "<|begin|>", "<|end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>",
           "<|finetune_right_pad_id|>", "[INST]", "[/INST]", "<img>", "</img>", "<Image>", "</Image>"]
SPECIAL += [f"<SPECIAL_{i}>" for i in (10, 11, 12, 14, 15, 233)]
ROLES = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "does", "parameters": {
    "type": "object", "properties": {"x": {"type": "string", "enum": ["a", "b"]}, "y": {"description": "é"}}}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": "a", "n": [1]}}}]}


def probe(requests):
    text = "".join(json.dumps(request) + "\n" for request in requests)
    run = run_program([os.environ["BRAID_CHAT_PROBE"]], input=text)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def conversations(seed, count):
    rng = random.Random(seed)
    words = ["Hello", "<image>\nWhat?", " spaced ", "/think", "/no_think", "line\nline", "你好 😀", "a" * 30, "<think>\nhm\n</think>\n\nyes", "x"]
    for _ in range(count):
        turns = [("system", " ".join(rng.choices(words, k=2)))] if rng.random() < 0.5 else []
        for _ in range(rng.randint(1, 4)):
            answer = rng.choice([word for word in words if "image" not in word])
            turns += [("user", " ".join(rng.choices(words, k=rng.randint(1, 3)))), ("assistant", answer)]
        yield turns


def expected_text(source, variables):
    return _compile_jinja_template(source).render(**variables)


@pytest.mark.parametrize("name", list(templates.PUBLISHED))
def test_published_templates(name):
    cases = []
    for i, turns in enumerate(conversations(name, 60)):
        messages = [{"role": role, "content": text} for role, text in turns]
        if name in ("qwen", "llama3") and i % 3 == 0:
            messages += [CALL, {"role": "tool", "content": "42"}]
        cases.append({"messages": messages, "tools": TOOLS if i % 2 else None, "documents": None,
                      "add_generation_prompt": i % 4 < 2, **ROLES})
    source = templates.PUBLISHED[name]
    answers = probe([{"template": source, "variables": case} for case in cases])
    for case, answer in zip(cases, answers, strict=True):
        assert answer.get("text", answer) == expected_text(source, case), case


def test_features_of_jinja():
    assert len(templates.SNIPPETS) > 35
    answers = probe([{"template": snippet, "variables": templates.VALUES} for snippet in templates.SNIPPETS])
    for snippet, answer in zip(templates.SNIPPETS, answers, strict=True):
        assert answer.get("text", answer) == expected_text(snippet, templates.VALUES), snippet


def test_white_space_between_tags():
    """Every combination of tags, marks and spaces around them."""
    rng = random.Random(5)
    parts = ["{% if true %}", "{%- if true %}", "{% if true -%}", "{%+ if true +%}"]
    ends = ["{% endif %}", "{%- endif %}", "{% endif -%}", "{%- endif -%}", "{%+ endif %}"]
    other = ["{{ 'v' }}", "{{- 'v' }}", "{{ 'v' -}}", "{# c #}", "{#- c -#}", "text"]
    spaces = ["", " ", "\n", "  \n  ", "\n\n", "\t", "\r\n"]
    sources = []
    for begin, end in itertools.product(parts, ends):
        for _ in range(12):
            middle = "".join(rng.choice(spaces) + rng.choice(other) for _ in range(rng.randint(0, 3)))
            pick = [rng.choice(spaces) for _ in range(4)]
            sources.append(f"a{pick[0]}{begin}{pick[1]}{middle}{pick[2]}{end}{pick[3]}b\n")
    answers = probe([{"template": source, "variables": {}} for source in sources])
    for source, answer in zip(sources, answers, strict=True):
        assert answer.get("text", answer) == expected_text(source, {}), repr(source)


def test_both_refuse():
    answers = probe([{"template": source, "variables": templates.VALUES} for source in templates.REFUSED])
    for source, answer in zip(templates.REFUSED, answers, strict=True):
        with pytest.raises(Exception):
            expected_text(source, templates.VALUES)
        assert "line 1" in answer.get("error", ""), (source, answer)


def test_hostile_templates_end_with_an_error():
    sources = ["{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
               "{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
               "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
               "{{ 1" + " + 1" * 50000 + " }}", "{% if 1 %}" * 5000, "{{ 'x' * 99999999999 }}", "{{ range(9999999999) | length }}",
               "{% set n = namespace() %}{% set n.n = n %}{{ n | tojson }}", "{{ x" + ".a" * 50000 + " }}", "{{ " + "not " * 50000 + "1 }}",
               "{% set n = namespace(l=[]) %}{% for i in range(40) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}"]
    for source, answer in zip(sources, probe([{"template": source, "variables": {}} for source in sources]), strict=True):
        assert "line 1" in answer.get("error", ""), source[:60]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """A tokenizer folder for each template, and transformers' view of it."""
    made = {}
    tokenizer = files.llama3_with(SPECIAL)
    for name in ("chatml", "llama3"):
        folder = tmp_path_factory.mktemp(name)
        tokenizer.save(str(folder / "tokenizer.json"))
        source = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "") if name == "chatml" else (
            "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] "
            "+ '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
            "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}")
        if name == "llama3":  # a BOS for every turn that is rendered alone
            source = source.replace("loop.index0 == 0", "loop.first")
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": source, **ROLES}))
        made[name] = folder, PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=source, **ROLES)
    return made


def chat(role, before, after):
    said = "{{ text }}{{ '" + after + "' }}"
    if role == "assistant":
        said = "{% generation %}" + said + "{% endgeneration %}"
    return "{%- if message.role == '" + role + "' %}{{ '" + before + "' }}" + said + "{%- endif %}"


def template_of(bos, text, **frames):
    """A template that writes each role's text between two others."""
    turns = "".join(chat(role, before.replace("\n", "\\n"), after.replace("\n", "\\n")) for role, (before, after) in frames.items())
    start = "{{ bos_token }}" if bos else ""
    return start + "{%- for message in messages %}{%- set text = " + text + " %}" + turns + "{%- endfor %}"


def same(before, after):
    return {role: (before.replace("ROLE", role).replace("Role", role.capitalize()), after) for role in ("system", "user", "assistant")}


PLAIN, TRIMMED = "message.content", "message.content.strip()"
SWITCHES = "(message.content if message.role == 'assistant' else message.content.replace('/think', '').replace('/no_think', '')).strip()"
CHATML = template_of(False, PLAIN, **same("<|im_start|>ROLE\n", "<|im_end|>\n"))
HEADERS = template_of(True, TRIMMED, **same("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>"))
FORMATS = {  # templates; without tags, every token is a target
    "nemotron5": template_of(True, PLAIN, **same("<SPECIAL_14>ROLE\n", "<SPECIAL_15>\n")),
    "nemotron5-aligned": template_of(True, PLAIN, **same("Role\n", "\n[PREFIX]")),
    "nemotron-h-aligned": (template_of(False, TRIMMED, system=("<SPECIAL_10>System\n", "\n"),
                                       user=("<SPECIAL_11>User\n", "\n<SPECIAL_11>Assistant\n"), assistant=("", "\n"))),
    "nemotron-nano-v2": (template_of(False, SWITCHES, system=("<SPECIAL_10>System\n", "\n"), user=("<SPECIAL_11>User\n", "\n"),
                                     assistant=("<SPECIAL_11>Assistant\n", "\n<SPECIAL_12>\n"))),
    "chatml": CHATML,
    "qwen2p0": CHATML,
    "qwen2p5": CHATML,
    "nvlm-yi-34b": "{{ bos_token }}" + CHATML,
    "llama3": HEADERS,
    "llama3p1": HEADERS,
    "llama3p2": HEADERS,
    "mistral": template_of(True, PLAIN, user=("[INST] ", "[/INST]"), assistant=(" ", "<|end|>")),
    "identity": template_of(False, PLAIN, **same("", "")),
    "default": CHATML,
}
TAGS = {"": "<image>", "nvlm": "<Image><image></Image>", "internvl": "<img><image></img>"}


def oracle_tokens(tokenizer, format_name, turns):
    """Targets are the tokens with text of an answer, and the whole tokens of its end."""
    if format_name == "mistral" and turns[0][0] == "system":
        turns = turns[1:]
    messages = [{"role": role, "content": text} for role, text in turns]
    texts, spans = render_jinja_template([messages], chat_template=FORMATS[format_name], return_assistant_tokens_mask=True, **ROLES)
    encoded = tokenizer(texts[0], add_special_tokens=False, return_offsets_mapping=True)
    tokens = encoded["input_ids"]
    if format_name in ("identity", "default"):
        return tokens, tokens
    learned = [any(begin < stop and start < end for start, stop in spans[0]) for begin, end in encoded["offset_mapping"]]
    return tokens, [id if is_said else -100 for id, is_said in zip(tokens, learned, strict=True)]


@pytest.mark.parametrize("name", list(FORMATS))
def test_formats(name, tokenizers):
    folder, tokenizer = tokenizers["llama3" if name == "llama3" else "chatml"]
    assert len(tokenizer.tokenize("assistant")) > 1, "masks must not depend on the number of tokens of a role"
    requests, expected = [], []
    for i, turns in enumerate(conversations(name, 40)):
        tags = list(TAGS)[i % 3]
        tagged = [(role, text.replace("<image>", TAGS[tags])) for role, text in turns]
        requests.append({"tokenizer": str(folder), "format": name, "tags": tags, "turns": turns})
        expected.append(oracle_tokens(tokenizer, name, tagged))
    for request, answer, theirs in zip(requests, probe(requests), expected, strict=True):
        assert answer.get("tokens", answer) == theirs[0], request
        assert answer["targets"] == theirs[1], request


def test_refusals_name_the_reason(tokenizers):
    folder, _ = tokenizers["chatml"]
    good = {"tokenizer": str(folder), "format": "chatml", "turns": [["user", "a"], ["assistant", "b"]]}
    cases = [({"format": "chatm"}, "did you mean chatml"), ({"tags": "x"}, "internvl"), ({"turns": [["human", "a"]]}, "'human'"),
             ({"turns": [["user", ""]]}, "turn 1 (user) is empty"), ({"turns": []}, "no turns"),
             ({"turns": [["user", "a"], ["assistant", "<image>"]]}, "turn 2"), ({}, "")]
    for (change, message), answer in zip(cases, probe([{**good, **change} for change, _ in cases]), strict=True):
        assert message in answer.get("error", ""), answer
