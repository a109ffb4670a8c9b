// Finds any of many short literals in a text in one pass (Wu-Manber, blocks of three bytes): most steps skip several
// bytes. With blocks of two, hundreds of anchors would leave hardly a pair of letters that none of them has.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

class AnchorScan {
 public:
  static constexpr std::size_t kShortest = 6;  // bytes of an anchor; the longest skip is two less

  // `usual` is what most text looks like. Of each anchor those kShortest bytes are searched for that are the least
  // usual, so that usual text is skipped fast.
  AnchorScan(std::vector<std::string> anchors, std::string_view usual);

  // Calls found(anchor's number) for each occurrence of each anchor, until it returns false.
  template <class Found>
  void each(std::string_view text, Found found) const;

 private:
  static constexpr std::size_t kBlock = 3, kLastBlock = kShortest - kBlock;
  static constexpr std::uint8_t kMostShift = kLastBlock + 1;
  static_assert(kMostShift == 4, "a bit of its own, which no smaller shift has");

  // Texts are nearly all letters, whose highest bits are 0: the third byte is laid over those of the other two.
  static std::uint16_t block_at(const char* text) {
    std::uint16_t two;
    std::memcpy(&two, text, sizeof two);
    return static_cast<std::uint16_t>(two ^ (static_cast<unsigned char>(text[2]) << 7));
  }
  static std::vector<int> weights_of_blocks(std::string_view usual);

  struct Entry {
    std::uint32_t head;    // the first four bytes that are searched for
    std::uint16_t before;  // how many bytes of the anchor stand before them
    std::int16_t anchor;
  };

  std::vector<std::string> anchors_;
  std::vector<std::uint8_t> shift_;   // by block_at: how far the window may move
  std::vector<std::uint32_t> first_;  // by block_at: entries_[first_[b]] up to entries_[first_[b + 1]]
  std::vector<Entry> entries_;
};

template <class Found>
void AnchorScan::each(std::string_view text, Found found) const {
  if (text.size() < kShortest) return;
  const std::uint8_t* const shifts = shift_.data();
  const char* const begin = text.data();
  const char* const end = begin + text.size() - (kBlock - 1);  // the last block begins before it
  for (const char* at = begin + kLastBlock; at < end;) {
    // Where nothing is known, two steps at a time, which need not wait for each other.
    while (end - at > kMostShift && (shifts[block_at(at)] & shifts[block_at(at + kMostShift)]) == kMostShift)
      at += 2 * kMostShift;
    if (at >= end) return;
    const std::uint16_t block = block_at(at);
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
