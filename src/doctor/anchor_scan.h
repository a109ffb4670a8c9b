// Finds any of many short literals in a text in one pass (Wu-Manber, blocks of two bytes): most steps skip several bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

class AnchorScan {
 public:
  static constexpr std::size_t kShortest = 5;  // bytes of an anchor; the longest skip is one less

  explicit AnchorScan(std::vector<std::string> anchors);

  struct Hit {
    std::size_t begin = 0;  // of the anchor in the text; npos: there is none
    int anchor = -1;        // as numbered in the constructor
  };
  static constexpr std::size_t npos = std::string_view::npos;

  // The first hit that begins at `from` or later. Several anchors may begin at one place: the lowest number is told, and
  // `after` asks for the next number at the same place.
  Hit find(std::string_view text, std::size_t from, int after = -1) const;

 private:
  struct Entry {
    std::uint32_t head;  // the first four bytes
    int anchor;
  };
  int match_at(std::string_view text, std::size_t begin, std::uint16_t block, int after) const;

  std::vector<std::string> anchors_;
  std::vector<std::uint8_t> shift_;                // by block
  std::vector<std::uint32_t> first_;               // by block: entries_[first_[b]] up to entries_[first_[b + 1]]
  std::vector<Entry> entries_;
};

}  // namespace braid
