"""Classes of characters, case and patterns against `tokenizers`, live, over all code points of the planes that have
characters, and over some of the other planes.

A class is compared as the parts that its runs divide the text of all these into. Scripts and blocks do not
overlap, so a few unions tell all of them apart: the n-th union has the sets whose number has bit n.

    BRAID_PATTERN_PROBE=build/pattern_probe python -m pytest tests/oracles/unicode_test.py
"""
import json
import os
import random

import pytest
import regex
import regex._regex_core
from tokenizers import NormalizedString, Regex, normalizers, pre_tokenizers

import tokenizer_files as files
from programs import run_program

SEED = os.environ.get("BRAID_TEXT_SEED", "20260801")
ALL = "".join(chr(code) for code in range(0x110000) if not 0xd800 <= code < 0xe000 and (
    code < 0x34000 or 0xe0000 <= code < 0xe1000 or code % 251 == 0 or code & 0xffff >= 0xfffe))
ALL_BYTES = ALL.encode()
ALL_NORMALIZED = NormalizedString(ALL)
POSIX = "alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit".split()


def probe(requests):
    text = "".join(json.dumps(request) + "\n" for request in requests)
    run = run_program([os.environ["BRAID_PATTERN_PROBE"]], input=text)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def split(pattern, behavior="Isolated"):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def parts(data, borders):
    return [data[begin:end].decode() for begin, end in zip(borders[::2], borders[1::2])]


def compare_classes(classes):
    """Classes that both accept have the same members; both refuse the others."""
    answers = probe({"pre_tokenizer": split(f"{each}+", "Removed")} for each in classes)
    for each, answer in zip(classes, answers, strict=True):
        try:
            others = [str(part) for part in ALL_NORMALIZED.split(Regex(f"{each}+"), "removed")]
        except Exception:
            assert "error" in answer, each
            continue
        assert "error" not in answer, (each, answer)
        if (ours := parts(ALL_BYTES, answer["pieces"][0])) != others:
            differ = set("".join(ours)) ^ set("".join(others))
            pytest.fail(f"{each} differs for {len(differ)}: {sorted(f'{ord(c):x}' for c in differ)[:20]}")


def names_of(kind, prefix=""):
    """The names of each value of a property that Oniguruma knows."""
    values = {}
    for name, value in regex._regex_core.PROPERTIES[kind][1].items():
        if accepted(rf"\p{{{prefix}{name}}}"):
            values.setdefault(value, []).append(prefix + name.replace("_", ""))
    return list(values.values())


def accepted(pattern):
    try:
        return bool(Regex(pattern))
    except Exception:
        return False


def unions(values):
    rng = random.Random(SEED)
    for bit in range(len(values).bit_length()):
        chosen = [rng.choice(names) for number, names in enumerate(values, 1) if number >> bit & 1]
        yield "[" + "".join(rf"\p{{{name}}}" for name in chosen) + "]"


def test_scripts_blocks_and_categories():
    scripts, blocks = names_of("SCRIPT"), names_of("BLOCK", "IN")
    categories = [names for names in names_of("GENERALCATEGORY")]
    assert len(scripts) > 160 and len(blocks) > 300 and len(categories) > 35
    compare_classes([*unions(scripts), *unions(blocks), *(rf"\p{{{names[0]}}}" for names in categories)])


def test_other_properties():
    others = {number: name for name, (number, _) in regex._regex_core.PROPERTIES.items() if accepted(rf"\p{{{name}}}")}
    assert len(others) > 60
    compare_classes([rf"\p{{{name}}}" for name in others.values()])


def test_every_name():
    """Names as users write them, on a text in which every set has members and others."""
    rng = random.Random(SEED)
    sample = "".join(sorted(rng.sample(ALL, 300))) + ALL[:0x3000:7] + ALL[0x3000:0x12000:41] + ALL[0x1d000:0x20000:41]
    names = {name for names in names_of("SCRIPT") + names_of("BLOCK", "IN") + names_of("GENERALCATEGORY") for name in names}
    names |= {name for name, (_, values) in regex._regex_core.PROPERTIES.items()}
    names |= {value for _, values in regex._regex_core.PROPERTIES.values() for value in values}
    names |= {"Script=Han", "sc=Han", "IsHan", "gc=L", "Foo", "", "@word", "L1", "Han}", "^Han", "^^Han", "Ｌ"}
    names = [rng.choice([name.title(), name.lower(), name.replace("_", " "), name]) for name in sorted(names)]
    compare_patterns([rf"\p{{{name}}}+" for name in names], [sample], may_refuse=False)


def test_escapes_brackets_and_negations():
    classes = [rf"\{c}" for c in "dDsSwWhH"] + [rf"[\{c}]" for c in "dDsSwWhH"] + [rf"[^\{c}]" for c in "dsWh"]
    classes += [f"[[:{name}:]]" for name in POSIX] + [f"[[:^{name}:]]" for name in ("alpha", "word", "punct")]
    classes += [r"\P{L}", r"\p{^L}", r"\P{^L}", r"[^\p{L}]", r"[\P{L}]", r"[^\P{^L}\p{N}]", r"\P{Word}", r"[\p{Word}]",
                r"[^[:alpha:]\d]", r"[\p{L}&&[^\p{Han}]]", r"[\w&&\p{Latin}&&[^a-z]]", r"[^\w&&\W]", r"[\p{M}[^\s]]", "."]
    classes += [f"(?i){c}" for c in (r"\p{Lu}", r"[\p{Lu}]", r"[^\p{Ll}]", "[[:upper:]]", r"[a-z]", r"[^K-S]", r"\w", r"[\W]",
                                      "[\u0390-\u03b0]", "[^\u00df]", r"[\p{Cherokee}&&\p{Lu}]", r"[\p{Lt}]")]
    compare_classes(classes + ["[[:foo:]]", r"[\d-a]", r"[a-\d]", "[z-a]", "[]"])


def compare_patterns(patterns, texts, may_refuse=True):
    """Returns how many patterns Braid supports. Those that Oniguruma refuses are refused."""
    data = [text.encode() for text in texts]
    supported = 0
    answers = probe({"pre_tokenizer": split(pattern), "texts": texts} for pattern in patterns)
    for pattern, answer in zip(patterns, answers, strict=True):
        if not accepted(pattern):
            assert "error" in answer, pattern
            continue
        if may_refuse and "error" in answer:
            continue
        assert "error" not in answer, (pattern, answer)
        supported += 1
        for text, encoded, borders in zip(texts, data, answer["pieces"], strict=True):
            try:
                theirs = [str(part) for part in NormalizedString(text).split(Regex(pattern), "isolated")]
            except BaseException as error:  # Oniguruma stops after ten million steps
                assert "retry-limit" in str(error)
                continue
            assert parts(encoded, borders) == [part for part in theirs if part], (pattern, ascii(text))
    return supported


def test_single_characters_without_case():
    cased = [c for c in ALL if c.lower() != c or c.upper() != c or c.casefold() != c]
    assert len(cased) > 2700
    patterns = ["|".join(f"(?i:{c})" for c in cased[i::200]) for i in range(200)]
    assert compare_patterns(patterns, ["\0".join(cased)]) == len(patterns)


def test_sequences_without_case():
    """The sharp s and "ss", ligatures, and Greek letters with marks: as literals, in classes, repeated, looked behind."""
    keys = {c.casefold(): c for c in ALL if len(c.casefold()) > 1}
    assert len(keys) > 70
    forms = ["(?i:{})", "(?i:[{}])", "(?i:x{}x)", "(?i:{}+)", "(?i:(?:{})+)", "(?i)a|{}", "(?i:[^{}])", "(?-i:{})", "(?i:[{}]x)",
             "(?i:[x{}]+)", "(?i:{}{})"]
    rng = random.Random(SEED)
    for sequence, character in keys.items():
        variants = [sequence, sequence.upper(), sequence.title(), character, character.lower(), character.upper(), "s\u017f"]
        text = "".join(rng.choice(variants + ["x", "a", sequence[0], sequence[-1]]) for _ in range(60))
        patterns = [form.replace("{}", each) for form in forms for each in (sequence, character, sequence.upper())]
        assert compare_patterns(patterns, [text]) == len(patterns)
    compare_patterns([r"(?i)(?<=ss)x", r"(?i)(?<=ß)x", r"(?i:s(?:s))", r"(?i:s{1}s)", r"(?i:s(s))", r"(?i:s)(?i:s)", r"(?i:\x{73}\u0073)",
                      r"(?i:ss(?-i:ss)ss)", r"x(?i)ss|y", r"(?i:affix|straße)", r"(?i:[a-zß]+)"],
                     ["ssx SSx ßx ẞx ſsx aﬃx STRASSE straße Straẞe y Y xSS ßssß SSSSSS"])


def random_pattern(rng, depth=0):
    literals = list("abskSK'.ß-é漢 \n1²、Ω") + [r"\.", r"\u0073", r"\x{212a}", r"\n", r"\-", r"\]"]
    classes = [r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", r"\p{L}", r"\p{Han}", r"\P{N}", r"\p{^Lu}", r"\p{Alphabetic}", r"\h"]

    def bracketed(depth=0):
        items = [rng.choice(literals[:4] + [r"\-", "é", "漢"]), rng.choice(classes), "a-k", "0-9", "[:alpha:]", "[:^punct:]", "-"]
        if depth < 2:
            items += [bracketed(depth + 1), "&&" + bracketed(depth + 1)]
        return "[" + rng.choice(["", "", "^"]) + "".join(rng.choice(items) for _ in range(rng.randint(1, 4))) + "]"

    def piece():
        kind = rng.randrange(10)
        if kind < 4:
            atom = rng.choice(literals)
        elif kind < 6:
            atom = rng.choice(classes + ["."])
        elif kind < 8:
            atom = bracketed()
        elif kind < 9 and depth < 3:
            opening = rng.choice(["(?:", "(", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?m:", "(?i-m:", "(?-i:"])
            atom = opening + random_pattern(rng, depth + 1) + ")"
        else:
            return rng.choice(["^", "$", r"\A", r"\z", r"\Z", "(?i)", r"\b", "(?m)"])
        return atom + rng.choice(["", "", "", "", "?", "*", "+", "+?", "*+", "?+", "{2}", "{1,2}", "{1,}?", "{2}+", "*?", "{,2}", "??"])

    alternatives = ["".join(piece() for _ in range(rng.randint(1, 4))) for _ in range(rng.choice([1, 1, 2, 3]))]
    return "|".join(alternatives)


def test_drawn_patterns():
    rng = random.Random(SEED)
    texts = ["".join(rng.choice("aabbsskkSK\u212a\u017f'.ßẞ-é漢 \n1²、ΩΩω") for _ in range(rng.randint(0, 40))) for _ in range(12)]
    assert compare_patterns([random_pattern(rng) for _ in range(3000)], texts) > 1200


DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
REAL = [GPT2, files.LLAMA3, files.QWEN2, files.TEKKEN, DEEPSEEK, r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", O200K, KIMI,
        r"[^(\s|[.,!?…。，、।۔،])]+", r"\w+|[^\w\s]+"]


def drawn_texts(count):
    """Characters of all planes, assigned or not, among letters, spaces and apostrophes."""
    rng = random.Random(SEED)
    ranges = [(0, 0x2ff), (0, 0x3400), (0x9fe0, 0x20000), (0, 0x110000)]

    def character():
        if rng.random() < 0.4:
            return rng.choice(["a", "S", "'s", "'ſ", "'LL", " ", "\n", "\r\n", "1", "、", "漢", "\u00b2", "\u0301", "\u2003"])
        low, high = rng.choice(ranges)
        code = rng.randrange(low, high)
        return "x" if 0xd800 <= code < 0xe000 else chr(code)
    return ["".join(character() for _ in range(50)) for _ in range(count)]


def test_patterns_of_known_tokenizers():
    assert compare_patterns(REAL, drawn_texts(600) + [ALL[::3], ALL[:0x3000]]) == len(REAL)


@pytest.mark.parametrize("step", [
    pre_tokenizers.Digits(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Whitespace(),
    pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)], ids=lambda step: type(step).__name__)
def test_pre_tokenizers(step):
    kind = json.loads(step.__getstate__())
    if kind["type"] == "ByteLevel":  # its pieces, before they become bytes
        kind, step = split(GPT2), pre_tokenizers.Split(Regex(GPT2), "isolated")
    between = "".join(f"a{c}" for c in ALL[:0x3400])
    for text in (ALL, between):
        [answer] = probe([{"pre_tokenizer": kind, "texts": [text]}])
        assert parts(text.encode(), answer["pieces"][0]) == [part for part, _ in step.pre_tokenize_str(text)]


@pytest.mark.parametrize("step", [
    normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(),
    normalizers.StripAccents(), normalizers.Strip()], ids=lambda step: type(step).__name__)
def test_normalizers(step):
    rng = random.Random(SEED)
    marks = regex.findall(r"\p{M}", ALL)
    texts = ["".join(rng.choice("aeAΩ가" + "".join(rng.sample(marks, 5))) for _ in range(20)) for _ in range(1000)]
    texts += [ALL, "x".join(ALL[:0x3400]), "\u0334".join(marks), "\u0345".join(marks)] + drawn_texts(500)
    [answer] = probe([{"normalizer": json.loads(step.__getstate__()), "texts": texts}])
    assert "error" not in answer
    for text, ours in zip(texts, answer["texts"], strict=True):
        if ours != (theirs := step.normalize_str(text)):
            differ = [(ascii(a), ascii(b)) for a, b in zip(ours, theirs) if a != b][:5]
            pytest.fail(f"{ascii(text)[:300]}: {differ}")
