#include "data/text/unicode_tables.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

// Takes the word before the next space from a line.
std::string_view take_word(std::string_view& line) {
  const std::size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

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
      const std::size_t end = text.find('\n');
      add(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
    for (CaseSequence& sequence : sequences)
      for (std::uint32_t& code : sequence.codes)
        if (const auto found = folded.find(code); found != folded.end()) code = found->second;
    std::stable_sort(sequences.begin(), sequences.end(),
                     [](const auto& a, const auto& b) { return a.codes.size() < b.codes.size(); });
  }

  void add(std::string_view line) {
    const std::string_view kind = take_word(line);
    const std::size_t colon = line.find(':');
    if (kind == "#") return;
    std::string_view keys = line.substr(0, colon), values = line.substr(std::min(colon + 2, line.size()));
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

}  // namespace

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

std::uint32_t fold_case(std::uint32_t code) {
  const auto found = tables().folded.find(code);
  return found == tables().folded.end() ? code : found->second;
}

CodeSet with_other_case(const CodeSet& set) {
  std::vector<std::uint32_t> same;
  for (const auto& [code, to] : tables().folded)
    if (set.contains(code)) same.push_back(to);
  const CodeSet all = set | CodeSet::of(same);
  for (const auto& [code, to] : tables().folded)
    if (all.contains(to)) same.push_back(code);
  return all | CodeSet::of(std::move(same));
}

const std::vector<CaseSequence>& case_sequences() { return tables().sequences; }

}  // namespace braid
