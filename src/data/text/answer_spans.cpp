#include "data/text/answer_spans.h"

#include <algorithm>

#include "base/error.h"
#include "data/text/token_map.h"

namespace braid {

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
