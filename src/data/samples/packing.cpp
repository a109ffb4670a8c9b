#include "data/samples/packing.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <queue>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/philox.h"
#include "base/strings.h"

namespace braid {
namespace {

std::vector<std::size_t> longest_first(const std::vector<std::int64_t>& lengths) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  return order;
}

void check_lengths(const std::vector<std::int64_t>& lengths, std::int64_t capacity) {
  for (const std::int64_t length : lengths)
    BRAID_CHECK(length >= 0 && length <= capacity, "a sample of {} tokens in sequences of {}", length, capacity);
}

constexpr std::uint64_t kMostHeld = 1 << 24;
constexpr std::int64_t kMostSkipped = 10000;  // in a row, or as many as the worker has

void save_refs(StateWriter& state, const std::vector<ReadSample>& samples) {
  state.number(samples.size());
  for (const ReadSample& sample : samples) save_ref(state, sample.ref);
}

std::vector<SampleRef> restore_refs(StateReader& state, const Blend& blend) {
  std::vector<SampleRef> refs;
  for (std::uint64_t left = state.number(kMostHeld); left > 0; --left) refs.push_back(restore_ref(state, blend));
  return refs;
}

constexpr std::string_view kDigits = "0123456789abcdef";

std::string to_hex(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

std::string from_hex(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const std::size_t high = kDigits.find(text[i]), low = kDigits.find(text[i + 1]);
    if (high == kDigits.npos || low == kDigits.npos) throw DataError("the position of a data lane is damaged");
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

}  // namespace

Packs pack_greedily(const std::vector<std::int64_t>& lengths, std::int64_t capacity) {
  check_lengths(lengths, capacity);
  std::set<std::pair<std::int64_t, std::size_t>> left;
  for (std::size_t i = 0; i < lengths.size(); ++i) left.emplace(lengths[i], i);
  Packs packs;
  while (!left.empty()) {
    auto& pack = packs.emplace_back();
    std::int64_t room = capacity;
    for (;;) {
      auto next = left.upper_bound({room, lengths.size()});
      if (next == left.begin()) break;
      --next;
      room -= next->first;
      pack.push_back(next->second);
      left.erase(next);
    }
  }
  return packs;
}

Packs pack_evenly(const std::vector<std::int64_t>& lengths, std::int64_t capacity, int spare) {
  check_lengths(lengths, capacity);
  if (lengths.empty()) return {};
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  Packs packs(static_cast<std::size_t>((total + capacity - 1) / capacity + spare));
  using Fill = std::pair<std::int64_t, std::size_t>;  // tokens, pack
  std::priority_queue<Fill, std::vector<Fill>, std::greater<>> emptiest;
  for (std::size_t p = 0; p < packs.size(); ++p) emptiest.emplace(0, p);
  for (const std::size_t sample : longest_first(lengths)) {
    Fill fill = {0, packs.size()};
    if (!emptiest.empty() && emptiest.top().first + lengths[sample] <= capacity) {
      fill = emptiest.top();
      emptiest.pop();
    } else {
      packs.emplace_back();
    }
    packs[fill.second].push_back(sample);
    emptiest.emplace(fill.first + lengths[sample], fill.second);
  }
  std::erase_if(packs, [](const auto& pack) { return pack.empty(); });
  return packs;
}

Packs make_packs(const std::vector<std::int64_t>& lengths, std::int64_t capacity, const std::string& packing) {
  constexpr int kSparePacks = 5;
  return packing == "even" ? pack_evenly(lengths, capacity, kSparePacks) : pack_greedily(lengths, capacity);
}

void shuffle_packs(Packs& packs, std::uint64_t seed, std::uint64_t round) {
  const RandomField random(seed, "packs");
  for (std::size_t i = packs.size(); i > 1; --i) {
    const double u = random.uniform((round << 32) + i);
    std::swap(packs[i - 1], packs[static_cast<std::size_t>(u * static_cast<double>(i))]);
  }
}

PackStream::PackStream(StreamPtr order, const PackSources& sources, const LoaderConfig& config, std::uint64_t seed)
    : order_(std::move(order)),
      sources_(sources),
      buffer_(static_cast<std::size_t>(config.packing_buffer.value_or(0))),
      packing_(config.packing),
      seed_(seed) {}

std::size_t PackStream::held() const {
  std::size_t samples = unpacked_.size();
  for (const Pack& pack : packs_) samples += pack.size();
  return samples;
}

std::optional<Pack> PackStream::next() {
  refill();
  if (packs_.empty()) select();
  if (packs_.empty()) {
    ended_ = false;  // the next call starts again
    return std::nullopt;
  }
  Pack pack = std::move(packs_.front());
  packs_.pop_front();
  return pack;
}

// Reads one sample at a time if there is no buffer.
void PackStream::refill() {
  const std::size_t wanted = std::max<std::size_t>(buffer_, 1);
  std::int64_t skipped = 0;
  for (std::size_t missing; !ended_ && (missing = wanted - std::min(wanted, held())) > 0;) {
    std::vector<SampleRef> refs;
    while (refs.size() < missing && !ended_) {
      if (const auto ref = order_->next())
        refs.push_back(*ref);
      else
        ended_ = true;
    }
    std::vector<ReadSample> samples = read_all(refs);
    skipped = samples.empty() ? skipped + std::ssize(refs) : 0;
    // Training repeats the samples without end, so the search would never end either.
    if (skipped > std::max(kMostSkipped, order_->samples()))
      throw DataError(fmt::format("of the last {} samples, none can be used in a sequence of {} tokens: {}", skipped,
                                  sources_.sequences.capacity(), sources_.bad.why_none_is_left()));
    std::move(samples.begin(), samples.end(), std::back_inserter(unpacked_));
  }
}

void PackStream::select() {
  std::vector<std::int64_t> lengths;
  for (const ReadSample& sample : unpacked_) lengths.push_back(std::ssize(sample.tokens.ids));
  const std::int64_t capacity = sources_.sequences.capacity();
  Packs chosen = make_packs(lengths, capacity, packing_);
  shuffle_packs(chosen, seed_, round_++);
  for (const std::vector<std::size_t>& members : chosen) {
    Pack& pack = packs_.emplace_back();
    for (const std::size_t member : members) pack.push_back(std::move(unpacked_[member]));
  }
  unpacked_.clear();
}

// Whether the sample can be used. Shortens a long one if the recipe asks for it, and counts those left out or cut.
bool PackStream::fit(TokenSequence& tokens, const Shard& shard, std::int64_t index, const std::string& key) {
  const std::int64_t length = std::ssize(tokens.ids);
  const SequenceUse use = sources_.sequences.fit(tokens);
  const auto count = [&](Unfit kind) { sources_.bad.add(kind, shard, index, key, length); };
  if (use == SequenceUse::TooLong) count(Unfit::TooLong);
  if (use == SequenceUse::PredictsNothing) count(Unfit::WithoutTargets);
  if (use == SequenceUse::Usable && length > sources_.sequences.capacity()) count(Unfit::Cut);
  return use == SequenceUse::Usable;
}

// Returns nothing for samples that are skipped. Only what every rank sees alike may be skipped: the pictures of a
// sample are read by another rank than its text.
std::optional<ReadSample> PackStream::read(const SampleRef& ref) {
  const Shard& shard = sources_.reader.shard_of(ref);
  try {
    Sample sample = sources_.reader.read(ref);
    Conversation conversation = read_conversation(sample, sources_.blend->leaves[ref.leaf].spec, sources_.fields);
    if (sources_.bad.says_unused())
      sources_.bad.add_unused(sources_.sequences.unused_fields(conversation), in_quotes(sample.key), shard);
    std::vector<StoredPicture> pictures;
    for (const Picture& picture : conversation.pictures)
      pictures.push_back({picture.name, picture.offset, picture.bytes.size()});
    TokenSequence tokens = sources_.sequences.encode(std::move(conversation));
    if (!fit(tokens, shard, ref.index, sample.key)) return std::nullopt;
    return ReadSample{.ref = ref,
                      .shard = &shard,
                      .key = std::move(sample.key),
                      .tokens = std::move(tokens),
                      .pictures = std::move(pictures),
                      .stored_bytes = sample.stored_bytes()};
  } catch (const ReadError&) {
    throw;
  } catch (const DataError& e) {
    sources_.bad.add(sources_.reader.data_of(ref), ref, sources_.reader.name_of(ref), e.what());
    return std::nullopt;
  }
}

std::vector<ReadSample> PackStream::read_all(const std::vector<SampleRef>& refs) {
  std::vector<std::optional<ReadSample>> read(refs.size());
  sources_.pool.run(refs.size(), [&](std::size_t i) { read[i] = this->read(refs[i]); });
  std::vector<ReadSample> samples;
  for (std::optional<ReadSample>& sample : read)
    if (sample) samples.push_back(*std::move(sample));
  return samples;
}

std::vector<ReadSample> PackStream::read_saved(StateReader& state) {
  const std::vector<SampleRef> refs = restore_refs(state, *sources_.blend);
  std::vector<ReadSample> samples = read_all(refs);
  for (std::size_t i = 0; i < refs.size(); ++i)
    if (i >= samples.size() || samples[i].ref != refs[i])
      throw DataError(fmt::format(
          "sample {} of shard {} was waiting to be packed when the checkpoint was saved, but cannot be used now: the "
          "data set or its settings have changed; restore them, or start with checkpoint.load_data=false",
          sources_.reader.name_of(refs[i]), in_quotes(sources_.reader.shard_of(refs[i]).name)));
  return samples;
}

// Samples may have become longer, for example by another tokenizer.
void PackStream::check_capacity() const {
  for (const Pack& pack : packs_) {
    std::int64_t tokens = 0;
    for (const ReadSample& sample : pack) tokens += std::ssize(sample.tokens.ids);
    if (tokens > sources_.sequences.capacity())
      throw ConfigError({fmt::format("{} samples from '{}' on shared a sequence of {} tokens when the state was saved; "
                                     "now they have {}",
                                     pack.size(), pack.front().key, sources_.sequences.capacity(), tokens),
                         "data", "restore with the same tokenizer, chat format and data"});
  }
}

void PackStream::save(StateWriter& state) const {
  state.number(round_);
  state.number(ended_);
  save_refs(state, unpacked_);
  state.number(packs_.size());
  for (const Pack& pack : packs_) save_refs(state, pack);
  order_->save(state);
}

void PackStream::restore(StateReader& state) {
  round_ = state.number(~std::uint64_t{0});
  ended_ = state.number(1) == 1;
  unpacked_ = read_saved(state);
  packs_.resize(state.number(kMostHeld));
  for (Pack& pack : packs_) pack = read_saved(state);
  check_capacity();
  order_->restore(state);
}

LaneIdentity pack_lane_identity(const Blend& blend, const SampleFields& fields, const LoaderConfig& config,
                                const OrderConfig& order, int lane, const SequenceSettings& settings) {
  LaneIdentity identity = lane_identity(blend, order, lane);
  identity.emplace_back("loader.packing_buffer", fmt::format("{}", config.packing_buffer.value_or(0)));
  identity.emplace_back("loader.packing", config.packing);
  identity.insert(identity.end(), settings.begin(), settings.end());
  // Last, so that a change of data.fields is named as such.
  for (auto& mapping : mappings_of(blend, fields)) identity.push_back(std::move(mapping));
  return identity;
}

LaneIdentity identity_of_position(std::string_view position) { return stored_identity(from_hex(position)); }

void check_position(const LaneIdentity& identity, std::string_view position) {
  open_state(identity, from_hex(position));
}

PackLane::PackLane(const PackSources& sources, const LoaderConfig& config, const OrderConfig& order, int lane)
    : identity_(pack_lane_identity(*sources.blend, sources.fields, config, order, lane, sources.sequences.settings())) {
  for (int i = 0; i < workers_of(order); ++i) {
    const std::int64_t worker = first_worker(order, lane) + i;
    workers_.add(std::make_unique<PackStream>(worker_order(sources.blend, order, worker), sources, config,
                                              worker_seed(worker, order.seed)));
  }
}

std::string PackLane::save() const {
  StateWriter state;
  workers_.save(state);
  return to_hex(seal_state(identity_, state));
}

void PackLane::restore(std::string_view state) {
  const std::string bytes = from_hex(state);
  StateReader reader = open_state(identity_, bytes);
  workers_.restore(reader);
  reader.expect_end();
}

}  // namespace braid
