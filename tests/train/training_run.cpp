#include "train/training_run.h"
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "comm/world.h"
#include "data/batches/mock_data.h"
#include "data/batches/sample_sizes.h"
#include "support/ranks.h"

namespace braid::testing {
namespace {

constexpr int kDataSeed = 3;

const GridSizes& sizes_of(const TrainingLayout& layout, const std::string& encoder) {
  return encoder == "audio" ? layout.audio : layout.images;
}

void put_weights(const ParameterSet& set, Trained& trained) {
  for (const Parameters::Entry& entry : set.parameters.entries()) {
    const std::string name = set.name + "/" + entry.spec.name;
    at::Tensor& whole = trained.weights.try_emplace(name, at::zeros(entry.spec.shape, at::kDouble)).first->second;
    at::Tensor& held = trained.held.try_emplace(name, at::zeros(entry.spec.shape, at::kBool)).first->second;
    for (const Box& box : shard_boxes(entry.spec, set.parameters.coordinates())) {
      box_of(whole, box.global_begin, box.size).copy_(box_of(entry.value.detach(), box.local_begin, box.size));
      box_of(held, box.global_begin, box.size).fill_(true);
    }
  }
}

std::string text_of(const GridSizes& s) {
  std::string text;
  const auto add = [&](const char* name, int size) {
    if (size > 1) text += fmt::format("{}{}{}", text.empty() ? "" : " ", name, size);
  };
  add("tp", s.tp);
  add("cp", s.cp);
  add("ep", s.ep);
  add("expt_tp", s.expt_tp);
  add("pp", s.pp);
  add("dp", s.dp);
  return "[" + text + "]";
}

}  // namespace

Provider small_vlm() {
  Provider provider = tiny_vlm();
  auto& language = std::get<HybridLmConfig>(provider.language);
  language.pattern = "ME*-";
  language.aux_loss_coeff = 1e-2;
  std::get<RadioConfig>(provider.encoders[0].model).layers = 2;
  return provider;
}

Provider small_llava() {
  Provider provider = tiny_llava();
  std::get<LlamaConfig>(provider.language).layers = 2;
  std::get<ClipConfig>(provider.encoders[0].model).layers = 3;  // of which two run
  return provider;
}

Provider small_omni() {
  Provider provider = small_vlm();
  provider.name = "tiny-omni";
  std::get<HybridLmConfig>(provider.language).pattern = "E*";
  provider.encoders.push_back(tiny_omni().encoders[1]);
  return provider;
}

std::ostream& operator<<(std::ostream& out, const TrainingLayout& layout) {
  const Provider provider = layout.provider();
  out << provider.name;
  for (const EncoderConfig& encoder : provider.encoders)
    out << " " << encoder.name << text_of(sizes_of(layout, encoder.name));
  out << " language" << text_of(layout.language) << (layout.colocated ? " colocated" : "") << (layout.sp ? " sp" : "")
      << (layout.recompute ? " recompute" : "") << (layout.zero ? "" : " no zero") << (layout.overlap ? " overlap" : "")
      << (layout.gather_overlap ? " gather overlap" : "");
  if (layout.pieces.tp_pieces > 1 || layout.pieces.expert_pieces > 1)
    out << fmt::format(" pieces {} and {}", layout.pieces.tp_pieces, layout.pieces.expert_pieces);
  return out << fmt::format(" micro_batch {} frozen ({})", layout.micro_batch, fmt::join(layout.frozen, ", "));
}

Topology topology_of(const TrainingLayout& layout) {
  const Provider provider = layout.provider();
  TopologyConfig config;
  config.colocated = layout.colocated;
  for (const EncoderConfig& encoder : provider.encoders)
    config.modules.push_back(module_of(encoder.name, ModuleKind::Encoder, sizes_of(layout, encoder.name)));
  config.modules.push_back(module_of("language", ModuleKind::Language, layout.language));
  return Topology(config, {.micro_batch = layout.micro_batch,
                           .global_batch = layout.global_batch,
                           .num_experts = experts_of(provider.language)});
}

TrainingConfig config_of(const TrainingLayout& layout) {
  TrainingConfig config;
  config.model = {.dtype = layout.dtype,
                  .sequence_parallel = layout.sp,
                  .overlap = layout.pieces,
                  .recompute = {.full = layout.recompute},
                  .frozen = layout.frozen};
  config.optimizer.zero = layout.zero;
  config.optimizer.overlap_grad_reduce = layout.overlap;
  config.optimizer.overlap_param_gather = layout.gather_overlap;
  if (layout.overlap) config.optimizer.bucket_count = 4;
  config.optimizer.clip_grad = 0.5;
  config.schedule =
      resolve({.lr = 1e-2, .min_lr = 1e-3, .decay_style = "cosine", .weight_decay = 0.1},
              {.iterations = kScheduledSteps, .samples = std::nullopt, .global_batch = layout.global_batch});
  config.micro_batch = layout.micro_batch;
  config.global_batch = layout.global_batch;
  return config;
}

MockDataConfig mixed_data() {
  return {.sequence_length = 32,
          .min_length = 20,
          .media = {{.name = "images", .max_size = 6}, {.name = "audio", .max_items = 3, .max_size = 16}}};
}

MakeData mock(const MockDataConfig& config) {
  return [config](const Provider& provider, const Topology& topology) {
    return std::make_unique<MockData>(config, provider, topology, kDataSeed);
  };
}

std::vector<double> Trained::losses() const {
  std::vector<double> losses;
  for (const TrainingReport& report : reports) losses.push_back(report.loss);
  return losses;
}

Trained train_on(World& world, const TrainingLayout& layout, const Topology& topology, const TrainingOptions& options) {
  const Provider provider = layout.provider();
  const std::unique_ptr<SampleSource> samples = options.data(provider, topology);
  StepOrder order;
  if (options.balance_replicas > 0)
    order = balanced_mock_order(
        MockSizes(mixed_data(), provider, topology, kDataSeed),
        std::make_shared<SampleBalance>(provider, topology, layout.frozen, options.balance_replicas));
  const auto data = make_sample_batches(*samples, media_tokens(provider, topology), std::move(order));
  TrainingConfig config = config_of(layout);
  options.change(config);
  const Groups groups(world, topology);
  Training training(provider, topology, groups, world, config);
  StepClock clock;
  Trained trained;
  const int first = options.start(training, world);
  const std::int64_t consumed = std::int64_t{first} * layout.global_batch;
  data->restore(data->positions_after(consumed));
  training.read_from(*data, consumed);
  for (int step = 0; step < options.steps; ++step) {
    options.before_step(training);
    trained.reports.push_back(training.step(clock, [] { return StopReason::None; }));
  }
  training.finish_parameters();
  options.end(training, world);
  for (const auto& set : training.model().parameter_sets()) put_weights(*set, trained);
  return trained;
}

Trained train(const TrainingLayout& layout, const TrainingOptions& options) {
  const Topology topology = topology_of(layout);
  Trained trained;
  std::mutex mutex;
  on_threads(
      topology.world_size(),
      [&](World& world) {
        const Trained mine = train_on(world, layout, topology, options);
        const std::lock_guard<std::mutex> lock(mutex);
        if (world.rank() == 0) trained.reports = mine.reports;
        for (const auto& [name, weight] : mine.weights) {
          const at::Tensor& mask = mine.held.at(name);
          at::Tensor& whole = trained.weights.try_emplace(name, weight).first->second;
          at::Tensor& held = trained.held.try_emplace(name, mask).first->second;
          const at::Tensor shared = mask.logical_and(held);
          EXPECT_TRUE(at::equal(weight.masked_select(shared), whole.masked_select(shared)))
              << "rank " << world.rank() << " has another " << name;
          whole = at::where(mask, weight, whole);
          held = held.logical_or(mask);
        }
      },
      ThreadSemantics::OneQueue);
  return trained;
}

TrainingLayout in_one_process(const TrainingLayout& layout) {
  return {.colocated = true,
          .micro_batch = layout.global_batch,
          .frozen = layout.frozen,
          .dtype = layout.dtype,
          .global_batch = layout.global_batch,
          .provider = layout.provider};
}

const Trained& alone(const TrainingLayout& layout) {
  static std::map<std::string, Trained> runs;
  const std::string key = fmt::format("{} {} {} {}", layout.provider().name, fmt::join(layout.frozen, ","),
                                      at::toString(layout.dtype), layout.global_batch);
  const auto found = runs.find(key);
  return found != runs.end() ? found->second : runs.emplace(key, train(in_one_process(layout))).first->second;
}

void expect_same_on_rank(const Trained& got, const Trained& expected, double loss_tolerance, double weight_tolerance) {
  ASSERT_EQ(got.reports.size(), expected.reports.size());
  for (std::size_t step = 0; step < got.reports.size(); ++step) {
    const TrainingReport &own = got.reports[step], &other = expected.reports[step];
    EXPECT_TRUE(own.update.stepped) << "step " << step;
    EXPECT_NEAR(own.loss, other.loss, loss_tolerance * other.loss) << "step " << step;
    EXPECT_NEAR(own.update.grad_norm, other.update.grad_norm, 100 * loss_tolerance * other.update.grad_norm)
        << "step " << step;
  }
  for (const auto& [name, weight] : got.weights) {
    const at::Tensor& held = got.held.at(name);
    const at::Tensor own = weight.masked_select(held), other = expected.weights.at(name).masked_select(held);
    EXPECT_GT(own.numel(), 0) << name;
    EXPECT_LE((own - other).norm().item<double>(), weight_tolerance * other.norm().item<double>()) << name;
  }
}

void expect_same(const Trained& got, const Trained& expected, double loss_tolerance, double weight_tolerance) {
  expect_same_on_rank(got, expected, loss_tolerance, weight_tolerance);
  EXPECT_EQ(got.weights.size(), expected.weights.size());
  for (const auto& [name, held] : got.held) EXPECT_TRUE(held.all().item<bool>()) << "no rank has all of " << name;
}

}  // namespace braid::testing
