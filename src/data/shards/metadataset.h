// What a path given to training stands for: one data set, or a metadataset, which is a YAML file that blends several.
// Metadatasets may contain others; the result is a flat list of leaves.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/shards/data_set.h"
#include "data/shards/document.h"
#include "data/shards/sample_spec.h"

namespace braid {

// A consecutive range of a data set's samples: first `absolute` (the end may be open), then a share of what is left.
struct Subset {
  std::optional<std::pair<std::int64_t, std::optional<std::int64_t>>> absolute{};
  std::pair<double, double> share{0, 1};

  // The range among `samples` samples; ConfigError (with `where`) when it reaches beyond them.
  std::pair<std::int64_t, std::int64_t> range(std::int64_t samples, const std::string& where) const;
};

// How often slices are reshuffled: over this many epochs at once; -1 draws with replacement; nothing keeps their order.
using ShuffleEpochs = std::optional<std::int64_t>;

struct Leaf {
  DataSet data{};
  SampleSpec spec{};
  double weight = 1;       // relative, in a blend by weight
  double repetitions = 1;  // per epoch, in a blend by repetitions
  Subset subset{};
  ShuffleEpochs shuffle_epochs = 1;
};

enum class BlendMode { Single, Weights, Repetitions };

struct Blend {
  BlendMode mode = BlendMode::Single;
  std::vector<Leaf> leaves{};
};

// ConfigError for what Braid does not support (join, aux) and what does not make sense, with the place in the YAML. An
// epoch of the result has at most kMaxSamples samples, repetitions included.
std::shared_ptr<const Blend> open_blend(const std::string& path, const std::string& split);

}  // namespace braid
