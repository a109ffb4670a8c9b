// The fuzz targets of text/, and the property that must hold for any bytes: a file is refused with an error of ours, or
// it works within its limits. Any other exception and any sanitizer report is a bug.
#pragma once

#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/utf8.h"
#include "data/text/chat.h"
#include "data/text/small_tokenizer.h"

namespace braid::testing {

// Whether the bytes were a tokenizer.json. What follows a zero byte is its tokenizer_config.json.
inline bool fuzz_tokenizer(std::string_view bytes) {
  std::unique_ptr<TokenCodec> codec;
  try {
    const std::size_t end = bytes.find('\0');
    nlohmann::json json;
    if (end != bytes.npos) json = parse_json_file(bytes.substr(end + 1), "config");
    const JsonPlace config(json, "config");
    codec = read_hf_codec(bytes.substr(0, end), "input", end != bytes.npos ? &config : nullptr);
  } catch (const DataError&) {
    return false;
  }
  for (const char* text : {"", "hello Hello's 123 <s>\n\n", " \u00e9\u0301\u4f60\U0001f600 <s> x<image>"}) try {
      const std::vector<int> ids = codec->encode(text, /*add_special=*/false);
      for (const int id : ids) BRAID_CHECK(codec->token(id), "id {} of {}", id, codec->vocab_size());
      BRAID_CHECK(is_utf8(codec->decode(ids, /*skip_special=*/false)), "{} tokens", ids.size());
    } catch (const DataError&) {
    }
  return true;
}

// The targets of a conversation are its tokens, or ignored.
inline void fuzz_template_targets(const RenderTurns& render) {
  static const std::vector<ChatTurn> turns = {
      {"system", "Be brief."}, {"user", "<image>\nWhat \u00e9?"}, {"assistant", "<think>hm</think>Yes"},
      {"user", "hello"},       {"assistant", "hello <s> \u00e9"}, {"assistant", "x"}};
  static const Tokenizer tokenizer(read_codec(small_tokenizer()), {}, "tokenizer.json");
  const ChatTokens chat = template_targets(turns, render, tokenizer, "<image>");
  BRAID_CHECK_EQ(chat.tokens.size(), chat.targets.size(), "targets");
  for (std::size_t i = 0; i < chat.tokens.size(); ++i)
    BRAID_CHECK(chat.targets[i] == chat.tokens[i] || chat.targets[i] == kIgnoredLabel, "target {}", i);
}

// Whether the bytes were a template that renders.
inline bool fuzz_chat_template(std::string_view bytes) {
  nlohmann::ordered_json variables = {{"tools", {{{"name", "f"}, {"n", 1}, {"x", 0.5}, {"none", nullptr}}}},
                                      {"bos_token", "<s>"},
                                      {"eos_token", "</s>"}};
  std::int64_t steps = 2'000'000;  // few, so that a template alone cannot make the fuzzer slow
  bool has_rendered = false;
  try {
    const ChatTemplate chat_template(bytes, "input");
    fuzz_template_targets([&](const std::vector<ChatTurn>& turns, bool generation_prompt) {
      variables["messages"] = nlohmann::ordered_json::array();
      for (const ChatTurn& turn : turns) variables["messages"].push_back({{"role", turn.role}, {"content", turn.text}});
      variables["add_generation_prompt"] = generation_prompt;
      const TemplateText text = chat_template.render(variables, steps);
      has_rendered = true;
      return text;
    });
  } catch (const DataError&) {  // a template may also render what cannot be masked
  }
  return has_rendered;
}

}  // namespace braid::testing
