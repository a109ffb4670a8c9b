#include "samples/bad_samples.h"

#include "base/error.h"
#include "base/strings.h"

namespace braid {

void BadSamples::add(const std::string& shard, const std::string& key, const std::string& reason) {
  const std::int64_t number = ++count_;
  const std::string what =
      fmt::format("sample {} of shard {} is skipped: {}", in_quotes(key), in_quotes(shard), reason);
  if (number > limit_)
    throw DataError(fmt::format(
        "more than data.max_bad_samples={} samples are damaged: {}; repair the data set ('braid data inspect "
        "--count all --decode' lists its damaged samples), or allow more",
        limit_, what));
  if (say_) say_(fmt::format("{} ({} skipped)", what, number));
}

}  // namespace braid
