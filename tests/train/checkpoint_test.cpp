// A run that is saved in one layout and resumed in another continues as if it had not been interrupted.
#include "run/resume/checkpoint.h"
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ckpt/checkpoint_folder.h"
#include "ckpt/checkpoint_tools.h"
#include "ckpt/dist_checkpoint.h"
#include "ckpt/save_lock.h"
#include "comm/world.h"
#include "support/errors.h"
#include "support/programs.h"
#include "train/training_run.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::alone;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kGlobalBatch;
using ::testing::Not;
using testing::Trained;
using testing::TrainingOptions;

using Layout = testing::TrainingLayout;
namespace fs = std::filesystem;

constexpr int kSavedAfter = 1, kStepsAfter = 2, kSeed = 77;

const auto kSilent = [](const std::string&) {};

void save(const CheckpointConfig& config, Training& training, World& world, std::int64_t iteration) {
  CheckpointSaver saver(config, training, world, /*publisher=*/0, kSilent);
  saver.save({.position = {iteration, iteration * kGlobalBatch},
              .schedule = training.schedule(),
              .fully_reshardable = config.fully_reshardable,
              .world_size = world.size()},
             kSeed);
  saver.finish();
}

Trained train_and_save(const Layout& layout, const CheckpointConfig& config) {
  return testing::train(layout, {.steps = kSavedAfter, .end = [&](Training& training, World& world) {
                                   save(config, training, world, kSavedAfter);
                                 }});
}

// As in a run that loads, weights are not initialized: values that the checkpoint does not fill give a NaN loss.
void poison(const Training& training) {
  const at::NoGradGuard no_grad;
  for (const auto& set : training.model().parameter_sets())
    for (const Parameters::Entry& entry : set->parameters.entries())
      entry.value.fill_(std::numeric_limits<double>::quiet_NaN());
}

TrainingOptions resumed_from(const CheckpointConfig& config) {
  return {.steps = kStepsAfter,
          .change = [](TrainingConfig& training) { training.model.initialize_weights = false; },
          .start =
              [config](Training& training, World& world) {
                poison(training);
                const auto run = load_checkpoint(config, training, world, kSilent);
                EXPECT_EQ(run->position.iteration, kSavedAfter);
                EXPECT_EQ(run->position.consumed_samples, kSavedAfter * kGlobalBatch);
                EXPECT_EQ(run->seed, kSeed);
                return kSavedAfter;
              }};
}

const std::map<std::string, Layout> kLayouts = {
    {"one", {.colocated = true}},
    {"apart", {.images = {.dp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true}},
    {"together",
     {.images = {.dp = 4}, .language = {.tp = 2, .dp = 2, .ep = 2}, .colocated = true, .sp = true, .micro_batch = 2}},
    {"pipelines", {.images = {.pp = 2}, .language = {.dp = 2, .pp = 2}}},
    {"context", {.images = {.tp = 2}, .language = {.tp = 2, .cp = 2}, .sp = true}},
    {"experts", {.language = {.dp = 4, .ep = 4}}},
    {"split experts", {.language = {.tp = 2, .dp = 2, .ep = 2, .expt_tp = 2}, .sp = true}},
    {"no zero", {.images = {.dp = 2}, .language = {.dp = 4, .ep = 2}, .zero = false}},
    {"buckets",
     {.images = {.tp = 2, .dp = 2}, .language = {.dp = 2, .pp = 2}, .overlap = true, .gather_overlap = true}},
    {"wide", {.images = {.dp = 8}, .language = {.dp = 8}, .micro_batch = 1}},
    {"interleaved",
     {.images = {.dp = 2}, .language = {.dp = 2, .pp = 2, .vpp = 2}, .overlap = true, .gather_overlap = true}},
};

// Saved once for all tests that load it.
const std::string& saved_in(const std::string& layout) {
  static const testing::TemporaryFolder folder;
  static std::map<std::string, std::string> roots;
  const auto [root, is_new] = roots.try_emplace(layout, folder.path() + "/" + layout);
  if (is_new) train_and_save(kLayouts.at(layout), {.save = root->second});
  return root->second;
}

struct Pair {
  std::string from, to;
};

void PrintTo(const Pair& pair, std::ostream* out) { *out << pair.from << " to " << pair.to; }

// `whole` was not interrupted.
void expect_losses(const Trained& resumed, const Trained& whole) {
  const std::vector<double> got = resumed.losses(), expected = whole.losses();
  ASSERT_EQ(got.size(), static_cast<std::size_t>(kStepsAfter));
  for (std::size_t step = 0; step < got.size(); ++step)
    EXPECT_NEAR(got[step], expected[kSavedAfter + step], 1e-9) << "step " << step;
}

class Resharding : public ::testing::TestWithParam<Pair> {};

TEST_P(Resharding, TheNextStepsEqualThoseOfAnUninterruptedRun) {
  expect_losses(testing::train(kLayouts.at(GetParam().to), resumed_from({.load = saved_in(GetParam().from)})), alone());
}

std::vector<Pair> pairs() {
  std::vector<Pair> pairs;
  const auto add = [&](const std::string& from, const std::vector<std::string>& to) {
    for (const std::string& layout : to) pairs.push_back({from, layout});
  };
  add("one", {"apart", "together", "pipelines", "split experts"});
  add("apart", {"one", "together", "context", "no zero"});
  add("together", {"apart", "pipelines", "wide"});
  add("pipelines", {"together", "experts", "buckets"});
  add("context", {"apart", "split experts"});
  add("experts", {"one", "split experts"});
  add("split experts", {"experts", "no zero"});
  add("no zero", {"buckets", "apart"});
  add("buckets", {"pipelines", "wide"});
  add("wide", {"one"});
  add("interleaved", {"one", "pipelines", "interleaved"});
  add("pipelines", {"interleaved"});
  add("apart", {"interleaved"});
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(Pairs, Resharding, ::testing::ValuesIn(pairs()));

void expect_identical(const Trained& resumed, const Trained& whole) {
  ASSERT_EQ(resumed.reports.size() + kSavedAfter, whole.reports.size());
  for (std::size_t step = 0; step < resumed.reports.size(); ++step) {
    const TrainingReport &own = resumed.reports[step], &other = whole.reports[kSavedAfter + step];
    EXPECT_EQ(own.loss, other.loss) << "step " << step;
    EXPECT_EQ(own.update.grad_norm, other.update.grad_norm) << "step " << step;
    EXPECT_EQ(own.lr, other.lr) << "step " << step;
  }
  for (const auto& [name, weight] : resumed.weights) EXPECT_TRUE(weight.equal(whole.weights.at(name))) << name;
}

class SameLayout : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(SameLayout, ResumesBitForBit) {
  Layout layout = kLayouts.at("apart");
  layout.dtype = GetParam();
  const Trained whole = testing::train(layout, {.steps = kSavedAfter + kStepsAfter});
  for (const bool fully_reshardable : {true, false}) {
    const testing::TemporaryFolder folder;
    const CheckpointConfig config = {
        .save = folder.path(), .fully_reshardable = fully_reshardable, .load = folder.path()};
    train_and_save(layout, config);
    expect_identical(testing::train(layout, resumed_from(config)), whole);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SameLayout, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16));

// Other families: layers stacked over pipeline stages, two encoders.
TEST(Checkpoint, EveryFamilyReshards) {
  const Layout llava = {.images = {.pp = 2}, .language = {.tp = 2, .pp = 2}, .provider = testing::small_llava};
  const Layout omni = {.images = {.dp = 2}, .language = {.tp = 2, .dp = 2}, .provider = testing::small_omni};
  for (const Layout& layout : {llava, omni}) {
    const testing::TemporaryFolder folder;
    const CheckpointConfig config = {.save = folder.path(), .load = folder.path()};
    train_and_save(layout, config);
    SCOPED_TRACE(layout);
    expect_losses(testing::train(in_one_process(layout), resumed_from(config)), alone(layout));
  }
}

TEST(Checkpoint, OptimizersByBucketLoadInTheSameSplitOfTheModelOnly) {
  const testing::TemporaryFolder folder;
  const CheckpointConfig config = {.save = folder.path(), .fully_reshardable = false, .load = folder.path()};
  Layout layout = {.language = {.tp = 2, .dp = 2}};
  train_and_save(layout, config);
  layout.language.dp = 4;
  expect_losses(testing::train(layout, resumed_from(config)), alone());
  layout.language.tp = 1;
  EXPECT_THAT(error_of<DataError>([&] { testing::train(layout, resumed_from(config)); }),
              AllOf(HasSubstr("split over tp 2"), HasSubstr("--no-load-optim")));
  const testing::TemporaryFolder other;
  const CheckpointConfig interleaved = {.save = other.path(), .fully_reshardable = false, .load = other.path()};
  layout = {.language = {.pp = 2, .vpp = 2}};
  train_and_save(layout, interleaved);
  layout.language.vpp = 1;
  EXPECT_THAT(error_of<DataError>([&] { testing::train(layout, resumed_from(interleaved)); }), HasSubstr("vpp 2"));
}

// Only the weights are loaded; everything else starts from 0.
TEST(Checkpoint, FinetuningTakesTheWeightsOnly) {
  const Layout& layout = kLayouts.at("apart");
  const CheckpointConfig config = {.load = saved_in("one"), .finetune = true};
  testing::train(layout, {.steps = 1, .start = [&](Training& training, World& world) {
                            const auto run = load_checkpoint(config, training, world, kSilent);
                            EXPECT_EQ(run->position.iteration, 0);
                            EXPECT_EQ(run->seed, std::nullopt);
                            EXPECT_EQ(training.schedule().num_steps, 0);
                            for (const auto& trained : training.trained()) {
                              EXPECT_EQ(trained.optimizer->steps(), 0);
                              for (const OptimizerState& state : trained.optimizer->state())
                                EXPECT_EQ(state.exp_avg.abs().max().item<double>(), 0) << state.spec.name;
                            }
                            return kSavedAfter;  // the samples that a resumed run would see
                          }});
}

TEST(Checkpoint, WithoutTheOptimizerTheMainCopyFollowsTheWeights) {
  const testing::TemporaryFolder folder;
  const Layout layout = {.language = {.dp = 2}};
  train_and_save(layout, {.save = folder.path(), .save_optimizer = false});
  EXPECT_THAT(error_of<DataError>([&] { testing::train(layout, resumed_from({.load = folder.path()})); }),
              HasSubstr("--no-load-optim"));
  const CheckpointConfig config = {.load = folder.path(), .load_optimizer = false};
  const std::vector<double> got = testing::train(layout, resumed_from(config)).losses();
  EXPECT_NEAR(got[0], alone().losses()[kSavedAfter], 1e-9);
  EXPECT_NE(got[1], alone().losses()[kSavedAfter + 1]);
}

TEST(Checkpoint, FrozenModulesHaveNoOptimizerState) {
  const testing::TemporaryFolder folder;
  const Layout layout = {.language = {.tp = 2}, .frozen = {"images.encoder", "images.projector"}};
  const CheckpointConfig config = {.save = folder.path(), .load = folder.path()};
  train_and_save(layout, config);
  const DistCheckpoint checkpoint(iteration_folder(folder.path(), kSavedAfter));
  for (const auto& [key, tensor] : checkpoint.metadata().tensors)
    EXPECT_FALSE(key.starts_with("mimo.images.optimizer")) << key;
  const std::vector<double> got = testing::train(in_one_process(layout), resumed_from(config)).losses();
  EXPECT_NEAR(got.back(), alone(layout).losses()[kSavedAfter + kStepsAfter - 1], 1e-9);
}

TEST(Checkpoint, AnotherModelIsRefusedWithWhatDiffers) {
  const Layout layout = {.provider = [] {
    Provider provider = testing::small_vlm();
    std::get<HybridLmConfig>(provider.language).pattern = "ME*-M";
    std::get<RadioConfig>(provider.encoders[0].model).ffn *= 2;
    return provider;
  }};
  EXPECT_THAT(error_of<DataError>([&] { testing::train(layout, resumed_from({.load = saved_in("one")})); }),
              AllOf(HasSubstr("language_model.module.decoder.layers.4.mixer.A_log is missing"),
                    HasSubstr("radio_model.decoder.layers.mlp.linear_fc1.weight is [2, ")));
}

// What one rank prints during a load, or the error.
std::string said_by_load(const CheckpointConfig& config, const Layout& layout = {.colocated = true}) {
  std::string said;
  const std::string error = error_of<std::exception>([&] {
    testing::train(layout, {.steps = 0, .start = [&](Training& training, World& world) {
                              const auto say = [&](const std::string& text) {
                                if (world.rank() == 0) said += text + "\n";
                              };
                              const auto run = load_checkpoint(config, training, world, say);
                              if (world.rank() == 0)
                                said += fmt::format("iteration {}\n", run ? run->position.iteration : -1);
                              return 0;
                            }});
  });
  return error == "no error" ? said : error;
}

TEST(Checkpoint, ARunWithoutACheckpointStartsFromScratch) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(said_by_load({.load = folder.path() + "/none"}), HasSubstr("\niteration -1\n"));
  EXPECT_THAT(said_by_load({.load = folder.path(), .must_exist = true}), HasSubstr("there is no checkpoint in"));
}

// Damages a copy of a checkpoint in one way; returns the names of the files that a message may name for it.
std::vector<std::string> damage(const std::string& folder, std::mt19937& random) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  const auto below = [&](std::uintmax_t n) { return std::uniform_int_distribution<std::uintmax_t>(0, n - 1)(random); };
  const std::string name = names[below(names.size())], path = folder + "/" + name;
  switch (below(4)) {
    case 0: fs::remove(path); return {name};
    case 1: fs::resize_file(path, below(fs::file_size(path))); return {name};
    case 2: {
      const std::string other = names[(std::find(names.begin(), names.end(), name) - names.begin() + 1 +
                                       static_cast<std::ptrdiff_t>(below(names.size() - 1))) %
                                      static_cast<std::ptrdiff_t>(names.size())];
      fs::rename(path, folder + "/swap");
      fs::rename(folder + "/" + other, path);
      fs::rename(folder + "/swap", folder + "/" + other);
      return {name, other};
    }
    default: {
      std::string bytes = testing::read_file(path);
      bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
      std::ofstream(path, std::ios::binary) << bytes;
      return {name};
    }
  }
}

bool names_one_of(const std::string& message, const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [&](const std::string& name) { return message.find(name) != message.npos; });
}

TEST(Checkpoint, DamageIsFoundAndNamedByVerifyAndByALoad) {
  const std::string good = iteration_folder(saved_in("apart"), kSavedAfter);
  EXPECT_TRUE(verify_checkpoint(good).problems.empty());
  std::mt19937 random(60);
  for (int trial = 0; trial < 60; ++trial) {
    const testing::TemporaryFolder folder;
    const std::string copy = iteration_folder(folder.path(), kSavedAfter);
    fs::copy(good, copy);
    folder.write("latest_checkpointed_iteration.txt", std::to_string(kSavedAfter));
    const std::vector<std::string> names = damage(copy, random);
    const std::string what = fmt::format("trial {}, {}", trial, fmt::join(names, " and "));
    std::string found;
    for (const Problem& problem : verify_checkpoint(copy).problems) found += problem.what + " " + problem.where + "\n";
    EXPECT_TRUE(names_one_of(found, names)) << what << ": verify says '" << found << "'";
    const std::string said = said_by_load({.load = folder.path()});
    EXPECT_TRUE(names_one_of(said, names)) << what << ": a load says '" << said << "'";
    EXPECT_THAT(said, Not(HasSubstr("\niteration "))) << what << " is loaded";
  }
}

// Iterations 4 and 5, of which flip_bit() damages the newer one.
class DamagedCheckpoint : public ::testing::Test {
 protected:
  DamagedCheckpoint() {
    testing::train(layout, {.steps = 1, .end = [&](Training& training, World& world) {
                              for (const std::int64_t iteration : {4, 5})
                                save({.save = root(), .load = root()}, training, world, iteration);
                            }});
  }
  const std::string& root() const { return folder.path(); }
  void flip_bit(const std::string& name) const {
    const std::string path = iteration_folder(root(), 5) + "/" + name;
    std::string bytes = testing::read_file(path);
    bytes[bytes.size() / 2] ^= 1;
    std::ofstream(path, std::ios::binary) << bytes;
  }

  const Layout layout = {.language = {.dp = 2}};
  const testing::TemporaryFolder folder;
};

TEST_F(DamagedCheckpoint, SaysWhichOlderOneIsComplete) {
  for (const char* name : {"__1_0.distcp", "common.pt", ".metadata"}) {
    flip_bit(name);
    EXPECT_THAT(said_by_load({.load = root()}, layout),
                AllOf(HasSubstr(name), HasSubstr("iteration 4 in " + root() + " looks complete"),
                      HasSubstr("--load-fallback")));
    flip_bit(name);
  }
  fs::remove(iteration_folder(root(), 4) + "/.metadata");
  flip_bit("common.pt");
  EXPECT_THAT(said_by_load({.load = root()}, layout), Not(HasSubstr("--load-fallback")));
}

// Only one rank reads the damaged shard; all ranks resume from the older checkpoint.
TEST_F(DamagedCheckpoint, IsSkippedByAFallback) {
  const CheckpointConfig config = {.load = root(), .load_fallback = LoadFallback::Always};
  EXPECT_THAT(said_by_load(config, layout), AllOf(HasSubstr("iteration 5\n"), Not(HasSubstr("WARNING"))));
  for (const char* name : {"__1_0.distcp", "__2_0.distcp", "common.pt", ".metadata", "checksums.json"}) {
    flip_bit(name);
    EXPECT_THAT(said_by_load(config, layout), AllOf(HasSubstr("WARNING: iteration 5 cannot be loaded"), HasSubstr(name),
                                                    HasSubstr("the older iteration 4"), HasSubstr("\niteration 4\n"),
                                                    Not(HasSubstr("loaded " + iteration_folder(root(), 5)))))
        << name;
    flip_bit(name);
  }
  folder.write("latest_checkpointed_iteration.txt", "nonsense");
  EXPECT_THAT(said_by_load(config, layout),
              AllOf(HasSubstr("WARNING"), HasSubstr("'nonsense'"), HasSubstr("\niteration 5\n")));
  folder.write("latest_checkpointed_iteration.txt", "5");
  fs::remove(iteration_folder(root(), 4) + "/common.pt");
  flip_bit("__1_0.distcp");
  EXPECT_THAT(said_by_load(config, layout), AllOf(HasSubstr("iter_0000005"), HasSubstr("no older checkpoint")));
}

// Until the run saves, the checkpoint it resumed from is the latest, and it is kept when older ones are removed.
TEST_F(DamagedCheckpoint, IsNoLongerTheLatest) {
  testing::train({.colocated = true}, {.steps = 0, .end = [&](Training& training, World& world) {
                                         const CheckpointConfig config = {.save = root(), .load = root()};
                                         CheckpointSaver saver(config, training, world, 0, kSilent);
                                         saver.resumed_from(4);
                                         EXPECT_EQ(latest_iteration(root()), 4);
                                         remove_old_iterations(root(), 1);
                                       }});
  EXPECT_EQ(iterations_in(root()), (std::vector<std::int64_t>{4, 5}));
}

// --- checkpoint.init

// What the ranks of a start with an init load, and what the first one says. `root` may differ between ranks.
std::string said_by_init(const std::function<std::string(int rank)>& root, const Layout& layout,
                         LoadFallback fallback = LoadFallback::Never) {
  std::string said;
  const std::string error = error_of<std::exception>([&] {
    testing::train(
        layout, {.steps = 0, .start = [&](Training& training, World& world) {
                   const std::string own = root(world.rank());
                   const CheckpointConfig config = {
                       .save = own, .init = {.finetune = saved_in("one")}, .load = own, .load_fallback = fallback};
                   const auto say = [&](const std::string& text) {
                     if (world.rank() == 0) said += text + "\n";
                   };
                   const auto run = load_checkpoint(config, training, world, say);
                   if (world.rank() == 0)
                     said += fmt::format("{} {}\n", run->resumes ? "resumed" : "initialized", run->position.iteration);
                   return 0;
                 }});
  });
  return error == "no error" ? said : error;
}

TEST(Init, TakesTheWeightsOfAnyLayoutAndNothingElse) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(said_by_init([&](int) { return folder.path(); }, kLayouts.at("apart")),
              AllOf(HasSubstr("no complete checkpoint in " + folder.path() + ": the run is initialized\n"),
                    HasSubstr("initialized the weights of images.encoder, images.projector, language from " +
                              iteration_folder(saved_in("one"), kSavedAfter) + " (checkpoint.init.finetune)\n"),
                    HasSubstr("\ninitialized 0\n")));
}

// One rank does not see the checkpoint at first, as on some shared file systems. It must not make the run start anew.
TEST(Init, OneRankThatSeesTheCheckpointIsEnough) {
  const testing::TemporaryFolder folder;
  const std::string late = folder.path() + "/late";
  std::thread appears([&] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    fs::create_directory_symlink(saved_in("apart"), late);
  });
  const std::string said =
      said_by_init([&](int rank) { return rank == 0 ? late : saved_in("apart"); }, {.language = {.dp = 2}});
  appears.join();
  EXPECT_THAT(said, AllOf(HasSubstr("not all ranks see iteration 1 of "), HasSubstr("\nresumed 1\n")));
}

TEST_F(DamagedCheckpoint, IsNeverInitializedAgain) {
  const auto said = [&](LoadFallback fallback) { return said_by_init([&](int) { return root(); }, layout, fallback); };
  flip_bit("__1_0.distcp");
  EXPECT_THAT(said(LoadFallback::Never), AllOf(HasSubstr("__1_0.distcp"), Not(HasSubstr("initialized"))));
  EXPECT_THAT(said(LoadFallback::Always), HasSubstr("\nresumed 4\n"));
  for (const int iteration : {4, 5}) fs::remove(iteration_folder(root(), iteration) + "/.metadata");
  for (const LoadFallback fallback : {LoadFallback::Never, LoadFallback::Always})
    EXPECT_THAT(said(fallback), AllOf(HasSubstr(".metadata"), Not(HasSubstr("initialized"))));
  fs::remove(root() + "/latest_checkpointed_iteration.txt");
  for (const LoadFallback fallback : {LoadFallback::Never, LoadFallback::Always})
    EXPECT_THAT(said(fallback), AllOf(HasSubstr("it is damaged"), Not(HasSubstr("initialized"))));
  // What a killed first save leaves is no checkpoint.
  fs::rename(iteration_folder(root(), 4), partial_folder(root(), 4));
  fs::remove_all(iteration_folder(root(), 5));
  EXPECT_THAT(said(LoadFallback::Always), HasSubstr("\ninitialized 0\n"));
}

// A schedule of another length would change the learning rate at once.
TEST(Checkpoint, AnotherScheduleIsRefusedUnlessOneIsChosen) {
  CheckpointConfig config = {.load = saved_in("one")};
  const auto rate_after_load = [&] {
    double rate = 0;
    testing::train({.colocated = true},
                   {.steps = 0,
                    .change = [](TrainingConfig& training) { training.schedule.lr_decay_steps *= 2; },
                    .start =
                        [&](Training& training, World& world) {
                          load_checkpoint(config, training, world, kSilent);
                          EXPECT_EQ(training.schedule().num_steps, kSavedAfter * kGlobalBatch);
                          rate = training.schedule().learning_rate();
                          return 0;
                        }});
    return rate;
  };
  EXPECT_THAT(error_of([&] { rate_after_load(); }),
              AllOf(HasSubstr("lr_decay_steps is 48 in the checkpoint and 96 in this run"),
                    HasSubstr("--override-opt-param-scheduler"), HasSubstr("--use-checkpoint-opt-param-scheduler")));
  LrSchedule schedule = testing::config_of({}).schedule;
  schedule.num_steps = kSavedAfter * kGlobalBatch;
  config.scheduler = ResumeWith::Checkpoint;
  EXPECT_EQ(rate_after_load(), schedule.learning_rate());
  schedule.lr_decay_steps *= 2;
  config.scheduler = ResumeWith::Recipe;
  EXPECT_EQ(rate_after_load(), schedule.learning_rate());
}

// A new run must not replace another run's checkpoints, nor resume while that run is alive.
TEST(Checkpoint, AFolderOfAnotherRunIsRefused) {
  const testing::TemporaryFolder folder;
  const auto start = [&](const CheckpointConfig& config) {
    return error_of<std::exception>([&] {
      testing::train({}, {.steps = 0, .end = [&](Training& training, World& world) {
                            const CheckpointSaver saver(config, training, world, 0, kSilent);
                          }});
    });
  };
  const std::string root = folder.path() + "/run", in_it = iteration_folder(root, kSavedAfter);
  train_and_save({.colocated = true}, {.save = root});
  EXPECT_THAT(start({.save = root}), AllOf(HasSubstr(fmt::format("up to iteration {},", kSavedAfter)),
                                           HasSubstr("--load " + root), HasSubstr("--overwrite-checkpoints")));
  EXPECT_THAT(start({.save = root, .load = folder.path() + "/other"}), HasSubstr("another run"));
  EXPECT_THAT(start({.save = root, .load = root, .finetune = true}), HasSubstr("another run"));
  for (const CheckpointConfig& config : std::vector<CheckpointConfig>{
           {.save = root, .load = root + "/"}, {.save = root, .load = in_it}, {.save = root, .overwrite = true}})
    EXPECT_EQ(start(config), "no error");
  const SaveLock lock(root);
  EXPECT_THAT(start({.save = root, .load = root}), HasSubstr("another run saves to"));
}

// With space for a bit more than two checkpoints, and one to keep: leftovers of a killed save are removed before the
// next save writes.
TEST(Checkpoint, WhatAKilledSaveLeftIsGoneBeforeTheNextWrites) {
  const testing::TemporaryFolder folder;
  const CheckpointConfig config = {.save = folder.path(), .keep_last = 1, .load = folder.path()};
  train_and_save({.colocated = true}, config);
  // One save was killed after it was published and before the old one was removed, another one while it was writing.
  const std::string saved = iteration_folder(folder.path(), kSavedAfter), older = iteration_folder(folder.path(), 0);
  fs::copy(saved, older);
  fs::copy(saved, partial_folder(folder.path(), 6));
  testing::train({.colocated = true}, {.steps = 0, .end = [&](Training& training, World& world) {
                                         CheckpointSaver saver(config, training, world, 0, kSilent);
                                         EXPECT_FALSE(fs::exists(partial_folder(folder.path(), 6)));
                                         EXPECT_EQ(iterations_in(folder.path()).size(), 2u) << "one may be damaged";
                                         saver.save({.position = {8, 0}, .schedule = training.schedule()}, kSeed);
                                         EXPECT_FALSE(fs::exists(older));
                                         saver.finish();
                                       }});
  EXPECT_EQ(iterations_in(folder.path()), std::vector<std::int64_t>{8});
}

TEST(Checkpoint, OldCheckpointsAreRemoved) {
  const testing::TemporaryFolder folder;
  testing::train({}, {.steps = 1, .end = [&](Training& training, World& world) {
                        CheckpointSaver saver({.save = folder.path(), .keep_last = 2}, training, world, 0, kSilent);
                        for (const std::int64_t iteration : {1, 2, 3, 4})
                          saver.save({.position = {iteration, 0}, .schedule = training.schedule()}, kSeed);
                        saver.finish();
                      }});
  EXPECT_EQ(iterations_in(folder.path()), (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(latest_iteration(folder.path()), 4);
}

}  // namespace
}  // namespace braid
