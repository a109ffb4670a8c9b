// Conversations as tokens and targets.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/text/chat_formats.h"
#include "data/text/chat_template.h"
#include "data/text/tokenizer.h"

namespace braid {

inline constexpr const char* kImageToken = "<image>";

class ChatEncoder {
 public:
  // `image_tags` is "nvlm" (<Image><image></Image>), "internvl" (<img><image></img>) or empty (none). `image_token`
  // replaces <image>, with `image_tags` around it; `now` is the time that templates see. ConfigError for unknown names
  // and for a format that needs a chat template of a tokenizer without one. The tokenizer must live longer.
  ChatEncoder(const Tokenizer& tokenizer, const std::string& format, const std::string& image_tags = "",
              const std::string& image_token = kImageToken, const std::tm& now = local_time());

  // Only what the assistant says, with its end of turn, is a target. `tools`: a list, for the chat template. DataError
  // if a turn is empty, if an assistant turn has an image, if a token has text of two turns, or if the format does not
  // write a turn, the tools, tool calls or thoughts.
  ChatTokens encode_with_targets(const std::vector<ChatTurn>& turns, const TemplateInput& tools = {}) const;

  // Whether the text depends on what each system turn says.
  bool writes_system(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const;

  // Keys of the messages that change nothing in the text.
  std::vector<std::string> unused_keys(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const;

 private:
  // How a template gets the content of messages: as a text, or as a list of parts, as transformers' processors do.
  enum class Content { Text, Parts, PartsExceptSystem, PartsOfUsers, TextParts };

  std::vector<ChatTurn> prepared(const std::vector<ChatTurn>& turns) const;
  // `steps` bounds the work of templates, see ChatTemplate.
  TemplateText render_template(const std::vector<ChatTurn>& turns, const TemplateInput& tools, bool generation_prompt,
                               Content content, std::int64_t& steps) const;
  bool writes_all(const std::vector<ChatTurn>& turns, Content content) const;
  Content choose_content(const std::string& question, const std::vector<Content>& choices) const;
  Content content_of(const std::vector<ChatTurn>& turns) const;
  std::string filled(const std::string& frame, const std::string& role) const;
  std::string frame_text(const ChatTurn& turn) const;
  ChatTokens encode_frames(const std::vector<ChatTurn>& turns) const;
  ChatTokens encode_template(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const;
  ChatTokens encode_unmasked(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const;
  void check_texts(const std::vector<ChatTurn>& turns) const;
  void check_fields(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const;

  const Tokenizer& tokenizer_;
  const ChatFormat& format_;
  const std::string image_token_;
  std::string image_;                          // image_token_ with its tags
  std::optional<ChatTemplate> template_;       // of formats with own_template
  std::optional<ChatTemplate> tool_template_;  // the tokenizer's template for conversations with tools, if it has one
  Content with_images_ = Content::Text, without_images_ = Content::Text;
};

}  // namespace braid
