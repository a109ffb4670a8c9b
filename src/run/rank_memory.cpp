#include "run/rank_memory.h"

#include <algorithm>

#include "base/strings.h"
#include "resume/stored_sets.h"

namespace braid {
namespace {

class MemoryTable {
 public:
  MemoryTable(const Recipe& recipe, const Topology& topology)
      : recipe_(recipe),
        topology_(topology),
        frozen_(frozen_sets(recipe)),
        element_bytes_(recipe.model.dtype == "bfloat16"  ? 2
                       : recipe.model.dtype == "float32" ? 4
                                                         : 8) {}

  std::vector<std::int64_t> by_rank() const {
    std::vector<std::int64_t> bytes(static_cast<std::size_t>(topology_.world_size()));
    for (const StoredSet& set : stored_sets(recipe_.model.model, topology_)) {
      const Module& module = topology_.modules()[static_cast<std::size_t>(set.module)];
      const std::vector<std::int64_t> stages = by_pp_rank(set, module);
      for (int rank = 0; rank < topology_.world_size(); ++rank)
        if (module.dense.contains(rank))
          bytes[static_cast<std::size_t>(rank)] += stages[static_cast<std::size_t>(module.dense.coord(rank, "pp"))];
    }
    return bytes;
  }

 private:
  // All ranks with the same pp coordinate hold the same number of bytes.
  std::vector<std::int64_t> by_pp_rank(const StoredSet& set, const Module& module) const {
    std::vector<std::int64_t> bytes(static_cast<std::size_t>(module.dense.size_of("pp")));
    for (const ParamSpec& spec : set.specs)
      bytes[static_cast<std::size_t>(spec.stage) % bytes.size()] += bytes_of(spec, set, module);
    return bytes;
  }

  std::int64_t bytes_of(const ParamSpec& spec, const StoredSet& set, const Module& module) const {
    const ShardCoordinates coordinates = {.tp_size = module.dense.size_of("tp"),
                                          .ep_size = module.expert.size_of("ep"),
                                          .expt_tp_size = module.expert.size_of("expt_tp")};
    const std::int64_t elements = num_elements(local_shape(spec, coordinates));
    const std::int64_t wide = std::max<std::int64_t>(element_bytes_, 4);  // of gradients, main copy and moments
    if (!spec.trainable) return elements * wide;
    const std::int64_t element_bytes = element_bytes_ + (spec.fp8 ? 2 : 0);  // its rows and its columns in fp8
    if (contains(frozen_, set.name)) return elements * element_bytes;
    const std::int64_t sharers = !recipe_.optimizer.zero ? 1
                                 : spec.expert           ? module.expert.size_of("expt_dp")
                                               : std::int64_t{module.dense.size_of("dp")} * module.dense.size_of("cp");
    return elements * (element_bytes + wide) + 3 * wide * elements / sharers;
  }

  const Recipe& recipe_;
  const Topology& topology_;
  const std::vector<std::string> frozen_;
  const std::int64_t element_bytes_;
};

}  // namespace

std::vector<std::int64_t> state_bytes(const Recipe& recipe, const Topology& topology) {
  return MemoryTable(recipe, topology).by_rank();
}

}  // namespace braid
