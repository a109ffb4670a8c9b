#include "data/inspect/throughput.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "data/samples/packing.h"
#include "data/samples/picture_jobs.h"

namespace braid {
namespace {

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
                     BadSamples& bad, WorkerPool& pool, LoadTotals& totals) {
  if (!set.options.vision) return;
  const int patch = set.options.vision->patch;
  std::vector<PictureJob> jobs;
  for (const Pack& pack : packs)
    for (const ReadSample& sample : pack) add_picture_jobs(sample, jobs);
  const std::int64_t patches = patches_of(jobs);
  rows.resize(std::max(rows.size(), static_cast<std::size_t>(patches * 3 * patch * patch)));
  pool.run(jobs.size(),
           [&](std::size_t i) { decode_into(rows, jobs[i], set.reader, set.options.data.pictures, patch, bad); });
  totals.pictures += std::ssize(jobs);
  totals.patches += patches;
}

enum Phase { Reading, Parsing, Headers, Tokenizing, Decoding, Resizing, Packing, kPhases };
constexpr const char* kPhaseNames[] = {"reading",  "parsing",  "picture headers", "tokenizing",
                                       "decoding", "resizing", "packing"};

class PhaseMeter {
 public:
  explicit PhaseMeter(const LaneSet& set) : set_(set) {}

  void add(const SampleRef& ref, const Leaf& leaf) {
    Stopwatch watch;
    const Sample sample = set_.reader.read(ref);
    seconds_[Reading] += watch.lap();
    Conversation conversation = read_conversation(sample, leaf.spec, set_.options.data.fields);
    seconds_[Parsing] += watch.lap();
    const std::vector<Picture> pictures = conversation.pictures;
    for (const Picture& picture : pictures) read_header(picture.file(), picture.name);
    const double headers = watch.lap();
    seconds_[Headers] += headers;
    TokenSequence tokens = set_.sequences.encode(std::move(conversation));
    const bool is_used = is_usable(set_.sequences.fit(tokens));
    seconds_[Tokenizing] += std::max(watch.lap() - headers, 0.0);  // which reads the headers again
    if (!is_used) return;
    for (const auto inputs : by_picture(tokens.media)) {
      const PictureConfig& config = set_.options.data.pictures;
      const int patch = set_.options.vision->patch;
      watch.lap();
      const Image decoded = decode_for(pictures[inputs.front().picture], inputs, config);
      seconds_[Decoding] += watch.lap();
      const std::int64_t patches = patches_of(inputs);
      rows_.resize(static_cast<std::size_t>(patches * 3 * patch * patch));
      result_.patches += patches;
      write_patches(decoded, inputs, config, patch, rows_);
      seconds_[Resizing] += watch.lap();
    }
    lengths_.push_back(std::ssize(tokens.ids));
    result_.tokens += lengths_.back();
    if (std::ssize(lengths_) >= set_.options.loader.packing_buffer.value_or(1)) pack();
  }

  LoadPhases result() const {
    LoadPhases result = result_;
    for (int i = 0; i < kPhases; ++i)
      result.phases.push_back({kPhaseNames[i], seconds_[i], i == Decoding || i == Resizing});
    return result;
  }

 private:
  void pack() {
    Stopwatch watch;
    make_packs(lengths_, set_.sequences.capacity(), set_.options.loader.packing);
    seconds_[Packing] += watch.lap();
    lengths_.clear();
  }

  const LaneSet& set_;
  LoadPhases result_{};  // without the phases
  double seconds_[kPhases] = {};
  std::vector<std::int64_t> lengths_{};
  std::vector<std::uint8_t> rows_{};
};

}  // namespace

LoadTotals measure_loading(const LaneSet& set, const LoadLimits& limits, BadSamples& bad, WorkerPool& pool) {
  OrderConfig order = set.order();
  order.is_training = !limits.one_pass;
  const PackSources sources = {set.blend, set.reader, set.sequences, set.options.data.fields, bad, pool};
  PackLane lane(sources, set.options.loader, order, 0);
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
    decode_pictures(set, packs, rows, bad, pool, totals);
    totals.seconds += watch.lap();
  }
  if (totals.samples == 0)
    throw DataError(fmt::format("the data set has no sample that can be used in a sequence of {} tokens: {}",
                                set.options.sequence_length, bad.why_none_is_left()));
  return totals;
}

LoadPhases measure_phases(const LaneSet& set, double seconds, BadSamples& bad) {
  Lane lane(set.blend, set.order(), 0);
  PhaseMeter meter(set);
  Stopwatch watch;
  for (double elapsed = 0; elapsed < seconds; elapsed += watch.lap()) {
    const auto ref = lane.next();
    if (!ref) break;
    try {
      meter.add(*ref, set.blend->leaves[ref->leaf]);
    } catch (const DataError& e) {
      bad.add(set.reader.data_of(*ref), *ref, set.reader.name_of(*ref), e.what());
    }
  }
  return meter.result();
}

}  // namespace braid
