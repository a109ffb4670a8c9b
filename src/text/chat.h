// Conversations as tokens and targets.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_formats.h"
#include "text/chat_template.h"
#include "text/chat_turns.h"
#include "text/tokenizer.h"

namespace braid {

inline constexpr const char* kImageToken = "<image>";

class ChatEncoder {
 public:
  // `image_tags` is "nvlm" (<Image><image></Image>), "internvl" (<img><image></img>) or empty (none). ConfigError for
  // unknown names and for a format that needs a chat template of a tokenizer without one. The tokenizer must live
  // longer.
  ChatEncoder(const Tokenizer& tokenizer, const std::string& format, const std::string& image_tags = "");

  // Only what the assistant says, with its end of turn, is a target. `tools`: a list, for the chat template. DataError
  // if a turn is empty, if an assistant turn has an image, if the tokens of a turn cannot be told from those of the
  // others, or if the format does not write the tools, tool calls or thoughts.
  ChatTokens encode_with_targets(const std::vector<ChatTurn>& turns, const TemplateInput& tools = {}) const;

  // Keys of the messages that change nothing in the text.
  std::vector<std::string> unused_keys(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const;

 private:
  std::vector<ChatTurn> prepared(const std::vector<ChatTurn>& turns) const;
  // `steps` bounds the work of templates, see ChatTemplate.
  std::string render(const std::vector<ChatTurn>& turns, const TemplateInput& tools, std::int64_t& steps) const;
  std::string render_template(const std::vector<ChatTurn>& turns, const TemplateInput& tools, bool generation_prompt,
                              std::int64_t& steps) const;
  std::string render_turn(const ChatTurn& turn) const;
  std::vector<int> tokens_of_turn(const ChatTurn& turn, const TemplateInput& tools, bool is_first,
                                  std::int64_t& steps) const;
  void check_texts(const std::vector<ChatTurn>& turns) const;
  void check_fields(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const;
  ChatTokens mask_each_turn(const std::vector<ChatTurn>& turns, const TemplateInput& tools, std::int64_t& steps) const;

  const Tokenizer& tokenizer_;
  const ChatFormat& format_;
  std::string image_;                          // what an image token becomes
  std::optional<ChatTemplate> template_;       // of formats with own_template
  std::optional<ChatTemplate> tool_template_;  // the tokenizer's template for conversations with tools, if it has one
};

}  // namespace braid
