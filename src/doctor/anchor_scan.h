// Finds any of many short literals in a text in one pass (Wu-Manber, blocks of two bytes): most steps skip several
// bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

class AnchorScan {
 public:
  static constexpr std::size_t kShortest = 6;  // bytes of an anchor; the longest skip is one less

  // `usual` is what most text looks like. Of each anchor those kShortest bytes are searched for that are the least
  // usual, so that usual text is skipped fast.
  AnchorScan(std::vector<std::string> anchors, std::string_view usual);

  // Calls found(anchor's number) for every anchor at every place, until it returns false.
  template <class Found>
  void each(std::string_view text, Found found) const;

 private:
  static constexpr std::size_t kLastBlock = kShortest - 2;

  struct Entry {
    std::uint32_t head;    // the first four bytes that are searched for
    std::uint16_t before;  // how many bytes of the anchor stand before them
    std::int16_t anchor;
  };

  std::vector<std::string> anchors_;
  std::vector<std::uint8_t> shift_;   // by block: how far the window may move
  std::vector<std::uint32_t> first_;  // by block: entries_[first_[b]] up to entries_[first_[b + 1]]
  std::vector<Entry> entries_;
};

template <class Found>
void AnchorScan::each(std::string_view text, Found found) const {
  if (text.size() < kShortest) return;
  const std::uint8_t* const shifts = shift_.data();
  const char* const begin = text.data();
  const char* const end = begin + text.size() - 1;  // the last block begins before it
  for (const char* at = begin + kLastBlock; at < end;) {
    std::uint16_t block;
    std::memcpy(&block, at, sizeof block);
    if (const std::uint8_t shift = shifts[block]) {
      at += shift;
      continue;
    }
    const auto start = static_cast<std::size_t>(at - begin) - kLastBlock;
    std::uint32_t head;
    std::memcpy(&head, begin + start, sizeof head);
    for (std::uint32_t i = first_[block]; i < first_[block + 1u]; ++i) {
      const Entry& entry = entries_[i];
      if (entry.head != head || start < entry.before) continue;
      const std::string& anchor = anchors_[static_cast<std::size_t>(entry.anchor)];
      if (text.compare(start - entry.before, anchor.size(), anchor) == 0 && !found(static_cast<int>(entry.anchor)))
        return;
    }
    ++at;
  }
}

}  // namespace braid
