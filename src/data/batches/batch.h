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
#include "plan/pipeline.h"

namespace braid {

struct EncoderConfig;
class SampleBalance;
struct LaneSetOptions;
struct ReadSample;

struct LanePosition {
  int lane;
  std::string text;  // the data set's own notation, in UTF-8
};

// Which samples a sequence consists of. The ranks that read its text and those that read its pictures do so
// independently, and compare this every step (mimo/batch_feed.h): whatever makes them read different samples ends the
// run.
struct SequenceIdentity {
  // A hash of what every reader of the sequence must agree on: 53 bits, so that a double holds it exactly, and not 0.
  std::int64_t hash = 0;
  std::vector<std::string> samples{};  // for messages: lane, sample and shard
};

// Covers each sample's place in the data set, its key, its tokens, and where its pictures are.
SequenceIdentity identity_of(const std::vector<ReadSample>& pack);
SequenceIdentity identity_of_mock(std::int64_t number);

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
  std::vector<SequenceIdentity> identities{};  // by sample, on the leader; empty: nothing here is for the encoder
};

// Returns a replica's next microbatch.
template <class Batch>
using BatchReader = std::function<Batch()>;

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

  virtual BatchReader<LanguageBatch> read_language(const ReaderSamples& samples) const = 0;
  virtual BatchReader<EncoderBatch> read_encoder(const std::string& encoder, const ReaderSamples& samples) const = 0;
};

struct LanguageExpects {
  std::size_t encoders = 0;  // of the topology
  std::int64_t vocabulary = 0;
};

// Checks that a batch is complete and consistent, so that a faulty source ends a run with an error that names it.
// DataError otherwise. `samples`: of the replica, in this microbatch.
void check_batch(const LanguageBatch& batch, std::int64_t samples, const LanguageExpects& expected);
void check_batch(const EncoderBatch& batch, std::int64_t samples, const EncoderConfig& config);

struct BatchPart {
  EncoderBatch batch;
  std::int64_t samples;  // that the part covers, with or without items
};

LanguageBatch pinned(LanguageBatch batch);  // in pinned memory, from which a GPU copies without the host
EncoderBatch pinned(EncoderBatch batch);
inline auto bytes_of(const LanguageBatch& batch) {
  return static_cast<std::int64_t>(batch.ids.nbytes() + batch.labels.nbytes());
}
inline std::int64_t bytes_of(const EncoderBatch& batch) {
  return batch.values.defined() ? static_cast<std::int64_t>(batch.values.nbytes()) : 0;
}

// One batch of an encoder from those of several readers. Parts cover consecutive samples. Values are joined along their
// rows, everything else by item; the samples of later parts are counted on from those before. Values of different types
// or widths are not merged.
EncoderBatch merge(std::vector<BatchPart> parts);

// Prepares batches on a thread before they are requested.
template <class Batch>
class ReadAhead {
 public:
  // Prepares up to `ahead` batches, and stops sooner once the prepared ones hold `most_bytes`. `pin`: in pinned memory,
  // from which a GPU copies without the host.
  ReadAhead(BatchReader<Batch> reader, std::size_t ahead, std::int64_t most_bytes, bool pin)
      : reader_(std::move(reader)), ahead_(ahead), most_bytes_(most_bytes), pin_(pin), thread_([this] { read(); }) {}

  ~ReadAhead() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Rethrows an error of the reader in place of its batch.
  Batch next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || error_; });
    if (ready_.empty()) std::rethrow_exception(error_);
    Batch batch = std::move(ready_.front());
    ready_.pop_front();
    held_bytes_ -= bytes_of(batch);
    changed_.notify_all();
    return batch;
  }

 private:
  void read() {
    try {
      for (;;) {
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return stopping_ || (ready_.size() < ahead_ && held_bytes_ < most_bytes_); });
          if (stopping_) return;
        }
        Batch batch = reader_();
        if (pin_) batch = pinned(std::move(batch));
        std::lock_guard lock(mutex_);
        held_bytes_ += bytes_of(batch);
        ready_.push_back(std::move(batch));
        changed_.notify_all();
      }
    } catch (...) {
      std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  BatchReader<Batch> reader_;
  const std::size_t ahead_;
  const std::int64_t most_bytes_;
  const bool pin_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::int64_t held_bytes_ = 0;  // in ready_
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

// Batches from a data set on disk, by lanes. Their number is fixed by the recipe; the layout only decides which replica
// serves which lane. With k lanes per language replica, the replica's samples come from its lanes in turn. So every dp
// that divides the lanes sees the same sequences in the same steps, and any encoder grid reads the pictures of the same
// sequences.
//
// If samples are balanced, a reader reads a whole step's sequences of all language replicas that exchange samples, and
// every reader computes the same order of them. Without `balance`, sequences come as lanes give them. ConfigError if
// the data set or the tokenizer is missing or does not fit the model.
std::unique_ptr<BatchSource> make_lane_batches(LaneSetOptions options,
                                               std::shared_ptr<const SampleBalance> balance = nullptr);

}  // namespace braid
