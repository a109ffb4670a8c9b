// The targets of a conversation: which of its tokens are learned, and whether a tokenizer's chat template writes all
// that the conversation has.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/text/chat_formats.h"
#include "data/text/chat_template.h"
#include "data/text/tokenizer.h"

namespace braid {

// Places in the text, in bytes. What is learned begins with the first byte that the model is not given, and ends with
// what ends the turn.
struct AnswerSpan {
  std::size_t turn = 0;
  std::size_t before = 0;  // where the text of the turn before it ends
  std::size_t begin = 0;   // of what is learned
  std::size_t said = 0;    // where the answer's own text ends
  std::size_t end = 0;     // of what is learned
  std::size_t after = 0;   // where the text of the turn after it begins
};

// Where each token of a text ends in it; nothing if a normaliser changed the text.
std::optional<std::vector<std::size_t>> ends_of(const Tokenizer& tokenizer, std::string_view text,
                                                const std::vector<int>& tokens);

// The targets are the tokens with text of an answer, and the whole tokens of its end. DataError with the number of the
// turn if a token has text of two turns.
ChatTokens targets_of(const std::string& text, const std::vector<AnswerSpan>& spans, const Tokenizer& tokenizer);

// The template's output says which bytes are those of a message; what stands between them is compared with the
// beginnings of the conversation, to tell the end of an answer from the beginning of the next turn.
using RenderTurns = std::function<TemplateText(const std::vector<ChatTurn>& turns, bool generation_prompt)>;

// Targets are the tokens of each assistant turn that the generation prompt does not already give, or without one the
// header of an answer of plain text, to the end of the turn. An answer that the template ends only when another turn
// follows gets that end. DataError with the number of the turn if the text does not have it, or if it cannot be told
// from its neighbours.
ChatTokens template_targets(const std::vector<ChatTurn>& turns, const RenderTurns& render, const Tokenizer& tokenizer,
                            const std::string& image_token);

// DataError with the number of a turn whose text the template leaves out.
void require_texts(const std::vector<ChatTurn>& turns, const TemplateText& text, const std::string& image_token);
// The first such turn; nothing if the text has all. System turns do not count, nor does a text that is blank without
// its image tokens.
std::optional<std::size_t> missing_turn(const std::vector<ChatTurn>& turns, const TemplateText& text,
                                        const std::string& image_token);

// A template leaves out what it does not know without a word, and the model would never see it.
using RenderChat = std::function<std::string(const std::vector<ChatTurn>& turns, const TemplateInput& tools)>;

// The keys of a message that say something: tool calls, tools and thoughts. Other keys describe it.
bool says_something(const std::string& key);
bool is_empty_value(const nlohmann::ordered_json& value);  // null, false, "", [] or {}

// DataError if a tool, a tool call or a thought does not get into the text. A template may leave out a thought or a
// call when others follow it.
void require_written_fields(const std::vector<ChatTurn>& turns, const TemplateInput& tools, const RenderChat& render);

// The other keys of messages, without those that change the text.
std::vector<std::string> unwritten_keys(const std::vector<ChatTurn>& turns, const TemplateInput& tools,
                                        const std::string& template_source, const RenderChat& render);

}  // namespace braid
