#include "doctor/anchor_scan.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace braid {
namespace {

constexpr std::size_t kBlocks = 1 << 16;

std::uint16_t block_at(const char* text) {
  std::uint16_t block;
  std::memcpy(&block, text, sizeof block);
  return block;
}

std::uint32_t head_at(const char* text) {
  std::uint32_t head;
  std::memcpy(&head, text, sizeof head);
  return head;
}

}  // namespace

// Only the first kShortest bytes of each anchor take part in skipping: a window of that size slides over the text, and
// shift_ tells from its last block how far it may move without passing the beginning of an anchor.
AnchorScan::AnchorScan(std::vector<std::string> anchors) : anchors_(std::move(anchors)) {
  shift_.assign(kBlocks, kShortest - 1);
  first_.assign(kBlocks + 1, 0);
  for (std::size_t i = 0; i < anchors_.size(); ++i) {
    const std::string& anchor = anchors_[i];
    BRAID_CHECK(anchor.size() >= kShortest, "the anchor '{}' is too short", anchor);
    for (std::size_t at = 0; at + 2 <= kShortest; ++at) {
      std::uint8_t& shift = shift_[block_at(anchor.data() + at)];
      shift = std::min(shift, static_cast<std::uint8_t>(kShortest - 2 - at));
    }
    ++first_[block_at(anchor.data() + kShortest - 2) + 1];
    entries_.push_back({head_at(anchor.data()), static_cast<int>(i)});
  }
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  std::stable_sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
    return block_at(anchors_[a.anchor].data() + kShortest - 2) < block_at(anchors_[b.anchor].data() + kShortest - 2);
  });
}

int AnchorScan::match_at(std::string_view text, std::size_t begin, std::uint16_t block, int after) const {
  const std::uint32_t head = head_at(text.data() + begin);
  for (std::uint32_t i = first_[block]; i < first_[block + 1]; ++i) {
    if (entries_[i].head != head || entries_[i].anchor <= after) continue;
    if (text.compare(begin, anchors_[entries_[i].anchor].size(), anchors_[entries_[i].anchor]) == 0)
      return entries_[i].anchor;
  }
  return -1;
}

AnchorScan::Hit AnchorScan::find(std::string_view text, std::size_t from, int after) const {
  if (from >= text.size() || text.size() - from < kShortest) return {npos, -1};
  const char* const begin = text.data();
  const char* const last = begin + text.size() - 2;  // where the last block begins
  const std::uint8_t* const shifts = shift_.data();
  for (const char* at = begin + from + kShortest - 2; at <= last;) {
    const std::uint16_t block = block_at(at);
    const std::uint8_t shift = shifts[block];
    if (shift != 0) {
      at += shift;
      continue;
    }
    const std::size_t start = static_cast<std::size_t>(at - begin) - (kShortest - 2);
    const int anchor = match_at(text, start, block, start == from ? after : -1);
    if (anchor >= 0) return {start, anchor};
    ++at;
  }
  return {npos, -1};
}

}  // namespace braid
