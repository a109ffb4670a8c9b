#include "mimo/unequal_samples.h"

#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/strings.h"
#include "tensor/copies.h"

namespace braid {
namespace {

constexpr std::int64_t kMostBytes = 1 << 16;  // of the names of a sequence's samples; the rest is cut

void share(SampleHolder& holder, const Group& world) {
  at::Tensor bytes = at::zeros({kMostBytes}, at::kByte);
  std::string text = fmt::format("{}", fmt::join(holder.samples, "\n"));
  text.resize(std::min(text.size(), static_cast<std::size_t>(kMostBytes - 1)));
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  bytes = upload(bytes, world.device());
  world.broadcast(bytes, holder.rank);
  bytes = to_host(bytes);
  holder.samples = split(static_cast<const char*>(bytes.const_data_ptr()), '\n');
}

}  // namespace

void refuse_unequal_samples(const Group& world, std::int64_t sequence, SampleHolder language, SampleHolder encoder) {
  share(language, world);
  share(encoder, world);
  const auto [own, other] = std::ranges::mismatch(language.samples, encoder.samples);
  const auto name = [](const SampleHolder& holder, auto sample) {
    return sample == holder.samples.end() ? std::string("no further sample") : *sample;
  };
  const std::string ranks =
      fmt::format("rank {} ({}) and rank {} ({})", language.rank, language.module, encoder.rank, encoder.module);
  if (own == language.samples.end() && other == encoder.samples.end())
    throw DataError(
        fmt::format("text and media of sequence {} do not match: {} both read {}, but with different tokens or "
                    "pictures; compare the "
                    "data set, the tokenizer and the date (data.date) on the two hosts",
                    sequence, ranks, fmt::join(language.samples, ", ")));
  throw DataError(fmt::format(
      "text and media of sequence {} come from different samples: of {}, the first has {}, the second {}; compare the "
      "files of the data set on the two hosts",
      sequence, ranks, name(language, own), name(encoder, other)));
}

}  // namespace braid
