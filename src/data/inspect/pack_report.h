// Packed sequences, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "data/samples/pack_stream.h"

namespace braid {

struct PackSize {
  std::int64_t repeated = 0;  // samples of earlier sequences; a lane of training reads them again in each epoch
  std::int64_t samples = 0, tokens = 0, labels = 0, pictures = 0, embeddings = 0;
};
PackSize size_of(const Pack& pack);

// The number of tokens that the model learns to predict. The first one of a sample never is.
std::int64_t label_count(const TokenSequence& tokens);

// The samples of a pack with their lengths, borders, labels and media.
nlohmann::ordered_json pack_json(const Pack& pack, std::int64_t sequence_length);

// A row for each pack, and how full all of them are.
std::string show_packs(const std::vector<PackSize>& packs, std::int64_t sequence_length);

// {"skipped": {"too_long": 3, "without_targets": 0, "damaged": 1}, "cut": 0}
nlohmann::ordered_json skipped_json(const BadSamples& bad);
// "skipped: 3 too long, 0 with nothing to predict, 1 damaged"; below it, if there are any, "cut: 2 samples"
std::string show_skipped(const BadSamples& bad);
std::string show_cut(std::int64_t samples);

}  // namespace braid
