// Counts samples that are skipped. It names each damaged one, and ends the run when there are too many. It also names
// keys and parts of samples that nothing uses.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "shards/sample_ref.h"

namespace braid {

// Identifies a sample by its shard's path and its index there, also if its key cannot be read. It has 53 bits, so that
// a double holds it exactly.
using SampleId = std::uint64_t;
SampleId id_of_sample(const Shard& shard, std::int64_t index);

// All calls may come from several threads at once.
class BadSamples {
 public:
  using Say = std::function<void(const std::string& text)>;

  // `say` gets a line for each damaged sample, `say_unused` for each name that samples have and nothing uses. They are
  // not called by two threads at once.
  BadSamples(std::int64_t limit, Say say, Say say_unused = nullptr)
      : limit_(limit), say_(std::move(say)), say_unused_(std::move(say_unused)) {}

  // A damaged sample, with its name for messages: a key in quotes. It counts once, however often epochs and readers
  // meet it. DataError if there are more than the limit.
  void add(const DataSet& data, const SampleRef& ref, const std::string& name, const std::string& reason);
  // What `braid data inspect` needs to find the same reasons, for the message of that error.
  void set_inspect_flags(std::string flags);
  void say(const std::string& text) const;  // a line of its own, about no sample
  std::set<SampleId> damaged() const;
  std::int64_t count() const;

  // Says once of each name that it is not used, with the first sample that has it.
  bool says_unused() const { return say_unused_ != nullptr; }
  void add_unused(const std::vector<std::string>& names, const std::string& sample, const Shard& shard);

  // Samples that are not damaged, but of no use. There may be any number of them. The first million counts once each,
  // and the others as often as they are met.
  void add_too_long(SampleId id) { add(too_long_, id); }
  void add_without_targets(SampleId id) { add(without_targets_, id); }
  std::int64_t too_long() const { return count_of(too_long_); }
  std::int64_t without_targets() const { return count_of(without_targets_); }

  std::string why_none_is_left() const;  // for a message about a reader that has found no sample to use

 private:
  struct Useless {
    std::set<SampleId> ids{};
    std::int64_t count = 0;
  };
  void add(Useless& samples, SampleId id);
  std::int64_t count_of(const Useless& samples) const;

  const std::int64_t limit_;
  const Say say_, say_unused_;
  mutable std::mutex mutex_{};
  std::set<SampleId> damaged_{};
  std::set<std::string> unused_{};
  std::string first_damaged_{}, inspect_flags_{};
  Useless too_long_{}, without_targets_{};
};

}  // namespace braid
