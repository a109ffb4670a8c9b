// Which tokens the answers of a conversation became.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "data/text/template_targets.h"

namespace braid {
namespace {

std::size_t skip_space(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(" \t\n\v\f\r", at), text.size());
}

}  // namespace

// Reads the text token by token. A tokenizer may put a space before a text, and a special token may take the white
// space on either side of it: the next token then begins where the special one is written to its end.
std::optional<std::vector<std::size_t>> ends_of(const Tokenizer& tokenizer, std::string_view text,
                                                const std::vector<int>& tokens) {
  std::vector<std::size_t> ends;
  std::size_t at = 0;
  for (const int id : tokens) {
    const std::string bytes = tokenizer.bytes(id);
    const std::string_view unspaced = std::string_view(bytes).substr(bytes.starts_with(' '));
    const std::string_view here = text.substr(at);
    if (!here.starts_with(bytes) && !here.starts_with(unspaced)) at = skip_space(text, at);
    const std::string_view word = text.substr(at).starts_with(bytes) ? bytes : unspaced;
    // A space that stands for other white space has no place of its own.
    const bool is_replaced = word.empty() && skip_space(text, at) > at;
    if (is_replaced || !text.substr(at).starts_with(word)) return std::nullopt;
    at += word.size();
    ends.push_back(at);
  }
  if (skip_space(text, at) != text.size()) return std::nullopt;
  return ends;
}

ChatTokens targets_of(const std::string& text, const std::vector<AnswerSpan>& spans, const Tokenizer& tokenizer) {
  const std::vector<int> tokens = tokenizer.encode(text);
  // Nothing if a normaliser changed the text: then the tokens of the text before a place, or after it, are compared
  // with those of the whole.
  const std::optional<std::vector<std::size_t>> ends = ends_of(tokenizer, text, tokens);
  // How many tokens end at or before a place of the text, and how many begin before it.
  const auto ended = [&](std::size_t byte) {
    if (ends) return std::upper_bound(ends->begin(), ends->end(), byte) - ends->begin();
    const std::vector<int> before = tokenizer.encode(std::string_view(text).substr(0, byte));
    return std::mismatch(tokens.begin(), tokens.end(), before.begin(), before.end()).first - tokens.begin();
  };
  const auto begun = [&](std::size_t byte) -> std::ptrdiff_t {
    if (byte == 0) return 0;
    if (ends)
      return std::min(std::lower_bound(ends->begin(), ends->end(), byte) - ends->begin() + 1, std::ssize(tokens));
    const std::vector<int> after = tokenizer.encode(std::string_view(text).substr(std::min(byte, text.size())));
    return tokens.rend() - std::mismatch(tokens.rbegin(), tokens.rend(), after.rbegin(), after.rend()).first;
  };
  ChatTokens result = {.tokens = tokens, .targets = std::vector<int>(tokens.size(), kIgnoredTarget)};
  for (const AnswerSpan& span : spans) {
    const std::ptrdiff_t first = ended(span.begin), last = std::max(begun(span.said), ended(span.end));
    if (begun(span.before) > first || ended(span.after) < last)
      throw DataError(
          fmt::format("turn {} cannot be masked: its first or last token contains text of another turn; use a chat "
                      "format or a tokenizer with a special token between turns",
                      span.turn + 1));
    std::copy(tokens.begin() + first, tokens.begin() + std::max(first, last), result.targets.begin() + first);
  }
  return result;
}

}  // namespace braid
