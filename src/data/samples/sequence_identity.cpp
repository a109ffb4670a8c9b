#include "data/samples/sequence_identity.h"

#include <string_view>

#include "base/strings.h"
#include "data/samples/pack_stream.h"
#include "data/shards/sha1.h"

namespace braid {
namespace {

class HashedBytes {
 public:
  void add(std::uint64_t number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number)); }
  void add(std::string_view text) {
    add(text.size());  // so that "ab", "c" and "a", "bc" differ
    bytes_ += text;
  }

  std::int64_t hash() const {
    std::uint64_t value = 0;
    const auto digest = sha1(bytes_);
    for (std::size_t i = 0; i < sizeof(value); ++i) value = value << 8 | digest[i];
    return static_cast<std::int64_t>(value >> 11 | 1);
  }

 private:
  std::string bytes_{};
};

void add(const ReadSample& sample, HashedBytes& bytes) {
  bytes.add(sample.shard->name);
  for (const std::uint64_t number :
       {std::uint64_t{sample.ref.leaf}, static_cast<std::uint64_t>(sample.ref.index), sample.ref.epoch})
    bytes.add(number);
  bytes.add(sample.key);
  bytes.add(sample.tokens.ids.size());
  for (const int id : sample.tokens.ids) bytes.add(static_cast<std::uint64_t>(id));
  for (const StoredPicture& picture : sample.pictures) {
    bytes.add(picture.offset);
    bytes.add(picture.size);
  }
}

}  // namespace

SequenceIdentity identity_of(const Pack& pack) {
  SequenceIdentity identity;
  HashedBytes bytes;
  for (const ReadSample& sample : pack) {
    add(sample, bytes);
    identity.samples.push_back(fmt::format("sample {} of shard {} (lane {}, epoch {})", in_quotes(sample.key),
                                           in_quotes(sample.shard->name), sample.lane, sample.ref.epoch));
  }
  identity.hash = bytes.hash();
  return identity;
}

SequenceIdentity identity_of_mock(std::int64_t number) {
  HashedBytes bytes;
  bytes.add(static_cast<std::uint64_t>(number));
  return {bytes.hash(), {fmt::format("mock sample {}", number)}};
}

}  // namespace braid
