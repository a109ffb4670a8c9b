#include "mimo/batch_feed.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <exception>

#include "base/error.h"
#include "data/check_batch.h"
#include "data/read_ahead.h"
#include "dist/world.h"
#include "plan/bridge.h"
#include "tensor/upload.h"

namespace braid {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// The sizes of a step that all ranks must know, as one list of numbers; at first each is known to one leader only, and
// is zero on all other ranks.
class SizeTable {
 public:
  SizeTable(const Topology& topology, int microbatches, std::int64_t samples)
      : microbatches_(microbatches), samples_of_step_(microbatches * samples) {
    std::int64_t size = 0;
    for (const Module& module : topology.modules()) {
      begin_.push_back(size);
      const std::int64_t per_microbatch = std::int64_t{module.dense.size_of("dp")} * microbatches;
      size += 2 * per_microbatch + (module.is_encoder ? 2 * samples_of_step_ : 0);
    }
    values.resize(index(size + 1));
  }

  // A microbatch of one replica: tokens and sub-sequences, or items and the type of their values.
  std::int64_t& count(int module, int replica, int microbatch, int which) {
    return values[index(begin_[index(module)] + 2 * (std::int64_t{replica} * microbatches_ + microbatch) + which)];
  }
  // Embeddings of a sample that an encoder produces, and that the text expects.
  std::int64_t& given(const Topology& topology, int module, std::int64_t sample) {
    return values[index(first_row(topology, module) + sample)];
  }
  std::int64_t& expected(const Topology& topology, int module, std::int64_t sample) {
    return values[index(first_row(topology, module) + samples_of_step_ + sample)];
  }
  std::int64_t& failed_ranks() { return values.back(); }  // whose readers threw
  std::int64_t samples_of_step() const { return samples_of_step_; }

  std::vector<std::int64_t> values;

 private:
  std::int64_t first_row(const Topology& topology, int module) const {
    return begin_[index(module)] +
           2 * std::int64_t{topology.modules()[index(module)].dense.size_of("dp")} * microbatches_;
  }

  const int microbatches_;
  const std::int64_t samples_of_step_;
  std::vector<std::int64_t> begin_;  // by module
};

std::vector<std::int64_t> to_vector(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu().contiguous();
  return {host.const_data_ptr<std::int64_t>(), host.const_data_ptr<std::int64_t>() + host.numel()};
}

}  // namespace

class BatchFeed::Impl {
 public:
  Impl(const MimoModel& model, int microbatches, std::int64_t samples, const DataSet& data)
      : model_(model), topology_(model.topology()), microbatches_(microbatches), samples_(samples) {
    const bool pin = model.world().device().is_cuda();
    const auto ahead = index(2 * microbatches);
    encoder_readers_.resize(topology_.modules().size());
    for (int m = 0; m < static_cast<int>(topology_.modules().size()); ++m) {
      const Module& module = topology_.modules()[index(m)];
      if (module.is_encoder) encoders_.push_back(m);
      if (!leads(module)) continue;
      const ReaderShare share = {samples, samples_of_replica(module, samples, model.world().rank())};
      if (module.is_encoder)
        encoder_readers_[index(m)] =
            std::make_unique<ReadAhead<EncoderBatch>>(data.read_encoder(module.name, share), ahead, pin);
      else
        language_reader_ = std::make_unique<ReadAhead<LanguageBatch>>(data.read_language(share), ahead, pin);
    }
  }

  at::Tensor sizes() {
    if (!next_) read();
    return at::tensor(next_->table.values, at::kLong).to(at::kDouble);
  }

  void take_sizes(const std::vector<double>& sums) {
    next_->table.values.assign(sums.begin(), sums.end());
    next_->is_agreed = true;
  }

  const StepBatches& next_step(std::int64_t first_sample) {
    if (!next_ || !next_->is_agreed) agree();
    if (next_->error) std::rethrow_exception(next_->error);
    if (next_->table.failed_ranks() > 0) wait_for_the_error_of_another_rank();
    check_rows(first_sample, next_->table);
    batches_ = std::move(next_->batches);
    for (int m = 0; m < static_cast<int>(topology_.modules().size()); ++m) {
      const Module& module = topology_.modules()[index(m)];
      batches_.rows.emplace_back();
      for (std::int64_t s = 0; module.is_encoder && s < next_->table.samples_of_step(); ++s)
        batches_.rows.back().push_back(next_->table.given(topology_, m, s));
      if (module.dense.contains(model_.world().rank()))
        module.is_encoder ? share_extents(m, next_->table) : share_text(m, next_->table);
    }
    next_.reset();
    return batches_;
  }

 private:
  struct Step {
    Step(const Topology& topology, int microbatches, std::int64_t samples) : table(topology, microbatches, samples) {
      batches.encoders.resize(topology.modules().size());
    }
    StepBatches batches;
    SizeTable table;
    bool is_agreed = false;    // the table has the sizes of all ranks
    std::exception_ptr error;  // of this rank's readers
  };

  // An error is thrown when the step is requested, which may never happen.
  void read() {
    Step& next = next_.emplace(topology_, microbatches_, samples_);
    try {
      for (int m = 0; m < static_cast<int>(topology_.modules().size()); ++m) {
        const Module& module = topology_.modules()[index(m)];
        if (leads(module)) module.is_encoder ? read_encoder(m, next) : read_language(m, next);
      }
    } catch (...) {
      next.error = std::current_exception();
      next.table.failed_ranks() = 1;
    }
  }

  void agree() {
    at::Tensor sums = upload(sizes(), model_.world().device());
    model_.groups().world().all_reduce(sums);
    sums = sums.cpu();
    take_sizes({sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel()});
  }

  // That rank reports its error and ends, which ends this collective on all others.
  void wait_for_the_error_of_another_rank() const {
    at::Tensor none = at::zeros({1}, at::TensorOptions(at::kDouble).device(model_.world().device()));
    model_.groups().world().all_reduce(none);
    throw_check_failed(__FILE__, __LINE__, "a rank went on after its reader had failed");
  }

  // The first rank of a replica's first stage reads for the replica.
  bool leads(const Module& module) const {
    const int rank = model_.world().rank();
    if (!module.dense.contains(rank)) return false;
    return module.dense.coord(rank, "tp") == 0 && module.dense.coord(rank, "cp") == 0 &&
           module.dense.coord(rank, "pp") == 0;
  }
  int replica(const Module& module) const { return module.dense.coord(model_.world().rank(), "dp"); }
  const Group& replica_group(const Module& module) const { return model_.groups().get(module.name, "pp-cp-tp"); }

  void read_language(int m, Step& next) {
    const Module& module = topology_.modules()[index(m)];
    const SampleRange own = samples_of_replica(module, samples_, model_.world().rank());
    for (int mb = 0; mb < microbatches_; ++mb) {
      LanguageBatch batch = language_reader_->next();
      check_batch(batch, own.size(), encoders_.size());
      next.table.count(m, replica(module), mb, 0) = batch.ids.size(0);
      next.table.count(m, replica(module), mb, 1) = static_cast<std::int64_t>(batch.offsets.size());
      for (std::size_t k = 0; k < encoders_.size(); ++k)
        for (std::int64_t s = 0; s < own.size(); ++s)
          next.table.expected(topology_, encoders_[k], mb * samples_ + own.begin + s) = batch.rows[k][index(s)];
      next.batches.language.push_back(std::move(batch));
    }
  }

  void read_encoder(int m, Step& next) {
    const Module& module = topology_.modules()[index(m)];
    const SampleRange own = samples_of_replica(module, samples_, model_.world().rank());
    for (int mb = 0; mb < microbatches_; ++mb) {
      EncoderBatch batch = encoder_readers_[index(m)]->next();
      check_batch(batch, own.size(), model_.encoder_config(m));
      next.table.count(m, replica(module), mb, 0) = static_cast<std::int64_t>(batch.extents.size());
      if (batch.values.defined())
        next.table.count(m, replica(module), mb, 1) = static_cast<std::int64_t>(batch.values.scalar_type());
      for (std::size_t i = 0; i < batch.extents.size(); ++i)
        next.table.given(topology_, m, mb * samples_ + own.begin + batch.sample_of[i]) +=
            rows_of(model_.encoder_config(m), batch.extents[i]);
      next.batches.encoders[index(m)].push_back(std::move(batch));
    }
  }

  void check_rows(std::int64_t first_sample, SizeTable& table) const {
    for (const int m : encoders_)
      for (std::int64_t s = 0; s < table.samples_of_step(); ++s)
        if (table.given(topology_, m, s) != table.expected(topology_, m, s))
          throw DataError(fmt::format("sample {} has {} tokens for {}, but its media produce {} embeddings",
                                      first_sample + s, table.expected(topology_, m, s),
                                      topology_.modules()[index(m)].name, table.given(topology_, m, s)));
  }

  // Broadcasts from the leader to all ranks of its replica.
  std::vector<std::int64_t> share(const Module& module, std::vector<std::int64_t> numbers, std::int64_t size) const {
    const Group& group = replica_group(module);
    if (group.size() == 1 || size == 0) return numbers;
    const auto options = at::TensorOptions(at::kLong);
    at::Tensor packed =
        upload(leads(module) ? at::tensor(numbers, options) : at::empty({size}, options), group.device());
    group.broadcast(packed, 0);
    return leads(module) ? numbers : to_vector(packed);
  }

  void share_text(int m, SizeTable& table) {
    const Module& module = topology_.modules()[index(m)];
    std::vector<std::int64_t> numbers;
    std::int64_t size = 0;
    for (int mb = 0; mb < microbatches_; ++mb) {
      size += 2 * table.count(m, replica(module), mb, 0) + table.count(m, replica(module), mb, 1);
      if (!leads(module)) continue;
      const LanguageBatch& batch = batches_.language[index(mb)];
      numbers.insert(numbers.end(), batch.offsets.begin(), batch.offsets.end());
      for (const at::Tensor& tokens : {batch.ids, batch.labels}) {
        const std::vector<std::int64_t> values = to_vector(tokens);
        numbers.insert(numbers.end(), values.begin(), values.end());
      }
    }
    numbers = share(module, std::move(numbers), size);
    if (leads(module)) return;
    auto next = numbers.begin();
    const auto take = [&](std::int64_t count) {
      const std::vector<std::int64_t> taken(next, next + count);
      next += count;
      return taken;
    };
    for (int mb = 0; mb < microbatches_; ++mb) {
      LanguageBatch batch;
      const std::int64_t tokens = table.count(m, replica(module), mb, 0);
      batch.offsets = take(table.count(m, replica(module), mb, 1));
      batch.ids = at::tensor(take(tokens), at::kLong);
      batch.labels = at::tensor(take(tokens), at::kLong);
      batches_.language.push_back(std::move(batch));
    }
  }

  void share_extents(int m, SizeTable& table) {
    const Module& module = topology_.modules()[index(m)];
    const auto dims = index(extent_dims(model_.encoder_config(m).model));
    std::vector<std::int64_t> numbers;
    std::int64_t items = 0;
    for (int mb = 0; mb < microbatches_; ++mb) {
      items += table.count(m, replica(module), mb, 0);
      if (!leads(module)) continue;
      const EncoderBatch& batch = batches_.encoders[index(m)][index(mb)];
      for (std::size_t i = 0; i < batch.extents.size(); ++i) {
        numbers.push_back(batch.sample_of[i]);
        numbers.insert(numbers.end(), batch.extents[i].begin(), batch.extents[i].end());
      }
    }
    numbers = share(module, std::move(numbers), items * static_cast<std::int64_t>(1 + dims));
    if (leads(module)) return;
    auto next = numbers.begin();
    for (int mb = 0; mb < microbatches_; ++mb) {
      EncoderBatch& batch = batches_.encoders[index(m)].emplace_back();
      for (std::int64_t i = 0; i < table.count(m, replica(module), mb, 0); ++i) {
        batch.sample_of.push_back(*next++);
        batch.extents.emplace_back(next, next + static_cast<std::ptrdiff_t>(dims));
        next += static_cast<std::ptrdiff_t>(dims);
      }
      batch.values = at::empty({0}, static_cast<at::ScalarType>(table.count(m, replica(module), mb, 1)));
    }
  }

  const MimoModel& model_;
  const Topology& topology_;
  const int microbatches_;
  const std::int64_t samples_;
  std::vector<int> encoders_;                                                // module indices
  std::unique_ptr<BatchReader<LanguageBatch>> language_reader_;              // on leaders
  std::vector<std::unique_ptr<BatchReader<EncoderBatch>>> encoder_readers_;  // by module, on leaders
  std::optional<Step> next_;                                                 // once started
  StepBatches batches_;
};

BatchFeed::BatchFeed(const MimoModel& model, int microbatches, std::int64_t samples, const DataSet& data)
    : impl_(std::make_unique<Impl>(model, microbatches, samples, data)) {}
BatchFeed::~BatchFeed() = default;
at::Tensor BatchFeed::sizes() { return impl_->sizes(); }
void BatchFeed::take_sizes(const std::vector<double>& sums) { impl_->take_sizes(sums); }
const StepBatches& BatchFeed::next_step(std::int64_t first_sample) { return impl_->next_step(first_sample); }

}  // namespace braid
