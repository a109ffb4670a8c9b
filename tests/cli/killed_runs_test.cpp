// A whole run is killed at a file operation of its saves: the same command resumes it, with the losses of a run that
// was never killed, and leaves nothing behind. By default one operation is tested; BRAID_TEST_EVERY_OPERATION=1 tests
// all from the first on, for some minutes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/strings.h"
#include "ckpt/checkpoint_files.h"
#include "data/draw/data_set.h"
#include "support/operation_counter.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using testing::Finished;
using testing::OperationCounter;

constexpr int kIterations = 6;

class KilledRuns : public ::testing::Test {
 protected:
  std::string root() const { return folder_.path() + "/ckpt"; }

  using Words = std::vector<std::string>;

  Finished train(const std::map<std::string, std::string>& env) const { return train(recipe_, env); }
  Finished train(const std::string& recipe, const std::map<std::string, std::string>& env) const {
    return train(recipe, {"--load", root()}, env);
  }
  Finished train(const std::string& recipe, const Words& start, const std::map<std::string, std::string>& env) const {
    Words words = {testing::built_program("braid"), "train", recipe,           "--save", root(), "--save-interval", "2",
                   "--checkpoint.keep_last",        "1",     "--metrics-file", metrics()};
    words.insert(words.end(), start.begin(), start.end());
    return testing::run_program(words, env);
  }

  // By iteration; if an iteration was trained twice, the last loss counts.
  std::map<int, double> losses() const {
    std::map<int, double> losses;
    for (const std::string& line : split(testing::read_file(metrics()), '\n')) {
      const auto entry = nlohmann::json::parse(line, nullptr, false);
      if (entry.is_object() && entry.contains("lm_loss")) losses[entry["iteration"]] = entry["lm_loss"];
    }
    return losses;
  }

  void clear() const {
    fs::remove_all(root());
    fs::remove(metrics());
  }

  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(root()))
      names.insert(fs::relative(entry.path(), root()).string());
    return names;
  }

  std::string metrics() const { return folder_.path() + "/metrics.jsonl"; }

  const testing::TemporaryFolder folder_;
  const std::string recipe_ = folder_.write("recipe.yaml", R"(
topology: {colocated: true, modules: {images: {kind: encoder, dp: 2}, language: {kind: language, dp: 2}}}
model: {provider: tiny-vlm, dtype: float32}
data: {sequence_length: 64}
train: {iterations: 6, micro_batch: 1, global_batch: 2, lr: 1e-3}
)");
};

TEST_F(KilledRuns, GoOnByThemselvesWithTheSameLosses) {
  OperationCounter counter(folder_.path() + "/counter");
  const auto env = counter.environment(root());
  counter.kill_at(0);
  const Finished whole = train(env);
  ASSERT_EQ(whole.exit_code, 0) << whole.out << whole.err;
  const std::map<int, double> expected = losses();
  ASSERT_EQ(expected.size(), kIterations);
  const std::set<std::string> wanted = names();
  const std::int64_t operations = counter->count;
  EXPECT_GT(operations, 100);
  std::vector<std::int64_t> tried;
  if (const char* first = std::getenv("BRAID_TEST_EVERY_OPERATION"))
    for (std::int64_t operation = std::atoi(first); operation <= operations; ++operation) tried.push_back(operation);
  else
    tried = {operations * 2 / 3};
  int killed = 0;
  for (const std::int64_t operation : tried) {
    clear();
    counter.kill_at(operation);
    const Finished first = train(env);
    killed += first.exit_code != 0;
    counter.kill_at(0);
    const Finished second = train(env);
    const std::string what = "killed at operation " + std::to_string(operation) + ":\n";
    EXPECT_EQ(second.exit_code, 0) << what << second.out << second.err;
    EXPECT_EQ(losses(), expected) << what << second.out;
    EXPECT_EQ(names(), wanted) << what;
  }
  printf("%d runs killed, at %zu of %ld operations\n", killed, tried.size(), operations);
  EXPECT_GT(killed, 0);
}

// Killed at any operation of its saves, a run takes the weights of its init again only if it has no complete
// checkpoint.
TEST_F(KilledRuns, AreInitializedOnlyUntilTheFirstCheckpointIsComplete) {
  const std::string source = folder_.path() + "/source";
  ASSERT_EQ(
      testing::run_program({testing::built_program("braid"), "train", recipe_, "--save", source, "--train-iters", "1"})
          .exit_code,
      0);
  const Words init = {"--checkpoint.init.finetune", source};
  OperationCounter counter(folder_.path() + "/counter");
  const auto env = counter.environment(root());
  counter.kill_at(0);
  const Finished whole = train(recipe_, init, env);
  ASSERT_EQ(whole.exit_code, 0) << whole.out << whole.err;
  const std::map<int, double> expected = losses();
  const std::int64_t operations = counter->count;
  std::set<bool> resumed;
  for (const std::int64_t operation : {operations / 8, operations / 2}) {
    clear();
    counter.kill_at(operation);
    EXPECT_NE(train(recipe_, init, env).exit_code, 0);
    counter.kill_at(0);
    const bool has_checkpoint = !iterations_in(root()).empty();
    const Finished second = train(recipe_, init, env);
    EXPECT_EQ(second.exit_code, 0) << second.out << second.err;
    EXPECT_EQ(second.out.find("initialized the weights") == std::string::npos, has_checkpoint) << second.out;
    EXPECT_EQ(second.out.find("the run continues after") != std::string::npos, has_checkpoint) << second.out;
    EXPECT_EQ(losses(), expected) << second.out;
    resumed.insert(has_checkpoint);
  }
  EXPECT_EQ(resumed.size(), 2u) << "one kill before the first checkpoint was complete, one after it";
}

// A rank is killed during a save; the run continues with another number of replicas, which share the same two lanes of
// packed samples.
TEST_F(KilledRuns, GoOnWithAnotherNumberOfReplicas) {
  const std::string data = folder_.path() + "/data";
  draw_data_set({.folder = data, .train = 60, .val = 10, .per_shard = 20});
  const auto with_dp = [&](int dp) {
    return folder_.write(fmt::format("dp{}.yaml", dp), fmt::format(R"(
topology: {{colocated: true, modules: {{images: {{kind: encoder, dp: {0}}}, language: {{kind: language, dp: {0}}}}}}}
model: {{provider: tiny-vlm, dtype: float64}}
data: {{path: {1}, tokenizer: {1}/tokenizer, prompt_format: chatml, sequence_length: 64}}
loader: {{lanes: 2, packing_buffer: 6}}
train: {{iterations: {2}, micro_batch: 1, global_batch: 2, lr: 1e-3}}
)",
                                                                   dp, data, kIterations));
  };
  OperationCounter counter(folder_.path() + "/counter");
  const auto env = counter.environment(root());
  counter.kill_at(0);
  const Finished whole = train(with_dp(2), env);
  ASSERT_EQ(whole.exit_code, 0) << whole.out << whole.err;
  const std::map<int, double> expected = losses();
  const std::int64_t operations = counter->count;
  clear();
  counter.kill_at(operations * 2 / 3);
  EXPECT_NE(train(with_dp(2), env).exit_code, 0);
  counter.kill_at(0);
  const Finished rest = train(with_dp(1), env);
  ASSERT_EQ(rest.exit_code, 0) << rest.out << rest.err;
  EXPECT_THAT(rest.out, ::testing::HasSubstr("the run continues after iteration"));
  const std::map<int, double> got = losses();
  ASSERT_EQ(got.size(), kIterations);
  for (const auto& [iteration, loss] : expected)
    EXPECT_NEAR(got.at(iteration), loss, 1e-10 * loss) << "iteration " << iteration;
}

// Damage is reported before any rank starts; a job that Slurm has requeued resumes from an older checkpoint if the
// newest is damaged.
TEST_F(KilledRuns, StartAgainAsTheyShould) {
  const auto train_with = [&](std::vector<std::string> more, const std::map<std::string, std::string>& env = {}) {
    more.insert(more.begin(), {testing::built_program("braid"), "train", recipe_, "--save", root()});
    return testing::run_program(more, env);
  };
  ASSERT_EQ(train_with({"--save-interval", "5"}).exit_code, 0);
  const Finished fresh = train_with({});
  EXPECT_EQ(fresh.exit_code, 2);
  EXPECT_THAT(fresh.err, ::testing::HasSubstr("--overwrite-checkpoints"));
  EXPECT_THAT(fresh.out, ::testing::Not(::testing::HasSubstr("2 ranks")));
  fs::resize_file(root() + "/iter_0000006/common.pt", 100);
  const Finished refused = train_with({"--load", root()});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, ::testing::HasSubstr("iteration 5 in " + root() + " looks complete"));
  const Finished requeued = train_with({"--load", root()}, {{"SLURM_JOB_ID", "42"}, {"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(requeued.exit_code, 0) << requeued.err;
  EXPECT_THAT(requeued.out, ::testing::AllOf(::testing::HasSubstr("WARNING: iteration 6 cannot be loaded"),
                                             ::testing::HasSubstr("continues after iteration 5")));
  EXPECT_GT(fs::file_size(root() + "/iter_0000006/common.pt"), 100u) << "it was saved again";
}

}  // namespace
}  // namespace braid
