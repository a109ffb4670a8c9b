// Lower bounds on the time and memory of a training step in a layout, and the settings that make its layers fastest.
// The time counts only what the busiest rank computes and communicates in forwards and backwards, after the first
// microbatch has reached it and before the last one's gradients have left. A simulated step takes at least as long,
// because its ranks also wait, move tensors between stages and update parameters.
//
// A layer takes equally long in every layout with the same tp, cp, ep, micro batch and settings, so a few tables serve
// all layouts. No libtorch here.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "paper/stage.h"
#include "predict/hardware.h"
#include "predict/layout.h"
#include "predict/step_draws.h"

namespace braid {

// Thread-safe cache: the first thread that needs a value computes it.
template <class Key, class Value>
class SharedTable {
 public:
  template <class Compute>
  const Value& get(const Key& key, const Compute& compute) {
    std::unique_lock lock(mutex_);
    if (const auto found = values_.find(key); found != values_.end()) return found->second;
    lock.unlock();
    Value value = compute();
    lock.lock();
    return values_.try_emplace(key, std::move(value)).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Value> values_;
};

struct SettingsChoice {
  Settings settings{};
  double of_language = 0;  // LayoutBound::of_language()
};

class LayoutBound {
 public:
  // `gpus` is the largest number of GPUs of a layout.
  LayoutBound(const Recipe& recipe, const HardwareProfile& hardware, int gpus, TypicalSample sample);

  // Threads may call these at the same time.

  // Bytes that each rank of the language model's first stage needs at least: its parameters, their gradients and its
  // shard of the optimizer's state.
  std::int64_t bytes_of_language(const LanguageLayout& layout);
  // Seconds of a step.
  double of_language(const LanguageLayout& layout, const Settings& settings);
  // `of_language` is the bound of its language model.
  double of_layout(const Layout& layout, const Settings& settings, double of_language);

  // The sequence parallelism and the numbers of pieces with which the layers are fastest.
  SettingsChoice fastest(const LanguageLayout& language, const RecomputeConfig& recompute);
  // There is one choice for every set of recomputed parts. The fastest comes first; of equal ones, that which
  // recomputes least.
  std::vector<SettingsChoice> choices(const LanguageLayout& language);

 private:
  struct Seconds {
    double forward = 0, first_backward = 0, backward = 0;  // the first microbatch's backward differs
    double of_step(int microbatches) const;
    void add(const Seconds& other);
  };
  using Table = std::vector<Seconds>;  // embedding, each kind of layer, loss
  Table by_layer(const std::vector<PaperLayer>& layers, const LayerOptions& options, const Module& module) const;
  LayerOptions layer_options(const Settings& settings) const;
  ModuleConfig language_config(const Split& split) const;
  const Table& table_of(const LanguageLayout& layout, const Settings& settings);
  // Seconds that all layers take in one forward and backward, on the ranks of one replica.
  double of_layers(const LanguageLayout& layout, const Settings& settings);
  Seconds encoder_seconds(std::size_t module, int tp, int samples, const Settings& settings) const;
  int microbatches_of(int micro_batch, int dp) const { return recipe_.train.global_batch / micro_batch / dp; }

  const Recipe recipe_;
  const HardwareProfile hardware_;
  const StepSetup setup_;
  std::size_t language_module_ = 0;
  std::vector<bool> has_backward_;  // by module
  const TypicalSample sample_;
  std::int64_t embeddings_ = 0;     // of a sample
  LanguageConfig one_of_each_{};    // a model with one layer of each kind
  std::vector<std::size_t> kinds_;  // of the model's layers
  const std::vector<RecomputeConfig> recompute_sets_;
  struct StateBytes {
    std::int64_t of_parameters = 0;  // and gradients
    std::int64_t of_optimizer = 0;   // if there are `replicas`; more of them have smaller shards
    int replicas = 1;
  };
  // By tp, cp, ep, micro batch, sequence parallelism, pieces and what is recomputed; by module, tp, samples and what is
  // recomputed; by tp, ep, pp and vpp; by tp, cp, ep, micro batch and what is recomputed.
  SharedTable<std::tuple<int, int, int, int, bool, int, int, unsigned>, Table> language_;
  SharedTable<std::tuple<std::size_t, int, int, unsigned>, Seconds> encoders_;
  SharedTable<std::tuple<int, int, int, int>, StateBytes> bytes_;
  SharedTable<std::tuple<int, int, int, int, unsigned>, Settings> fastest_;
};

// The first of LayoutBound::choices() that fits. `fits` is called as rarely as possible, since it predicts memory.
std::optional<std::size_t> cheapest_that_fits(const std::vector<SettingsChoice>& choices,
                                              const std::function<bool(std::size_t)>& fits);

}  // namespace braid
