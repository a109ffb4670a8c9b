// Which samples of a data set each worker reads, as in Energon: all workers get an equal consecutive share, cut into
// slices at shard borders. Depends only on the total number of workers, not on how ranks group them.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace braid {

// 0 .. n-1 such that every prefix is spread evenly: for powers of two, with the bits of each index reversed.
std::vector<std::int64_t> bit_reversal(std::int64_t n);

// The range of one worker. `order` is the bit_reversal() of the number of workers: the samples that remain after
// division go to workers in this order, starting after the first `rotation` of it.
std::pair<std::int64_t, std::int64_t> worker_range(std::pair<std::int64_t, std::int64_t> samples,
                                                   const std::vector<std::int64_t>& order, std::int64_t rotation,
                                                   std::int64_t worker);

// The borders of slices of `range`: none crosses a border of `shard_starts`, and each has about `longest` samples.
// Empty if the range is.
std::vector<std::int64_t> slice_borders(std::pair<std::int64_t, std::int64_t> range,
                                        const std::vector<std::int64_t>& shard_starts,
                                        std::optional<std::int64_t> longest);

}  // namespace braid
