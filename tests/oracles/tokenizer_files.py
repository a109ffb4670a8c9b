"""Small tokenizers for the tests, trained here once, and generated texts that are hard to tokenize."""
import functools
import json
import random
import string

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES)

WORDS = ("the of and to in is it's they're I'LL don't we've HelloWorld camelCase snake_case XMLHttpRequest naïve café "
         "Straße ΑΒΓ αβγς Привет мир שלום مرحبا नमस्ते สวัสดี 你好世界 こんにちは カタカナ 안녕하세요 e\u0301 ñ n\u0303 ﬁ ½ Ⅷ ١٢٣ "
         "123 4567 3.14159 1e-9 0xdeadbeef x=1; if(a&&b){ return; } </div> http://a.b/c?d=e#f foo@bar.com").split(" ")
EMOJI = "😀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ❤️ 1️⃣ 🧑🏿‍🚀".split(" ")
SPACE = [" ", "  ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u2028", "\v", "\f", "\x85",
         "\u200b", "\u180e", "\ufeff", "\u202f", "\r"]
CODE = ["def f(x):\n    return x**2  # comment\n", "for (int i = 0; i < n; ++i) {\n\ta[i] += b[i];\n}\n",
        "SELECT * FROM t WHERE a='b';", "\\frac{a}{b}^2_{i,j}", "```python\nprint('hi')\n```", "{\"a\": [1, 2.5, null]}"]
MARKS = ["\u0301", "\u0308", "\u20dd", "\u093f", "\u0e31", "\ufe0f", "\u200d", "\u034f"]
ADDED = ["<|im_start|>", "<|im_end|>", "<image>", "<image><image>", "<s>", "</s>", "[WORD]", "<left>", "<right>", "Norm"]


@functools.cache
def corpus():
    """The same text every time, with every kind of character in it."""
    rng = random.Random(1)
    common = [word for i, word in enumerate(WORDS) for _ in range(1 + 200 // (i + 1))]
    syllables = [a + b for a in ("b", "ch", "d", "gr", "k", "l", "m", "n", "p", "st", "tr", "v") for b in "aeiou"]
    common += ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(1500)] * 2
    lines = [" ".join(rng.choice(common) for _ in range(12)) for _ in range(2000)]
    return lines + CODE * 20 + [" ".join(EMOJI)] * 20 + [string.printable] * 5


def random_characters(rng):
    blocks = [(0x20, 0x7e), (0, 0x1f), (0x80, 0x24f), (0x370, 0x5ff), (0x900, 0x97f), (0x3040, 0x30ff), (0x4e00, 0x4fff),
              (0xac00, 0xad00), (0x1f300, 0x1f64f), (0x2000, 0x206f), (0x1e00, 0x1eff), (0xfb00, 0xfb06)]
    low, high = rng.choice(blocks)
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8)))


def part(rng):
    """A piece of text, as bytes; it may be invalid UTF-8."""
    kind = rng.randrange(14)
    if kind < 4:
        word = rng.choice(WORDS)
        text = rng.choice([word, word.upper(), word.title(), word.swapcase()])
    elif kind < 7:
        text = rng.choice(SPACE) * rng.choice([1, 1, 1, 2, 3])
    elif kind == 7:
        text = rng.choice(EMOJI)
    elif kind == 8:
        text = rng.choice(ADDED)
    elif kind == 9:
        text = "'" + rng.choice("s S t T re RE ve vE m M ll LL d D ſ K".split(" "))
    elif kind == 10:
        text = rng.choice("aé你") + rng.choice(MARKS) * rng.randint(1, 3)
    elif kind == 11:
        text = random_characters(rng)
    elif kind == 12:
        text = rng.choice(CODE)[: rng.randint(1, 40)]
    else:
        return bytes(rng.randrange(128, 256) for _ in range(rng.randint(1, 4)))
    return text.encode()


def hard_texts(seed, count):
    rng = random.Random(seed)
    texts = []
    for i in range(count):
        if i % 100 == 0:  # very long runs
            unit = rng.choice(["a", " ", "\n", "ab", "你", "😀", "0", "!", "\u0301", " a", "\t\n", "<s>"])
            data = (unit * rng.randint(100, 2000)).encode()
        else:
            data = b"".join(part(rng) for _ in range(rng.randint(0, 12)))
        texts.append(data.decode("utf-8", errors="replace"))
    return texts


def added_tokens():
    plain = [AddedToken(token, special=True, normalized=False) for token in ADDED[:6]]
    return plain + [
        AddedToken("[WORD]", single_word=True, normalized=False),
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("Norm", normalized=True),
    ]


def train(tokenizer, vocab_size=2500, byte_level=True, **options):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [], **options)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(added_tokens())
    return tokenizer


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), ])


def byte_level_tokenizer(pre_tokenizer, normalizer=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(tokenizer)


@functools.cache
def gpt2():
    return byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))


def gpt2_prefix_space():
    return byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=True))


@functools.cache
def llama3():
    tokenizer = byte_level_tokenizer(split_then_bytes(LLAMA3), ignore_merges=True)
    frame = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[
        (token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), frame])
    return tokenizer


def llama3_with(special_tokens):
    tokenizer = Tokenizer.from_str(llama3().to_str())
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


def tekken():
    return byte_level_tokenizer(split_then_bytes(TEKKEN))


def qwen2():
    return byte_level_tokenizer(split_then_bytes(QWEN2), normalizers.NFC())


@functools.cache
def llama2():
    """Sentencepiece's conventions in a tokenizer.json: no pre-tokenizer, bytes for unknown characters."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    # The whole text is one word, so merges are learned from words.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    train(tokenizer, byte_level=False, special_tokens=["<unk>"] + bytes_, limit_alphabet=120)
    state = json.loads(tokenizer.to_str())
    state["pre_tokenizer"] = None
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in bytes_]
    return Tokenizer.from_str(json.dumps(state))


def classes():
    """The other pre-tokenizers and normalizers."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip(),
         normalizers.Replace(Regex(r"\d{4,}"), "#")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.Punctuation(behavior="merged_with_previous")])
    return train(tokenizer, byte_level=False, special_tokens=["<unk>"], continuing_subword_prefix="##",
                 end_of_word_suffix="</w>", limit_alphabet=100)


def metaspace(scheme):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme=scheme), pre_tokenizers.Digits(individual_digits=False)])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return train(tokenizer, byte_level=False, special_tokens=["<unk>"], limit_alphabet=100)


def split_with(behavior, invert):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"[aeiou]+|\s"), behavior=behavior, invert=invert), pre_tokenizers.Split("-", "removed"),
         pre_tokenizers.WhitespaceSplit()])
    return train(tokenizer, vocab_size=600, byte_level=False, special_tokens=["<unk>"], limit_alphabet=100)


TOKENIZERS = {"gpt2": gpt2, "gpt2-prefix-space": gpt2_prefix_space, "llama3": llama3, "tekken": tekken, "qwen2": qwen2,
              "llama2": llama2, "classes": classes}
for scheme in ("always", "first", "never"):
    TOKENIZERS[f"metaspace-{scheme}"] = lambda scheme=scheme: metaspace(scheme)
for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
    for invert in (False, True):
        TOKENIZERS[f"split-{behavior}-{invert}"] = lambda b=behavior, i=invert: split_with(b, i)
