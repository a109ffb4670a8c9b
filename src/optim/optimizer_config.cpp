#include "optim/optimizer_config.h"

#include <algorithm>

namespace braid {

void describe(Fields& fields, OptimizerConfig& config) {
  fields.field("beta1", config.beta1, "decay of Adam's first moment");
  fields.field("beta2", config.beta2, "decay of Adam's second moment");
  fields.field("eps", config.eps, "added to the root of Adam's second moment");
  fields.field("clip_grad", config.clip_grad, "largest global gradient norm; 0: no clipping");
  fields.field("zero", config.zero,
               "each rank updates only its shard of the parameters and stores only the optimizer state of that shard");
  fields.field("overlap_grad_reduce", config.overlap_grad_reduce, "reduce gradients during the last backward");
  fields.field("overlap_param_gather", config.overlap_param_gather,
               "gather updated parameters while the next step begins; needs zero and overlap_grad_reduce");
  fields.field("bucket_size", config.bucket_size,
               "elements per bucket, 0: one bucket; default: one bucket without overlap, else by the group's size");
  fields.field("bucket_count", config.bucket_count, "approximate number of buckets per module; instead of bucket_size");
  fields.field("pad_buckets", config.pad_buckets, "pad buckets to 2^16 elements, which NCCL moves faster");
}

std::vector<Problem> validate(const OptimizerConfig& config, const std::string& where) {
  std::vector<Problem> problems;
  const auto add = [&](const char* field, std::string what, std::string fix) {
    problems.push_back({std::move(what), where + "." + field, std::move(fix)});
  };
  // Written this way round so that NaN fails too.
  const auto expect = [&](bool valid, const char* field, auto value, const char* range) {
    if (!valid) add(field, fmt::format("{}={} must be {}", field, value, range), fmt::format("use {}", range));
  };
  const char* fraction = "0 or more and less than 1";
  expect(config.beta1 >= 0 && config.beta1 < 1, "beta1", config.beta1, fraction);
  expect(config.beta2 >= 0 && config.beta2 < 1, "beta2", config.beta2, fraction);
  expect(config.eps > 0, "eps", config.eps, "more than 0");
  expect(config.clip_grad >= 0, "clip_grad", config.clip_grad, "0 or more");
  if (config.bucket_size) expect(*config.bucket_size >= 0, "bucket_size", *config.bucket_size, "0 or more");
  if (config.bucket_count) expect(*config.bucket_count >= 1, "bucket_count", *config.bucket_count, "1 or more");
  if (config.bucket_size && config.bucket_count)
    add("bucket_count",
        fmt::format("bucket_count={} and bucket_size={} both set the size of buckets", *config.bucket_count,
                    *config.bucket_size),
        "give one of them");
  if (config.overlap_param_gather && !config.zero)
    add("overlap_param_gather", "overlap_param_gather=true, but with zero=false no parameters are gathered",
        "use zero=true, or overlap_param_gather=false");
  if (config.overlap_param_gather && !config.overlap_grad_reduce)
    add("overlap_param_gather", "overlap_param_gather=true needs overlap_grad_reduce=true",
        "use overlap_grad_reduce=true, or overlap_param_gather=false");
  return problems;
}

std::int64_t bucket_elements(const OptimizerConfig& config, std::int64_t module_parameters, int group_size) {
  if (config.bucket_count) return std::max<std::int64_t>(1, module_parameters / *config.bucket_count);
  if (config.bucket_size) return *config.bucket_size;
  return config.overlap_grad_reduce ? std::max<std::int64_t>(40'000'000, std::int64_t{1'000'000} * group_size) : 0;
}

}  // namespace braid
