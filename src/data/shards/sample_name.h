// How the members of a shard form samples, as in WebDataset: `000/sample.left.png` is part `left.png` of sample
// `000/sample`. Consecutive members with the same key are one sample.
#pragma once

#include <optional>
#include <string_view>

namespace braid {

struct SampleName {
  std::string_view key, part;
};

// Nothing for members that belong to no sample: names without a dot, and those below `__anything__/`.
std::optional<SampleName> split_sample_name(std::string_view member_name);

}  // namespace braid
