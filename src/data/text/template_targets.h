// The targets of a conversation that a tokenizer's chat template writes. The template's output says which bytes are
// those of a message; what stands between them is compared with the beginnings of the conversation, to tell the end of
// an answer from the beginning of the next turn.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/text/chat_formats.h"
#include "data/text/template_value.h"
#include "data/text/tokenizer.h"

namespace braid {

using RenderTurns = std::function<TemplateText(const std::vector<ChatTurn>& turns, bool generation_prompt)>;

// Targets are the tokens of each assistant turn that the generation prompt does not already give, to the end of the
// turn. An answer that the template ends only when another turn follows gets that end. DataError with the number of the
// turn if the text does not have it, or if it cannot be told from its neighbours.
ChatTokens template_targets(const std::vector<ChatTurn>& turns, const RenderTurns& render, const Tokenizer& tokenizer,
                            const std::string& image_token);

// DataError with the number of a turn whose text the template leaves out.
void require_texts(const std::vector<ChatTurn>& turns, const TemplateText& text, const std::string& image_token);
// The first such turn; nothing if the text has all. System turns do not count, nor does a text that is blank without
// its image tokens.
std::optional<std::size_t> missing_turn(const std::vector<ChatTurn>& turns, const TemplateText& text,
                                        const std::string& image_token);

}  // namespace braid
