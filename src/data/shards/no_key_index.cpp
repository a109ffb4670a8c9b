// Without SQLite: keys are checked in memory, and no file is written.
#include <unordered_map>

#include "data/shards/key_index.h"

namespace braid {

struct KeyIndex::State {
  std::vector<std::string> shards;
  std::unordered_map<std::string, std::uint32_t> shard_of_key{};
};

bool KeyIndex::is_supported() { return false; }

KeyIndex::KeyIndex(const std::string&, std::vector<std::string> shards)
    : state_(std::make_unique<State>(State{std::move(shards)})) {}

KeyIndex::~KeyIndex() = default;

void KeyIndex::add(std::uint32_t shard, std::int64_t, const ScannedSample& sample) {
  const auto [known, is_new] = state_->shard_of_key.emplace(sample.key, shard);
  if (!is_new) refuse_repeated(sample.key, state_->shards[known->second], state_->shards[shard]);
}

void KeyIndex::commit() {}

}  // namespace braid
