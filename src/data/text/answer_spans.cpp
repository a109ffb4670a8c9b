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

namespace {

// Which tokens a range of a text became.
class TokenMap {
 public:
  // Both are kept.
  TokenMap(const Tokenizer& tokenizer, std::string text);

  const std::vector<int>& tokens() const { return tokens_; }
  std::size_t ended(std::size_t byte) const;  // how many tokens end at or before this place of the text
  std::size_t begun(std::size_t byte) const;  // how many tokens begin before it

 private:
  const Tokenizer& tokenizer_;
  const std::string text_;
  const std::vector<int> tokens_;
  // Where each token ends in the text. Nothing if a normaliser changed the text: then the tokens of the text before a
  // place, or after it, are compared with those of the whole.
  const std::optional<std::vector<std::size_t>> ends_;
};

TokenMap::TokenMap(const Tokenizer& tokenizer, std::string text)
    : tokenizer_(tokenizer),
      text_(std::move(text)),
      tokens_(tokenizer.encode(text_)),
      ends_(ends_of(tokenizer, text_, tokens_)) {}

std::size_t TokenMap::ended(std::size_t byte) const {
  if (ends_) return static_cast<std::size_t>(std::upper_bound(ends_->begin(), ends_->end(), byte) - ends_->begin());
  const std::vector<int> before = tokenizer_.encode(std::string_view(text_).substr(0, byte));
  return static_cast<std::size_t>(std::mismatch(tokens_.begin(), tokens_.end(), before.begin(), before.end()).first -
                                  tokens_.begin());
}

std::size_t TokenMap::begun(std::size_t byte) const {
  if (byte == 0) return 0;
  if (ends_) {
    const auto ended_before = std::lower_bound(ends_->begin(), ends_->end(), byte) - ends_->begin();
    return std::min(static_cast<std::size_t>(ended_before) + 1, tokens_.size());
  }
  const std::vector<int> after = tokenizer_.encode(std::string_view(text_).substr(std::min(byte, text_.size())));
  return static_cast<std::size_t>(tokens_.rend() -
                                  std::mismatch(tokens_.rbegin(), tokens_.rend(), after.rbegin(), after.rend()).first);
}

}  // namespace

ChatTokens targets_of(const std::string& text, const std::vector<AnswerSpan>& spans, const Tokenizer& tokenizer) {
  const TokenMap map(tokenizer, text);
  ChatTokens result = {.tokens = map.tokens(), .targets = std::vector<int>(map.tokens().size(), kIgnoredTarget)};
  for (const AnswerSpan& span : spans) {
    const std::size_t first = map.ended(span.begin), last = std::max(map.begun(span.said), map.ended(span.end));
    if (map.begun(span.before) > first || map.ended(span.after) < last)
      throw DataError(
          fmt::format("turn {} cannot be masked: its first or last token contains text of another turn; use a chat "
                      "format or a tokenizer with a special token between turns",
                      span.turn + 1));
    for (std::size_t i = first; i < last; ++i) result.targets[i] = result.tokens[i];
  }
  return result;
}

}  // namespace braid
