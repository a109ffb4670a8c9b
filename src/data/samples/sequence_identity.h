// Which samples a sequence consists of. The ranks that read its text and those that read its pictures do so
// independently, and compare this every step (mimo/batch_feed.h): whatever makes them read different samples ends the
// run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace braid {

struct ReadSample;

struct SequenceIdentity {
  // Of what every reader of the sequence must agree on. It has 53 bits, so that a double holds it exactly, and is not
  // 0.
  std::int64_t hash = 0;
  std::vector<std::string> samples{};  // for messages: lane, sample and shard
};

// Covers each sample's place in the data set, its key, its tokens, and where its pictures are.
SequenceIdentity identity_of(const std::vector<ReadSample>& pack);
SequenceIdentity identity_of_mock(std::int64_t number);

}  // namespace braid
