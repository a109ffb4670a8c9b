#include "data/batches/merge_batches.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace braid {

EncoderBatch merge(std::vector<BatchPart> parts) {
  EncoderBatch merged;
  std::vector<at::Tensor> values;
  std::int64_t first_sample = 0;
  const bool any_damage =
      std::any_of(parts.begin(), parts.end(), [](const auto& p) { return !p.batch.damaged.empty(); });
  for (auto& [batch, samples] : parts) {
    const std::size_t items = batch.extents.size();
    BRAID_CHECK_EQ(batch.sample_of.size(), items, "numbers of samples of an encoder batch");
    BRAID_CHECK(batch.damaged.empty() || batch.damaged.size() == items, "marks of damage of an encoder batch");
    if (items > 0) {
      BRAID_CHECK(values.empty() || (values[0].scalar_type() == batch.values.scalar_type() &&
                                     values[0].size(1) == batch.values.size(1)),
                  "values of encoder batches differ in type or width");
      values.push_back(std::move(batch.values));
    }
    std::move(batch.extents.begin(), batch.extents.end(), std::back_inserter(merged.extents));
    for (const std::int64_t sample : batch.sample_of) {
      BRAID_CHECK(sample >= 0 && sample < samples, "sample {} of a part of {}", sample, samples);
      merged.sample_of.push_back(first_sample + sample);
    }
    if (any_damage && batch.damaged.empty()) batch.damaged.assign(items, false);
    merged.damaged.insert(merged.damaged.end(), batch.damaged.begin(), batch.damaged.end());
    std::move(batch.identities.begin(), batch.identities.end(), std::back_inserter(merged.identities));
    first_sample += samples;
  }
  if (!values.empty()) merged.values = at::cat(values);
  return merged;
}

}  // namespace braid
