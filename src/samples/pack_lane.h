// The sequences of one lane: those of its workers in turn. Every rank that reads a lane sees the same sequences in the
// same order, whether it needs their text or their pictures.
#pragma once

#include <optional>
#include <string>

#include "samples/pack_stream.h"
#include "shards/lane.h"

namespace braid {

class PackLane {
 public:
  PackLane(const PackSources& sources, const LoaderConfig& config, const OrderConfig& order, int lane);

  // Nothing at the end of evaluation; training does not end.
  std::optional<Pack> next() { return workers_.next(); }

  // As those of Lane, but as text of hexadecimal digits, which any file can hold.
  std::string save() const;
  void restore(std::string_view state);

 private:
  LaneIdentity identity_;
  InTurn<PackStream> workers_;
};

}  // namespace braid
