// A tokenizer for the drawn data set: all bytes, and the words of its questions and answers as single tokens, which are
// taken whole (ignore_merges), so it needs no merges.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/draw/data_set.h"
#include "data/text/byte_level.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kImageId = 511;  // where the tiny models expect it

// By byte: the character that stands for it in byte-level vocabularies.
std::vector<std::string> byte_letters() {
  std::vector<std::string> letters(256);
  for (int byte = 0; byte < 256; ++byte) {
    const char letter = static_cast<char>(byte);
    append_byte_level(letters[static_cast<std::size_t>(byte)], {&letter, 1});
  }
  return letters;
}

Json special(int id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

std::string drawing_tokenizer(const std::vector<std::string>& words) {
  const std::vector<std::string> letters = byte_letters();
  Json vocab = Json::object(), added = Json::array();
  int next = 0;
  for (const char* token : {"<pad>", "<|im_start|>", "<|im_end|>"}) added.push_back(special(next++, token));
  for (const std::string& letter : letters) vocab[letter] = next++;
  const std::string& space = letters[' '];
  for (const std::string& word : words)
    for (const std::string& token : {space + word, word})
      if (!vocab.contains(token)) vocab[token] = next++;
  BRAID_CHECK(next <= kImageId, "{} tokens of words and bytes", next);
  added.push_back(special(kImageId, "<image>"));
  for (const Json& token : added) vocab[token["content"].get<std::string>()] = token["id"];
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"ignore_merges", true},
                            {"vocab", vocab},
                            {"merges", Json::array()}}}};
  return tokenizer.dump(1);
}

}  // namespace braid
