#include "nn/parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"

namespace braid {
namespace {

// The inverse of softplus at a time step that is log-uniform between 0.001 and 0.1.
double dt_bias_of(double uniform) {
  constexpr double kMin = 0.001, kMax = 0.1, kFloor = 1e-4;
  const double dt = std::max(std::exp(uniform * (std::log(kMax) - std::log(kMin)) + std::log(kMin)), kFloor);
  return dt + std::log(-std::expm1(-dt));
}

double initial_value(const InitRule& rule, const RandomField& field, std::uint64_t index) {
  switch (rule.kind) {
    case InitRule::Zeros:
      return 0;
    case InitRule::Ones:
      return 1;
    case InitRule::Normal:
      return rule.scale * field.normal(index);
    case InitRule::Uniform:
      return rule.scale * (2 * field.uniform(index) - 1);
    case InitRule::DtBias:
      return dt_bias_of(field.uniform(index));
    case InitRule::ALog:
      return std::log(1 + 15 * field.uniform(index));
  }
  return 0;
}

// Fills `values`, [rows, columns] of the shard, for one run of rows.
void fill_run(const RowRun& run, std::int64_t global_columns, const InitRule& rule, const RandomField& field,
              at::Tensor values) {
  auto cells = values.accessor<double, 2>();
  for (std::int64_t row = 0; row < run.rows; ++row)
    for (std::int64_t column = 0; column < run.columns; ++column) {
      const std::int64_t index = (run.global_row + row) * global_columns + run.global_column + column;
      cells[run.local_row + row][run.local_column + column] =
          initial_value(rule, field, static_cast<std::uint64_t>(index));
    }
}

}  // namespace

at::ScalarType storage_type(const ParamSpec& spec, at::ScalarType dtype) {
  return !spec.trainable && dtype != at::kDouble ? at::kFloat : dtype;
}

Parameters::Parameters(const std::vector<ParamSpec>& specs, int stage, const ShardPlace& place, at::ScalarType dtype,
                       const at::Device& device)
    : place_(place) {
  for (const ParamSpec& spec : specs) {
    if (spec.stage != stage) continue;
    BRAID_CHECK(index_.emplace(spec.name, entries_.size()).second, "{} is declared twice", spec.name);
    const auto options = at::TensorOptions(storage_type(spec, dtype)).device(device);
    entries_.push_back({spec, at::empty(local_shape(spec, place), options).requires_grad_(spec.trainable)});
  }
}

void Parameters::initialize(std::uint64_t seed) {
  at::NoGradGuard guard;
  for (Entry& entry : entries_) {
    const ParamSpec& spec = entry.spec;
    const std::int64_t global_columns = spec.shape.size() > 1 ? spec.shape.back() : 1;
    const std::int64_t columns = spec.shape.size() > 1 ? entry.value.size(-1) : 1;
    at::Tensor values = at::empty({columns > 0 ? entry.value.numel() / columns : 0, columns}, at::kDouble);
    const RandomField field(seed, spec.name);
    for (const Box& box : shard_boxes(spec, place_))
      for (const RowRun& run : row_runs(box, spec.shape, entry.value.sizes().vec()))
        fill_run(run, global_columns, spec.init, field, values);
    entry.value.copy_(values.view(entry.value.sizes()));
  }
}

const at::Tensor& Parameters::get(const std::string& name) const {
  const auto found = index_.find(name);
  BRAID_CHECK(found != index_.end(), "no parameter {} on this stage", name);
  return entries_[found->second].value;
}

at::Tensor Parameters::get_if_declared(const std::string& name) const {
  return index_.count(name) ? get(name) : at::Tensor();
}

std::int64_t Parameters::bytes() const {
  std::int64_t sum = 0;
  for (const Entry& entry : entries_) sum += static_cast<std::int64_t>(entry.value.nbytes());
  return sum;
}

bool Parameters::trains() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.value.requires_grad(); });
}

}  // namespace braid
