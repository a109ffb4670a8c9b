// A microbatch as one replica of a module reads it, on the host, and the interfaces that provide it.
//
// One rank of each replica, its leader, reads and gives the other ranks what they need (mimo/batch_feed.h). A reader
// returns the microbatches of the run in order.
//
// A data set consists of lanes: independent streams of samples, whose number does not depend on the layout. Each lane
// has a position. A reader runs ahead of the training, so positions travel with the last batch of each step, and a
// checkpoint stores those of the last step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "data/samples/sequence_identity.h"
#include "plan/bridge.h"

namespace braid {

struct LanePosition {
  int lane;
  std::string text;  // the data set's own notation, in UTF-8
};

struct LanguageBatch {
  at::Tensor ids, labels;                         // [T] int64, samples end to end
  std::vector<std::int64_t> offsets;              // of all sub-sequences, 0 ... T
  std::vector<std::vector<std::int64_t>> rows{};  // by encoder and sample: number of embeddings that the text expects
  std::vector<LanePosition> positions{};          // after a step's last batch, of the lanes that this reader reports
  // By encoder, sample and item: the sub-sequence with its embeddings. May be empty if no item is ever damaged.
  std::vector<std::vector<std::vector<std::int64_t>>> sequence_of{};
  std::vector<SequenceIdentity> identities{};  // by sample, on the leader
};

using Extent = std::vector<std::int64_t>;  // as in MediaItem

// Patches or frames of an item: its rows in EncoderBatch::values.
inline std::int64_t input_rows(const Extent& extent) {
  return std::accumulate(extent.begin(), extent.end(), std::int64_t{1}, std::multiplies<>());
}

struct EncoderBatch {
  at::Tensor values;                    // [patches or frames, features], items end to end; uint8 or float
  std::vector<Extent> extents;          // by item
  std::vector<std::int64_t> sample_of;  // by item, on the leader: which of the replica's samples has it, ascending
  std::vector<bool> damaged{};  // by item, on the leader: its values could not be read and are zeros; empty: none
  std::vector<SequenceIdentity>
      identities{};  // by sample, on the leader; empty: the data set has nothing for the encoder
};

template <class Batch>
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  virtual Batch next() = 0;
};

// Which samples of every microbatch a reader returns.
struct ReaderSamples {
  std::int64_t all = 1;       // per microbatch, over all replicas
  SampleRange own{};          // of the replica
  int language_replicas = 1;  // each has all / language_replicas consecutive samples
  int microbatches = 1;       // per step; positions are needed after the last one
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual int lanes() const = 0;
  // Readers created afterwards continue at these positions, one for each lane. Exactly one language reader reports the
  // position of each lane. DataError if they are not positions in this data set.
  virtual void restore(const std::vector<std::string>& positions) = 0;
  // The positions after `consumed` samples, for runs whose checkpoint has none; empty: unknown.
  virtual std::vector<std::string> positions_after(std::int64_t consumed) const = 0;

  virtual std::unique_ptr<BatchReader<LanguageBatch>> read_language(const ReaderSamples& samples) const = 0;
  virtual std::unique_ptr<BatchReader<EncoderBatch>> read_encoder(const std::string& encoder,
                                                                  const ReaderSamples& samples) const = 0;
};

}  // namespace braid
