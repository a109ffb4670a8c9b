// braid ckpt: what it shows of a checkpoint, and what it converts it to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cli/cli_support.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;

// One checkpoint of a short run, shared by all tests that only read it.
class CkptCommand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared = new TemporaryFolder;
    recipe = shared->write("recipe.yaml", kShortRecipe);
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

TEST_F(CkptCommand, LsListsIterationsThenGroupsThenKeys) {
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

TEST_F(CkptCommand, ShowPrintsNumbersAndSuggestsKeys) {
  const std::string key = "language_model.module.decoder.final_norm.weight";
  EXPECT_THAT(braid({"ckpt", "show", root(), key}).out,
              AllOf(HasSubstr("F32 [64]"), ContainsRegex("__[2-5]_0.distcp"), HasSubstr("min ")));
  EXPECT_THAT(braid({"ckpt", "show", root(), "common"}).out, AllOf(HasSubstr("iteration: 2"), HasSubstr("lr: 0.01")));
  const Finished unknown = braid({"ckpt", "show", root(), key + "s"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean '" + key + "'"));
}

TEST_F(CkptCommand, VerifyExitsWithOneIfSomethingIsWrong) {
  const Finished sound = braid({"ckpt", "verify", root(), "--all"});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_THAT(sound.out, AllOf(HasSubstr("iter_0000001: "), ContainsRegex("iter_0000002: .* tensors: intact\n")));
  const std::string copy = folder.path() + "/copy";
  std::filesystem::copy(iteration(2), copy);
  std::filesystem::resize_file(copy + "/__3_0.distcp", 1000);
  const Finished damaged = braid({"ckpt", "verify", copy});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.out, AllOf(HasSubstr("1 problem"), HasSubstr("  __3_0.distcp has 1000 bytes")));
  EXPECT_THAT(braid({"ckpt", "verify", copy, "--json"}).out, HasSubstr("\"ok\":false"));
}

TEST_F(CkptCommand, AFolderWithoutACheckpointIsMisuse) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"ls", folder.path()}, {"verify", folder.path()}, {"convert", folder.path(), folder.path() + "/to"}}) {
    std::vector<std::string> command = {"ckpt"};
    command.insert(command.end(), words.begin(), words.end());
    const Finished run = braid(command);
    EXPECT_EQ(run.exit_code, 2) << words[0];
    EXPECT_THAT(run.err, AllOf(HasSubstr("there is no checkpoint in '" + folder.path() + "'\n  where: command line\n"),
                               HasSubstr("fix:   give the folder that a run saves to")));
  }
  EXPECT_THAT(braid({"ckpt", "ls", iteration(1), "--iteration", "1"}).err, HasSubstr("leave it out"));
  const std::string copy = folder.path() + "/damaged";
  std::filesystem::copy(iteration(2), copy);
  std::filesystem::remove(copy + "/.metadata");
  EXPECT_EQ(braid({"ckpt", "verify", copy}).exit_code, 1);  // it is a checkpoint, but a damaged one
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
  const std::string full =
      testing::built_program("braid") + " ckpt diff " + iteration(1) + " " + iteration(2) + " >/dev/full";
  EXPECT_EQ(testing::run_program({"bash", "-c", full}).exit_code, 2);
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

// With a learning rate of 0, weights keep their initial values.
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
  std::string text = kShortRecipe;
  text.replace(text.find("pattern: \"*-\""), 13, "pattern: \"*-\", ffn: 96");
  const Finished refused = braid(
      {"ckpt", "convert", "--recipe", folder.write("other.yaml", text), "--language", hf, folder.path() + "/initial"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("the recipe has ffn: 96, the folder has ffn: "),
                                 HasSubstr("decoder.layers.1.mlp.linear_fc1.weight is [")));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/initial"));
}

}  // namespace
}  // namespace braid
