#include "optim/bucket_layout.h"

#include <algorithm>
#include <numeric>

namespace braid {
namespace {

constexpr std::int64_t kParameterAlignment = 64, kBucketAlignment = 128, kBandwidthAlignment = 1 << 16;

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

BucketLayout lay_out_buckets(const std::vector<std::int64_t>& sizes, int group_size, const BucketOptions& options) {
  const std::int64_t unit =
      std::lcm<std::int64_t>(group_size, options.pad_for_bandwidth ? kBandwidthAlignment : kBucketAlignment);
  BucketLayout layout;
  BucketLayout::Bucket bucket;
  const auto close = [&] {
    bucket.last_slot = layout.slots.size() - 1;
    bucket.span.end = bucket.span.begin + round_up(bucket.used_end - bucket.span.begin, unit);
    layout.buckets.push_back(bucket);
    layout.size = bucket.span.end;
    bucket = {.span = {layout.size, layout.size}, .used_end = layout.size, .first_slot = layout.slots.size()};
  };
  const auto begins_stage = [&](std::size_t parameter) {
    return !options.stages.empty() && parameter > 0 && options.stages[parameter - 1] != options.stages[parameter];
  };
  for (std::size_t parameter = sizes.size(); parameter-- > 0;) {
    const std::int64_t begin = round_up(bucket.used_end, kParameterAlignment);
    bucket.used_end = begin + sizes[parameter];
    layout.slots.push_back({parameter, {begin, bucket.used_end}, layout.buckets.size()});
    const bool full = options.bucket_size > 0 && bucket.used_end - bucket.span.begin >= options.bucket_size;
    if (full || begins_stage(parameter)) close();
  }
  if (bucket.first_slot < layout.slots.size()) close();
  return layout;
}

Span intersection(const Span& a, const Span& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Span owned_span(const BucketLayout::Bucket& bucket, int shard, int shards) {
  const std::int64_t part = bucket.span.size() / shards;
  return {bucket.span.begin + shard * part, bucket.span.begin + (shard + 1) * part};
}

}  // namespace braid
