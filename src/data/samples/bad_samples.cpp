#include "data/samples/bad_samples.h"

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/sha1.h"

namespace braid {
namespace {

constexpr std::size_t kMostUnused = 100;     // names; keys may be made of data
constexpr std::size_t kMostUnfit = 1 << 20;  // ids that are kept, of each kind

std::string what_happens_to(Unfit kind) {
  if (kind == Unfit::TooLong)
    return std::string("samples that are longer than a sequence are left out; ") + kAdviceOnLength;
  return kind == Unfit::Cut ? "samples that are longer than a sequence are cut"
                            : "samples with nothing to predict are left out";
}

}  // namespace

SampleId id_of_sample(const Shard& shard, std::int64_t index) {
  return sha1_number(fmt::format("{}\n{}", shard.path, index)) >> 11;
}

void BadSamples::add(const DataSet& data, const SampleRef& ref, const std::string& name, const std::string& reason) {
  const Shard& shard = data.shards[ref.shard];
  const std::lock_guard lock(mutex_);
  const bool is_new = damaged_.insert(id_of_sample(shard, ref.index)).second;
  const std::string what = fmt::format("sample {} of shard {} is skipped: {}", name, in_quotes(shard.name), reason);
  if (first_damaged_.empty()) first_damaged_ = what;
  if (std::ssize(damaged_) > limit_)
    throw DataError(fmt::format(
        "more than data.max_bad_samples={} samples are damaged or do not suit the recipe: {}; repair the data set, "
        "correct the recipe, or raise data.max_bad_samples. `braid data inspect {} --split {}{} --count all --decode "
        "--all-damaged` lists these samples",
        limit_, what, in_quotes(data.path), in_quotes(data.split), inspect_flags_));
  if (is_new && say_) say_(fmt::format("{} ({} skipped)", what, damaged_.size()));
}

void BadSamples::set_inspect_flags(std::string flags) {
  const std::lock_guard lock(mutex_);
  inspect_flags_ = std::move(flags);
}

void BadSamples::add(Unfit kind, const Shard& shard, std::int64_t index, const std::string& key, std::int64_t tokens) {
  const SampleId id = id_of_sample(shard, index);
  const std::lock_guard lock(mutex_);
  UnfitSamples& samples = unfit_[static_cast<std::size_t>(kind)];
  const bool is_known = samples.ids.size() < kMostUnfit ? !samples.ids.insert(id).second : samples.ids.contains(id);
  if (is_known) return;
  if (samples.count++ == 0 && say_first_)
    say_first_(fmt::format("{}. The first one is {} of shard {}, which has {}", what_happens_to(kind), in_quotes(key),
                           in_quotes(shard.name), counted(tokens, "token")));
}

std::int64_t BadSamples::count(Unfit kind) const {
  const std::lock_guard lock(mutex_);
  return of(kind).count;
}

std::set<SampleId> BadSamples::ids(Unfit kind) const {
  const std::lock_guard lock(mutex_);
  return of(kind).ids;
}

void BadSamples::say(const std::string& text) const {
  const std::lock_guard lock(mutex_);
  if (say_) say_(text);
}

void BadSamples::add_unused(const std::vector<std::string>& names, const std::string& sample, const Shard& shard) {
  const std::lock_guard lock(mutex_);
  for (const std::string& name : names)
    if (unused_.size() < kMostUnused && unused_.insert(name).second)
      say_first_(fmt::format("{} in samples is not used; the first sample that has it is {} of shard {}",
                             in_quotes(name), sample, in_quotes(shard.name)));
}

std::string BadSamples::why_none_is_left() const {
  const std::lock_guard lock(mutex_);
  const std::string damaged =
      damaged_.empty() ? "" : fmt::format("{} damaged, the first: {}", damaged_.size(), first_damaged_);
  const std::int64_t too_long = of(Unfit::TooLong).count, without_targets = of(Unfit::WithoutTargets).count;
  if (too_long + without_targets == 0) return damaged.empty() ? "there are none; use fewer lanes" : damaged;
  return fmt::format("{} too long, {} with nothing to predict{}{}", too_long, without_targets,
                     damaged.empty() ? "" : ", " + damaged, too_long > 0 ? std::string("; ") + kAdviceOnLength : "");
}

std::set<SampleId> BadSamples::damaged() const {
  const std::lock_guard lock(mutex_);
  return damaged_;
}

std::int64_t BadSamples::count() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(damaged_);
}

}  // namespace braid
