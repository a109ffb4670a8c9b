// A few steps of a small model in any layout, with weight decay, clipping and samples of every kind. The oracle of all
// tests that use this is the same run in one process; in float64, where a wrong factor cannot hide.
#pragma once

#include <ATen/core/Tensor.h>
#include <ostream>
#include "data/batches/mock_data.h"
#include "support/grid_sizes.h"
#include "train/training.h"

namespace braid::testing {

// The first step compares gradients, the second one the update before it, the third one momentum and the schedule.
inline constexpr int kSteps = 3, kScheduledSteps = 6, kGlobalBatch = 8;

// Widths of the tiny providers, and few layers.
Provider small_vlm();
Provider small_llava();
Provider small_omni();

// Frozen modules, data and provider change what is learned. The rest must not.
struct TrainingLayout {
  GridSizes images{}, audio{}, language{};  // audio: for providers with an audio encoder
  bool colocated = false, sp = false, recompute = false;
  int micro_batch = 2;
  bool zero = true, overlap = false, gather_overlap = false;
  std::vector<std::string> frozen{};
  at::ScalarType dtype = at::kDouble;
  int global_batch = kGlobalBatch;
  Provider (*provider)() = small_vlm;
  OverlapConfig pieces{};
};

std::ostream& operator<<(std::ostream& out, const TrainingLayout& layout);

Topology topology_of(const TrainingLayout& layout);
TrainingConfig config_of(const TrainingLayout& layout);

// Some samples have input for each encoder; most lengths differ.
MockDataConfig mixed_data();

using MakeData = std::function<std::unique_ptr<SampleSource>(const Provider&, const Topology&)>;
MakeData mock(const MockDataConfig& config);

struct TrainingOptions {
  int steps = kSteps;
  MakeData data = mock(mixed_data());
  int balance_replicas = 0;  // that exchange samples of mixed_data(); 0: samples come by number
  std::function<void(TrainingConfig&)> change = [](TrainingConfig&) {};
  std::function<int(Training&, World&)> start = [](Training&, World&) { return 0; };  // returns the first step's number
  std::function<void(Training&)> before_step = [](Training&) {};
  std::function<void(Training&, World&)> end = [](Training&, World&) {};
};

struct Trained {
  std::vector<TrainingReport> reports{};
  std::map<std::string, at::Tensor> weights{};  // full tensors, by set and parameter
  std::map<std::string, at::Tensor> held{};     // which of their elements are held; the others are zero

  std::vector<double> losses() const;
};

// Runs one rank: every rank has all reports, and its own shards of the weights.
Trained train_on(World& world, const TrainingLayout& layout, const Topology& topology,
                 const TrainingOptions& options = {});
// All ranks, as threads.
Trained train(const TrainingLayout& layout, const TrainingOptions& options = {});

// The same in one process and one microbatch.
TrainingLayout in_one_process(const TrainingLayout& layout);
// The result in one process with the default options. Cached for other tests.
const Trained& alone(const TrainingLayout& layout = {});

// Compares reports, and the weights that `got` holds.
void expect_same_on_rank(const Trained& got, const Trained& expected, double loss_tolerance = 1e-10,
                         double weight_tolerance = 1e-8);
// The same, and every weight is held.
void expect_same(const Trained& got, const Trained& expected, double loss_tolerance = 1e-10,
                 double weight_tolerance = 1e-8);

}  // namespace braid::testing
