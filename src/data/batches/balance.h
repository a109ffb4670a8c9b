// Which samples of a step train together, so that replicas and microbatches have about equal work. The step's samples
// stay the same, and its loss is a sum over all of them, so only the order of summation changes. No libtorch here.
//
// A place is a sample's position in the step. Places are numbered by microbatch, then in the order of the microbatch's
// samples, of which each replica of a module has an equal, consecutive share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/batches/sample_sizes.h"
#include "models/providers.h"
#include "plan/topology.h"

namespace braid {

// The part of a microbatch that a replica of the language model computes.
struct TextWork {
  std::int64_t tokens = 0, labels = 0;
  double squares = 0;  // sum of the squares of the sub-sequences' lengths
};

// How much work a sample is for each module of a model, in floating point operations.
class SampleCosts {
 public:
  // `frozen`: parameter sets that do not train.
  SampleCosts(const Provider& provider, const Topology& topology, const std::vector<std::string>& frozen);

  double of_text(const TextWork& text) const;
  double of_media(std::size_t encoder, const SampleSizes::Extents& items) const;  // encoders in the topology's order
  // The cost for each module.
  std::vector<double> of(const SampleSizes& sample) const;

 private:
  struct Encoder {
    EncoderConfig config;
    double per_row = 0, per_square = 0, per_embedding = 0;
  };
  std::vector<Encoder> encoders_;
  std::vector<bool> is_encoder_;  // by module
  double per_token_ = 0, per_square_ = 0, per_label_ = 0;
};

struct StepPlaces {
  std::int64_t samples = 1;  // per microbatch
  int microbatches = 1;
  std::vector<std::int64_t> per_replica{};  // by module: samples of a microbatch; may be more than there are here
  bool modules_share_ranks = false;         // otherwise they work at the same time
};

// Returns the number of the sample for each place. `costs`: by sample and module.
//
// The costliest sample first, each takes the free place where its work meets the least work of other samples: in the
// same microbatch of the same replica, and in the whole step of that replica, for all modules. If a replica has only
// one sample of a microbatch, in the module whose work varies most, nothing can even out its microbatches; then each
// microbatch gets samples of similar cost, so that replicas that wait for each other in every microbatch wait the
// least.
std::vector<std::int64_t> balanced_order(const std::vector<std::vector<double>>& costs, const StepPlaces& places);

// How many language replicas exchange samples, if the recipe does not say it: as many as an encoder replica serves. Its
// readers have all their samples anyway.
int default_balanced_replicas(const Topology& topology);

// Balances the samples of consecutive language replicas together: all that a reader must know is their samples.
class SampleBalance {
 public:
  // `replicas`: how many language replicas exchange samples; divides their number.
  SampleBalance(const Provider& provider, const Topology& topology, const std::vector<std::string>& frozen,
                int replicas);

  int replicas() const { return replicas_; }
  // Returns the sample for each place. `samples`: of a whole step, or of some groups of replicas(): `per_replica`
  // samples of each language replica and microbatch, numbered as places are.
  std::vector<std::int64_t> order(const std::vector<SampleSizes>& samples, std::int64_t per_replica,
                                  int microbatches) const;

 private:
  const SampleCosts costs_;
  const int replicas_;
  const bool colocated_;
  std::vector<int> dp_;  // by module
  int language_replicas_ = 1;
};

}  // namespace braid
