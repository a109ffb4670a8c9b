// What a conversation consists of, what it becomes, and how it is written for each family of models, as data.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <vector>

namespace braid {

inline constexpr int kIgnoredTarget = -100;

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

}  // namespace braid
