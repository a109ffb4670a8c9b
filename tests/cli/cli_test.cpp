// The program as a person meets it in a terminal: exit codes, one clear message, help everywhere.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "base/socket.h"
#include "base/strings.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TemporaryFolder;

Finished braid(std::vector<std::string> arguments, const std::map<std::string, std::string>& env = {}) {
  arguments.insert(arguments.begin(), testing::built_program("braid"));
  return testing::run_program(arguments, env);
}

const char* const kRecipe = R"(
topology:
  modules:
    images: {kind: encoder, dp: 2}
    language: {tp: 2, dp: 2}
model: {dtype: float32, language: {pattern: "*-"}, images: {encoder: {layers: 1}}}
data: {sequence_length: 32}
train: {iterations: 8, micro_batch: 4, global_batch: 16, lr: 1e-2}
log: {interval: 4}
)";

std::vector<double> losses_in(const std::string& output) {
  std::vector<double> losses;
  for (const std::string& line : split(output, '\n')) {
    const std::size_t loss = line.find("lm loss: ");
    if (loss != std::string::npos) losses.push_back(std::stod(line.substr(loss + 9)));
  }
  return losses;
}

TEST(Cli, PlanScheduleChecksAndDraws) {
  const TemporaryFolder folder;
  const std::string recipe = folder.write("recipe.yaml", kRecipe), svg = folder.path() + "/schedule.svg";
  const Finished plan =
      braid({"plan", "schedule", recipe, "--svg", svg, "--freeze-vit", "--freeze-projection", "--train.prefetch", "1"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("6 ranks, 2 microbatches"), HasSubstr("images"), HasSubstr("86 %")));
  EXPECT_EQ(testing::run_program({"grep", "-c", "language forward, microbatch", svg}).out, "8\n");
  EXPECT_THAT(braid({"plan", "schedule", recipe, "--svg", svg, "--training-stage", "stage1"}).out,
              ContainsRegex("images +0 +48 %.*\nlanguage +0 +76 %"));
  EXPECT_EQ(testing::run_program({"grep", "-c", "images backward (projector only), microbatch", svg}).out, "4\n");
}

TEST(Cli, HelpListsOnlyWhatWorks) {
  const Finished help = braid({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"train", "plan", "model", "run", "launch", "doctor", "ckpt", "forward"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    const Finished own = braid({command, "--help"});
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_THAT(own.out, HasSubstr("Usage: "));
  }
  EXPECT_THAT(braid({"plan", "show", "--help"}).out, HasSubstr("--rank"));
  const std::size_t list = help.out.find("Subcommands:");
  ASSERT_NE(list, std::string::npos);
  int listed = 0;
  for (const std::string& line : split(help.out.substr(list), '\n')) listed += line.rfind("  ", 0) == 0;
  EXPECT_EQ(listed, 8) << help.out;
}

// Help, plans, scripts for Slurm and diagnoses answer at once, also where libtorch's libraries cannot be loaded.
TEST(Cli, CommandsWithoutTensorsDoNotLoadLibtorch) {
  const std::map<std::string, std::string> list_libraries = {{"LD_TRACE_LOADED_OBJECTS", "1"}};
  EXPECT_THAT(braid({}, list_libraries).out,
              AllOf(HasSubstr("libfmt"), Not(HasSubstr("libtorch")), Not(HasSubstr("libc10"))));
  EXPECT_THAT(testing::run_program({testing::built_program("braid-tensors")}, list_libraries).out,
              HasSubstr("libtorch_cpu"));
}

TEST(Cli, BraidAloneSaysWhatIsMissing) {
  const TemporaryFolder folder;
  const std::string copy = folder.path() + "/braid";
  std::filesystem::copy_file(testing::built_program("braid"), copy);
  const Finished train = testing::run_program({copy, "train", "x.yaml"});
  EXPECT_EQ(train.exit_code, 1);
  EXPECT_THAT(train.err, AllOf(HasSubstr("braid-tensors: No such file"), HasSubstr("keep it beside braid")));
  EXPECT_EQ(testing::run_program({copy, "doctor", "--help"}).exit_code, 0);
}

TEST(Cli, VersionNamesWhatItIsBuiltOn) {
  const Finished version = braid({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, AllOf(ContainsRegex("braid [0-9]"), ContainsRegex("libtorch 2\\.11"), HasSubstr("CUDA "),
                                 HasSubstr("NCCL ")));
}

TEST(Cli, MisuseIsExitCodeTwoWithAHint) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{},
                                                                     {"fly"},
                                                                     {"run"},
                                                                     {"run", "-n", "0", "--", "true"},
                                                                     {"run", "-n", "two", "--", "true"},
                                                                     {"train"},
                                                                     {"plan", "show"},
                                                                     {"plan", "show", "no-such-file.yaml"},
                                                                     {"train", "no-such-file.yaml"},
                                                                     {"run", "-n", "1"}}) {
    const Finished run = braid(arguments);
    EXPECT_EQ(run.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_THAT(run.err, AllOf(HasSubstr("braid: "), HasSubstr("fix:"))) << ::testing::PrintToString(arguments);
    EXPECT_THAT(run.out, IsEmpty());
  }
}

TEST(Cli, ErrorsAreRedOnATerminalThatShowsColour) {
  const std::string command = testing::built_program("braid") + " train no-such-file.yaml";
  const std::string shown = testing::run_program({"script", "-qec", command, "/dev/null"}, {{"TERM", "xterm"}}).out;
  EXPECT_THAT(shown, HasSubstr("\033[1;31mbraid: cannot read 'no-such-file.yaml': No such file or directory\033[0m"));
  for (const std::map<std::string, std::string>& env :
       {std::map<std::string, std::string>{{"NO_COLOR", "1"}, {"TERM", "xterm"}}, {{"TERM", "dumb"}}})
    EXPECT_THAT(testing::run_program({"script", "-qec", command, "/dev/null"}, env).out,
                AllOf(HasSubstr("braid: cannot read"), Not(HasSubstr("\033["))));
}

// Output that a full disk has cut must not look complete to a program that reads it.
TEST(Cli, OutputThatCannotBeWrittenIsAFailure) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kRecipe), log = folder.write("log", "nothing to see\n");
  for (const char* arguments :
       {"--version", "plan show $RECIPE --json", "model describe tiny-vlm --json", "doctor $LOG --json",
        "train $RECIPE --print-recipe", "launch slurm $RECIPE --gpus-per-node 0 --force --dry-run"}) {
    const std::string script =
        fmt::format("RECIPE={} LOG={}; {} {} >/dev/full", recipe, log, testing::built_program("braid"), arguments);
    const Finished run = testing::run_program({"bash", "-c", script});
    EXPECT_EQ(run.exit_code, 1) << arguments << "\n" << run.err;
    EXPECT_THAT(run.err, HasSubstr("standard output is not complete")) << arguments;
  }
}

TEST(Cli, AMistypedSubcommandGetsASuggestion) {
  EXPECT_THAT(braid({"trian"}).err, AllOf(HasSubstr("no subcommand 'trian'"), HasSubstr("did you mean 'train'?")));
}

// Whatever variables the shell had: some BLAS builds need one to work at all.
TEST(Cli, TrainWorksInAnEmptyEnvironment) {
  TemporaryFolder folder;
  const Finished run =
      testing::run_program({"env", "-i", testing::built_program("braid"), "train", folder.write("r.yaml", kRecipe),
                            "--train-iters", "2", "--dist.hang_limit_s", "60"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST(Cli, PlanShow) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kRecipe);
  EXPECT_THAT(braid({"plan", "show", recipe}).out, AllOf(HasSubstr("world of 6 ranks"), HasSubstr("language.dp-cp")));
  EXPECT_THAT(braid({"plan", "show", recipe, "--rank", "3"}).out, HasSubstr("language"));
  const Finished beyond = braid({"plan", "show", recipe, "--rank", "6"});
  EXPECT_EQ(beyond.exit_code, 2);
  EXPECT_THAT(beyond.err, HasSubstr("rank 6 is beyond the world of 6"));
}

TEST(Cli, ModelDescribe) {
  TemporaryFolder folder;
  const Finished list = braid({"model", "describe", "tiny-vlm", "--topology", "tp=2,dp=2,encoder.pp=2"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.out, AllOf(HasSubstr("tiny-vlm in bfloat16"), HasSubstr("tp=2 cp=1 pp=1"),
                              HasSubstr("tp=1 cp=1 pp=2"), HasSubstr("mixer.in_proj.weight")));
  const Finished recipe =
      braid({"model", "describe", "tiny-vlm", "--topology", folder.write("r.yaml", kRecipe), "--json"});
  EXPECT_THAT(recipe.out, HasSubstr(R"("name":"language","layout":{"tp":2,)"));
  const Finished wrong = braid({"model", "describe", "tiny-vlm", "--topology", "ttp=2,encodr.tp=2,ep=0,cp"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err,
              AllOf(HasSubstr("4 problems"), HasSubstr("did you mean 'tp'?"), HasSubstr("did you mean 'encoder.tp'?"),
                    HasSubstr("write ep=N"), HasSubstr("write cp=N")));
  EXPECT_THAT(braid({"model", "describe", "tiny-vlm", "--topology", "tp=3"}).err,
              HasSubstr("tiny-vlm.language.kv_heads"));
  const std::string no_tp = folder.write("no_tp.yaml", "topology: {modules: {language: {tp: 0}}}");
  const Finished zero = braid({"model", "describe", "tiny-vlm", "--topology", no_tp});
  EXPECT_EQ(zero.exit_code, 2) << zero.err;
  EXPECT_THAT(zero.err, HasSubstr("topology.modules.language.tp"));
  EXPECT_THAT(braid({"model", "describe", "tinyvlm"}).err, HasSubstr("did you mean 'tiny-vlm'?"));
}

TEST(Cli, ForwardRefusesSizesThatCannotBe) {
  for (const auto& [size, value] : std::vector<std::pair<std::string, std::string>>{
           {"--tp", "0"}, {"--cp", "0"}, {"--ep", "-2"}, {"--expt-tp", "0"}, {"--pp", "0"}, {"--dp", "1000000"}}) {
    const Finished run = braid({"forward", ".", "--inputs", "i", "--outputs", "o", size, value});
    EXPECT_EQ(run.exit_code, 2) << run.err;
    EXPECT_THAT(run.err, HasSubstr(fmt::format("{}: Value {} not in range", size, value)));
  }
}

TEST(Cli, TrainStartsItsRanksAndLogsInMegatronsFormat) {
  TemporaryFolder folder;
  const Finished run = braid({"train", folder.write("r.yaml", kRecipe), "--log-dir", folder.path() + "/logs",
                              "--metrics-file", folder.path() + "/metrics.jsonl", "--trace", folder.path() + "/trace",
                              "--tensorboard-dir", folder.path() + "/events", "--use-mcore-models"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::vector<double> losses = losses_in(run.out);
  EXPECT_THAT(run.out, HasSubstr("braid: 6 ranks: images on 0-1 (dp 2), language on 2-5 (tp 2, dp 2)\n"));
  EXPECT_THAT(run.out, AllOf(HasSubstr("braid: tiny-vlm in float32, 8 iterations of 16 samples, learning rate 0.01"),
                             Not(HasSubstr("global_batch: 16"))));
  EXPECT_THAT(testing::read_file(folder.path() + "/logs/recipe.yaml"), HasSubstr("global_batch: 16 "));
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("these flags change nothing"), HasSubstr("--use-mcore-models:\n      there is one")));
  ASSERT_EQ(losses.size(), 2u) << run.out;
  EXPECT_LT(losses[1], losses[0]);
  EXPECT_THAT(
      run.out,
      ContainsRegex("\n \\[[0-9-]+ [0-9:.]+\\] iteration        8/       8 \\| consumed samples:          128 "
                    "\\| elapsed time per iteration \\(ms\\): [0-9.]+ \\| throughput per GPU \\(TFLOP/s/GPU\\): "
                    "[0-9.]+ \\| tokens per GPU \\(tokens/s/GPU\\): [0-9.]+ \\| "
                    "learning rate: 1\\.000000E-02 \\| "
                    "global batch size:    16 \\| lm loss: [0-9.E+-]+ \\| loss scale: 1\\.0 \\| grad norm: [0-9.]+ \\| "
                    "number of skipped iterations:   0 \\| number of nan iterations:   0 \\|"));
  EXPECT_THAT(run.out, AllOf(HasSubstr("time (ms) | images   | waits for language:"),
                             HasSubstr("time (ms) | language | waits for images:"), HasSubstr("all iterations done")));
  EXPECT_THAT(testing::read_file(folder.path() + "/logs/rank_2.log"), HasSubstr("iteration        8/"));
  EXPECT_THAT(testing::read_file(folder.path() + "/metrics.jsonl"), HasSubstr("\"iteration\":8,"));
  EXPECT_THAT(testing::read_file(folder.path() + "/trace/trace_rank_00000.json"),
              AllOf(HasSubstr("images backward"), HasSubstr("host time (us)")));
  EXPECT_THAT(testing::run_program({"ls", folder.path() + "/events"}).out, HasSubstr("events.out.tfevents."));
}

TEST(Cli, EveryShippedRecipeHasASoundSchedule) {
  int recipes = 0;
  for (const auto& file : std::filesystem::directory_iterator(BRAID_SOURCE_DIR "/recipes")) {
    const Finished plan = braid({"plan", "schedule", file.path()});
    EXPECT_EQ(plan.exit_code, 0) << file.path() << plan.err;
    EXPECT_THAT(plan.out, HasSubstr("every transfer has its other side"));
    ++recipes;
  }
  EXPECT_GE(recipes, 7);
}

// All twenty layers, narrow: two encoder replicas and a language model of three stages, eight processes.
TEST(Cli, TheTwentyLayerModelTrains) {
  const Finished run = braid({"train", BRAID_SOURCE_DIR "/recipes/nemotron-vlm-20l-small.yaml", "--train-iters", "6",
                              "--seq-length", "64", "--log-interval", "1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::vector<double> losses = losses_in(run.out);
  ASSERT_EQ(losses.size(), 6u) << run.out;
  EXPECT_LT(losses.back(), losses.front());
}

// Asked to stop, a run ends after its iteration, says why, and has succeeded.
TEST(Cli, TrainStopsAtALimitOrASignal) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kRecipe);
  const Finished interval = braid({"train", recipe, "--exit-interval", "3"});
  EXPECT_EQ(interval.exit_code, 0) << interval.err;
  EXPECT_THAT(interval.out, AllOf(HasSubstr("iteration        3/       8"), HasSubstr("exit_interval=3")));
  const std::string script = "env --default-signal=HUP " + testing::built_program("braid") + " train " + recipe +
                             " --train-iters 100000 --save " + folder.path() + "/ckpt --metrics-file " + folder.path() +
                             "/m & while [ ! -s " + folder.path() + "/m ]; do sleep 0.1; done; kill -HUP $!; wait $!";
  const Finished signal = testing::run_program({"bash", "-c", script});
  EXPECT_EQ(signal.exit_code, 0) << signal.err;
  EXPECT_THAT(signal.out,
              AllOf(ContainsRegex("run ended +SIGHUP \\(terminal closed\\)"), HasSubstr("saved iteration ")));
  EXPECT_THAT(signal.err, ContainsRegex("braid: SIGHUP: finishing (the )?iteration [^,]+, then saving to "));
}

TEST(Cli, ALossThatStaysNotANumberEndsTheRun) {
  TemporaryFolder folder;
  const Finished run = braid({"train", folder.write("r.yaml", kRecipe), "--lr", "1e30", "--clip-grad", "0",
                              "--train.max_skipped", "2", "--train-iters", "50"});
  EXPECT_EQ(run.exit_code, 1) << run.out;
  EXPECT_THAT(run.err, AllOf(HasSubstr("root cause"), HasSubstr("2 steps in a row were skipped"),
                             HasSubstr("train.max_skipped=2")));
}

TEST(Cli, MegatronsFlagsAreRecipeKeys) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kRecipe);
  const Finished run = braid({"train", recipe, "--print-recipe", "--llm-tp", "4", "--bf16", "--overlap-grad-reduce",
                              "--no-overlap-grad-reduce", "--training-stage", "stage2", "--min-lr=1e-3"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("tp: 4"), HasSubstr("dtype: bfloat16"), HasSubstr("stage: stage2"),
                             HasSubstr("overlap_grad_reduce: false"), HasSubstr("min_lr: 0.001")));
  EXPECT_THAT(braid({"train", recipe, "--no-overlap-grad-reduce=true"}).err,
              AllOf(HasSubstr("--no-overlap-grad-reduce takes no value"),
                    HasSubstr("leave it out; it stands for --optimizer.overlap_grad_reduce=false\n")));
  for (const char* flag : {"--freeze-ViT", "--freeze-vit"})
    EXPECT_THAT(braid({"train", recipe, "--print-recipe", flag}).out, HasSubstr("freeze_encoders: true"));
  for (const char* flag : {"--freeze-LM", "--freeze-lm"})
    EXPECT_THAT(braid({"train", recipe, "--print-recipe", flag}).out, HasSubstr("freeze_language: true"));
}

// Every key, in its section, with its type, its default and Megatron's name.
TEST(Cli, HelpOfTrainHasEveryRecipeKey) {
  const std::string help = braid({"train", "--help"}).out;
  for (const char* section : {"topology", "model", "data", "loader", "train", "optimizer", "loss_scale", "checkpoint",
                              "log", "stop", "dist", "cluster"})
    EXPECT_THAT(help, HasSubstr(std::string("\n") + section + "\n  --" + section + "."));
  EXPECT_THAT(help, AllOf(ContainsRegex("  --train\\.lr NUMBER +highest learning rate \\[0\\.0001\\]; --lr\n"),
                          HasSubstr("(bfloat16), --fp32 (float32)\n"), HasSubstr("--topology.modules.NAME.tp NUMBER"),
                          HasSubstr("--encoder-tp; language: --llm-tp"), HasSubstr("--dist.device NAME")));
  for (const std::string& line : split(help, '\n')) EXPECT_LE(line.size(), 120u) << line;
}

TEST(Cli, ALowerLearningRateTakesTheLowestWithIt) {
  for (const char* name : {"tiny-vlm", "tiny-vlm-colocated", "tiny-omni", "tiny-llava"}) {
    const std::string recipe = std::string(BRAID_SOURCE_DIR "/recipes/") + name + ".yaml";
    const Finished run = braid({"train", recipe, "--print-recipe", "--train.lr", "1e-4"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("min_lr: 1e-05"));
  }
}

TEST(Cli, PrintRecipeShowsOverridesAndStops) {
  TemporaryFolder folder;
  const Finished run =
      braid({"train", folder.write("r.yaml", kRecipe), "--print-recipe", "--lr", "0.25", "--train.seed=7"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, AllOf(HasSubstr("lr: 0.25"), HasSubstr("seed: 7")));
}

TEST(Cli, RecipeKeysMayStandBeforeTheRecipe) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kRecipe);
  const Finished run = braid({"train", "--lr", "0.25", "--train.seed", "7", recipe, "--print-recipe"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("lr: 0.25"), HasSubstr("seed: 7")));
  EXPECT_EQ(braid({"plan", "show", "--topology.modules.language.dp", "4", recipe}).exit_code, 0);
}

TEST(Cli, TrainRefusesBadInputBeforeAnyRankStarts) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kRecipe);
  const Finished problems =
      braid({"train", recipe, "--global-batch-size", "17", "--topology.modules.language.pp", "2"});
  EXPECT_EQ(problems.exit_code, 2);
  EXPECT_THAT(problems.err, HasSubstr("global_batch=17"));
  EXPECT_THAT(problems.out, Not(HasSubstr("6 ranks")));
  EXPECT_THAT(braid({"train", recipe, "--trian-iters", "3"}).err, HasSubstr("did you mean --train-iters?"));
  EXPECT_THAT(braid({"train", recipe, "--train.lr"}).err, HasSubstr("--train.lr needs a value"));
  EXPECT_THAT(braid({"train", recipe, "--save", "--load", "x"}).err, HasSubstr("--save needs a value"));
  EXPECT_THAT(braid({"train", recipe, "--lr", "abc"}).err, HasSubstr("where: command line, --lr (train.lr)\n"));
}

TEST(Cli, TrainChecksTheWorldItWasStartedIn) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kRecipe);
  const Finished lone = braid({"train", recipe}, {{"RANK", "0"}});
  EXPECT_EQ(lone.exit_code, 2);
  EXPECT_THAT(lone.err, HasSubstr("WORLD_SIZE is not set, although RANK is"));
  const Finished small = braid(
      {"train", recipe},
      {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(small.err, HasSubstr("topology has 6 ranks, but 4 were started"));
}

TEST(Cli, ABusyMasterPortIsNamed) {
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
TEST(Cli, TrainTakesTheBackendItIsTold) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kRecipe);
  EXPECT_EQ(braid({"train", recipe, "--train-iters", "2", "--dist.backend", "gloo", "--dist.device", "cpu"}).exit_code,
            0);
  const Finished nccl = braid({"train", recipe, "--dist.backend", "nccl"}, {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(nccl.exit_code, 2);
  EXPECT_THAT(nccl.err, AllOf(HasSubstr("braid: nccl needs a GPU of its own for each of the 6 ranks"),
                              HasSubstr("fix:   use gloo or auto")));
}

// Under srun: ranks, address and port all come from SLURM_ variables.
TEST(Cli, TrainRunsFromSlurmsVariables) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kRecipe);
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

// One checkpoint of a short run for all tests that only look at it.
class CkptCommand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared = new TemporaryFolder;
    recipe = shared->write("recipe.yaml", kRecipe);
    const Finished trained = braid({"train", recipe, "--train-iters", "2", "--save", root(), "--save-interval", "1"},
                                   {{"OMP_NUM_THREADS", "1"}});
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
  }
  static void TearDownTestSuite() { delete shared; }
  static std::string root() { return shared->path() + "/checkpoints"; }
  static std::string iteration(int number) { return fmt::format("{}/iter_{:07}", root(), number); }

  static inline TemporaryFolder* shared = nullptr;
  static inline std::string recipe;
  const TemporaryFolder folder;
};

TEST_F(CkptCommand, LsTellsIterationsThenPartsThenKeys) {
  const Finished iterations = braid({"ckpt", "ls", root()});
  EXPECT_EQ(iterations.exit_code, 0) << iterations.err;
  EXPECT_THAT(iterations.out, AllOf(ContainsRegex("1 .* 6 \\(0-5\\)\n"), ContainsRegex("2 .* 6 \\(0-5\\) +latest\n")));
  const Finished parts = braid({"ckpt", "ls", root(), "--iteration", "1"});
  EXPECT_THAT(parts.out, AllOf(HasSubstr("6 ranks: images on 0-1 (dp 2), language on 2-5 (tp 2, dp 2)"),
                               ContainsRegex("consumed samples +16\n"),
                               ContainsRegex("images.projector +1 +8 192 +F32"), HasSubstr("optimizer of language")));
  const Finished keys = braid({"ckpt", "ls", root(), "--keys", "input_projections"});
  EXPECT_THAT(keys.out, ContainsRegex("F32 +\\[64, 128\\] +1 +32.00 KiB +modality_submodules.images.module.input"));
  EXPECT_THAT(keys.out, Not(HasSubstr("language_model")));
  EXPECT_THAT(braid({"ckpt", "ls", root(), "--json"}).out, HasSubstr("\"latest\":true"));
}

TEST_F(CkptCommand, ShowTellsNumbersAndGuessesKeys) {
  const std::string key = "language_model.module.decoder.final_norm.weight";
  EXPECT_THAT(braid({"ckpt", "show", root(), key}).out,
              AllOf(HasSubstr("F32 [64]"), ContainsRegex("__[2-5]_0.distcp"), HasSubstr("min ")));
  EXPECT_THAT(braid({"ckpt", "show", root(), "common"}).out, AllOf(HasSubstr("iteration: 2"), HasSubstr("lr: 0.01")));
  const Finished unknown = braid({"ckpt", "show", root(), key + "s"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean '" + key + "'"));
}

TEST_F(CkptCommand, VerifyEndsWithOneWhereSomethingIsWrong) {
  const Finished sound = braid({"ckpt", "verify", root(), "--all"});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_THAT(sound.out,
              AllOf(HasSubstr("iter_0000001: "), ContainsRegex("iter_0000002: .* tensors: all as written\n")));
  const std::string copy = folder.path() + "/copy";
  std::filesystem::copy(iteration(2), copy);
  std::filesystem::resize_file(copy + "/__3_0.distcp", 1000);
  const Finished damaged = braid({"ckpt", "verify", copy});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.out, AllOf(HasSubstr("1 problem"), HasSubstr("  __3_0.distcp has 1000 bytes")));
  EXPECT_THAT(braid({"ckpt", "verify", copy, "--json"}).out, HasSubstr("\"ok\":false"));
}

TEST_F(CkptCommand, DiffEndsLikeDiff) {
  const Finished same = braid({"ckpt", "diff", root(), iteration(2)});
  EXPECT_EQ(same.exit_code, 0) << same.out;
  EXPECT_THAT(same.out, ContainsRegex("^([0-9]+) of [0-9]+ tensors are equal bit for bit\n$"));
  const Finished other = braid({"ckpt", "diff", iteration(1), iteration(2)});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.out, AllOf(HasSubstr("max |a-b|"), HasSubstr("objects differ: mimo.language.optimizer")));
  EXPECT_EQ(braid({"ckpt", "diff", root(), folder.path() + "/none"}).exit_code, 2);
  EXPECT_EQ(braid({"ckpt", "diff", root()}).exit_code, 2);
}

TEST_F(CkptCommand, ConvertedThereAndBackIsTheSame) {
  const auto to = [&](const char* name) { return folder.path() + "/" + name; };
  EXPECT_THAT(braid({"ckpt", "convert", root(), to("files"), "--files", "2"}).out, HasSubstr("/files/iter_0000002: "));
  EXPECT_EQ(braid({"ckpt", "diff", root(), to("files")}).exit_code, 0);
  EXPECT_EQ(braid({"ckpt", "convert", root(), to("files")}).exit_code, 2);
  EXPECT_EQ(braid({"ckpt", "convert", root(), to("nemotron"), "--naming", "nemotron"}).exit_code, 0);
  EXPECT_THAT(braid({"ckpt", "ls", to("nemotron"), "--keys"}).out,
              AllOf(HasSubstr(" language_model.decoder."), HasSubstr(" vision_model."),
                    HasSubstr(" vision_projection."), Not(HasSubstr("optimizer"))));
  EXPECT_EQ(braid({"ckpt", "convert", to("nemotron"), to("modules"), "--naming", "modules"}).exit_code, 0);
  const Finished back = braid({"ckpt", "diff", to("modules"), root()});
  EXPECT_THAT(back.out, Not(HasSubstr("only in " + to("modules"))));
  EXPECT_THAT(back.out, Not(HasSubstr("max |a-b|")));
  EXPECT_EQ(braid({"ckpt", "convert", root(), to("again"), "--naming", "modules"}).exit_code, 2);
}

// With a learning rate of 0, weights stay as they were at the start.
TEST_F(CkptCommand, ConvertFromARecipeIsHowTrainingStarts) {
  const std::string trained = folder.path() + "/trained", initial = folder.path() + "/initial";
  EXPECT_EQ(braid({"train", recipe, "--train-iters", "1", "--train.lr", "0", "--save", trained, "--no-save-optim",
                   "--no-save-rng"})
                .exit_code,
            0);
  const Finished written = braid({"ckpt", "convert", "--recipe", recipe, initial});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  const Finished diff = braid({"ckpt", "diff", initial, trained});
  EXPECT_EQ(diff.exit_code, 0) << diff.out;
}

TEST_F(CkptCommand, HuggingFaceFoldersThereAndBack) {
  const auto to = [&](const char* name) { return folder.path() + "/" + name; };
  const Finished written = braid({"ckpt", "convert", root(), to("hf"), "--to-hf", "language"});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  EXPECT_EQ(braid({"ckpt", "convert", "--recipe", recipe, "--language", to("hf"), to("initial")}).exit_code, 0);
  const Finished diff = braid({"ckpt", "diff", to("initial"), root(), "--all"});
  EXPECT_THAT(diff.out, ContainsRegex("\n0 +0 +0 +0 of 64 +F32 +language_model.module.decoder.final_norm.weight"));
  EXPECT_THAT(diff.out, Not(ContainsRegex("[1-9][0-9]* of [0-9]+ +F32 +language_model")));
  const Finished images = braid({"ckpt", "convert", root(), to("images"), "--to-hf", "images"});
  EXPECT_EQ(images.exit_code, 2);
  EXPECT_THAT(images.err, HasSubstr("final_norm"));
  EXPECT_THAT(braid({"ckpt", "convert", root(), to("other"), "--to-hf", "sound"}).err, HasSubstr("images, language"));
}

TEST_F(CkptCommand, WeightsOfAnotherSizeAreRefusedWithAllThatDiffers) {
  const std::string hf = folder.path() + "/hf";
  EXPECT_EQ(braid({"ckpt", "convert", root(), hf, "--to-hf", "language"}).exit_code, 0);
  std::string text = kRecipe;
  text.replace(text.find("pattern: \"*-\""), 13, "pattern: \"*-\", ffn: 96");
  const Finished refused = braid(
      {"ckpt", "convert", "--recipe", folder.write("other.yaml", text), "--language", hf, folder.path() + "/initial"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("the recipe has ffn: 96, the folder ffn: "),
                                 HasSubstr("decoder.layers.1.mlp.linear_fc1.weight is [")));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/initial"));
}

}  // namespace
}  // namespace braid
