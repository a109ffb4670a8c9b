// Lower bounds on the time and memory of a training step in a layout, and the settings that make its layers fastest.
// The time counts only what the busiest rank computes and communicates in forwards and backwards, after the first
// microbatch has reached it and before the last one's gradients have left. A simulated step takes at least as long,
// because its ranks also wait, move tensors between stages and update parameters.
//
// A layer takes equally long in every layout with the same tp, cp, ep, micro batch and settings, so a few tables serve
// all layouts. No libtorch here.
#pragma once

#include "base/strings.h"
#include "optim/parameter_parts.h"
#include "paper/stage.h"
#include "plan/schedule.h"
#include "plan/topology.h"
#include "predict/hardware.h"
#include "predict/layout.h"
#include "predict/op_time.h"
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

// A model with one layer of each kind, in order of first occurrence. Sets `kinds` to each layer's kind.
inline LanguageConfig reduce_layers(HybridLmConfig config, std::vector<std::size_t>& kinds) {
  std::string letters;
  for (const char letter : layer_letters(config)) {
    if (letters.find(letter) == letters.npos) letters += letter;
    kinds.push_back(letters.find(letter));
  }
  config.pattern = letters;
  return config;
}
inline LanguageConfig reduce_layers(LlamaConfig config, std::vector<std::size_t>& kinds) {
  kinds.assign(config.layers, 0);
  config.layers = 1;
  return config;
}

inline unsigned bits_of(const RecomputeConfig& c) {
  unsigned bits = 0;
  for (const bool part : {c.full, c.norms, c.activations, c.experts, c.mamba, c.vision}) bits = 2 * bits + part;
  return bits;
}

// The module alone in a world, from rank 0 on.
inline Module single_module(ModuleConfig config, int experts) {
  const bool is_encoder = config.kind == ModuleKind::Encoder;
  config.rank_offset = config.ranks = config.expt_dp = std::nullopt;
  config.kind = ModuleKind::Language;  // a topology needs one
  const Workload workload = {.micro_batch = 1, .global_batch = config.dp, .num_experts = experts};
  Module module = make_modules({.modules = {config}}, workload).front();
  module.is_encoder = is_encoder;
  return module;
}

// Every set of parts that can be recomputed in backward; `full` includes all of them.
inline std::vector<RecomputeConfig> recompute_sets(const Recipe& recipe) {
  std::vector<std::string> parts = recompute_parts(recipe);
  const std::vector<std::string> frozen = frozen_sets(recipe);
  const auto trains = [&](const ModuleConfig& module) {
    return module.kind == ModuleKind::Encoder && !contains(frozen, module.name + ".encoder");
  };
  std::erase(parts, "full");
  if (std::ranges::none_of(recipe.topology.modules, trains)) std::erase(parts, "vision");
  std::vector<RecomputeConfig> sets;
  for (std::size_t bits = 0; bits < std::size_t{1} << parts.size(); ++bits) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (bits >> i & 1) names.push_back(parts[i]);
    sets.push_back(recompute_config(names));
  }
  sets.push_back({.full = true});
  return sets;
}

// Threads may call its methods at the same time.
class LayoutBound {
 public:
  // `gpus` is the largest number of GPUs of a layout.
  LayoutBound(const Recipe& recipe, const HardwareProfile& hardware, int gpus, TypicalSample sample)
      : recipe_(recipe), hardware_(on_one_host(hardware, gpus)), setup_(step_setup(recipe)), sample_(std::move(sample)),
        recompute_sets_(recompute_sets(recipe)) {
    const Recipe small = smallest(recipe);
    const Topology topology(small.topology, workload_of(small));
    const ScheduleOptions schedule = schedule_options_of(small, topology);
    language_module_ = index_of_language(topology);
    for (int m = 0; m < std::ssize(topology.modules()); ++m) {
      has_backward_.push_back(is_trained(topology, schedule, {m, 0}));
      for (const auto& extent : sample_.media[m])
        embeddings_ += rows_of(encoder_of(setup_.model, topology.module(m)), extent);
    }
    one_of_each_ = std::visit([&](const auto& c) { return reduce_layers(c, kinds_); }, setup_.model.language);
  }

  // The least bytes of a rank of the first language stage: parameters, gradients and optimizer state.
  std::int64_t bytes_of_language(const LanguageLayout& layout) {
    const Split& split = layout.split;
    const StateBytes& state = bytes_.get({split.tp, split.ep, split.pp, split.vpp}, [&] {
      const ModuleConfig config = language_config({.tp = split.tp, .ep = split.ep, .pp = split.pp, .vpp = split.vpp});
      const Module module = single_module(config, experts_of(setup_.model.language));
      const OptimizerMemory bytes =
          optimizer_memory(declare_parameters(setup_.model.language, split.pp * split.vpp), module, 0, setup_.optimizer,
                           setup_.layers.element_bytes, !contains(setup_.frozen, config.name));
      return StateBytes{bytes.parameters + bytes.gradients, bytes.main_copy + bytes.moments, config.dp};
    });
    const int shards = setup_.optimizer.zero ? split.cp * split.dp : state.replicas;
    return state.of_parameters + state.of_optimizer * state.replicas / shards;
  }

  // Seconds of a step. A rank begins once the first microbatch has passed the ranks before it, and its last gradient
  // must still pass them.
  double of_language(const LanguageLayout& layout, const Settings& settings) {
    const Table& table = table_of(layout, settings);
    const int pp = layout.split.pp, stages = pp * layout.split.vpp;
    const std::vector<int> bounds =
        std::visit([&](const auto& c) { return stage_bounds(c, stages); }, setup_.model.language);
    const int microbatches = microbatches_of(layout.micro_batch, layout.split.dp);
    const auto stage_seconds = [&](int stage) {
      Seconds sum;
      if (stage == 0) sum.add(table.front());
      for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer) sum.add(table[1 + kinds_[layer]]);
      if (stage == stages - 1) sum.add(table.back());
      if (!has_backward_[language_module_]) sum.first_backward = sum.backward = 0;
      return sum;
    };
    double before = 0, longest = 0;
    for (int rank = 0; rank < pp; ++rank) {
      double busy = 0;
      for (int stage = rank; stage < stages; stage += pp) busy += stage_seconds(stage).of_step(microbatches);
      longest = std::max(longest, before + busy);
      const Seconds first = stage_seconds(rank);
      before += first.forward + std::min(first.first_backward, first.backward);
    }
    return longest;
  }

  // `of_language` is the bound of its language model.
  double of_layout(const Layout& layout, const Settings& settings, double of_language) {
    const int language_dp = layout.modules[language_module_].dp;
    const int microbatches = microbatches_of(layout.micro_batch, language_dp);
    double longest = 0, before = 0, together = 0;
    for (std::size_t m = 0; m < layout.modules.size(); ++m) {
      if (m == language_module_) continue;
      const int tp = layout.modules[m].tp, samples = layout.micro_batch * language_dp / layout.modules[m].dp;
      Seconds encoder = encoders_.get({m, tp, samples, bits_of(in_encoder(settings.recompute))},
                                      [&] { return encoder_seconds(m, tp, samples, settings); });
      if (!has_backward_[m]) encoder.first_backward = encoder.backward = 0;
      longest = std::max(longest, encoder.of_step(microbatches));
      before = std::max(before, encoder.forward + std::min(encoder.first_backward, encoder.backward));
      together += encoder.of_step(microbatches);
    }
    return layout.colocated ? of_language + together : std::max(longest, of_language + before);
  }

  // The sequence parallelism and the numbers of pieces with which the layers are fastest.
  SettingsChoice fastest(const LanguageLayout& language, const RecomputeConfig& recompute) {
    const std::vector<int> pieces = {1, 2, 4}, whole = {1};
    const Split& split = language.split;
    const bool own = recipe_.model.sequence_parallel;
    const std::vector<bool> sequence_parallel = split.tp > 1 ? std::vector{true, false} : std::vector{own};
    const std::tuple key(split.tp, split.cp, split.ep, language.micro_batch, bits_of(recompute));
    const Settings& fastest = fastest_.get(key, [&] {
      Settings best;
      double least = std::numeric_limits<double>::infinity();
      for (const bool sequence : sequence_parallel)
        for (const int tp_pieces : (sequence && split.tp > 1) ? pieces : whole)
          for (const int expert_pieces : split.ep > 1 ? pieces : whole) {
            const Settings settings = {.sequence_parallel = sequence,
                                       .overlap = {.tp_pieces = tp_pieces, .expert_pieces = expert_pieces},
                                       .recompute = recompute};
            const double seconds = of_layers(language, settings);
            if (seconds >= least) continue;
            least = seconds;
            best = settings;
          }
      return best;
    });
    return {fastest, of_language(language, fastest)};
  }

  // Each set of recomputed parts is one choice. The fastest choice comes first; of equally fast ones, the one that
  // recomputes least.
  std::vector<SettingsChoice> choices(const LanguageLayout& language) {
    std::vector<SettingsChoice> choices;
    for (const RecomputeConfig& recompute : recompute_sets_) choices.push_back(fastest(language, recompute));
    std::ranges::stable_sort(choices, {}, [](const SettingsChoice& choice) {
      return std::tuple(choice.of_language, names_of(choice.settings.recompute).size());
    });
    return choices;
  }

 private:
  struct Seconds {
    double forward = 0, first_backward = 0, backward = 0;  // the first microbatch's backward differs

    double of_step(int microbatches) const {
      return microbatches * forward + first_backward + (microbatches - 1) * backward;
    }
    void add(const Seconds& other) {
      forward += other.forward;
      first_backward += other.first_backward;
      backward += other.backward;
    }
  };
  using Table = std::vector<Seconds>;  // embedding, each kind of layer, loss

  LayerOptions layer_options(const Settings& settings) const {
    LayerOptions options = setup_.layers;
    options.sequence_parallel = settings.sequence_parallel;
    options.overlap = settings.overlap;
    options.recompute = settings.recompute;
    return options;
  }

  Table by_layer(const std::vector<PaperLayer>& layers, const LayerOptions& options, const Module& module) const {
    GroupTimes groups(module, 0, hardware_);
    Table table;
    for (const PaperLayer& layer : layers) {
      const auto seconds = [&](bool is_first) { return layer_times(layer, options, is_first, groups, hardware_); };
      const ForwardBackward first = seconds(true), later = seconds(false);
      table.push_back({first.forward.seconds(), first.backward.seconds(), later.backward.seconds()});
    }
    return table;
  }

  Seconds encoder_seconds(std::size_t m, int tp, int samples, const Settings& settings) const {
    const ModuleConfig config = {.name = recipe_.topology.modules[m].name, .kind = ModuleKind::Encoder, .tp = tp};
    const Module module = single_module(config, 0);
    StepSizes::Extents extents;
    for (int sample = 0; sample < samples; ++sample) std::ranges::copy(sample_.media[m], std::back_inserter(extents));
    const EncoderTraining trains = {.encoder = !contains(setup_.frozen, config.name + ".encoder"),
                                    .projector = !contains(setup_.frozen, config.name + ".projector")};
    const EncoderConfig& encoder = encoder_of(setup_.model, module);
    const LayerOptions options = layer_options(settings);
    Seconds sum;
    const StageOnPaper stage = walk_stage(encoder, module, 0, options, extents, trains);
    for (const Seconds& layer : by_layer(stage.layers, options, module)) sum.add(layer);
    return sum;
  }

  // With only as many replicas as share experts, because more of them could only lengthen collectives.
  ModuleConfig language_config(const Split& split) const {
    ModuleConfig config = recipe_.topology.modules[language_module_];
    const int replica = split.tp * split.cp;
    config.tp = split.tp;
    config.cp = split.cp;
    config.ep = split.ep;
    config.dp = std::lcm(replica, config.ep * config.expt_tp) / replica;
    config.pp = split.pp;
    config.vpp = split.vpp;
    return config;
  }

  const Table& table_of(const LanguageLayout& layout, const Settings& settings) {
    const auto& [tp_pieces, expert_pieces] = settings.overlap;
    const std::tuple key(layout.split.tp, layout.split.cp, layout.split.ep, layout.micro_batch,
                         settings.sequence_parallel, tp_pieces, expert_pieces,
                         bits_of(in_language(settings.recompute)));
    return language_.get(key, [&] {
      const ModuleConfig config =
          language_config({.tp = layout.split.tp, .cp = layout.split.cp, .ep = layout.split.ep});
      const Module module = single_module(config, experts_of(setup_.model.language));
      const std::int64_t samples = layout.micro_batch;
      const TextSizes text = {.tokens = samples * sample_.tokens,
                              .samples = samples,
                              .labels = samples * sample_.labels / config.cp,
                              .squares = static_cast<double>(samples) * sample_.squares,
                              .embeddings = samples * embeddings_};
      const LayerOptions options = layer_options(settings);
      const bool trains = !contains(setup_.frozen, config.name);
      return by_layer(walk_stage(one_of_each_, module, 0, options, text, trains).layers, options, module);
    });
  }

  // Seconds that all layers take in one forward and backward, on the ranks of one replica.
  double of_layers(const LanguageLayout& layout, const Settings& settings) {
    const Table& table = table_of(layout, settings);
    double sum = 0;
    const auto add = [&](const Seconds& part) { sum += part.forward + part.backward; };
    add(table.front());
    for (const std::size_t kind : kinds_) add(table[1 + kind]);
    add(table.back());
    return sum;
  }

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
//
// Two calls of fits() decide most layouts: without recomputation a layout is fastest and needs the most memory, and
// with all parts recomputed it needs the least, except for `full`.
inline std::optional<std::size_t> cheapest_that_fits(const std::vector<SettingsChoice>& choices,
                                                     const std::function<bool(std::size_t)>& fits) {
  const auto parts = [&](std::size_t i) { return names_of(choices[i].settings.recompute).size(); };
  std::size_t none = 0, most = 0, full = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].settings.recompute.full) full = i;
    if (parts(i) == 0) none = i;
    if (parts(i) > parts(most)) most = i;
  }
  if (fits(none)) return none;
  if (!fits(most)) return fits(full) ? std::optional(full) : std::nullopt;
  std::size_t first = 0;
  while (first != most && (first == none || !fits(first))) ++first;
  return first;
}

}  // namespace braid
