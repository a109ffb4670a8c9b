// What a data set contains, from a look at its samples; and how fast it can be read.
#include "base/error.h"
#include "data/inspect/reports.h"
#include "data/samples/lane_set.h"

namespace braid {
namespace {

constexpr std::int64_t kChunk = 256;  // samples that are looked at before their results are added up

// What one sample adds to the survey.
struct Look {
  SampleRef ref{};
  std::vector<std::string> parts{}, fields{}, unused{};
  std::size_t stored_bytes = 0;
  std::vector<ImageHeader> pictures{};
  std::vector<std::int64_t> embeddings{};  // by picture
  std::optional<std::int64_t> length{};
  std::int64_t labels = 0;
  std::optional<Unfit> unfit{};
  std::optional<DamagedSample> damage{};
  bool can_read = true;  // false: the damage is that of the shard
};

// What a conversation has beside texts and pictures.
std::vector<std::string> fields_of(const Conversation& conversation) {
  std::set<std::string> fields;
  if (conversation.tools) fields.insert("tools");
  for (const ChatTurn& turn : conversation.turns) {
    if (!turn.is_learned) fields.insert("turn.weight=0");
    if (turn.fields)
      for (const auto& [key, value] : turn.fields->items())
        if (key != "content") fields.insert("turn." + key);
  }
  return {fields.begin(), fields.end()};
}

Look look_at(const SurveySources& sources, const SampleRef& ref) {
  Look look = {.ref = ref, .can_read = false};
  std::string key = fmt::format("number {}", ref.index);
  try {
    const Sample sample = sources.reader.read(ref);
    look.can_read = true;
    key = sample.key;
    for (const SamplePart& part : sample.parts) look.parts.push_back(part.name);
    look.stored_bytes = sample.stored_bytes();
    Conversation conversation = read_conversation(sample, sources.blend.leaves[ref.leaf].spec, sources.data.fields);
    look.fields = fields_of(conversation);
    look.unused = sources.sequences ? sources.sequences->unused_fields(conversation) : conversation.unused;
    for (const SamplePart& picture : conversation.pictures) {
      look.pictures.push_back(read_header(picture.file(), picture.name));
      if (sources.decodes) decode(picture.file(), picture.name);
    }
    if (!sources.sequences) return look;
    look.embeddings.resize(conversation.pictures.size());
    TokenSequence tokens = sources.sequences->encode(std::move(conversation));
    look.length = std::ssize(tokens.ids);
    look.unfit = sources.sequences->fit(tokens);
    look.labels = tokens.labels();
    for (const MediaPlan& media : tokens.media) look.embeddings[media.picture] += media.embeddings;
  } catch (const SystemReadError&) {
    throw;
  } catch (const DataError& e) {
    look.damage = {sources.reader.shard_of(ref).name, key, e.what()};
  }
  return look;
}

// Names may be made of data.
void add_name(Survey::Counts& counts, const std::string& name) {
  constexpr std::size_t kMostNames = 1000;
  ++counts[counts.size() < kMostNames || counts.contains(name) ? name : "others"];
}

// Adds up the results of samples, in their order.
class Surveyor {
 public:
  explicit Surveyor(const SurveySources& sources) : sources_(sources) {}

  void add(const Look& look) {
    check_shard(look);
    ++survey_.samples;
    survey_.stored_bytes += static_cast<std::int64_t>(look.stored_bytes);
    for (const std::string& part : look.parts) ++survey_.parts[part];
    for (const std::string& field : look.fields) add_name(survey_.fields, field);
    for (const std::string& field : look.unused) add_name(survey_.unused, field);
    for (const ImageHeader& header : look.pictures) {
      const PixelSize size = header.oriented();
      ++survey_.formats[name_of(header.format)];
      ++survey_.picture_sizes[{size.width, size.height}];
      survey_.widths.add(size.width);
      survey_.heights.add(size.height);
    }
    if (!look.damage) return add_tokens(look);
    ++survey_.damaged;
    if (!look.can_read) return;
    add_name(survey_.reasons, look.damage->reason);
    if (survey_.first_damaged.size() < sources_.most_named) survey_.first_damaged.push_back(*look.damage);
  }

  Survey take() {
    pack();
    return std::move(survey_);
  }

 private:
  void add_tokens(const Look& look) {
    for (const std::int64_t embeddings : look.embeddings) survey_.embeddings.add(embeddings);
    if (!look.length) return;
    survey_.lengths.add(*look.length);
    survey_.too_long += look.unfit == Unfit::TooLong;
    survey_.without_targets += look.unfit == Unfit::WithoutTargets;
    survey_.cut += look.unfit == Unfit::Cut;
    if (!is_usable(look.unfit)) return;
    survey_.labels += look.labels;
    held_.push_back(std::min(*look.length, sources_.sequences->capacity()));
    if (std::ssize(held_) >= sources_.loader.packing_buffer.value_or(1)) pack();
  }

  // Packs the held samples as training would pack them in this order.
  void pack() {
    if (held_.empty()) return;
    survey_.sequences += std::ssize(make_packs(held_, sources_.sequences->capacity(), sources_.loader.packing));
    survey_.packed_tokens += std::accumulate(held_.begin(), held_.end(), std::int64_t{0});
    held_.clear();
  }

  // Names each damaged shard once.
  void check_shard(const Look& look) {
    const Shard& shard = sources_.reader.shard_of(look.ref);
    if (&shard != std::exchange(shard_, &shard)) {
      named_ = false;
      try {
        if (const std::string remark = sources_.reader.end_remark(look.ref); !remark.empty()) name_shard(remark);
      } catch (const SystemReadError&) {
        throw;
      } catch (const DataError&) {  // its samples say why
      }
    }
    if (look.can_read) return;
    if (!named_) name_shard(look.damage->reason);
    if (named_) ++survey_.damaged_shards.back().samples;
  }

  void name_shard(const std::string& reason) {
    if (survey_.damaged_shards.size() == sources_.most_named) return;
    survey_.damaged_shards.push_back({.shard = shard_->name, .reason = reason});
    named_ = true;
  }

  const SurveySources& sources_;
  Survey survey_{};
  std::vector<std::int64_t> held_{};  // lengths of samples to pack
  const Shard* shard_ = nullptr;      // of the last sample
  bool named_ = false;                // whether it is
};

constexpr int kBatch = 8;  // sequences whose pictures are decoded at a time

class Stopwatch {
 public:
  // The seconds since the last call.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Decodes all pictures of some sequences. `rows`: for their patches.
void decode_pictures(const LaneSet& set, const std::vector<Pack>& packs, std::vector<std::uint8_t>& rows,
                     WorkerPool& pool, LoadTotals& totals) {
  if (!set.options.vision) return;
  const int patch = set.options.vision->patch;
  std::vector<PictureJob> jobs;
  for (const Pack& pack : packs)
    for (const ReadSample& sample : pack) add_picture_jobs(sample, jobs);
  const std::int64_t patches = patches_of(jobs);
  rows.resize(std::max(rows.size(), static_cast<std::size_t>(patches * 3 * patch * patch)));
  pool.run(jobs.size(), [&](std::size_t i) { decode_into(rows, jobs[i], set); });
  totals.pictures += std::ssize(jobs);
  totals.patches += patches;
}

enum Phase { Reading, Parsing, Headers, Tokenizing, Decoding, Resizing, Packing };

// Adds the phases of one sample. `lengths`: of samples to pack; `rows`: for their patches.
void add_phases(const LaneSet& set, const SampleRef& ref, std::vector<std::int64_t>& lengths,
                std::vector<std::uint8_t>& rows, LoadPhases& result) {
  Stopwatch watch;
  const auto lap = [&](Phase phase, double known = 0) {
    result.phases[phase].seconds += std::max(watch.lap() - known, 0.0);
  };
  const Sample sample = set.reader.read(ref);
  lap(Reading);
  Conversation conversation = read_conversation(sample, set.blend->leaves[ref.leaf].spec, set.options.data.fields);
  lap(Parsing);
  const std::vector<SamplePart> pictures = conversation.pictures;
  for (const SamplePart& picture : pictures) read_header(picture.file(), picture.name);
  const double headers = watch.lap();
  result.phases[Headers].seconds += headers;
  TokenSequence tokens = set.sequences.encode(std::move(conversation));
  const bool is_used = is_usable(set.sequences.fit(tokens));
  lap(Tokenizing, headers);  // reads the headers again
  if (!is_used) return;
  for (const auto inputs : by_picture(tokens.media)) {
    const PictureConfig& config = set.options.data.pictures;
    const int patch = set.options.vision->patch;
    watch.lap();
    const Image decoded = decode_for(pictures[inputs.front().picture], inputs, config);
    lap(Decoding);
    rows.resize(static_cast<std::size_t>(patches_of(inputs) * 3 * patch * patch));
    result.patches += patches_of(inputs);
    write_patches(decoded, inputs, config, patch, rows);
    lap(Resizing);
  }
  lengths.push_back(std::ssize(tokens.ids));
  result.tokens += lengths.back();
  if (std::ssize(lengths) < set.options.loader.packing_buffer.value_or(1)) return;
  watch.lap();
  make_packs(lengths, set.sequences.capacity(), set.options.loader.packing);
  lap(Packing);
  lengths.clear();
}

}  // namespace

std::int64_t Distribution::quantile(double share) const {
  const auto wanted = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(count_)));
  std::int64_t seen = 0;
  for (const auto& [value, count] : counts_)
    if ((seen += count) >= wanted) return value;
  return 0;
}

double Distribution::mean() const {
  const auto sum = sum_of<std::int64_t>(counts_, [](const auto& value) { return value.first * value.second; });
  return count_ == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(count_);
}

std::vector<HistogramBar> Distribution::bars(int most) const {
  if (count_ == 0) return {};
  const std::int64_t wanted = (max() - min()) / most + 1;
  std::int64_t width = 1;  // 1, 2, 5, 10, 20, 50, ...
  for (int step = 0; width < wanted; ++step) width = step % 3 == 1 ? width / 2 * 5 : width * 2;
  std::vector<HistogramBar> bars;
  const std::int64_t start = min() / width * width;
  for (std::int64_t first = start; first <= max(); first += width) bars.push_back({first, first + width - 1, 0});
  for (const auto& [value, count] : counts_) bars[(value - start) / width].count += count;
  return bars;
}

SpreadSamples::SpreadSamples(const Blend& blend, std::int64_t count) : blend_(blend) {
  for (const Leaf& leaf : blend.leaves) total_ += leaf.data.samples();
  size_ = std::min(count, total_);
}

std::optional<SampleRef> SpreadSamples::at(std::int64_t i) const {
  // In 128 bits, since both factors may be large.
  auto sample = static_cast<std::int64_t>(static_cast<__int128>(i) * total_ / size_);
  std::uint32_t leaf = 0;
  for (; sample >= blend_.leaves[leaf].data.samples(); ++leaf) sample -= blend_.leaves[leaf].data.samples();
  const DataSet& data = blend_.leaves[leaf].data;
  const std::uint32_t shard = data.shard_of(sample);
  const std::int64_t index = sample - data.starts[shard];
  if (data.excluded.contains({shard, index})) return std::nullopt;
  return SampleRef{leaf, shard, index};
}

Survey survey(const SurveySources& sources, const SpreadSamples& samples, WorkerPool& pool) {
  Surveyor surveyor(sources);
  std::vector<std::optional<Look>> looks(kChunk);
  for (std::int64_t begin = 0; begin < samples.size(); begin += kChunk) {
    const auto size = static_cast<std::size_t>(std::min(kChunk, samples.size() - begin));
    pool.run(size, [&](std::size_t i) {
      const auto ref = samples.at(begin + static_cast<std::int64_t>(i));
      looks[i] = ref ? std::optional(look_at(sources, *ref)) : std::nullopt;
    });
    for (std::size_t i = 0; i < size; ++i)
      if (looks[i]) surveyor.add(*looks[i]);
  }
  return surveyor.take();
}

LoadTotals measure_loading(const LaneSet& set, const LoadLimits& limits, WorkerPool& pool) {
  OrderConfig order = set.order();
  order.is_training = !limits.one_pass;
  PackLane lane(set, pool, order, 0);
  std::vector<std::uint8_t> rows;
  LoadTotals totals;
  Stopwatch watch;
  for (bool ended = false; !ended && (limits.one_pass || totals.seconds < limits.seconds);) {
    std::vector<Pack> packs;
    while (std::ssize(packs) < kBatch && !ended) {
      if (std::optional<Pack> pack = lane.next())
        packs.push_back(*std::move(pack));
      else
        ended = true;
    }
    for (const Pack& pack : packs)
      for (const ReadSample& sample : pack) {
        ++totals.samples;
        totals.tokens += std::ssize(sample.tokens.ids);
        totals.stored_bytes += static_cast<std::int64_t>(sample.stored_bytes);
      }
    totals.sequences += std::ssize(packs);
    decode_pictures(set, packs, rows, pool, totals);
    totals.seconds += watch.lap();
  }
  if (totals.samples == 0)
    throw DataError(fmt::format("the data set has no sample that can be used in a sequence of {} tokens: {}",
                                set.options.sequence_length, set.bad->why_none_is_left()));
  return totals;
}

LoadPhases measure_phases(const LaneSet& set, double seconds) {
  Lane lane(set.blend, set.order(), 0);
  LoadPhases result = {.phases = {{"reading"},
                                  {"parsing"},
                                  {"picture headers"},
                                  {"tokenizing"},
                                  {.name = "decoding", .of_pictures = true},
                                  {.name = "resizing", .of_pictures = true},
                                  {"packing"}}};
  std::vector<std::int64_t> lengths;
  std::vector<std::uint8_t> rows;
  Stopwatch watch;
  for (double elapsed = 0; elapsed < seconds; elapsed += watch.lap()) {
    const auto ref = lane.next();
    if (!ref) break;
    try {
      add_phases(set, *ref, lengths, rows, result);
    } catch (const DataError& e) {
      set.bad->add(set.reader.data_of(*ref), *ref, set.reader.name_of(*ref), e.what());
    }
  }
  return result;
}

}  // namespace braid
