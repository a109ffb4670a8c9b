// Training and evaluation on a data set with packing are the same in every layout, and continue in another one. The
// oracle is the run in one process, in float64; for damaged pictures, a count of the tokens that must remain. Also for
// Megatron's indexed text, blended with the drawn pictures and alone in Megatron's order.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "comm/world.h"
#include "data/batches/batch.h"
#include "data/batches/gpt_batches.h"
#include "data/batches/sample_sizes.h"
#include "data/draw/data_set.h"
#include "data/image/decode.h"
#include "data/samples/lane_set.h"
#include "support/errors.h"
#include "support/programs.h"
#include "support/ranks.h"
#include "train/training_run.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using testing::kGlobalBatch;

using Layout = testing::TrainingLayout;

constexpr int kLanes = 4, kDataSteps = 3;

// Destroys the pixels, not the headers, of every third picture.
void damage_pictures(const std::string& path) {
  std::string tar = testing::read_file(path);
  int picture = 0;
  for (auto at = tar.find("IDAT"); at != std::string::npos; at = tar.find("IDAT", at + 1))
    if (picture++ % 3 == 1) tar.replace(at + 20, 4, "\xff\xff\xff\xff");
  std::ofstream(path, std::ios::binary) << tar;
}

std::string drawn(bool is_damaged) {
  static const testing::TemporaryFolder folders[2];
  static const bool is_drawn = [] {
    for (const auto& folder : folders)
      draw_data_set({.folder = folder.path(), .train = 90, .val = 30, .per_shard = 30});
    for (const char* shard : {"/train_0000.tar", "/train_0001.tar", "/val_0003.tar"})
      damage_pictures(folders[1].path() + shard);
    return true;
  }();
  return static_cast<void>(is_drawn), folders[is_damaged].path();
}

// Documents of 3 to 42 tokens.
std::string indexed_text() {
  static const testing::TemporaryFolder folder;
  static const std::string prefix = [] {
    std::string path = folder.path() + "/text";
    IndexedWriter writer(path, 100);
    for (int document = 0; document < 60; ++document) {
      std::vector<int> ids;
      for (int i = 0; i < 3 + document * 7 % 40; ++i) ids.push_back(70 + (document + i * (1 + document % 3)) % 9);
      writer.add_document(ids);
    }
    writer.finish();
    return path;
  }();
  return prefix;
}

std::string drawn_and_text() {
  static const testing::TemporaryFolder folder;
  static const std::string path = folder.write("blend.yaml", fmt::format(R"(
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {{weight: 0.1, path: {}}}
      - {{weight: 0.9, path: {}.bin, subflavors: {{cook: bin_idx}}}}
  val: {{path: {}.bin}}
)",
                                                                         drawn(false), indexed_text(), indexed_text()));
  return path;
}

enum class DataKind { Drawn, DrawnAndText, MegatronsText };

struct DataOptions {
  int steps = kDataSteps;
  DataKind kind = DataKind::Drawn;
  bool is_damaged = false;
  std::vector<std::string> positions{};  // to continue from
  int threads = 2;
  std::int64_t max_bad_samples = 1000;
  bool learns = true;        // otherwise the loss depends on the samples only
  int balance_replicas = 0;  // that exchange samples; 0: sequences come as lanes give them
};

LaneSetOptions lanes_of(const DataOptions& options, const std::string& split) {
  const std::string folder = drawn(options.is_damaged);
  LaneSetOptions lanes = {.loader = {.num_workers = 2, .packing_buffer = 6, .threads = options.threads},
                          .split = split,
                          .is_training = split == "train",
                          .lanes = kLanes,
                          .sequence_length = 64};
  lanes.data = {.path = options.kind == DataKind::DrawnAndText ? drawn_and_text() : folder,
                .tokenizer = folder + "/tokenizer",
                .prompt_format = "chatml",
                .max_bad_samples = options.max_bad_samples};
  return lanes;
}

struct Outcome {
  std::vector<double> losses{}, tokens{};  // by step
  EvaluationReport evaluation{};
  std::vector<std::string> positions{};
  std::vector<std::string> notes{};  // about damaged samples
};

Outcome run(const Layout& layout, const DataOptions& options = {}) {
  const Topology topology = testing::topology_of(layout);
  Provider provider = layout.provider();
  if (!options.learns) std::get<HybridLmConfig>(provider.language).expert_bias_rate = 0;
  Outcome result;
  std::mutex mutex;
  testing::on_threads(topology.world_size(), [&](World& world) {
    const auto source_of = [&](const std::string& split) {
      if (options.kind == DataKind::MegatronsText)
        return make_gpt_batches({.path = fmt::format("0.7 {0} 0.3 {0}", indexed_text()),
                                 .shares = "3,1",
                                 .split = split,
                                 .samples = kGlobalBatch * 4,
                                 .sequence_length = 64,
                                 .seed = 5},
                                media_tokens(provider, topology));
      LaneSetOptions lanes = lanes_of(options, split);
      lanes.media = media_tokens(provider, topology);
      lanes.vision = vision_input(provider, topology);
      lanes.bad = std::make_shared<BadSamples>(options.max_bad_samples, [&](const std::string& text) {
        const std::lock_guard lock(mutex);
        result.notes.push_back(text);
      });
      const bool balances = options.balance_replicas > 0 && split == "train";
      return make_lane_batches(
          std::move(lanes),
          balances ? std::make_shared<SampleBalance>(provider, topology, layout.frozen, options.balance_replicas)
                   : nullptr);
    };
    const auto data = source_of("train"), valid = source_of("val");
    if (!options.positions.empty()) data->restore(options.positions);
    TrainingConfig config = testing::config_of(layout);
    if (!options.learns) config.schedule.max_lr = config.schedule.min_lr = 0;
    const Groups groups(world, topology);
    Training training(provider, topology, groups, world, config);
    training.read_from(*data, 0);
    StepClock clock;
    Outcome own;
    for (int step = 0; step < options.steps; ++step) {
      const TrainingReport report = training.step(clock, [] { return StopReason::None; });
      own.losses.push_back(report.loss);
      own.tokens.push_back(report.num_tokens);
    }
    own.evaluation = training.evaluate(*valid, 2);
    own.positions = training.data_positions();
    if (world.rank() != 0) return;
    const std::lock_guard lock(mutex);
    own.notes = std::move(result.notes);
    result = std::move(own);
  });
  return result;
}

void expect_same(const Outcome& got, const Outcome& expected) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (std::size_t step = 0; step < got.losses.size(); ++step)
    EXPECT_NEAR(got.losses[step], expected.losses[step], 1e-10 * expected.losses[step]) << "step " << step;
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.positions, expected.positions);
  const EvaluationReport &own = got.evaluation, &other = expected.evaluation;
  EXPECT_NEAR(own.loss, other.loss, 1e-10 * other.loss);
  EXPECT_EQ(own.num_tokens, other.num_tokens);
  EXPECT_EQ(own.answers, other.answers);
  EXPECT_EQ(own.right_tokens, other.right_tokens);
  EXPECT_EQ(own.right_answers, other.right_answers);
}

const Outcome& alone(DataKind kind) {
  static std::map<DataKind, Outcome> runs;
  if (!runs.contains(kind)) runs[kind] = run(testing::in_one_process({}), {.kind = kind});
  return runs[kind];
}

const Outcome& alone(bool is_damaged = false) {
  static std::map<bool, Outcome> runs;
  if (!runs.contains(is_damaged)) runs[is_damaged] = run(testing::in_one_process({}), {.is_damaged = is_damaged});
  return runs[is_damaged];
}

class DrawnData : public ::testing::TestWithParam<Layout> {};

TEST_P(DrawnData, TrainsAndEvaluatesAsInOneProcess) { expect_same(run(GetParam()), alone()); }

INSTANTIATE_TEST_SUITE_P(
    Threads, DrawnData,
    ::testing::Values(Layout{},                                                                                 //
                      Layout{.language = {.dp = 2}},                                                            //
                      Layout{.language = {.dp = 4}, .micro_batch = 2},                                          //
                      Layout{.images = {.dp = 2}, .micro_batch = 2},                                            //
                      Layout{.images = {.dp = 2}, .language = {.dp = 4}},                                       //
                      Layout{.images = {.dp = 4}, .language = {.dp = 2}, .micro_batch = 2},                     //
                      Layout{.images = {.tp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true},         //
                      Layout{.images = {.dp = 2}, .language = {.cp = 2}, .micro_batch = 2},                     //
                      Layout{.language = {.dp = 2, .pp = 2}},                                                   //
                      Layout{.language = {.pp = 2, .vpp = 2}},                                                  //
                      Layout{.images = {.dp = 2}, .language = {.tp = 2}, .colocated = true, .micro_batch = 2},  //
                      Layout{.images = {.dp = 4}, .language = {.dp = 4}, .colocated = true},                    //
                      Layout{
                          .images = {.dp = 2}, .language = {.pp = 2, .vpp = 2}, .colocated = true, .micro_batch = 2}));

TEST(DrawnDataRuns, DoNotDependOnThreads) {
  for (const int threads : {1, 4}) expect_same(run(Layout{.language = {.dp = 2}}, {.threads = threads}), alone());
}

class IndexedText : public ::testing::TestWithParam<std::tuple<DataKind, Layout>> {};

TEST_P(IndexedText, TrainsAndEvaluatesAsInOneProcess) {
  const auto& [kind, layout] = GetParam();
  expect_same(run(layout, {.kind = kind}), alone(kind));
}

INSTANTIATE_TEST_SUITE_P(
    Threads, IndexedText,
    ::testing::Combine(
        ::testing::Values(DataKind::DrawnAndText, DataKind::MegatronsText),
        ::testing::Values(Layout{.language = {.dp = 4}},                                                     //
                          Layout{.images = {.dp = 2}, .language = {.dp = 2}, .micro_batch = 1},              //
                          Layout{.images = {.dp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true},  //
                          Layout{.language = {.cp = 2}},                                                     //
                          Layout{.language = {.dp = 2, .pp = 2}},                                            //
                          Layout{.images = {.dp = 2}, .language = {.tp = 2}, .colocated = true, .micro_batch = 2})));

TEST(IndexedTextRuns, ContinueInAnotherLayout) {
  const auto with_dp = [](int dp) { return Layout{.images = {.dp = 2}, .language = {.dp = dp}, .micro_batch = 2}; };
  for (const DataKind kind : {DataKind::DrawnAndText, DataKind::MegatronsText}) {
    const Outcome whole = run(with_dp(1), {.steps = 4, .kind = kind, .learns = false});
    for (const auto& [before, after] : {std::pair(1, 4), std::pair(4, 2)}) {
      const Outcome first = run(with_dp(before), {.steps = 2, .kind = kind, .learns = false});
      const Outcome rest =
          run(with_dp(after), {.steps = 2, .kind = kind, .positions = first.positions, .learns = false});
      EXPECT_EQ(rest.positions, whole.positions);
      for (std::size_t step = 0; step < 4; ++step)
        EXPECT_NEAR(step < 2 ? first.losses[step] : rest.losses[step - 2], whole.losses[step], 1e-10);
    }
  }
}

TEST(IndexedTextRuns, LearnEveryTokenOfMegatronsText) {
  for (const double tokens : alone(DataKind::MegatronsText).tokens) EXPECT_EQ(tokens, kGlobalBatch * 64);
}

// The audio encoder has no input in any step.
TEST(DrawnDataRuns, LeaveEncodersOfOtherInputOut) {
  const DataOptions two_steps = {.steps = 2};
  const Layout layout = {.images = {.dp = 2}, .language = {.dp = 2}, .micro_batch = 2, .provider = testing::small_omni};
  const Outcome expected = run(testing::in_one_process(layout), two_steps);
  expect_same(run(layout, two_steps), expected);
  EXPECT_EQ(expected.tokens, run(testing::in_one_process({}), two_steps).tokens);  // of a model without it
}

TEST(DrawnDataRuns, ContinueWithAnotherNumberOfReplicas) {
  const auto with_dp = [](int dp) { return Layout{.images = {.dp = 2}, .language = {.dp = dp}, .micro_batch = 2}; };
  const Outcome whole = run(with_dp(1), {.steps = 4, .learns = false});
  for (const auto& [before, after] : {std::pair(1, 4), std::pair(2, 1), std::pair(4, 2)}) {
    const Outcome first = run(with_dp(before), {.steps = 2, .learns = false});
    const Outcome rest = run(with_dp(after), {.steps = 2, .positions = first.positions, .learns = false});
    EXPECT_EQ(rest.positions, whole.positions);
    for (std::size_t step = 0; step < 4; ++step)
      EXPECT_NEAR(step < 2 ? first.losses[step] : rest.losses[step - 2], whole.losses[step], 1e-10) << before << after;
  }
}

// --- samples in the order of a balanced step

TEST(BalancedDrawnData, TrainsAsInOneProcess) {
  for (const auto& [layout, replicas] :
       {std::pair(Layout{}, 1), std::pair(Layout{.images = {.dp = 2}, .language = {.dp = 4}, .micro_batch = 2}, 4),
        std::pair(Layout{.images = {.dp = 2}, .language = {.dp = 4}}, 1),
        std::pair(Layout{.images = {.dp = 2}, .language = {.dp = 4}}, 2),
        std::pair(Layout{.images = {.dp = 4}, .language = {.tp = 2, .dp = 2}, .micro_batch = 2}, 2),
        std::pair(Layout{.images = {.tp = 2, .dp = 2}, .language = {.dp = 2, .pp = 2}, .colocated = true}, 2)}) {
    SCOPED_TRACE(replicas);
    expect_same(run(layout, {.balance_replicas = replicas}), alone());
  }
  expect_same(run({.images = {.dp = 2}, .language = {.dp = 4}}, {.is_damaged = true, .balance_replicas = 4}),
              alone(/*is_damaged=*/true));
}

TEST(BalancedDrawnData, ContinuesWithAnotherNumberOfReplicas) {
  const auto with_dp = [](int dp) { return Layout{.images = {.dp = 2}, .language = {.dp = dp}, .micro_batch = 2}; };
  const Outcome whole = run(with_dp(1), {.steps = 4, .learns = false});
  const Outcome first = run(with_dp(4), {.steps = 2, .learns = false, .balance_replicas = 4});
  const Outcome rest =
      run(with_dp(2), {.steps = 2, .positions = first.positions, .learns = false, .balance_replicas = 2});
  EXPECT_EQ(rest.positions, whole.positions);
  for (std::size_t step = 0; step < 4; ++step)
    EXPECT_NEAR(step < 2 ? first.losses[step] : rest.losses[step - 2], whole.losses[step], 1e-10);
}

// The patches that encoder replicas get in each microbatch: their order differs, their sum over a step does not.
TEST(BalancedDrawnData, HasMoreEvenMicrobatches) {
  const Layout layout = {.images = {.dp = 2}, .language = {.dp = 4}};
  const Topology topology = testing::topology_of(layout);
  const Provider provider = layout.provider();
  const auto patches = [&](const std::shared_ptr<const SampleBalance>& balance) {
    LaneSetOptions options = lanes_of({}, "train");
    options.media = media_tokens(provider, topology);
    options.vision = vision_input(provider, topology);
    const auto data = make_lane_batches(std::move(options), balance);
    std::vector<std::int64_t> counts;
    for (const SampleRange& own : {SampleRange{0, 2}, SampleRange{2, 4}}) {
      const auto reader =
          data->read_encoder("images", {.all = 4, .own = own, .language_replicas = 4, .microbatches = 4});
      for (int microbatch = 0; microbatch < 4; ++microbatch) {
        counts.push_back(0);
        for (const Extent& extent : reader().extents) counts.back() += input_rows(extent);
      }
    }
    return counts;
  };
  const auto sum = [](const std::vector<std::int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  };
  const auto spread = [](const std::vector<std::int64_t>& counts) {
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    return *most - *least;
  };
  const std::vector<std::int64_t> as_read = patches(nullptr), balanced = patches(std::make_shared<SampleBalance>(
                                                                  provider, topology, std::vector<std::string>{}, 4));
  EXPECT_EQ(sum(balanced), sum(as_read));
  EXPECT_LT(2 * spread(balanced), spread(as_read));
}

// --- pictures whose header is fine and whose pixels are not

bool decodes(SampleReader& reader, const SampleRef& ref, const StoredPart& picture) {
  try {
    const std::string bytes = reader.read_bytes(ref, picture.offset, picture.size);
    decode(SamplePart{picture.name, bytes}.file(), picture.name);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

// Tokens to predict, by step, of samples whose pictures can all be decoded.
std::vector<double> tokens_of_good_samples() {
  LaneSetOptions options = lanes_of({.is_damaged = true}, "train");
  options.vision = vision_input(testing::small_vlm(), testing::topology_of({}));
  const auto set = std::make_shared<const LaneSet>(options);
  ReplicaLanes lanes(set, {0, 1, 1}, {});
  std::vector<double> tokens(kDataSteps);
  for (double& count : tokens)
    for (int i = 0; i < kGlobalBatch; ++i)
      for (const ReadSample& sample : lanes.next(0))
        if (std::all_of(sample.pictures.begin(), sample.pictures.end(),
                        [&](const StoredPart& picture) { return decodes(set->reader, sample.ref, picture); }))
          count += static_cast<double>(std::count_if(sample.tokens.targets.begin() + 1, sample.tokens.targets.end(),
                                                     [](int target) { return target != kIgnoredLabel; }));
  return tokens;
}

TEST(DamagedPictures, AreNotTrainedOnInAnyLayout) {
  const Outcome& expected = alone(/*is_damaged=*/true);
  EXPECT_EQ(expected.tokens, tokens_of_good_samples());
  for (std::size_t step = 0; step < kDataSteps; ++step) EXPECT_LT(expected.tokens[step], alone().tokens[step]);
  EXPECT_LT(expected.evaluation.num_tokens, alone().evaluation.num_tokens);
  EXPECT_THAT(expected.notes, ::testing::Contains(HasSubstr("of shard 'train_0000.tar' is skipped: png: ")));
  for (const Layout& layout : {Layout{.images = {.dp = 4}, .language = {.tp = 2, .dp = 2}, .micro_batch = 2},
                               Layout{.language = {.dp = 2, .pp = 2}},
                               Layout{.images = {.dp = 2}, .language = {.cp = 2}, .colocated = true, .micro_batch = 2}})
    expect_same(run(layout, {.is_damaged = true}), expected);
}

TEST(DamagedPictures, EndTheRunWhenThereAreTooMany) {
  const Layout layout = {.images = {.dp = 2}, .language = {.dp = 2, .pp = 2}};
  EXPECT_THAT(testing::error_of<DataError>([&] { run(layout, {.is_damaged = true, .max_bad_samples = 1}); }),
              ::testing::AllOf(HasSubstr("of shard '"), HasSubstr("more than data.max_bad_samples=1 samples")));
}

// --- one reader for all language replicas of an encoder rank, and one for each

TEST(EncoderReaders, SharedAndPerReplicaReadTheSameBatches) {
  const auto reader = [](Readers readers, const ReaderSamples& samples) {
    LaneSetOptions options = lanes_of({.is_damaged = true}, "train");
    options.vision = vision_input(testing::small_vlm(), testing::topology_of({}));
    options.loader.readers = readers;
    return make_lane_batches(std::move(options))->read_encoder("images", samples);
  };
  for (const ReaderSamples& samples : {ReaderSamples{.all = 4, .own = {0, 4}, .language_replicas = 4},
                                       ReaderSamples{.all = 8, .own = {0, 4}, .language_replicas = 4},
                                       ReaderSamples{.all = 4, .own = {2, 3}, .language_replicas = 2},
                                       ReaderSamples{.all = 8, .own = {2, 6}, .language_replicas = 2}}) {
    const auto shared = reader(Readers::Shared, samples), per_replica = reader(Readers::PerReplica, samples);
    for (int i = 0; i < 6; ++i) {
      const EncoderBatch got = per_replica(), expected = shared();
      ASSERT_EQ(got.extents, expected.extents);
      EXPECT_EQ(got.sample_of, expected.sample_of);
      EXPECT_EQ(got.damaged, expected.damaged);
      EXPECT_TRUE(got.extents.empty() || got.values.equal(expected.values));
    }
  }
}

TEST(EncoderReaders, OnlyMergeWhatIsOfOneKind) {
  const auto part = [](at::ScalarType type, std::int64_t features) {
    return BatchPart{{.values = at::zeros({4, features}, type), .extents = {{2, 2}}, .sample_of = {0}}, 1};
  };
  const EncoderBatch merged = merge({part(at::kByte, 3), {{}, 2}, part(at::kByte, 3)});
  EXPECT_EQ(merged.values.sizes(), (std::vector<std::int64_t>{8, 3}));
  EXPECT_EQ(merged.sample_of, (std::vector<std::int64_t>{0, 3}));
  EXPECT_ANY_THROW(merge({part(at::kByte, 3), part(at::kFloat, 3)}));
  EXPECT_ANY_THROW(merge({part(at::kByte, 3), part(at::kByte, 6)}));
  BatchPart other_sample = part(at::kByte, 3);
  other_sample.batch.sample_of = {1};
  EXPECT_ANY_THROW(merge({other_sample}));
}

}  // namespace
}  // namespace braid
