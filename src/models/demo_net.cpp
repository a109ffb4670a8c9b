#include "models/demo_net.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <functional>
#include <optional>

#include "base/error.h"
#include "dist/collectives.h"
#include "dist/world.h"
#include "plan/row_transfers.h"

// Shapes: B rows of a microbatch over all language replicas, b those of this replica, F features, H hidden, h
// = H / tp.

namespace braid {
namespace {

at::Tensor random_normal(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

// FNV-1a, so that a parameter's initial value depends on its name and the seed alone.
std::uint64_t seed_for(int seed, const std::string& name) {
  std::uint64_t hash = 14695981039346656037ULL ^ static_cast<std::uint64_t>(seed);
  for (unsigned char c : name) hash = (hash ^ c) * 1099511628211ULL;
  return hash;
}

at::Tensor initial_weight(const std::string& name, std::int64_t in, std::int64_t out, int seed) {
  return random_normal({in, out}, seed_for(seed, name)) / std::sqrt(static_cast<double>(in));
}

// A two-layer perceptron whose hidden dimension is split over tp: x [b, F] -> [b, F].
class TensorParallelMlp {
 public:
  TensorParallelMlp(const Module& module, const DemoNetConfig& config, const Groups& groups, int seed,
                    const at::TensorOptions& options)
      : tp_(groups.get(module.name, "tp")), dp_(groups.get(module.name, "dp-cp")) {
    const std::int64_t share = config.hidden / tp_.size();
    const std::int64_t begin = tp_.rank() * share;
    const at::Tensor up = initial_weight(module.name + ".up", config.features, config.hidden, seed);
    const at::Tensor down = initial_weight(module.name + ".down", config.hidden, config.features, seed);
    parameters_ = {up.narrow(1, begin, share), down.narrow(0, begin, share)};
    for (at::Tensor& parameter : parameters_) parameter = parameter.contiguous().to(options).requires_grad_();
  }

  at::Tensor forward(const at::Tensor& x) const {
    return all_reduce(at::tanh(x.matmul(parameters_[0])).matmul(parameters_[1]), tp_);
  }

  void reduce_gradients() {
    for (at::Tensor& parameter : parameters_) dp_.all_reduce(parameter.mutable_grad());
  }

  // This rank's share of the squared norm: shards are disjoint over tp, replicas over dp hold the same.
  at::Tensor squared_grad_norm() const {
    at::Tensor sum = at::zeros({}, parameters_[0].options().requires_grad(false));
    for (const at::Tensor& parameter : parameters_) sum += parameter.grad().square().sum();
    return sum / dp_.size();
  }

  void descend(double lr) {
    at::NoGradGuard guard;
    for (at::Tensor& parameter : parameters_) {
      parameter.sub_(parameter.grad(), lr);
      parameter.mutable_grad() = at::Tensor();
    }
  }

  const Group& tp() const { return tp_; }

 private:
  Group tp_, dp_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace

void check_demo_topology(const Topology& topology, const DemoNetConfig& config) {
  std::vector<Problem> problems;
  for (const Module& module : topology.modules()) {
    const std::string where = "topology.modules." + module.name;
    for (const auto& dims : {module.dense.dims(), module.expert.dims()})
      for (const Dim& dim : dims) {
        const bool used = dim.name == "tp" || dim.name == "dp" || dim.name == "expt_tp" || dim.name == "expt_dp";
        if (!used && dim.size > 1)
          problems.push_back({fmt::format("the demo network does not use {}={}", dim.name, dim.size),
                              where + "." + dim.name, "set it to 1"});
      }
    const int tp = module.dense.size_of("tp");
    if (config.hidden % tp != 0)
      problems.push_back(
          {fmt::format("model.hidden={} does not divide over tp={} of {}", config.hidden, tp, module.name),
           where + ".tp", fmt::format("use a multiple of {} for model.hidden", tp)});
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

class DemoNet::Impl {
 public:
  Impl(const DemoNetConfig& config, const Topology& topology, World& world, const Groups& groups, int seed)
      : config_(config),
        topology_(topology),
        language_module_(topology.language()),
        world_(world),
        everyone_(groups.world()),
        seed_(seed),
        options_(at::TensorOptions(config.float64 ? at::kDouble : at::kFloat).device(world.device())) {
    for (const Module& module : topology.modules()) {
      if (!module.dense.contains(world.rank())) continue;
      if (module.is_encoder)
        encoders_.push_back({&module, TensorParallelMlp(module, config, groups, seed, options_)});
      else
        language_.emplace(module, config, groups, seed, options_);
    }
    teacher_in_ = initial_weight("teacher.in", config.features, config.features, seed).to(options_);
    teacher_out_ = initial_weight("teacher.out", config.features, config.features, seed).to(options_);
  }

  StepResult step(std::int64_t first_sample, int micro_batch, int global_batch, double lr) {
    const std::int64_t rows = static_cast<std::int64_t>(micro_batch) * language_module_.dense.size_of("dp");
    transfers_ = plan_transfers(rows);
    at::Tensor loss_sum = at::zeros({}, options_);
    for (std::int64_t done = 0; done < global_batch; done += rows)
      loss_sum += run_microbatch(first_sample + done, rows, global_batch);
    for_each_mlp([](TensorParallelMlp& mlp) { mlp.reduce_gradients(); });
    const StepResult result = summarize(loss_sum);
    for_each_mlp([&](TensorParallelMlp& mlp) { mlp.descend(lr); });
    return result;
  }

 private:
  struct Encoder {
    const Module* module;
    TensorParallelMlp mlp;
    at::Tensor output{}, gradient{};  // of this replica's rows
  };

  // Forward through the encoders, over to the language module, and all the way back. Returns this rank's part
  // of the loss: the ranks of a tp group share it equally.
  at::Tensor run_microbatch(std::int64_t first_sample, std::int64_t rows, int global_batch) {
    for (Encoder& encoder : encoders_) {
      const RowRange mine = rows_of(*encoder.module, world_.rank(), rows);
      encoder.output = encoder.mlp.forward(samples(first_sample, mine));
      encoder.gradient = at::zeros_like(encoder.output);
    }
    at::Tensor features = cross_to_language(first_sample, rows);
    at::Tensor loss = at::zeros({}, options_);
    if (language_) {
      const at::Tensor shared = broadcast(features, 0, language_->tp());
      const at::Tensor target = teach(samples(first_sample, rows_of(language_module_, world_.rank(), rows)));
      loss = (language_->forward(shared) - target).square().mean(1).sum() / (global_batch * language_->tp().size());
      loss.backward();
    }
    cross_back(features.defined() ? features.grad() : at::Tensor(), rows);
    for (Encoder& encoder : encoders_) encoder.output.backward(encoder.gradient);
    return loss.detach();
  }

  // The sum of all encoders' outputs for this replica's rows, on its first tp rank; undefined elsewhere.
  // Without encoders the language module sees the samples themselves.
  at::Tensor cross_to_language(std::int64_t first_sample, std::int64_t rows) {
    const bool leads = language_ && language_->tp().rank() == 0;
    at::Tensor features;
    if (leads) {
      const RowRange mine = rows_of(language_module_, world_.rank(), rows);
      features =
          has_encoders() ? at::zeros({mine.end - mine.begin, config_.features}, options_) : samples(first_sample, mine);
    }
    for (const auto& [encoder, transfer] : transfers_) {
      at::NoGradGuard guard;
      at::Tensor part;
      if (transfer.from_rank == world_.rank())
        part = my_rows(mine(*encoder).output, *encoder, transfer, rows).contiguous();
      part = carry(part, transfer.from_rank, transfer.to_rank, transfer);
      if (transfer.to_rank == world_.rank()) my_rows(features, language_module_, transfer, rows).add_(part);
    }
    return leads ? features.requires_grad_() : features;
  }

  void cross_back(const at::Tensor& gradient, std::int64_t rows) {
    for (const auto& [encoder, transfer] : transfers_) {
      at::NoGradGuard guard;
      at::Tensor part;
      if (transfer.to_rank == world_.rank()) part = my_rows(gradient, language_module_, transfer, rows).contiguous();
      part = carry(part, transfer.to_rank, transfer.from_rank, transfer);
      if (transfer.from_rank == world_.rank()) my_rows(mine(*encoder).gradient, *encoder, transfer, rows).copy_(part);
    }
  }

  struct CrossGridTransfer {
    const Module* encoder;
    RowTransfer rows;
  };

  // Those of this rank.
  std::vector<CrossGridTransfer> plan_transfers(std::int64_t rows) const {
    std::vector<CrossGridTransfer> mine;
    for (const Module& module : topology_.modules())
      if (module.is_encoder)
        for (const RowTransfer& transfer : plan_row_transfers(module, language_module_, rows))
          if (transfer.from_rank == world_.rank() || transfer.to_rank == world_.rank())
            mine.push_back({&module, transfer});
    return mine;
  }

  // The rows of a transfer inside this replica's tensor.
  at::Tensor my_rows(const at::Tensor& mine, const Module& module, const RowTransfer& transfer,
                     std::int64_t rows) const {
    return mine.narrow(0, transfer.begin - rows_of(module, world_.rank(), rows).begin, transfer.end - transfer.begin);
  }

  // Moves a part between two ranks, which may be the same one.
  at::Tensor carry(at::Tensor part, int from, int to, const RowTransfer& transfer) const {
    if (from == to) return part;
    if (from == world_.rank()) {
      everyone_.send(part, to);
      return part;
    }
    part = at::empty({transfer.end - transfer.begin, config_.features}, options_);
    everyone_.receive(part, from);
    return part;
  }

  StepResult summarize(const at::Tensor& loss_sum) {
    at::Tensor totals = at::zeros({2}, options_.dtype(at::kDouble));  // loss, squared gradient norm
    totals[0] += loss_sum;
    for_each_mlp([&](TensorParallelMlp& mlp) { totals[1] += mlp.squared_grad_norm(); });
    everyone_.all_reduce(totals);
    return {totals[0].item<double>(), std::sqrt(totals[1].item<double>())};
  }

  at::Tensor samples(std::int64_t first_sample, RowRange rows) const {
    std::vector<at::Tensor> list;
    for (std::int64_t row = rows.begin; row < rows.end; ++row)
      list.push_back(random_normal({config_.features},
                                   seed_for(seed_, "sample") + static_cast<std::uint64_t>(first_sample + row)));
    return at::stack(list).to(options_);
  }

  at::Tensor teach(const at::Tensor& x) const { return at::tanh(x.matmul(teacher_in_)).matmul(teacher_out_); }

  bool has_encoders() const { return topology_.modules().size() > 1; }

  Encoder& mine(const Module& module) {
    for (Encoder& encoder : encoders_)
      if (encoder.module == &module) return encoder;
    throw_check_failed(__FILE__, __LINE__, "rank does not run " + module.name);
  }

  template <class Act>
  void for_each_mlp(Act act) {
    for (Encoder& encoder : encoders_) act(encoder.mlp);
    if (language_) act(*language_);
  }

  const DemoNetConfig config_;
  const Topology& topology_;
  const Module& language_module_;
  World& world_;
  const Group everyone_;
  const int seed_;
  const at::TensorOptions options_;
  std::vector<Encoder> encoders_;              // those that run on this rank
  std::optional<TensorParallelMlp> language_;  // when it runs on this rank
  std::vector<CrossGridTransfer> transfers_;
  at::Tensor teacher_in_, teacher_out_;
};

DemoNet::DemoNet(const DemoNetConfig& config, const Topology& topology, World& world, const Groups& groups, int seed)
    : impl_(std::make_unique<Impl>(config, topology, world, groups, seed)) {}
DemoNet::~DemoNet() = default;

StepResult DemoNet::step(std::int64_t first_sample, int micro_batch, int global_batch, double lr) {
  return impl_->step(first_sample, micro_batch, global_batch, lr);
}

}  // namespace braid
