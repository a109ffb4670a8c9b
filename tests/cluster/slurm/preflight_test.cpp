// The checks before a job is submitted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cluster/slurm/job.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const TopologyConfig kNineNodes = {.world_size = 72,
                                   .modules = {{.name = "images", .kind = ModuleKind::Encoder, .dp = 8},
                                               {.name = "language", .tp = 2, .dp = 32, .ep = 16}}};
const Workload kParity = {.micro_batch = 1, .global_batch = 192, .num_experts = 128};

Preflight nodes_of(const TopologyConfig& topology, int nodes, int gpus_per_node = 8,
                   const Workload& workload = kParity) {
  Preflight preflight;
  check_nodes(topology, workload, {nodes, gpus_per_node}, preflight);
  return preflight;
}

TEST(Preflight, RanksMustFillTheNodes) {
  EXPECT_THAT(nodes_of(kNineNodes, 9).problems, IsEmpty());
  const Preflight ten = nodes_of(kNineNodes, 10);
  ASSERT_THAT(ten.problems, SizeIs(1));
  EXPECT_EQ(ten.problems[0].what, "the recipe has 72 ranks, but 10 nodes of 8 GPUs have 80");
  EXPECT_EQ(ten.problems[0].fix,
            "use --nodes 9 for the recipe as it is or --nodes 13 with --llm-dp 48 --topology.world_size 104");
}

// 4 more language lanes do not divide the batch of 192; 48 lanes on 13 nodes do.
TEST(Preflight, TheFixNamesTheNearestNodesThatWorkAndHow) {
  const Preflight twelve = nodes_of(kNineNodes, 12);
  ASSERT_THAT(twelve.problems, SizeIs(1));
  EXPECT_THAT(twelve.problems[0].fix, AllOf(HasSubstr("--nodes 9 for the recipe as it is"),
                                            HasSubstr("--nodes 13 with --llm-dp 48 --topology.world_size 104")));
  EXPECT_THAT(nodes_of(kNineNodes, 13).problems.at(0).fix, HasSubstr("--nodes 13 with --llm-dp 48"));
}

TEST(Preflight, RanksThatFillNoNodeOfThisSizeFillSmallerOnes) {
  const TopologyConfig six = {
      .modules = {{.name = "images", .kind = ModuleKind::Encoder, .dp = 2}, {.name = "language", .tp = 2, .dp = 2}}};
  EXPECT_THAT(nodes_of(six, 2, 8, {.micro_batch = 2, .global_batch = 8}).problems.at(0).fix,
              HasSubstr("--gpus-per-node 6 --nodes 1"));
  const Preflight one_node = nodes_of(six, 1, 8, {.micro_batch = 2, .global_batch = 8});
  EXPECT_THAT(one_node.problems, IsEmpty());
  EXPECT_THAT(one_node.warnings, SizeIs(1));
}

Preflight flags_on(const std::vector<std::string>& words, int nodes) {
  Preflight preflight;
  check_nodes(parallel_flags(words), {nodes, 8}, preflight);
  return preflight;
}

TEST(Preflight, SizesOfAForeignCommandMustDivideTheGpus) {
  EXPECT_THAT(
      flags_on({"pretrain_gpt.py", "--tensor-model-parallel-size", "4", "--expert-model-parallel-size=8"}, 4).problems,
      IsEmpty());
  EXPECT_THAT(
      flags_on({"--pipeline-model-parallel-size", "3", "--tensor-model-parallel-size", "8"}, 4).problems.at(0).fix,
      AllOf(HasSubstr("--nodes 3"), HasSubstr("--nodes 6")));
  EXPECT_THAT(
      flags_on({"model.tensor_model_parallel_size=2", "model.expert_model_parallel_size=64"}, 4).problems.at(0).what,
      AllOf(HasSubstr("4 nodes of 8 GPUs have 32"), HasSubstr("ep=64")));
  EXPECT_THAT(flags_on({"--micro-batch-size", "4", "--global-batch-size", "100"}, 2).problems.at(0).what,
              HasSubstr("global batch 100"));
  EXPECT_THAT(flags_on({"train.py", "--lr", "1e-4"}, 3).problems, IsEmpty());
}

TEST(Preflight, TwoGridsOfAForeignCommandMustFillTheGpus) {
  const std::vector<std::string> words = {"--encoder-tp", "1",  "--encoder-pp", "1", "--encoder-dp", "8",
                                          "--llm-offset", "8",  "--llm-tp",     "2", "--llm-pp",     "1",
                                          "--llm-dp",     "32", "--llm-ep",     "16"};
  EXPECT_THAT(flags_on(words, 9).problems, IsEmpty());
  EXPECT_THAT(flags_on(words, 8).problems.at(0).fix, HasSubstr("--nodes 9"));
}

TEST(Preflight, OnlyExpertParallelismShrinksExperts) {
  const ParallelFlags minimax = {
      .ep = 4, .experts = 256, .hidden = 3072, .expert_ffn = 1536, .layers = 68, .gated = true};
  Preflight preflight;
  const auto check = [&](const ParallelFlags& flags, const char* task, int nodes) {
    check_experts(flags, {.task = *find_task(task)}, {.nodes = nodes}, preflight);
  };
  check(minimax, "train", 8);
  ASSERT_THAT(preflight.warnings, SizeIs(1));
  EXPECT_THAT(preflight.warnings[0].what, AllOf(HasSubstr("64 experts per GPU"), HasSubstr("about 30 GB")));
  EXPECT_THAT(preflight.warnings[0].fix, HasSubstr("TP does not shrink experts; EP 32 would give 8 experts/GPU"));
  ParallelFlags with_ep_32 = minimax;
  with_ep_32.ep = 32;
  check(with_ep_32, "train", 8);
  EXPECT_THAT(preflight.warnings, SizeIs(1));
  check(minimax, "train", 1);
  EXPECT_THAT(preflight.warnings.back().fix, HasSubstr("more nodes"));
}

// MiniMax-M2, with the layouts that are known to be the smallest for each task.
TEST(Preflight, EveryTaskHasItsShareOfAGpu) {
  ParallelFlags minimax = {.experts = 256, .hidden = 3072, .expert_ffn = 1536, .layers = 62, .gated = true};
  for (const auto& [task, tp, least] : {std::tuple("convert", 2, 8), {"inference", 1, 16}, {"train", 2, 32}})
    for (const int ep : {4, 8, 16, 32}) {
      minimax.tp = tp;
      minimax.ep = ep;
      Preflight preflight;
      check_experts(minimax, {.task = *find_task(task)}, {.nodes = 8}, preflight);
      EXPECT_EQ(preflight.warnings.empty(), ep >= least) << task << ep;
    }
}

TEST(Preflight, Rank0OfAnExportAlsoHoldsWhatItGathers) {
  const ParallelFlags deepseek = {
      .tp = 8, .ep = 32, .experts = 256, .hidden = 7168, .expert_ffn = 2048, .layers = 58, .gated = true};
  const auto warnings = [&](bool exports, double gpu_gb) {
    Preflight preflight;
    check_experts(deepseek, {.task = *find_task("convert"), .gpu_gb = gpu_gb, .exports = exports}, {.nodes = 8},
                  preflight);
    return preflight.warnings;
  };
  EXPECT_THAT(warnings(true, 80), IsEmpty());
  EXPECT_THAT(warnings(false, 60), IsEmpty());
  ASSERT_THAT(warnings(true, 60), SizeIs(1));
  EXPECT_THAT(warnings(true, 60)[0].what,
              HasSubstr("rank 0 of an export also gathers the experts of a layer, 22.5 GB"));
  EXPECT_THAT(warnings(true, 60)[0].fix, HasSubstr("EP 64 would give 4 experts/GPU"));
}

TEST(Preflight, AProgramsNameSaysWhatItDoes) {
  for (const auto& [program, task] : {std::pair("pretrain_gpt", "train"),
                                      {"convert_checkpoints", "convert"},
                                      {"hf_megatron_roundtrip_multi_gpu", "convert"},
                                      {"hf_to_megatron_generate_text", "inference"},
                                      {"important", "train"},
                                      {"", "train"}})
    EXPECT_EQ(task_of(program).name, task) << program;
}

TEST(Preflight, SizesComeFromTheModelThatIsConverted) {
  ParallelFlags flags = {.experts = 8};
  take_model_sizes(R"({"text_config": {"num_local_experts": 256, "hidden_size": 3072, "intermediate_size": 1536,
                       "num_hidden_layers": 62, "hidden_act": "silu"}})",
                   flags);
  EXPECT_EQ(flags.experts, 8);
  EXPECT_EQ(flags.hidden, 3072);
  EXPECT_EQ(flags.expert_ffn, 1536);
  EXPECT_EQ(flags.layers, 62);
  EXPECT_TRUE(flags.gated);
  ParallelFlags hybrid;
  take_model_sizes(R"({"hybrid_override_pattern": "ME*E-", "num_hidden_layers": 5, "n_routed_experts": 128,
                       "hidden_size": -1, "mlp_hidden_act": "relu2"})",
                   hybrid);
  EXPECT_EQ(hybrid.layers, 2);
  EXPECT_EQ(hybrid.experts, 128);
  EXPECT_EQ(hybrid.hidden, std::nullopt);
  EXPECT_FALSE(hybrid.gated);
  for (const char* damaged : {"", "[]", "{\"text_config\": 3}", "{\"hidden_size\": 1e99}", "{\"num_experts\": []}"}) {
    ParallelFlags none;
    take_model_sizes(damaged, none);
    EXPECT_EQ(none.experts, std::nullopt) << damaged;
  }
}

TEST(Preflight, TheBannerNamesTheSizes) {
  const ParallelFlags flags = {.tp = 2, .pp = 2, .ep = 4, .micro_batch = 1, .global_batch = 128};
  EXPECT_EQ(sizes_text(flags, {.nodes = 2}), "16 GPUs on 2 nodes: TP 2, PP 2, CP 1, EP 4, DP 4, MBS 1, GBS 128");
  EXPECT_EQ(sizes_text({.grid_ranks = 72}, {.nodes = 9}), "72 GPUs on 9 nodes: two grids with 72 ranks");
}

TEST(Preflight, FilesMustExistAndBeShared) {
  const testing::TemporaryFolder folder;
  const std::string image = folder.write("image.sqsh", "");
  Preflight preflight;
  check_paths({{"--container", image, PathUse::MustExist},
               {"--container", "/no-such-file-system/image.sqsh", PathUse::MustExist},  // perhaps the nodes have it
               {"--log-dir", folder.path() + "/logs", PathUse::Written}},
              {1, 8}, preflight);
  EXPECT_THAT(preflight.problems, IsEmpty());
  ASSERT_THAT(preflight.warnings, SizeIs(1));
  EXPECT_THAT(preflight.warnings[0].what, HasSubstr("/no-such-file-system/image.sqsh' cannot be checked from here"));
  check_paths({{"--mount", folder.path() + "/data", PathUse::MustExist}}, {1, 8}, preflight);
  ASSERT_THAT(preflight.problems, SizeIs(1));
  EXPECT_THAT(preflight.problems[0].fix, HasSubstr(folder.path()));
}

TEST(Preflight, CachesOfSeveralNodesAreShared) {
  Preflight preflight;
  check_paths({{"HF_HOME", "/tmp/hf"}, {"UV_CACHE_DIR", "/dev/shm/uv"}}, {1, 8}, preflight);
  EXPECT_THAT(preflight.warnings, IsEmpty());
  check_paths({{"HF_HOME", "/tmp/hf"}, {"UV_CACHE_DIR", "/dev/shm/uv"}}, {2, 8}, preflight);
  EXPECT_THAT(preflight.warnings, SizeIs(2));
}

TEST(Preflight, AFolderThatCannotBeWrittenToIsAProblem) {
  const testing::TemporaryFolder folder;
  Preflight preflight;
  check_paths({{"--log-dir", folder.write("file", "") + "/logs", PathUse::Written}}, {1, 8}, preflight);
  EXPECT_THAT(preflight.problems, SizeIs(1));
}

const SlurmView kView = {
    .partitions = parse_partitions("batch*|up|4:00:00|4|gpu:8\nbatch*|up|4:00:00|2|gpu:h100:8(S:0-1),nvme:"
                                   "1\ninteractive|up|infinite|1|(null)\nold|down|1-00:00:00|9|gpu:4\n"),
    .associations = parse_associations("vision|\nspeech|interactive\n")};

Preflight asked(const SlurmRequest& request, const SlurmView& view = kView) {
  Preflight preflight;
  check_slurm(request, view, preflight);
  return preflight;
}

TEST(Preflight, PartitionAndAccountAreThoseThatSlurmOffers) {
  EXPECT_THAT(asked({.account = "vision", .partition = "batch", .time = "04:00:00", .allocation = {6, 8}}).problems,
              IsEmpty());
  EXPECT_THAT(asked({.account = "vision", .partition = "pool0", .time = "30"}).problems.at(0).fix,
              AllOf(HasSubstr("batch (the default, 6 nodes, up to 4:00:00)"), HasSubstr("interactive (1 node)"),
                    HasSubstr("not up")));
  EXPECT_THAT(asked({.account = "vision", .time = "30"}).problems.at(0).what, HasSubstr("no partition"));
  EXPECT_THAT(asked({.partition = "batch", .time = "30"}).problems.at(0).fix, HasSubstr("yours are vision, speech"));
  EXPECT_THAT(asked({.account = "speech", .partition = "batch", .time = "30"}).problems.at(0).what,
              HasSubstr("may not use partition 'batch'"));
  EXPECT_THAT(asked({.account = "visoin", .partition = "batch", .time = "30"}).problems.at(0).what,
              HasSubstr("visoin"));
  EXPECT_THAT(asked({.account = "vision", .partition = "batch", .time = "5:00:00"}).problems.at(0).what,
              HasSubstr("longer"));
  EXPECT_THAT(
      asked({.account = "vision", .partition = "batch", .time = "30", .allocation = {7, 8}}).problems.at(0).what,
      HasSubstr("6 nodes, not 7"));
}

TEST(Preflight, MistypedSizesDoNotOverflow) {
  EXPECT_THAT(flags_on({"--tensor-model-parallel-size", "1073741824", "--context-parallel-size", "1073741824",
                        "--pipeline-model-parallel-size", "1073741824"},
                       4)
                  .problems,
              IsEmpty());
  EXPECT_THAT(flags_on({"--tp", "1024", "--cp", "1024", "--pp", "1024", "--ep", "1023", "--etp", "1021"}, 4).problems,
              SizeIs(1));
  EXPECT_THAT(nodes_of(kNineNodes, 300000000).problems, SizeIs(1));
}

TEST(Preflight, PathsThatAreNone) {
  Preflight preflight;
  check_paths({{"HF_HOME", ""}, {"--mount", "/", PathUse::MustExist}}, {2, 8}, preflight);
  EXPECT_THAT(preflight.problems, IsEmpty());
}

TEST(Preflight, SeveralPartitionsAreEachLookedAt) {
  EXPECT_THAT(asked({.account = "vision", .partition = "batch,interactive", .time = "30"}).problems, IsEmpty());
  EXPECT_THAT(asked({.account = "vision", .partition = "batch,pool0", .time = "30"}).problems, SizeIs(1));
}

TEST(Preflight, NodesHaveTheGpusThatSinfoSays) {
  EXPECT_THAT(
      asked({.account = "vision", .partition = "batch", .time = "30", .allocation = {1, 16}}).problems.at(0).what,
      HasSubstr("have 8 GPUs, not 16"));
  EXPECT_THAT(asked({.account = "vision", .partition = "interactive", .time = "30", .allocation = {1, 16}}).problems,
              IsEmpty());
}

TEST(Preflight, WithoutSlurmNothingIsKnown) {
  const Preflight preflight = asked({.partition = "batch", .time = "30"}, SlurmView{});
  EXPECT_THAT(preflight.problems, IsEmpty());
  EXPECT_THAT(preflight.warnings, SizeIs(1));
}

}  // namespace
}  // namespace braid
