// Byte-pair encoding, the "model" of a tokenizer.json: a word starts as single characters, and the pair of neighbours
// with the lowest rank is merged, leftmost first, until no pair has a rank.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/text/json_place.h"

namespace braid {

// The hash tables below serve a tokenizer's inner loops: open addressing in one allocation.
inline std::uint64_t mixed(std::uint64_t value) {
  value *= 0x9e3779b97f4a7c15u;
  return value ^ value >> 32;
}

inline std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = text.size();
  const char* at = text.data();
  std::size_t left = text.size();
  for (std::uint64_t word; left >= sizeof word; at += sizeof word, left -= sizeof word) {
    std::memcpy(&word, at, sizeof word);
    hash = mixed(hash ^ word);
  }
  std::uint64_t last = 0;
  std::memcpy(&last, at, left);
  return mixed(mixed(hash ^ last));
}

// From two numbers to two numbers; built once, then only read.
class PairTable {
 public:
  struct Value {
    std::uint32_t first = 0, second = 0;
  };

  explicit PairTable(std::size_t count = 0) : slots_(std::bit_ceil(count + count / 2 + 2)), mask_(slots_.size() - 1) {}

  // At most as many different pairs as were announced. A pair that exists gets the new value.
  void put(std::uint32_t left, std::uint32_t right, Value value) {
    Slot& slot = slots_[place_of(key_of(left, right))];
    slot = {key_of(left, right), value};
  }

  const Value* find(std::uint32_t left, std::uint32_t right) const {
    const Slot& slot = slots_[place_of(key_of(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.value;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kEmpty;
    Value value;
  };

  static std::uint64_t key_of(std::uint32_t left, std::uint32_t right) { return std::uint64_t{left} << 32 | right; }
  std::size_t place_of(std::uint64_t key) const {
    std::size_t place = mixed(key) & mask_;
    while (slots_[place].key != key && slots_[place].key != kEmpty) place = (place + 1) & mask_;
    return place;
  }

  std::vector<Slot> slots_;
  std::size_t mask_;
};

// The tokens of words seen before. Its size is bounded: when it is full, it starts again empty.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 256;

  // The ids of a word that was put before, valid until the next put(); null data: unknown.
  std::span<const int> find(std::string_view word, std::uint64_t hash) const {
    for (std::size_t place = hash & kMask; slots_[place].count > 0; place = (place + 1) & kMask)
      if (const Slot& slot = slots_[place];
          slot.hash == hash && word == std::string_view(words_).substr(slot.word, slot.length))
        return {ids_.data() + slot.id, slot.count};
    return {};
  }

  // A word that is unknown, with at least one id.
  void put(std::string_view word, std::uint64_t hash, std::span<const int> ids) {
    if (word.size() > kLongestWord) return;
    if (words_held_ == kMostWords) *this = WordCache();
    ++words_held_;
    std::size_t place = hash & kMask;
    while (slots_[place].count > 0) place = (place + 1) & kMask;
    slots_[place] = {hash, static_cast<std::uint32_t>(words_.size()), static_cast<std::uint32_t>(word.size()),
                     static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint32_t>(ids.size())};
    words_ += word;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

 private:
  static constexpr std::size_t kSlots = 1 << 16, kMask = kSlots - 1, kMostWords = kSlots / 2;
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t word = 0, length = 0, id = 0, count = 0;  // count 0: empty
  };

  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
  std::string words_;
  std::vector<int> ids_;
  std::size_t words_held_ = 0;
};

// The tokens of a model and their ids, in both directions.
class Vocabulary {
 public:
  // {"token": id, ...}. DataError if two tokens have one id, or an id is far beyond the number of tokens.
  explicit Vocabulary(const JsonPlace& place);
  Vocabulary(const Vocabulary&) = delete;

  std::optional<int> find(std::string_view token) const;
  bool has(int id) const { return id >= 0 && id < end_id() && is_used_[static_cast<std::size_t>(id)]; }
  const std::string& token(int id) const { return tokens_[static_cast<std::size_t>(id)]; }
  int end_id() const { return static_cast<int>(tokens_.size()); }  // one more than the largest id
  int count() const { return static_cast<int>(ids_.size()); }

 private:
  struct Hash {
    std::size_t operator()(std::string_view token) const { return hash_of(token); }
  };

  std::vector<std::string> tokens_;  // by id
  std::vector<bool> is_used_;
  std::unordered_map<std::string_view, int, Hash> ids_;  // of texts in tokens_
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
