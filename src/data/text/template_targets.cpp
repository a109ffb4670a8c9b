// Which tokens of a conversation are learned: those of its answers.
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "data/text/chat.h"

namespace braid {
namespace {

// A conversation is rendered a few times for each assistant turn. These bound the work for one that has thousands of
// turns; 300 assistant turns in 500 kB of text are allowed.
constexpr std::size_t kMostWork = 256 << 20;
constexpr std::size_t kLongestMarker = 100;  // bytes of a special token
constexpr std::size_t kLongestStart = 400;   // bytes of the special tokens that a conversation begins with
constexpr std::size_t kWorkOfTurn = 256;     // rendering a turn costs as much as copying this many bytes

bool is_blank(std::string_view text) { return strip_text(text, nullptr, true, true).empty(); }

std::size_t common_length(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

struct Range {
  std::size_t begin = 0, end = 0;
};

// The words of a text, without tags, which templates write themselves where they take a text apart.
std::vector<std::string> words_of(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::size_t end = text[at] == '<' || text[at] == '[' ? text.find_first_of(">] \n\t<[", at + 1) : text.npos;
    const bool is_tag = end != text.npos && (text[end] == '>' || text[end] == ']');
    plain += is_tag ? ' ' : text[at];
    if (is_tag) at = end;
  }
  const auto words = split_text(plain, nullptr, -1);
  return {words.begin(), words.end()};
}

std::size_t skip_space(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(" \t\n\v\f\r", at), text.size());
}

// Where each token of a text ends in it; nothing if a normaliser changed the text. Reads it token by token. A tokenizer
// may put a space before a text, and a special token may take the white space on either side of it: the next token then
// begins where the special one is written to its end.
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

struct Token {
  int id;
  std::size_t end;  // in the text
};

class SpanFinder {
 public:
  SpanFinder(const std::vector<ChatTurn>& turns, const RenderTurns& render, const Tokenizer& tokenizer,
             const std::string& image_token)
      : turns_(turns), render_(render), tokenizer_(tokenizer), image_token_(image_token) {}

  ChatTokens find() {
    refuse_endless_work();
    require_texts(turns_, text_, image_token_);
    std::string text = text_.text;
    std::vector<AnswerSpan> spans;
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      if (turns_[i].role == "user") require_words(i, all_of(text_, i));
      if (turns_[i].role != "assistant") continue;
      const std::optional<Range> said = range_of(text_, i);
      if (!said) throw DataError(fmt::format("the chat template leaves out the text of turn {} (assistant)", i + 1));
      if (is_repeated(i, *said))
        throw DataError(fmt::format("the chat template writes the text of turn {} (assistant) twice", i + 1));
      const std::optional<TemplateText> alone = i + 1 < turns_.size() ? beginning(i + 1) : text_;
      if (alone) require_words(i, said_in(*alone, i));  // thoughts may be left out if a question follows
      AnswerSpan span = {.turn = i, .said = said->end};
      span.before = end_of_text_before(text_, said->begin);
      span.begin = begin_of(i, span.before, said->begin);
      span.after = begin_of_text_after(said->end);
      span.end = span.after == whole_.size() ? end_of_last(span, said->begin, text) : end_of(alone, span);
      span.after = std::max(span.after, span.end);
      if (turns_[i].is_learned) spans.push_back(span);
    }
    return targets_of(text, spans, tokenizer_);
  }

 private:
  void refuse_endless_work() const {
    const auto answers = static_cast<std::size_t>(std::ranges::count(turns_, "assistant", &ChatTurn::role));
    if (answers * (whole_.size() + kWorkOfTurn * turns_.size()) > kMostWork)
      throw DataError(fmt::format(
          "the conversation is too long to mask with the tokenizer's chat template ({} turns, {} bytes); split it",
          turns_.size(), whole_.size()));
  }

  // Nothing if the template refuses these turns: it may accept a conversation but refuse its beginning.
  std::optional<TemplateText> attempt(const std::vector<ChatTurn>& turns, bool generation_prompt = false) const try {
    return render_(turns, generation_prompt);
  } catch (const DataError&) {
    return std::nullopt;
  }
  std::vector<ChatTurn> first_turns(std::size_t count) const { return {turns_.begin(), turns_.begin() + count}; }
  std::optional<TemplateText> beginning(std::size_t count, bool generation_prompt = false) const {
    return attempt(first_turns(count), generation_prompt);
  }

  // Where the text has what a message says. A template may repeat a part of it elsewhere, as the name of a tool beside
  // the tool's answer: nothing counts after a stop token, and only the largest part that no other message interrupts.
  std::optional<Range> range_of(const TemplateText& text, std::size_t message) const {
    std::optional<Range> largest, open;
    for (const TemplateText::Origin& origin : text.origins) {
      if (static_cast<std::size_t>(message_of(origin.source)) != message) {
        open.reset();
        continue;
      }
      const std::size_t end = open ? open->end : origin.begin;
      if (std::ranges::any_of(tokenizer_.encode(std::string_view(text.text).substr(end, origin.begin - end)),
                              [&](int id) { return tokenizer_.is_stop(id); }))
        break;
      open = Range{open ? open->begin : origin.begin, origin.end};
      if (!largest || open->begin == largest->begin || open->end - open->begin > largest->end - largest->begin)
        largest = open;
    }
    return largest;
  }

  std::string_view said_in(const TemplateText& text, std::size_t message) const {
    const Range range = range_of(text, message).value_or(Range{});
    return std::string_view(text.text).substr(range.begin, range.end - range.begin);
  }
  // Everything that the text has of a message.
  static std::string all_of(const TemplateText& text, std::size_t message) {
    std::string all;
    for (const TemplateText::Origin& origin : text.origins)
      if (static_cast<std::size_t>(message_of(origin.source)) == message)
        all += text.text.substr(origin.begin, origin.end - origin.begin);
    return all;
  }

  bool is_repeated(std::size_t message, const Range& said) const {
    return std::ranges::any_of(text_.origins, [&](const TemplateText::Origin& origin) {
      return origin.source == source_of(static_cast<int>(message), "content") && origin.begin >= said.end &&
             origin.end - origin.begin >= said.end - said.begin;
    });
  }

  void require_words(std::size_t i, std::string_view written) const {
    for (const std::string& word : words_of(turns_[i].text)) {
      const std::size_t at = written.find(word);
      if (at == written.npos)
        throw DataError(fmt::format("the chat template leaves out a part of turn {} ({}): {}", i + 1, turns_[i].role,
                                    in_quotes(word)));
      written.remove_prefix(at + word.size());
    }
  }

  static std::size_t end_of_text_before(const TemplateText& text, std::size_t byte) {
    std::size_t end = 0;
    for (const TemplateText::Origin& origin : text.origins)
      if (origin.end <= byte) end = origin.end;
    return end;
  }
  std::size_t begin_of_text_after(std::size_t byte) const {
    for (const TemplateText::Origin& origin : text_.origins)
      if (origin.begin >= byte) return origin.begin;
    return whole_.size();
  }

  // Where answer `i` differs from the generation prompt. `before` is the end of the text before it, `said` the
  // beginning of its own.
  std::size_t begin_of(std::size_t i, std::size_t before, std::size_t said) const {
    const std::optional<TemplateText> given = beginning(i, /*generation_prompt=*/true);
    if (!given) return end_of_plain_header(i, before, said);
    const std::string_view prompted = given->text;
    const std::size_t start = end_of_text_before(*given, prompted.size());
    const std::size_t common = common_length(whole_.substr(before), prompted.substr(start));
    // A prompt that goes on, with a thought, may by chance continue as the answer begins: all of it must be there, but
    // for the white space at its end.
    if (before + common >= said)
      return start + common >= strip_text(prompted, nullptr, false, true).size() ? before + common : said;
    // The answer has more before its text than the prompt gives: an empty thought, or a call of a tool.
    const std::optional<TemplateText> without = beginning(i);
    const std::size_t shared = without ? common_length(without->text, prompted) : start;
    const std::string prompt(strip_text(prompted.substr(std::max(shared, start)), nullptr, true, false));
    if (!prompt.empty()) return end_of_prompt(prompt, before, said);
    const std::string unasked = unasked_prompt(i, before, said);
    return unasked.empty() ? end_of_plain_header(i, before, said) : end_of_prompt(unasked, before, said);
  }

  // Without a generation prompt, what an answer shares with one of plain text at the same place is given. The rest is
  // learned, such as the token that begins a thought or a call of a tool.
  std::size_t end_of_plain_header(std::size_t i, std::size_t before, std::size_t said) const {
    std::vector<ChatTurn> turns = turns_;
    turns[i] = {"assistant", "x"};
    std::optional<TemplateText> plain = attempt(turns);
    turns.resize(i + 1);
    // The template may refuse the turns that follow, since they answer a call, which a plain text is not.
    if (!plain || !range_of(*plain, i)) plain = attempt(turns);
    const std::optional<Range> text = plain ? range_of(*plain, i) : std::nullopt;
    if (!text) return said;
    const std::size_t start = end_of_text_before(*plain, text->begin);
    const std::string_view header = std::string_view(plain->text).substr(start, text->begin - start);
    const std::string_view own = whole_.substr(before, said - before);
    const std::size_t common = common_length(own, header);
    if (common == own.size() || common == header.size()) return before + common;
    std::size_t end = 0;  // where they differ within a token, it is learned
    for (const Token& token : tokens_of(own))
      if (token.end <= common) end = token.end;
    return end == 0 ? said : before + end;
  }

  // Where the answer's own text begins after what `prompt` gives of it. The turn before may end differently when it is
  // the last, or the prompt may be indented differently, so it is searched between `before` and `said`.
  std::size_t end_of_prompt(const std::string& prompt, std::size_t before, std::size_t said) const {
    Range found{before, before};
    for (std::size_t at = before; at < said; ++at) {
      const std::size_t length = common_length(whole_.substr(at, said - at), prompt);
      if (length >= found.end - found.begin) found = {at, at + length};
    }
    const std::size_t least = tokenizer_.bytes(tokenizer_.encode(prompt).front()).size();
    if (found.end - found.begin < std::min(least, prompt.size())) return said;
    // A tag that an answer begins with may begin as the prompt's does.
    const std::string_view given_part = whole_.substr(found.begin, found.end - found.begin);
    const std::size_t tag = given_part.find_last_of("<[");
    const bool is_cut = given_part.size() < prompt.size() && tag != given_part.npos &&
                        given_part.find_first_of(">]", tag) == given_part.npos;
    const std::string_view shared_part = given_part.substr(0, is_cut ? tag : given_part.npos);
    // A shared part without a word, such as the "### " of headers that differ in case, does not show where the answer
    // begins.
    const bool has_word =
        std::ranges::any_of(shared_part, [](unsigned char c) { return c >= 0x80 || std::isalnum(c) != 0; });
    return has_word || shared_part.size() == prompt.size() ? found.begin + shared_part.size() : said;
  }

  // The generation prompt that the template writes after every last turn, whether asked or not; else empty. It follows
  // answer `i` as it follows the question before, is not there when another question follows, and begins as a part of
  // the text between `before` and `said` does.
  std::string unasked_prompt(std::size_t i, std::size_t before, std::size_t said) const {
    const std::optional<TemplateText> question = beginning(i), answer = beginning(i + 1);
    const std::optional<std::string> gap = gap_to_question(i);
    if (!question || !answer || !gap) return "";
    const std::string_view tail = tail_of(*answer), header = whole_.substr(before, said - before);
    const std::size_t common = common_length(tail, *gap);
    const std::vector<Token> tokens = tokens_of(tail);
    const auto first = std::ranges::find_if(tokens, [&](const Token& token) { return token.end > common; });
    if (first == tokens.end()) return "";
    const std::size_t begin = first == tokens.begin() ? 0 : std::prev(first)->end;
    const std::string_view prompt = tail.substr(begin), first_text = tail.substr(begin, first->end - begin);
    return tail_of(*question).ends_with(prompt) && header.find(first_text) != header.npos ? std::string(prompt) : "";
  }

  // What the template writes after the text of the last turn.
  static std::string_view tail_of(const TemplateText& text) {
    return std::string_view(text.text).substr(end_of_text_before(text, text.text.size()));
  }

  // What the template writes between answer `i` and a question after it, or the result of a tool that the answer calls.
  std::optional<std::string> gap_to_question(std::size_t i) const {
    std::vector<ChatTurn> more = first_turns(i + 1);
    const auto& fields = more.back().fields;
    more.push_back({fields && fields->contains("tool_calls") ? "tool" : "user", "x"});
    const std::optional<TemplateText> asked = attempt(more);
    if (!asked) return std::nullopt;
    const std::optional<Range> answer = range_of(*asked, i), question = range_of(*asked, i + 1);
    if (!answer || !question || question->begin < answer->end) return std::nullopt;
    return asked->text.substr(answer->end, question->begin - answer->end);
  }

  // The end of an answer that another turn follows. Between their texts stands what the answer ends with when it is the
  // last turn, as in `alone`, and then the next turn's beginning.
  std::size_t end_of(const std::optional<TemplateText>& alone, const AnswerSpan& span) const {
    const std::size_t said = span.said;
    const std::string_view gap = whole_.substr(said, span.after - said);
    const std::string_view tail = alone ? tail_of(*alone) : "";
    const std::size_t end = common_end(gap, tail);
    // A call of a tool may end differently when it is the last turn.
    if (const auto stop = end_of_stop(end == 0 && !tail.empty() ? gap : gap.substr(0, end))) return said + *stop;
    const std::string_view common = gap.substr(0, end);
    const std::size_t length = end + first_end(gap.substr(end), is_blank(common));
    // What stands here only before another answer belongs to that answer.
    const bool is_followed_by_answer = turns_[span.turn + 1].role == "assistant";
    const std::optional<std::string> to_question = is_followed_by_answer ? gap_to_question(span.turn) : std::nullopt;
    return said + (to_question && !to_question->starts_with(gap.substr(0, length)) ? end : length);
  }

  // The same for an answer that nothing follows. Adds its end to `text` if the template writes it only between turns.
  std::size_t end_of_last(const AnswerSpan& span, std::size_t said_begin, std::string& text) const {
    std::string tail = text.substr(span.said);
    if (const auto stop = end_of_stop(tail)) return span.said + *stop;
    const std::optional<std::string> gap = gap_to_question(span.turn);
    if (!gap) return text.size();
    if (!unasked_prompt(span.turn, span.before, said_begin).empty()) tail.resize(common_end(tail, *gap));
    const std::size_t end = span.said + tail.size();
    if (!gap->starts_with(tail) || starts_with_turn(gap->substr(tail.size()))) return end;
    const std::string rest = gap->substr(tail.size());
    const std::string added = rest.substr(0, first_end(rest, is_blank(tail)));
    if (!added.empty()) text = text.substr(0, end) + added;
    return end + added.size();
  }

  // Whether the first special token of the text begins a turn. A stop token ends the answer instead.
  bool starts_with_turn(std::string_view text) const {
    for (const int id : tokenizer_.encode(text))
      if (is_end(id)) return !tokenizer_.is_stop(id) && (opens(id) || id == last_before_question());
    return false;
  }
  // The last special token before the first question.
  std::optional<int> last_before_question() const {
    const auto first = std::ranges::find(turns_, "user", &ChatTurn::role);
    const auto question = range_of(text_, static_cast<std::size_t>(first - turns_.begin()));
    if (!question) return std::nullopt;
    std::optional<int> last;
    for (const int id : tokenizer_.encode(whole_.substr(0, question->begin)))
      if (is_end(id)) last = id;
    return last;
  }

  std::vector<Token> tokens_of(std::string_view text) const {
    const std::vector<int> ids = tokenizer_.encode(text);
    const auto ends = ends_of(tokenizer_, text, ids);
    std::vector<Token> tokens;
    std::size_t end = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::string bytes = tokenizer_.bytes(ids[i]);
      const std::size_t found = text.find(bytes, end);  // nowhere: a normaliser has changed the text
      end = ends ? (*ends)[i] : found == text.npos ? std::min(text.size(), end + bytes.size()) : found + bytes.size();
      tokens.push_back({ids[i], end});
    }
    return tokens;
  }

  bool is_end(int id) const { return id != image_id_ && (tokenizer_.is_special(id) || tokenizer_.is_stop(id)); }

  // Whether a special token begins turns: then the text begins with it, perhaps after others.
  bool opens(int id) const {
    const std::string_view start = whole_.substr(0, kLongestStart);
    for (const int first : tokenizer_.encode(start)) {
      if (!tokenizer_.is_special(first)) return false;
      if (first == id) return true;
    }
    return false;
  }

  // The length of what both begin with, in whole tokens of the first if they differ there. What begins the next turn
  // does not count: a token that turns begin with, unless nothing else ends the answer, and text after a special token.
  std::size_t common_end(std::string_view a, std::string_view b) const {
    const std::size_t common = common_length(a, b);
    if (common == a.size() || common == b.size()) return common;
    std::size_t end = 0;
    bool has_ended = false;
    for (const Token& token : tokens_of(a.substr(0, common + kLongestMarker))) {
      if (token.end > common) break;
      const bool is_first = is_blank(a.substr(0, end));
      if (is_end(token.id) ? opens(token.id) && !is_first : has_ended && !is_blank(tokenizer_.bytes(token.id))) break;
      has_ended = has_ended || is_end(token.id);
      end = token.end;
    }
    return end;
  }

  // The bytes up to the first stop token and the white space after it; nothing without a stop token.
  std::optional<std::size_t> end_of_stop(std::string_view text) const {
    for (const Token& token : tokens_of(text))
      if (tokenizer_.is_stop(token.id)) {
        const std::string_view rest = text.substr(token.end);
        return token.end + (rest.size() - strip_text(rest, nullptr, true, false).size());
      }
    return std::nullopt;
  }

  // The bytes up to and including the first token that is not blank, if it ends an answer: a stop token, or any special
  // one if `any_special`. Else 0.
  std::size_t first_end(std::string_view text, bool any_special) const {
    for (const Token& token : tokens_of(text)) {
      if (tokenizer_.is_stop(token.id) || (any_special && is_end(token.id))) return token.end;
      if (!is_blank(tokenizer_.bytes(token.id))) return 0;
    }
    return 0;
  }

  const std::vector<ChatTurn>& turns_;
  const RenderTurns& render_;
  const Tokenizer& tokenizer_;
  const std::string& image_token_;
  const std::optional<int> image_id_ = tokenizer_.find(image_token_);
  const TemplateText text_ = render_(turns_, false);
  const std::string_view whole_ = text_.text;
};

}  // namespace

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
  ChatTokens result = {.tokens = tokens, .targets = std::vector<int>(tokens.size(), kIgnoredLabel)};
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

std::optional<std::size_t> missing_turn(const std::vector<ChatTurn>& turns, const TemplateText& text,
                                        const std::string& image_token) {
  std::vector<bool> is_written(turns.size());
  for (const TemplateText::Origin& origin : text.origins) {
    const int message = message_of(origin.source);
    if (origin.source == source_of(message, "content")) is_written[message] = true;
  }
  for (std::size_t i = 0; i < turns.size(); ++i)
    if (!is_written[i] && turns[i].role != "system" && !is_blank(replace_text(turns[i].text, image_token, "")))
      return i;
  return std::nullopt;
}

void require_texts(const std::vector<ChatTurn>& turns, const TemplateText& text, const std::string& image_token) {
  if (const auto missing = missing_turn(turns, text, image_token))
    throw DataError(
        fmt::format("the chat template leaves out the text of turn {} ({})", *missing + 1, turns[*missing].role));
}

ChatTokens template_targets(const std::vector<ChatTurn>& turns, const RenderTurns& render, const Tokenizer& tokenizer,
                            const std::string& image_token) {
  return SpanFinder{turns, render, tokenizer, image_token}.find();
}

}  // namespace braid
