#include "data/samples/lane_set.h"
#include <queue>
#include "base/philox.h"
#include "base/strings.h"
#include "data/shards/energon_random.h"

namespace braid {
namespace {

// A data set has pictures only: nothing that other encoders take.
std::vector<int> tokens_without_input(const LaneSetOptions& options) {
  std::vector<int> tokens;
  for (const auto& [encoder, id] : options.media)
    if (!options.vision || encoder != options.vision->encoder) tokens.push_back(id);
  return tokens;
}

// Positions of training depend on the contents of the shards, too.
std::shared_ptr<const Blend> opened_blend(const LaneSetOptions& options, const ReadRetries& retries) {
  auto blend = std::make_shared<Blend>(*open_blend(options.data.path, options.split));
  if (options.is_training) read_contents(blend, retries);
  return blend;
}

ReadRetries retries_of(const LaneSetOptions& options, const std::shared_ptr<BadSamples>& bad) {
  return {.pauses = options.read_pauses, .say = [bad](const std::string& text) { bad->say(text); }};
}

std::string inspect_flags(const LaneSetOptions& options) {
  const DataConfig& data = options.data;
  std::string flags = fmt::format(" --data.tokenizer {} --data.prompt_format {} --data.sequence_length {}",
                                  in_quotes(data.tokenizer), data.prompt_format, options.sequence_length);
  for (const auto& [key, value] : mapped_fields(data.fields))
    flags += fmt::format(" --data.fields.{} {}", key, in_quotes(value));
  return flags;
}

constexpr std::size_t kMostUnused = 100;     // names; keys may be made of data
constexpr std::size_t kMostUnfit = 1 << 20;  // ids that are kept, of each kind

std::string what_happens_to(Unfit kind) {
  if (kind == Unfit::TooLong)
    return std::string("samples that are longer than a sequence are left out; ") + kAdviceOnLength;
  return kind == Unfit::Cut ? "samples that are longer than a sequence are cut"
                            : "samples with nothing to predict are left out";
}

void check_lengths(const std::vector<std::int64_t>& lengths, std::int64_t capacity) {
  for (const std::int64_t length : lengths)
    BRAID_CHECK(length >= 0 && length <= capacity, "a sample of {} tokens in sequences of {}", length, capacity);
}

constexpr std::uint64_t kMostHeld = 1 << 24;
constexpr std::int64_t kMostSkipped = 10000;  // in a row, or as many as the worker has

// The sequences of one worker of a lane.
class PackStream : public Stream<Pack> {
 public:
  // `seed`: of the order of packs.
  PackStream(StreamPtr order, const LaneSet& set, WorkerPool& pool, std::uint64_t seed)
      : order_(std::move(order)), set_(set), pool_(pool), seed_(seed) {}

  std::optional<Pack> next() override {
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

  void serialize(StreamState& state) override {
    state.number(round_, UINT64_MAX);
    state.number(ended_, 1);
    serialize(state, unpacked_);
    state.list(packs_, kMostHeld, [&](Pack& pack) { serialize(state, pack); });
    if (state.reads()) check_capacity();
    order_->serialize(state);
  }

 private:
  // Reads one sample at a time if there is no buffer.
  void refill() {
    const auto wanted = static_cast<std::size_t>(std::max(set_.options.loader.packing_buffer.value_or(0), 1));
    const auto held = [&] { return unpacked_.size() + sum_of<std::size_t>(packs_, &Pack::size); };
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
      if (skipped > std::max(kMostSkipped, order_->samples))
        throw DataError(fmt::format("of the last {} samples, none can be used in a sequence of {} tokens: {}", skipped,
                                    set_.sequences.capacity(), set_.bad->why_none_is_left()));
      std::move(samples.begin(), samples.end(), std::back_inserter(unpacked_));
    }
  }

  void select() {
    std::vector<std::int64_t> lengths;
    for (const ReadSample& sample : unpacked_) lengths.push_back(std::ssize(sample.tokens.ids));
    Packs chosen = make_packs(lengths, set_.sequences.capacity(), set_.options.loader.packing);
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
    const Shard& shard = set_.reader.shard_of(ref);
    try {
      Sample sample = set_.reader.read(ref);
      Conversation conversation =
          read_conversation(sample, set_.blend->leaves[ref.leaf].spec, set_.options.data.fields);
      if (set_.bad->says_unused())
        set_.bad->add_unused(set_.sequences.unused_fields(conversation), in_quotes(sample.key), shard);
      ReadSample read = {.ref = ref, .shard = &shard, .key = sample.key, .stored_bytes = sample.stored_bytes()};
      for (const SamplePart& picture : conversation.pictures)
        read.pictures.push_back({picture.name, picture.offset, picture.bytes.size()});
      read.tokens = set_.sequences.encode(std::move(conversation));
      const std::int64_t length = std::ssize(read.tokens.ids);
      const std::optional<Unfit> unfit = set_.sequences.fit(read.tokens);
      if (unfit) set_.bad->add(*unfit, shard, ref.index, sample.key, length);
      return is_usable(unfit) ? std::optional(std::move(read)) : std::nullopt;
    } catch (const ReadError&) {
      throw;
    } catch (const DataError& e) {
      set_.bad->add(set_.reader.data_of(ref), ref, set_.reader.name_of(ref), e.what());
      return std::nullopt;
    }
  }

  std::vector<ReadSample> read_all(const std::vector<SampleRef>& refs) {
    std::vector<std::optional<ReadSample>> read(refs.size());
    pool_.run(refs.size(), [&](std::size_t i) { read[i] = this->read(refs[i]); });
    std::vector<ReadSample> samples;
    for (std::optional<ReadSample>& sample : read)
      if (sample) samples.push_back(*std::move(sample));
    return samples;
  }

  void serialize(StreamState& state, std::vector<ReadSample>& samples) {
    auto refs = vector_of<SampleRef>(samples, &ReadSample::ref);
    state.list(refs, kMostHeld, [&](SampleRef& ref) { braid::serialize(state, ref, *set_.blend); });
    if (!state.reads()) return;
    samples = read_all(refs);
    for (std::size_t i = 0; i < refs.size(); ++i)
      if (i >= samples.size() || samples[i].ref != refs[i])
        throw DataError(fmt::format(
            "sample {} of shard {} was waiting to be packed when the checkpoint was saved, but cannot be used now: the "
            "data set or its settings have changed; restore them, or start with checkpoint.load_data=false",
            set_.reader.name_of(refs[i]), in_quotes(set_.reader.shard_of(refs[i]).name)));
  }

  // Samples may have become longer, for example by another tokenizer.
  void check_capacity() const {
    for (const Pack& pack : packs_) {
      const auto tokens = sum_of<std::int64_t>(pack, [](const auto& sample) { return std::ssize(sample.tokens.ids); });
      if (tokens > set_.sequences.capacity())
        throw ConfigError(
            {fmt::format("{} samples from '{}' on shared a sequence of {} tokens when the state was saved; "
                         "now they have {}",
                         pack.size(), pack.front().key, set_.sequences.capacity(), tokens),
             "data", "restore with the same tokenizer, chat format and data"});
    }
  }

  const StreamPtr order_;
  const LaneSet& set_;
  WorkerPool& pool_;
  const std::uint64_t seed_;
  bool ended_ = false;
  std::uint64_t round_ = 0;             // selections so far
  std::vector<ReadSample> unpacked_{};  // read, for the next selection
  std::deque<Pack> packs_{};            // of the last selection
};

// What the position of a lane depends on. The fields are those of the recipe.
LaneIdentity identity_of(const LaneSetOptions& options, const Blend& blend, const SequenceSettings& settings,
                         const OrderConfig& order, int lane) {
  LaneIdentity identity = lane_identity(blend, order, lane);
  identity.emplace_back("loader.packing_buffer", std::to_string(options.loader.packing_buffer.value_or(0)));
  identity.emplace_back("loader.packing", name_of(options.loader.packing));
  identity.insert(identity.end(), settings.begin(), settings.end());
  // Last, so that a change of data.fields is named as such.
  for (auto& mapping : mappings_of(blend, options.data.fields)) identity.push_back(std::move(mapping));
  return identity;
}

}  // namespace

LaneSet::LaneSet(LaneSetOptions given)
    : options(std::move(given)),
      bad(options.bad ? options.bad : std::make_shared<BadSamples>(options.data.max_bad_samples, nullptr)),
      blend(opened_blend(options, retries_of(options, bad))), reader(blend, kMostOpenShards, retries_of(options, bad)),
      sequences(options.data, std::make_shared<Tokenizer>(load_tokenizer(options.data.tokenizer)), options.vision,
                options.sequence_length, tokens_without_input(options)) {
  bad->set_inspect_flags(inspect_flags(options));
  throw_if_any(unreadable_leaves(*blend, options.data.fields));
}

OrderConfig order_of(const LaneSetOptions& options) {
  const LoaderConfig& loader = options.loader;
  return {.lanes = options.lanes,
          .workers = loader.num_workers,
          .seed = options.seed,
          .is_training = options.is_training,
          .shuffle_buffer = loader.shuffle_buffer,
          .max_samples_per_sequence = loader.max_samples_per_sequence};
}

void check_positions(const LaneSetOptions& options, const Blend& blend, const SequenceSettings& settings,
                     const std::vector<std::string>& positions) {
  const LaneIdentity stored = stored_identity(positions.at(0));  // mock samples have other positions
  if (stored.empty() ||
      stored.front().first != identity_of(options, blend, settings, order_of(options), 0).front().first)
    throw ConfigError({"the checkpoint has a position in Megatron's text, not in a data set", "data.path",
                       "use the same data, or read it from its start: checkpoint.load_data=false"});
  if (std::ssize(positions) != options.lanes)
    throw ConfigError({fmt::format("the checkpoint has positions of {} of the data set, but this run has {}",
                                   counted(std::ssize(positions), "lane"), options.lanes),
                       "loader.lanes", fmt::format("use loader.lanes={}", positions.size())});
  open_state(identity_of(options, blend, settings, order_of(options), 0), positions.front());
}

ReplicaLanes::ReplicaLanes(std::shared_ptr<const LaneSet> set, const Replicas& replicas,
                           const std::vector<std::string>& positions)
    : set_(std::move(set)), per_replica_(set_->options.lanes / replicas.all),
      first_lane_(replicas.first * per_replica_), pool_(set_->options.loader.threads),
      turns_(static_cast<std::size_t>(replicas.count)) {
  for (int i = 0; i < replicas.count * per_replica_; ++i) {
    lanes_.push_back(std::make_unique<PackLane>(*set_, pool_, set_->order(), first_lane_ + i));
    if (!positions.empty()) lanes_.back()->restore(positions[first_lane_ + i]);
  }
}

Pack ReplicaLanes::next(int replica) {
  int& turn = turns_[replica];
  const int number = replica * per_replica_ + turn;
  turn = (turn + 1) % per_replica_;
  PackLane& lane = *lanes_[number];
  for (int attempt = 0; attempt < 2; ++attempt)  // after the end of evaluation, again from the start
    if (std::optional<Pack> pack = lane.next()) {
      for (ReadSample& sample : *pack) sample.lane = first_lane_ + number;
      return *std::move(pack);
    }
  throw DataError(fmt::format("lane {} of split '{}' has no sample that can be used in a sequence of {} tokens: {}",
                              first_lane_ + number, set_->options.split, set_->options.sequence_length,
                              set_->bad->why_none_is_left()));
}

std::vector<std::pair<int, std::string>> ReplicaLanes::positions(int replica) const {
  std::vector<std::pair<int, std::string>> positions;
  for (int i = replica * per_replica_; i < (replica + 1) * per_replica_; ++i)
    positions.emplace_back(first_lane_ + i, lanes_[i]->save());
  return positions;
}

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
  std::vector<std::size_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), std::size_t{0});
  std::ranges::stable_sort(longest_first, std::greater<>(), [&](std::size_t sample) { return lengths[sample]; });
  for (const std::size_t sample : longest_first) {
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

Packs make_packs(const std::vector<std::int64_t>& lengths, std::int64_t capacity, Packing packing) {
  constexpr int kSparePacks = 5;
  return packing == Packing::Even ? pack_evenly(lengths, capacity, kSparePacks) : pack_greedily(lengths, capacity);
}

void shuffle_packs(Packs& packs, std::uint64_t seed, std::uint64_t round) {
  const RandomField random(seed, "packs");
  for (std::size_t i = packs.size(); i > 1; --i) {
    const double u = random.uniform((round << 32) + i);
    std::swap(packs[i - 1], packs[static_cast<std::size_t>(u * static_cast<double>(i))]);
  }
}

PackLane::PackLane(const LaneSet& set, WorkerPool& pool, const OrderConfig& order, int lane)
    : InTurn(identity_of(set.options, *set.blend, set.sequences.settings(), order, lane)) {
  for (int i = 0; i < workers_of(order); ++i) {
    const std::int64_t worker = first_worker(order, lane) + i;
    add(std::make_unique<PackStream>(worker_order(set.blend, order, worker), set, pool,
                                     worker_seed(worker, order.seed)));
  }
}

void add_picture_jobs(const ReadSample& sample, std::vector<PictureJob>& jobs) {
  for (const auto inputs : by_picture(sample.tokens.media))
    jobs.push_back({&sample, inputs, patches_of(jobs), patches_of(inputs)});
}

bool decode_into(std::span<std::uint8_t> rows, const PictureJob& job, const LaneSet& set) {
  const int patch = set.options.vision->patch;
  const std::size_t row_bytes = std::size_t{3} * static_cast<std::size_t>(patch) * static_cast<std::size_t>(patch);
  const auto own = rows.subspan(static_cast<std::size_t>(job.first_patch) * row_bytes,
                                static_cast<std::size_t>(job.patches) * row_bytes);
  const SampleRef& ref = job.sample->ref;
  try {
    const StoredPart& picture = job.sample->pictures[job.inputs.front().picture];
    const std::string bytes = set.reader.read_bytes(ref, picture.offset, picture.size);
    const PictureConfig& config = set.options.data.pictures;
    write_patches(decode_for({picture.name, bytes}, job.inputs, config), job.inputs, config, patch, own);
    return true;
  } catch (const ReadError&) {
    throw;
  } catch (const DataError& e) {
    std::fill(own.begin(), own.end(), std::uint8_t{0});
    set.bad->add(set.reader.data_of(ref), ref, in_quotes(job.sample->key), e.what());
    return false;
  }
}

}  // namespace braid
