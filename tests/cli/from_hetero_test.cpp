// Commands of train_hetero.py, as its launchers print them, and the recipes of the same runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/strings.h"
#include "cli/from_megatron_support.h"
#include "run/recipe.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::converted;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::refusal;
using testing::squeezed;

struct Launch {
  int encoder_dp = 8;  // 0: the language model alone
  int tp = 4, dp = 64, ep = 16;
  int microbatches = 12, workers = 1, packing = 128;
  std::string schedule =
      "--lr 2e-4 --min-lr 2e-6 --weight-decay 0.05 --lr-decay-style cosine --lr-warmup-iters 10 "
      "--lr-decay-iters 100";
  std::string iterations = "100";
  std::string more{};  // behind the launcher's own arguments, over which it takes precedence
};

// What the launcher of the 54-layer model prints instead of starting it.
std::string dry_run(const Launch& run) {
  const int encoder = run.encoder_dp, ranks = encoder + run.tp * run.dp;
  return fmt::format(
      "[launch] WORLD_SIZE={0} (encoder {1})\n"
      "env CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_PROTO=simple /opt/venv/bin/python -u examples/mimo/train_hetero.py "
      "--model-provider nemotron-moe-vlm-54l --dataset-provider energon_multimodal --training-stage stage2 "
      "--encoder-tp 1 --encoder-cp 1 --encoder-pp 1 --encoder-dp {2} --encoder-ep 1 {3} --llm-offset {1} --llm-tp {4} "
      "--llm-cp 1 --llm-pp 1 --llm-dp {5} --llm-ep {6} --llm-expt-tp 1 --enable-experimental --pixel-shuffle "
      "--disable-vision-class-token --class-token-len 10 --vision-model-type radio --img-h 512 --img-w 512 "
      "--patch-dim 16 --moe-grouped-gemm --vocab-size 131072 --max-num-tiles 12 --data-path /run/data\\ blend.yaml "
      "--num-workers {7} {8} --shuffle-buffer-size 100 --max-samples-per-sequence 100 --tokenizer-model "
      "/models/tokenizer --tokenizer-prompt-format nemotron6-moe --image-token \\<image\\> --micro-batch-size 1 "
      "--num-microbatches {9} --global-batch-size {10} {11} --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 "
      "--no-overlap-grad-reduce --ddp-bucket-size 0 --log-interval 10 --train-iters {12} {13}\n",
      ranks, encoder, std::max(encoder, 1), encoder ? "" : "--llm-only", run.tp, run.dp, run.ep, run.workers,
      run.packing ? fmt::format("--packing-buffer-size {}", run.packing) : "", run.microbatches,
      run.microbatches * run.dp, run.schedule, run.iterations, run.more);
}

std::string wsd(std::int64_t samples, std::int64_t warmup, std::int64_t decay, std::int64_t wsd_decay) {
  return fmt::format(
      "--lr-decay-style WSD --lr 1.2e-3 --min-lr 1.2e-5 --weight-decay 0.1 --train-samples {} "
      "--lr-warmup-samples {} --lr-decay-samples {} --lr-wsd-decay-samples {} --lr-wsd-decay-style "
      "minus_sqrt ",
      samples, warmup, decay, wsd_decay);
}

const std::string kProduction =
    "--image-tag-type internvl --max-num-tiles 1 --overlap-grad-reduce --ddp-num-buckets 8 "
    "--ddp-pad-buckets-for-high-nccl-busbw --correct-encoder-grad-for-partial-participation --seed 1234 "
    "--log-interval 1 --tensorboard-dir tb ";
const std::string kGather = "--overlap-param-gather ", kDynamic = "--dynamic-resolution ",
                  kFixed = "--no-dynamic-resolution ", kRandom = "--moe-router-force-load-balancing ";
const std::string kSmoke =
    "--lr 2e-4 --min-lr 2e-6 --weight-decay 0.05 --lr-decay-style cosine --lr-warmup-iters 2 "
    "--lr-decay-iters 30";
std::string saves(const std::string& start) {
  return "--save /run/checkpoints --save-interval 1000 --dataloader-save /run/checkpoints/dataloader --no-load-optim "
         "--no-load-rng " +
         start + " ";
}

const std::map<std::string, Launch>& runs() {
  const std::string nemotron = saves("--load-nemotron-checkpoint /nemotron"),
                    vision = saves("--load-vision-from /radio");
  static const std::map<std::string, Launch> all = {
      {"3n", {8, 2, 8, 16, 1, 2, 4, "", "2", wsd(1200, 0, 121046313, 1) + kProduction + kGather + kFixed}},
      {"8n-text", {0, 2, 32, 8, 6, 4, 128, kSmoke, "30", kProduction + kGather}},
      {"9n-smoke", {8, 4, 16, 16, 12, 0, 128, kSmoke, "30", kProduction + kGather + kDynamic + kRandom}},
      {"9n", {8, 2, 32, 16, 6, 2, 4, "", "2", wsd(960000, 0, 121046313, 1) + kProduction + kGather + kFixed}},
      {"9n-gbs768",
       {8, 2, 32, 16, 24, 2, 128, "", "2",
        wsd(36621094, 1024000, 35597094, 5493164) + kProduction + kGather + kDynamic + vision + "--log-interval 100"}},
      {"17n", {8, 2, 64, 8, 6, 2, 4, "", "2", wsd(9600, 0, 121046313, 1) + kProduction + kGather + kDynamic}},
      {"33n",
       {8, 2, 128, 8, 6, 2, 128, "", "2",
        wsd(122070313, 1024000, 121046313, 18310547) + kProduction + kDynamic + nemotron}},
      {"34n", {16, 2, 128, 8, 6, 2, 4, "", "2", wsd(76800, 0, 121046313, 1) + kProduction + kDynamic + kRandom}},
      {"68n",
       {32, 2, 256, 8, 3, 2, 128, "", "2",
        wsd(122070313, 1024000, 121046313, 18310547) + kProduction + kDynamic + vision}},
      {"100n",
       {32, 2, 384, 8, 2, 2, 128, "", "2",
        wsd(122070313, 1024000, 121046313, 18310547) + kProduction + kDynamic + vision}}};
  return all;
}

// The recipe in full, without the places of files, and what no command line gives.
std::string comparable(Recipe recipe) {
  recipe.checkpoint.save = recipe.checkpoint.load = recipe.log.tensorboard_dir = "";
  recipe.checkpoint.init = {};
  recipe.data.set.path = recipe.data.set.tokenizer = recipe.data.set.prompt_format = "";
  recipe.data.media.clear();
  recipe.cluster = {};
  for (ModuleConfig& module : recipe.topology.modules) module.rank_offset = {};
  recipe.topology.world_size = {};
  return to_yaml(recipe);
}

TEST(FromHetero, TheRunsOfItsLaunchersAreTheRecipesOfTheSameName) {
  for (const auto& [name, launch] : runs()) {
    SCOPED_TRACE(name);
    const Recipe recipe = parse_recipe(converted(dry_run(launch)));
    const Recipe own = load_recipe(fmt::format("{}/recipes/nemotron-vlm-54l-{}.yaml", BRAID_SOURCE_DIR, name));
    EXPECT_EQ(comparable(recipe), comparable(own));
  }
}

TEST(FromHetero, TheLaunchersDefaults) {
  const std::string recipe = squeezed(converted(dry_run({})));
  for (const char* line :
       {"provider: nemotron-vlm-54l ", "dtype: bfloat16 # no --fp32", "sequence_parallel: true ", "global_batch: 768 ",
        "tp: 4 ", "fit: dynamic # train_hetero.py's default", "max_tiles: 12 ", "overlap_grad_reduce: false ",
        "decay_style: cosine ", "seed: 12345 # train_hetero.py's default", "correct_partial_participation: true ",
        "path: \"/run/data blend.yaml\" ", "packing_buffer: 128 ", "iterations: 100 ", "warmup_iterations: 10 ",
        "interval: 10 ", "vocab: 131072 ", "fully_reshardable: false "})
    EXPECT_THAT(recipe, HasSubstr(line));
  EXPECT_THAT(recipe, AllOf(Not(HasSubstr("bucket_")), Not(HasSubstr("eval_interval")), Not(HasSubstr("trace_dir"))));
}

TEST(FromHetero, ThePlainMockLauncher) {
  const std::string recipe =
      squeezed(converted("torchrun --standalone --nproc-per-node 8 train_hetero.py --train-iters 2"));
  for (const char* line : {"provider: tiny-vlm ", "pattern: \"*E*E\" ", "tp: 2 ", "rank_offset: 4 ", "dp: 2 ", "ep: 2 ",
                           "global_batch: 8 ", "vocab: 512 ", "sequence_length: 32 ", "lr: 1e-4 ", "mock: true "})
    EXPECT_THAT(recipe, HasSubstr(line));
}

TEST(FromHetero, ItsParserIsPythons) {
  const std::string command = "train_hetero.py --llm-dp 4 ";
  EXPECT_THAT(converted(command + "--train-it=5 --overlap-grad-red --no-overlap-param --overlap-param-gather"),
              AllOf(HasSubstr("iterations: 5 "), HasSubstr("overlap_param_gather: true ")));
  EXPECT_THAT(converted(command + "--min-lr -0 --lr 2E-4 --model-preset mock"), HasSubstr("lr: 2E-4 "));
  EXPECT_THAT(refusal(command + "--train 5"),
              HasSubstr("short for more than one flag: --train-iters, --train-samples"));
  EXPECT_THAT(refusal(command + "--fp32=1"), HasSubstr("--fp32 takes no value"));
  EXPECT_THAT(refusal(command + "--llm-tp two"), HasSubstr("--llm-tp should be an integer, not 'two'"));
  EXPECT_THAT(refusal(command + "--llm-tp"), HasSubstr("--llm-tp has no value"));
  EXPECT_THAT(refusal(command + "--training-stage stage4"), HasSubstr("should be stage1 or stage2 or stage3"));
}

TEST(FromHetero, WhatItRefusesIsRefused) {
  const std::string command = "train_hetero.py --llm-dp 4 ";
  EXPECT_THAT(refusal(command + "--global-batch-size 8"), HasSubstr("contradicts 2 samples x 2 microbatches x 4"));
  EXPECT_THAT(refusal(command + "--load a --load-vision-from b"), HasSubstr("exclude each other"));
  EXPECT_THAT(refusal(command + "--save-interval 10"), HasSubstr("needs --save"));
  EXPECT_THAT(refusal(command + "--lr-decay-style WSD"), HasSubstr("WSD needs --lr-wsd-decay-samples"));
  EXPECT_THAT(refusal(command + "--llm-only"), HasSubstr("needs --llm-offset 0, not 4"));
  EXPECT_THAT(refusal(command + "--dataset-provider energon_multimodal"), HasSubstr("needs --data-path"));
}

TEST(FromHetero, FlagsOfMegatronAreReadAsMegatrons) {
  const std::string recipe =
      converted("train_hetero.py --mtp-num-layers 0 --profile-step-start 3 --wandb-project x --unheard-of 1");
  for (const char* line : {"step_start: 3 ", "which is read as Megatron's", "--wandb-project x", "--unheard-of 1"})
    EXPECT_THAT(recipe, HasSubstr(line));
}

TEST(FromHetero, BucketsAreThoseOfMegatron) {
  const std::string command = "train_hetero.py --llm-dp 4 ";
  EXPECT_THAT(converted(command), Not(HasSubstr("bucket_")));
  EXPECT_THAT(converted(command + "--overlap-grad-reduce"), HasSubstr("bucket_size: 10000 "));
  EXPECT_THAT(converted(command + "--overlap-grad-reduce --ddp-bucket-size 0"), Not(HasSubstr("bucket_")));
  EXPECT_THAT(converted(command + "--ddp-num-buckets 8"),
              AllOf(HasSubstr("bucket_count: 8 "), Not(HasSubstr("bucket_size"))));
}

}  // namespace
}  // namespace braid
