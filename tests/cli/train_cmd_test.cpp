// braid train, from its flags to its end.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <regex>
#include "base/socket.h"
#include "base/strings.h"
#include "cli/cli_support.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;

// Of kShortRecipe, where their number does not matter.
const std::string kTwoRanks = " --encoder-dp 1 --llm-tp 1 --llm-dp 1";

std::vector<double> losses_in(const std::string& output) {
  std::vector<double> losses;
  for (const std::string& line : split(output, '\n')) {
    const std::size_t loss = line.find("lm loss: ");
    if (loss != std::string::npos) losses.push_back(std::stod(line.substr(loss + 9)));
  }
  return losses;
}

// Works without any environment variables: some BLAS builds need one to work at all. Also with a recipe from a pipe,
// which all ranks need but only the first reader gets.
TEST(TrainCommand, TrainWorksInAnEmptyEnvironmentFromAPipe) {
  TemporaryFolder folder;
  const std::string script =
      fmt::format("env -i {} train <(cat {}) --train-iters 2 --dist.hang_limit_s 60{}", testing::built_program("braid"),
                  folder.write("r.yaml", kShortRecipe), kTwoRanks);
  const Finished run = testing::run_program({"bash", "-c", script});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::string job = testing::built_program("braid") + " launch slurm <(echo) --dry-run";
  EXPECT_THAT(testing::run_program({"bash", "-c", job}).err,
              HasSubstr("can be read only by this command, but the job's ranks read"));
}

TEST(TrainCommand, TrainStartsItsRanksAndLogsInMegatronsFormat) {
  TemporaryFolder folder;
  const Finished run = braid({"train", folder.write("r.yaml", kShortRecipe), "--log-dir", folder.path() + "/logs",
                              "--metrics-file", folder.path() + "/metrics.jsonl", "--trace", folder.path() + "/trace",
                              "--tensorboard-dir", folder.path() + "/events", "--use-mcore-models"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::vector<double> losses = losses_in(run.out);
  EXPECT_THAT(run.out, HasSubstr("braid: 6 ranks: images on 0-1 (dp 2), language on 2-5 (tp 2, dp 2)\n"));
  EXPECT_THAT(run.out, AllOf(HasSubstr("braid: tiny-vlm in float32, 8 iterations of 16 samples, learning rate 0.01"),
                             Not(HasSubstr("global_batch: 16"))));
  EXPECT_THAT(testing::read_file(folder.path() + "/logs/recipe.yaml"), HasSubstr("global_batch: 16 "));
  EXPECT_THAT(run.err, AllOf(HasSubstr("these flags have no effect"),
                             HasSubstr("--use-mcore-models: each operator has only one")));
  ASSERT_EQ(losses.size(), 2u) << run.out;
  EXPECT_LT(losses[1], losses[0]);
  EXPECT_THAT(
      run.out,
      ContainsRegex("\n \\[[0-9-]+ [0-9:.]+\\] iteration        8/       8 \\| consumed samples:          128 "
                    "\\| elapsed time per iteration \\(ms\\): [0-9.]+ \\| throughput per rank \\(TFLOP/s/rank\\): "
                    "[0-9.]+ \\| tokens per rank \\(tokens/s/rank\\): [0-9.]+ \\| "
                    "learning rate: 1\\.000000E-02 \\| "
                    "global batch size:    16 \\| lm loss: [0-9.E+-]+ \\| loss scale: 1\\.0 \\| grad norm: [0-9.]+ \\| "
                    "number of skipped iterations:   0 \\| number of nan iterations:   0 \\|"));
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("time (ms) | images   | bridge wait (language):"),
                    HasSubstr("time (ms) | language | bridge wait (images):"), HasSubstr("all iterations done")));
  EXPECT_THAT(testing::read_file(folder.path() + "/logs/rank_2.log"), HasSubstr("iteration        8/"));
  EXPECT_THAT(testing::read_file(folder.path() + "/metrics.jsonl"), HasSubstr("\"iteration\":8,"));
  EXPECT_THAT(testing::read_file(folder.path() + "/trace/trace_rank_00000.json"),
              AllOf(HasSubstr("images backward"), HasSubstr("host time (us)")));
  const json merged = json::parse(testing::read_file(folder.path() + "/trace/trace.json"));
  std::set<int> ranks;
  for (const json& event : merged) ranks.insert(event["pid"].get<int>());
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(run.out, AllOf(HasSubstr(" comm (ms) | images   | bridge:"), HasSubstr("gradients:")));
  EXPECT_THAT(testing::run_program({"ls", folder.path() + "/events"}).out, HasSubstr("events.out.tfevents."));

  // As after a run that was killed.
  std::filesystem::resize_file(folder.path() + "/trace/trace_rank_00003.json", 300);
  std::filesystem::remove(folder.path() + "/trace/trace.json");
  const Finished again = braid({"trace", "merge", folder.path() + "/trace"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, AllOf(ContainsRegex("^[0-9]+ events of 6 ranks \\(0-5\\) in .*/trace/trace.json\n"),
                               HasSubstr("whole event: the files of ranks 3\n")));
  EXPECT_TRUE(json::accept(testing::read_file(folder.path() + "/trace/trace.json")));
  const Finished wrong = braid({"trace", "merge", folder.path()});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("has no traces of ranks"));
}

TEST(TrainCommand, MegatronsFlagsProfileSomeIterationsOfSomeRanks) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe), profiles = folder.path() + "/profiles";
  const Finished run = braid({"train", recipe, "--train-iters", "4", "--profile", "--profile-step-start", "1",
                              "--profile-step-end", "3", "--profile-ranks", "0,4", "--log.profile.dir", profiles});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* rank : {"00000", "00004"}) {
    const std::string path = fmt::format("{}/profile_rank_{}.json", profiles, rank);
    EXPECT_THAT(run.out, HasSubstr("profile of 2 iterations: " + path));
    const json profile = json::parse(testing::read_file(path));
    std::set<std::string> names;
    for (const json& event : profile.at("traceEvents")) names.insert(event.value("name", ""));
    for (const char* name : {"iteration 2", "iteration 3", "aten::mm"}) EXPECT_EQ(names.count(name), 1u) << name;
    for (const char* name : {"iteration 1", "iteration 4"}) EXPECT_EQ(names.count(name), 0u) << name;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(profiles), {}), 2);
  EXPECT_THAT(braid({"train", recipe, "--profile", "--profile-ranks", "0", "4"}).err,
              HasSubstr("write --profile-ranks 0,3"));
  EXPECT_THAT(braid({"train", recipe, "--profile"}).err, HasSubstr("step_start=10, but the run ends with iteration 8"));
}

// All twenty layers, narrow: two encoder replicas and a language model with three pipeline stages, eight processes.
TEST(TrainCommand, TheTwentyLayerModelTrains) {
  const Finished run = braid({"train", BRAID_SOURCE_DIR "/recipes/nemotron-vlm-20l-small.yaml", "--train-iters", "3",
                              "--seq-length", "64", "--log-interval", "1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::vector<double> losses = losses_in(run.out);
  ASSERT_EQ(losses.size(), 3u) << run.out;
  EXPECT_LT(losses.back(), losses.front());
}

// Asked to stop, a run ends after its iteration, says why, and saves. A closed terminal or Ctrl-C is in its exit code,
// also if only one rank got the signal.
TEST(TrainCommand, TrainStopsAtALimitOrASignal) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  const Finished interval = braid({"train", recipe, "--exit-interval", "3", "--encoder-dp", "1", "--llm-tp", "1"});
  EXPECT_EQ(interval.exit_code, 0) << interval.err;
  EXPECT_THAT(interval.out, AllOf(HasSubstr("iteration        3/       8"), HasSubstr("exit_interval=3")));
  const auto run_until = [&](const std::string& name, const std::string& kill) {
    const std::string metrics = folder.path() + "/" + name, save = folder.path() + "/ckpt_" + name;
    return testing::run_program({"bash", "-c",
                                 "env --default-signal=HUP,INT " + testing::built_program("braid") + " train " +
                                     recipe + kTwoRanks + " --train-iters 100000 --save " + save + " --metrics-file " +
                                     metrics + " & while [ ! -s " + metrics + " ]; do sleep 0.1; done; " + kill +
                                     "; wait $!"});
  };
  const Finished one_rank = run_until("one", "kill -INT $(pgrep -n -P $!)");
  EXPECT_EQ(one_rank.exit_code, 128 + SIGINT) << one_rank.err;
  EXPECT_THAT(one_rank.out, AllOf(ContainsRegex("run ended +SIGINT"), HasSubstr("saved iteration ")));
  EXPECT_THAT(one_rank.err, Not(HasSubstr("root cause")));
  const Finished signal = run_until("all", "kill -HUP $!");
  EXPECT_EQ(signal.exit_code, 128 + SIGHUP) << signal.err;
  EXPECT_THAT(signal.out,
              AllOf(ContainsRegex("run ended +SIGHUP \\(terminal closed\\)"), HasSubstr("saved iteration ")));
  EXPECT_THAT(signal.err,
              ContainsRegex("braid: SIGHUP: finishing (the current iteration|iteration [0-9]+), then saving to "));
}

// An evaluation that would take hours is left. Its iteration is saved, and no other one is run.
TEST(TrainCommand, ASignalEndsAnEvaluation) {
  TemporaryFolder folder;
  const std::string metrics = folder.path() + "/metrics", save = folder.path() + "/ckpt";
  const Finished run = testing::run_program(
      {"bash", "-c",
       testing::built_program("braid") + " train " + folder.write("r.yaml", kShortRecipe) + kTwoRanks +
           " --train.eval_interval 2 --train.eval_iterations 1000000 --save " + save + " --metrics-file " + metrics +
           " & until grep -q '\"iteration\":2' " + metrics + "; do sleep 0.1; done; sleep 1; kill -TERM $!; wait $!"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err,
              HasSubstr("braid: SIGTERM: ending the evaluation of iteration 2 early, then saving to '" + save));
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("iteration 2 is not evaluated: SIGTERM"), HasSubstr("iteration        2/       8"),
                    HasSubstr("saved iteration 2 "), ContainsRegex("run ended +SIGTERM")));
  EXPECT_THAT(run.out, Not(HasSubstr("validation loss")));
}

TEST(TrainCommand, ALossThatStaysNotANumberEndsTheRun) {
  TemporaryFolder folder;
  const Finished run =
      braid({"train", folder.write("r.yaml", kShortRecipe), "--lr", "1e30", "--clip-grad", "0", "--train.max_skipped",
             "2", "--train-iters", "50", "--encoder-dp", "1", "--llm-tp", "1", "--llm-dp", "1"});
  EXPECT_EQ(run.exit_code, 1) << run.out;
  EXPECT_THAT(run.err, AllOf(HasSubstr("root cause"), HasSubstr("2 steps in a row were skipped"),
                             HasSubstr("train.max_skipped=2")));
}

TEST(TrainCommand, MegatronsFlagsAreRecipeKeys) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  const Finished run = braid({"train", recipe, "--print-recipe", "--llm-tp", "4", "--bf16", "--overlap-grad-reduce",
                              "--no-overlap-grad-reduce", "--training-stage", "stage2", "--min-lr=1e-3"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("tp: 4"), HasSubstr("dtype: bfloat16"), HasSubstr("stage: stage2"),
                             HasSubstr("overlap_grad_reduce: false"), HasSubstr("min_lr: 0.001")));
  EXPECT_THAT(braid({"train", recipe, "--no-overlap-grad-reduce=true"}).err,
              AllOf(HasSubstr("--no-overlap-grad-reduce takes no value"),
                    HasSubstr("leave the value out; the flag means --optimizer.overlap_grad_reduce=false\n")));
  for (const char* flag : {"--freeze-ViT", "--freeze-vit"})
    EXPECT_THAT(braid({"train", recipe, "--print-recipe", flag}).out, HasSubstr("freeze_encoders: true"));
  for (const char* flag : {"--freeze-LM", "--freeze-lm"})
    EXPECT_THAT(braid({"train", recipe, "--print-recipe", flag}).out, HasSubstr("freeze_language: true"));
}

// Every key, in its section, with its type, its default and Megatron's name.
TEST(TrainCommand, HelpOfTrainHasEveryRecipeKey) {
  const std::string help = braid({"train", "--help"}).out;
  for (const char* section : {"topology", "model", "data", "loader", "train", "optimizer", "loss_scale", "checkpoint",
                              "log", "stop", "dist", "cluster"})
    EXPECT_THAT(help, HasSubstr(std::string("\n") + section + "\n  --" + section + "."));
  const std::string words = std::regex_replace(help, std::regex("\\s+"), " ");  // independent of line wrapping
  for (const char* part :
       {" --train.lr NUMBER highest learning rate [0.0001]; --lr ", "(bfloat16), --fp32 (float32) ",
        "--topology.modules.NAME.tp NUMBER", "--encoder-tp; language: --llm-tp", "--dist.device NAME"})
    EXPECT_THAT(words, HasSubstr(part));
  for (const std::string& line : split(help, '\n')) EXPECT_LE(line.size(), 80u) << line;
}

TEST(TrainCommand, ALowerLearningRateTakesTheLowestWithIt) {
  for (const char* name : {"tiny-vlm", "tiny-vlm-colocated", "tiny-omni", "tiny-llava"}) {
    const std::string recipe = std::string(BRAID_SOURCE_DIR "/recipes/") + name + ".yaml";
    const Finished run = braid({"train", recipe, "--print-recipe", "--train.lr", "1e-4"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("min_lr: 1e-05"));
  }
}

TEST(TrainCommand, PrintRecipeShowsOverridesAndStops) {
  TemporaryFolder folder;
  const Finished run = braid(
      {"train", folder.write("r.yaml", kShortRecipe), "--print-recipe", "--lr", "0.25", "--train.seed=5000000000"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, AllOf(HasSubstr("lr: 0.25"), HasSubstr("seed: 5000000000")));
}

TEST(TrainCommand, RecipeKeysMayStandBeforeTheRecipe) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  const Finished run = braid({"train", "--lr", "0.25", "--train.seed", "7", recipe, "--print-recipe"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("lr: 0.25"), HasSubstr("seed: 7")));
  EXPECT_EQ(braid({"plan", "show", "--topology.modules.language.dp", "4", recipe}).exit_code, 0);
}

TEST(TrainCommand, TrainRefusesBadInputBeforeAnyRankStarts) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  const Finished problems =
      braid({"train", recipe, "--global-batch-size", "17", "--topology.modules.language.pp", "2"});
  EXPECT_EQ(problems.exit_code, 2);
  EXPECT_THAT(problems.err, HasSubstr("global_batch=17"));
  EXPECT_THAT(problems.out, Not(HasSubstr("6 ranks")));
  EXPECT_THAT(braid({"train", recipe, "--trian-iters", "3"}).err, HasSubstr("did you mean --train-iters?"));
  EXPECT_THAT(braid({"train", recipe, "--fp8", "rowwise"}).err,
              AllOf(HasSubstr("unknown option --fp8\n"), HasSubstr("fix:   did you mean --model.fp8?\n")));
  EXPECT_THAT(braid({"train", recipe, "--silence-limit-s=9"}).err, HasSubstr("did you mean --dist.silence_limit_s?"));
  EXPECT_THAT(braid({"train", recipe, "--train.lr"}).err, HasSubstr("--train.lr needs a value"));
  EXPECT_THAT(braid({"train", recipe, "--save", "--load", "x"}).err, HasSubstr("--save needs a value"));
  EXPECT_THAT(braid({"train", recipe, "--lr", "abc"}).err, HasSubstr("where: command line, --lr (train.lr)\n"));
  EXPECT_THAT(braid({"train", recipe, "--lr", "0.1", "--llm-dp", "64"}).err,
              AllOf(HasSubstr("where: command line, --llm-dp, against "), HasSubstr(":8, train.global_batch\n")));
  EXPECT_THAT(braid({"train", recipe, "--seed", "-1"}).err, HasSubstr("train.seed=-1 must be at least 0"));
}

TEST(TrainCommand, TrainChecksTheWorldItWasStartedIn) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  const Finished lone = braid({"train", recipe}, {{"RANK", "0"}});
  EXPECT_EQ(lone.exit_code, 2);
  EXPECT_THAT(lone.err, HasSubstr("WORLD_SIZE is not set, although RANK is"));
  const Finished small = braid(
      {"train", recipe},
      {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(small.err, HasSubstr("topology has 6 ranks, but 4 were started"));
}

TEST(TrainCommand, ABusyMasterPortIsNamed) {
  TemporaryFolder folder;
  const Fd other = listen_tcp("", 0);
  const std::string port = std::to_string(local_port(other));
  const Finished run = braid(
      {"train", folder.write("r.yaml", "topology: {modules: {language: }}")},
      {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("port " + port), HasSubstr("in use"), HasSubstr("MASTER_PORT")));
}

// The backend can be chosen, and a choice that cannot work is the launcher's clear error.
TEST(TrainCommand, TrainTakesTheBackendItIsTold) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  EXPECT_EQ(braid({"train", recipe, "--train-iters", "2", "--dist.backend", "gloo", "--dist.device", "cpu"}).exit_code,
            0);
  const Finished nccl = braid({"train", recipe, "--dist.backend", "nccl"}, {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(nccl.exit_code, 2);
  EXPECT_THAT(nccl.err,
              AllOf(HasSubstr("braid: nccl needs 6 GPUs, one for each rank"), HasSubstr("fix:   use gloo or auto")));
}

// Under srun: ranks, address and port all come from SLURM_ variables.
TEST(TrainCommand, TrainRunsFromSlurmsVariables) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  const std::string program = testing::built_program("braid");
  const std::string script =
      "export SLURM_NTASKS=6 SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_NODELIST=localhost "
      "SLURM_TASKS_PER_NODE=6; "
      "for r in 0 1 2 3 4 5; do SLURM_PROCID=$r SLURM_LOCALID=$r " +
      program + " train " + recipe +
      " --dist.device cpu & pids=\"$pids $!\"; done; for p in $pids; do wait $p || exit 1; done";
  const Finished run = testing::run_program({"bash", "-c", script});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("iteration        8/       8"));
}

}  // namespace
}  // namespace braid
