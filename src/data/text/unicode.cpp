#include "data/text/unicode.h"

#ifdef BRAID_HAS_ICU
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uniset.h>
#endif

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

// Takes what stands before the next separator from a text, and the separator.
std::string_view take(std::string_view& text, std::string_view separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + separator.size(), text.size()));
  return part;
}
std::string_view take_word(std::string_view& line) { return take(line, " "); }

std::vector<std::uint32_t> numbers_of(std::string_view words) {
  std::vector<std::uint32_t> numbers;
  while (!words.empty())
    numbers.push_back(static_cast<std::uint32_t>(std::stoul(std::string(take_word(words)), nullptr, 16)));
  return numbers;
}

struct Run {
  std::uint32_t first, last, step, to;
};

struct Tables {
  std::map<std::string_view, std::string_view> sets;
  std::vector<Run> lower;
  std::map<std::uint32_t, std::uint32_t> folded;
  std::vector<CaseSequence> sequences;

  explicit Tables(std::string_view text) {
    while (!text.empty()) {
      std::string_view line = take(text, "\n");
      const std::string_view kind = take_word(line);
      while (kind != "#" && !line.empty()) add(kind, take(line, ", "));
    }
    for (CaseSequence& sequence : sequences)
      for (std::uint32_t& code : sequence.codes)
        if (const auto found = folded.find(code); found != folded.end()) code = found->second;
    std::stable_sort(sequences.begin(), sequences.end(),
                     [](const auto& a, const auto& b) { return a.codes.size() < b.codes.size(); });
  }

  void add(std::string_view kind, std::string_view entry) {
    std::string_view keys = take(entry, ": ");
    const std::string_view values = entry;
    if (kind == "set") {
      while (!keys.empty()) sets.emplace(take_word(keys), values);
    } else if (kind == "folds") {
      sequences.push_back({numbers_of(keys), CodeSet::of(numbers_of(values))});
    } else {
      const std::vector<std::uint32_t> run = numbers_of(keys);
      const std::uint32_t to = numbers_of(values).at(0);
      if (kind == "lower") lower.push_back({run.at(0), run.at(1), run.at(2), to});
      if (kind == "fold")
        for (std::uint32_t code = run.at(0); code <= run.at(1); code += run.at(2)) folded[code] = to + code - run[0];
    }
  }
};

const Tables& tables() {
  static const Tables tables(kUnicodeTablesTxt);
  return tables;
}

using Characters = std::array<std::uint32_t, 256>;

constexpr Characters kCharacters = [] {
  Characters characters{};
  std::uint32_t next = 0x100;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}();

// Code points by their membership in two sets.
CodeSet combined(const CodeSet& a, const CodeSet& b, const auto& is_member) {
  std::vector<std::uint32_t> borders, changes;
  std::ranges::set_union(a.changes(), b.changes(), std::back_inserter(borders));
  for (const std::uint32_t code : borders)
    if (is_member(a.contains(code), b.contains(code)) != (changes.size() % 2 == 1)) changes.push_back(code);
  return CodeSet(std::move(changes));
}

// The byte of each character below U+0144; -1: none.
constexpr std::array<int, 0x144> kBytes = [] {
  std::array<int, 0x144> bytes{};
  for (int& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = byte;
  return bytes;
}();

}  // namespace

CodeSet CodeSet::of(std::vector<std::uint32_t> codes) {
  std::sort(codes.begin(), codes.end());
  codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  std::vector<std::uint32_t> changes;
  for (const std::uint32_t code : codes) {
    if (changes.empty() || changes.back() != code)
      changes.push_back(code);
    else
      changes.pop_back();  // it continues the range before
    changes.push_back(code + 1);
  }
  return CodeSet(std::move(changes));
}

CodeSet CodeSet::operator|(const CodeSet& other) const { return combined(*this, other, std::logical_or<bool>()); }
CodeSet CodeSet::operator&(const CodeSet& other) const { return combined(*this, other, std::logical_and<bool>()); }
CodeSet CodeSet::operator^(const CodeSet& other) const { return combined(*this, other, std::not_equal_to<bool>()); }

std::optional<CodeSet> unicode_set(std::string_view name) {
  const auto found = tables().sets.find(name);
  if (found == tables().sets.end()) return std::nullopt;
  std::string_view words = found->second;
  CodeSet base;
  if (words.starts_with('^')) base = *unicode_set(take_word(words).substr(1));
  std::vector<std::uint32_t> changes = numbers_of(words);
  for (std::size_t i = 1; i < changes.size(); ++i) changes[i] += changes[i - 1];
  return base ^ CodeSet(std::move(changes));
}

std::uint32_t lower_case(std::uint32_t code) {
  if (code < 0x80) return code >= 'A' && code <= 'Z' ? code + ('a' - 'A') : code;
  const std::vector<Run>& runs = tables().lower;
  const auto after =
      std::upper_bound(runs.begin(), runs.end(), code, [](auto c, const Run& run) { return c < run.first; });
  if (after == runs.begin()) return code;
  const Run& run = after[-1];
  return code <= run.last && (code - run.first) % run.step == 0 ? run.to + code - run.first : code;
}

std::uint32_t fold_case(std::uint32_t code) { return value_in(tables().folded, code).value_or(code); }

CodeSet with_other_case(const CodeSet& set) {
  std::vector<std::uint32_t> same;
  for (const auto& [code, to] : tables().folded)
    if (set.contains(code)) same.push_back(to);
  const CodeSet all = set | CodeSet::of(same);
  for (const auto& [code, to] : tables().folded)
    if (all.contains(to)) same.push_back(code);
  return all | CodeSet::of(std::move(same));
}

void refuse_without(const std::string& library, const std::string& user, const std::string& where,
                    const std::string& package) {
  throw ConfigError({fmt::format("{} needs {}, which this build lacks", user, library), where,
                     fmt::format("install {} and build again", package)});
}

const std::vector<CaseSequence>& case_sequences() { return tables().sequences; }

// The characters with the property White_Space, which has been the same since Unicode 6.3.
bool is_white_space(std::uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

std::string_view without_white_space(std::string_view text, bool left, bool right) {
  return without_ends(text, left, right,
                      [](std::string_view character) { return is_white_space(*take_character(character)); });
}

bool is_word_character(std::uint32_t code) {
  static const CodeSet words = *unicode_set("@rustword");
  return words.contains(code);
}

void append_lowercase(std::string& out, std::uint32_t code) {
  if (code == 0x130)  // the only character whose lower case is two characters
    out += "i\u0307";
  else
    append_utf8(out, lower_case(code));
}

void append_byte_level(std::string& out, std::string_view bytes) {
  for (const char byte : bytes) append_utf8(out, kCharacters[static_cast<unsigned char>(byte)]);
}

bool append_byte_level_bytes(std::string& out, std::string_view text) {
  const std::size_t before = out.size();
  while (!text.empty()) {
    const auto code = take_character(text);
    if (!code || *code >= kBytes.size() || kBytes[*code] < 0) {
      out.resize(before);
      return false;
    }
    out += static_cast<char>(kBytes[*code]);
  }
  return true;
}

#ifdef BRAID_HAS_ICU
namespace {

void check(UErrorCode status) {
  if (U_FAILURE(status))
    throw ConfigError({fmt::format("ICU has no normalisation data ({})", u_errorName(status)), "", "reinstall libicu"});
}

// Normal forms of characters do not change once Unicode has them, so this is the same with every later version of ICU.
const icu::UnicodeSet& known_characters() {
  static const icu::UnicodeSet known = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet characters(icu::UnicodeString(u"[:Age=9.0:]"), status);
    check(status);
    characters.freeze();
    return characters;
  }();
  return known;
}

const icu::Normalizer2& normalizer_of(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = form == NormalForm::NFC    ? icu::Normalizer2::getNFCInstance(status)
                                       : form == NormalForm::NFD  ? icu::Normalizer2::getNFDInstance(status)
                                       : form == NormalForm::NFKC ? icu::Normalizer2::getNFKCInstance(status)
                                                                  : icu::Normalizer2::getNFKDInstance(status);
  check(status);
  return *normalizer;
}

}  // namespace

void require_normal_forms(const std::string&) {}

std::string normal_form(std::string_view text, NormalForm form) {
  if (std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return std::string(text);
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw DataError(fmt::format("a text of {} bytes is too long to normalise; split it", text.size()));
  const icu::Normalizer2& normalizer = normalizer_of(form);
  const icu::StringPiece piece(text.data(), static_cast<std::int32_t>(text.size()));
  UErrorCode status = U_ZERO_ERROR;
  if (normalizer.isNormalizedUTF8(piece, status) && U_SUCCESS(status)) return std::string(text);
  std::string result;
  icu::StringByteSink<std::string> sink(&result);
  status = U_ZERO_ERROR;
  icu::FilteredNormalizer2(normalizer, known_characters()).normalizeUTF8(0, piece, sink, nullptr, status);
  if (U_FAILURE(status)) throw DataError(fmt::format("ICU cannot normalise a text: {}", u_errorName(status)));
  return result;
}
#else
void require_normal_forms(const std::string& needed_by) { refuse_without("ICU", needed_by, "tokenizer", "libicu-dev"); }
std::string normal_form(std::string_view, NormalForm) {
  refuse_without("ICU", "a normal form", "tokenizer", "libicu-dev");
}
#endif

}  // namespace braid
