#include "data/samples/packing.h"

#include <algorithm>
#include <deque>
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
#include "data/shards/draws.h"

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

class PackStream {
 public:
  // `seed`: of the order of packs.
  PackStream(StreamPtr order, const PackSources& sources, const LoaderConfig& config, std::uint64_t seed)
      : order_(std::move(order)),
        sources_(sources),
        buffer_(static_cast<std::size_t>(config.packing_buffer.value_or(0))),
        packing_(config.packing),
        seed_(seed) {}

  std::optional<Pack> next() {
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

  void serialize(StreamState& state) {
    std::uint64_t packs = packs_.size();
    state.number(round_, UINT64_MAX);
    state.number(ended_, 1);
    serialize(state, unpacked_);
    state.number(packs, kMostHeld);
    packs_.resize(packs);
    for (Pack& pack : packs_) serialize(state, pack);
    if (state.reads()) check_capacity();
    order_->serialize(state);
  }

 private:
  std::size_t held() const {
    std::size_t samples = unpacked_.size();
    for (const Pack& pack : packs_) samples += pack.size();
    return samples;
  }

  // Reads one sample at a time if there is no buffer.
  void refill() {
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

  void select() {
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

  // Returns nothing for samples that are skipped. Only what every rank sees alike may be skipped: the pictures of a
  // sample are read by another rank than its text.
  std::optional<ReadSample> read(const SampleRef& ref) {
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
      const std::int64_t length = std::ssize(tokens.ids);
      const std::optional<Unfit> unfit = sources_.sequences.fit(tokens);
      if (unfit) sources_.bad.add(*unfit, shard, ref.index, sample.key, length);
      if (!is_usable(unfit)) return std::nullopt;
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

  std::vector<ReadSample> read_all(const std::vector<SampleRef>& refs) {
    std::vector<std::optional<ReadSample>> read(refs.size());
    sources_.pool.run(refs.size(), [&](std::size_t i) { read[i] = this->read(refs[i]); });
    std::vector<ReadSample> samples;
    for (std::optional<ReadSample>& sample : read)
      if (sample) samples.push_back(*std::move(sample));
    return samples;
  }

  void serialize(StreamState& state, std::vector<ReadSample>& samples) {
    std::vector<SampleRef> refs;
    for (const ReadSample& sample : samples) refs.push_back(sample.ref);
    braid::serialize(state, refs, kMostHeld, *sources_.blend);
    if (!state.reads()) return;
    samples = read_all(refs);
    for (std::size_t i = 0; i < refs.size(); ++i)
      if (i >= samples.size() || samples[i].ref != refs[i])
        throw DataError(fmt::format(
            "sample {} of shard {} was waiting to be packed when the checkpoint was saved, but cannot be used now: the "
            "data set or its settings have changed; restore them, or start with checkpoint.load_data=false",
            sources_.reader.name_of(refs[i]), in_quotes(sources_.reader.shard_of(refs[i]).name)));
  }

  // Samples may have become longer, for example by another tokenizer.
  void check_capacity() const {
    for (const Pack& pack : packs_) {
      std::int64_t tokens = 0;
      for (const ReadSample& sample : pack) tokens += std::ssize(sample.tokens.ids);
      if (tokens > sources_.sequences.capacity())
        throw ConfigError(
            {fmt::format("{} samples from '{}' on shared a sequence of {} tokens when the state was saved; "
                         "now they have {}",
                         pack.size(), pack.front().key, sources_.sequences.capacity(), tokens),
             "data", "restore with the same tokenizer, chat format and data"});
    }
  }

  const StreamPtr order_;
  const PackSources sources_;
  const std::size_t buffer_;
  const std::string packing_;
  const std::uint64_t seed_;
  bool ended_ = false;
  std::uint64_t round_ = 0;             // selections so far
  std::vector<ReadSample> unpacked_{};  // read, for the next selection
  std::deque<Pack> packs_{};            // of the last selection
};

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

PackLane::PackLane(const PackSources& sources, const LoaderConfig& config, const OrderConfig& order, int lane)
    : identity_(pack_lane_identity(*sources.blend, sources.fields, config, order, lane, sources.sequences.settings())),
      workers_(std::make_unique<InTurn<PackStream>>()) {
  for (int i = 0; i < workers_of(order); ++i) {
    const std::int64_t worker = first_worker(order, lane) + i;
    workers_->add(std::make_unique<PackStream>(worker_order(sources.blend, order, worker), sources, config,
                                               worker_seed(worker, order.seed)));
  }
}

PackLane::~PackLane() = default;

std::optional<Pack> PackLane::next() { return workers_->next(); }

std::string PackLane::save() { return workers_->save(identity_); }

void PackLane::restore(std::string_view position) { workers_->restore(identity_, position); }

}  // namespace braid
