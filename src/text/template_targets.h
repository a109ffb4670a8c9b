// The targets of a conversation that a tokenizer's chat template writes. A template does not say where turns begin and
// end, so they are found by comparing the whole conversation with its beginnings.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "text/chat_turns.h"
#include "text/tokenizer.h"

namespace braid {

using RenderTurns = std::function<std::string(const std::vector<ChatTurn>& turns, bool generation_prompt)>;

// Targets are the tokens of each assistant turn that the generation prompt does not already give, to the end of the
// turn. DataError with the number of the turn if it cannot be found in the tokens of the conversation.
ChatTokens template_targets(const std::vector<ChatTurn>& turns, const RenderTurns& render, const Tokenizer& tokenizer);

}  // namespace braid
