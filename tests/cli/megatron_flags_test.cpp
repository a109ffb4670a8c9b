// Command lines written for Megatron-LM: one answer for all their flags.
#include "cluster/megatron/megatron_flags.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/strings.h"
#include "cli/cli_support.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kTinyVlm = BRAID_SOURCE_DIR "/recipes/tiny-vlm.yaml";

TEST(MegatronFlags, OneAnswerForTheWholeCommandLine) {
  const Finished run = braid({"train",
                              kTinyVlm,
                              "--lr",
                              "1e-3",
                              "--num-layers",
                              "32",
                              "--hidden-size",
                              "4096",
                              "--wandb-project",
                              "x",
                              "--wandb-exp-name",
                              "y",
                              "--hidden-dropout",
                              "0.1",
                              "--attention-dropout",
                              "0.0",
                              "--distributed-timeout-minutes",
                              "10",
                              "--nproc_per_node",
                              "8",
                              "--use-mcore-models",
                              "--data-path",
                              "0.3",
                              "a",
                              "0.7",
                              "b",
                              "--an-own-flag",
                              "3",
                              "--train-itres",
                              "5"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, AllOf(HasSubstr("  use a recipe key instead:\n"),
                             HasSubstr("--hidden-size 4096: write --model.language.hidden 4096\n"),
                             HasSubstr("--num-layers 32:\n        write --model.language.layers 32 (Llama;"),
                             HasSubstr("write --dist.hang_limit_s 600 (in seconds)"), HasSubstr("  not supported:\n"),
                             HasSubstr("--wandb-project x, --wandb-exp-name y:\n        use --tensorboard-dir"),
                             HasSubstr("--hidden-dropout 0.1: there is no dropout"),
                             HasSubstr("--nproc_per_node:\n        this is an option of torchrun")));
  EXPECT_THAT(run.err, AllOf(HasSubstr("  unknown:\n"), HasSubstr("--train-itres: did you mean --train-iters?"),
                             HasSubstr("--an-own-flag:\n        recipe keys are given with their section"),
                             HasSubstr("  no effect:\n"), HasSubstr("--attention-dropout 0.0: there is no dropout"),
                             HasSubstr("--use-mcore-models: each operator has only one implementation"),
                             HasSubstr("  accepted:\n    --lr --data-path\n"), HasSubstr("--from-megatron"),
                             Not(HasSubstr("--num-workers"))));
}

TEST(MegatronFlags, FlagsWithoutEffectDoNotStopARun) {
  EXPECT_EQ(braid({"train", kTinyVlm, "--print-recipe", "--accumulate-allreduce-grads-in-fp32", "--ckpt-format",
                   "torch_dist", "--calculate-per-token-loss", "--exit-signal-handler"})
                .exit_code,
            0);
  EXPECT_THAT(braid({"train", kTinyVlm, "--print-recipe", "--ckpt-format", "torch"}).err,
              AllOf(HasSubstr("not supported"), HasSubstr("--ckpt-format torch:\n        checkpoints use torch_dist")));
  EXPECT_THAT(braid({"plan", "show", kTinyVlm, "--hidden-size", "128"}).err, HasSubstr("--model.language.hidden 128"));
}

TEST(MegatronFlags, FlagsOfTheOtherModelFamilyAreRefused) {
  EXPECT_EQ(braid({"train", kTinyVlm, "--print-recipe", "--squared-relu"}).exit_code, 0);
  const Finished run = braid({"train", kTinyVlm, "--print-recipe", "--swiglu"});  // a hybrid
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, HasSubstr("  not supported:\n    --swiglu: a hybrid's MLPs use squared ReLU\n"));
  EXPECT_THAT(braid({"train", kTinyVlm, "--hidden-size"}).err, HasSubstr("--hidden-size needs a value"));
  EXPECT_EQ(braid({"plan", "show", kTinyVlm, "--position-embedding-type", "none"}).exit_code, 0);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"train", kTinyVlm, "--print-recipe"},
                                                  {"plan", "show", kTinyVlm},
                                                  {"plan", "schedule", kTinyVlm},
                                                  {"launch", "slurm", kTinyVlm, "--dry-run"},
                                                  {"launch", "local", kTinyVlm}}) {
    std::vector<std::string> words = command;
    words.insert(words.end(), {"--position-embedding-type", "rope"});
    const Finished rope = braid(words);
    EXPECT_EQ(rope.exit_code, 2) << command[0];
    EXPECT_THAT(rope.err, HasSubstr("--position-embedding-type rope:\n        Llama has rotary embeddings"));
  }
}

// The data flags of Megatron's multimodal trainer, as keys of the recipe.
TEST(MegatronFlags, DataFlagsAreRecipeKeys) {
  const auto keys = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"train", kTinyVlm, "--print-recipe"});
    const Finished run = braid(flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    std::string text;  // without the comments
    for (std::string line : split(run.out, '\n')) {
      line.resize(line.find(" #") == line.npos ? line.size() : line.find(" #"));
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return text;
  };
  const std::string recipe = keys({"--data-path",
                                   "/data/set",
                                   "--tokenizer-model",
                                   "/tok",
                                   "--tokenizer-type",
                                   "MultimodalTokenizer",
                                   "--tokenizer-prompt-format",
                                   "qwen2p5",
                                   "--image-tag-type",
                                   "internvl",
                                   "--dynamic-resolution",
                                   "--dynamic-resolution-min-patches",
                                   "64",
                                   "--dynamic-resolution-max-patches",
                                   "1024",
                                   "--max-num-tiles",
                                   "6",
                                   "--use-thumbnail",
                                   "--num-workers",
                                   "3",
                                   "--dataloader-save",
                                   "there",
                                   "--packing-buffer-size",
                                   "32",
                                   "--shuffle-buffer-size",
                                   "100",
                                   "--max-samples-per-sequence",
                                   "50",
                                   "--seq-length",
                                   "8",
                                   "--decoder-seq-length",
                                   "256",
                                   "--eval-interval",
                                   "20",
                                   "--eval-iters",
                                   "4",
                                   "--dataloader-type",
                                   "external"});
  for (const char* line :
       {"  path: \"/data/set\"\n", "  tokenizer: \"/tok\"\n", "  prompt_format: \"qwen2p5\"\n",
        "  image_tag: internvl\n", "    fit: dynamic\n", "    min_patches: 64\n", "    max_patches: 1024\n",
        "    max_tiles: 6\n", "    thumbnail: true\n", "  num_workers: 3\n", "  packing_buffer: 32\n",
        "  shuffle_buffer: 100\n", "  max_samples_per_sequence: 50\n", "  sequence_length: 256\n",
        "  eval_interval: 20\n", "  eval_iterations: 4\n", "  mock: auto\n"})
    EXPECT_THAT(recipe, HasSubstr(line));
  EXPECT_THAT(keys({"--no-dynamic-resolution"}), HasSubstr("fit: square\n"));
  EXPECT_THAT(keys({"--use-tiling", "--no-dynamic-resolution"}), HasSubstr("fit: tiles\n"));
  EXPECT_THAT(keys({"--decoder-seq-length", "256", "--seq_length", "8"}), HasSubstr("sequence_length: 256\n"));
  EXPECT_THAT(keys({"--mock-data", "--eval-iters", "0"}),
              AllOf(HasSubstr("mock: true\n"), HasSubstr("eval_iterations: 0\n")));
  EXPECT_THAT(braid({"train", kTinyVlm, "--use-tiling", "--dynamic-resolution"}).err,
              HasSubstr("--use-tiling and --dynamic-resolution contradict each other"));
  EXPECT_THAT(keys({"--data-path", "1", "a", "2", "b", "--split", "90,10"}),
              AllOf(HasSubstr("path: \"1 a 2 b\"\n"), HasSubstr("document_split: \"90,10\"\n")));
  EXPECT_THAT(braid({"train", kTinyVlm, "--prompt-path", "p", "--skip-train"}).err,
              AllOf(HasSubstr("put prompts into the samples"), HasSubstr("use braid eval RECIPE")));
}

TEST(MegatronFlags, ModulesToRecomputeHaveOtherNames) {
  const MegatronFlag& flag = *find_megatron_flag("recompute-modules");
  EXPECT_EQ(recipe_value(flag, "layernorm core_attn moe"), "norms,experts");
  EXPECT_EQ(recipe_value(flag, "layernorm moe_act layernorm"), "norms,activations");
  EXPECT_EQ(recipe_value(flag, "core_attn"), "false");
  EXPECT_EQ(verdict_for(flag, "moe_act moe", ModelFamily::Any), FlagVerdict::Rewritten);
  EXPECT_EQ(verdict_for(flag, "moe_act mlp", ModelFamily::Any), FlagVerdict::Unsupported);
}

TEST(MegatronFlags, TheDocumentedTableIsUpToDate) {
  const std::string page = testing::read_file(BRAID_SOURCE_DIR "/docs/megatron-flags.md");
  const Finished tables = braid({"train", "--megatron-flags"});
  EXPECT_EQ(tables.exit_code, 0) << tables.err;
  EXPECT_TRUE(page.ends_with(tables.out)) << "docs/megatron-flags.md should end with the output of braid train "
                                             "--megatron-flags";
  int rows = 0;
  for (const std::string& line : split(tables.out, '\n')) rows += line.starts_with("| `--");
  EXPECT_GT(rows, 300);
}

// Every key of a printed recipe with its sections, including those without a value.
void add_keys(const std::string& yaml, std::set<std::string>& keys) {
  std::vector<std::string> path;
  for (const std::string& line : split(yaml, '\n')) {
    if (line.empty()) continue;
    const std::size_t begin = line.find_first_not_of(' ');
    path.resize(begin / 2);
    std::string key = line.substr(begin);
    if (key.starts_with("# ")) key.erase(0, 2);
    path.push_back(key.substr(0, key.find(':')));
    std::string joined = path[0];
    for (std::size_t i = 1; i < path.size(); ++i) joined += "." + path[i];
    keys.insert(joined);
  }
}

// "N" stands for a number only alone or before a factor.
TEST(MegatronFlags, AValueThatBeginsWithNIsWritten) {
  const std::vector<MegatronFlag> flags = parse_flag_table(
      "[accepted]\n"
      "a -> dist.backend=NCCL\n"
      "b= -> train.global_batch=N: N is a product\n"
      "c= -> dist.hang_limit_s=N*60: in seconds\n");
  ASSERT_EQ(flags.size(), 3u);
  EXPECT_EQ(recipe_value(flags[0], ""), "NCCL");
  EXPECT_EQ(recipe_value(flags[1], "7"), "N");
  EXPECT_EQ(recipe_value(flags[2], "7"), "420");
}

TEST(MegatronFlags, EveryKeyInTheTableIsARecipeKey) {
  std::set<std::string> keys;
  for (const char* recipe : {"tiny-vlm", "tiny-llava"})
    add_keys(braid({"train", std::string(BRAID_SOURCE_DIR "/recipes/") + recipe + ".yaml", "--print-recipe"}).out,
             keys);
  int checked = 0;
  for (const std::string& line : split(megatron_flags_tables(), '\n')) {
    const std::vector<std::string> cells = split(line, '|');
    if (cells.size() < 3 || !cells[2].starts_with(" `")) continue;
    const std::string key = split(split(cells[2], '`')[1], '=')[0];
    EXPECT_TRUE(keys.count(key)) << line;
    ++checked;
  }
  EXPECT_GT(checked, 100);
}

}  // namespace
}  // namespace braid
