// The layout of parameters in a flat buffer that is reduced bucket by bucket, as in Megatron: last declared first,
// since backward finishes those first; every bucket divides evenly among the ranks that reduce it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace braid {

struct Span {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Span&) const = default;
};

struct BucketOptions {
  std::int64_t bucket_size = 0;  // elements after which a bucket is closed; 0: one bucket
  bool pad_for_bandwidth = false;
  std::vector<int>
      stages{};  // by parameter, ascending: a bucket holds parameters of one stage; empty: all belong to one
};

struct BucketLayout {
  struct Slot {
    std::size_t parameter;  // in declaration order
    Span span;              // in the buffer
    std::size_t bucket;
  };
  struct Bucket {
    Span span;                  // with its padding
    std::int64_t used_end = 0;  // where its last parameter ends
    std::size_t first_slot = 0, last_slot = 0;
  };
  std::vector<Slot> slots;  // in buffer order
  std::vector<Bucket> buckets;
  std::int64_t size = 0;
};

// `sizes`: elements of each parameter, in declaration order. `group_size`: ranks that reduce the buffer together.
BucketLayout lay_out_buckets(const std::vector<std::int64_t>& sizes, int group_size, const BucketOptions& options);

Span intersection(const Span& a, const Span& b);

// The slice of a bucket that one of `shards` equal owners holds.
Span owned_span(const BucketLayout::Bucket& bucket, int shard, int shards);

}  // namespace braid
