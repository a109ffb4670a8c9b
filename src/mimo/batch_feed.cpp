#include "mimo/batch_feed.h"
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include "base/strings.h"
#include "comm/world.h"
#include "data/batches/sample_trace.h"

namespace braid {
namespace {

constexpr std::int64_t kReadAheadBytes = std::int64_t{1} << 30;  // per reader

void append(std::vector<std::int64_t>& numbers, const at::Tensor& tokens) {
  const at::Tensor host = tokens.contiguous();
  const auto* first = host.const_data_ptr<std::int64_t>();
  numbers.insert(numbers.end(), first, first + host.numel());
}

// The sizes of a step that all ranks must know, as one list of numbers. One leader knows each number, which is zero on
// all other ranks, so the sum over all ranks is the whole table. `samples`: in a microbatch, over all language
// replicas.
class SizeTable {
 public:
  using Size = std::int64_t;

  SizeTable(const Topology& topology, int microbatches, std::int64_t samples)
      : microbatches_(microbatches), samples_of_step_(microbatches * samples) {
    Size size = 0;
    for (const Module& module : topology.modules()) {
      const Size counts = 2 * Size{module.dense.size_of("dp")} * microbatches;
      modules_.push_back({size, size + counts});
      size += counts + (module.is_encoder ? 4 : 1) * samples_of_step_;
    }
    values_.resize(static_cast<std::size_t>(size + 1));
  }

  // Sizes of a microbatch of one replica of the language model.
  Size& tokens(int module, int replica, int microbatch) { return count(module, replica, microbatch, 0); }
  Size& offsets(int module, int replica, int microbatch) { return count(module, replica, microbatch, 1); }
  // Sizes of a microbatch of one replica of an encoder.
  Size& items(int module, int replica, int microbatch) { return count(module, replica, microbatch, 0); }
  Size& value_type(int module, int replica, int microbatch) { return count(module, replica, microbatch, 1); }
  // SequenceIdentity::hash of a sample, as the module's leader read it; 0: an encoder that reads nothing.
  Size& identity(int module, Size sample) { return at(of(module).samples + sample); }
  // The number of a sample's embeddings that an encoder produces, and the number that the text expects.
  Size& given(int module, Size sample) { return at(of(module).samples + samples_of_step_ + sample); }
  Size& expected(int module, Size sample) { return at(of(module).samples + 2 * samples_of_step_ + sample); }
  // Items of a sample whose values could not be read: the sum of their damage_bit()s, which a double holds exactly.
  Size& damaged(int module, Size sample) { return at(of(module).samples + 3 * samples_of_step_ + sample); }
  // Item i has bit i; all items from the 53rd on share a bit.
  static Size damage_bit(Size item) { return Size{1} << std::min<Size>(item, 52); }
  Size& failed_ranks() { return values_.back(); }  // the number of ranks whose readers threw

  Size samples_of_step() const { return samples_of_step_; }
  const std::vector<Size>& values() const { return values_; }
  void assign(const std::vector<double>& values) { values_.assign(values.begin(), values.end()); }

 private:
  struct Begin {
    Size counts, samples;
  };
  const Begin& of(int module) const { return modules_[static_cast<std::size_t>(module)]; }
  Size& at(Size i) { return values_[static_cast<std::size_t>(i)]; }
  Size& count(int module, int replica, int microbatch, int which) {
    return at(of(module).counts + 2 * (Size{replica} * microbatches_ + microbatch) + which);
  }

  const int microbatches_;
  const Size samples_of_step_;
  std::vector<Begin> modules_;
  std::vector<Size> values_;
};

struct SampleHolder {
  std::string module;
  int rank = 0;                        // global rank of the leader that read the sequence
  std::vector<std::string> samples{};  // SequenceIdentity::samples; empty on other ranks
};

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

// Ends a run whose ranks would pair the text of one sample with the media of another. Collective over `world`: throws
// the same DataError on every rank. It names the two holders of sequence `sequence` of the run, the first sample in
// which they differ, and the lane and shard that each of them has.
[[noreturn]] void refuse_unequal_samples(const Group& world, std::int64_t sequence, SampleHolder language,
                                         SampleHolder encoder) {
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
                    "pictures; compare the data set, the tokenizer and the date (data.date) on the two hosts",
                    sequence, ranks, fmt::join(language.samples, ", ")));
  throw DataError(
      fmt::format("text and media of sequence {} come from different samples: of {}, the first has {}, the second {}; "
                  "compare the files of the data set on the two hosts",
                  sequence, ranks, name(language, own), name(encoder, other)));
}

}  // namespace

class BatchFeed::Impl {
 public:
  Impl(const MimoModel& model, int microbatches, std::int64_t samples, const BatchSource& data,
       const std::string& sample_trace_dir)
      : model_(model), topology_(model.topology()), modules_(static_cast<int>(topology_.modules().size())),
        microbatches_(microbatches), samples_(samples) {
    const bool pin = model.world().device().is_cuda();
    const auto ahead = index(2 * microbatches);
    encoder_readers_.resize(index(modules_));
    traces_.resize(index(modules_));
    for (int m = 0; m < modules_; ++m) {
      const Module& module = topology_.module(m);
      if (module.is_encoder)
        encoders_.push_back(m);
      else
        language_ = m;
      if (!reads(module)) continue;
      const ReaderSamples read = {.all = samples,
                                  .own = samples_of_replica(module, samples, model.world().rank()),
                                  .language_replicas = topology_.language().dense.size_of("dp"),
                                  .microbatches = microbatches};
      if (module.is_encoder)
        encoder_readers_[index(m)] = std::make_unique<ReadAhead<EncoderBatch>>(data.read_encoder(module.name, read),
                                                                               ahead, kReadAheadBytes, pin);
      else
        language_reader_ =
            std::make_unique<ReadAhead<LanguageBatch>>(data.read_language(read), ahead, kReadAheadBytes, pin);
      if (!sample_trace_dir.empty()) traces_[index(m)].emplace(sample_trace_dir, traced_reader(m));
    }
  }

  void await_readers() {
    if (!next_) read();
  }

  at::Tensor sizes() {
    await_readers();
    return at::tensor(next_->table.values(), at::kLong).to(at::kDouble);
  }

  void take_sizes(const std::vector<double>& sums) {
    next_->table.assign(sums);
    next_->is_agreed = true;
    if (next_->table.failed_ranks() > 0) return;
    ignore_labels_of_damaged_items();
    start_broadcasts();
  }

  const StepBatches& next_step(std::int64_t first_sample) {
    if (!next_ || !next_->is_agreed) agree();
    if (next_->error) std::rethrow_exception(next_->error);
    if (next_->table.failed_ranks() > 0) wait_for_the_error_of_another_rank();
    check_identities(first_sample);
    check_rows(first_sample, next_->table);
    batches_ = std::move(next_->batches);
    if (!batches_.language.empty()) positions_ = std::move(batches_.language.back().positions);
    for (int m = 0; m < modules_; ++m) {
      const Module& module = topology_.module(m);
      batches_.rows.emplace_back();
      for (std::int64_t s = 0; module.is_encoder && s < next_->table.samples_of_step(); ++s)
        batches_.rows.back().push_back(next_->table.given(m, s));
      next_->arriving[index(m)].wait();
      if (module.dense.contains(model_.world().rank()) && !reads(module))
        module.is_encoder ? unpack_extents(m) : unpack_text(m);
    }
    next_.reset();
    trace_samples(first_sample);
    return batches_;
  }

  const std::vector<LanePosition>& positions() const { return positions_; }

 private:
  struct Step {
    Step(const Topology& topology, int microbatches, std::int64_t samples)
        : table(topology, microbatches, samples), shared(topology.modules().size()), arriving(shared.size()) {
      batches.encoders.resize(shared.size());
    }
    StepBatches batches;
    SizeTable table;
    std::vector<at::Tensor> shared;  // by module: the numbers of the batches that its leader broadcasts, as one list
    std::vector<Pending> arriving;   // by module: the broadcasts in progress
    bool is_agreed = false;          // the table has the sizes of all ranks
    std::exception_ptr error;        // of this rank's readers
  };

  // Keeps an error until the step is requested, which may never happen.
  void read() {
    Step& next = next_.emplace(topology_, microbatches_, samples_);
    try {
      for (int m = 0; m < modules_; ++m) {
        const Module& module = topology_.module(m);
        if (reads(module)) module.is_encoder ? read_encoder(m, next) : read_language(m, next);
      }
    } catch (...) {
      next.error = std::current_exception();
      next.table.failed_ranks() = 1;
    }
  }

  void agree() {
    at::Tensor sums = upload(sizes(), model_.world().device());
    model_.groups().world().all_reduce(sums);
    sums = to_host(sums);
    take_sizes({sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel()});
  }

  // The rank that failed reports its error and ends, which ends this collective on all others.
  void wait_for_the_error_of_another_rank() const {
    at::Tensor none = at::zeros({1}, at::TensorOptions(at::kDouble).device(model_.world().device()));
    model_.groups().world().all_reduce(none);
    throw_check_failed(__FILE__, __LINE__, "a rank went on after its reader had failed");
  }

  // The first rank of a replica's first stage reads for the replica.
  bool reads(const Module& module) const { return reads(module, model_.world().rank()); }
  static bool reads(const Module& module, int rank) {
    if (!module.dense.contains(rank)) return false;
    return std::ranges::all_of(std::array{"tp", "cp", "pp"},
                               [&](const char* dim) { return module.dense.coord(rank, dim) == 0; });
  }
  SampleRange own_samples(const Module& module) const {
    return samples_of_replica(module, samples_, model_.world().rank());
  }
  int replica(const Module& module) const { return module.dense.coord(model_.world().rank(), "dp"); }
  int replica(int m) const { return replica(topology_.module(m)); }
  const Group& replica_group(const Module& module) const { return model_.groups().get(module.name, "pp-cp-tp"); }

  // The samples of a microbatch that a lane of the sample trace has.
  std::int64_t samples_of_lane() const { return samples_ / topology_.language().dense.size_of("dp"); }

  SampleTrace::Reader traced_reader(int m) const {
    const Module& module = topology_.module(m);
    SampleTrace::Reader reader = {.is_encoder = module.is_encoder,
                                  .encoder = modules_ > 2 ? module.name : "",
                                  .replica = replica(m),
                                  .global_rank = model_.world().rank()};
    const SampleRange own = own_samples(module);
    for (std::int64_t lane = own.begin / samples_of_lane(); lane * samples_of_lane() < own.end; ++lane)
      reader.lanes.push_back(lane);
    return reader;
  }

  void trace_samples(std::int64_t first_sample) {
    for (int m = 0; m < modules_; ++m)
      for (int mb = 0; traces_[index(m)] && mb < microbatches_; ++mb) {
        const SampleRange own = own_samples(topology_.module(m));
        std::vector<SampleSignature> signatures;
        if (m == language_) signatures.push_back(signature_of(batches_.language[index(mb)], own.size()));
        for (std::int64_t begin = own.begin, end; m != language_ && begin < own.end; begin = end) {
          end = std::min((begin / samples_of_lane() + 1) * samples_of_lane(), own.end);
          signatures.push_back(
              signature_of(batches_.encoders[index(m)][index(mb)], {begin - own.begin, end - own.begin}));
        }
        traces_[index(m)]->add(first_sample / samples_ + mb, signatures);
      }
  }

  void read_language(int m, Step& next) {
    const Module& module = topology_.module(m);
    const SampleRange own = own_samples(module);
    for (int mb = 0; mb < microbatches_; ++mb) {
      LanguageBatch batch = language_reader_->next();
      check_batch(batch, own.size(), {encoders_.size(), vocab_of(model_.provider().language)});
      next.table.tokens(m, replica(module), mb) = batch.ids.size(0);
      next.table.offsets(m, replica(module), mb) = static_cast<std::int64_t>(batch.offsets.size());
      for (std::size_t k = 0; k < encoders_.size(); ++k)
        for (std::int64_t s = 0; s < own.size(); ++s)
          next.table.expected(encoders_[k], mb * samples_ + own.begin + s) = batch.rows[k][index(s)];
      note_identities(m, mb, batch.identities, next);
      next.batches.language.push_back(std::move(batch));
    }
  }

  void read_encoder(int m, Step& next) {
    const Module& module = topology_.module(m);
    const SampleRange own = own_samples(module);
    for (int mb = 0; mb < microbatches_; ++mb) {
      EncoderBatch batch = encoder_readers_[index(m)]->next();
      check_batch(batch, own.size(), model_.encoder_config(m));
      next.table.items(m, replica(module), mb) = static_cast<std::int64_t>(batch.extents.size());
      if (batch.values.defined())
        next.table.value_type(m, replica(module), mb) = static_cast<std::int64_t>(batch.values.scalar_type());
      note_identities(m, mb, batch.identities, next);
      std::int64_t item = 0;  // the item's number in its sample
      for (std::size_t i = 0; i < batch.extents.size(); ++i) {
        item = i > 0 && batch.sample_of[i] == batch.sample_of[i - 1] ? item + 1 : 0;
        const std::int64_t sample = mb * samples_ + own.begin + batch.sample_of[i];
        next.table.given(m, sample) += rows_of(model_.encoder_config(m), batch.extents[i]);
        if (!batch.damaged.empty() && batch.damaged[i]) next.table.damaged(m, sample) |= SizeTable::damage_bit(item);
      }
      next.batches.encoders[index(m)].push_back(std::move(batch));
    }
  }

  void note_identities(int m, int microbatch, const std::vector<SequenceIdentity>& identities, Step& next) const {
    const SampleRange own = own_samples(topology_.module(m));
    for (std::int64_t s = 0; s < std::ssize(identities); ++s)
      next.table.identity(m, microbatch * samples_ + own.begin + s) = identities[index(s)].hash;
  }

  void check_identities(std::int64_t first_sample) {
    for (const int m : encoders_)
      for (std::int64_t s = 0; s < next_->table.samples_of_step(); ++s)
        if (const auto own = next_->table.identity(m, s); own != 0 && own != next_->table.identity(language_, s))
          refuse_unequal_samples(model_.groups().world(), first_sample + s, holder(language_, s), holder(m, s));
  }

  // The leader that read a sample of the step for a module and, on that rank, the samples that it read.
  SampleHolder holder(int m, std::int64_t sample) const {
    const Module& module = topology_.module(m);
    const std::int64_t place = sample % samples_, microbatch = sample / samples_;
    for (int rank = 0; rank < topology_.world_size(); ++rank) {
      if (!reads(module, rank)) continue;
      const SampleRange own = samples_of_replica(module, samples_, rank);
      if (place < own.begin || place >= own.end) continue;
      if (rank != model_.world().rank()) return {module.name, rank};
      const auto& identities = module.is_encoder ? next_->batches.encoders[index(m)][index(microbatch)].identities
                                                 : next_->batches.language[index(microbatch)].identities;
      return {module.name, rank, identities[index(place - own.begin)].samples};
    }
    throw_check_failed(__FILE__, __LINE__, fmt::format("no rank reads sample {} of {}", sample, module.name));
  }

  void check_rows(std::int64_t first_sample, SizeTable& table) const {
    for (const int m : encoders_)
      for (std::int64_t s = 0; s < table.samples_of_step(); ++s)
        if (table.given(m, s) != table.expected(m, s))
          throw DataError(fmt::format("sample {} has {} for {}, but its media produce {}", first_sample + s,
                                      counted(table.expected(m, s), "token"), topology_.module(m).name,
                                      counted(table.given(m, s), "embedding")));
  }

  // Excludes text with a damaged item from training. Its embeddings stay, so that no sizes change.
  void ignore_labels_of_damaged_items() {
    if (next_->batches.language.empty()) return;
    const SampleRange own = own_samples(topology_.language());
    for (std::size_t k = 0; k < encoders_.size(); ++k)
      for (int mb = 0; mb < microbatches_; ++mb)
        for (std::int64_t s = 0; s < own.size(); ++s)
          if (const std::int64_t items = next_->table.damaged(encoders_[k], mb * samples_ + own.begin + s); items != 0)
            ignore_labels(next_->batches.language[index(mb)], k, s, items);
  }

  static void ignore_labels(LanguageBatch& batch, std::size_t encoder, std::int64_t sample, std::int64_t items) {
    BRAID_CHECK(!batch.sequence_of.empty(), "a batch with damaged items does not say where their embeddings are");
    const std::vector<std::int64_t>& sequences = batch.sequence_of[encoder][index(sample)];
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if ((items & SizeTable::damage_bit(static_cast<std::int64_t>(i))) == 0) continue;
      const std::int64_t begin = batch.offsets[index(sequences[i])], end = batch.offsets[index(sequences[i] + 1)];
      batch.labels.narrow(0, begin, end - begin).fill_(kIgnoredLabel);
    }
  }

  // Leaders send text and extents to all ranks of their replica, while the previous step ends.
  void start_broadcasts() {
    for (int m = 0; m < modules_; ++m) {
      const Module& module = topology_.module(m);
      if (!module.dense.contains(model_.world().rank()) || replica_group(module).size() == 1) continue;
      const std::int64_t size = shared_numbers(m);
      if (size == 0) continue;
      at::Tensor& shared = next_->shared[index(m)];
      shared = reads(module) ? at::tensor(packed(m), at::kLong) : at::empty({size}, at::kLong);
      BRAID_CHECK_EQ(shared.numel(), size, "numbers that {} shares", module.name);
      next_->arriving[index(m)] = replica_group(module).start_broadcast(shared, 0);
    }
  }

  // Sizes of this rank's replica.
  std::int64_t tokens(int m, int microbatch) { return next_->table.tokens(m, replica(m), microbatch); }
  std::int64_t offsets(int m, int microbatch) { return next_->table.offsets(m, replica(m), microbatch); }
  std::int64_t items(int m, int microbatch) { return next_->table.items(m, replica(m), microbatch); }

  // How many numbers of module m's batches a replica shares, and these numbers.
  std::int64_t shared_numbers(int m) {
    const bool is_encoder = topology_.module(m).is_encoder;
    std::int64_t size = 0;
    for (int mb = 0; mb < microbatches_; ++mb)
      size += is_encoder ? items(m, mb) * dims_of(m) : 2 * tokens(m, mb) + offsets(m, mb);
    return size;
  }

  std::vector<std::int64_t> packed(int m) const {
    std::vector<std::int64_t> numbers;
    for (const EncoderBatch& batch : next_->batches.encoders[index(m)])
      for (const Extent& extent : batch.extents) numbers.insert(numbers.end(), extent.begin(), extent.end());
    if (topology_.module(m).is_encoder) return numbers;
    for (const LanguageBatch& batch : next_->batches.language) {
      numbers.insert(numbers.end(), batch.offsets.begin(), batch.offsets.end());
      append(numbers, batch.ids);
      append(numbers, batch.labels);
    }
    return numbers;
  }

  void unpack_text(int m) {
    const at::Tensor& shared = next_->shared[index(m)];
    std::int64_t at = 0;
    const auto take = [&](std::int64_t size) { return shared.narrow(0, std::exchange(at, at + size), size); };
    for (int mb = 0; mb < microbatches_; ++mb) {
      LanguageBatch& batch = batches_.language.emplace_back();
      append(batch.offsets, take(offsets(m, mb)));
      batch.ids = take(tokens(m, mb));
      batch.labels = take(tokens(m, mb));
    }
  }

  int dims_of(int m) const { return extent_dims(model_.encoder_config(m).model); }

  void unpack_extents(int m) {
    std::vector<std::int64_t> numbers;
    if (next_->shared[index(m)].defined()) append(numbers, next_->shared[index(m)]);
    auto next = numbers.begin();
    for (int mb = 0; mb < microbatches_; ++mb) {
      EncoderBatch& batch = batches_.encoders[index(m)].emplace_back();
      for (std::int64_t i = 0; i < items(m, mb); ++i) {
        const auto end = next + dims_of(m);
        batch.extents.emplace_back(std::exchange(next, end), end);
      }
      batch.values = at::empty({0}, static_cast<at::ScalarType>(next_->table.value_type(m, replica(m), mb)));
    }
  }

  const MimoModel& model_;
  const Topology& topology_;
  const int modules_, microbatches_;
  const std::int64_t samples_;
  std::vector<int> encoders_;                                              // module indices
  int language_ = 0;                                                       // module index
  std::unique_ptr<ReadAhead<LanguageBatch>> language_reader_;              // on leaders
  std::vector<std::unique_ptr<ReadAhead<EncoderBatch>>> encoder_readers_;  // by module, on leaders
  std::vector<std::optional<SampleTrace>> traces_;                         // by module, on leaders
  std::optional<Step> next_;                                               // once started
  StepBatches batches_;
  std::vector<LanePosition> positions_;
};

BatchFeed::BatchFeed(const MimoModel& model, int microbatches, std::int64_t samples, const BatchSource& data,
                     const std::string& sample_trace_dir)
    : impl_(std::make_unique<Impl>(model, microbatches, samples, data, sample_trace_dir)) {}
BatchFeed::~BatchFeed() = default;
void BatchFeed::await_readers() { impl_->await_readers(); }
at::Tensor BatchFeed::sizes() { return impl_->sizes(); }
void BatchFeed::take_sizes(const std::vector<double>& sums) { impl_->take_sizes(sums); }
const StepBatches& BatchFeed::next_step(std::int64_t first_sample) { return impl_->next_step(first_sample); }
const std::vector<LanePosition>& BatchFeed::positions() const { return impl_->positions(); }

}  // namespace braid
