// A data set, tokenizer or format that a run cannot use is refused once, before any rank starts; and `braid eval`
// evaluates what a run on a data set has saved. The data set is drawn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/strings.h"
#include "cli/cli_support.h"
#include "data/shards/tar_files.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TemporaryFolder;

using Words = std::vector<std::string>;
namespace fs = std::filesystem;

// On two ranks.
const char* const kRecipe = R"(
topology: {modules: {images: {kind: encoder}, language: }}
model: {dtype: float64, language: {pattern: "*-"}, images: {encoder: {layers: 1}}}
data: {prompt_format: chatml, sequence_length: 128}
loader: {packing_buffer: 8, lanes: 2}
train: {iterations: 3, micro_batch: 1, global_batch: 4, lr: 1e-2, eval_iterations: 2}
dist: {device: cpu}
)";

class DataStart : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    recipe_ = folder_->write("recipe.yaml", kRecipe);
    const Finished drawn =
        braid({"data", "draw", in_folder("set"), "--samples", "60", "--val", "20", "--per-shard", "10"});
    ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string in_folder(const std::string& name) { return folder_->path() + "/" + name; }

  static Words with_data(Words words) {
    words.insert(words.begin() + 1,
                 {recipe_, "--data-path", in_folder("set"), "--tokenizer-model", in_folder("set/tokenizer")});
    return words;
  }

  // The only message of a run that was refused before any rank started.
  static std::string refusal(Words options) {
    options.insert(options.begin(), "train");
    const Finished run = braid(with_data(options));
    EXPECT_EQ(run.exit_code, 2) << ::testing::PrintToString(options);
    EXPECT_THAT(run.out, IsEmpty());
    EXPECT_EQ(count(run.err, "braid: "), 1) << run.err;
    EXPECT_THAT(run.err, Not(HasSubstr("root cause")));
    return run.err;
  }

  // A checkpoint after three iterations, and the flags of a run that continues from it.
  static std::string saved() {
    const std::string path = in_folder("first");
    if (!fs::exists(path)) EXPECT_EQ(braid(with_data({"train", "--save", path})).exit_code, 0);
    return path;
  }
  static Words continuing(Words options) {
    options.insert(options.begin(), {"--load", saved(), "--train-iters", "4", "--override-opt-param-scheduler"});
    return options;
  }
  static Finished continued(Words options) {
    options = continuing(std::move(options));
    options.insert(options.begin(), "train");
    return braid(with_data(options));
  }

  inline static std::unique_ptr<TemporaryFolder> folder_;
  inline static std::string recipe_;
};

TEST_F(DataStart, APathThatIsNotADataSet) {
  EXPECT_THAT(refusal({"--data-path", in_folder("none")}),
              AllOf(HasSubstr("none' does not exist"), HasSubstr("where: command line, --data-path (data.path)\n")));
  fs::create_directories(in_folder("tars"));
  EXPECT_THAT(refusal({"--data-path", in_folder("tars")}), HasSubstr("tars' has no .tar files: it is empty"));
  EXPECT_THAT(
      refusal({"--data.split", "tets"}),
      AllOf(HasSubstr("there is no split 'tets'"), HasSubstr("choose one of: train, val"), HasSubstr("--data.split")));
  EXPECT_THAT(refusal({"--data.valid_split", "tets", "--eval-interval", "1"}), HasSubstr("there is no split 'tets'"));
  const std::string blend = folder_->write("blend.yaml",
                                           "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
                                           "  train: {path: set}\n  holdout: {path: set, split_part: val}\n");
  EXPECT_THAT(refusal({"--data-path", blend, "--data.split", "tets"}),
              AllOf(HasSubstr("blend.yaml"), HasSubstr("choose one of: train, holdout")));
}

TEST_F(DataStart, ShardsThatCannotBeRead) {
  fs::copy(in_folder("set"), in_folder("holes"), fs::copy_options::recursive);
  fs::remove(in_folder("holes/train_0001.tar"));
  fs::remove(in_folder("holes/train_0003.tar.idx"));
  fs::resize_file(in_folder("holes/train_0004.tar"), 2000);
  fs::remove(in_folder("holes/val_0006.tar"));  // only an evaluation needs it
  EXPECT_THAT(refusal({"--data-path", in_folder("holes")}),
              AllOf(HasSubstr("3 of 6 shards of '"), HasSubstr("holes/train_0001.tar': No such file"),
                    HasSubstr("holes/train_0003.tar.idx': No such file"), HasSubstr("train_0004.tar' has 2000 bytes"),
                    HasSubstr("--data-path"), Not(HasSubstr("val_0006"))));
  EXPECT_THAT(refusal({"--data-path", in_folder("holes"), "--eval-interval", "1"}),
              AllOf(HasSubstr("train_0001"), HasSubstr("1 of 2 shards"), HasSubstr("val_0006.tar': No such file")));
}

TEST_F(DataStart, ADataSetThatNeedsPython) {
  fs::copy(in_folder("set"), in_folder("python"), fs::copy_options::recursive);
  std::ofstream(in_folder("python/.nv-meta/dataset.yaml"))
      << "sample_type: {__module__: megatron.energon, __class__: VQASample}\n"
         "sample_loader: sample_loader.py:load\npart_filter: [jpg, json]\n";
  EXPECT_THAT(refusal({"--data-path", in_folder("python")}),
              AllOf(HasSubstr("the Python function 'sample_loader.py:load' loads the samples"),
                    HasSubstr("dataset.yaml"), HasSubstr("data.fields")));
}

TEST_F(DataStart, ATokenizerThatDoesNotFit) {
  EXPECT_THAT(refusal({"--tokenizer-model", in_folder("none")}),
              AllOf(HasSubstr("none' does not exist"), HasSubstr("--tokenizer-model (data.tokenizer)")));
  EXPECT_THAT(refusal({"--tokenizer-prompt-format", "chatlm"}),
              AllOf(HasSubstr("there is no chat format 'chatlm'"), HasSubstr("did you mean chatml?"),
                    HasSubstr("--tokenizer-prompt-format (data.prompt_format)")));
  for (const auto& [format, why] : {std::pair{"llama3", "has no token '<|start_header_id|>'"},
                                    {"nemotron-nano-v2", "has no token '<SPECIAL_10>'"},
                                    {"mistral", "needs a bos_token"}})
    EXPECT_THAT(refusal({"--tokenizer-prompt-format", format}),
                AllOf(HasSubstr(why), HasSubstr("--tokenizer-prompt-format (data.prompt_format)")));
  EXPECT_THAT(refusal({"--model.images.token_id", "7"}),
              AllOf(HasSubstr("gives '<image>' the id"), HasSubstr("but the model expects 7"),
                    HasSubstr("--model.images.token_id"), HasSubstr("use model.images.token_id=")));
  std::string tokenizer = testing::read_file(in_folder("set/tokenizer/tokenizer.json"));
  for (std::size_t at = tokenizer.find("<image>"); at != tokenizer.npos; at = tokenizer.find("<image>"))
    tokenizer.replace(at, 7, "<other>");
  fs::copy(in_folder("set/tokenizer"), in_folder("other"), fs::copy_options::recursive);
  std::ofstream(in_folder("other/tokenizer.json")) << tokenizer;
  EXPECT_THAT(refusal({"--tokenizer-model", in_folder("other")}),
              AllOf(HasSubstr("has no token '<image>'"), HasSubstr("add it to the tokenizer's special tokens")));
  auto larger = nlohmann::json::parse(tokenizer);
  larger["added_tokens"].push_back({{"id", 900}, {"content", "<image>"}, {"special", true}});
  larger["model"]["vocab"]["<image>"] = 900;
  std::ofstream(in_folder("other/tokenizer.json")) << larger;
  EXPECT_THAT(refusal({"--tokenizer-model", in_folder("other"), "--model.images.token_id", "500"}),
              AllOf(HasSubstr("2 problems"), HasSubstr("the tokenizer has 901 tokens"), HasSubstr("expects 500")));
}

TEST_F(DataStart, PicturesWithoutAnEncoder) {
  const std::string text_only = folder_->write("text_only.yaml", R"(
topology: {modules: {language: }}
model: {dtype: float64, language: {pattern: "*-"}}
data: {prompt_format: chatml, sequence_length: 128}
train: {iterations: 3, micro_batch: 1, global_batch: 4, lr: 1e-2}
dist: {device: cpu}
)");
  const Finished run = braid({"train", text_only, "--data-path", in_folder("set"), "--tokenizer-model",
                              in_folder("set/tokenizer"), "--data.max_bad_samples", "5"});
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("the data set has pictures ("), HasSubstr("the recipe has no encoder for them"),
                             Not(HasSubstr("is skipped"))));
}

TEST_F(DataStart, SamplesOfWhichNoneCanBeUsed) {
  const std::string lines = folder_->write("lines.jsonl", R"({"tools": [{"name": "f"}], "text": "x"})"
                                                          "\n"
                                                          R"({"messages": [{"role": "user", "content": "<video>"}]})"
                                                          "\n");
  ASSERT_EQ(braid({"data", "prepare", lines}).exit_code, 0);
  const std::string told =
      refusal({"--data-path", lines, "--loader.lanes", "1", "--data.fields.conversation", "json[turns]"});
  EXPECT_THAT(told,
              AllOf(HasSubstr("none of 2 samples that were looked at can be used"), HasSubstr("no 'json[turns]'")));
}

TEST_F(DataStart, LanesWithoutSamples) {
  EXPECT_THAT(refusal({"--loader.lanes", "64", "--global-batch-size", "64"}),
              AllOf(HasSubstr("has no samples"), HasSubstr("use fewer lanes or workers"), HasSubstr("loader.lanes")));
  EXPECT_THAT(refusal({"--loader.lanes", "24", "--global-batch-size", "24", "--eval-interval", "1"}),
              HasSubstr("the split 'val' has too few samples for 24 lanes"));
  EXPECT_THAT(refusal({"--loader.lanes", "3"}), HasSubstr("global_batch=4 must be a multiple of lanes=3"));
}

TEST_F(DataStart, OneMessageListsAllProblems) {
  EXPECT_THAT(refusal({"--data-path", in_folder("none"), "--tokenizer-model", in_folder("none"),
                       "--data.fields.caption", "json[", "--use-tiling", "--data.pictures.tile_side", "100"}),
              HasSubstr("4 problems"));
  fs::create_directory(in_folder("raw"));
  std::ofstream(in_folder("raw/part-0.tar")) << "";
  EXPECT_THAT(refusal({"--data-path", in_folder("raw"), "--model.images.token_id", "9999"}),
              AllOf(HasSubstr("2 problems"), HasSubstr("token_id=9999"), HasSubstr("is not a prepared data set"),
                    HasSubstr("--data-path (data.path)")));
}

TEST_F(DataStart, ARecipeMayRequireADataSet) {
  const auto train = [&](Words words) {
    words.insert(words.begin(), {"train", recipe_, "--data.mock", "false"});
    return braid(words);
  };
  EXPECT_THAT(train({}).err,
              AllOf(HasSubstr("the recipe needs a data set"), HasSubstr("give --data-path PATH, or --mock-data")));
  EXPECT_EQ(train({"--print-recipe"}).exit_code, 0);
  const Finished mock = train({"--mock-data", "--train-iters", "1"});
  EXPECT_EQ(mock.exit_code, 0) << mock.err;
}

TEST_F(DataStart, EvalGivesWhatTheRunLoggedInEveryLayout) {
  const Finished run = braid(with_data({"train", "--save", in_folder("saved"), "--eval-interval", "3"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto eval = [&](Words words) {
    words.insert(words.begin(), {"eval", "--load", in_folder("saved")});
    const Finished finished = braid(with_data(words));
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return finished.out;
  };
  const std::string lines = eval({});
  const std::size_t line = lines.find(" validation loss at iteration 3 | lm loss value: ");
  ASSERT_NE(line, lines.npos) << lines;
  EXPECT_THAT(run.out, HasSubstr(lines.substr(line, lines.find('\n', line) - line)));

  const auto one = nlohmann::json::parse(eval({"--json"}));
  const auto other = nlohmann::json::parse(eval({"--json", "--llm-dp", "2", "--llm-tp", "2", "--encoder-dp", "2"}));
  EXPECT_EQ(one["iteration"], 3);
  EXPECT_EQ(one["consumed_samples"], 12);
  EXPECT_NEAR(one["lm_loss"].get<double>(), other["lm_loss"].get<double>(), 1e-10);
  EXPECT_EQ(one["right_tokens"], other["right_tokens"]);
  EXPECT_EQ(one["right_answers"], other["right_answers"]);
  const auto longer = nlohmann::json::parse(eval({"--json", "--iterations", "4"}));
  EXPECT_NE(one["lm_loss"], longer["lm_loss"]);
}

// What each line says is what the model was given and what it chose, in every layout.
TEST_F(DataStart, EvalListsTheModelsAnswers) {
  ASSERT_EQ(braid(with_data({"train", "--save", in_folder("answering")})).exit_code, 0);
  const auto answers = [&](Words words) {
    words.insert(words.begin(), {"eval", "--load", in_folder("answering"), "--json", "--answers",
                                 in_folder("answers.jsonl"), "--html", in_folder("page.html")});
    const Finished finished = braid(with_data(words));
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return std::pair(nlohmann::json::parse(finished.out), testing::read_file(in_folder("answers.jsonl")));
  };
  const auto [totals, lines] = answers({});
  int right = 0, count = 0;
  std::vector<std::string> keys;
  for (const std::string& line : split(lines, '\n')) {
    if (line.empty()) continue;
    const auto answer = nlohmann::json::parse(line);
    keys.push_back(answer["key"]);
    right += answer["right"].get<bool>();
    EXPECT_EQ(answer["right"], answer["answer"] == answer["model_answer"]) << line;
    ++count;
  }
  EXPECT_GT(count, 10);
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end())) << "the order of the data set";
  EXPECT_NEAR(totals["right_answers"].get<double>(), static_cast<double>(right) / count, 1e-12);
  const std::string page = testing::read_file(in_folder("page.html"));
  EXPECT_THAT(page, AllOf(HasSubstr("data:image/png;base64,"), HasSubstr("right answers, with pictures"),
                          HasSubstr("teacher-forced")));
  EXPECT_THAT(braid(with_data({"eval", "--load", in_folder("answering"), "--show", "1"})).out,
              AllOf(HasSubstr("model's answer *"), HasSubstr("\n* The model's answers are teacher-forced: ")));

  EXPECT_EQ(answers({"--llm-dp", "2", "--llm-tp", "2", "--encoder-dp", "2"}).second, lines);
  EXPECT_EQ(answers({"--llm-cp", "2"}).second, lines);
  EXPECT_NE(answers({"--data.pictures.blank", "true"}).first["lm_loss"], totals["lm_loss"]);
  EXPECT_THAT(braid({"eval", recipe_, "--load", in_folder("answering"), "--show", "1"}).err,
              HasSubstr("mock samples have no questions"));
}

// Neither right nor wrong: the model did not see the picture.
TEST_F(DataStart, EvalLeavesOutDamagedPictures) {
  fs::copy(in_folder("set"), in_folder("hurt"), fs::copy_options::recursive);
  const std::string shard = in_folder("hurt/val_0006.tar");
  std::string tar = testing::read_file(shard);
  const std::size_t pixels = tar.find("IDAT"), name = tar.rfind(".png", pixels);
  const std::string key = tar.substr(name - 7, 7);
  tar.replace(pixels + 20, 4, "\xff\xff\xff\xff");
  std::ofstream(shard, std::ios::binary) << tar;

  const Words eval = {"eval", "--load", saved(), "--data-path", in_folder("hurt"), "--answers"};
  const auto with = [&](Words words) {
    words.insert(words.begin(), eval.begin(), eval.end());
    const Finished run = braid(with_data(words));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out;
  };
  const std::string answers = in_folder("hurt.jsonl");
  const auto totals = nlohmann::json::parse(with({answers, "--json", "--llm-dp", "2"}));
  EXPECT_EQ(totals["damaged_samples"], 1);
  int right = 0, all = 0;
  for (const std::string& line : split(testing::read_file(answers), '\n')) {
    if (line.empty()) continue;
    const auto answer = nlohmann::json::parse(line);
    EXPECT_NE(answer["key"], key);
    right += answer["right"].get<bool>();
    ++all;
  }
  EXPECT_EQ(all, 19);
  EXPECT_NEAR(totals["right_answers"].get<double>(), static_cast<double>(right) / all, 1e-12);
  const std::string text = with({answers, "--show", "100"});
  EXPECT_THAT(text, AllOf(HasSubstr("damaged samples, which are left out: 1\n"), Not(HasSubstr("\n" + key))));
  EXPECT_THAT(text, ::testing::ContainsRegex("\\[[01]\\] sample '" + key + "' of shard 'val_0006.tar' is skipped"));

  const Finished run = braid(with_data({"train", "--data-path", in_folder("hurt"), "--eval-interval", "1"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(count(run.out, "'val_0006.tar' is skipped"), 1) << run.out;
  EXPECT_THAT(run.out, ::testing::ContainsRegex("\ndamaged samples +1\n"));
}

TEST_F(DataStart, ExcludeEntriesWithoutAShardOrSampleAreWarnings) {
  fs::copy(in_folder("set"), in_folder("excluding"), fs::copy_options::recursive);
  testing::write_text(in_folder("excluding/.nv-meta/split.yaml"),
                      "split_parts: {train: ['train_{0000..0005}.tar'], val: [val_0006.tar]}\n"
                      "exclude: [train_0001, train_0002.tar/nobody]\n");
  const char* warning = "has entries that match no shard and no sample: 'train_0001', 'train_0002.tar/nobody'";
  const Finished run = braid(with_data({"train", "--data-path", in_folder("excluding")}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(count(run.err, warning), 1) << run.err;
  EXPECT_EQ(count(braid({"data", "inspect", in_folder("excluding")}).err, warning), 1);
}

// A quarter of the samples is longer than a sequence, and another quarter has nothing to predict.
TEST_F(DataStart, SamplesThatAreLeftOutOrCutAreCounted) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    const bool is_long = i % 4 == 1, is_context = i % 4 == 2;
    lines += nlohmann::json{{"conversations",
                             {{{"role", "user"}, {"content", "q"}},
                              {{"role", "assistant"},
                               {"content", std::string(is_long ? 600 : 3, '7')},
                               {"weight", is_context ? 0 : 1}}}}}
                 .dump() +
             "\n";
  }
  const std::string data = folder_->write("unfit.jsonl", lines);
  ASSERT_EQ(braid({"data", "prepare", data}).exit_code, 0);
  const auto train = [&](Words words) {
    words.insert(words.begin(), {"train", "--data-path", data, "--data.sequence_length", "64", "--train-iters", "8"});
    const Finished run = braid(with_data(words));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(count(run.out, "samples with nothing to predict are left out. The first one is '"), 1) << run.out;
    EXPECT_THAT(run.out, ::testing::ContainsRegex("\nwithout targets +10\n"));
    EXPECT_THAT(run.err, HasSubstr("8 of 32 samples that were looked at have nothing to predict and will be left out"));
    return run;
  };
  const std::string logs = in_folder("unfit_logs");
  const Finished drops = train({"--log-dir", logs});
  EXPECT_EQ(count(drops.out, "samples that are longer than a sequence are left out; use a longer"), 1) << drops.out;
  EXPECT_THAT(drops.out, ::testing::ContainsRegex("\ntoo long samples +10\n"));
  EXPECT_THAT(drops.err, HasSubstr("8 of 32 samples that were looked at are longer than a sequence of 64 tokens and "
                                   "will be left out; use a longer data.sequence_length"));
  EXPECT_THAT(braid({"report", logs}).out, HasSubstr("10 too long, 10 with nothing to predict"));
  const Finished cuts = train({"--data.over_long", "truncate"});
  EXPECT_EQ(count(cuts.out, "samples that are longer than a sequence are cut. The first one is '"), 1) << cuts.out;
  EXPECT_THAT(cuts.out, ::testing::ContainsRegex("\ncut samples +10\n"));
  EXPECT_THAT(cuts.err, HasSubstr("longer than a sequence of 64 tokens and will be cut\n"));
}

// No picture can be decoded, so nothing of any sample is learned.
TEST_F(DataStart, StepsWithNothingToPredictHaveNoLoss) {
  const std::string drawn = testing::read_file(in_folder("set/train_0000.tar"));
  const std::size_t begin = drawn.find("\x89PNG");
  std::string picture = drawn.substr(begin, drawn.find("IEND", begin) + 8 - begin);
  picture.replace(picture.find("IDAT") + 20, 4, "\xff\xff\xff\xff");
  std::string tar;
  for (int i = 0; i < 20; ++i)
    tar += testing::tar_member(fmt::format("k{}.png", i), picture) +
           testing::tar_member(fmt::format("k{}.json", i), R"({"question": "q", "answer": "one"})");
  testing::write_text(in_folder("dark/a.tar"), tar + testing::tar_end());
  ASSERT_EQ(braid({"data", "prepare", in_folder("dark"), "--split", "train:1"}).exit_code, 0);
  const std::string metrics = in_folder("dark.jsonl");
  const Finished run = braid(with_data({"train", "--data-path", in_folder("dark"), "--metrics-file", metrics}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(count(run.out, "warning: iteration 1 has nothing to predict"), 1) << run.out;
  EXPECT_THAT(run.out, AllOf(HasSubstr("iterations with nothing to predict:   3 |"), Not(HasSubstr("lm loss:"))));
  EXPECT_THAT(run.out, ::testing::ContainsRegex("\nlm loss +none -> none\n"));
  EXPECT_EQ(count(testing::read_file(metrics), "\"lm_loss\":null"), 3);
  EXPECT_THAT(braid({"report", metrics}).out, ::testing::ContainsRegex("\nskipped, nan +0, 0\n"));
  const Finished evaluated = braid(with_data({"train", "--data-path", in_folder("dark"), "--data.valid_split", "train",
                                              "--train.eval_interval", "1", "--train.eval_iterations", "1"}));
  EXPECT_EQ(evaluated.exit_code, 1);
  EXPECT_THAT(evaluated.err, HasSubstr("the evaluation has no loss: its samples have no token to predict"));
}

TEST_F(DataStart, AFailedEvaluationCostsNoCheckpoint) {
  fs::copy(in_folder("set"), in_folder("zeros"), fs::copy_options::recursive);
  for (const std::string& shard : {in_folder("zeros/val_0006.tar"), in_folder("zeros/val_0007.tar")}) {
    const auto size = fs::file_size(shard);
    fs::resize_file(shard, 1000);
    fs::resize_file(shard, size);
  }
  const std::string saved = in_folder("saved_before_evaluation");
  const Finished run =
      braid(with_data({"train", "--data-path", in_folder("zeros"), "--eval-interval", "3", "--save", saved}));
  EXPECT_EQ(run.exit_code, 1) << run.out;
  EXPECT_THAT(run.err, HasSubstr("evaluation"));
  EXPECT_EQ(braid({"ckpt", "verify", saved}).exit_code, 0);
}

TEST_F(DataStart, PositionsOfOtherSettings) {
  EXPECT_THAT(refusal(continuing({"--tokenizer-prompt-format", "qwen2p0"})),
              AllOf(HasSubstr("data.prompt_format has changed since the state was saved: 'chatml' then, 'qwen2p0' now"),
                    HasSubstr("--tokenizer-prompt-format"), HasSubstr("checkpoint.load_data=false")));
  EXPECT_THAT(refusal(continuing({"--loader.lanes", "4"})),
              AllOf(HasSubstr("positions of 2 lanes of the data set, but this run has 4"), HasSubstr("--loader.lanes"),
                    HasSubstr("use loader.lanes=2")));
  EXPECT_THAT(refusal(continuing({"--packing-buffer-size", "9"})), HasSubstr("loader.packing_buffer has changed"));
  const Finished anew = continued({"--packing-buffer-size", "9", "--checkpoint.load_data", "false"});
  EXPECT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_THAT(anew.out, HasSubstr("the data set is read from its start"));
}

// The seed of a checkpoint's random numbers is that of its data too, unless the user does not load them.
TEST_F(DataStart, PositionsOfAnotherSeed) {
  EXPECT_THAT(refusal(continuing({"--seed", "99", "--no-load-rng"})),
              AllOf(HasSubstr("train.seed has changed since the state was saved: 1234 then, 99 now"),
                    HasSubstr("where: command line, --seed")));
  const Finished run = continued({"--seed", "99"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("using the checkpoint's random seed 1234, not train.seed=99"));
}

TEST_F(DataStart, PositionsInAnotherDataSet) {
  const std::string other = in_folder("shorter");
  ASSERT_EQ(braid({"data", "draw", other, "--samples", "50", "--val", "20", "--per-shard", "10"}).exit_code, 0);
  EXPECT_THAT(
      refusal(continuing({"--data-path", other})),
      AllOf(HasSubstr("data set '" + other + "' (split train) has changed"), HasSubstr("60 samples in 6 shards"),
            HasSubstr("50 samples in 5 shards"), HasSubstr("--data-path (data.path)")));
}

TEST_F(DataStart, EvalWithAnotherTokenizerWarns) {
  const std::string other = in_folder("retold");
  fs::copy(in_folder("set/tokenizer"), other, fs::copy_options::recursive);
  std::ofstream(other + "/tokenizer_config.json", std::ios::app) << "\n";
  const auto eval = [&](const std::string& tokenizer) {
    return braid(with_data({"eval", "--load", saved(), "--json", "--tokenizer-model", tokenizer}));
  };
  const Finished same = eval(in_folder("set/tokenizer")), changed = eval(other);
  EXPECT_EQ(changed.exit_code, 0) << changed.err;
  EXPECT_EQ(changed.out, same.out);
  EXPECT_THAT(same.err, IsEmpty());
  EXPECT_EQ(count(changed.err, "WARNING: data.tokenizer is not that of the training"), 1) << changed.err;
}

TEST_F(DataStart, EvalFilesThatCannotBeWritten) {
  const std::string in_file = recipe_ + "/page.html", new_folder = in_folder("new/pages");
  const Finished run = braid(with_data({"eval", "--load", saved(), "--html", in_file, "--answers", in_folder("set")}));
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(count(run.err, "braid: "), 1) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("2 problems"), HasSubstr("where: --html"), HasSubstr("it is a folder")));
  EXPECT_EQ(braid(with_data({"eval", "--load", saved(), "--html", new_folder + "/page.html"})).exit_code, 0);
  EXPECT_TRUE(fs::exists(new_folder + "/page.html"));
  EXPECT_THAT(braid(with_data({"eval", "--load", saved(), "--answers", recipe_})).err,
              HasSubstr("would replace a file that is read"));
  const auto told = [&](const Words& files) {
    Words words = {"eval", "--load", saved()};
    words.insert(words.end(), files.begin(), files.end());
    const Finished refused = braid(with_data(words));
    EXPECT_EQ(refused.exit_code, 2) << refused.out;
    return refused.err;
  };
  EXPECT_THAT(told({"--answers", in_folder("set/tokenizer/tokenizer.json")}), HasSubstr("a file that is read"));
  EXPECT_THAT(told({"--answers", folder_->write("old.csv", "")}), HasSubstr("does not end in .jsonl"));
  EXPECT_THAT(told({"--html", in_folder("x.html"), "--answers", in_folder("x.html")}), HasSubstr("name the same file"));
  EXPECT_THAT(told({"--answers", saved() + "/latest_checkpointed_iteration.txt"}), HasSubstr("does not end in .jsonl"));
  EXPECT_THAT(told({"--answers", recipe_, "--data.valid_split", "tets"}),
              AllOf(HasSubstr("2 problems"), HasSubstr("a file that is read"), HasSubstr("no split 'tets'")));
}

TEST_F(DataStart, EvalNeedsACheckpoint) {
  EXPECT_THAT(braid(with_data({"eval"})).err, HasSubstr("there is no checkpoint to evaluate"));
  const Finished run = braid(with_data({"eval", "--load", in_folder("nothing"), "--data.valid_split", "tets"}));
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("2 problems"), HasSubstr("there is no folder"), HasSubstr("no split 'tets'"),
                             HasSubstr("fix:   give the folder of a checkpoint\n")));
}

// --- Megatron's text

TEST_F(DataStart, MegatronsText) {
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += R"({"text": "how many bars are there? three. which word is this? bird"})"
             "\n";
  const std::string source = folder_->write("lines.jsonl", lines + R"({"text": ""})"
                                                                   "\n"),
                    text = in_folder("text");
  const Words prepare = {"data", "prepare", source, "--to-indexed", text, "--tokenizer", in_folder("set/tokenizer")};
  const Finished prepared = braid(prepare);
  ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
  EXPECT_THAT(prepared.out, AllOf(HasSubstr("200 documents with "), HasSubstr("1 line without text is left out")));
  EXPECT_THAT(braid(prepare).err, AllOf(HasSubstr("text.bin' exists"), HasSubstr("--force")));

  const std::string saved = in_folder("text_saved"), key = "where: command line, --data-path";
  const Finished first = braid({"train", recipe_, "--data-path", "0.5", text, "0.5", text, "--save", saved});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("which these keys do not affect: data.prompt_format, loader.lanes, "
                                   "loader.packing_buffer\n"));
  const Words more = {"--load", saved, "--train-iters", "5", "--data-path", "0.5", text, "0.5", text};
  const auto with = [&](Words words) {
    words.insert(words.begin(), more.begin(), more.end());
    return words;
  };
  Words other_layout = with({"--llm-dp", "2"});
  other_layout.insert(other_layout.begin(), {"train", recipe_});
  const Finished second = braid(other_layout);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, AllOf(HasSubstr("the run continues after iteration 3 and 12 samples"),
                                Not(HasSubstr("read from its start"))));

  EXPECT_THAT(refusal(with({"--data-path", text})), HasSubstr("the number of texts in data.path has changed"));
  EXPECT_THAT(refusal(with({"--data.sequence_length", "64"})), HasSubstr("data.sequence_length has changed"));
  EXPECT_THAT(refusal(with({"--train-iters", "5000"})), HasSubstr("the length of the run, and with it how often"));
  EXPECT_THAT(refusal({"--data-path", text, "--split", "0,1"}), HasSubstr("the train split of '0,1' has none of 200"));
  EXPECT_THAT(refusal({"--data-path", "1", text, "1", text + "x"}),
              AllOf(HasSubstr("there are no files"), HasSubstr(key)));
  EXPECT_THAT(refusal({"--data-path", text, "--seed", "4294967296"}), HasSubstr("needs a seed from 0 to 2^32 - 1"));
  EXPECT_THAT(refusal({"--data-path", text, "--loader.balance", "cost"}), HasSubstr("use balance=none"));
  EXPECT_THAT(refusal({"--split", "9,1,0"}), HasSubstr("document_split=9,1,0 has no effect on this data set"));
  EXPECT_THAT(refusal({"--load", saved}), HasSubstr("has a position in Megatron's text, not in a data set"));
  EXPECT_THAT(braid({"data", "inspect", recipe_, "--data-path", text}).err, HasSubstr("give the path of a .bin file"));
  EXPECT_THAT(braid({"data", "order", text}).err, HasSubstr("give '" + text + ".bin'"));
  EXPECT_THAT(braid({"eval", recipe_, "--data-path", text, "--load", saved, "--show", "1"}).err,
              HasSubstr("no questions and answers"));

  // As documents.
  EXPECT_EQ(braid({"data", "order", text + ".bin", "--count", "2"}).out, "text.bin 0\ntext.bin 1\n");
  const Finished documents = braid(with_data({"train", "--data-path", text + ".bin"}));
  EXPECT_EQ(documents.exit_code, 0) << documents.err;

  std::ofstream(text + ".idx", std::ios::app) << "x";
  EXPECT_THAT(refusal({"--data-path", text}), AllOf(HasSubstr("text.idx' is not an index"), HasSubstr(key)));
  EXPECT_THAT(refusal({"--data-path", text + ".bin"}), AllOf(HasSubstr("text.idx' is not an index"), HasSubstr(key)));
}

}  // namespace
}  // namespace braid
