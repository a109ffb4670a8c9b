// The sample trace: which samples the readers of a run deliver, with the files and fields of Megatron's fork, so that
// two runs, or a run and its resumed rest, can be compared (`braid compare --samples`).
//
// Each rank that reads has a file with one line of JSON for every microbatch. The fork reads text and pictures
// together; here the ranks of the language model read text and those of encoders read pictures, so each has a part of
// the fields, and zeros in the others. The fork's lanes are the replicas of the language model.
#pragma once

#include "data/batches/batch.h"

namespace braid {

// Of the samples of one lane in a microbatch. Hashes are BLAKE2b's of a tensor's shape, type and bytes; 0: no tensor.
struct SampleSignature {
  std::uint64_t ids = 0, labels = 0;
  std::int64_t targets = 0;     // labels that count
  std::int64_t image_size = 0;  // first dimension of `images`: 1, as the fork holds all patches in one row
  std::uint64_t images = 0;
  std::int64_t packing = 0;  // checksum of the borders of sub-sequences
  bool operator==(const SampleSignature&) const = default;
};

SampleSignature signature_of(const LanguageBatch& batch, std::int64_t samples);       // all of the batch
SampleSignature signature_of(const EncoderBatch& batch, const SampleRange& samples);  // of the replica's samples

class SampleTrace {
 public:
  // `encoder`: its name if the topology has several; "" for the only one.
  struct Reader {
    bool is_encoder = false;
    std::string encoder{};
    int replica = 0;
    std::vector<std::int64_t> lanes{};
    int global_rank = 0;
  };

  // Appends to the file that an earlier start left. DataError if that is impossible, as for add().
  SampleTrace(const std::string& folder, Reader reader);

  // `step` counts microbatches from the start of the run. One signature for each lane.
  void add(std::int64_t step, const std::vector<SampleSignature>& signatures);

 private:
  const Reader reader_;
  const std::string path_;
  std::ofstream file_;
};

}  // namespace braid
