#include "run/doubtful_problems.h"

#include <algorithm>
#include <cctype>

#include "base/key_guess.h"
#include "base/strings.h"
#include "models/providers.h"

namespace braid {
namespace {

constexpr const char* kProvider = "model.provider";

// Returns "train.lr" for "tiny.yaml:7, train.lr", "command line, --lr (train.lr)" or "command line, --train.lr".
std::string key_of(const Problem& problem) {
  std::string key = problem.where.substr(problem.where.rfind(' ') + 1);
  key.erase(0, key.find_first_not_of("(-"));
  if (key.ends_with(')')) key.pop_back();
  return key;
}

std::string last_name(const std::string& key) { return key.substr(key.rfind('.') + 1); }

// The key that the user meant: the suggested one, or the one that has a wrong value.
std::string meant_key(const Problem& problem) {
  const std::string key = key_of(problem), asks = "did you mean '";
  if (!problem.what.starts_with(kUnknownKey) || !problem.fix.starts_with(asks)) return key;
  const std::string guess = problem.fix.substr(asks.size(), problem.fix.rfind('\'') - asks.size());
  return guess.find('.') == guess.npos ? key.substr(0, key.rfind('.') + 1) + guess : guess;
}

bool has_word(const std::string& text, const std::string& word) {
  const auto is_letter = [&](std::size_t i) {
    return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_');
  };
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1))
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  return false;
}

// Messages name the keys that they are about. Ranks are counted over the whole topology, and the number of experts
// follows from several keys of the model.
bool may_follow(const Problem& problem, const std::string& refused, const std::vector<std::string>& known) {
  const auto is_below = [](const std::string& key, const std::string& section) {
    return key.starts_with(section + ".");
  };
  const bool is_section =
      std::any_of(known.begin(), known.end(), [&](const std::string& key) { return is_below(key, refused); });
  if (is_section) return true;
  if (is_below(refused, "topology") && is_below(problem.where, "topology")) return true;
  const bool of_experts = problem.what.find("expert") != std::string::npos;
  if (refused == kProvider) return of_experts || is_below(problem.where, "model") || is_below(problem.where, "data");
  if (is_below(refused, "model.language") && of_experts) return true;
  return has_word(problem.what + " " + problem.fix + " " + problem.where, last_name(refused));
}

}  // namespace

void drop_keys_of_unknown_provider(std::vector<Problem>& of_values) {
  const auto is_provider = [](const Problem& problem) { return key_of(problem) == kProvider; };
  if (std::none_of(of_values.begin(), of_values.end(), is_provider)) return;
  std::vector<std::string> sections = {"language"};
  for (const Provider& provider : providers())
    for (const EncoderConfig& encoder : provider.encoders) sections.push_back(encoder.name);
  std::erase_if(of_values, [&](const Problem& problem) {
    const std::vector<std::string> names = split(key_of(problem), '.');
    return names.size() > 1 && names[0] == "model" && contains(sections, names[1]);
  });
}

void drop_doubtful(std::vector<Problem>& of_whole, const std::vector<Problem>& of_values,
                   const std::vector<std::string>& known) {
  std::erase_if(of_whole, [&](const Problem& problem) {
    return std::any_of(of_values.begin(), of_values.end(),
                       [&](const Problem& value) { return may_follow(problem, meant_key(value), known); });
  });
}

}  // namespace braid
