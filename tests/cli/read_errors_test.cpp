// System errors while a run reads its data set, on one rank of several: the run ends and names the cause, or its losses
// are those of a run without the error, to the last bit. BRAID_TRIALS sets the number of trials.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "cli/cli_support.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using testing::Finished;
using Words = std::vector<std::string>;

constexpr int kIterations = 4, kSaved = 2;

const char* const kRecipe = R"(
topology: {modules: {images: {kind: encoder}, language: }}
model: {dtype: float32, language: {pattern: "*-"}, images: {encoder: {layers: 1}}}
data: {prompt_format: chatml, sequence_length: 128}
loader: {lanes: 4, shuffle_buffer: 4}
train: {iterations: 4, micro_batch: 1, global_batch: 8, lr: 1e-2}
log: {interval: 1}
dist: {device: cpu}
)";

struct Layout {
  Words flags;
  std::vector<int> leaders;  // ranks that read: of the encoder, then of the language model
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {{}, {0, 1}},
      {{"--llm-dp", "2"}, {0, 1, 2}},
      {{"--encoder-dp", "2", "--llm-tp", "2", "--micro-batch-size", "2"}, {0, 1, 2}},
      {{"--topology.colocated", "true", "--encoder-dp", "2", "--llm-dp", "2"}, {0, 1}},
  };
  return all;
}

struct Trial {
  std::size_t layout;
  bool packs, resumes;
  int rank = 0, error = 0;
  std::string call{};
  long from = 0, count = 0;

  std::string text() const {
    return fmt::format("layout {}, packs {}, resumes {}, rank {}: {} calls of '{}' fail from number {} on: {}", layout,
                       packs, resumes, rank, count, call, from, std::strerror(error));
  }
};

Trial draw(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return random() % n; };
  Trial trial{.layout = below(layouts().size()), .packs = below(2) == 0, .resumes = below(3) == 0};
  const std::vector<int>& leaders = layouts()[trial.layout].leaders;
  trial.rank = leaders[below(leaders.size())];
  const bool lasts = seed % 3 == 0;
  trial.call = std::vector<std::string>{"open", "read", "read", "end", "short"}[below(lasts ? 4 : 5)];
  trial.error = trial.call == "open" ? std::vector<int>{EMFILE, EIO, ESTALE, ENOMEM, ENOENT}[below(5)]
                                     : std::vector<int>{EIO, ESTALE, ENOMEM}[below(3)];
  trial.from = static_cast<long>(below(trial.call == "open" ? 8 : 60));
  trial.count = lasts ? 1000000 : static_cast<long>(1 + below(3));
  return trial;
}

class ReadErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    recipe_ = folder_.write("recipe.yaml", kRecipe);
    const Finished drawn = braid({"data", "draw", set(), "--samples", "90", "--val", "10", "--per-shard", "10"});
    ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  }

  std::string set() const { return folder_.path() + "/set"; }

  Finished train(const Trial& trial, Words flags, std::map<std::string, std::string> env = {}) const {
    fs::remove(folder_.path() + "/metrics.jsonl");
    Words words = {"train",
                   recipe_,
                   "--data-path",
                   set(),
                   "--tokenizer-model",
                   set() + "/tokenizer",
                   "--metrics-file",
                   folder_.path() + "/metrics.jsonl"};
    for (const Words& more : {layouts()[trial.layout].flags, flags})
      words.insert(words.end(), more.begin(), more.end());
    if (trial.packs) words.insert(words.end(), {"--packing-buffer-size", "6"});
    return braid(words, env);
  }

  // By iteration, as the last run wrote them.
  std::map<int, double> losses() const {
    std::map<int, double> losses;
    for (const std::string& line : split(testing::read_file(folder_.path() + "/metrics.jsonl"), '\n'))
      if (const auto record = nlohmann::json::parse(line, nullptr, false); record.contains("lm_loss"))
        losses[record["iteration"].get<int>()] = record["lm_loss"].get<double>();
    return losses;
  }

  // A run without errors, with a checkpoint on the way.
  const std::map<int, double>& undisturbed(const Trial& trial) {
    const auto key = std::pair(trial.layout, trial.packs);
    if (const auto found = expected_.find(key); found != expected_.end()) return found->second;
    const Finished run = train(trial, {"--save", saves(trial), "--save-interval", std::to_string(kSaved)});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const auto expected = losses();
    EXPECT_EQ(expected.size(), std::size_t{kIterations});
    return expected_[key] = expected;
  }
  std::string saves(const Trial& trial) const {
    return fmt::format("{}/saved-{}-{}", folder_.path(), trial.layout, trial.packs);
  }

  // Whether the run ended.
  bool check(const Trial& trial) {
    auto expected = undisturbed(trial);
    const Words resume = {"--load", fmt::format("{}/iter_{:07}", saves(trial), kSaved)};
    const Finished run = train(trial, trial.resumes ? resume : Words{},
                               {{"LD_PRELOAD", testing::built_program("libfailing_reads.so")},
                                {"BRAID_FAIL_RANK", std::to_string(trial.rank)},
                                {"BRAID_FAIL_PATH", set() + "/train"},
                                {"BRAID_FAIL_CALL", trial.call},
                                {"BRAID_FAIL_ERRNO", std::to_string(trial.error)},
                                {"BRAID_FAIL_FROM", std::to_string(trial.from)},
                                {"BRAID_FAIL_COUNT", std::to_string(trial.count)}});
    const std::string cause = trial.call == "end" ? "it has been cut" : std::strerror(trial.error);
    if (run.exit_code != 0) {
      EXPECT_THAT(run.err, ::testing::HasSubstr("root cause")) << trial.text();
      EXPECT_THAT(run.err, ::testing::HasSubstr(cause)) << trial.text();
      EXPECT_THAT(run.err, ::testing::HasSubstr("/set/train_")) << trial.text();
      EXPECT_GT(trial.count, 3) << "a short disturbance ended the run: " << trial.text() << run.err;
      return true;
    }
    if (trial.resumes) expected.erase(expected.begin(), expected.upper_bound(kSaved));
    EXPECT_EQ(losses(), expected) << trial.text() << run.out;
    return false;
  }

  testing::TemporaryFolder folder_;
  std::string recipe_;
  std::map<std::pair<std::size_t, bool>, std::map<int, double>> expected_;
};

TEST_F(ReadErrors, EndTheRunOrChangeNothing) {
  const char* given = std::getenv("BRAID_TRIALS");
  const int trials = given ? std::atoi(given) : 4;
  int ended = 0;
  for (int seed = 0; seed < trials; ++seed) ended += check(draw(static_cast<unsigned>(seed)));
  std::printf("%d of %d runs ended with the cause; the others had the losses of undisturbed runs\n", ended, trials);
  EXPECT_GT(ended, 0);
  EXPECT_LT(ended, trials);
}

// Files that are read once, at the start. A server that fails for a moment costs nothing; one that stays away ends the
// run.
TEST_F(ReadErrors, OfSmallFilesAreTriedAgainAndNamed) {
  const Trial first = {.layout = 0, .packs = false, .resumes = false, .rank = 1, .error = EIO};
  const auto expected = undisturbed(first);
  const auto disturbed = [&](const char* file, const char* call, int error, const char* count) {
    return train(first, {},
                 {{"LD_PRELOAD", testing::built_program("libfailing_reads.so")},
                  {"BRAID_FAIL_RANK", "1"},
                  {"BRAID_FAIL_PATH", file},
                  {"BRAID_FAIL_CALL", call},
                  {"BRAID_FAIL_ERRNO", std::to_string(error)},
                  {"BRAID_FAIL_FROM", "0"},
                  {"BRAID_FAIL_COUNT", count}});
  };
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "dataset.yaml"})
    for (const char* call : {"open", "read"}) {
      const Finished run = disturbed(file, call, *call == 'o' ? EMFILE : ESTALE, "1");
      EXPECT_EQ(run.exit_code, 0) << file << run.err;
      EXPECT_EQ(losses(), expected) << file;
    }
  const Finished run = disturbed("tokenizer.json", "read", EIO, "1000000");
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.err, ::testing::HasSubstr("cannot read '" + set() +
                                            "/tokenizer/tokenizer.json': Input/output error (tried 5 times)"));
}

}  // namespace
}  // namespace braid
