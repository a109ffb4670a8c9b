#include "cluster/doctor/anchor_scan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace braid {
namespace {

constexpr std::size_t kBlocks = 1 << 16;

}  // namespace

// Letters are more usual than the sample can show.
std::vector<int> AnchorScan::weights_of_blocks(std::string_view usual) {
  constexpr std::string_view kSmall = "abcdefghijklmnopqrstuvwxyz ";
  std::vector<int> weights(kBlocks, 0);
  for (const char a : kSmall)
    for (const char b : kSmall)
      for (const char c : kSmall) {
        const char letters[kBlock] = {a, b, c};
        weights[block_at(letters)] = 1;
      }
  for (std::size_t i = 0; i + kBlock <= usual.size(); ++i) weights[block_at(usual.data() + i)] += 10;
  return weights;
}

AnchorScan::AnchorScan(std::vector<std::string> anchors, std::string_view usual) : anchors_(std::move(anchors)) {
  shift_.assign(kBlocks, kMostShift);
  first_.assign(kBlocks + 1, 0);
  const std::vector<int> weights = weights_of_blocks(usual);
  std::vector<std::uint16_t> last_blocks;
  for (std::size_t i = 0; i < anchors_.size(); ++i) {
    const std::string& anchor = anchors_[i];
    BRAID_CHECK(anchor.size() >= kShortest && anchor.size() < 1000, "'{}' cannot be an anchor", anchor);
    std::size_t best = 0;
    int least = std::numeric_limits<int>::max();
    for (std::size_t begin = 0; begin + kShortest <= anchor.size(); ++begin) {
      int weight = 0;  // blocks near the end of the window cost the more, since they leave shorter skips
      for (std::size_t at = 0; at <= kLastBlock; ++at)
        weight += static_cast<int>(at + 1) * weights[block_at(anchor.data() + begin + at)];
      if (weight < least) least = weight, best = begin;
    }
    const char* const window = anchor.data() + best;
    for (std::size_t at = 0; at <= kLastBlock; ++at) {
      std::uint8_t& shift = shift_[block_at(window + at)];
      shift = std::min(shift, static_cast<std::uint8_t>(kLastBlock - at));
    }
    std::uint32_t head;
    std::memcpy(&head, window, sizeof head);
    entries_.push_back({head, static_cast<std::uint16_t>(best), static_cast<std::int16_t>(i)});
    last_blocks.push_back(block_at(window + kLastBlock));
    ++first_[last_blocks.back() + 1u];
  }
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  std::stable_sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
    return last_blocks[static_cast<std::size_t>(a.anchor)] < last_blocks[static_cast<std::size_t>(b.anchor)];
  });
}

}  // namespace braid
