// The tokens of words seen before. Its size is bounded: when it is full, it starts again empty.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/flat_table.h"

namespace braid {

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

}  // namespace braid
