// The sizes of a step that all ranks must know, as one list of numbers. Initially one leader knows each number and it
// is zero on all other ranks, so the sum over all ranks is the whole table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/topology.h"

namespace braid {

class SizeTable {
 public:
  using Size = std::int64_t;

  // `samples` is the number in a microbatch, over all language replicas.
  SizeTable(const Topology& topology, int microbatches, std::int64_t samples)
      : microbatches_(microbatches), samples_of_step_(microbatches * samples) {
    Size size = 0;
    for (const Module& module : topology.modules()) {
      const Size counts = 2 * Size{module.dense.size_of("dp")} * microbatches;
      modules_.push_back({size, size + counts});
      size += counts + (module.is_encoder ? 4 : 1) * samples_of_step_;
    }
    values_.resize(static_cast<std::size_t>(size + 1));
  }

  // Sizes of a microbatch of one replica of the language model.
  Size& tokens(int module, int replica, int microbatch) { return count(module, replica, microbatch, 0); }
  Size& offsets(int module, int replica, int microbatch) { return count(module, replica, microbatch, 1); }
  // Sizes of a microbatch of one replica of an encoder.
  Size& items(int module, int replica, int microbatch) { return count(module, replica, microbatch, 0); }
  Size& value_type(int module, int replica, int microbatch) { return count(module, replica, microbatch, 1); }
  // SequenceIdentity::hash of a sample, as the module's leader read it; 0: an encoder that reads nothing.
  Size& identity(int module, Size sample) { return at(of(module).samples + sample); }
  // The number of a sample's embeddings that an encoder produces, and the number that the text expects.
  Size& given(int module, Size sample) { return at(of(module).samples + samples_of_step_ + sample); }
  Size& expected(int module, Size sample) { return at(of(module).samples + 2 * samples_of_step_ + sample); }
  // Items of a sample whose values could not be read: the sum of their damage_bit()s, which a double holds exactly.
  Size& damaged(int module, Size sample) { return at(of(module).samples + 3 * samples_of_step_ + sample); }
  // Item i has bit i; all items from the 53rd on share a bit.
  static Size damage_bit(Size item) { return Size{1} << std::min<Size>(item, 52); }
  Size& failed_ranks() { return values_.back(); }  // the number of ranks whose readers threw

  Size samples_of_step() const { return samples_of_step_; }
  const std::vector<Size>& values() const { return values_; }
  void assign(const std::vector<double>& values) { values_.assign(values.begin(), values.end()); }

 private:
  struct Begin {
    Size counts, samples;
  };
  const Begin& of(int module) const { return modules_[static_cast<std::size_t>(module)]; }
  Size& at(Size i) { return values_[static_cast<std::size_t>(i)]; }
  Size& count(int module, int replica, int microbatch, int which) {
    return at(of(module).counts + 2 * (Size{replica} * microbatches_ + microbatch) + which);
  }

  const int microbatches_;
  const Size samples_of_step_;
  std::vector<Begin> modules_;
  std::vector<Size> values_;
};

}  // namespace braid
