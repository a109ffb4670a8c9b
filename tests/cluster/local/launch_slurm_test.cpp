// `braid launch slurm` as a user sees it: what it writes where, what it prints, what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <regex>
#include <sys/stat.h>
#include "base/strings.h"
#include "cluster/local/shellcheck.h"
#include "cluster/megatron/commands.h"
#include "support/programs.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kRecipe = BRAID_SOURCE_DIR "/recipes/tiny-vlm.yaml";  // six ranks

// A folder to work in, and the command run there.
class LaunchSlurm : public ::testing::Test {
 protected:
  Finished launch(const std::vector<std::string>& arguments, std::map<std::string, std::string> env = {},
                  const std::string& input = "/dev/null") const {
    env["PATH"] = BRAID_SOURCE_DIR "/tests/cluster/local/fake_slurm:" + std::string(std::getenv("PATH"));
    env["FAKE_SLURM"] = folder_.path();
    return testing::run_program(
        {"bash", "-c",
         fmt::format("cd {} && unset HF_TOKEN GH_TOKEN WANDB_API_KEY; {} launch slurm {} <{}", folder_.path(),
                     testing::built_program("braid"), joined_quoted(arguments), input)},
        env);
  }
  std::string script(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "--dry-run");
    const Finished run = launch(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(testing::shellcheck(run.out), "");
    return run.out;
  }
  // The exit code must be that of misuse.
  std::string refusal(const std::vector<std::string>& arguments) const {
    const Finished run = launch(arguments);
    EXPECT_EQ(run.exit_code, 2) << ::testing::PrintToString(arguments) << run.out;
    EXPECT_THAT(run.err, HasSubstr("fix:"));
    return run.err;
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  testing::TemporaryFolder folder_;
};

// A folder that only the nodes or the container have is not created here; a warning says that it cannot be checked.
TEST_F(LaunchSlurm, FoldersThatCannotBeCheckedAreNotCreated) {
  const Finished unseen = launch({kRecipe, "--workdir", "/no-such-root/work", "--output", "job.sbatch"});
  EXPECT_EQ(unseen.exit_code, 0) << unseen.err;
  EXPECT_THAT(unseen.err, AllOf(HasSubstr("'/no-such-root/work' cannot be checked from here"),
                                HasSubstr("'/no-such-root/work/logs' cannot be created from here")));
  EXPECT_FALSE(fs::exists("/no-such-root"));
  EXPECT_TRUE(fs::exists(folder_.path() + "/job.sbatch"));
  const std::string missing = folder_.path() + "/missing";
  EXPECT_EQ(launch({kRecipe, "--workdir", missing, "--output", "job.sbatch", "--force"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(missing));
  const std::string logs = folder_.path() + "/own/logs";
  launch({kRecipe, "--workdir", "/no-such-root/work", "--log-dir", logs, "--output", "job.sbatch"});
  EXPECT_TRUE(fs::exists(logs));
}

// Reading a device may never end, and a script would replace it.
TEST_F(LaunchSlurm, OnlyPlainFilesAreReplaced) {
  EXPECT_EQ(mkfifo((folder_.path() + "/pipe").c_str(), 0600), 0);
  const Finished run = launch({kRecipe, "--output", "pipe"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("'pipe' is not a plain file"));
}

TEST_F(LaunchSlurm, WritesAScriptThatOnlyItsOwnerCanRead) {
  const Finished run = launch({kRecipe, "--gpus-per-node", "2"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "wrote tiny-vlm-train.sbatch: 3 nodes, 6 ranks\n  sbatch tiny-vlm-train.sbatch\n");
  struct stat status {};
  ASSERT_EQ(::stat(path("tiny-vlm-train.sbatch").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  EXPECT_TRUE(fs::is_directory(path("logs")));  // Slurm does not create it
  EXPECT_EQ(launch({kRecipe, "--gpus-per-node", "3"}).exit_code, 0) << "its own file may be replaced";
  EXPECT_THAT(testing::read_file(path("tiny-vlm-train.sbatch")), HasSubstr("#SBATCH --nodes=2\n"));
}

TEST_F(LaunchSlurm, OneNodeIsANode) {
  EXPECT_THAT(launch({"--gpus-per-node", "1", "--", "prog"}).out, HasSubstr(": 1 node, 1 rank\n"));
}

TEST_F(LaunchSlurm, DryRunWritesNothing) {
  const Finished run = launch({"--dry-run", "--", "torchrun", "x.py"});
  EXPECT_THAT(run.out, HasSubstr("#SBATCH --job-name=x-train\n"));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(LaunchSlurm, FilesOfOthersAreNotOverwritten) {
  folder_.write("mine.sh", "#!/bin/bash\necho mine\n");
  EXPECT_THAT(refusal({kRecipe, "--output", "mine.sh"}), HasSubstr("'mine.sh' exists and was not made by braid"));
  EXPECT_EQ(testing::read_file(path("mine.sh")), "#!/bin/bash\necho mine\n");
  EXPECT_THAT(refusal({kRecipe, "--output", "no/such/folder.sh"}),
              HasSubstr("cannot create 'no/such/folder.sh': No such file or directory"));
  EXPECT_THAT(refusal({kRecipe, "--log-dir", "/dev/null/logs", "--force"}), HasSubstr("cannot create the folder"));
  EXPECT_FALSE(fs::exists(path("tiny-vlm-train.sbatch"))) << "its job would end without a message";
}

TEST_F(LaunchSlurm, SubmitPrintsWhereToLook) {
  const Finished run = launch({"--submit", "--job-name", "my-job", "--log-dir", "/tmp", "--", "prog"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, fmt::format("submitted job 4242\n  {0} launch status 4242\n  {0} launch tail 4242\n  {0} doctor "
                                 "/tmp/my-job_4242.log\n",
                                 testing::built_program("braid")));
  EXPECT_EQ(testing::read_file(path("sbatch")), "--parsable my-job.sbatch\n");
  const std::string found = fmt::format("cd {} && PATH={}:$PATH braid launch slurm --submit -- prog", folder_.path(),
                                        fs::path(testing::built_program("braid")).parent_path().string() +
                                            ":" BRAID_SOURCE_DIR "/tests/cluster/local/fake_slurm");
  EXPECT_THAT(testing::run_program({"bash", "-c", found}, {{"FAKE_SLURM", folder_.path()}}).out,
              HasSubstr("\n  braid launch tail 4242\n"));
  const Finished refused =
      launch({"--submit", "--", "prog"}, {{"FAKE_SBATCH_ERROR", "invalid partition specified: pool0"}});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("invalid partition specified: pool0"));
}

// The job would fail only after hours in the queue.
TEST_F(LaunchSlurm, ASecretThatIsNotSetIsNotSubmitted) {
  EXPECT_THAT(refusal({"--submit", "--secret", "MY_TOKEN", "--", "prog"}),
              AllOf(HasSubstr("MY_TOKEN is not set"), HasSubstr("export MY_TOKEN first")));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  EXPECT_EQ(launch({"--submit", "--secret", "MY_TOKEN", "--", "prog"}, {{"MY_TOKEN", "x"}}).exit_code, 0);
  EXPECT_EQ(launch({"--secret", "MY_TOKEN", "--", "prog"}).exit_code, 0);
}

TEST_F(LaunchSlurm, ARecipesRanksFillTheNodes) {
  const std::string text =
      script({"--lr", "1e-3", kRecipe, "--gpus-per-node", "2", "--train.seed", "7", "--time", "1-00:00:00"});
  EXPECT_THAT(text, AllOf(HasSubstr("#SBATCH --nodes=3\n"), HasSubstr("#SBATCH --ntasks-per-node=2\n"),
                          HasSubstr("\nexec " + testing::built_program("braid") + " train " + kRecipe +
                                    " --lr=1e-3 --train.seed=7 --metrics-file=" + path("logs/tiny-vlm-train_") +
                                    "\"$SLURM_JOB_ID\".jsonl\n"),
                          HasSubstr(" --lr=1e-3 --train.seed=7 --print-recipe >"), Not(HasSubstr("RANK=")),
                          HasSubstr("\nunset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "), Not(HasSubstr("NVTE_")),
                          Not(HasSubstr("signal"))));
  EXPECT_THAT(script({kRecipe}), AllOf(HasSubstr("#SBATCH --nodes=1\n"), HasSubstr("#SBATCH --ntasks-per-node=6\n"),
                                       HasSubstr("Of the 8 GPUs per node, 2 have no rank.")));
  EXPECT_THAT(script({kRecipe, "--metrics-file", "m.jsonl"}), Not(HasSubstr("$SLURM_JOB_ID\".jsonl")));
  EXPECT_THAT(script({kRecipe, "--gpus-per-node", "0", "--nodes", "3"}),
              AllOf(HasSubstr("#SBATCH --ntasks-per-node=2\n"), Not(HasSubstr("--gpus-per-node="))));
  EXPECT_THAT(refusal({kRecipe, "--gpus-per-node", "4"}), HasSubstr("6 ranks, but 1 node of 4 GPUs has 4"));
  EXPECT_THAT(refusal({kRecipe, "--nodes", "4"}), HasSubstr("6 ranks, but 4 nodes of 8 GPUs have 32"));
  EXPECT_THAT(refusal({kRecipe, "--nodes", "1", "--gpus-per-node", "3"}), HasSubstr("use --nodes 2"));
}

TEST_F(LaunchSlurm, ARecipeUnderTorchrun) {
  EXPECT_THAT(
      script({kRecipe, "--gpus-per-node", "2", "--style", "torchrun"}),
      HasSubstr("\nexec torchrun --nnodes=\"$SLURM_JOB_NUM_NODES\" --node_rank=\"$SLURM_NODEID\" --nproc_per_node=2 "
                "--master_addr=\"$MASTER_ADDR\" --master_port=\"$MASTER_PORT\" --no-python " +
                testing::built_program("braid") + " train "));
}

TEST_F(LaunchSlurm, ARunThatSavesIsAskedTo) {
  EXPECT_THAT(script({kRecipe, "--save", "ckpt", "--stop-lead", "300"}),
              AllOf(HasSubstr("#SBATCH --signal=B:USR1@300\n"), Not(HasSubstr("scontrol requeue"))));
  EXPECT_THAT(script({kRecipe, "--save", "ckpt", "--load", "ckpt", "--requeue"}), HasSubstr("scontrol requeue"));
  EXPECT_THAT(refusal({kRecipe, "--requeue"}), AllOf(HasSubstr("does not save"), HasSubstr("--save FOLDER")));
  EXPECT_THAT(refusal({kRecipe, "--requeue", "--save", "x"}), HasSubstr("does not load what it saves"));
  EXPECT_THAT(refusal({kRecipe, "--requeue", "--save", "x", "--load", "y"}),
              AllOf(HasSubstr("would start from 'y' each time"), HasSubstr("does not load what it saves")));
  EXPECT_EQ(launch({kRecipe, "--requeue", "--save", "x", "--load", "./x/", "--dry-run"}).exit_code, 0);
  EXPECT_THAT(refusal({kRecipe, "--requeue", "--save", "x", "--load", "x", "--no-load-optim"}),
              HasSubstr("would lose at each start: optimizer (load_optimizer=false)"));
  EXPECT_THAT(refusal({kRecipe, "--save", "ckpt", "--time", "2"}), HasSubstr("--stop-lead"));
  EXPECT_EQ(launch({kRecipe, "--time", "2", "--dry-run"}).exit_code, 0);
}

// Both what is printed and the script say what a start would do.
TEST_F(LaunchSlurm, SaysWhetherAStartInitializesOrResumes) {
  fs::create_directories(path("weights"));
  const std::vector<std::string> arguments = {kRecipe, "--save", "ckpt", "--checkpoint.init.nemotron", "weights"};
  const std::string begins = fmt::format(
      "starts with the weights of {0}/weights (checkpoint.init.nemotron), since "
      "{0}/ckpt has no complete checkpoint yet",
      folder_.path());
  EXPECT_THAT(script(arguments), HasSubstr("\n# When this was written, a start " + begins + ".\n"));
  EXPECT_THAT(launch(arguments).out, HasSubstr("a start now " + begins + "\n"));
  fs::create_directories(path("ckpt/iter_0000020"));
  folder_.write("ckpt/iter_0000020/.metadata", "");
  fs::remove(path("weights"));
  EXPECT_THAT(launch(arguments).out, HasSubstr("a start now resumes from " + path("ckpt/iter_0000020") +
                                               ", and does not use checkpoint.init.nemotron=" + path("weights") +
                                               ", which no longer exists\n"));
  fs::remove(path("ckpt/iter_0000020/.metadata"));
  EXPECT_THAT(refusal(arguments), HasSubstr("iter_0000020 has no .metadata: it is damaged"));
  fs::remove_all(path("ckpt"));
  EXPECT_THAT(refusal(arguments),
              AllOf(HasSubstr("weights' does not exist"), HasSubstr("where: checkpoint.init.nemotron")));
  EXPECT_THAT(refusal({kRecipe, "--save", "a", "--load", "b", "--checkpoint.init.nemotron", "weights"}),
              HasSubstr("leave out load"));
  const std::string unseen = "/no-such-root/ckpt";
  EXPECT_THAT(script({kRecipe, "--save", unseen, "--checkpoint.init.nemotron", "/no-such-root/n", "--requeue"}),
              HasSubstr("a start resumes if '" + unseen + "' has a checkpoint, which is not visible here.\n"));
}

// The staged copy is complete: it runs, and from the staged libraries.
TEST_F(LaunchSlurm, StagedBraidRuns) {
  const std::string text = script({kRecipe, "--stage", "stage here", "--train-iters", "1"});
  const std::size_t begin = text.find("set -e\n"), end = text.find("\nEND_OF_FIRST_PHASE\n");
  ASSERT_TRUE(begin < end && end != std::string::npos) << text;
  const std::string phase = text.substr(begin, end - begin);
  fs::create_directories(path("stage here"));
  fs::create_directories(path("logs"));
  folder_.write("stage here/braid", "newer than the braid that is to be staged, but another one");
  const Finished staged = testing::run_program({"bash", "-c", phase}, {{"SLURM_JOB_ID", "7"}});
  EXPECT_EQ(staged.exit_code, 0) << staged.err;
  EXPECT_THAT(testing::read_file(path("logs/tiny-vlm-train_7.yaml")), HasSubstr("  iterations: 1 "));
  const Finished without_ldd = testing::run_program({"bash", "-c", "ldd() { return 1; }\n" + phase});
  EXPECT_EQ(without_ldd.exit_code, 1) << "libraries may be missing";
  const std::string libraries = path("stage here/lib");
  for (const auto& [program, library] : {std::pair("braid", "libfmt"), std::pair("braid-tensors", "libtorch_cpu")}) {
    const Finished used =
        testing::run_program({"ldd", path("stage here") + "/" + program}, {{"LD_LIBRARY_PATH", libraries}});
    EXPECT_THAT(used.out, HasSubstr(library));
    for (const std::string& line : split(used.out, '\n'))
      EXPECT_TRUE(line.find(library) == line.npos || line.find(libraries) != line.npos) << line;
  }
  EXPECT_FALSE(fs::exists(libraries + "/libc.so.6"));
  EXPECT_THAT(text, HasSubstr("exec env LD_LIBRARY_PATH='" + libraries.substr(0, libraries.size() - 4) + "'/lib"));
}

TEST_F(LaunchSlurm, OptionsOfTheCommandAreItsOwn) {
  const std::string text = script(
      {"--nodes", "3", "--", "torchrun", "--nproc_per_node=8", "x.py", "--nodes", "9", "--lr", "1", "--", "--help"});
  EXPECT_THAT(text,
              AllOf(HasSubstr("#SBATCH --nodes=3\n"), HasSubstr("\npython3 -u x.py --nodes 9 --lr 1 -- --help\n")));
}

TEST_F(LaunchSlurm, TorchrunsOwnBusinessIsLeftToIt) {
  EXPECT_THAT(script({"--style", "torchrun", "--", "torchrun", "--virtual-local-rank", "x.py"}),
              AllOf(HasSubstr("--job-name=x-train\n"), HasSubstr(" --virtual-local-rank x.py\n")));
}

// A configuration is an argument, not a script; this one has so many brackets that a quadratic parser takes hours.
TEST_F(LaunchSlurm, LongFilesAmongTheArgumentsAreFast) {
  std::string json = "{\"launcher\":\"torchrun\",\"layers\":[";
  while (json.size() < 700'000) json += "[{\"a\":[1,2.5]}],";
  folder_.write("a.json", json + "0]}");
  EXPECT_THAT(script({"--", "python", "train.py", "--cfg", "a.json"}), HasSubstr("\npython train.py --cfg a.json\n"));
}

// srun treats only names that begin with / or . as files.
TEST_F(LaunchSlurm, ImagesAndMountsAreFilesOfTheWorkingFolder) {
  folder_.write("image.sqsh", "");
  fs::create_directory(path("data"));
  EXPECT_THAT(script({"--container", "image.sqsh", "--mount", "data:/data", "--mount", ".:/work", "--", "prog"}),
              AllOf(HasSubstr("--container-image=" + path("image.sqsh") + "\n"),
                    HasSubstr("--container-mounts=" + path("data") + ":/data," + folder_.path() + ":/work'\n"),
                    HasSubstr("--container-workdir=/work\n"), HasSubstr("#SBATCH --chdir=" + folder_.path() + "\n")));
}

// Slurm gets paths of the host, the ranks those of the container.
TEST_F(LaunchSlurm, PathsInAContainerAreCheckedOnTheHost) {
  fs::create_directories(path("work/3rdparty/Megatron-LM"));
  fs::create_directory(path("work/nemo_experiments"));
  const std::vector<std::string> options = {"--dry-run",      "--container", "image",    "--mount",
                                            "work:/opt/work", "--workdir",   "/opt/work"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), options.begin(), options.end());
    return launch(more);
  };
  const Finished trained = run({"--", "torchrun pretrain_gpt.py"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, AllOf(HasSubstr("#SBATCH --chdir=" + path("work") + "\n"),
                                 HasSubstr("#SBATCH --output=" + path("work/logs/pretrain_gpt-train_") + "%j.log\n"),
                                 HasSubstr("\nexport PYTHONPATH=/opt/work/3rdparty/Megatron-LM\""),
                                 HasSubstr("--container-workdir=/opt/work\n")));
  EXPECT_THAT(trained.err, AllOf(HasSubstr("a folder nemo_experiments"), HasSubstr("where: " + path("work") + "\n")));
  EXPECT_THAT(run({"--", "rm -rf nemo_experiments; torchrun x.py"}).err, Not(HasSubstr("nemo_experiments")));
  EXPECT_THAT(run({"--cache-dir", "/data/cache", "--", "prog"}).err,
              AllOf(HasSubstr("no --mount covers '/data/cache'"), HasSubstr("give --mount SRC:/data")));
  fs::copy(kRecipe, path("work/tiny.yaml"));
  const Finished recipe = run({"/opt/work/tiny.yaml", "--save", "ckpt"});
  EXPECT_THAT(recipe.err, AllOf(HasSubstr("no --mount covers '" + testing::built_program("braid") + "'"),
                                Not(HasSubstr("--save")), Not(HasSubstr("the recipe\n"))));
  const std::string built = fs::path(testing::built_program("braid")).parent_path();
  const Finished mounted = run({"/opt/work/tiny.yaml", "--save", "ckpt", "--mount", built + ":/opt/braid"});
  EXPECT_THAT(mounted.out, HasSubstr("\nexec /opt/braid/braid train /opt/work/tiny.yaml --save=ckpt "
                                     "--metrics-file=/opt/work/logs/tiny-train_\"$SLURM_JOB_ID\".jsonl\n"))
      << mounted.err;
}

TEST_F(LaunchSlurm, AFolderOfTheImageIsNoPlaceForLogs) {
  const Finished run = launch({"--container", "image", "--workdir", "/opt/image", "--", "prog"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("give --mount FOLDER:/opt/image"));
  const std::string text = testing::read_file(path("prog-train.sbatch"));
  EXPECT_THAT(text, AllOf(HasSubstr("#SBATCH --chdir=" + folder_.path() + "\n"),
                          HasSubstr("#SBATCH --output=" + path("logs/prog-train_")),
                          HasSubstr("--container-workdir=/opt/image\n")));
  EXPECT_TRUE(fs::is_directory(path("logs")));
  EXPECT_THAT(refusal({"--container", "image", "--workdir", "/opt/image", "--log-dir", "/opt/image/logs", "--force",
                       "--", "prog"}),
              HasSubstr("'/opt/image/logs' is only in the container"));
  EXPECT_THAT(refusal({"--container", "image", "--", "prog"}),
              HasSubstr(fmt::format("give --mount {0}:{0}\n", folder_.path())));
}

TEST_F(LaunchSlurm, ATaskNeedsItsShareOfAGpu) {
  fs::create_directory(path("model"));
  folder_.write("model/config.json",
                R"({"num_experts": 256, "hidden_size": 3072, "moe_intermediate_size": 1536, "num_hidden_layers": 62})");
  const auto warning = [&](const char* task, const char* program, const char* ep) {
    std::vector<std::string> words = {"--dry-run",        "--nodes", "8", "--",   "torchrun", program,
                                      "--hf-model=model", "--tp",    "2", "--ep", ep};
    if (*task) words.insert(words.begin(), {"--task", task});
    return launch(words).err;
  };
  EXPECT_THAT(warning("", "convert_checkpoints.py", "4"), HasSubstr("for a conversion, a GPU with 80 GB"));
  EXPECT_THAT(warning("", "convert_checkpoints.py", "8"), Not(HasSubstr("experts")));
  EXPECT_THAT(warning("", "generate_text.py", "4"), HasSubstr("about 40 GB"));
  EXPECT_THAT(warning("train", "generate_text.py", "8"), HasSubstr("about 30 GB"));
  EXPECT_THAT(script({"--", "convert_checkpoints.py"}), HasSubstr("--job-name=convert_checkpoints-convert\n"));
}

TEST_F(LaunchSlurm, DirectivesOfSrunAreRefused) {
  const std::string file = folder_.write("run.sh", "#SBATCH --no-container-mount-home\ntorchrun x.py\n");
  EXPECT_THAT(refusal({"--command-file", file}), HasSubstr("--no-container-mount-home is an option of srun"));
}

TEST_F(LaunchSlurm, ShellTextFromAFileOrStandardInput) {
  const std::string file = folder_.write("my run.sh", "cd sub &&\n  torchrun --nproc_per_node=8 \\\n    x.py \"$A\"\n");
  const std::string expected = "\ncd sub &&\n  python3 -u x.py \"$A\"\nEND_OF_RANK_SCRIPT\n";
  EXPECT_THAT(script({"--command-file", file}), AllOf(HasSubstr(expected), HasSubstr("--job-name=my-run-train\n")));
  const Finished run = launch({"--command-file", "-", "--dry-run"}, {}, shell_quoted(file));
  EXPECT_THAT(run.out, HasSubstr(expected)) << run.err;
  EXPECT_THAT(script({"--", "cd sub && torchrun x.py 'a  b'"}), HasSubstr("\ncd sub && python3 -u x.py 'a  b'\n"));
  EXPECT_THAT(script({"--command-file", file}), HasSubstr(" bash -c \"$rank_script\" '" + file + "' \"$master_addr\""));
  const std::string placed = folder_.write("placed.sh", "cd \"$(dirname \"${BASH_SOURCE[0]}\")\"; torchrun x.py");
  EXPECT_EQ(launch({"--command-file", placed, "--dry-run"}).exit_code, 0);
  EXPECT_THAT(refusal({"--command-file", placed, "--workdir", "/tmp"}), HasSubstr("write $0 instead"));
  EXPECT_THAT(refusal({"--command-file", "no-such-file"}), HasSubstr("cannot read 'no-such-file'"));
  EXPECT_THAT(refusal({"--command-file", "/tmp"}), HasSubstr("cannot read '/tmp'"));
  EXPECT_THAT(refusal({"--command-file", folder_.write("bom.sh", "\xEF\xBB\xBFtorchrun x.py")}),
              HasSubstr("begins with a byte order mark"));
  EXPECT_THAT(refusal({"--command-file", folder_.write("a.out", std::string("ELF\0", 4))}), HasSubstr("is not text"));
  EXPECT_THAT(refusal({"-"}), HasSubstr("'-' can be read only by this command"));
}

TEST_F(LaunchSlurm, AScriptIsRunToFindItsCommand) {
  fs::create_directory(path("sub"));
  const std::string file = folder_.write("my run.sh",
                                         "cd sub\nexport A='x y'\nGPUS=8\nDISTRIBUTED_ARGS=(--nproc_per_node $GPUS)\n"
                                         "echo \"on $(hostname)\"\ntorchrun ${DISTRIBUTED_ARGS[@]} x.py --lr \"$1\"\n");
  EXPECT_THAT(script({"--run-script", "'" + file + "' 1e-4"}),
              AllOf(HasSubstr("\ncd " + path("sub") + "\nexport A='x y'\npython3 -u x.py --lr 1e-4\n"),
                    HasSubstr("#SBATCH --job-name=x-train\n")));
  EXPECT_THAT(refusal({"--run-script", file, "--gpus-per-node", "4"}), HasSubstr("give --gpus-per-node 8"));
  EXPECT_THAT(refusal({"--command-file", file}), AllOf(HasSubstr("${DISTRIBUTED_ARGS[@]}"), HasSubstr("--run-script")));
  EXPECT_THAT(refusal({"--run-script", folder_.write("srun.sh", "srun torchrun x.py")}),
              HasSubstr("srun starts ranks itself"));
  EXPECT_THAT(refusal({"--run-script", "no-such-file"}), HasSubstr("cannot read 'no-such-file'"));
  EXPECT_THAT(refusal({"--run-script", "x", "--", "prog"}), HasSubstr("cannot be combined"));
}

TEST_F(LaunchSlurm, DirectivesInACommandFileAreWarnedAbout) {
  const std::string file = folder_.write("run.sh", "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH -t 60\ntorchrun x.py\n");
  const Finished run = launch({"--command-file", file, "--dry-run"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("have no effect: #SBATCH --nodes=4; #SBATCH -t 60\n"));
}

TEST_F(LaunchSlurm, OneFileForTheOutputOfAllRanksIsWarnedAbout) {
  const auto warning = [&](const std::string& style, const std::string& nodes) {
    const Finished run = launch({"--dry-run", "--style", style, "--nodes", nodes, "--", "torchrun x.py | tee run.log"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.err;
  };
  EXPECT_THAT(warning("srun", "1"), AllOf(HasSubstr("would overwrite one file: run.log"), HasSubstr("$SLURM_PROCID")));
  EXPECT_THAT(warning("torchrun", "2"), HasSubstr("run.log"));
  EXPECT_THAT(warning("torchrun", "1"), Not(HasSubstr("run.log")));
}

// A user who has these set wants them in the job; their values must not be in the file.
TEST_F(LaunchSlurm, SecretsOfTheCallerArePassedByName) {
  const Finished run =
      testing::run_program({"env", "HF_TOKEN=hf_verysecret", testing::built_program("braid"), "launch", "slurm",
                            "--container", "/images/x.sqsh", "--mount", "/:/host", "--dry-run", "--", "prog"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("--container-env=HF_TOKEN,"), Not(HasSubstr("verysecret"))));
}

// The excerpt of a script in docs/slurm.md matches what its command generates.
TEST_F(LaunchSlurm, TheDocumentedScriptIsUpToDate) {
  const std::string docs = testing::read_file(BRAID_SOURCE_DIR "/docs/slurm.md"), fence = "```bash\n";
  const std::size_t begin = docs.find(fence) + fence.size();
  const std::string made = script({"--nodes", "2", "--workdir", "/workspace", "--account", "team", "--partition",
                                   "batch", "--", "torchrun", "--nproc_per_node=8", "train.py", "--data", "$DATA"});
  EXPECT_THAT(docs, HasSubstr("`braid launch slurm --nodes 2 --workdir /workspace --account team --partition batch -- "
                              "torchrun --nproc_per_node=8 train.py --data '$DATA'`"));
  std::size_t at = 0;
  for (const std::string& line : split(docs.substr(begin, docs.find("```", begin) - begin), '\n')) {
    if (line.empty() || line == "...") continue;
    const std::size_t found = made.find("\n" + line + "\n", at);
    ASSERT_NE(found, std::string::npos) << line << "\n" << made;
    at = found + 1;
  }
  EXPECT_GT(at, 0u);
}

std::set<std::string> options_in(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match)
    found.insert((*match)[1]);
  return found;
}

TEST_F(LaunchSlurm, TheDocumentedOptionsAreComplete) {
  const std::string docs = testing::read_file(BRAID_SOURCE_DIR "/docs/slurm.md");
  std::string help = launch({"--help"}).out, rows;
  for (const std::string& line : split(docs.substr(docs.find("## Options")), '\n'))
    if (line.starts_with("| `")) rows += line.substr(0, line.find(" | ", 2)) + "\n";
  help.erase(help.find("Examples:"));
  const auto offered = options_in(help, std::regex("\n  (?:-., ?)?(--[a-z-]+)"));
  auto documented = options_in(rows, std::regex("`(--[a-z-]+)`"));
  documented.insert("--help");
  EXPECT_EQ(documented, offered);
}

TEST_F(LaunchSlurm, MisuseIsExplained) {
  EXPECT_THAT(refusal({}), HasSubstr("neither a recipe nor a command"));
  EXPECT_THAT(refusal({"--"}), HasSubstr("no command"));
  EXPECT_THAT(refusal({"--", ""}), HasSubstr("the name of the program is empty"));
  EXPECT_THAT(refusal({kRecipe, "--", "prog"}), HasSubstr("cannot be combined"));
  EXPECT_THAT(refusal({"--command-file", "x", "--", "prog"}), HasSubstr("cannot be combined"));
  EXPECT_THAT(refusal({"--lr", "1", "--", "prog"}),
              AllOf(HasSubstr("--train.lr is a recipe key"), HasSubstr("after --")));
  EXPECT_THAT(refusal({"--trian-iters", "1", kRecipe}), HasSubstr("did you mean --train-iters?"));
  EXPECT_THAT(refusal({"--nodez", "1", "--", "prog"}), HasSubstr("did you mean --nodes?"));
  EXPECT_THAT(refusal({"--srun", "--export=ALL,HF_TOKEN=abc", "--", "prog"}), HasSubstr("--secret HF_TOKEN"));
  EXPECT_THAT(refusal({"--warm-up", "a 'b", "--", "prog"}), AllOf(HasSubstr("is not closed"), HasSubstr("--warm-up")));
  EXPECT_THAT(refusal({"--nodes", "two", "--", "prog"}), HasSubstr("two"));
  EXPECT_THAT(refusal({"--", "srun", "prog"}), HasSubstr("srun starts ranks itself"));
  EXPECT_THAT(refusal({"--style", "torchrun", "--sbatch", "--ntasks-per-node=8", "--", "torchrun", "x.py"}),
              HasSubstr("EADDRINUSE"));
  EXPECT_THAT(refusal({"--stage", "x", "--", "prog"}), HasSubstr("only braid can be staged"));
  EXPECT_THAT(refusal({"no-such-recipe.yaml"}), HasSubstr("no-such-recipe.yaml"));
  EXPECT_THAT(refusal({"--", "torchrun", "--nproc_per_node=4", "x.py"}), HasSubstr("give --gpus-per-node 4"));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

}  // namespace
}  // namespace braid
