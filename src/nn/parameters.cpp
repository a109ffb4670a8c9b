#include "nn/parameters.h"
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <future>
#include "base/error.h"
#include "base/philox.h"
#include "base/ranges.h"
#include "kernels/rows.h"
#include "ops/has_kernel.h"
#include "ops/quantize.h"

namespace braid {
namespace {

// The inverse of softplus at a time step that is log-uniform between 0.001 and 0.1.
double dt_bias_of(double uniform) {
  constexpr double kMin = 0.001, kMax = 0.1, kFloor = 1e-4;
  const double dt = std::max(std::exp(uniform * (std::log(kMax) - std::log(kMin)) + std::log(kMin)), kFloor);
  return dt + std::log(-std::expm1(-dt));
}

// The elements of a parameter from index `begin` on, numbered over its global shape.
void fill_values(const InitRule& rule, const RandomField& field, std::uint64_t begin, std::span<double> values) {
  const auto transform = [&](auto value_of) { std::transform(values.begin(), values.end(), values.begin(), value_of); };
  if (rule.kind == InitRule::Normal) {
    field.fill_normal(begin, values);
    return transform([&](double normal) { return rule.scale * normal; });
  }
  field.fill_uniform(begin, values);
  switch (rule.kind) {
    case InitRule::Uniform: return transform([&](double uniform) { return rule.scale * (2 * uniform - 1); });
    case InitRule::DtBias: return transform(dt_bias_of);
    case InitRule::ALog: return transform([](double uniform) { return std::log(1 + 15 * uniform); });
    default: BRAID_CHECK(false, "rule {} has no values to draw", static_cast<int>(rule.kind));
  }
}

// Splits [begin, end) over as many threads as ATen has. Not at::parallel_for, which uses one thread in files that are
// not compiled for OpenMP.
void in_parallel(std::int64_t begin, std::int64_t end, std::int64_t least_per_thread,
                 const std::function<void(std::int64_t, std::int64_t)>& run_part) {
  const std::int64_t useful = (end - begin + least_per_thread - 1) / least_per_thread;
  const std::int64_t parts = std::clamp<std::int64_t>(useful, 1, at::get_num_threads());
  const auto border = [&](std::int64_t part) { return begin + (end - begin) * part / parts; };
  std::vector<std::future<void>> others;  // their destructors wait for the threads if this one throws
  for (std::int64_t part = 1; part < parts; ++part)
    others.push_back(std::async(std::launch::async, run_part, border(part), border(part + 1)));
  run_part(begin, border(1));
  for (std::future<void>& other : others) other.get();
}

// One parameter's shard as a matrix of rows along the last dimension. The host fills it in blocks of bounded
// size.
class Initialization {
 public:
  Initialization(const Parameters::Entry& entry, const ShardCoordinates& coordinates, std::uint64_t seed)
      : rule_(entry.spec.init), field_(seed, entry.spec.name),
        shard_(entry.spec.shape.size() > 1 ? entry.value.flatten(0, -2) : entry.value.unsqueeze(1)),
        columns_(shard_.size(1)), global_columns_(entry.spec.shape.size() > 1 ? entry.spec.shape.back() : 1) {
    for (const Box& box : shard_boxes(entry.spec, coordinates))
      for (const RowRun& run : row_runs(box, entry.spec.shape, entry.value.sizes().vec())) add(run);
  }

  void initialize_shard(std::atomic<std::int64_t>& done) {
    if (shard_.numel() == 0) return;
    if (!has_kernel({shard_}) || (rule_.kind != InitRule::Normal && rule_.kind != InitRule::Uniform))
      return initialize_on_host(done);
    initialize_on_gpu();
    done += shard_.numel();
  }

 private:
  // Joins runs that are neighbours in the shard and in the whole: a GPU fills a run at a time.
  void add(const RowRun& run) {
    const auto continues = [&](const RowRun& last) {
      return run.global_row == last.global_row + last.rows && run.local_row == last.local_row + last.rows &&
             run.global_column == last.global_column && run.local_column == last.local_column &&
             run.columns == last.columns;
    };
    if (!runs_.empty() && continues(runs_.back()))
      runs_.back().rows += run.rows;
    else
      runs_.push_back(run);
  }

  std::int64_t first_value(const RowRun& run) const { return run.global_row * global_columns_ + run.global_column; }

  void initialize_on_gpu() const {
    for (const RowRun& run : runs_) {
      const kernels::RandomRows values = {field_.seed(), field_.name_hash(),
                                          static_cast<std::uint64_t>(first_value(run)),
                                          static_cast<std::uint64_t>(global_columns_)};
      call<kernels::draw>(shard_.narrow(0, run.local_row, run.rows).narrow(1, run.local_column, run.columns), values,
                          rule_.kind == InitRule::Normal, rule_.scale);
    }
    shard_.unsafeGetTensorImpl()->bump_version();  // fp8 copies of weights go by it
  }

  void initialize_on_host(std::atomic<std::int64_t>& done) const {
    constexpr std::int64_t kElementsAtOnce = 1 << 22, kLeastPerThread = 1 << 14;
    const std::int64_t rows_at_once = std::max<std::int64_t>(kElementsAtOnce / columns_, 1);
    const at::Tensor block = at::empty({std::min(rows_at_once, shard_.size(0)), columns_}, at::kDouble);
    for (std::int64_t begin = 0; begin < shard_.size(0); begin += rows_at_once) {
      const std::int64_t end = std::min(begin + rows_at_once, shard_.size(0));
      in_parallel(begin, end, std::max<std::int64_t>(kLeastPerThread / columns_, 1),
                  [&](std::int64_t first, std::int64_t last) {
                    fill_rows(first, last, block.mutable_data_ptr<double>() + (first - begin) * columns_);
                  });
      shard_.slice(0, begin, end).copy_(block.slice(0, 0, end - begin));
      done += (end - begin) * columns_;
    }
  }

  // Rows [begin, end) of the shard.
  void fill_rows(std::int64_t begin, std::int64_t end, double* values) const {
    for (const RowRun& run : runs_) {
      const std::int64_t first = std::max(begin, run.local_row), last = std::min(end, run.local_row + run.rows);
      for (std::int64_t row = first; row < last; ++row) {
        fill_values(rule_, field_,
                    static_cast<std::uint64_t>(first_value(run) + (row - run.local_row) * global_columns_),
                    {values + (row - begin) * columns_ + run.local_column, static_cast<std::size_t>(run.columns)});
      }
    }
  }

  const InitRule rule_;
  const RandomField field_;
  const at::Tensor shard_;  // [rows, columns]
  const std::int64_t columns_, global_columns_;
  std::vector<RowRun> runs_;
};

// The dtype of a parameter in a model of `dtype`: buffers are at least fp32.
at::ScalarType storage_type(const ParamSpec& spec, at::ScalarType dtype) {
  return !spec.trainable && dtype != at::kDouble ? at::kFloat : dtype;
}

}  // namespace

at::Tensor box_of(at::Tensor tensor, const std::vector<std::int64_t>& begin, const std::vector<std::int64_t>& size) {
  for (std::size_t dim = 0; dim < size.size(); ++dim)
    tensor = tensor.narrow(static_cast<std::int64_t>(dim), begin[dim], size[dim]);
  return tensor;
}

Parameters::Parameters(const std::vector<ParamSpec>& specs, const std::vector<int>& stages,
                       const ShardCoordinates& coordinates, at::ScalarType dtype, const at::Device& device)
    : coordinates_(coordinates) {
  for (const ParamSpec& spec : specs) {
    if (std::find(stages.begin(), stages.end(), spec.stage) == stages.end()) continue;
    BRAID_CHECK(index_.emplace(spec.name, entries_.size()).second, "{} is declared twice", spec.name);
    const auto options = at::TensorOptions(storage_type(spec, dtype)).device(device);
    entries_.push_back({spec, at::empty(local_shape(spec, coordinates), options).requires_grad_(spec.trainable)});
    if (spec.fp8) entries_.back().fp8 = std::make_shared<Fp8Copies>();
  }
}

void Parameters::initialize(std::uint64_t seed, std::atomic<std::int64_t>* done) {
  at::NoGradGuard guard;
  std::atomic<std::int64_t> unwatched = 0;
  std::atomic<std::int64_t>& count = done ? *done : unwatched;
  for (Entry& entry : entries_) {
    const InitRule::Kind kind = entry.spec.init.kind;
    if (kind == InitRule::Zeros || kind == InitRule::Ones) {
      entry.value.fill_(kind == InitRule::Ones ? 1 : 0);
      count += entry.value.numel();
    } else {
      Initialization(entry, coordinates_, seed).initialize_shard(count);
    }
  }
}

const Parameters::Entry& Parameters::entry(const std::string& name) const {
  const auto found = index_.find(name);
  BRAID_CHECK(found != index_.end(), "no parameter {} on this stage", name);
  return entries_[found->second];
}

const at::Tensor& Parameters::get(const std::string& name) const { return entry(name).value; }

Weight Parameters::weight(const std::string& name) const {
  const Entry& found = entry(name);
  return {found.value, found.gradient, found.fp8};
}

const ParamSpec& Parameters::spec(const std::string& name) const { return entry(name).spec; }

at::Tensor Parameters::get_if_declared(const std::string& name) const {
  return index_.count(name) ? get(name) : at::Tensor();
}

void Parameters::await(std::string_view prefix) const {
  auto at = index_.lower_bound(prefix);
  const auto matches = [&] { return at != index_.end() && at->first.starts_with(prefix); };
  BRAID_CHECK(matches(), "no parameter on this stage begins with {}", prefix);
  for (; matches(); ++at)
    if (const auto& await = entries_[at->second].arrival->await) await();
}

std::int64_t Parameters::bytes() const {
  return sum_of<std::int64_t>(entries_, [](const Entry& entry) { return entry.value.nbytes(); });
}

std::int64_t Parameters::elements() const {
  return sum_of<std::int64_t>(entries_, [](const Entry& entry) { return entry.value.numel(); });
}

bool Parameters::trains() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.value.requires_grad(); });
}

}  // namespace braid
