// An audio encoder like Whisper's: one pipeline stage of it, on this rank's share of the grid.
//
//   x = embed(frames, lengths)        first stage
//   x = run_layers(x, lengths)        every stage
//   features(x, lengths)              last stage
//
// Clips of any lengths lie end to end; `lengths` are in frames, F is their sum. Two input frames form one of the T = F
// / 2 encoded frames between embed and features, and `stack` encoded frames form one token's features. Positions
// restart at each clip, and attention stays inside it. Every tp rank holds all encoded frames (no sequence parallelism
// here).
#pragma once

#include <optional>
#include <vector>

#include "models/encoder_configs.h"
#include "models/encoder_layers.h"
#include "nn/config.h"
#include "nn/linear.h"
#include "nn/parallel.h"
#include "nn/parameters.h"

namespace braid {

class AudioEncoder {
 public:
  using Lengths = std::vector<std::int64_t>;

  // `parameters` and `parallel` must outlive the model.
  AudioEncoder(const AudioConfig& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
               const RecomputeConfig& recompute = {});

  bool is_first_stage() const { return stage_ == 0; }
  bool is_last_stage() const { return stage_ == pp_ - 1; }

  // A clip whose frames do not divide into whole tokens is a DataError. Frames may have any float dtype.
  at::Tensor embed(const at::Tensor& frames, const Lengths& lengths) const;  // [F, mels] -> [T, H]
  at::Tensor run_layers(at::Tensor x, const Lengths& lengths) const;         // [T, H] -> [T, H]
  at::Tensor features(const at::Tensor& x, const Lengths& lengths) const;    // [T, H] -> [T / stack, stack * H]

 private:
  // The clips as sequences of encoded frames.
  PackedSequences sequences_of(const Lengths& lengths, const at::Device& device) const;

  const AudioConfig config_;
  const Parameters& parameters_;
  const Parallel& parallel_;
  const int stage_, pp_;
  const EncoderLayers layers_;
  std::optional<Linear> embedder_;  // on the first stage
};

}  // namespace braid
