// The sequences of one lane: those of its workers in turn. Every rank that reads a lane sees the same sequences in the
// same order, whether it needs their text or their pictures.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "samples/pack_stream.h"
#include "shards/lane.h"

namespace braid {

class PackLane {
 public:
  PackLane(const PackSources& sources, const LoaderConfig& config, const OrderConfig& order, int lane);

  std::optional<Pack> next();

  // As Lane's; in Base64, so that any file can hold it.
  std::string save() const;
  void restore(std::string_view state);

 private:
  const LaneIdentity identity_;
  InTurn<PackStream, Pack> workers_;
};

}  // namespace braid
