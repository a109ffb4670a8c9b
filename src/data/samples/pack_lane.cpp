#include "data/samples/pack_lane.h"

#include <memory>
#include <utility>

#include "base/error.h"

namespace braid {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

std::string to_hex(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

std::string from_hex(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const std::size_t high = kDigits.find(text[i]), low = kDigits.find(text[i + 1]);
    if (high == kDigits.npos || low == kDigits.npos) throw DataError("the position of a data lane is damaged");
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

}  // namespace

LaneIdentity pack_lane_identity(const Blend& blend, const SampleFields& fields, const LoaderConfig& config,
                                const OrderConfig& order, int lane, const SequenceSettings& settings) {
  LaneIdentity identity = lane_identity(blend, order, lane);
  identity.emplace_back("loader.packing_buffer", fmt::format("{}", config.packing_buffer.value_or(0)));
  identity.emplace_back("loader.packing", config.packing);
  identity.insert(identity.end(), settings.begin(), settings.end());
  // Last, so that a change of data.fields is named as such.
  for (auto& mapping : mappings_of(blend, fields)) identity.push_back(std::move(mapping));
  return identity;
}

LaneIdentity identity_of_position(std::string_view position) { return stored_identity(from_hex(position)); }

void check_position(const LaneIdentity& identity, std::string_view position) {
  open_state(identity, from_hex(position));
}

PackLane::PackLane(const PackSources& sources, const LoaderConfig& config, const OrderConfig& order, int lane)
    : identity_(pack_lane_identity(*sources.blend, sources.fields, config, order, lane, sources.sequences.settings())) {
  for (int i = 0; i < workers_of(order); ++i) {
    const std::int64_t worker = first_worker(order, lane) + i;
    workers_.add(std::make_unique<PackStream>(worker_order(sources.blend, order, worker), sources, config,
                                              worker_seed(worker, order.seed)));
  }
}

std::string PackLane::save() const {
  StateWriter state;
  workers_.save(state);
  return to_hex(seal_state(identity_, state));
}

void PackLane::restore(std::string_view state) {
  const std::string bytes = from_hex(state);
  StateReader reader = open_state(identity_, bytes);
  workers_.restore(reader);
  reader.expect_end();
}

}  // namespace braid
