// The fuzz targets of text/, and the property that must hold for any bytes: a file is refused with an error of ours, or
// it works within its limits. Any other exception and any sanitizer report is a bug.
#pragma once

#include <nlohmann/json.hpp>

#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "text/chat_template.h"
#include "text/hf_codec.h"

namespace braid::testing {

// Whether the bytes were a tokenizer.json.
inline bool fuzz_tokenizer(std::string_view bytes) {
  std::unique_ptr<TokenCodec> codec;
  try {
    codec = read_hf_codec(bytes, "input");
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

// Whether the bytes were a template that renders.
inline bool fuzz_chat_template(std::string_view bytes) {
  static const nlohmann::ordered_json variables = {
      {"messages",
       {{{"role", "system"}, {"content", "Be brief."}},
        {{"role", "user"}, {"content", "<image>\nWhat \u00e9?"}},
        {{"role", "assistant"}, {"content", "<think>hm</think>Yes"}}}},
      {"tools", {{{"name", "f"}, {"n", 1}, {"x", 0.5}, {"none", nullptr}}}},
      {"bos_token", "<s>"},
      {"eos_token", "</s>"},
      {"add_generation_prompt", true}};
  try {
    ChatTemplate(bytes, "input").render(variables);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace braid::testing
