// Whether a chat template writes what a conversation has beside its texts. A template leaves out what it does not know
// without a word, and the model would never see it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/text/chat_formats.h"

namespace braid {

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
