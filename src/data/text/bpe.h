// Byte-pair encoding, the "model" of a tokenizer.json: a word starts as single characters, and the pair of neighbours
// with the lowest rank is merged, leftmost first, until no pair has a rank.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/flat_table.h"
#include "data/text/json_place.h"
#include "data/text/vocabulary.h"
#include "data/text/word_cache.h"

namespace braid {

class Bpe {
 public:
  // What one caller at a time needs while it encodes.
  struct Workspace {
    WordCache cache;
    std::vector<int> ids;       // of the word, merged in place
    std::vector<int> ranks;     // ranks[i]: of the pair ids[i], ids[i+1]
    std::vector<int> products;  // products[i]: what that pair becomes
  };

  // DataError for other models, options that are not supported, and merges of unknown tokens.
  explicit Bpe(const JsonPlace& place);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  // Appends the tokens of one piece (valid UTF-8).
  void encode(std::string_view word, Workspace& workspace, std::vector<int>& out) const;

 private:
  void read_merges(const JsonPlace& place);
  void split_characters(std::string_view word, std::vector<int>& ids) const;
  std::optional<int> id_of_character(std::string_view character, bool is_first, bool is_last) const;
  bool append_bytes(std::string_view character, bool is_first, bool is_last, std::vector<int>& ids) const;
  std::string decorated(std::string_view character, bool is_first, bool is_last) const;
  int id_of_unknown(std::string_view character) const;
  void merge_short(Workspace& workspace) const;
  void merge_long(std::vector<int>& ids) const;

  Vocabulary vocabulary_;
  PairTable merges_;                         // ids of a pair -> rank, id of the product
  std::array<int, 0x800> short_characters_;  // ids of characters of one or two bytes; -1: none
  std::string unknown_token_, where_;
  std::optional<int> unknown_id_;
  std::string prefix_, suffix_;  // of tokens inside a word, and at its end
  bool byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
};

}  // namespace braid
