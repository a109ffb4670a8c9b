// Problems that keep a run from starting are reported once, by the launcher, with exit code 2, like all bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include "cli/cli_support.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using testing::TemporaryFolder;

using Words = std::vector<std::string>;
namespace fs = std::filesystem;

const char* const kOneRank = R"(
topology: {modules: {language: }}
model: {dtype: float32, language: {pattern: "*-"}}
data: {sequence_length: 32}
train: {iterations: 2, micro_batch: 1, global_batch: 1}
dist: {device: cpu}
)";

class Start : public ::testing::Test {
 protected:
  Finished train(const Words& options, const std::map<std::string, std::string>& env = {}) const {
    Words words = {testing::built_program("braid"), "train", recipe};
    words.insert(words.end(), options.begin(), options.end());
    return testing::run_program(words, env);
  }

  // The only message of a run that was refused before any rank started.
  std::string refusal(const Words& options, const std::map<std::string, std::string>& env = {}) const {
    const Finished run = train(options, env);
    EXPECT_EQ(run.exit_code, 2) << ::testing::PrintToString(options);
    EXPECT_THAT(run.out, IsEmpty());
    EXPECT_EQ(count(run.err, "braid: "), 1) << run.err;
    EXPECT_THAT(run.err, Not(HasSubstr("root cause")));
    return run.err;
  }

  std::string in_folder(const std::string& name) const { return folder.path() + "/" + name; }

  const TemporaryFolder folder;
  const std::string recipe = folder.write("recipe.yaml", kOneRank);
};

TEST_F(Start, LoadingAFolderWithoutACheckpointIsRefused) {
  const std::string file = folder.write("file", "");
  fs::create_directories(in_folder("empty"));
  const std::string where = "\n  where: command line, --load (checkpoint.load)\n  fix:   ";
  EXPECT_THAT(refusal({"--load", file}), AllOf(HasSubstr("file' is a file"), HasSubstr(where)));
  EXPECT_THAT(refusal({"--load", in_folder("empty/")}),
              AllOf(HasSubstr("there is no checkpoint in"), HasSubstr(where), HasSubstr("leave out --load")));
  EXPECT_THAT(refusal({"--load", in_folder("emty")}),
              AllOf(HasSubstr("there is no folder"), HasSubstr("did you mean '" + in_folder("empty") + "'?")));
  EXPECT_THAT(refusal({"--load", in_folder("zzzzzzzz"), "--save", in_folder("other")}),
              HasSubstr("there is no folder"));
  EXPECT_THAT(refusal({"--load", in_folder("zz"), "--save", in_folder("zz"), "--exit-on-missing-checkpoint"}),
              AllOf(HasSubstr("there is no folder"), HasSubstr("leave out --finetune and --exit-on-missing")));
  EXPECT_THAT(refusal({"--load", in_folder("zz"), "--save", in_folder("zz"), "--finetune"}), HasSubstr("no folder"));
  EXPECT_THAT(refusal({"--load-nemotron-checkpoint", in_folder("empty")}), HasSubstr("--load-nemotron-checkpoint"));
  EXPECT_FALSE(fs::exists(in_folder("zz")));
}

TEST_F(Start, APipeForMetricsAndAnIterationAsTheFolderToSaveToAreRefused) {
  ASSERT_EQ(mkfifo(in_folder("pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal({"--metrics-file", in_folder("pipe")}), HasSubstr("it is not a regular file"));
  fs::create_directories(in_folder("ckpt/iter_0000004"));
  folder.write("ckpt/iter_0000004/.metadata", "");
  EXPECT_THAT(refusal({"--save", in_folder("ckpt/iter_0000004")}),
              AllOf(HasSubstr("is itself a checkpoint"), HasSubstr("--save " + in_folder("ckpt"))));
}

// Whatever else is wrong, files that the run would miss are named, too.
TEST_F(Start, AWrongRecipeIsReportedWithTheFilesThatAreMissing) {
  EXPECT_THAT(refusal({"--train.lr", "-1", "--data-path", "/nowhere/set", "--tokenizer-model", "/nowhere/tokenizer"}),
              AllOf(HasSubstr("lr=-1"), HasSubstr("'/nowhere/set' does not exist"),
                    HasSubstr("'/nowhere/tokenizer' does not exist"), HasSubstr("command line, --data-path")));
}

TEST_F(Start, ARunStartsFromScratchAndThenResumesOnlyTheSameModel) {
  const std::string checkpoints = in_folder("checkpoints");
  const Finished fresh =
      train({"--save", checkpoints, "--load", checkpoints + "/./", "--no-save-optim", "--save-interval", "1"});
  EXPECT_EQ(fresh.exit_code, 0) << fresh.err;
  EXPECT_THAT(fresh.out, AllOf(HasSubstr("braid: starts from scratch, since " + checkpoints),
                               Not(HasSubstr("resumes from")), HasSubstr("initialized the weights of language in ")));
  EXPECT_THAT(refusal({"--load", checkpoints, "--model.language.ffn", "256"}),
              AllOf(HasSubstr("does not match the model in"), HasSubstr("where: command line, --load")));
  EXPECT_THAT(refusal({"--load", checkpoints + "/iter_0000003"}),
              AllOf(HasSubstr("there is no checkpoint '"), HasSubstr("has iter_0000001, iter_0000002")));
  EXPECT_THAT(refusal({"--load", checkpoints}), AllOf(HasSubstr("no optimizer state"), HasSubstr("--no-load-optim")));
  EXPECT_THAT(refusal({"--load", checkpoints, "--no-load-optim", "--lr-decay-style", "cosine"}),
              AllOf(HasSubstr("lr_decay_style is 'constant' in the checkpoint and 'cosine' in this run"),
                    HasSubstr("--override-opt-param-scheduler")));
  const std::string where = "where: command line, --";
  EXPECT_THAT(refusal({"--load", checkpoints, "--no-load-optim", "--lr", "0.5", "--seed", "3"}),
              HasSubstr(where + "lr (train.lr)\n"));
  EXPECT_THAT(refusal({"--load", checkpoints, "--no-load-optim", "--lr-warmup-samples", "1"}),
              HasSubstr(where + "lr-warmup-samples (train.warmup_samples)\n"));
  EXPECT_THAT(
      refusal({"--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler"}),
      HasSubstr("--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler contradict each other"));
  // The advice if a run would overwrite the checkpoints that it starts from.
  const Words tune = {"--load", checkpoints, "--no-load-optim", "--save", checkpoints};
  const auto with = [&](Words words, const char* more) {
    words.push_back(more);
    return words;
  };
  EXPECT_THAT(refusal(with(tune, "--finetune")), HasSubstr("fix:   resume from them without --finetune, or save to"));
  EXPECT_EQ(train(tune).exit_code, 0);
  const Finished resumed = train({"--load", checkpoints, "--no-load-optim"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, Not(HasSubstr("initialized")));

  // Damage to the newest checkpoint, and then to all.
  const std::string newest = checkpoints + "/iter_0000002/", older = checkpoints + "/iter_0000001/";
  for (const char* name : {"common.pt", ".metadata", "metadata.json"}) {
    fs::rename(newest + name, in_folder("aside"));
    if (name == std::string("metadata.json")) {
      std::ofstream(newest + name) << "{}";
      fs::resize_file(newest + name, std::uintmax_t{1} << 33);  // a sparse file
    }
    EXPECT_THAT(refusal({"--load", checkpoints, "--no-load-optim"}),
                AllOf(HasSubstr(newest.substr(0, newest.size() - 1)), HasSubstr(name),
                      HasSubstr("\n  fix:   iteration 1 in " + checkpoints), HasSubstr("--load-fallback")));
    // Nemotron's checkpoints have no common.pt, and no fallback.
    if (name != std::string("common.pt"))
      EXPECT_THAT(refusal({"--load-nemotron-checkpoint", checkpoints, "--load-fallback"}),
                  HasSubstr("\n  fix:   `braid ckpt verify " + checkpoints + "/iter_0000002` shows what is wrong"));
    fs::rename(in_folder("aside"), newest + name);
  }
  fs::rename(newest, in_folder("aside"));
  EXPECT_THAT(refusal({"--load", checkpoints}), HasSubstr("has iter_0000001: use the newest readable one with "));
  EXPECT_THAT(refusal({"--load-nemotron-checkpoint", checkpoints, "--load-fallback"}),
              HasSubstr("has iter_0000001: give the folder of one of them"));
  fs::rename(in_folder("aside"), newest);
  fs::remove(newest + "common.pt");
  // There is no fallback from the folder of one iteration; the suggested command works.
  EXPECT_THAT(refusal({"--load", newest, "--no-load-optim", "--load-fallback"}),
              HasSubstr("\n  fix:   resume from an older one with --load " + checkpoints + "/iter_0000001; "));
  EXPECT_EQ(train({"--load", checkpoints + "/iter_0000001", "--no-load-optim"}).exit_code, 0);
  const Finished fallback = train({"--load", checkpoints, "--no-load-optim", "--load-fallback"});
  EXPECT_EQ(fallback.exit_code, 0) << fallback.err;
  EXPECT_THAT(fallback.out, HasSubstr("resuming from the older iteration 1 of "));
  fs::remove(older + "common.pt");
  EXPECT_THAT(refusal({"--load", checkpoints, "--no-load-optim", "--load-fallback"}),
              AllOf(HasSubstr("common.pt"), HasSubstr("fix:   no older checkpoint can be read")));
}

// One command: its first start takes the weights of another run, later ones resume, whatever became of those weights.
TEST_F(Start, ARunIsInitializedElseResumed) {
  const std::string source = in_folder("source"), save = in_folder("ckpt");
  ASSERT_EQ(train({"--save", source, "--seed", "7"}).exit_code, 0);
  const Words command = {"--pretrained-checkpoint", source, "--save", save, "--exit-interval", "1"};
  const std::string weights = source + " (checkpoint.init.finetune)";
  const Finished first = train(command);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("braid: starts with the weights of " + weights + ", since " + save +
                                         " has no complete checkpoint yet; saves to " + save),
                               HasSubstr("initialized the weights of language from " + source + "/iter_0000002 ")));
  EXPECT_THAT(testing::run_program({testing::built_program("braid"), "ckpt", "ls", save + "/iter_0000001"}).out,
              HasSubstr("\ninitialized from  checkpoint.init.finetune=" + source + "/iter_0000002\n"));
  const Words unlike = {"--pretrained-checkpoint", source, "--save", in_folder("b"), "--model.language.ffn", "256"};
  EXPECT_THAT(refusal(unlike), AllOf(HasSubstr("does not match the model in"),
                                     HasSubstr("where: command line, --pretrained-checkpoint (checkpoint.init.fin")));
  fs::remove_all(source);
  const Finished second = train(command);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, AllOf(HasSubstr("braid: resumes from " + save + "/iter_0000001, and does not use " +
                                          "checkpoint.init.finetune=" + source + ", which no longer exists; saves to"),
                                HasSubstr("the run continues after iteration 1 "), Not(HasSubstr("initialized"))));
  EXPECT_THAT(testing::run_program({testing::built_program("braid"), "ckpt", "ls", save}).out, HasSubstr("latest"));
  const auto with = [&](const Words& more) {
    Words words = {"--pretrained-checkpoint", source, "--save", in_folder("c")};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  EXPECT_THAT(refusal(with({})), HasSubstr("there is no folder '" + source));
  EXPECT_THAT(refusal(with({"--load", save})), AllOf(HasSubstr("but load is '"), HasSubstr("fix:   leave out load")));
  EXPECT_THAT(refusal(with({"--finetune"})), HasSubstr("leave it out: init.finetune takes only weights"));
  EXPECT_THAT(refusal(with({"--load-nemotron-checkpoint", save})), HasSubstr("gives every start these weights"));
  fs::remove(save + "/iter_0000001/.metadata");
  fs::remove(save + "/iter_0000002/.metadata");
  for (const Words& more : {Words{}, Words{"--load-fallback"}}) {
    Words words = command;
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_THAT(refusal(words), HasSubstr(".metadata"));
  }
  fs::remove(save + "/latest_checkpointed_iteration.txt");
  EXPECT_THAT(refusal(command), HasSubstr("it is damaged, and '" + save + "' has no complete checkpoint"));
}

// The job that Slurm has requeued before its first save begins again, and says so.
TEST_F(Start, ARequeuedRunThatHasSavedNothingSaysSo) {
  const std::string save = in_folder("ckpt");
  const Finished run = train({"--save", save, "--load", save}, {{"SLURM_JOB_ID", "42"}, {"SLURM_RESTART_COUNT", "3"}});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("WARNING: Slurm has requeued this job 3 times, but it does not resume: nothing was"));
}

// The launcher holds the lock from before it starts a rank until all have ended.
TEST_F(Start, ASecondRunWithTheSameSaveFolderIsToldWhichRunHoldsIt) {
  const std::string train =
      fmt::format("{} train {} --save {}", testing::built_program("braid"), recipe, in_folder("ckpt"));
  const std::string script = fmt::format(
      "{0} --train-iters 1000000 --log-interval 10 >{1} 2>&1 & first=$!; "
      "until grep -q ' iteration  ' {1} || ! kill -0 $first; do sleep 0.05; done; "
      "{0}; code=$?; kill $first; wait $first; echo code $? >>{1}; exit $code",
      train, in_folder("first"));
  const Finished second = testing::run_program({"bash", "-c", script});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.out, IsEmpty());
  EXPECT_THAT(second.err,
              AllOf(HasSubstr("another run saves to '" + in_folder("ckpt") + "': pid "), Not(HasSubstr("root cause")),
                    HasSubstr("\n  where: command line, --save (checkpoint.save)\n")));
  EXPECT_THAT(testing::read_file(in_folder("first")), HasSubstr("\ncode 0\n"));
}

TEST_F(Start, AllUnwritablePathsAreReportedAndNothingIsCreated) {
  const std::string file = folder.write("file", "");
  const std::string text = refusal({"--save", file + "/ckpt", "--metrics-file", folder.path(), "--tensorboard-dir",
                                    file, "--trace", file + "/traces", "--log-dir", file, "--load", file});
  EXPECT_THAT(text, AllOf(HasSubstr("6 problems"), HasSubstr("--save (checkpoint.save)"),
                          HasSubstr("--metrics-file (log.metrics_file)"), HasSubstr("it is a folder"),
                          HasSubstr("--tensorboard-dir (log.tensorboard_dir)"), HasSubstr("--trace (log.trace_dir)"),
                          HasSubstr("where: --log-dir\n"), HasSubstr("--load (checkpoint.load)")));
  refusal({"--save", in_folder("ckpt"), "--metrics-file", in_folder("a/m.jsonl"), "--load", file});
  EXPECT_FALSE(fs::exists(in_folder("ckpt")) || fs::exists(in_folder("a")));
  // Permissions allow root to write, the file system does not; and the save folder belongs to another run.
  fs::create_directories(in_folder("old/iter_0000004"));
  folder.write("old/iter_0000004/.metadata", "");
  EXPECT_THAT(refusal({"--metrics-file", "/proc/none/m.jsonl", "--trace", "/proc/none", "--tensorboard-dir", file,
                       "--log-dir", in_folder("a/logs"), "--save", in_folder("old")}),
              AllOf(HasSubstr("4 problems"), HasSubstr("'/proc/none/m.jsonl' cannot be written: No such file"),
                    HasSubstr("has the checkpoints of another run"), HasSubstr("where: command line, --save (")));
  fs::create_directory_symlink(in_folder("nowhere"), in_folder("link"));
  refusal({"--trace", in_folder("link"), "--metrics-file", in_folder("a/m.jsonl"), "--log-dir", in_folder("a/b/logs")});
  EXPECT_FALSE(fs::exists(in_folder("a")));
  EXPECT_TRUE(fs::is_symlink(in_folder("link")));
}

TEST_F(Start, AMissingGpuIsRefused) {
  EXPECT_THAT(refusal({"--dist.device", "cuda"}, {{"CUDA_VISIBLE_DEVICES", ""}}),
              AllOf(HasSubstr("no GPU is visible on"), HasSubstr("where: command line, --dist.device\n")));
}

TEST_F(Start, RanksThatTheHostCannotHoldAreRefused) {
  const std::string program = testing::built_program("braid");
  const std::string large = BRAID_SOURCE_DIR "/recipes/nemotron-vlm-54l-100n.yaml";
  const Finished model = testing::run_program({program, "train", large, "--dist.device", "cpu"});
  EXPECT_EQ(model.exit_code, 2);
  EXPECT_THAT(model.err, HasSubstr("800 ranks need at least 2"));
  const auto on_one_core = [&](Words words) {
    words.insert(words.begin(), {"taskset", "--cpu-list", std::to_string(sched_getcpu()), program});
    return testing::run_program(words);
  };
  const Finished crowd = on_one_core({"run", "-n", "17", "--", "true"});
  EXPECT_EQ(crowd.exit_code, 2);
  EXPECT_THAT(crowd.err, AllOf(HasSubstr("17 ranks on 1 core would"), HasSubstr("--oversubscribe")));
  EXPECT_EQ(on_one_core({"run", "-n", "17", "--oversubscribe", "--", "true"}).exit_code, 0);
  EXPECT_EQ(on_one_core({"launch", "local", "--ranks", "17", "--", "true"}).exit_code, 2);
}

// Without Braid's launcher, one rank reports the problem, and all end with the same exit code.
TEST_F(Start, UnderAnotherLauncherOneRankReportsIt) {
  const std::string file = folder.write("file", "");
  const std::string script = fmt::format(
      "export SLURM_NTASKS=2 SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_NODELIST=localhost SLURM_TASKS_PER_NODE=2;"
      "for r in 0 1; do SLURM_PROCID=$r SLURM_LOCALID=$r {} train {} --llm-dp 2 --global-batch-size 2 --load {} "
      "--trace {} --log-dir {} & pids=\"$pids $!\"; done; for p in $pids; do wait $p; [ $? = 2 ] || exit 1; done",
      testing::built_program("braid"), recipe, file, file, file);
  const Finished run = testing::run_program({"bash", "-c", script});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_EQ(count(run.err, "3 problems"), 1) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("\n     where: command line, --load (checkpoint.load)\n"),
                             HasSubstr("\n     where: command line, --trace (log.trace_dir)\n"),
                             HasSubstr("\n     where: --log-dir\n"), Not(HasSubstr("root cause"))));
}

// A rank that writes its output directly follows the launcher's rule: if the reader is gone, the run has not failed.
TEST_F(Start, UnderAnotherLauncherOnlyLostOutputFailsTheRun) {
  const std::string script = fmt::format(
      "export SLURM_NTASKS=1 SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_NODELIST=localhost SLURM_TASKS_PER_NODE=1 "
      "SLURM_PROCID=0 SLURM_LOCALID=0; cd {1}; mkfifo f; exec 3<>f 4>f 3<&- 5>/dev/full; trap '' PIPE; "
      "for out in 4 5; do {0} train recipe.yaml >&$out; echo code $?; done; "
      // Files that are cut off, as by a full disk, under this launcher and under Braid's.
      "trap '' XFSZ; ulimit -f 1; {0} train recipe.yaml --train-iters 20 --metrics-file m >/dev/null; echo code $?; "
      "unset ${{!SLURM_@}}; {0} train recipe.yaml --trace traces; echo code $?",
      testing::built_program("braid"), folder.path());
  const Finished run = testing::run_program({"bash", "-c", script});
  EXPECT_THAT(run.out, AllOf(StartsWith("code 0\ncode 1\ncode 1\n"), EndsWith("\ncode 1\n"))) << run.err;
  EXPECT_EQ(count(run.err, "standard output is incomplete"), 1) << run.err;
}

TEST_F(Start, UnderAnotherLauncherOneRankReportsABadCommandLineOrRecipeInFull) {
  const std::map<std::string, std::string> second = {{"RANK", "1"},
                                                     {"LOCAL_RANK", "1"},
                                                     {"WORLD_SIZE", "2"},
                                                     {"LOCAL_WORLD_SIZE", "2"},
                                                     {"MASTER_ADDR", "localhost"},
                                                     {"MASTER_PORT", "1"}};
  auto first = second;
  first["RANK"] = first["LOCAL_RANK"] = "0";
  const auto lines = [&](const Words& options, const auto& env) {
    const Finished run = train(options, env);
    EXPECT_EQ(run.exit_code, 2);
    return run.err;
  };
  const Words bad = {"--llm-tp", "3"}, misuse = {"--log-dir"}, torchrun = {"--nproc-per-node", "2"}, small = {};
  for (const Words& options : {bad, misuse, torchrun, small}) {
    EXPECT_THAT(lines(options, first), HasSubstr("  fix:   "));
    const std::string short_line = lines(options, second);
    EXPECT_THAT(short_line, AllOf(StartsWith("braid: rank 1: "), Not(HasSubstr("fix:"))));
    EXPECT_EQ(count(short_line, "\n"), 1) << short_line;
  }
}

TEST_F(Start, WorksWithAllStreamsClosedAndWithTheRecipeOnStandardInput) {
  const std::string program = testing::built_program("braid");
  const Finished run = testing::run_program(
      {"bash", "-c",
       "sed 's/iterations: 2/iterations: 1/' " + recipe + " | " + program + " train - --log-dir " + in_folder("logs")});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("1 iteration of"));
  for (const std::string& command : {program + " train " + recipe, program + " plan show " + recipe})
    EXPECT_EQ(testing::run_program({"bash", "-c", command + " <&- >&- 2>&-"}).exit_code, 0) << command;
}

TEST_F(Start, AHostWithoutAnAddressIsReportedOnce) {
  const std::string script = fmt::format(
      "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=no-such-host.invalid MASTER_PORT=1;"
      "for r in 0 1; do RANK=$r LOCAL_RANK=$r {} train {} --llm-dp 2 --global-batch-size 2 --dist.connect_timeout_s 1 "
      "& pids=\"$pids $!\"; done; for p in $pids; do wait $p; [ $? = 2 ] || exit 1; done",
      testing::built_program("braid"), recipe);
  const Finished run = testing::run_program({"bash", "-c", script});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(count(run.err, "where: MASTER_ADDR\n"), 1) << run.err;
  EXPECT_EQ(count(run.err, "braid: rank 1: cannot resolve host 'no-such-host.invalid'"), 1) << run.err;
  EXPECT_THAT(run.err, Not(HasSubstr("root cause")));
}

}  // namespace
}  // namespace braid
