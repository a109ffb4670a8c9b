// Reads the samples that an order refers to. The shards that were used last stay open.
//
// A read that the system fails (ReadError) is repeated after a pause, with the shard opened again: network file systems
// return EIO and ESTALE while a server restarts. It fails for good after the last pause.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/shards/metadataset.h"
#include "data/shards/order.h"
#include "data/shards/shard.h"

namespace braid {

struct ReadRetries {
  std::vector<std::chrono::milliseconds> pauses{};     // before each repetition; none: the first error is final
  bool only_system_errors = false;                     // not files that are missing or cut
  std::function<void(const std::string& text)> say{};  // gets a line for each repetition, from any thread
};

// All calls may come from several threads at once.
class SampleReader {
 public:
  explicit SampleReader(std::shared_ptr<const Blend> blend, std::size_t max_open_shards = 64, ReadRetries retries = {});

  Sample read(const SampleRef& ref);  // without the parts that part_filter excludes
  // Reads the bytes of a part again.
  std::string read_bytes(const SampleRef& ref, std::uint64_t offset, std::size_t size);
  std::string key(const SampleRef& ref);
  std::string name_of(const SampleRef& ref);  // for messages: its key in quotes, or "number 5" if that cannot be read
  std::string end_remark(const SampleRef& ref);     // of its shard
  std::string contents_hash(const SampleRef& ref);  // of its shard
  const DataSet& data_of(const SampleRef& ref) const { return blend_->leaves[ref.leaf].data; }
  const Shard& shard_of(const SampleRef& ref) const { return data_of(ref).shards[ref.shard]; }

 private:
  using Recent = std::pair<const Shard*, std::shared_ptr<const OpenShard>>;
  std::shared_ptr<const OpenShard> open(const Shard& shard);
  void close(const Shard& shard);  // readers that use it keep theirs
  template <class Read>
  auto with_retries(const SampleRef& ref, const Read& read);

  std::shared_ptr<const Blend> blend_;
  std::size_t max_open_shards_;
  const ReadRetries retries_;
  std::atomic<bool> has_given_up_ = false;  // then other reads that fail do not wait any more
  std::mutex mutex_;
  std::list<Recent> recent_;  // few; used last at the front
};

// Whether all files of a blend can be read, before a run starts: a missing shard would otherwise end it hours later.
// One problem for each data set with shards or indices that are missing, cut or cannot be opened.
std::vector<Problem> unreadable_shards(const Blend& blend);

// Fills in DataSet::contents from a few bytes of every shard: another data set with the same names and counts has
// another fingerprint then.
void read_contents(const std::shared_ptr<Blend>& blend, const ReadRetries& retries = {});

}  // namespace braid
