// The sizes of a step that all ranks must know, as one list of numbers; at first each is known to one leader only, and
// is zero on all other ranks, so that the sum over all ranks is the whole table.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/topology.h"

namespace braid {

class SizeTable {
 public:
  SizeTable(const Topology& topology, int microbatches, std::int64_t samples)
      : microbatches_(microbatches), samples_of_step_(microbatches * samples) {
    std::int64_t size = 0;
    for (const Module& module : topology.modules()) {
      begin_.push_back(size);
      const std::int64_t per_microbatch = std::int64_t{module.dense.size_of("dp")} * microbatches;
      size += 2 * per_microbatch + (module.is_encoder ? 2 * samples_of_step_ : 0);
    }
    values.resize(static_cast<std::size_t>(size + 1));
  }

  // A microbatch of one replica: tokens and sub-sequences, or items and the type of their values.
  std::int64_t& count(int module, int replica, int microbatch, int which) {
    return values[static_cast<std::size_t>(begin_[static_cast<std::size_t>(module)] +
                                           2 * (std::int64_t{replica} * microbatches_ + microbatch) + which)];
  }
  // Embeddings of a sample that an encoder produces, and that the text expects.
  std::int64_t& given(const Topology& topology, int module, std::int64_t sample) {
    return values[static_cast<std::size_t>(first_row(topology, module) + sample)];
  }
  std::int64_t& expected(const Topology& topology, int module, std::int64_t sample) {
    return values[static_cast<std::size_t>(first_row(topology, module) + samples_of_step_ + sample)];
  }
  std::int64_t& failed_ranks() { return values.back(); }  // whose readers threw
  std::int64_t samples_of_step() const { return samples_of_step_; }

  std::vector<std::int64_t> values;

 private:
  std::int64_t first_row(const Topology& topology, int module) const {
    return begin_[static_cast<std::size_t>(module)] +
           2 * std::int64_t{topology.modules()[static_cast<std::size_t>(module)].dense.size_of("dp")} * microbatches_;
  }

  const int microbatches_;
  const std::int64_t samples_of_step_;
  std::vector<std::int64_t> begin_;  // by module
};

}  // namespace braid
