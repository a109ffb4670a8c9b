// How conversations are written for each family of models, as data.
#pragma once

#include <string>
#include <vector>

namespace braid {

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
