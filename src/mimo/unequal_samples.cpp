#include "mimo/unequal_samples.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/strings.h"
#include "tensor/host_copy.h"
#include "tensor/upload.h"

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
  const bool has_same_names = own == language.samples.end() && other == encoder.samples.end();
  throw DataError(fmt::format(
      "text and media of sequence {} would come from different samples: rank {} ({}) has {}, rank {} ({}) has {}{}",
      sequence, language.rank, language.module, name(language, own), encoder.rank, encoder.module, name(encoder, other),
      has_same_names ? fmt::format(": {} on both, but with different tokens or pictures; compare the files of the data "
                                   "set and the tokenizer on the two hosts",
                                   fmt::join(language.samples, ", "))
                     : "; the ranks have read the data set differently: compare its files on the two hosts"));
}

}  // namespace braid
