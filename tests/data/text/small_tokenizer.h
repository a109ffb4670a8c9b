// A tokenizer.json that fits a screen: byte-level BPE with GPT-2's splits.
#pragma once

#include <nlohmann/json.hpp>
#include "data/text/tokenizer.h"
#include "data/text/unicode.h"

namespace braid::testing {

inline nlohmann::json small_tokenizer() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    append_byte_level(character, std::string(1, static_cast<char>(byte)));
    vocab[character] = byte;
  }
  vocab["he"] = 256;
  vocab["ll"] = 257;
  vocab["hell"] = 258;
  vocab["hello"] = 259;
  const auto added = [](int id, const char* content) {
    return nlohmann::json{{"id", id}, {"content", content}, {"normalized", false}, {"special", true}};
  };
  return {{"version", "1.0"},
          {"added_tokens", {added(260, "<s>"), added(261, "<image>"), added(262, "<image><image>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"h e", "l l", "he ll", "hell o"}}}}};
}

inline std::unique_ptr<TokenCodec> read_codec(const nlohmann::json& json) {
  return read_hf_codec(json.dump(), "tokenizer.json");
}

}  // namespace braid::testing
