// Counts samples that are skipped or cut. It names each damaged one, and ends the run when there are too many. It
// names the first of each other kind, and keys and parts of samples that nothing uses.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "data/samples/token_sequence.h"
#include "data/shards/data_set.h"
#include "data/shards/stream_state.h"

namespace braid {

// Identifies a sample by its shard's path and its index there, also if its key cannot be read. It has 53 bits, so that
// a double holds it exactly.
using SampleId = std::uint64_t;
SampleId id_of_sample(const Shard& shard, std::int64_t index);

inline constexpr const char* kAdviceOnLength = "use a longer data.sequence_length, or data.over_long=truncate";

// All calls may come from several threads at once.
class BadSamples {
 public:
  using Say = std::function<void(const std::string& text)>;

  // `say` gets a line for each damaged sample. `say_first` gets one for each name that samples have and nothing uses,
  // and for the first sample of each kind of Unfit. They are not called by two threads at once.
  BadSamples(std::int64_t limit, Say say, Say say_first = nullptr)
      : limit_(limit), say_(std::move(say)), say_first_(std::move(say_first)) {}

  // A damaged sample, with its name for messages: a key in quotes. It counts once, however often epochs and readers
  // meet it. DataError if there are more than the limit.
  void add(const DataSet& data, const SampleRef& ref, const std::string& name, const std::string& reason);
  // What `braid data inspect` needs to find the same reasons, for the message of that error.
  void set_inspect_flags(std::string flags);
  void say(const std::string& text) const;  // a line of its own, about no sample
  std::set<SampleId> damaged() const;
  std::int64_t count() const;

  // Says once of each name that it is not used, with the first sample that has it.
  bool says_unused() const { return say_first_ != nullptr; }
  void add_unused(const std::vector<std::string>& names, const std::string& sample, const Shard& shard);

  // There may be any number of these. Of each kind, the first million counts once each, and the others as often as they
  // are met. `tokens`: all of the sample.
  void add(Unfit kind, const Shard& shard, std::int64_t index, const std::string& key, std::int64_t tokens);
  std::int64_t count(Unfit kind) const;
  std::set<SampleId> ids(Unfit kind) const;  // of the first million

  std::string why_none_is_left() const;  // for a message about a reader that has found no sample to use

 private:
  struct UnfitSamples {
    std::set<SampleId> ids{};
    std::int64_t count = 0;
  };
  const UnfitSamples& of(Unfit kind) const { return unfit_[static_cast<std::size_t>(kind)]; }

  const std::int64_t limit_;
  const Say say_, say_first_;
  mutable std::mutex mutex_{};
  std::set<SampleId> damaged_{};
  std::set<std::string> unused_{};
  std::string first_damaged_{}, inspect_flags_{};
  std::array<UnfitSamples, 3> unfit_{};  // by kind
};

}  // namespace braid
