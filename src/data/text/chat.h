// What a conversation consists of, how it is written for each family of models, and what it becomes: tokens and
// targets.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/text/chat_template.h"
#include "data/text/tokenizer.h"

namespace braid {

inline constexpr int kIgnoredTarget = -100;
inline constexpr const char* kImageToken = "<image>";

// JSON that only a chat template can write. Shared, because masking copies turns; null: nothing.
using TemplateInput = std::shared_ptr<const nlohmann::ordered_json>;

struct ChatTurn {
  std::string role;  // system, user, assistant or tool; empty: plain text, which is predicted in full
  std::string text;
  bool is_learned = true;  // false: what the assistant says here is context only
  // An object: the message's keys beside role and content (tool_calls, reasoning_content). A message without text has
  // the object's `content`, which is null or empty, or none at all.
  TemplateInput fields{};
};

// The keys of a message that say something: tool calls, tools and thoughts. Other keys describe it.
bool says_something(const std::string& key);
bool is_empty_value(const nlohmann::ordered_json& value);  // null, false, "", [] or {}

struct ChatTokens {
  std::vector<int> tokens;
  std::vector<int> targets;  // the tokens to learn, kIgnoredTarget elsewhere
};

// What stands around the text of a turn. "{role}" and "{Role}" stand for the role, "{eos}" for the EOS token.
struct ChatFrame {
  std::string before{}, after{};
};

struct ChatFormat {
  std::string name{};
  bool own_template = false;           // written by the tokenizer's chat template, not by the frames
  std::vector<std::string> markers{};  // special tokens of such a template, if the format is for one family
  ChatFrame system{}, user{}, assistant{};
  bool has_bos = false;
  bool has_system = true;             // false: system turns are left out
  bool strips = false;                // white space around texts is removed
  bool drops_think_switches = false;  // "/think" and "/no_think" are removed from what is not the assistant's
  bool announces_answers = false;     // the user's turn ends with what announces the assistant
  bool masks = true;                  // false: every token is a target
};

std::vector<std::string> chat_format_names();
// ConfigError with the known names if there is no such format.
const ChatFormat& chat_format(const std::string& name);
// `markers`, and the words in angle brackets that the frames write: "<|im_end|>". A tokenizer that suits the format has
// a token for each.
std::vector<std::string> markers_of(const ChatFormat& format);

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
  class Rendering;

  bool writes_all(const std::vector<ChatTurn>& turns, Content content) const;
  Content choose_content(const std::string& question, const std::vector<Content>& choices) const;
  std::vector<ChatTurn> prepared(const std::vector<ChatTurn>& turns) const;
  std::string filled(const std::string& frame, const std::string& role) const;
  void check_texts(const std::vector<ChatTurn>& turns) const;
  void check_fields(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const;
  ChatTokens encode_frames(const std::vector<ChatTurn>& turns) const;
  ChatTokens encode_template(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const;
  ChatTokens encode_unmasked(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const;

  const Tokenizer& tokenizer_;
  const ChatFormat& format_;
  const std::string image_token_;
  std::string image_;                          // image_token_ with its tags
  std::optional<ChatTemplate> template_;       // of formats with own_template
  std::optional<ChatTemplate> tool_template_;  // the tokenizer's template for conversations with tools, if it has one
  Content with_images_ = Content::Text, without_images_ = Content::Text;
};

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

}  // namespace braid
