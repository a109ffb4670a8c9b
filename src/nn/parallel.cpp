#include "nn/parallel.h"
#include <ATen/core/Tensor.h>
#include <ATen/ops/movedim.h>
#include "base/error.h"
#include "comm/collectives.h"
#include "comm/world.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

std::vector<std::int64_t> even_rows(const at::Tensor& x, const Group& group) {
  BRAID_CHECK_EQ(x.size(0) % group.size(), 0, "rows to split over {}", group.name());
  return std::vector<std::int64_t>(group.size(), x.size(0) / group.size());
}

}  // namespace

Parallel make_parallel(const Groups& groups, const std::string& module, bool sequence_parallel,
                       const OverlapConfig& overlap) {
  const auto get = [&](const char* key) { return groups.get(module, key); };
  return {get("tp"), get("cp"), get("cp-tp"), get("ep"), get("expt_tp"), sequence_parallel && get("tp").size() > 1,
          overlap};
}

at::Tensor gather_sequence(const at::Tensor& x, const Parallel& parallel) {
  return parallel.sequence_parallel ? all_gather(x, parallel.tp, 0) : x;
}

at::Tensor reduce_to_sequence(const at::Tensor& partial, const Parallel& parallel, Result result) {
  if (parallel.tp.size() == 1) return partial;
  return parallel.sequence_parallel ? reduce_scatter(partial, parallel.tp, 0, result)
                                    : all_reduce(partial, parallel.tp, result);
}

at::Tensor gather_features(const at::Tensor& own, const Parallel& parallel) {
  return parallel.tp.size() > 1 ? all_gather(own, parallel.tp, 1) : own;
}

VocabularyRanks vocabulary_of(const Group& tp) {
  return {.rank = tp.rank(),
          .count = tp.size(),
          .max_over_ranks = [tp](at::Tensor& values) { tp.all_reduce(values, Reduce::Max); },
          .sum_over_ranks = [tp](at::Tensor& values) { tp.all_reduce(values); }};
}

at::Tensor sequence_to_heads(const at::Tensor& x, const Group& cp) {
  if (cp.size() == 1) return x;
  BRAID_CHECK_EQ(x.size(1) % cp.size(), 0, "heads to split over {}", cp.name());
  // The heads of rank r must come r-th: [t, cp, heads / cp, ...] -> [cp, t, heads / cp, ...].
  const at::Tensor by_rank = x.unflatten(1, {cp.size(), x.size(1) / cp.size()}).movedim(1, 0).flatten(0, 1);
  const std::vector<std::int64_t> rows = even_rows(by_rank, cp);
  return all_to_all(by_rank, rows, rows, cp);
}

at::Tensor heads_to_sequence(const at::Tensor& x, const Group& cp) {
  if (cp.size() == 1) return x;
  const std::vector<std::int64_t> rows = even_rows(x, cp);
  const at::Tensor by_rank = all_to_all(x, rows, rows, cp);
  return by_rank.unflatten(0, {cp.size(), x.size(0) / cp.size()}).movedim(0, 1).flatten(1, 2);
}

at::Tensor own_rows(const at::Tensor& x, const Parallel& parallel) {
  if (parallel.tp.size() == 1 || parallel.sequence_parallel) return x;
  const std::int64_t rows = even_rows(x, parallel.tp)[0];
  return x.narrow(0, parallel.tp.rank() * rows, rows);
}

at::Tensor all_rows(const at::Tensor& own, const Parallel& parallel, Result result) {
  if (parallel.tp.size() == 1 || parallel.sequence_parallel) return own;
  return all_gather(own, parallel.tp, 0, result);
}

}  // namespace braid
