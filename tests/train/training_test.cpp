// Steps of a small vision-language model in every layout: losses and final weights equal those of one process.
#include "train/training.h"
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include "comm/world.h"
#include "data/batches/mock_data.h"
#include "optim/parameter_parts.h"
#include "run/trainer.h"
#include "support/ranks.h"
#include "train/training_run.h"

namespace braid {
namespace {

using testing::alone;
using testing::expect_same;
using testing::in_one_process;
using testing::kGlobalBatch;
using testing::kScheduledSteps;
using testing::mixed_data;
using testing::topology_of;
using testing::train;
using testing::Trained;

using Layout = testing::TrainingLayout;

const std::vector<std::string> kImages = {"images.encoder", "images.projector"};

// The samples of a step are in other microbatches and replicas than without balance; their sum is the same.
TEST(BalancedTraining, EqualsOneProcess) {
  const std::vector<std::pair<Layout, int>> cases = {
      {{.images = {.dp = 2}, .language = {.dp = 2}}, 1},
      {{.images = {.dp = 2}, .language = {.dp = 4}, .micro_batch = 2}, 1},
      {{.images = {.dp = 2}, .language = {.dp = 4}}, 2},
      {{.images = {.dp = 4}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true, .micro_batch = 2}, 2},
      {{.images = {.tp = 2, .dp = 2}, .language = {.cp = 2, .dp = 2}, .colocated = true}, 2},
      {{.language = {.dp = 2, .pp = 2, .vpp = 2}, .overlap = true, .gather_overlap = true}, 2}};
  for (const auto& [layout, replicas] : cases) {
    std::ostringstream name;
    name << layout;
    SCOPED_TRACE(name.str());
    expect_same(train(layout, {.balance_replicas = replicas}), alone());
  }
}

// One rank is asked to stop during its second of many iterations: all ranks leave after it.
TEST(Evaluation, IsLeftByAllRanksIfOneIsAskedToStop) {
  const Layout layout = {.images = {.dp = 2}, .language = {.tp = 2, .dp = 2}};
  const Topology topology = topology_of(layout);
  const auto evaluate = [&](Training& training, World& world) {
    const auto samples = testing::mock(mixed_data())(layout.provider(), topology);
    const auto data = make_sample_batches(*samples, media_tokens(layout.provider(), topology));
    int calls = 0;
    const EvaluationReport report = training.evaluate(*data, 1000, std::nullopt, [&] {
      return ++calls == 2 && world.rank() == 3 ? StopReason::SigTerm : StopReason::None;
    });
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(report.stop, StopReason::SigTerm);
    EXPECT_FALSE(report.is_complete);
  };
  train(layout, {.steps = 1, .end = evaluate});
}

class Trainings : public ::testing::TestWithParam<Layout> {};

TEST_P(Trainings, EqualOneProcess) { expect_same(train(GetParam()), alone()); }

INSTANTIATE_TEST_SUITE_P(
    Threads, Trainings,
    ::testing::Values(
        Layout{}, Layout{.micro_batch = 1}, Layout{.zero = false}, Layout{.images = {.dp = 2}},
        Layout{.language = {.dp = 2}}, Layout{.language = {.dp = 2}, .zero = false},
        Layout{.language = {.dp = 2}, .overlap = true},
        Layout{.language = {.dp = 2}, .overlap = true, .gather_overlap = true},
        Layout{.images = {.dp = 2}, .language = {.dp = 2}}, Layout{.images = {.dp = 4}, .language = {.dp = 2}},
        Layout{.images = {.dp = 2}, .language = {.dp = 4}},
        Layout{.images = {.dp = 8}, .language = {.dp = 8}, .micro_batch = 1}, Layout{.language = {.tp = 2}},
        Layout{.language = {.tp = 2}, .sp = true}, Layout{.language = {.tp = 4}, .sp = true},
        Layout{.language = {.cp = 2}}, Layout{.language = {.tp = 2, .cp = 2}, .sp = true},
        Layout{.language = {.dp = 2, .ep = 2}}, Layout{.language = {.dp = 4, .ep = 4}},
        Layout{.language = {.tp = 2, .dp = 2, .ep = 4}, .sp = true},
        Layout{.language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true, .zero = false},
        Layout{.language = {.tp = 2, .dp = 2, .ep = 2, .expt_tp = 2}, .sp = true}, Layout{.language = {.pp = 2}},
        Layout{.language = {.pp = 4}}, Layout{.language = {.tp = 2, .pp = 2}, .sp = true},
        Layout{.language = {.dp = 2, .pp = 2, .vpp = 2}, .overlap = true, .gather_overlap = true},
        Layout{.images = {.dp = 2}, .language = {.pp = 2, .vpp = 2}, .colocated = true}, Layout{.images = {.tp = 2}},
        Layout{.images = {.pp = 2}}, Layout{.images = {.tp = 2, .dp = 2}, .language = {.dp = 2}},
        Layout{.images = {.tp = 2, .dp = 2, .pp = 2}, .language = {.tp = 2, .dp = 2, .pp = 2}, .sp = true},
        Layout{.images = {.dp = 2}, .language = {.tp = 2, .cp = 2, .dp = 2, .ep = 4}, .sp = true, .recompute = true},
        Layout{.colocated = true}, Layout{.images = {.dp = 2}, .language = {.tp = 2}, .colocated = true},
        Layout{.images = {.tp = 2}, .language = {.dp = 2}, .colocated = true},
        Layout{.images = {.dp = 4}, .language = {.tp = 2, .pp = 2}, .colocated = true, .sp = true, .micro_batch = 4},
        Layout{.images = {.dp = 2}, .language = {.dp = 2}, .colocated = true, .overlap = true, .gather_overlap = true},
        Layout{.images = {.dp = 4}, .language = {.dp = 2}, .overlap = true, .gather_overlap = true},
        Layout{.images = {.dp = 2, .pp = 2}, .language = {.dp = 2}, .overlap = true, .gather_overlap = true},
        Layout{.images = {.tp = 2, .dp = 2},
               .language = {.tp = 2, .dp = 2, .ep = 2, .pp = 2},
               .sp = true,
               .overlap = true,
               .gather_overlap = true},
        Layout{.language = {.tp = 2, .dp = 2, .ep = 4},
               .sp = true,
               .overlap = true,
               .gather_overlap = true,
               .pieces = {2, 2}}));

// Differences do not grow over a whole schedule.
TEST(Training, EqualsOneProcessUntilTheScheduleEnds) {
  const Layout layout = {.images = {.tp = 2, .dp = 2},
                         .language = {.tp = 2, .dp = 2, .ep = 2, .pp = 2},
                         .sp = true,
                         .overlap = true,
                         .gather_overlap = true};
  const testing::TrainingOptions whole = {.steps = kScheduledSteps};
  expect_same(train(layout, whole), train(in_one_process(layout), whole));
}

// Frozen parameters do not change, and everything else trains the same in every layout.
TEST(Training, FrozenEncoderStaysAndTheRestEqualsOneProcess) {
  const Layout layout = {.images = {.dp = 2}, .language = {.tp = 2, .dp = 2}, .sp = true, .frozen = kImages};
  expect_same(train(layout), alone(layout));
  EXPECT_NE(alone(layout).losses().back(), alone().losses().back());
}

Provider with_two_expert_layers() {
  Provider provider = testing::small_vlm();
  std::get<HybridLmConfig>(provider.language).pattern = "EE*-";
  return provider;
}

TEST(Training, CountsTheTokensOfAllExpertLayersInOneOperation) {
  const auto count = [](Training&, World& world) {
    const TrafficTable traffic = world.progress().traffic();
    const auto found = traffic.find({"language.dp-cp-tp", "all_reduce"});
    EXPECT_EQ(found == traffic.end() ? 0 : found->second.operations, world.rank() == 0 ? 0 : 3);  // rank 0: the encoder
  };
  train({.language = {.tp = 2, .dp = 2}, .provider = with_two_expert_layers}, {.steps = 3, .end = count});
}

// Operators whose results the host needs, by name, which this thread calls while it exists.
class HostWaits {
 public:
  HostWaits() {
    calls().clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          static const std::set<std::string> waiting = {"aten::_local_scalar_dense",
                                                        "aten::nonzero",
                                                        "aten::masked_select",
                                                        "aten::equal",
                                                        "aten::_unique2",
                                                        "aten::bincount",
                                                        "aten::is_nonzero",
                                                        "aten::unique_consecutive"};
          if (waiting.count(function.name())) ++calls()[function.name()];
          return nullptr;
        }));
  }
  ~HostWaits() { at::removeCallback(handle_); }
  HostWaits(const HostWaits&) = delete;
  HostWaits& operator=(const HostWaits&) = delete;

  static std::map<std::string, int>& calls() {
    thread_local std::map<std::string, int> all;
    return all;
  }

 private:
  at::CallbackHandle handle_;
};

// From the start of a step to the update. On a GPU, such an operator on its memory would stop the host. The ones that
// are left work on host memory: a nonzero for media in the text and one for labels, and the check of labels that are on
// the host. HostCopy copies the experts' counts; it does not call such an operator.
TEST(Training, AsksForNoValueOfTheDevice) {
  const Layout layout = {.images = {.dp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2, .pp = 2}, .sp = true};
  const auto count = [&](Training& training, World& world) {
    StepClock clock;
    std::optional<HostWaits> waits(std::in_place);
    training.step(clock, [&] {
      waits.reset();
      return StopReason::None;
    });
    std::map<std::string, int> expected;
    const int microbatches = kGlobalBatch / (layout.micro_batch * layout.language.dp);
    for (const auto& local : training.model().local_stages()) {
      if (!local->language) continue;
      if (local->position.is_first()) expected["aten::nonzero"] += microbatches;
      if (!local->position.is_last()) continue;
      expected["aten::nonzero"] += microbatches;
      expected["aten::_local_scalar_dense"] += microbatches;
    }
    EXPECT_EQ(HostWaits::calls(), expected) << "rank " << world.rank();
  };
  train(layout, {.steps = 1, .end = count});
}

// Flawed data: from `first_bad` to `last_bad`, pixels are NaN.
class FlawedData : public SampleSource {
 public:
  FlawedData(std::unique_ptr<SampleSource> good, std::int64_t first_bad, std::int64_t last_bad)
      : good_(std::move(good)), first_bad_(first_bad), last_bad_(last_bad) {}
  Tokens tokens(std::int64_t sample) const override { return good_->tokens(sample); }
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override {
    std::vector<MediaItem> items = good_->media(encoder, sample);
    if (sample >= first_bad_ && sample <= last_bad_)
      for (MediaItem& item : items) item.values.fill_(std::numeric_limits<double>::quiet_NaN());
    return items;
  }

 private:
  const std::unique_ptr<SampleSource> good_;
  const std::int64_t first_bad_, last_bad_;
};

// The samples of a run without its second step.
class DataWithoutSecondStep : public SampleSource {
 public:
  explicit DataWithoutSecondStep(std::unique_ptr<SampleSource> all) : all_(std::move(all)) {}
  Tokens tokens(std::int64_t sample) const override { return all_->tokens(number_of(sample)); }
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override {
    return all_->media(encoder, number_of(sample));
  }

 private:
  static std::int64_t number_of(std::int64_t sample) { return sample < kGlobalBatch ? sample : sample + kGlobalBatch; }
  const std::unique_ptr<SampleSource> all_;
};

// Every module's gradient is that of the loss over all tokens of the step, regardless of how many a replica had.
TEST(Training, GradientsOfEveryModuleAreDividedByTheTokensOfAll) {
  MockDataConfig uneven = mixed_data();
  uneven.min_length = 8;
  uneven.media[0].share = 0.3;
  const testing::TrainingOptions one_step = {.steps = 1,
                                             .data = testing::mock(uneven),
                                             .change = [](TrainingConfig& config) { config.optimizer.clip_grad = 0; }};
  const std::vector<std::string> all = {"images.encoder", "images.projector", "language"};
  for (const std::string& trained : all) {
    Layout many = {.images = {.dp = 4}, .language = {.dp = 2}, .micro_batch = 2};
    for (const std::string& name : all)
      if (name != trained) many.frozen.push_back(name);
    const double expected = train(in_one_process(many), one_step).reports[0].update.grad_norm;
    EXPECT_GT(expected, 0) << trained;
    EXPECT_NEAR(train(many, one_step).reports[0].update.grad_norm, expected, 1e-10 * expected) << trained;
  }
}

// Some of four replicas without images: exact by default, times 4 / replicas with images when corrected.
TEST(Training, PartialParticipationIsExactUnlessCorrected) {
  MockDataConfig few = mixed_data();
  few.media[0].share = 0.3;
  const Layout many = {.images = {.dp = 4}, .language = {.dp = 2}, .micro_batch = 4, .frozen = {"language"}};
  const Layout one = in_one_process(many);
  const auto norm = [&](const Layout& layout, bool correct) {
    const auto change = [&](TrainingConfig& config) {
      config.optimizer.clip_grad = 0;
      config.correct_partial_participation = correct;
    };
    return train(layout, {.steps = 1, .data = testing::mock(few), .change = change}).reports[0].update.grad_norm;
  };
  const auto data = testing::mock(few)(many.provider(), topology_of(many));
  int participants = 0;
  for (int replica = 0; replica < 4; ++replica)
    participants += !data->media("images", 2 * replica).empty() || !data->media("images", 2 * replica + 1).empty();
  ASSERT_TRUE(participants > 0 && participants < 4) << participants;
  const double exact = norm(one, false);
  EXPECT_NEAR(norm(many, false), exact, 1e-10 * exact);
  EXPECT_NEAR(norm(many, true), exact * 4 / participants, 1e-10 * exact);
  EXPECT_NEAR(norm(one, true), exact, 1e-10 * exact);
}

// A skipped step changes nothing: not the weights, not the optimizer state, not the routing of experts.
TEST(Training, ALossThatIsNotANumberSkipsTheStepEverywhere) {
  const Layout layout = {.images = {.dp = 2}, .language = {.tp = 2, .dp = 2}, .sp = true};
  MockDataConfig all_images = mixed_data();
  all_images.media[0].share = 1;
  const auto with_flaw = [&](const Provider& provider, const Topology& topology) {
    return std::make_unique<FlawedData>(testing::mock(all_images)(provider, topology), kGlobalBatch, kGlobalBatch);
  };
  const auto without = [&](const Provider& provider, const Topology& topology) {
    return std::make_unique<DataWithoutSecondStep>(testing::mock(all_images)(provider, topology));
  };
  const Trained flawed = train(layout, {.steps = 4, .data = with_flaw});
  const Trained good = train(layout, {.steps = 3, .data = without});
  EXPECT_TRUE(std::isnan(flawed.reports[1].loss));
  EXPECT_FALSE(flawed.reports[1].update.stepped);
  for (const auto& [step, same] : {std::pair(0, 0), {2, 1}, {3, 2}}) {
    const TrainingReport &got = flawed.reports[static_cast<std::size_t>(step)],
                         &expected = good.reports[static_cast<std::size_t>(same)];
    EXPECT_TRUE(got.update.stepped) << step;
    EXPECT_EQ(got.loss, expected.loss) << step;
    EXPECT_EQ(got.lr, expected.lr) << step;
  }
  for (const auto& [name, weight] : good.weights) EXPECT_TRUE(at::equal(weight, flawed.weights.at(name))) << name;
}

TEST(Training, LossScaleChangesNothingButOverflow) {
  const Layout layout = {.language = {.dp = 2}, .dtype = at::kFloat};
  const std::vector<double> plain = train(layout, {.steps = 3}).losses();
  const auto scale = [](TrainingConfig& config) { config.loss_scale.initial = 1024; };
  const std::vector<double> scaled = train(layout, {.steps = 3, .change = scale}).losses();
  for (std::size_t step = 0; step < 3; ++step) EXPECT_NEAR(scaled[step], plain[step], 1e-5 * plain[step]) << step;
  const auto overflow = [](TrainingConfig& config) {
    config.loss_scale = {.dynamic = true, .initial = 0x1p126, .backoff = 0x1p-60, .hysteresis = 2};
  };
  std::vector<double> scales;
  std::vector<bool> stepped;
  for (const TrainingReport& report : train(layout, {.steps = 4, .change = overflow}).reports) {
    scales.push_back(report.loss_scale);
    stepped.push_back(report.update.stepped);
  }
  EXPECT_EQ(scales, (std::vector<double>{0x1p126, 0x1p66, 0x1p66, 0x1p66}));
  EXPECT_EQ(stepped, (std::vector<bool>{false, false, true, true}));
}

TEST(Training, EveryCombinationOfFrozenPartsEqualsOneProcess) {
  for (const std::vector<std::string>& frozen : std::vector<std::vector<std::string>>{
           {"images.encoder"}, {"images.projector"}, {"language"}, {"images.encoder", "language"}}) {
    SCOPED_TRACE(frozen.front());
    for (const Layout& layout :
         {Layout{.images = {.tp = 2, .pp = 2}, .language = {.tp = 2, .pp = 2}, .sp = true, .frozen = frozen},
          Layout{.images = {.dp = 2},
          .language = {.tp = 2},
          .colocated = true,
          .recompute = true,
          .micro_batch = 2,
          .frozen = frozen}})
      expect_same(train(layout), alone(layout));
  }
}

// Over Gloo. Every rank compares its shards, so that the last update and its gather are checked too. Layouts with as
// many ranks share processes, whose start and reference run take longer than their steps.
TEST(Training, EqualsOneProcessAsProcesses) {
  const Trained& expected = alone();  // computed once, before the fork
  std::map<int, std::vector<Layout>> by_ranks;
  for (const Layout& layout :
       {Layout{}, Layout{.language = {.dp = 2}, .overlap = true, .gather_overlap = true},
        Layout{.language = {.tp = 2}, .sp = true}, Layout{.language = {.cp = 2}},
        Layout{.images = {.dp = 2}, .language = {.dp = 2, .ep = 2}}, Layout{.images = {.tp = 2}, .language = {.pp = 2}},
        Layout{.images = {.dp = 2}, .language = {.tp = 2}, .colocated = true, .micro_batch = 2},
        Layout{.images = {.dp = 2}, .language = {.tp = 2, .dp = 2, .ep = 4}, .sp = true}})
    by_ranks[topology_of(layout).world_size()].push_back(layout);
  for (const auto& [ranks, layouts] : by_ranks)
    testing::on_processes(ranks, [&, &layouts = layouts](World& world) {
      for (const Layout& layout : layouts) {
        SCOPED_TRACE(::testing::PrintToString(layout));
        expect_same_on_rank(testing::train_on(world, layout, topology_of(layout)), expected);
      }
    });
}

// The same run twice, with images of many sizes.
TEST(Training, GivesTheSameBitsAgainAsProcesses) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Layout layout = {.colocated = true, .micro_batch = 4, .dtype = dtype};
    const Topology topology = topology_of(layout);
    testing::on_processes(1, [&](World& world) {
      const auto train_once = [&] {
        return testing::train_on(world, layout, topology,
                                 {.change = [](TrainingConfig& config) { config.deterministic = true; }});
      };
      const Trained first = train_once(), second = train_once();
      EXPECT_LT(first.losses().back(), first.losses().front());
      EXPECT_EQ(second.losses(), first.losses());
      for (const auto& [name, weight] : first.weights) EXPECT_TRUE(at::equal(second.weights.at(name), weight)) << name;
    });
  }
}

// Weights that a checkpoint does not provide are initialized later: to the same values, also in the optimizer's copy.
TEST(Training, SetsWhetherLibtorchIsDeterministic) {
  for (const bool deterministic : {false, true}) {
    const Recipe recipe =
        parse_recipe("topology: {modules: {language: }}", {{"train.deterministic", deterministic ? "true" : "false"}});
    const auto change = [&](TrainingConfig& config) {
      config.deterministic = training_config(recipe, {}).deterministic;
    };
    train({}, {.steps = 1, .change = change});
    EXPECT_EQ(at::globalContext().deterministicAlgorithms(), deterministic);
    EXPECT_FALSE(at::globalContext().deterministicFillUninitializedMemory());  // would cost a pass over each tensor
  }
}

TEST(Training, WeightsDrawnLaterAreTheSame) {
  const Layout layout = {.images = {.dp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true};
  const auto draw = [](Training& training, World&) {
    std::atomic<std::int64_t> drawn = 0;
    const std::vector<std::string> sets = {"language", "images.encoder", "images.projector"};
    training.initialize_weights(sets, drawn);
    EXPECT_EQ(drawn, training.elements_of(sets));
    EXPECT_GT(drawn, 0);
    return 0;
  };
  constexpr int kUpdates = 2;
  const auto without_weights = [](TrainingConfig& config) { config.model.initialize_weights = false; };
  const Trained later = train(layout, {.steps = kUpdates, .change = without_weights, .start = draw});
  const Trained at_once = train(layout, {.steps = kUpdates});
  EXPECT_EQ(later.losses(), at_once.losses());
  for (const auto& [name, weight] : at_once.weights) EXPECT_TRUE(at::equal(weight, later.weights.at(name))) << name;
}

// What parameters, gradients and the optimizer take on paper is what a rank holds, to the byte.
TEST(Training, DeclaredMemoryIsWhatARankHolds) {
  for (const Layout& layout :
       {Layout{.images = {.tp = 2, .pp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .dtype = at::kBFloat16},
        Layout{.images = {.dp = 2}, .language = {.dp = 2, .pp = 2}, .zero = false, .frozen = {"images.encoder"}}}) {
    const Topology topology = topology_of(layout);
    const auto compare = [&](Training& training, World& world) {
      OptimizerMemory declared, held;
      for (const auto& set : training.model().parameter_sets()) {
        const Module& module = topology.module(set->module);
        const OptimizerMemory of_set =
            optimizer_memory(set->specs, module, world.rank(), training.optimizer_config(),
                             static_cast<std::int64_t>(at::elementSize(layout.dtype)), set->parameters.trains());
        declared.parameters += of_set.parameters;
        declared.gradients += of_set.gradients;
        declared.main_copy += of_set.main_copy;
        declared.moments += of_set.moments;
        for (const Parameters::Entry& entry : set->parameters.entries())
          if (!entry.value.requires_grad()) held.parameters += static_cast<std::int64_t>(entry.value.nbytes());
      }
      for (const Training::Trained& trained : training.trained())
        for (const auto& part : trained.optimizer->parts()) {
          const GradientBuffer& gradients = part->gradients();
          const auto wide = static_cast<std::int64_t>(gradients.tensor_options().dtype().itemsize());
          held.parameters += gradients.layout().size * static_cast<std::int64_t>(at::elementSize(layout.dtype));
          held.gradients += gradients.layout().size * wide;
          for (std::size_t bucket = 0; bucket < gradients.layout().buckets.size(); ++bucket) {
            held.main_copy += gradients.owned(bucket).size() * wide;
            held.moments += 2 * gradients.owned(bucket).size() * wide;
          }
        }
      EXPECT_EQ(declared.parameters, held.parameters) << "rank " << world.rank();
      EXPECT_EQ(declared.gradients, held.gradients) << "rank " << world.rank();
      EXPECT_EQ(declared.main_copy, held.main_copy) << "rank " << world.rank();
      EXPECT_EQ(declared.moments, held.moments) << "rank " << world.rank();
    };
    train(layout, {.steps = 1, .end = compare});
  }
}

TEST(Training, RepeatsBitForBit) {
  const Layout layout = {.images = {.dp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true, .dtype = at::kFloat};
  const Trained first = train(layout), again = train(layout);
  EXPECT_EQ(first.losses(), again.losses());
  for (const auto& [name, weight] : first.weights) EXPECT_TRUE(at::equal(weight, again.weights.at(name))) << name;
}

TEST(Training, EqualsOneProcessInSinglePrecision) {
  for (Layout layout : {Layout{.language = {.tp = 2}, .sp = true}, Layout{.language = {.cp = 2}},
                        Layout{.language = {.dp = 2, .ep = 2}}, Layout{.language = {.pp = 2}},
                        Layout{.images = {.dp = 2}, .language = {.dp = 2}}, Layout{.images = {.tp = 2}}}) {
    layout.dtype = at::kFloat;
    const std::vector<double> got = train(layout).losses(), expected = alone(layout).losses();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5 * expected[i]) << i;
  }
}

}  // namespace
}  // namespace braid
