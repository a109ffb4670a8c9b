// Which samples share a sequence. Pure functions of the samples' lengths, so that every reader of a lane packs alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace braid {

using Packs = std::vector<std::vector<std::size_t>>;  // indices into the lengths

// Fills one sequence after the other with the longest sample that still fits. Lengths are at most `capacity`.
Packs pack_greedily(const std::vector<std::int64_t>& lengths, std::int64_t capacity);

// Opens as many sequences as all samples need, and `spare` more, and gives each sample, the longest first, to the
// emptiest: sequences of about equal length. Samples that do not fit there get sequences of their own.
Packs pack_evenly(const std::vector<std::int64_t>& lengths, std::int64_t capacity, int spare);

// As `loader.packing` says.
Packs make_packs(const std::vector<std::int64_t>& lengths, std::int64_t capacity, const std::string& packing);

// The order in which packs are used: a random one, since packing sorts by length. Depends only on its arguments.
void shuffle_packs(Packs& packs, std::uint64_t seed, std::uint64_t round);

}  // namespace braid
