#include "data/text/chat_formats.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

ChatFormat own_template(std::string name, std::vector<std::string> markers = {}) {
  return {.name = std::move(name), .own_template = true, .markers = std::move(markers)};
}

// All turns are written alike.
ChatFormat uniform(std::string name, const ChatFrame& turn, bool has_bos, bool strips = false) {
  return {
      .name = std::move(name), .system = turn, .user = turn, .assistant = turn, .has_bos = has_bos, .strips = strips};
}

ChatFormat without_masks(std::string name, bool own) {
  return {.name = std::move(name), .own_template = own, .masks = false};
}

// Names and texts are those of Megatron-LM's tokenizers for multimodal models and for fine-tuning.
const std::vector<ChatFormat>& formats() {
  static const ChatFrame chatml = {"<|im_start|>{role}\n", "<|im_end|>\n"};
  static const ChatFrame llama31 = {"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"};
  static const std::vector<ChatFormat> all = {
      own_template("nemotron6-moe"),
      uniform("nemotron5", {"<SPECIAL_14>{role}\n", "<SPECIAL_15>\n"}, /*has_bos=*/true),
      uniform("nemotron5-aligned", {"{Role}\n", "\n[PREFIX]"}, /*has_bos=*/true),
      {.name = "nemotron-h-aligned",  // the user's turn announces the assistant's, which begins with its text
       .system = {"<SPECIAL_10>System\n", "\n"},
       .user = {"<SPECIAL_11>User\n", "\n<SPECIAL_11>Assistant\n"},
       .assistant = {"", "\n"},
       .strips = true,
       .announces_answers = true},
      {.name = "nemotron-nano-v2",
       .system = {"<SPECIAL_10>System\n", "\n"},
       .user = {"<SPECIAL_11>User\n", "\n"},
       .assistant = {"<SPECIAL_11>Assistant\n", "\n<SPECIAL_12>\n"},
       .strips = true,
       .drops_think_switches = true},
      own_template("chatml", {"<|im_start|>", "<|im_end|>"}),
      uniform("qwen2p0", chatml, /*has_bos=*/false),
      uniform("qwen2p5", chatml, /*has_bos=*/false),
      uniform("nvlm-yi-34b", chatml, /*has_bos=*/true),
      own_template("llama3", {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}),
      uniform("llama3p1", llama31, /*has_bos=*/true, /*strips=*/true),
      uniform("llama3p2", llama31, /*has_bos=*/true, /*strips=*/true),
      {.name = "mistral",
       .user = {"[INST] ", "[/INST]"},
       .assistant = {" ", "{eos}"},
       .has_bos = true,
       .has_system = false,
       .announces_answers = true},
      without_masks("identity", false),
      without_masks("default", true),
  };
  return all;
}

}  // namespace

std::vector<std::string> chat_format_names() {
  std::vector<std::string> names;
  for (const ChatFormat& format : formats()) names.push_back(format.name);
  return names;
}

const ChatFormat& chat_format(const std::string& name) {
  for (const ChatFormat& format : formats())
    if (format.name == name) return format;
  const std::vector<std::string> names = chat_format_names();
  const auto similar = nearest(name, names);
  throw ConfigError(
      {fmt::format("there is no chat format {}", in_quotes(name)), "chat format",
       fmt::format("{}known: {}", similar ? fmt::format("did you mean {}? ", *similar) : "", fmt::join(names, ", "))});
}

std::vector<std::string> markers_of(const ChatFormat& format) {
  std::vector<std::string> markers = format.markers;
  for (const ChatFrame& frame : {format.system, format.user, format.assistant})
    for (const std::string& text : {frame.before, frame.after})
      for (std::size_t begin = text.find('<'); begin != text.npos; begin = text.find('<', begin + 1)) {
        const std::size_t end = text.find('>', begin);
        if (end == text.npos) break;
        if (std::string marker = text.substr(begin, end + 1 - begin); !contains(markers, marker))
          markers.push_back(std::move(marker));
      }
  return markers;
}

}  // namespace braid
