#include "text/template_targets.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"

namespace braid {
namespace {

// A conversation is rendered a few times for each assistant turn. These bound the work for one that has thousands of
// turns; 300 assistant turns in 500 kB of text are allowed.
constexpr std::size_t kMostWork = 256 << 20;
constexpr std::size_t kWorkOfTurn = 256;  // rendering a turn costs as much as copying this many bytes

std::size_t common_length(std::span<const int> a, std::span<const int> b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

class TargetFinder {
 public:
  TargetFinder(const std::vector<ChatTurn>& turns, const RenderTurns& render, const Tokenizer& tokenizer)
      : turns_(turns), render_(render), tokenizer_(tokenizer), text_(render(turns, false)) {}

  ChatTokens find() {
    refuse_endless_work();
    tokens_ = tokenizer_.encode(text_);
    ChatTokens result = {.tokens = tokens_, .targets = std::vector<int>(tokens_.size(), kIgnoredTarget)};
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      if (turns_[i].role != "assistant") continue;
      try {
        const Span span = tokens_of(i);  // also of an answer that is not learned: the next one begins after it
        if (!turns_[i].is_learned) continue;
        std::copy(tokens_.begin() + span.begin, tokens_.begin() + span.end, result.targets.begin() + span.begin);
      } catch (const DataError& e) {
        throw DataError(fmt::format("turn {} cannot be masked: {}", i + 1, e.what()));
      }
    }
    return result;
  }

 private:
  struct Span {
    std::ptrdiff_t begin = 0, end = 0;  // of tokens_
  };
  // A place in the conversation where a token begins.
  struct Cut {
    std::size_t byte = 0, token = 0;
  };

  void refuse_endless_work() const {
    const auto answers = static_cast<std::size_t>(
        std::count_if(turns_.begin(), turns_.end(), [](const ChatTurn& turn) { return turn.role == "assistant"; }));
    if (answers * (text_.size() + kWorkOfTurn * turns_.size()) > kMostWork)
      throw DataError(
          fmt::format("{} turns with {} bytes are too long a conversation for the tokenizer's chat template",
                      turns_.size(), text_.size()));
  }

  std::vector<ChatTurn> first_turns(std::size_t count) const {
    return {turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  Span tokens_of(std::size_t i) {
    const std::vector<ChatTurn> earlier = first_turns(i);
    const std::string before = render_(earlier, false), prompt = render_(earlier, true);
    const bool is_prefix = text_.starts_with(prompt) || (text_.starts_with(before) && prompt.starts_with(before));
    const std::size_t end = end_of(i, before);
    if (!is_prefix || std::min({before.size(), prompt.size(), end}) < cut_.byte)
      throw DataError("the chat template changes earlier turns when others follow");
    // Tokens are counted from the end of the last answer, so that the work does not grow with the square of the turns.
    // A tokenizer that marks the beginning of a text needs the whole text.
    std::optional<Span> span = tokens_from(cut_, before, prompt, end);
    if (!span) span = tokens_from({}, before, prompt, end);
    if (!span) throw DataError("its first or last token contains text of another turn");
    cut_ = {end, static_cast<std::size_t>(span->end)};
    return *span;
  }

  // The text before the end of turn `i`, in bytes.
  std::size_t end_of(std::size_t i, const std::string& before) const {
    if (i + 1 == turns_.size()) return text_.size();
    std::vector<ChatTurn> turns = first_turns(i + 1);
    const std::string alone = render_(turns, false);
    if (text_.starts_with(alone)) return alone.size();
    // Some templates write an answer differently when a question follows, for example without its thoughts. What
    // follows the answer is then what remains of the conversation without it.
    std::vector<ChatTurn> others = turns_;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    const std::string without = render_(others, false);
    if (!without.starts_with(before) || without.size() > text_.size() ||
        !text_.ends_with(std::string_view(without).substr(before.size())))
      throw DataError("the chat template changes it, or turns after it, in a way that hides where it ends");
    const std::size_t end = text_.size() - (without.size() - before.size());
    // It must still end as it does alone: with what follows any answer.
    turns.back().text += 'x';
    const std::string longer = render_(turns, false);
    const auto ending = std::mismatch(alone.rbegin(), alone.rend(), longer.rbegin(), longer.rend()).first.base();
    if (!std::string_view(text_).substr(0, end).ends_with(std::string_view(ending, alone.end())))
      throw DataError("the chat template ends it differently when turns follow");
    return end;
  }

  // The targets of the turn that ends at byte `end`; nothing if a token at its border belongs to another turn too.
  std::optional<Span> tokens_from(Cut cut, const std::string& before, const std::string& prompt,
                                  std::size_t end) const {
    const auto encode = [&](const std::string& text, std::size_t stop) {
      return tokenizer_.encode(std::string_view(text).substr(cut.byte, stop - cut.byte));
    };
    const std::span<const int> rest = std::span(tokens_).subspan(cut.token);
    const std::vector<int> turn = encode(text_, end);
    if (common_length(turn, rest) < turn.size()) return std::nullopt;
    const std::vector<int> given = encode(prompt, prompt.size());
    const std::size_t common = common_length(given, turn);
    if (common < given.size()) {  // the answer does not begin as the prompt ends; the earlier turns must be common
      const std::vector<int> earlier = encode(before, before.size());
      if (common < earlier.size() || common_length(earlier, turn) < earlier.size()) return std::nullopt;
    }
    const auto begin = static_cast<std::ptrdiff_t>(cut.token);
    return Span{begin + static_cast<std::ptrdiff_t>(common), begin + std::ssize(turn)};
  }

  const std::vector<ChatTurn>& turns_;
  const RenderTurns& render_;
  const Tokenizer& tokenizer_;
  const std::string text_;
  std::vector<int> tokens_{};
  Cut cut_{};
};

}  // namespace

ChatTokens template_targets(const std::vector<ChatTurn>& turns, const RenderTurns& render, const Tokenizer& tokenizer) {
  return TargetFinder(turns, render, tokenizer).find();
}

}  // namespace braid
