#include "run/resume/stored_sets.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.h"
#include "ckpt/dist_checkpoint.h"
#include "models/providers.h"
#include "plan/pipeline.h"

namespace braid {
namespace {

const char* inner_name(const RadioConfig&) { return "radio_encoder.radio_model."; }
const char* inner_name(const ClipConfig&) { return "clip_encoder."; }
const char* inner_name(const AudioConfig&) { return "audio_encoder."; }

struct Prefixes {
  std::string encoder, projector;
};

Prefixes prefixes_of(const EncoderConfig& encoder, KeyScheme scheme) {
  if (scheme == KeyScheme::Nemotron) return {"vision_model.", "vision_projection."};
  const std::string submodule = fmt::format("modality_submodules.{}.module.", encoder.name);
  const char* inner = std::visit([](const auto& config) { return inner_name(config); }, encoder.model);
  return {submodule + "encoders." + inner, submodule + "input_projections.0."};
}

// Layers of the hybrid model differ, so they are stored by number, not stacked.
bool stacks_layers(const LanguageConfig& config) { return !std::holds_alternative<HybridLmConfig>(config); }

StoredSet stored_set(std::string name, int module, std::vector<ParamSpec> specs, std::string prefix, bool stacked) {
  const int layers = stacked ? count_layers(specs) : 0;
  return {std::move(name), module, std::move(specs), {std::move(prefix), layers}};
}

int shard_of(const ParamSpec& spec, const ShardCoordinates& coordinates) {
  if (!spec.expert) return spec.tp_dim >= 0 ? coordinates.tp : 0;
  return spec.tp_dim >= 0 ? coordinates.ep * coordinates.expt_tp_size + coordinates.expt_tp : coordinates.ep;
}

// A shard that every rank in `holders` has and one of them writes.
struct Shard {
  std::size_t set, param, shard;
  std::int64_t elements;
  std::vector<int> holders;
};

struct Seat {
  int rank, pp_rank;
  ShardCoordinates coordinates;
};

std::vector<Shard> shards_of(const ParamSpec& spec, const std::vector<Seat>& seats, int pp) {
  std::vector<Shard> shards;
  for (const Seat& seat : seats) {
    if (seat.pp_rank != spec.stage % pp) continue;
    const auto shard = static_cast<std::size_t>(shard_of(spec, seat.coordinates));
    if (shard >= shards.size()) shards.resize(shard + 1);
    shards[shard].holders.push_back(seat.rank);
  }
  for (Shard& shard : shards) shard.elements = num_elements(spec) / static_cast<std::int64_t>(shards.size());
  return shards;
}

std::vector<Seat> seats_of(const Module& module) {
  std::vector<Seat> seats;
  for (int rank = module.dense.rank_offset(); rank < module.dense.end(); ++rank)
    seats.push_back({rank, module.dense.coord(rank, "pp"), shard_coordinates(module, rank)});
  return seats;
}

}  // namespace

std::string split_of(const Module& module) {
  const int vpp = stage_count(module) / module.dense.size_of("pp");
  return fmt::format("tp {}, pp {}, ep {}, expt_tp {}{}", module.dense.size_of("tp"), module.dense.size_of("pp"),
                     module.expert.size_of("ep"), module.expert.size_of("expt_tp"),
                     vpp > 1 ? fmt::format(", vpp {}", vpp) : "");
}

std::string branch_of(const Module& module) {
  return fmt::format("mimo.{}.", module.is_encoder ? module.name : "language");
}

std::vector<StoredSet> stored_sets(const Provider& provider, const Topology& topology, KeyScheme scheme,
                                   const std::string& root) {
  std::vector<StoredSet> sets;
  for (int m = 0; m < static_cast<int>(topology.modules().size()); ++m) {
    const Module& module = topology.module(m);
    const int stages = stage_count(module);
    if (!module.is_encoder) {
      sets.push_back(stored_set(module.name, m, declare_parameters(provider.language, stages),
                                scheme == KeyScheme::Modules ? "language_model.module." : "language_model.",
                                stacks_layers(provider.language)));
      continue;
    }
    const EncoderConfig& encoder = encoder_named(provider, module.name);
    if (scheme == KeyScheme::Nemotron && std::holds_alternative<AudioConfig>(encoder.model)) continue;
    const Prefixes prefixes = prefixes_of(encoder, scheme);
    sets.push_back(stored_set(module.name + ".encoder", m, declare_parameters(encoder.model, stages), prefixes.encoder,
                              /*stacked=*/true));
    sets.push_back(stored_set(module.name + ".projector", m, declare_parameters(encoder.projector, stages),
                              prefixes.projector, /*stacked=*/false));
  }
  for (StoredSet& set : sets) {
    set.branch = branch_of(topology.module(set.module));
    set.rule.prefix.insert(0, root);
  }
  return sets;
}

bool has_key_with(const DistMetadata& metadata, const std::string& begin) {
  const auto found = metadata.tensors.lower_bound(begin);
  return found != metadata.tensors.end() && found->first.starts_with(begin);
}

std::string nemotron_root(const DistMetadata& metadata) {
  const bool below_model =
      has_key_with(metadata, "model.language_model.") || has_key_with(metadata, "model.vision_model.");
  return below_model ? "model." : "";
}

std::vector<KeyedShape> wanted_of(const std::vector<StoredSet>& sets) {
  std::vector<KeyedShape> wanted;
  for (const StoredSet& set : sets)
    for (const ParamSpec& spec : set.specs) std::ranges::move(keyed_shapes(spec, set.rule), std::back_inserter(wanted));
  return wanted;
}

void check_wanted(const std::vector<KeyedShape>& wanted, const DistCheckpoint& checkpoint, const std::string& fix) {
  constexpr std::size_t kNamed = 20;
  std::set<std::string> problems;
  for (const KeyedShape& tensor : wanted) {
    const auto found = checkpoint.metadata().tensors.find(tensor.key);
    if (found == checkpoint.metadata().tensors.end())
      problems.insert(fmt::format("{} is missing", tensor.key));
    else if (found->second.shape != tensor.shape)
      problems.insert(fmt::format("{} is {}, but the model has {}", tensor.key, shape_text(found->second.shape),
                                  shape_text(tensor.shape)));
  }
  if (problems.empty()) return;
  std::string text = fmt::format("{} does not match the model in {} tensor{}:", checkpoint.folder(), problems.size(),
                                 problems.size() > 1 ? "s" : "");
  std::size_t named = 0;
  for (const std::string& problem : problems)
    if (named++ < kNamed) text += "\n  " + problem;
  if (problems.size() > kNamed) text += fmt::format("\n  and {} more", problems.size() - kNamed);
  throw DataError(text + "\n  " + fix);
}

ShardWriters::ShardWriters(const std::vector<StoredSet>& sets, const Topology& topology)
    : topology_(topology), sets_(sets), writers_(sets.size()) {
  std::vector<Shard> shards;
  for (std::size_t set = 0; set < sets.size(); ++set) {
    const Module& module = topology.module(sets[set].module);
    const std::vector<Seat> seats = seats_of(module);
    writers_[set].resize(sets[set].specs.size());
    for (std::size_t param = 0; param < sets[set].specs.size(); ++param) {
      std::vector<Shard> of_param = shards_of(sets[set].specs[param], seats, module.dense.size_of("pp"));
      writers_[set][param].resize(of_param.size());
      for (std::size_t i = 0; i < of_param.size(); ++i) {
        of_param[i].set = set;
        of_param[i].param = param;
        of_param[i].shard = i;
        shards.push_back(std::move(of_param[i]));
      }
    }
  }
  // Largest first, each to the holder with the least to write so far.
  std::stable_sort(shards.begin(), shards.end(),
                   [](const Shard& a, const Shard& b) { return a.elements > b.elements; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(topology.world_size()));
  for (const Shard& shard : shards) {
    const int writer = *std::min_element(shard.holders.begin(), shard.holders.end(), [&](int a, int b) {
      return load[static_cast<std::size_t>(a)] < load[static_cast<std::size_t>(b)];
    });
    load[static_cast<std::size_t>(writer)] += shard.elements;
    writers_[shard.set][shard.param][shard.shard] = writer;
  }
}

int ShardWriters::writer(std::size_t set, std::size_t param, int global_rank) const {
  const Module& module = topology_.module(sets_[set].module);
  const int shard = shard_of(sets_[set].specs[param], shard_coordinates(module, global_rank));
  return writers_[set][param][static_cast<std::size_t>(shard)];
}

}  // namespace braid
