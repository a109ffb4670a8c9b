// Generated scripts, run by bash with fakes of Slurm's programs (fake_slurm/): how each rank is called, and what
// happens near the time limit. conversions_test.py runs the same table on a real Slurm.
#include "cluster/slurm/script.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/strings.h"
#include "cluster/local/fake_cluster.h"
#include "cluster/local/shellcheck.h"
#include "cluster/megatron/commands.h"
#include "support/programs.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using testing::Call;
using testing::FakeCluster;
using testing::script_of;

// --- the table of conversions ------------------------------------------------------------------------------------
Json conversions() { return Json::parse(testing::read_file(testing::kLaunchTests + "/conversions.json")).at("cases"); }

std::string replaced(std::string text, const std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : values)
    for (std::size_t at; (at = text.find("{" + name + "}")) != std::string::npos;)
      text.replace(at, name.size() + 2, value);
  return text;
}

std::vector<Call> expected_calls(const Json& calls, bool torchrun, int task) {
  const int node = torchrun ? task : task / 2;
  std::vector<Call> expected = calls;
  for (Call& call : expected)
    for (std::string& word : call)
      word = replaced(word, {{"RANK", std::to_string(task)},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", std::to_string(task % 2)},
                             {"NODE", std::to_string(node)},
                             {"NODES", "2"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "19242"}});
  return expected;
}

std::string text_of(const Json& test) {
  if (test.contains("text")) return test["text"];
  if (test.contains("words")) return command_text(test["words"].get<std::vector<std::string>>());
  const testing::TemporaryFolder folder;
  return started_command(run_script(folder.write("script.sh", test["run_script"])));
}

class Conversion : public ::testing::TestWithParam<Json> {};

TEST_P(Conversion, EveryRankIsCalledAsWritten) {
  const Json& test = GetParam();
  const FakeCluster cluster;
  SlurmOptions options = cluster.options();
  const std::vector<std::string> given = test.value("options", std::vector<std::string>());
  for (std::size_t i = 0; i + 1 < given.size(); i += 2) {
    ASSERT_THAT(given[i], ::testing::AnyOf("--style", "--warm-up"));
    (given[i] == "--style" ? options.style : options.warm_up) = given[i + 1];
  }
  const std::string text = text_of(test);
  const std::string script = script_of(options, text);
  EXPECT_EQ(cluster.run(script).exit_code, 0) << cluster.log() << script;

  const bool torchrun = options.style == "torchrun", prepares = test.contains("first_phase");
  const int step = prepares ? 1 : 0, tasks = torchrun ? 2 : 4;
  if (prepares) {
    EXPECT_EQ(cluster.calls(0, 0), expected_calls(test["first_phase"], torchrun, 0)) << script;
  }
  for (int task = 0; task < tasks; ++task)
    EXPECT_EQ(cluster.calls(step, task), expected_calls(test["argv"], torchrun, task)) << "task " << task << "\n"
                                                                                       << script;
  for (int task = 0; task < tasks && !torchrun; ++task)
    EXPECT_EQ(
        cluster.environment_of(step, task),
        fmt::format("RANK={}\nWORLD_SIZE=4\nLOCAL_RANK={}\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=node1\nMASTER_PORT=19242\n",
                    task, task % 2))
        << script;
  EXPECT_EQ(testing::shellcheck(script), "");
}

std::string test_name(const ::testing::TestParamInfo<Json>& info) {
  std::string name = info.param["name"];
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return fmt::format("{}_{}", info.index, name);
}

INSTANTIATE_TEST_SUITE_P(Table, Conversion, ::testing::ValuesIn(conversions()), test_name);

// --- what else is in a script ------------------------------------------------------------------------------------
TEST(SlurmScript, HeaderSaysWhatTheJobNeeds) {
  const FakeCluster cluster;
  SlurmOptions options = cluster.options();
  options.account = "my acc";
  options.partition = "batch";
  options.log_dir = "/logs/100% \"of\" it";
  options.sbatch = {"--qos=high", "--mail-type END", "--comment=a b $X \"q\" \\", "-Ca|b", "-k", "--wckey="};
  const std::string script = script_of(options, "torchrun x.py");
  for (const char* line :
       {"#SBATCH --job-name=job", "#SBATCH --account=\"my acc\"", "#SBATCH --partition=batch", "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=2", "#SBATCH --gpus-per-node=2", "#SBATCH --exclusive", "#SBATCH --time=00:30:00",
        "#SBATCH --output=\"/logs/100%% \\\"of\\\" it/job_%j.log\"", "#SBATCH --qos=high", "#SBATCH --mail-type END",
        "#SBATCH --comment=\"a b $X \\\"q\\\" \\\\\"", "#SBATCH -C\"a|b\"", "#SBATCH -k", "#SBATCH --wckey="})
    EXPECT_THAT(script, HasSubstr(std::string(line) + "\n"));
  EXPECT_THAT(script, Not(HasSubstr("--signal")));
  EXPECT_THAT(split(script, '\n')[1], kSlurmScriptMark);
  EXPECT_EQ(testing::shellcheck(script), "");
  options.style = "torchrun";
  EXPECT_THAT(script_of(options, "torchrun x.py"),
              AllOf(HasSubstr("#SBATCH --ntasks-per-node=1\n"),
                    HasSubstr(" --ntasks=2 --ntasks-per-node=1 --gpus-per-node=2 ")));
}

TEST(SlurmScript, ContainersGetTheirFlagsInBothPhases) {
  const FakeCluster cluster;
  SlurmOptions options = cluster.options();
  options.container = "/images/a b.sqsh";
  options.mounts = {"/data:/data", "/home:/mnt:ro"};
  options.secrets = {"HF_TOKEN"};
  options.passed = {"WANDB_API_KEY"};
  options.warm_up = "true";
  options.srun = {"--cpu-bind=none"};
  const std::string script = script_of(options, "torchrun x.py");
  EXPECT_EQ(testing::shellcheck(script), "");
  EXPECT_EQ(cluster.run("export HF_TOKEN=x\n" + script).exit_code, 0) << cluster.log();
  for (const char* step : {"srun_0", "srun_1"})
    EXPECT_THAT(cluster.asked_of(step),
                AllOf(HasSubstr("--container-image=/images/a b.sqsh\n--container-mounts=/data:/data,/home:/mnt:ro\n"
                                "--no-container-mount-home\n--container-workdir="),
                      HasSubstr("--container-env=HF_TOKEN,WANDB_API_KEY,CUDA_DEVICE_MAX_CONNECTIONS,"),
                      HasSubstr("--mpi=pmix\n--cpu-bind=none\n")));
  EXPECT_THAT(
      cluster.asked_of("srun_1"),
      HasSubstr(
          "--label\n--no-kill\n--kill-on-bad-exit=1\n--nodes=2\n--ntasks=4\n--ntasks-per-node=2\n--gpus-per-node=2\n"));
}

TEST(SlurmScript, SecretsAreNamesThatMustBeSet) {
  const FakeCluster cluster;
  SlurmOptions options = cluster.options();
  options.secrets = {"MY_TOKEN"};
  const std::string script = script_of(options, "prog");
  EXPECT_EQ(testing::shellcheck(script), "");
  for (const char* given : {"", "export MY_TOKEN=\n"}) {
    EXPECT_EQ(cluster.run(given + script).exit_code, 1);
    EXPECT_THAT(cluster.log(), AllOf(HasSubstr("MY_TOKEN is not set: export it before sbatch\n"),
                                     HasSubstr("== failed with exit code 1")));
    EXPECT_EQ(cluster.asked_of("srun_0"), "");
  }
  EXPECT_EQ(cluster.run("export MY_TOKEN=x\n" + script).exit_code, 0) << cluster.log();
}

// Exports reach the ranks in both styles, with odd values too.
TEST(SlurmScript, VariablesReachTheRanks) {
  for (const char* style : {"srun", "torchrun"}) {
    const FakeCluster cluster;
    SlurmOptions options = cluster.options();
    options.style = style;
    options.env = {"A=x y", "B=$HOME 'q'", "C="};
    options.cache_dir = "/shared/my cache";
    const std::string script = script_of(options,
                                         "printenv A B HF_HOME UV_CACHE_DIR NEMO_HOME CUDA_DEVICE_MAX_CONNECTIONS; "
                                         "torchrun x.py");
    EXPECT_EQ(cluster.run(script).exit_code, 0);
    std::string of_rank_1;
    for (const std::string& line : split(cluster.log(), '\n'))
      if (line.starts_with("1: ")) of_rank_1 += line + "\n";
    EXPECT_THAT(of_rank_1, HasSubstr("1: x y\n1: $HOME 'q'\n1: /shared/my cache/huggingface\n1: /shared/my cache/uv\n"
                                     "1: /shared/my cache/nemo\n1: 1\n"));
    EXPECT_EQ(testing::shellcheck(script), "");
  }
}

// sbatch exports the submitter's environment: leftovers in it must have no effect.
TEST(SlurmScript, OnlyOptionsSetTheRendezvous) {
  for (const char* style : {"srun", "torchrun"}) {
    const std::string left_over = "export MASTER_ADDR=localhost MASTER_PORT=1\n";
    const std::string says = "MASTER_PORT=6000; echo at $MASTER_ADDR; torchrun --nproc_per_node=2 x.py";
    const auto meets = [&](const std::vector<std::string>& env) {
      const FakeCluster cluster;
      SlurmOptions options = cluster.options();
      options.style = style;
      options.env = env;
      EXPECT_EQ(cluster.run(left_over + script_of(options, says)).exit_code, 0) << cluster.log();
      return cluster.log() + cluster.environment_of(0, 1) + ::testing::PrintToString(cluster.calls(0, 1));
    };
    const auto port = [&](const std::string& number) {
      return HasSubstr((style == std::string("srun") ? "MASTER_PORT=" : "--master_port=") + number);
    };
    EXPECT_THAT(meets({}), AllOf(HasSubstr("1: at node1\n"), port("19242")));
    EXPECT_THAT(meets({"MASTER_ADDR=10.0.0.1", "MASTER_PORT=16000"}),
                AllOf(HasSubstr("1: at 10.0.0.1\n"), port("16000")));
  }
}

TEST(SlurmScript, MegatronOfTheProjectIsFound) {
  const FakeCluster cluster;
  fs::create_directories(cluster.path("work/3rdparty/Megatron-LM"));
  const std::string script = script_of(cluster.options(), "torchrun pretrain_gpt.py; echo $PYTHONPATH");
  EXPECT_EQ(cluster.run("export PYTHONPATH=/before\n" + script).exit_code, 0);
  EXPECT_THAT(cluster.log(), HasSubstr("3: " + cluster.path("work/3rdparty/Megatron-LM") + ":/before\n"));
  EXPECT_THAT(script_of(cluster.options(), "torchrun other.py"), Not(HasSubstr("PYTHONPATH")));
}

TEST(SlurmScript, TheFooterShowsLossesAndSaysWhatToDo) {
  const FakeCluster cluster;
  const std::string line = "iteration 1 | lm loss: 9.5 |";
  const std::string script = script_of(cluster.options(), "if [ $RANK = 3 ]; then echo '" + line +
                                                              "'; sleep 1; exit 7; fi; echo lm loss of nothing; prog");
  EXPECT_EQ(cluster.run(script).exit_code, 7);
  EXPECT_THAT(cluster.log(),
              AllOf(HasSubstr("== the first losses\n3: " + line + "\n\n"), HasSubstr("failed with exit code 7"),
                    HasSubstr("braid doctor " + cluster.path("logs/job_4242.log") + " --exit-code 7\n")));
}

// A requeued job appends to the same log.
TEST(SlurmScript, TheLossesAreThoseOfThisAttempt) {
  const FakeCluster cluster;
  const std::string line = "iteration 2 | lm loss: 8.5 |", earlier = "0: iteration 1 | lm loss: 9.5 |\n";
  const std::string before = "printf '" + earlier + "== the first losses\\n" + earlier + "'\n";
  EXPECT_EQ(
      cluster.run(before + script_of(cluster.options(), "if [ $RANK = 3 ]; then echo '" + line + "'; sleep 1; fi"))
          .exit_code,
      0);
  EXPECT_THAT(cluster.log(), AllOf(HasSubstr(earlier), HasSubstr("\n\n== the first losses\n3: " + line + "\n\n== ")));
}

// Megatron's scripts end with `| tee`, whose exit code 0 must not hide a failure.
TEST(SlurmScript, ARunThatFailsInFrontOfAPipeHasFailed) {
  for (const std::string text : {"(exit 7) 2>&1 | tee /dev/null", "{ exit 7; } | cat"}) {
    const FakeCluster cluster;
    const std::string script = script_of(cluster.options(), text);
    EXPECT_EQ(cluster.run(script).exit_code, 7) << cluster.log();
    EXPECT_THAT(cluster.log(), AllOf(HasSubstr("failed with exit code 7"), Not(HasSubstr("ended well"))));
    EXPECT_EQ(testing::shellcheck(script), "");
    EXPECT_EQ(FakeCluster().run(script_of(cluster.options(), "set +o pipefail; " + text)).exit_code, 0);
  }
}

TEST(SlurmScript, AFailedPreparationCostsOneTask) {
  const FakeCluster cluster;
  SlurmOptions options = cluster.options();
  options.warm_up = "echo preparing\nfalse\necho never";
  EXPECT_EQ(cluster.run(script_of(options, "prog")).exit_code, 1);
  EXPECT_THAT(cluster.log(),
              AllOf(HasSubstr("0: preparing\n"), Not(HasSubstr("never")), HasSubstr("failed with exit code 1")));
  EXPECT_EQ(cluster.asked_of("srun_1"), "");
}

// --- near the end of the time ------------------------------------------------------------------------------------

// A program that saves and ends on the signal. The shells and the pipe around it must survive the signal, so they
// ignore it; a bash below them can trap it only after `env` restores the default.
std::string saving_program(const char* signal, int exit_code) {
  return fmt::format(
      "bash -c \"$(cat <<'EOF'\n"
      "env --default-signal={0} bash -c 'trap \"sleep 0.3; echo saved; exit {1}\" {0}; echo ready; "
      "for i in {{1..300}}; do sleep 0.1; done'\n"
      "EOF\n)\" | cat; exit \"${{PIPESTATUS[0]}}\"",
      signal, exit_code);
}

// Signals the batch script, as Slurm does, when all four ranks are ready.
Finished run_and_signal(const FakeCluster& cluster, const std::string& script, int signals = 1) {
  const std::string ready =
      fmt::format("for i in {{1..300}}; do [ \"$(grep -c ready '{}')\" = 4 ] && break; sleep 0.1; done; ",
                  cluster.path("logs/job_4242.log"));
  return cluster.run(script,
                     ready + fmt::format("for i in {{1..{}}}; do kill -USR1 $!; sleep 0.1; done; wait $!", signals));
}

TEST(SlurmRequeue, ARunThatSavedIsQueuedAgain) {
  for (int signals : {1, 3}) {
    const FakeCluster cluster;
    SlurmOptions options = cluster.options();
    options.requeue = true;
    const std::string script = script_of(options, saving_program("USR1", 0));
    EXPECT_EQ(testing::shellcheck(script), "");
    EXPECT_THAT(script, AllOf(HasSubstr("#SBATCH --requeue\n"), HasSubstr("#SBATCH --signal=B:USR1@120\n"),
                              HasSubstr("#SBATCH --open-mode=append\n")));
    EXPECT_EQ(run_and_signal(cluster, script, signals).exit_code, 0) << cluster.log();
    EXPECT_EQ(cluster.asked_of("scontrol"), "requeue 4242\n") << cluster.log();
    EXPECT_THAT(cluster.log(), AllOf(HasSubstr("3: saved\n"), HasSubstr("== requeued")));
  }
}

TEST(SlurmRequeue, ARunThatFailedIsNot) {
  const FakeCluster cluster;
  SlurmOptions options = cluster.options();
  options.requeue = true;
  EXPECT_EQ(run_and_signal(cluster, script_of(options, saving_program("USR1", 3))).exit_code, 3) << cluster.log();
  EXPECT_EQ(cluster.asked_of("scontrol"), "");
}

TEST(SlurmRequeue, ARunThatFinishedIsNot) {
  const FakeCluster cluster;
  SlurmOptions options = cluster.options();
  options.requeue = true;
  EXPECT_EQ(cluster.run(script_of(options, "prog")).exit_code, 0);
  EXPECT_EQ(cluster.asked_of("scontrol"), "");
}

// Without --requeue a run that can save is still asked to.
TEST(SlurmRequeue, AskedToSaveWithoutRequeue) {
  const FakeCluster cluster;
  const SlurmOptions options = cluster.options();
  SlurmJob job = job_of_command(options, saving_program("USR1", 0));
  job.can_stop = true;
  EXPECT_EQ(run_and_signal(cluster, slurm_script(options, job)).exit_code, 0) << cluster.log();
  EXPECT_THAT(cluster.log(), HasSubstr("2: saved\n"));
  EXPECT_EQ(cluster.asked_of("scontrol"), "");
}

// Megatron's --exit-signal-handler needs SIGTERM, on which srun itself would kill the tasks.
TEST(SlurmRequeue, ProgramsThatWantSigtermGetIt) {
  const FakeCluster cluster;
  SlurmOptions options = cluster.options();
  options.requeue = true;
  options.stop_signal = "TERM";
  const std::string script = script_of(
      options,
      "bash -c 'trap \"sleep 0.3; echo saved; exit 0\" TERM; echo ready; for i in {1..300}; do sleep 0.1; done'");
  EXPECT_EQ(testing::shellcheck(script), "");
  EXPECT_EQ(run_and_signal(cluster, script).exit_code, 0) << cluster.log();
  EXPECT_EQ(cluster.asked_of("scontrol"), "requeue 4242\n") << cluster.log();
}

}  // namespace
}  // namespace braid
