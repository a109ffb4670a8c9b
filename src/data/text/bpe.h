// Byte-pair encoding, the "model" of a tokenizer.json: a word starts as single characters, and the pair of neighbours
// with the lowest rank is merged, leftmost first, until no pair has a rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/flat_table.h"
#include "data/text/json_place.h"

namespace braid {

// The tokens of a model and their ids, in both directions.
class Vocabulary {
 public:
  // {"token": id, ...}. DataError if two tokens have one id, or an id is far beyond the number of tokens.
  explicit Vocabulary(const JsonPlace& place);

  std::optional<int> find(std::string_view token) const;
  bool has(int id) const { return id >= 0 && id < end_id() && is_used_[static_cast<std::size_t>(id)]; }
  const std::string& token(int id) const { return tokens_[static_cast<std::size_t>(id)]; }
  int end_id() const { return static_cast<int>(tokens_.size()); }  // one more than the largest id
  int count() const { return count_; }

 private:
  std::size_t place_of(std::string_view token) const;

  std::vector<std::string> tokens_;  // by id
  std::vector<bool> is_used_;
  std::vector<int> slots_;  // ids; -1: empty
  int count_ = 0;
};

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
