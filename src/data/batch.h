// A microbatch as one replica of a module reads it, on the host, and the interfaces that provide it.
//
// One rank of each replica, its leader, reads and gives the other ranks what they need (mimo/batch_feed.h). A reader
// returns the microbatches of the run in order and knows its position, which checkpoints store.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "plan/sample_range.h"

namespace braid {

struct LanguageBatch {
  at::Tensor ids, labels;                         // [T] int64, samples end to end
  std::vector<std::int64_t> offsets;              // of all sub-sequences, 0 ... T
  std::vector<std::vector<std::int64_t>> rows{};  // by encoder and sample: number of embeddings that the text expects
};

using Extent = std::vector<std::int64_t>;  // as in MediaItem

// Patches or frames of an item: its rows in EncoderBatch::values.
inline std::int64_t input_rows(const Extent& extent) {
  return std::accumulate(extent.begin(), extent.end(), std::int64_t{1}, std::multiplies<>());
}

struct EncoderBatch {
  at::Tensor values;                    // [patches or frames, features], items end to end; uint8 or float
  std::vector<Extent> extents;          // by item
  std::vector<std::int64_t> sample_of;  // by item: which of the replica's samples it belongs to, ascending
};

template <class Batch>
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  virtual Batch next() = 0;
};

// Which samples of every microbatch a reader returns.
struct ReaderShare {
  std::int64_t samples = 1;  // per microbatch, over all replicas
  SampleRange own{};         // of the replica
};

class DataSet {
 public:
  virtual ~DataSet() = default;
  // The position after `consumed` samples, for a checkpoint; readers created after restore() continue there.
  virtual std::string state(std::int64_t consumed) const = 0;
  virtual void restore(const std::string& state) = 0;

  virtual std::unique_ptr<BatchReader<LanguageBatch>> read_language(const ReaderShare& share) const = 0;
  virtual std::unique_ptr<BatchReader<EncoderBatch>> read_encoder(const std::string& encoder,
                                                                  const ReaderShare& share) const = 0;
};

}  // namespace braid
