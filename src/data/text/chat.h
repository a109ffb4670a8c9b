// What a conversation consists of, how it is written for each family of models, and what it becomes: tokens and
// targets.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include "base/ignored_label.h"
#include "data/text/tokenizer.h"

namespace braid {

// A text, and which of its bytes are those of a message: what the masks of a conversation follow from. Operations that
// cut and join texts keep the origins; those that write other characters lose them.
struct TemplateText {
  struct Origin {
    std::size_t begin = 0, end = 0;
    int source = 0;
  };
  std::string text{};
  std::vector<Origin> origins{};  // in order, without overlap; neighbours of one source are joined

  void append(const TemplateText& other);
  TemplateText part(std::size_t begin, std::size_t size) const;
  TemplateText part(std::string_view view) const {  // that lies in the text
    return part(static_cast<std::size_t>(view.data() - text.data()), view.size());
  }
};

// The origin of texts in a field of a message, and back.
inline int source_of(int message, std::string_view field) { return 2 * message + (field == "content" ? 0 : 1); }
inline int message_of(int source) { return source / 2; }

std::tm local_time();

// Renders the chat template of a tokenizer: Jinja, as far as published templates use it, without access to anything but
// the variables it is given. Steps, memory and depth are bounded, so that a hostile template ends with an error.
// Supported: if, for (with a condition, else, loop.*, break, continue), set (also of a namespace's items, and as a
// block), macros and call blocks, the operators of Jinja, and the filters, tests, methods and functions of
// template_builtins.cpp.
class ChatTemplate {
 public:
  // `name` is for messages, `now` the time of strftime_now. DataError if the template is invalid or uses what is not
  // supported.
  ChatTemplate(std::string_view source, std::string name, const std::tm& now = local_time());

  // `variables` is an object: messages, bos_token, add_generation_prompt and so on. DataError with the line if the
  // template fails or refuses them.
  std::string render(const nlohmann::ordered_json& variables) const;
  // The same, with at most `steps`, which become fewer: they bound several renderings together. The texts of a message,
  // except for its role, have source_of() as their origin.
  TemplateText render(const nlohmann::ordered_json& variables, std::int64_t& steps) const {
    return render_(variables, steps);
  }

 private:
  std::function<TemplateText(const nlohmann::ordered_json& variables, std::int64_t& steps)> render_;
};

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
  std::vector<int> targets;  // the tokens to learn, kIgnoredLabel elsewhere
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

// Python's methods of str. Views lie in the given text.
std::vector<std::string_view> characters_of(std::string_view text);

// str.strip(characters); without characters: white space.
std::string_view strip_text(std::string_view text, const std::string* characters, bool left, bool right);

// The result has as many bytes. DataError for upper case beyond ASCII, and for the few other letters that cannot be
// changed in their place.
std::string upper_text(std::string text);
std::string lower_text(std::string_view text);
std::string title_text(std::string_view text);
std::string capitalize_text(std::string_view text);

TemplateText replaced(const TemplateText& text, std::string_view old, const TemplateText& with, std::int64_t most);
std::string replace_text(std::string_view text, std::string_view old, std::string_view with);
// str.split(separator, most); without separator: at white space. A negative `most` means all.
std::vector<std::string_view> split_text(std::string_view text, const std::string* separator, std::int64_t most);
std::vector<std::string_view> rsplit_text(std::string_view text, const std::string& separator, std::int64_t most);

}  // namespace braid
