#include "ckpt/dist_checkpoint.h"
#include "plan/pipeline.h"
#include "run/resume/stored_state.h"

namespace braid {
namespace {

constexpr std::string_view kLayers = "decoder.layers.";

struct LayerName {
  int layer;
  std::string_view rest;  // "mlp.linear_fc1.weight"
};

std::optional<LayerName> layer_name(std::string_view name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  LayerName found{};
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), found.layer);
  BRAID_CHECK(error == std::errc() && end != name.data() + name.size() && *end == '.', "{}{} has no layer", kLayers,
              name);
  found.rest = name.substr(static_cast<std::size_t>(end - name.data()) + 1);
  return found;
}

// Whether it is a layer of a stack, and the key of its tensor.
std::pair<std::optional<LayerName>, std::string> stacked_key(const ParamSpec& spec, const KeyRule& rule) {
  const auto name = rule.stacked_layers > 0 ? layer_name(spec.name) : std::nullopt;
  return {name, rule.prefix + (name ? fmt::format("{}{}", kLayers, name->rest) : spec.name)};
}

const char* inner_name(const RadioConfig&) { return "radio_encoder.radio_model."; }
const char* inner_name(const ClipConfig&) { return "clip_encoder."; }
const char* inner_name(const AudioConfig&) { return "audio_encoder."; }

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

}  // namespace

int count_layers(const std::vector<ParamSpec>& specs) {
  int layers = 0;
  for (const ParamSpec& spec : specs)
    if (const auto name = layer_name(spec.name)) layers = std::max(layers, name->layer + 1);
  return layers;
}

std::vector<KeyedBox> keyed_boxes(const ParamSpec& spec, const ShardCoordinates& coordinates, const KeyRule& rule) {
  const auto [name, key] = stacked_key(spec, rule);
  std::vector<KeyedBox> keyed;
  std::int64_t block_begin = 0;
  for (Box& box : shard_boxes(spec, coordinates)) {
    keyed.push_back({key, spec.shape, std::move(box.global_begin), std::move(box.local_begin), std::move(box.size)});
    KeyedBox& last = keyed.back();
    if (!spec.block_names.empty()) {
      const std::size_t block = keyed.size() - 1, dim = static_cast<std::size_t>(spec.tp_dim);
      last.key += "." + spec.block_names[block];
      last.shape[dim] = spec.tp_blocks[block];
      last.begin[dim] -= block_begin;
      block_begin += spec.tp_blocks[block];
    }
    if (!name) continue;
    last.shape.insert(last.shape.begin(), rule.stacked_layers);
    last.begin.insert(last.begin.begin(), name->layer);
  }
  return keyed;
}

std::vector<KeyedRange> keyed_ranges(const ParamSpec& spec, const ShardCoordinates& coordinates, const KeyRule& rule,
                                     std::int64_t begin, std::int64_t end) {
  const std::vector<std::int64_t> shape = local_shape(spec, coordinates);
  const std::vector<KeyedBox> whole = keyed_boxes(spec, coordinates, rule);
  std::vector<KeyedRange> ranges;
  std::int64_t flat_begin = 0;
  for (const Box& slab : boxes_of_range(shape, begin, end)) {
    for (KeyedBox box : whole) {
      const std::size_t stacked = box.begin.size() - box.size.size();
      bool empty = false;
      for (std::size_t dim = 0; dim < slab.size.size(); ++dim) {
        const std::int64_t first = std::max(box.local_begin[dim], slab.local_begin[dim]);
        const std::int64_t last =
            std::min(box.local_begin[dim] + box.size[dim], slab.local_begin[dim] + slab.size[dim]);
        empty = empty || first >= last;
        box.begin[stacked + dim] += first - box.local_begin[dim];
        box.local_begin[dim] = first - slab.local_begin[dim];
        box.size[dim] = last - first;
      }
      if (!empty) ranges.push_back({flat_begin, slab.size, std::move(box)});
    }
    flat_begin += num_elements(slab.size);
  }
  return ranges;
}

std::vector<std::string> extra_state_keys(const ParamSpec& spec, const ShardCoordinates& coordinates,
                                          const KeyRule& rule) {
  constexpr std::string_view kWeight = ".weight";
  const bool is_matrix = spec.shape.size() == (spec.expert ? 3u : 2u);
  const bool is_table = spec.name.ends_with("word_embeddings.weight");
  if (!spec.name.ends_with(kWeight) || spec.tp_dim < 0 || !is_matrix || is_table) return {};
  auto [name, key] = stacked_key(spec, rule);
  key.replace(key.size() - kWeight.size(), kWeight.size(), "._extra_state/shard_");
  if (name) return {fmt::format("{}{}_{}", key, name->layer, rule.stacked_layers)};
  if (!spec.expert) return {key + "0_1"};
  const Box experts = shard_boxes(spec, coordinates).front();
  std::vector<std::string> keys;
  for (std::int64_t i = 0; i < experts.size[0]; ++i)
    keys.push_back(fmt::format("{}{}_{}", key, experts.global_begin[0] + i, spec.shape[0]));
  return keys;
}

std::vector<KeyedShape> keyed_shapes(const ParamSpec& spec, const KeyRule& rule) {
  std::vector<KeyedShape> shapes;
  for (KeyedBox& box : keyed_boxes(spec, {}, rule)) shapes.push_back({std::move(box.key), std::move(box.shape)});
  return shapes;
}

std::string split_of(const Module& module) {
  const int vpp = stage_count(module) / module.dense.size_of("pp");
  return fmt::format("tp {}, pp {}, ep {}, expt_tp {}{}", module.dense.size_of("tp"), module.dense.size_of("pp"),
                     module.expert.size_of("ep"), module.expert.size_of("expt_tp"),
                     vpp > 1 ? fmt::format(", vpp {}", vpp) : "");
}

std::vector<StoredSet> stored_sets(const Provider& provider, const Topology& topology, KeyScheme scheme,
                                   const std::string& root) {
  std::vector<StoredSet> sets;
  for (int m = 0; m < static_cast<int>(topology.modules().size()); ++m) {
    const Module& module = topology.module(m);
    const int stages = stage_count(module);
    if (!module.is_encoder) {
      // Layers of the hybrid model differ, so they are stored by number, not stacked.
      sets.push_back(stored_set(module.name, m, declare_parameters(provider.language, stages),
                                scheme == KeyScheme::Modules ? "language_model.module." : "language_model.",
                                !std::holds_alternative<HybridLmConfig>(provider.language)));
      continue;
    }
    const EncoderConfig& encoder = encoder_named(provider, module.name);
    if (scheme == KeyScheme::Nemotron && std::holds_alternative<AudioConfig>(encoder.model)) continue;
    const std::string submodule = fmt::format("modality_submodules.{}.module.", encoder.name);
    std::string of_encoder = "vision_model.", of_projector = "vision_projection.";
    if (scheme == KeyScheme::Modules) {
      of_encoder =
          submodule + "encoders." + std::visit([](const auto& config) { return inner_name(config); }, encoder.model);
      of_projector = submodule + "input_projections.0.";
    }
    sets.push_back(stored_set(module.name + ".encoder", m, declare_parameters(encoder.model, stages), of_encoder,
                              /*stacked=*/true));
    sets.push_back(stored_set(module.name + ".projector", m, declare_parameters(encoder.projector, stages),
                              of_projector, /*stacked=*/false));
  }
  for (StoredSet& set : sets) {
    set.branch = branch_of(topology.module(set.module));
    set.rule.prefix.insert(0, root);
  }
  return sets;
}

std::vector<StoredSet> sets_of(const WeightSource& source, const DistMetadata& metadata, const Provider& provider,
                               const Topology& topology) {
  using enum WeightSource::Kind;
  std::vector<StoredSet> all = stored_sets(provider, topology);
  if (source.kind == Finetune) return all;
  const std::string root = nemotron_root(metadata);
  std::vector<StoredSet> sets = stored_sets(provider, topology, KeyScheme::Nemotron, root);
  if (source.kind == Nemotron && sets.size() != all.size())
    throw ConfigError({"Nemotron checkpoints have no audio encoders", source.key,
                       "leave the module out of the topology, or use only parts of the checkpoint: "
                       "checkpoint.init.vision, checkpoint.init.language"});
  if (source.kind == Vision) std::erase_if(sets, std::not_fn(is_encoder));
  if (sets.empty()) throw ConfigError({"the topology has no vision encoder to load", source.key, "leave it out"});
  if (source.kind != Language) return sets;
  std::erase_if(sets, [&](const StoredSet& set) { return set.name != topology.language().name; });
  // A language model that Megatron has trained alone.
  KeyRule& rule = sets.front().rule;
  if (!has_key_with(metadata, rule.prefix)) rule.prefix = "";
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
    std::vector<Seat> seats;
    for (int rank = module.dense.rank_offset(); rank < module.dense.end(); ++rank)
      seats.push_back({rank, module.dense.coord(rank, "pp"), shard_coordinates(module, rank)});
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
  std::ranges::stable_sort(shards, std::ranges::greater(), &Shard::elements);
  std::vector<std::int64_t> load(topology.world_size());
  for (const Shard& shard : shards) {
    const int writer = *std::ranges::min_element(shard.holders, {}, [&](int rank) { return load[rank]; });
    load[writer] += shard.elements;
    writers_[shard.set][shard.param][shard.shard] = writer;
  }
}

int ShardWriters::writer(std::size_t set, std::size_t param, int global_rank) const {
  const Module& module = topology_.module(sets_[set].module);
  const int shard = shard_of(sets_[set].specs[param], shard_coordinates(module, global_rank));
  return writers_[set][param][shard];
}

}  // namespace braid
