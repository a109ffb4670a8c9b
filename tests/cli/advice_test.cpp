// What the program says to wrong recipes and command lines: each row has a mistake, what the message must say about it,
// and what it must not say. The advice is checked, too: rows with `mended` run without problems.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cli/cli_support.h"
#include "support/programs.h"

namespace braid {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TemporaryFolder;

const std::string kRecipes = BRAID_SOURCE_DIR "/recipes/";
const std::string kLanguage = "topology: {modules: {language: {kind: language, tp: 2}}}\n";

struct Row {
  std::string recipe;              // text, or the name of a recipe
  std::vector<std::string> flags;  // of `braid plan bytes`
  std::vector<std::string> says;
  std::vector<std::string> says_not{};
  std::vector<std::string> mended{};  // flags with the advice followed
};

class Advice : public ::testing::Test {
 protected:
  Finished run(const std::string& recipe, const std::vector<std::string>& flags) {
    std::string path = kRecipes + recipe;
    if (recipe.find('\n') != std::string::npos) {
      path = folder_.path() + "/recipe.yaml";
      std::ofstream(path) << recipe;
    }
    std::vector<std::string> words = {"plan", "bytes", path};
    words.insert(words.end(), flags.begin(), flags.end());
    return braid(words);
  }

  void check(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      const Finished finished = run(row.recipe, row.flags);
      SCOPED_TRACE(row.recipe + ::testing::PrintToString(row.flags));
      EXPECT_EQ(finished.exit_code, 2) << finished.out;
      for (const std::string& text : row.says) EXPECT_THAT(finished.err, HasSubstr(text));
      for (const std::string& text : row.says_not) EXPECT_THAT(finished.err, Not(HasSubstr(text)));
      if (row.mended.empty()) continue;
      const Finished again = run(row.recipe, row.mended);
      EXPECT_EQ(again.exit_code, 0) << again.err;
    }
  }

  TemporaryFolder folder_;
};

// The sizes of the small providers are for tests: a recipe that sets a width gets none of them, and learns of all that
// are missing at once.
TEST_F(Advice, SizesOfModelsForTestsDoNotApply) {
  const std::string sizes = "layers: 32, heads: 32, kv_heads: 8, head_dim: 128, ffn: 14336";
  const std::string llama = kLanguage + "model: {provider: tiny-llava, language: {hidden: 4096";
  check({
      {llama + "}}\n",
       {},
       {"model.language.hidden is set, so the sizes of tiny-llava, a model for tests, do not apply: 7 sizes are "
        "missing",
        "recipe.yaml:2, model.language.hidden",
        "set model.language.layers, model.language.vocab, model.language.heads, model.language.kv_heads, "
        "model.language.head_dim, model.language.ffn, data.sequence_length"}},
      {llama + ", " + sizes + "}}\n", {}, {"2 sizes are missing", "set model.language.vocab, data.sequence_length"}},
      {llama + ", " + sizes + "}}\n",
       {"--seq-length", "8192"},
       {"1 size is missing", "set model.language.vocab\n"},
       {},
       {"--seq-length", "8192", "--model.language.vocab", "128256"}},
      {kLanguage + "model: {language: {hidden: 128, pattern: '*-'}}\n",
       {},
       {"set model.language.vocab, model.language.heads", "model.language.ffn"},
       {"mamba", "experts", "encoder"}},
      {kLanguage + "model: {provider: tiny-llava, language: {vocab: 128256, heads: 32, ffn: 14336}}\n",
       {},
       {"model.language.ffn is set, so the sizes of tiny-llava, a model for tests, do not apply: 5 sizes are missing",
        "set model.language.hidden, model.language.layers, model.language.kv_heads"}},
      {kLanguage + "model: {language: {heads: 32, head_dim: 128, kv_heads: 8}}\n", {}, {"model.language.heads is set"}},
      {"tiny-vlm.yaml",
       {"--model.images.encoder.ffn", "4096"},
       {"model.images.encoder.ffn is set", "set model.images.encoder.hidden, model.images.encoder.layers"},
       {"model.language"}},
      {"tiny-vlm.yaml",
       {"--model.language", "{hidden: 128}"},
       {"mamba_state", "shared_ffn", "model.images.encoder.layers"}},
      {"tiny-llava.yaml",
       {"--model.images.encoder.hidden", "64", "--model.images.projector.input", "64"},
       {"set model.images.encoder.layers, model.images.encoder.heads, model.images.encoder.ffn, "
        "model.images.encoder.image_side, model.images.encoder.patch, model.images.projector.hidden"},
       {"model.language"}},
      {"tiny-omni.yaml",
       {"--model.audio.encoder.hidden", "64", "--model.audio.projector.input", "128"},
       {"model.audio.encoder.layers", "model.audio.encoder.mels", "model.audio.encoder.stack"},
       {"model.images"}},
  });
  EXPECT_EQ(run("nemotron-vlm-20l-small.yaml", {}).exit_code, 0);  // the sizes of a real model apply to it
  EXPECT_EQ(run("tiny-vlm.yaml", {"--model.language.vocab", "128256"}).exit_code, 0);
  EXPECT_EQ(run("tiny-vlm.yaml", {"--model.language.ffn", "512"}).exit_code, 0);  // 8 times its width
}

TEST_F(Advice, SizesThatDoNotDivide) {
  const std::string side = "--model.images.encoder.image_side", shuffle = "--model.images.pixel_shuffle",
                    input = "--model.images.projector.input";
  check({
      {"tiny-llava.yaml", {side, "50"}, {"use image_side=42 or image_side=56"}, {"use a divisor"}, {side, "42"}},
      {"tiny-llava.yaml",
       {side, "50", shuffle, "true", input, "128"},
       {"use image_side=28 or image_side=56"},
       {"pixel_shuffle=false"},
       {side, "56", shuffle, "true", input, "128"}},
      {"tiny-llava.yaml",
       {side, "42", shuffle, "true", input, "128"},
       {"use image_side=28 or image_side=56, or pixel_shuffle=false"},
       {},
       {side, "28", shuffle, "true", input, "128"}},
      {"tiny-llava.yaml", {"--model.images.encoder.patch", "0"}, {"patch=0 must be at least 1"}, {"2 problems"}},
      {"tiny-llava.yaml",
       {"--model.language.vocab", "514", "--llm-tp", "4"},
       {"vocab=514 is not divisible by tp=4", "use tp=2 or tp=257, or pad it: vocab=516"},
       {},
       {"--model.language.vocab", "516", "--llm-tp", "4"}},
      {"tiny-llava.yaml",
       {"--llm-tp", "3"},
       {"kv_heads=4 is not divisible by tp=3", "use tp=2 or tp=4"},
       {"a divisor"},
       {"--llm-tp", "4"}},
      {"tiny-vlm.yaml",
       {"--model.images.encoder.heads", "5"},
       {"use heads=4 or heads=8"},
       {},
       {"--model.images.encoder.heads", "8"}},
      {"tiny-vlm.yaml", {"--llm-dp", "6", "--llm-ep", "3"}, {"use ep=2 or ep=4"}, {"model.language.experts"}},
  });
}

TEST_F(Advice, TokensOutsideOfTheVocabulary) {
  check({
      {"tiny-vlm.yaml", {"--model.language.vocab", "0"}, {"vocab=0 must be at least 1"}, {"-1", "problems"}},
      {"tiny-vlm.yaml", {"--model.language.vocab", "-5"}, {"vocab=-5 must be at least 1"}, {"problems"}},
      {"tiny-vlm.yaml", {"--model.language.vocab", "1"}, {"use a larger model.language.vocab"}, {"1 to 0"}},
      {"tiny-vlm.yaml", {"--model.language.vocab", "256"}, {"use token_id=1 to 255"}},
      {"tiny-vlm.yaml", {"--model.images.token_id", "0"}, {"use token_id=1 to 511", "another id in tokenizer.json"}},
  });
}

// An unknown provider is one mistake, whatever the keys of its model.
TEST_F(Advice, UnknownProviders) {
  check({
      {kLanguage + "model: {provider: tiny-lava, language: {layers: 4, tie_embeddings: true, heads: 3}}\n",
       {},
       {"not 'tiny-lava'", "did you mean 'tiny-llava'?"},
       {"problems", "layers", "heads"}},
      {kLanguage + "model: {provider: llama-8b, audio: {encoder: {stack: 3}}, dtyp: fp32}\n",
       {},
       {"2 problems", "not 'llama-8b'", "did you mean 'dtype'?"}},
      {"topology: {modules: {language: {kind: language, ep: 64, dp: 64}}}\nmodel: {provider: my-moe}\ntrain: "
       "{global_batch: 64}\n",
       {},
       {"not 'my-moe'"},
       {"experts", "problems"}},
  });
}

// One report has every problem that can be known: of values, of the topology, of the model and of the training.
TEST_F(Advice, AllProblemsAtOnce) {
  check({
      {kLanguage + "model: {language: {heads: 5, vocab: 0}}\ntrain: {global_batch: 7, micro_batch: 2, lr: fast, stage: "
                   "stage1}\n"
                   "optimizer: {beta1: 3}\nlog: {intervall: 3}\n",
       {},
       {"7 problems", "lr should be a number", "did you mean 'interval'?", "global_batch=7", "heads=5 is not divisible",
        "vocab=0 must be", "every module of the model is frozen", "beta1=3 must be"}},
      {"topology: {modules: {language: {kind: language, tp: 0}}}\nmodel: {language: {heads: 3}}\n",
       {},
       {"2 problems", "tp=0", "heads=3 is not divisible by kv_heads=8"}},
      {"topology: {modules: {images: {kind: encoder, dp: 3}, language: {kind: language, dp: 2}}}\n"
       "model: {images: {encoder: {heads: 3}}}\ntrain: {global_batch: 4}\n",
       {},
       {"images.dp=3", "hidden=32 is not divisible by heads=3"}},
      // What follows from the default of a key that cannot be read is no problem.
      {"topology: {modules: {language: {kind: language, dp: 3}}}\ntrain: {global_bach: 6, lr: -1}\n",
       {},
       {"2 problems", "did you mean 'global_batch'?", "lr=-1"},
       {"is not a multiple"}},
      {"topology: {world_size: 4, modules: {language: {kind: language, tp: four}}}\nmodel: {language: {heads: 3}}\n",
       {},
       {"2 problems", "tp should be an integer", "heads=3 is not divisible by kv_heads"},
       {"world of 4"}},
      {"topology: {modules: {language: {kind: language, dp: 8, ep: 8}}}\nmodel: {language: {expert: 64, top_k: x}}\n",
       {},
       {"2 problems", "unknown key 'expert'", "top_k should be"},
       {"num_experts"}},
      {"topology: 3\ntrain: {lr: -1}\n", {}, {"topology should be a mapping"}, {"no modules"}},
  });
}

TEST_F(Advice, NamesOfOthers) {
  const std::string train = kLanguage + "train: {";
  check({
      {train + "learning_rate: 1e-3}\n", {}, {"did you mean 'train.lr'?"}},
      {train + "batch_size: 8}\n", {}, {"did you mean 'train.global_batch'?"}},
      {kLanguage + "model: {language: {num_layers: 8}}\n", {}, {"did you mean 'model.language.pattern'?"}},
      {kLanguage + "model: {provider: tiny-llava, language: {num_layers: 8}}\n",
       {},
       {"did you mean 'model.language.layers'?"}},
      {kLanguage + "checkpoint: {interval: 10}\n", {}, {"did you mean 'save_interval'?"}, {"log.interval"}},
      {kLanguage + "model: {sequence_parallel: True}\n", {}, {"write true"}},
      {kLanguage + "model: {sequence_parallel: off}\n", {}, {"write false"}},
      {kLanguage + "model: {dtype: fp16}\n", {}, {"use bfloat16, float32, float64, bf16, fp32 or fp64"}},
  });
  EXPECT_EQ(run(kLanguage + "model: {dtype: bf16}\n", {}).exit_code, 0);
}

TEST_F(Advice, Tabs) {
  check({
      {"topology:\n  modules:\n    language: {kind: language}\ntrain:\n\tlr: 3\n",
       {},
       {"a tab indents this line, and YAML allows only spaces", "recipe.yaml:5, column 1", "spaces"}},
      {"topology:\n  modules:\n  \tlanguage: {kind: language}\n", {}, {"recipe.yaml:3, column 3"}},
      {"train: {lr: 3\n", {}, {"not valid YAML"}, {"tab"}},
  });
}

// A single text about the size of a sequence.
TEST_F(Advice, SequencesOfNoLength) {
  check({{kLanguage + "data: {sequence_length: 0}\n", {}, {"sequence_length=0 must be at least 1"}, {"problems"}}});
}

std::string refusal(const std::vector<std::string>& words) {
  const Finished finished = braid(words);
  EXPECT_EQ(finished.exit_code, 2) << finished.out;
  EXPECT_THAT(finished.out, IsEmpty());
  return finished.err;
}

TEST(CommandAdvice, FilesAndNumbersOfPlans) {
  const std::string recipe = kRecipes + "tiny-vlm.yaml";
  EXPECT_THAT(refusal({"plan", "simulate", recipe, "--stats", "/nowhere.json"}),
              HasSubstr("No such file or directory"));
  EXPECT_THAT(refusal({"plan", "simulate", recipe, "--stats", "/tmp"}), HasSubstr("Is a directory"));
  for (const char* seed : {"99999999999999999999999", "9223372036854775808", "-1"})
    EXPECT_THAT(refusal({"plan", "simulate", recipe, "--seed", seed}),
                HasSubstr("--seed should be a number from 0 to"));
}

TEST(CommandAdvice, FoldersThatAreNoDataSets) {
  const TemporaryFolder folder;
  const auto touch = [&](const std::string& name) { std::ofstream(folder.path() + "/" + name) << "x"; };
  EXPECT_THAT(refusal({"data", "prepare", folder.path()}), HasSubstr("it is empty"));
  touch("samples.parquet");
  EXPECT_THAT(refusal({"data", "prepare", folder.path()}), HasSubstr(".parquet or .arrow files"));
  touch("samples.jsonl");
  EXPECT_THAT(refusal({"data", "prepare", folder.path()}), HasSubstr("give the path of a .jsonl file"));
  std::filesystem::create_directory(folder.path() + "/images");
  touch("llava.json");
  touch("images/1.jpg");
  touch("images/2.PNG");
  for (const char* command : {"prepare", "order"})
    EXPECT_THAT(refusal({"data", command, folder.path()}),
                AllOf(HasSubstr("has no .tar files: it has 2 pictures and 2 JSON files"),
                      HasSubstr("into .tar files as KEY.jpg and KEY.json"), Not(HasSubstr("check the path"))));
  touch("images/3.tar");
  EXPECT_THAT(refusal({"data", "order", folder.path()}), HasSubstr("run `braid data prepare"));
}

// The model of a recipe is the recipe's, not its provider's.
TEST(DescribedModel, IsTheRecipesOwn) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/llama.yaml";
  std::ofstream(path)
      << "topology: {modules: {language: {kind: language, tp: 2}}}\n"
         "model:\n  provider: tiny-llava\n  dtype: bf16\n"
         "  language: {hidden: 4096, layers: 32, vocab: 128256, heads: 32, kv_heads: 8, head_dim: 128, ffn: 14336}\n"
         "data: {sequence_length: 8192}\n";
  const Finished described = braid({"model", "describe", path, "--json"});
  EXPECT_EQ(described.exit_code, 0) << described.err;
  // The published number of parameters of Llama 3 8B.
  EXPECT_THAT(described.out, AllOf(HasSubstr("\"parameters\":8030261248,"), HasSubstr("\"dtype\":\"bfloat16\""),
                                   HasSubstr("\"tp\":2"), Not(HasSubstr("images"))));
  EXPECT_THAT(braid({"model", "describe", path, "--json", "--model.language.layers", "16"}).out,
              Not(HasSubstr("8030261248")));
  EXPECT_THAT(refusal({"model", "describe", folder.path() + "/none.yaml"}), HasSubstr("No such file"));
  EXPECT_THAT(refusal({"model", "describe", "tiny-lava"}), HasSubstr("did you mean 'tiny-llava'?"));
  EXPECT_THAT(refusal({"model", "describe", "tiny-vlm", "--jsn"}), HasSubstr("did you mean --json?"));
  EXPECT_THAT(refusal({"model", "describe", "tiny-vlm", "--train.lr", "1"}), HasSubstr("give a recipe file"));
  EXPECT_EQ(braid({"model", "describe", "tiny-vlm", "--dtype", "bf16"}).exit_code, 0);
}

}  // namespace
}  // namespace braid
