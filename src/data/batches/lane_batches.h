// Batches from a data set on disk, by lanes.
//
// A lane is an independent stream of sequences. Their number is fixed by the recipe; the layout only decides which
// replica serves which lane. With k lanes per language replica, the replica's samples come from its lanes in turn. So
// every dp that divides the lanes sees the same sequences in the same steps, and any encoder grid reads the pictures of
// the same sequences.
//
// If samples are balanced, a reader reads a whole step's sequences of all language replicas that exchange samples, and
// every reader computes the same order of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batches/balance.h"
#include "data/batches/batch.h"
#include "data/samples/lane_set.h"

namespace braid {

class LaneBatches : public BatchSource {
 public:
  // ConfigError if the data set or the tokenizer is missing or does not fit the model.
  explicit LaneBatches(LaneSetOptions options, std::shared_ptr<const SampleBalance> balance = nullptr);

  int lanes() const override;
  void restore(const std::vector<std::string>& positions) override;
  std::vector<std::string> positions_after(std::int64_t) const override { return {}; }
  std::unique_ptr<BatchReader<LanguageBatch>> read_language(const ReaderSamples& samples) const override;
  std::unique_ptr<BatchReader<EncoderBatch>> read_encoder(const std::string& encoder,
                                                          const ReaderSamples& samples) const override;

 private:
  const std::shared_ptr<const LaneSet> set_;            // shared with readers
  const std::shared_ptr<const SampleBalance> balance_;  // likewise; none: sequences come as lanes give them
  std::vector<std::string> positions_;                  // by lane; empty: from the start
};

}  // namespace braid
