// braid launch interactive, local, status and tail as a user sees them; Slurm's programs are fakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include "cluster/local/shellcheck.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class LaunchOther : public ::testing::Test {
 protected:
  Finished launch(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {testing::built_program("braid"), "launch"});
    return testing::run_program(arguments, {{"PATH", folder_.path() + ":" + std::getenv("PATH")}});
  }
  void stand_in(const std::string& name, const std::string& text) const {
    ::chmod(folder_.write(name, "#!/bin/sh\n" + text).c_str(), 0700);
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  testing::TemporaryFolder folder_;
};

TEST_F(LaunchOther, InteractiveGivesTheGpusToBoth) {
  stand_in("sinfo", "echo 'interactive|up|4:00:00|2|gpu:8'\n");
  stand_in("sacctmgr", "echo 'vision|'\n");
  const Finished run = launch({"interactive", "--account", "vision", "--container", "/images/x.sqsh", "--mount",
                               "/:/host", "--env", "A=b c", "--warm-up", "uv sync"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("\nsalloc --nodes=1 --job-name=vision-debug --partition=interactive --account=vision "
                              "--gpus-per-node=8 --time=240\n"),
                    HasSubstr("\nsrun --nodes=1 --job-name=vision-debug --partition=interactive --account=vision "
                              "--gpus-per-node=8 --mpi=pmix --no-kill --container-image=/images/x.sqsh "
                              "--container-mounts=/:/host --no-container-mount-home --container-workdir=/host" +
                              std::filesystem::current_path().string() + " --pty bash\n"),
                    HasSubstr("\nexport A='b c'\nuv sync\nfor name in HF_TOKEN ")));
}

TEST_F(LaunchOther, InteractiveSaysWhatACommandExpects) {
  stand_in("sinfo", "echo 'interactive|up|4:00:00|2|gpu:8'\n");
  stand_in("sacctmgr", "echo 'vision|'\n");
  const Finished run = launch({"interactive", "--account", "vision", "--", "torchrun", "x.py",
                               "--tensor-model-parallel-size", "2", "--micro-batch-size=1", "--global-batch-size=8"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("\necho '8 GPUs on 1 node: TP 2, PP 1, CP 1, EP 1, DP 4, MBS 1, GBS 8'\n"),
                             ::testing::EndsWith("\ntorchrun x.py --tensor-model-parallel-size 2 "
                                                 "--micro-batch-size=1 --global-batch-size=8\n")));
  const std::string inside = run.out.substr(run.out.find("\nfor name in"));
  const Finished said = testing::run_program({"bash", "-c", inside.substr(0, inside.find("\ntorchrun"))},
                                             {{"HF_TOKEN", "correct horse"}, {"GH_TOKEN", ""}});
  EXPECT_THAT(said.out, AllOf(HasSubstr("HF_TOKEN is set\nGH_TOKEN is not set\nWANDB_API_KEY is not set\n"),
                              Not(HasSubstr("horse"))));
  EXPECT_THAT(launch({"interactive", "--account", "vision", "--", "x --token hf_0123456789abcdefghijklmn"}).err,
              HasSubstr("the command contains"));
  EXPECT_THAT(launch({"interactive", "--account", "vision", "--lr", "1"}).err, HasSubstr("there is no recipe"));
}

TEST_F(LaunchOther, InteractiveOnSeveralNodesSaysHowToReachThem) {
  stand_in("sinfo", "echo 'interactive|up|4:00:00|2|gpu:8'\n");
  stand_in("sacctmgr", "echo 'vision|'\n");
  EXPECT_THAT(launch({"interactive", "--account", "vision", "--nodes", "2"}).out,
              AllOf(HasSubstr("\n# 3. "), HasSubstr("srun --overlap")));
  EXPECT_THAT(launch({"interactive", "--account", "vision"}).out, Not(HasSubstr("overlap")));
}

TEST_F(LaunchOther, InteractiveKnowsThePitfalls) {
  stand_in("sinfo", "echo 'interactive|up|4:00:00|2|gpu:8'\n");
  stand_in("sacctmgr", "echo 'vision|'\n");
  const auto refusal = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "interactive");
    const Finished run = launch(arguments);
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_THAT(run.out, IsEmpty());
    return run.err;
  };
  EXPECT_THAT(refusal({"--account", "vision", "--partition", "pool0"}),
              AllOf(HasSubstr("no partition 'pool0'"), HasSubstr("interactive (2 nodes, up to 4:00:00)")));
  EXPECT_THAT(refusal({"--account", "other"}), HasSubstr("yours are vision"));
  EXPECT_THAT(refusal({}), HasSubstr("no account was given"));
  EXPECT_THAT(refusal({"--account", "vision", "-w", "n3"}), HasSubstr("configuration is not available"));
  EXPECT_THAT(refusal({"--account", "vision", "--time", "5:00:00"}), HasSubstr("longer"));
  for (const char* setting : {"HF_TOKEN=abc", "HF_TOKEN"})
    EXPECT_THAT(
        refusal({"--account", "vision", "--env", setting}),
        AllOf(HasSubstr("export HF_TOKEN in your shell: salloc and srun pass it on"), Not(HasSubstr("--secret"))));
  EXPECT_EQ(launch({"interactive", "--account", "other", "--force"}).exit_code, 0);
  EXPECT_EQ(launch({"interactive", "--account", "vision", "--time", "2"}).exit_code, 0);
}

TEST_F(LaunchOther, LocalStartsTheRanksOfATorchrunCommand) {
  const Finished run = launch({"local", "--", "torchrun", "--nproc_per_node=2", "--no-python", "sh", "-c",
                               "echo $RANK of $WORLD_SIZE: $1", "sh", "a  b"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("[0] 0 of 2: a b"), HasSubstr("[1] 1 of 2: a b")));
  EXPECT_EQ(launch({"local", "--ranks", "1", "--", "exit 7"}).exit_code, 7);
  EXPECT_EQ(launch({"local", "--ranks", "1", "--", "(exit 7) | cat"}).exit_code, 7);
  EXPECT_THAT(launch({"local", "--ranks", "1", "--", "sleep 1 &"}).err, HasSubstr("in the background"));
}

TEST_F(LaunchOther, LocalRanksStartAfterWhatMustHappenOnce) {
  stand_in("uv", "echo uv $*; [ $1 = run ] || exit $CODE\n");
  const auto run = [&](const char* code) {
    ::setenv("CODE", code, 1);
    return launch({"local", "--ranks", "2", "--", "uv sync && uv run x.py"});
  };
  EXPECT_THAT(run("0").out, AllOf(::testing::StartsWith("[0] uv sync\n[0] uv sync --inexact\n"),
                                  HasSubstr("[0] uv run --no-sync x.py\n"), HasSubstr("[1] uv run --no-sync x.py\n"),
                                  Not(HasSubstr("[1] uv sync"))));
  EXPECT_EQ(run("3").exit_code, 3);
  EXPECT_THAT(run("3").out, Not(HasSubstr("run")));
  ::unsetenv("CODE");
}

// Scripts for one process set torchrun's variables themselves.
TEST_F(LaunchOther, LocalRanksKnowTheirRankWhateverTheTextSets) {
  const std::string program =
      folder_.write("place", "#!/bin/sh\necho $RANK of $WORLD_SIZE, $LOCAL_RANK at $MASTER_ADDR\n");
  ::chmod(program.c_str(), 0700);
  for (const std::string call : {"torchrun --no-python ", ""}) {
    const Finished run = launch({"local", "--ranks", "2", "--",
                                 "export WORLD_SIZE=1 RANK=0; LOCAL_RANK=0 MASTER_ADDR=nowhere " + call + program});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, AllOf(HasSubstr("[0] 0 of 2, 0 at 127.0.0.1"), HasSubstr("[1] 1 of 2, 1 at 127.0.0.1")));
  }
}

TEST_F(LaunchOther, LocalCountsTheGpus) {
  stand_in("nvidia-smi", "echo 'GPU 0: one'; echo 'GPU 1: two'\n");
  EXPECT_THAT(launch({"local", "--", "echo rank $RANK"}).out,
              AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), Not(HasSubstr("rank 2"))));
  stand_in("nvidia-smi", "exit 9\n");
  EXPECT_THAT(launch({"local", "--", "true"}).err, HasSubstr("give --ranks N"));
  EXPECT_THAT(launch({"local"}).err, HasSubstr("neither a recipe nor a command"));
  EXPECT_THAT(launch({"local", "--ranks", "3", "--", "torchrun --nproc_per_node=2 x.py"}).err,
              HasSubstr("contradicts"));
  EXPECT_THAT(launch({"local", "--", "torchrun --nnodes=2 --nproc_per_node=2 x.py"}).err,
              AllOf(HasSubstr("--nnodes=2"), HasSubstr("braid launch slurm")));
  EXPECT_THAT(launch({"local", "--nodes", "2", "--", "true"}).err, HasSubstr("unknown option --nodes"));
}

// The settings in a recipe's section `cluster` reach the job.
TEST_F(LaunchOther, ARecipeOfManyNodesIsOneWordAway) {
  const auto dry_run = [&](const char* name, const std::string& data) {
    return launch({"slurm", fmt::format("{}/recipes/nemotron-vlm-54l-{}.yaml", BRAID_SOURCE_DIR, name), "--account",
                   "vision", "--partition", "batch", "--dry-run", data, "--checkpoint.init.nemotron=\"\"",
                   "--checkpoint.init.vision=\"\""});
  };
  const auto script = [&](const char* name) {
    const Finished run = dry_run(name, "--mock-data");
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(testing::shellcheck(run.out), "");
    return run.out;
  };
  stand_in("sinfo", "echo 'batch|up|4:00:00|100|gpu:8'\n");
  stand_in("sacctmgr", "echo 'vision|'\n");
  EXPECT_THAT(script("9n"), AllOf(HasSubstr("#SBATCH --nodes=9\n"), HasSubstr("--ntasks=72 "),
                                  HasSubstr("--time=04:00:00\n"), Not(HasSubstr("scontrol requeue"))));
  EXPECT_THAT(script("33n"), AllOf(HasSubstr("#SBATCH --nodes=33\n"), HasSubstr("#SBATCH --signal=B:USR1@120\n"),
                                   HasSubstr("scontrol requeue")));
  EXPECT_THAT(script("68n"), AllOf(HasSubstr("#SBATCH --nodes=68\n"), HasSubstr("--ntasks=544 ")));
  EXPECT_THAT(script("100n"), AllOf(HasSubstr("#SBATCH --nodes=100\n"), HasSubstr("--ntasks=800 ")));
  EXPECT_THAT(dry_run("100n", "--data.mock=false").err,
              AllOf(HasSubstr("the recipe needs a data set"), HasSubstr("give --data-path PATH, or --mock-data")));
}

const char* const kJob =
    "cat <<EOF\nJobId=12 JobName=tiny-train\n   JobState=%s Reason=None\n   Requeue=1 Restarts=1 ExitCode=%s\n"
    "   RunTime=00:03:12 TimeLimit=04:00:00\n   NodeList=n[1-4]\n   StdOut=%s\nEOF\n";

TEST_F(LaunchOther, StatusSaysWhereAJobIs) {
  const std::string log = folder_.write("tiny-train_12.log", "0: iteration       10/     100 | lm loss: 5.5E+00 |\n");
  folder_.write("tiny-train_12.jsonl", "{\"iteration\":11,\"lm_loss\":4.5,\"iteration_ms\":500}\n");
  char text[1024];
  std::snprintf(text, sizeof text, kJob, "RUNNING", "0:0", log.c_str());
  stand_in("scontrol", text);
  const Finished running = launch({"status", "12"});
  EXPECT_EQ(running.exit_code, 0) << running.err;
  EXPECT_THAT(
      running.out,
      AllOf(HasSubstr("job 12 (tiny-train): RUNNING, 00:03:12 of 04:00:00 on n[1-4], restarted 1 time\n"),
            HasSubstr("iteration 11 of 100 (11.0 %), lm loss 4.5000, 500 ms per iteration"), Not(HasSubstr("doctor"))));
  std::snprintf(text, sizeof text, kJob, "FAILED", "3:0", log.c_str());
  stand_in("scontrol", text);
  EXPECT_THAT(launch({"status", "12"}).out, HasSubstr("braid doctor " + log + " --exit-code 3\n"));
}

TEST_F(LaunchOther, JobsThatSlurmHasForgottenHaveTheirLog) {
  stand_in("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n");
  stand_in("sacct", "exit 1\n");
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += "line " + std::to_string(i) + "\n";
  folder_.write("tiny-train_12.log", lines);
  const Finished tail = launch({"tail", "12", "--log-dir", folder_.path(), "-n", "3"});
  EXPECT_EQ(tail.exit_code, 0) << tail.err;
  EXPECT_EQ(tail.out, "line 47\nline 48\nline 49\n");
  EXPECT_EQ(launch({"tail", "12", "--log-dir", folder_.path(), "-n", "99"}).out, lines);
  const Finished unknown = launch({"status", "13", "--log-dir", folder_.path()});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("job 13 was not found"));
  stand_in("scontrol", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n");
  EXPECT_THAT(launch({"status", "12", "--log-dir", folder_.path()}).out, HasSubstr("job 12: Slurm does not answer\n"));
  EXPECT_THAT(launch({"status", "x;y"}).err, HasSubstr("'x;y' is not a job id"));
}

}  // namespace
}  // namespace braid
