// The sequences of one lane: those of its workers in turn. Every rank that reads a lane sees the same sequences in the
// same order, whether it needs their text or their pictures.
#pragma once

#include <optional>
#include <string>

#include "data/samples/pack_stream.h"
#include "data/shards/lane.h"

namespace braid {

using SequenceSettings = std::vector<std::pair<std::string, std::string>>;  // of SequenceMaker::settings()

// What the position of a lane depends on. The fields are those of the recipe.
LaneIdentity pack_lane_identity(const Blend& blend, const SampleFields& fields, const LoaderConfig& config,
                                const OrderConfig& order, int lane, const SequenceSettings& settings);
// What a stored position depends on. DataError if it is damaged.
LaneIdentity identity_of_position(std::string_view position);
// Refuses what PackLane::restore would refuse, with the same errors, except damage behind the identity.
void check_position(const LaneIdentity& identity, std::string_view position);

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
