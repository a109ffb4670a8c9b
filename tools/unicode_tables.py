"""Writes src/data/text/unicode_tables.txt: the Unicode data of Hugging Face's `tokenizers`, asked of the library itself.

A tokenizer is trained with that library's tables, so the same tokens need the same tables, whatever Unicode version the
libraries of a machine have. Its parts use different versions: Oniguruma for patterns, Rust's standard library for
Lowercase and Digits, older crates for Punctuation and accents. The package `regex` supplies only the names of
properties to ask for. tests/oracles/unicode_test.py compares the result with the library.

    python tools/unicode_tables.py > src/data/text/unicode_tables.txt
"""
import re

import regex._regex_core
from tokenizers import NormalizedString, Regex, normalizers, pre_tokenizers

ALL = "".join(chr(code) for code in range(0x110000) if not 0xd800 <= code < 0xe000)
NORMALIZED = NormalizedString(ALL)

HEADER = """\
# Unicode data of Hugging Face's tokenizers {version}, written by tools/unicode_tables.py. All numbers are hexadecimal.
# A line has entries of one kind, with commas between them.
# set NAME...: [^OTHER] N...  a set of code points, as distances between the points where membership changes; ^OTHER: it
#                             is the symmetric difference with that set. Names with @ are sets that are no property.
# fold FIRST LAST STEP: CODE  every STEP-th character from FIRST to LAST is, without case, the same as another, which is
#                             CODE for the first
# folds CODE CODE...: CODE... these characters are, without case, the same as a sequence
# lower FIRST LAST STEP: CODE every STEP-th character from FIRST to LAST has a lower case, which is CODE for the first
"""


def accepts(pattern):
    try:
        Regex(pattern)
        return True
    except Exception:
        return False


def property_names():
    names = set()
    for name, (_, values) in regex._regex_core.PROPERTIES.items():
        names |= {name, *values, *("in" + value for value in values)}
    names = {re.sub("[ _-]", "", name).lower() for name in names}
    return sorted(name for name in names if accepts(rf"\p{{{name}}}"))


def changes_of(runs, first_is_member):
    """The code points at which membership changes, for runs of members and others in turn."""
    starts = [ord(run[0]) for run in runs]
    return tuple(starts if first_is_member else starts[1:])


def set_of(pattern):
    runs = [str(run) for run in NORMALIZED.split(Regex(f"{pattern}+"), "isolated")]
    return changes_of(runs, not NormalizedString(ALL[0]).split(Regex(pattern), "removed"))


def set_where(members):
    changes, before = [], False
    for character in ALL:
        if (character in members) != before:
            before = not before
            changes.append(ord(character))
    return tuple(changes)


def sets():
    """The changes of each set, by name. Outside brackets, Oniguruma's \\w has more members than inside."""
    found = {name: set_of(rf"[\p{{{name}}}]") for name in property_names()}
    found["@word"] = set_of(r"\w")
    found["@number"] = changes_of([run for run, _ in pre_tokenizers.Digits().pre_tokenize_str(ALL)], False)
    punctuation = pre_tokenizers.Punctuation("contiguous").pre_tokenize_str(ALL)
    found["@punctuation"] = changes_of([run for run, _ in punctuation], False)
    found["@mark"] = set_where(set(ALL) - set(normalizers.StripAccents().normalize_str(ALL)))
    words = pre_tokenizers.Whitespace().pre_tokenize_str("".join(f"a{character} " for character in ALL))
    found["@rustword"] = set_where({word[1] for word, _ in words if len(word) == 2} | {"a"})
    return found


def set_lines(found):
    """Each set relative to the one that makes its entry short: a minimal spanning tree. Single ranges share a line."""
    names = {}
    for name, changes in found.items():
        names.setdefault(changes, []).append(name)
    left = {changes: (len(changes), None) for changes in names}
    lines, ranges = [], []
    while left:
        changes = min(left, key=lambda each: left[each][0])
        _, base = left.pop(changes)
        points = sorted(set(changes) ^ set(base or ()))
        distances = [f"{b - a:x}" for a, b in zip([0] + points, points)]
        relative = [f"^{names[base][0]}"] if base else []
        is_range = len(points) == 2 and not base
        (ranges if is_range else lines).append(" ".join(names[changes]) + ": " + " ".join(relative + distances))
        members = set(changes)
        for other in left:
            size = len(members ^ set(other)) + 2
            if size < left[other][0]:
                left[other] = (size, changes)
    return [f"set {line}" for line in [*sorted(lines), ", ".join(sorted(ranges))]]


def fold_lines(found):
    """What a pattern of one cased character matches: other characters, and sequences of characters."""
    cased = sorted({c for name in ("changeswhencasemapped", "changeswhencasefolded") for c in members_of(found[name])})
    text = NormalizedString("\0".join(cased))  # no two of them are a sequence
    pairs, sequences = [], {}
    for character in cased:
        pattern = Regex(rf"(?i:\x{{{ord(character):x}}})")
        matches = set(cased) - {c for part in text.split(pattern, "removed") for c in str(part)}
        if character != min(matches):
            pairs.append((ord(character), ord(min(matches))))
        sequence = character.casefold()
        if len(sequence) > 1 and not NormalizedString(sequence).split(pattern, "removed"):
            sequences.setdefault(sequence, []).append(character)
    codes = lambda characters: " ".join(f"{ord(c):x}" for c in characters)
    folds = ", ".join(f"{codes(key)}: {codes(group)}" for key, group in sorted(sequences.items()))
    return [run_line("fold", pairs), f"folds {folds}"]


def members_of(changes):
    ends = list(changes[1:]) + [0x110000]
    return [chr(c) for a, b in list(zip(changes, ends))[::2] for c in range(a, b) if not 0xd800 <= c < 0xe000]


def run_line(kind, pairs):
    """Runs of pairs of the same distance."""
    runs = []
    for code, to in pairs:
        if runs:
            first, last, step, lowest = runs[-1]
            if to - code == lowest - first and code - last == (step or code - last) <= 2:
                runs[-1] = (first, code, code - last, lowest)
                continue
        runs.append((code, code, 0, to))
    return f"{kind} " + ", ".join(f"{first:x} {last:x} {step or 1:x}: {to:x}" for first, last, step, to in runs)


def lower_line():
    """U+0130, whose lower case is two characters, is not in the table."""
    lower = normalizers.Lowercase().normalize_str(ALL).replace("i\u0307", "\u0130")
    assert len(lower) == len(ALL)
    return run_line("lower", [(ord(a), ord(b)) for a, b in zip(ALL, lower) if a != b])


def main():
    import tokenizers
    found = sets()
    print(HEADER.format(version=tokenizers.__version__), end="")
    print("\n".join([*set_lines(found), *fold_lines(found), lower_line()]))


if __name__ == "__main__":
    main()
