// A microbatch as one replica of a module reads it, on the host, and who hands it out.
//
// One rank of each replica, its leader, reads; it gives the others what they need (mimo/batch_feed.h). A reader hands
// out the microbatches of the run in order and knows its position, which a checkpoint keeps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/sample_range.h"

namespace braid {

struct LanguageBatch {
  at::Tensor ids, labels;                         // [T] int64, samples end to end
  std::vector<std::int64_t> offsets;              // of all sub-sequences, 0 ... T
  std::vector<std::vector<std::int64_t>> rows{};  // by encoder and sample: embeddings that the text expects
};

using Extent = std::vector<std::int64_t>;  // as MediaItem's

struct EncoderBatch {
  at::Tensor values;            // [patches or frames, features], items end to end; uint8 or float
  std::vector<Extent> extents;  // by item
  std::vector<std::int64_t> sample_of;  // by item: which of the replica's samples it belongs to, ascending
};

template <class Batch>
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  virtual Batch next() = 0;
};

// What a reader hands out of every microbatch.
struct ReaderShare {
  std::int64_t samples = 1;  // of a microbatch, over all replicas
  SampleRange own{};         // of the replica
};

class DataSet {
 public:
  virtual ~DataSet() = default;
  // Where the run stands after `consumed` samples, for a checkpoint; readers that are made after restore() go on there.
  virtual std::string state(std::int64_t consumed) const = 0;
  virtual void restore(const std::string& state) = 0;

  virtual std::unique_ptr<BatchReader<LanguageBatch>> read_language(const ReaderShare& share) const = 0;
  virtual std::unique_ptr<BatchReader<EncoderBatch>> read_encoder(const std::string& encoder,
                                                                  const ReaderShare& share) const = 0;
};

}  // namespace braid
