// What is refused before a script is generated: options, and commands that do not fit them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cluster/local/fake_cluster.h"
#include "cluster/slurm/script.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::FakeCluster;
using ::testing::HasSubstr;
using ::testing::Not;

std::string problems_of(const std::function<void(SlurmOptions&)>& change) {
  SlurmOptions options;
  change(options);
  std::string all;
  for (const Problem& problem : validate(options))
    all += problem.where + ": " + problem.what + "; " + problem.fix + "\n";
  return all;
}

TEST(SlurmOptions, InvalidOptionsAreRefused) {
  using Options = SlurmOptions;
  EXPECT_EQ(problems_of([](Options&) {}), "");
  EXPECT_THAT(problems_of([](Options& o) { o.nodes = 0; }), HasSubstr("--nodes: the number of nodes is 0"));
  EXPECT_THAT(problems_of([](Options& o) { o.style = "mpi"; }), HasSubstr("unknown style 'mpi'"));
  EXPECT_THAT(problems_of([](Options& o) { o.container = "x", o.mounts = {"/data"}; }), HasSubstr("/data:/data"));
  EXPECT_THAT(problems_of([](Options& o) { o.container = "x", o.mounts = {"/a:/b,/c:/d"}; }), HasSubstr("comma"));
  EXPECT_THAT(problems_of([](Options& o) { o.mounts = {"/a:/b"}; }), HasSubstr("no container"));
  EXPECT_THAT(problems_of([](Options& o) { o.env = {"1A=2"}; }), HasSubstr("name of a variable"));
  EXPECT_THAT(problems_of([](Options& o) { o.env = {"A"}; }), HasSubstr("no value"));
  EXPECT_THAT(problems_of([](Options& o) { o.env = {"HF_TOKEN=abc"}; }),
              AllOf(HasSubstr("--secret HF_TOKEN"), Not(HasSubstr("abc"))));
  const std::string token = "hf_0123456789abcdefghijklmn";
  for (const auto& change : std::vector<std::function<void(Options&)>>{
           [&](Options& o) { o.env = {"A=x " + token}; }, [&](Options& o) { o.warm_up = "x " + token; },
           [&](Options& o) { o.sbatch = {"--comment=" + token}; }})
    EXPECT_THAT(problems_of(change),
                AllOf(HasSubstr("Hugging Face token"), HasSubstr("--secret NAME"), Not(HasSubstr("0123"))));
  EXPECT_THAT(problems_of([](Options& o) { o.secrets = {"HF_TOKEN=abc"}; }),
              AllOf(HasSubstr("name only"), Not(HasSubstr("abc"))));
  EXPECT_THAT(problems_of([](Options& o) { o.account = "a\n#SBATCH --nodes=99"; }), HasSubstr("line break"));
  EXPECT_THAT(problems_of([](Options& o) { o.job_name = "a/b c"; }), HasSubstr("a-b-c"));
  EXPECT_THAT(problems_of([](Options& o) { o.stop_signal = "HUP"; }), HasSubstr("unsupported stop signal 'HUP'"));
  EXPECT_THAT(problems_of([](Options& o) { o.stop_lead_s = 0; }),
              HasSubstr("--stop-lead: the signal cannot be sent 0 s"));
  for (const char* further : {"--ntasks-per-node=8", "--ntasks-per-node 8"}) {
    EXPECT_THAT(problems_of([&](Options& o) { o.style = "torchrun", o.sbatch = {further}; }), HasSubstr("EADDRINUSE"));
    EXPECT_THAT(problems_of([&](Options& o) { o.style = "torchrun", o.srun = {further}; }), HasSubstr("EADDRINUSE"));
  }
  EXPECT_THAT(problems_of([](Options& o) { o.srun = {"-N4"}; }), HasSubstr("use --nodes"));
  EXPECT_THAT(problems_of([](Options& o) { o.sbatch = {"--no-container-mount-home"}; }),
              AllOf(HasSubstr("an option of srun"), HasSubstr("the script gives it to srun")));
  EXPECT_THAT(problems_of([](Options& o) { o.sbatch = {"--container-name=x"}; }),
              HasSubstr("give --srun '--container-name=x'"));
  EXPECT_THAT(problems_of([](Options& o) { o.srun = {"--container-mounts=/a:/b"}; }), HasSubstr("use --mount"));
  EXPECT_THAT(problems_of([](Options& o) { o.container = "nvcr.io/x/y"; }), HasSubstr("nvcr.io#x/y"));
  EXPECT_THAT(problems_of([](Options& o) { o.container = "x", o.mounts = {"/a:b"}; }), HasSubstr("write /a:/b"));
  EXPECT_THAT(problems_of([](Options& o) { o.task = "sleep"; }), HasSubstr("unknown task 'sleep'"));
  for (const char* taken :
       {"--output=x", "-ox", "--error x", "--job-name=x", "-J x", "--time=1", "-t1", "--signal=USR1"})
    EXPECT_THAT(problems_of([&](Options& o) { o.sbatch = {taken}; }),
                HasSubstr("conflicts with an option that the script sets"))
        << taken;
  EXPECT_THAT(problems_of([](Options& o) { o.sbatch = {"--output=x"}; }), HasSubstr("use --log-dir"));
  for (const char* free : {"--exclude=n1", "--time-min=1", "--nodelist n1", "-w n1", "-k"})
    EXPECT_EQ(problems_of([&](Options& o) { o.sbatch = {free}; }), "") << free;
  EXPECT_EQ(problems_of([](Options& o) { o.srun = {"--time=1"}; }), "") << "a step may be shorter";
  EXPECT_THAT(problems_of([](Options& o) { o.srun = {"-w"}; }), HasSubstr("-w has no value"));
  EXPECT_THAT(problems_of([](Options& o) { o.nodes = 0, o.time = "x", o.style = "y"; }),
              AllOf(HasSubstr("--nodes"), HasSubstr("--time"), HasSubstr("--style")));
}

std::string error_of(const SlurmOptions& options, const std::string& text) {
  return testing::error_of([&] { testing::script_of(options, text); });
}

// Jobs that get no signal may be of any length.
TEST(SlurmOptions, TheSignalMustFitTheTime) {
  const FakeCluster cluster;
  SlurmOptions options = cluster.options();
  options.time = "2";
  EXPECT_EQ(error_of(options, "prog"), "no error");
  options.requeue = true;
  EXPECT_THAT(error_of(options, "prog"),
              AllOf(HasSubstr("does not fit the time limit of 2"), HasSubstr("--stop-lead")));
  options.stop_lead_s = 119;
  EXPECT_EQ(error_of(options, "prog"), "no error");
}

TEST(SlurmOptions, PathsAreThoseOfTheWorkingFolder) {
  SlurmOptions options;
  options.workdir = "work";
  options.container = "images/x.sqsh";
  options.mounts = {"data:/data:ro", "../b:/b", "/c:/c"};
  options.cache_dir = "cache/";
  const SlurmOptions absolute = with_absolute_paths(options, "/home/me");
  EXPECT_EQ(absolute.workdir, "/home/me/work");
  EXPECT_EQ(absolute.log_dir, "/home/me/work/logs");
  EXPECT_EQ(absolute.cache_dir, "/home/me/work/cache");
  EXPECT_EQ(absolute.stage, "");
  EXPECT_EQ(absolute.container, "/home/me/work/images/x.sqsh");
  EXPECT_THAT(absolute.mounts, ::testing::ElementsAre("/home/me/work/data:/data:ro", "/home/me/b:/b", "/c:/c"));
  options.container = "nvcr.io#nvidia/pytorch:25.01";
  EXPECT_EQ(with_absolute_paths(options, "/home/me").container, options.container);
}

// Both halves of a mount name the same folder, and it does not matter which one is given.
TEST(SlurmOptions, PathsOfAContainerAreTranslated) {
  const auto made = [](const std::string& workdir, const std::string& log_dir, std::vector<std::string> mounts) {
    SlurmOptions options;
    options.container = "image";
    options.workdir = workdir;
    options.log_dir = log_dir;
    options.cache_dir = "cache";
    options.mounts = std::move(mounts);
    return with_absolute_paths(options, "/home/me/code");
  };
  for (const SlurmOptions& options :
       {made("/opt/work/sub", "logs", {"/home/me/code:/opt/work"}), made("sub", "logs", {"/home/me/code:/opt/work"}),
        made("sub", "/opt/work/sub/logs", {"..:/opt/work:ro"}), made("/opt/work/sub/", "logs", {".:/opt/work/"})}) {
    EXPECT_EQ(options.workdir, "/opt/work/sub");
    EXPECT_EQ(options.host_workdir, "/home/me/code/sub");
    EXPECT_EQ(options.log_dir, "/home/me/code/sub/logs");
    EXPECT_EQ(options.cache_dir, "/opt/work/sub/cache");
    EXPECT_EQ(path_on_host(options, "/opt/work/a"), "/home/me/code/a");
    EXPECT_EQ(path_on_host(options, "/opt/worker"), std::nullopt);
    EXPECT_EQ(path_inside(options, "/home/me/code"), "/opt/work");
    EXPECT_EQ(path_inside(options, "/home/me"), std::nullopt);
  }
  const SlurmOptions of_image = made("/opt/image", "logs", {});
  EXPECT_EQ(of_image.workdir, "/opt/image");
  EXPECT_EQ(of_image.host_workdir, "");
  EXPECT_EQ(of_image.log_dir, "/home/me/code/logs");
}

// Mounts are made in their order, so a later one can hide an earlier one.
TEST(SlurmOptions, TheLastMountOfAFolderCounts) {
  SlurmOptions options;
  options.container = "image";
  options.mounts = {"/a:/x", "/b:/x/y", "/c:/z/w", "/d:/z"};
  EXPECT_EQ(path_on_host(options, "/x/y/1"), "/b/1");
  EXPECT_EQ(path_on_host(options, "/z/w/1"), "/d/w/1");
  EXPECT_EQ(path_inside(options, "/c/1"), std::nullopt);
  EXPECT_EQ(path_inside(options, "/a/y"), std::nullopt);
}

TEST(SlurmOptions, ARegistryIsFollowedByAHash) {
  const auto fix = [](const std::string& image) {
    const auto problem = image_problem(image);
    return problem ? problem->fix : "";
  };
  for (const char* right : {"ubuntu", "ubuntu:24.04", "nvidia/pytorch:24.01", "nvcr.io#nvidia/pytorch:24.01",
                            "me@nvcr.io#a/b", "docker://nvcr.io#a/b", "localhost:5000#x", "dockerd://nvcr.io/a",
                            "/images/nvcr.io/x", "./x", "nvcr.io/x.sqsh", "ubuntu@sha256:ab"})
    EXPECT_EQ(fix(right), "") << right;
  for (const auto& [wrong, right] : {std::pair("nvcr.io/nvidia/pytorch:24.01", "'nvcr.io#nvidia/pytorch:24.01'"),
                                     {"docker://nvcr.io/nvidia/x", "'nvcr.io#nvidia/x'"},
                                     {"$oauthtoken@nvcr.io/a/b", "'$oauthtoken@nvcr.io#a/b'"},
                                     {"localhost:5000/x", "'localhost:5000#x'"},
                                     {"nvcr.io/nvidia#pytorch", "'nvcr.io#nvidia/pytorch'"},
                                     {"docker.io/library/ubuntu", "'library/ubuntu'"},
                                     {"https://nvcr.io/a/b", "'nvcr.io#a/b'"}})
    EXPECT_EQ(fix(wrong), std::string("give --container ") + right);
  for (const char* none : {"#x", "nvcr.io#", "a#b#c", "podman://x", "a/b#c"})
    EXPECT_THAT(fix(none), HasSubstr("[REGISTRY#]IMAGE")) << none;
}

// Otherwise every rank would start a torchrun.
TEST(SlurmOptions, ScriptsThatCallTorchrunAreRefused) {
  const FakeCluster cluster;
  std::ofstream(cluster.path("work/run.sh")) << "#!/bin/bash\ncd x\ntorchrun --nproc_per_node=2 x.py\n";
  std::ofstream(cluster.path("work/other.sh")) << "#!/bin/bash\npython x.py  # not torchrun\n";
  for (const char* text : {"bash run.sh", "cd x; ./run.sh 1", "source run.sh", "env A=1 bash run.sh"})
    EXPECT_THAT(error_of(cluster.options(), text),
                AllOf(HasSubstr("calls torchrun itself"), HasSubstr("--command-file")))
        << text;
  EXPECT_EQ(error_of(cluster.options(), "bash other.sh run"), "no error");
  std::ofstream(cluster.path("work/start")) << "torchrun x.py\n";
  EXPECT_THAT(error_of(cluster.options(), "bash start"), HasSubstr("calls torchrun itself"));
  EXPECT_EQ(error_of(cluster.options(), "prog --notes start"), "no error");
}

TEST(SlurmOptions, CommandsThatDoNotFitAreRefused) {
  const SlurmOptions options = FakeCluster().options();
  EXPECT_THAT(error_of(options, "torchrun --nproc_per_node=8 x.py"),
              AllOf(HasSubstr("8 ranks per node"), HasSubstr("2 GPUs per node"), HasSubstr("--gpus-per-node 8"),
                    HasSubstr("--nproc_per_node in the command to 2")));
  EXPECT_THAT(error_of(options, "torchrun --nnodes=4 x.py"), AllOf(HasSubstr("--nnodes=4"), HasSubstr("--nodes 2")));
  EXPECT_EQ(error_of(options, "torchrun --nnodes=1 x.py"), "no error");
  EXPECT_THAT(error_of(options, " \n"), HasSubstr("no command"));
  EXPECT_THAT(error_of(options, "a\r\nb"), HasSubstr("dos2unix"));
  EXPECT_THAT(error_of(options, "a 'b"), HasSubstr("is not closed"));
  EXPECT_THAT(error_of(options, "prog " + std::string(200000, 'x')),
              AllOf(HasSubstr("196 KiB"), HasSubstr("at most 100 KiB"), HasSubstr("put it into a file")));
  EXPECT_THAT(error_of(options, "HF_TOKEN=abc prog"), AllOf(HasSubstr("--secret HF_TOKEN"), Not(HasSubstr("abc"))));
}

}  // namespace
}  // namespace braid
