// braid data pack, inspect and bench on a drawn data set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "cli/cli_support.h"
#include "data/shards/tar_files.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;

constexpr int kSamples = 60, kLength = 64;

class DataTools : public ::testing::Test {
 protected:
  void SetUp() override {
    const Finished drawn =
        braid({"data", "draw", set(), "--samples", std::to_string(kSamples), "--val", "7", "--per-shard", "40"});
    ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
    recipe_ = folder_.write("recipe.yaml", fmt::format(R"(
topology: {{modules: {{images: {{kind: encoder}}, language: {{dp: 2}}}}}}
data: {{path: {0}, tokenizer: {0}/tokenizer, prompt_format: chatml, sequence_length: {1}}}
loader: {{packing_buffer: 10}}
)",
                                                       set(), kLength));
  }

  std::string set() const { return folder_.path() + "/set"; }

  static Finished braid_data(const std::string& command, const std::string& path,
                             const std::vector<std::string>& flags = {}) {
    std::vector<std::string> words = {"data", command, path};
    words.insert(words.end(), flags.begin(), flags.end());
    return braid(words);
  }

  // The message of a command that is refused before it begins.
  static std::string refused(const std::vector<std::string>& words) {
    const Finished run = braid(words);
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, Not(HasSubstr("filesystem error")));
    return run.err;
  }

  std::vector<json> packs(std::vector<std::string> flags) const {
    flags.emplace_back("--json");
    const Finished run = braid_data("pack", recipe_, flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    std::vector<json> packs;
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) packs.push_back(json::parse(line));
    EXPECT_TRUE(!packs.empty() && packs.back().contains("skipped")) << run.out;
    skipped_ = packs.back()["skipped"];
    packs.pop_back();
    return packs;
  }

  json inspected(std::vector<std::string> flags) const {
    flags.emplace_back("--json");
    const Finished run = braid_data("inspect", recipe_, flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.exit_code == 0 ? json::parse(run.out) : json();
  }

  // Overwrites the first PNG signature of a shard.
  void damage(const std::string& shard) const {
    std::string bytes = testing::read_file(shard);
    bytes.replace(bytes.find("\x89PNG"), 4, "nope");
    std::ofstream(shard, std::ios::binary) << bytes;
  }

  TemporaryFolder folder_;
  std::string recipe_;
  mutable json skipped_{};  // by the last packs()
};

TEST_F(DataTools, PacksFitTheirBorders) {
  const std::vector<json> all = packs({"--count", "8"});
  ASSERT_EQ(all.size(), 8u);
  EXPECT_EQ(packs({"--count", "8", "--data.prompt_format", "nemotron6-moe"}), all)
      << "the drawn tokenizer's own template is ChatML";
  for (const json& pack : all) {
    std::int64_t at = 0, labels = 0, embeddings = 0;
    ASSERT_EQ(pack["samples"].size(), pack["lengths"].size());
    for (std::size_t i = 0; i < pack["lengths"].size(); ++i) {
      EXPECT_EQ(pack["cu_seqlens"][i], at);
      at += pack["lengths"][i].get<std::int64_t>();
      labels += pack["samples"][i]["labels"].get<std::int64_t>();
      for (const json& media : pack["samples"][i]["media"]) {
        const std::int64_t rows = media["extent"][0], columns = media["extent"][1];
        EXPECT_EQ(media["embeddings"], rows * columns / 4);  // 2 x 2 patches become one
        EXPECT_EQ(media["width"], columns * 16);
        embeddings += rows * columns / 4;
      }
    }
    EXPECT_EQ(pack["cu_seqlens"].back(), kLength);
    EXPECT_EQ(pack["tokens"], at);
    EXPECT_EQ(pack["padding"], kLength - at);
    EXPECT_EQ(pack["labels"], labels);
    EXPECT_GT(labels, 0);
    EXPECT_EQ(pack["embeddings"], embeddings);
  }
  const std::vector<json> later = packs({"--count", "3", "--skip", "5"});
  EXPECT_EQ(later, std::vector<json>(all.begin() + 5, all.end()));
  EXPECT_NE(packs({"--count", "1", "--lane", "1"}), packs({"--count", "1"}));
}

TEST_F(DataTools, EvaluationPacksEachSampleOnce) {
  std::set<std::string> keys;
  std::size_t samples = 0;
  for (const char* lane : {"0", "1"})
    for (const json& pack : packs({"--count", "1000", "--eval", "--lane", lane}))
      for (const json& sample : pack["samples"]) {
        ++samples;
        keys.insert(sample["key"].get<std::string>());
      }
  EXPECT_EQ(samples, 7u);
  EXPECT_EQ(keys.size(), 7u);
  const Finished beyond = braid({"data", "pack", recipe_, "--eval", "--skip", "1000"});
  EXPECT_EQ(beyond.exit_code, 0) << beyond.err;
  EXPECT_THAT(beyond.err, HasSubstr("lane 0 of split 'val' ends after "));
}

TEST_F(DataTools, PackReportsWhatItSkips) {
  const Finished full = braid({"data", "pack", recipe_, "--count", "5"});
  EXPECT_THAT(full.out, AllOf(HasSubstr("packing density: "), HasSubstr("skipped: 0 too long")));
  const Finished narrow = braid({"data", "pack", recipe_, "--count", "5", "--data.sequence_length", "18"});
  EXPECT_EQ(narrow.exit_code, 0) << narrow.err;
  EXPECT_THAT(narrow.out, AllOf(HasSubstr("skipped: "), Not(HasSubstr("skipped: 0 too long"))));
  packs({"--count", "5"});
  EXPECT_EQ(skipped_, json::parse(R"({"too_long": 0, "without_targets": 0, "damaged": 0})"));
  packs({"--count", "5", "--data.sequence_length", "18"});
  EXPECT_THAT(narrow.out, HasSubstr(fmt::format("skipped: {} too long", skipped_["too_long"].get<int>())));
  const std::vector<std::string> epochs = {"--count", "100", "--data.sequence_length", "18"};
  packs(epochs);
  EXPECT_GT(skipped_["too_long"], 0);
  EXPECT_LT(skipped_["too_long"], kSamples / 2) << "each sample of the lane counts once";
  EXPECT_THAT(braid_data("pack", recipe_, epochs).out, HasSubstr(" repeated) in 100 sequences"));
  damage(set() + "/train_0000.tar");
  packs({"--count", "100"});
  EXPECT_EQ(skipped_["damaged"], 1);
  EXPECT_EQ(braid({"data", "pack", recipe_, "--lane", "2"}).exit_code, 2);
  const Finished mock = braid({"data", "pack", recipe_, "--data.mock", "true"});
  EXPECT_EQ(mock.exit_code, 2);
  EXPECT_THAT(mock.err, HasSubstr("no data set to look at"));
}

// The shards are whole: only the system fails, for a moment or for good.
TEST_F(DataTools, InspectEndsWhenTheSystemFails) {
  const auto failing = [&](const char* count) {
    return braid({"data", "inspect", recipe_, "--loader.threads", "1"},
                 {{"LD_PRELOAD", testing::built_program("libfailing_reads.so")},
                  {"RANK", "0"},
                  {"BRAID_FAIL_RANK", "0"},
                  {"BRAID_FAIL_PATH", "/set/train_"},
                  {"BRAID_FAIL_CALL", "read"},
                  {"BRAID_FAIL_ERRNO", std::to_string(EIO)},
                  {"BRAID_FAIL_FROM", "9"},
                  {"BRAID_FAIL_COUNT", count}});
  };
  const Finished moment = failing("1"), lasting = failing("1000000");
  EXPECT_EQ(moment.out, braid({"data", "inspect", recipe_}).out);
  EXPECT_THAT(moment.err, HasSubstr("Input/output error; trying again in 0.1 s"));
  EXPECT_EQ(lasting.exit_code, 1);
  EXPECT_THAT(lasting.err, AllOf(HasSubstr("Input/output error"), HasSubstr("tried 5 times")));
  EXPECT_EQ(lasting.out, "");
}

TEST_F(DataTools, InspectNeedsNoPictureTokenForTexts) {
  const std::string path = folder_.write("texts.jsonl", R"({"text": "this is a star"})"
                                                        "\n");
  ASSERT_EQ(braid({"data", "prepare", path}).exit_code, 0);
  std::string tokenizer = testing::read_file(set() + "/tokenizer/tokenizer.json");
  for (auto at = tokenizer.find("<image>"); at != tokenizer.npos; at = tokenizer.find("<image>", at))
    tokenizer.replace(at, 7, "<other>");
  std::filesystem::copy(set() + "/tokenizer", folder_.path() + "/texts");
  folder_.write("texts/tokenizer.json", tokenizer);
  const Finished run = braid({"data", "inspect", path, "--data.tokenizer", folder_.path() + "/texts",
                              "--data.prompt_format", "chatml", "--data.sequence_length", "64"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("damaged: none"));
}

TEST_F(DataTools, InspectCountsAndNamesDamage) {
  damage(set() + "/train_0001.tar");
  const json report = inspected({"--count", "all"});
  ASSERT_EQ(report["data_sets"].size(), 2u);
  EXPECT_EQ(report["data_sets"][0]["samples"], kSamples);
  EXPECT_EQ(report["data_sets"][0]["shards"], 2);
  EXPECT_EQ(report["data_sets"][1]["split"], "val");
  EXPECT_EQ(report["data_sets"][1]["samples"], 7);
  EXPECT_EQ(report["samples"], kSamples);
  EXPECT_EQ(report["parts"]["json"], kSamples);
  EXPECT_EQ(report["damaged"]["count"], 1);
  EXPECT_EQ(report["damaged"]["samples"][0]["shard"], "train_0001.tar");
  EXPECT_EQ(report["pictures"]["formats"]["PNG"], report["parts"]["png"].get<int>() - 1);
  EXPECT_EQ(report["tokens"]["count"], kSamples - 1);
  EXPECT_GT(report["packing"]["density"], 0.5);
  EXPECT_EQ(inspected({"--count", "13"})["samples"], 13);
}

// One line for a shard, however many of its samples are lost; and what can be used decides the exit code.
TEST_F(DataTools, InspectNamesDamagedShardsOnce) {
  const std::string shard = set() + "/train_0001.tar", bytes = testing::read_file(shard);
  std::ofstream(shard, std::ios::binary) << bytes.substr(0, 9000);
  const json report = inspected({"--count", "all"});
  ASSERT_EQ(report["damaged"]["shards"].size(), 1u);
  EXPECT_EQ(report["damaged"]["shards"][0]["shard"], "train_0001.tar");
  EXPECT_EQ(report["damaged"]["shards"][0]["samples"], report["damaged"]["count"]);
  EXPECT_GT(report["damaged"]["count"], 5);
  EXPECT_TRUE(report["damaged"]["samples"].empty());
  const std::string text = braid({"data", "inspect", recipe_}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("shard 'train_0001.tar': "), HasSubstr("it has been cut")));
  EXPECT_EQ(count(text, "train_0001.tar':"), 1) << text;

  std::ofstream(shard, std::ios::binary) << bytes.substr(0, bytes.find_last_not_of('\0') + 2);
  EXPECT_THAT(braid({"data", "inspect", recipe_}).out,
              AllOf(HasSubstr("damaged: 1 sample\n  shard 'train_0001.tar'"), HasSubstr("it has been cut")));
  for (const char* name : {"/train_0000.tar", "/train_0001.tar"}) std::ofstream(set() + name) << "gone";
  const Finished nothing = testing::run_program(
      {"/bin/sh", "-c", fmt::format("{} data inspect {} 2>&1", testing::built_program("braid"), recipe_)});
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_LT(nothing.out.find("damaged: 60 samples"), nothing.out.find("the lines above say why")) << nothing.out;
}

TEST_F(DataTools, InspectListsAllDamageOfASplit) {
  damage(set() + "/val_0002.tar");
  for (const char* shard : {"/train_0000.tar", "/train_0001.tar"}) {
    std::string bytes = testing::read_file(set() + shard);
    for (std::size_t at; (at = bytes.find("\x89PNG")) != bytes.npos;) bytes.replace(at, 4, "nope");
    std::ofstream(set() + shard, std::ios::binary) << bytes;
  }
  const auto named = [&](const std::vector<std::string>& flags) {
    return count(braid_data("inspect", recipe_, flags).out, "' of '");
  };
  const auto damaged = inspected({})["damaged"]["count"].get<int>();
  EXPECT_GT(damaged, 20);
  EXPECT_EQ(inspected({})["damaged"]["samples"].size(), damaged);
  EXPECT_EQ(named({}), 20);
  EXPECT_EQ(named({"--all-damaged"}), damaged);
  const json val = inspected({"--split", "val"});
  EXPECT_EQ(val["samples"], 7);
  EXPECT_EQ(val["damaged"]["samples"][0]["shard"], "val_0002.tar");

  // The hint of a command that gives up can be pasted, and also lists what only the tokenizer refuses.
  const auto pasted = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--data.max_bad_samples", "3"});
    const std::string told = braid_data("pack", recipe_, flags).err;
    const std::size_t begin = told.find("`braid ") + 7, end = told.find('`', begin);
    EXPECT_NE(end, told.npos) << told;
    const std::string hint = testing::built_program("braid") + " " + told.substr(begin, end - begin);
    return count(testing::run_program({"/bin/sh", "-c", hint}).out, "' of '");
  };
  EXPECT_EQ(pasted({}), damaged);
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += R"({"q": [{"role": "user", "content": "this?"}, {"role": "assistant", "content": ""}]})"
             "\n";
  const std::string path = folder_.write("empty.jsonl", lines);
  ASSERT_EQ(braid({"data", "prepare", path}).exit_code, 0);
  EXPECT_EQ(pasted({"--data.path", path, "--data.fields.conversation", "json[q]"}), 20);
}

// Each sample of a .jsonl file is a record; a part `wav` or `gif` needs a shard.
TEST_F(DataTools, InspectCountsFieldsAndReasons) {
  const std::string asked = R"({"role": "user", "content": "what?"})",
                    said = R"({"role": "assistant", "content": "yes")";
  std::string lines;
  const auto add = [&](int times, const std::string& record) {
    for (int i = 0; i < times; ++i) lines += record + "\n";
  };
  const auto talk = [&](const std::string& keys) { return R"("messages": [)" + asked + ", " + said + keys + "}]"; };
  add(3, "{" + talk("") + R"(, "note": 1, "id": 2})");
  add(2, "{" + talk(R"(, "weight": 0)") + "}");
  add(4, "{" + talk(R"(, "tool_calls": [{"name": "f"}])") + R"(, "tools": [{"name": "f"}]})");
  add(5, "{" + talk(R"(, "reasoning_content": "hm", "mood": "good")") + "}");
  add(6, R"({"messages": [{"role": "user", "content": "<video> what?"}]})");
  const std::string path = folder_.write("records.jsonl", lines);
  ASSERT_EQ(braid({"data", "prepare", path}).exit_code, 0);
  const json alone = json::parse(braid({"data", "inspect", path, "--json"}).out);
  EXPECT_EQ(alone["fields"], json::parse(R"({"tools": 4, "turn.mood": 5, "turn.reasoning_content": 5,
                                             "turn.tool_calls": 4, "turn.weight=0": 2})"));
  EXPECT_EQ(alone["unused"], json::parse(R"({"note": 3})"));
  EXPECT_EQ(alone["damaged"]["reasons"].size(), 1u);
  const std::vector<std::string> qwen = {"--data.tokenizer", set() + "/tokenizer",     "--data.prompt_format",
                                         "qwen2p0",          "--data.sequence_length", "64"};
  const Finished run = braid_data("inspect", path, qwen);
  EXPECT_THAT(run.out, AllOf(HasSubstr("fields: 4 tools, 5 turn.mood"), HasSubstr("not used: 3 note, 5 turn.mood\n"),
                             HasSubstr("2 with nothing to predict"), HasSubstr("damaged: 15 samples"),
                             HasSubstr("  6 samples: its text has <video>"),
                             HasSubstr("  5 samples: the chat format qwen2p0 cannot write the reasoning_content"),
                             HasSubstr("  4 samples: the chat format qwen2p0 cannot write the sample's tools")));
  // A run says once what it does not use.
  const std::string told = braid_data("pack", path, qwen).err;
  EXPECT_EQ(count(told, "'note' in samples is not used"), 1) << told;
}

TEST_F(DataTools, InspectReplacesNoInput) {
  for (const std::string& input : {recipe_, set() + "/train_0000.tar", set() + "/train_0001.tar.idx",
                                   set() + "/.nv-meta/split.yaml", set() + "/tokenizer/tokenizer.json"}) {
    const std::string before = testing::read_file(input);
    for (const char* option : {"--html", "--stats"}) {
      const Finished run = braid({"data", "inspect", recipe_, option, input});
      EXPECT_EQ(run.exit_code, 2) << input;
      EXPECT_THAT(run.err, AllOf(HasSubstr("would replace a file that is read"), HasSubstr(option)));
    }
    EXPECT_EQ(testing::read_file(input), before);
  }
  for (int i = 0; i < 2; ++i) inspected({"--html", set() + "/page.html"});
}

TEST_F(DataTools, OutputsAreCheckedBeforeTheWork) {
  const std::string notes = folder_.write("notes.md", "mine"), none = folder_.path() + "/new/folder/";
  for (const char* option : {"--html", "--stats"})
    EXPECT_THAT(refused({"data", "inspect", set(), option, notes}),
                AllOf(HasSubstr("notes.md' does not end in ."), HasSubstr("never replaced")));
  EXPECT_THAT(refused({"data", "inspect", set(), "--html", none + "x", "--stats", none + "../folder/x"}),
              HasSubstr("--html and --stats name the same file"));
  EXPECT_THAT(refused({"data", "inspect", set(), "--html", notes + "/page.html"}), HasSubstr("cannot be written"));
  inspected({"--html", none + "page.html", "--stats", none + "stats.json"});
  EXPECT_THAT(testing::read_file(none + "stats.json"), HasSubstr("lengths"));

  const std::string picture = folder_.path() + "/one.png";
  const std::string tar = testing::read_file(set() + "/train_0000.tar");
  const std::size_t begin = tar.find("\x89PNG"), end = tar.find("IEND", begin) + 8;
  testing::write_text(picture, tar.substr(begin, end - begin));
  EXPECT_THAT(refused({"data", "image", picture, "--out", picture}), HasSubstr("would replace a file that is read"));
  for (const std::string& out : {notes, folder_.path() + "/new.bin"})
    EXPECT_THAT(refused({"data", "image", picture, "--out", out}), HasSubstr("does not end in .safetensors"));
  EXPECT_THAT(refused({"data", "image", picture, "--out", notes + "/x.safetensors"}), HasSubstr("cannot be written"));
  const std::string link = folder_.path() + "/link.safetensors";
  std::filesystem::create_symlink(notes, link);
  EXPECT_THAT(refused({"data", "image", picture, "--out", link}), HasSubstr("does not end in .safetensors"));
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(braid({"data", "image", picture, "--out", none + "pixels/x.safetensors"}).exit_code, 0);
  EXPECT_EQ(testing::read_file(notes), "mine");
}

TEST_F(DataTools, OrderKeepsNamesOnTheirLines) {
  testing::write_text(folder_.path() + "/odd/a b.tar", testing::tar_member("with space.txt", "x") +
                                                           testing::tar_member("with\nline.txt", "x") +
                                                           testing::tar_member("plain.txt", "x") + testing::tar_end());
  ASSERT_EQ(braid({"data", "prepare", folder_.path() + "/odd"}).exit_code, 0);
  EXPECT_EQ(braid({"data", "order", folder_.path() + "/odd", "--eval"}).out,
            "a b.tar with space\na b.tar with\\x0aline\na b.tar plain\n");
}

TEST_F(DataTools, NumbersOutOfRange) {
  EXPECT_THAT(refused({"data", "order", set(), "--skip", "1000000000000"}),
              HasSubstr("a number from 0 to 1000000000, not"));
  EXPECT_THAT(refused({"data", "order", set(), "--lanes", "3", "--lane", "3"}),
              HasSubstr("fix:   use one from 0 to 2"));
  EXPECT_THAT(refused({"data", "order", set(), "--split", "tets"}),
              HasSubstr("choose one of: train, val (--split, or"));
  EXPECT_EQ(braid({"data", "order", set(), "--workers", "0"}).out, braid({"data", "order", set()}).out);
  EXPECT_EQ(packs({"--num-workers", "0"}), packs({}));
  EXPECT_THAT(refused({"data", "order", set(), "--shuffle-buffer", "-1"}), HasSubstr("fix:   use 0 for none"));
  EXPECT_THAT(refused({"data", "draw", folder_.path() + "/other", "--seed", "-1"}), HasSubstr("--seed"));
  EXPECT_THAT(refused({"data", "draw", folder_.path() + "/other", "--val", "0"}), HasSubstr("from 1 to 100000000"));
  for (const char* seconds : {"nan", "inf", "-1", "0"})
    EXPECT_THAT(refused({"data", "bench", recipe_, "--seconds", seconds}),
                HasSubstr("a number from 0.001 to 1000000, not"));
  for (const std::string& path : {recipe_, set()})
    for (const char* length : {"0", "-3"})
      EXPECT_THAT(refused({"data", "pack", path, "--data.sequence_length", length, "--data.tokenizer",
                           set() + "/tokenizer", "--data.prompt_format", "chatml"}),
                  HasSubstr(fmt::format("sequence_length={} must be at least 1", length)));
  EXPECT_THAT(refused({"data", "pack", recipe_, "--skip", "1000000000"}),
              HasSubstr("a number from 0 to 10000000, not"));
  EXPECT_THAT(refused({"data", "pack", recipe_, "--loader.packing_buffer", "-1"}), HasSubstr("must be at least 0"));
}

TEST_F(DataTools, WithoutAPackingBufferASequenceHasOneSample) {
  for (const json& pack : packs({"--count", "5", "--loader.packing_buffer", "0"}))
    EXPECT_EQ(pack["samples"].size(), 1u);
}

TEST_F(DataTools, PathsThatAreSomethingElse) {
  EXPECT_THAT(refused({"data", "order", recipe_}),
              AllOf(HasSubstr("is a recipe, not a data set"), HasSubstr("a data set or a metadataset"),
                    HasSubstr("braid data pack " + recipe_)));
  EXPECT_THAT(refused({"data", "draw", recipe_}), HasSubstr("recipe.yaml' is not a folder"));
  EXPECT_THAT(refused({"data", "draw", recipe_ + "/set"}), HasSubstr("recipe.yaml' is not a folder"));
  EXPECT_THAT(refused({"data", "inspect", "/proc/x"}), HasSubstr("'/proc/x' does not exist"));
  EXPECT_THAT(refused({"data", "inspect", "/proc/self/mem"}), HasSubstr("cannot read '/proc/self/mem'"));
  std::filesystem::remove_all(set() + "/.nv-meta");
  testing::write_text(set() + "/.unfinished", "");
  EXPECT_THAT(refused({"data", "inspect", set()}), HasSubstr("is unfinished: writing it was interrupted"));
}

TEST_F(DataTools, PrepareAgainKeepsTheSplits) {
  const Finished again = braid({"data", "prepare", set(), "--force"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("the splits were there already and are unchanged"));
  EXPECT_EQ(inspected({})["data_sets"][1]["samples"], 7);
  EXPECT_EQ(braid({"data", "prepare", set(), "--force", "--split", "train:1"}).exit_code, 0);
  EXPECT_THAT(braid({"data", "inspect", recipe_}).err,
              AllOf(HasSubstr("WARNING: "), HasSubstr("there is no split 'val'")));
}

TEST_F(DataTools, TokenizeNamesTheLineAndTheReason) {
  for (const auto& [line, reason] : {std::pair{"\"\\ud800\"", "surrogate"}, {"1e999", "number"}}) {
    const Finished run = testing::run_program({"/bin/sh", "-c",
                                               fmt::format("printf '%s\\n' '\"red\"' '{}' | {} data tokenize {}", line,
                                                           testing::built_program("braid"), set() + "/tokenizer")});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_EQ(count(run.out, "\n"), 1) << run.out;
    EXPECT_THAT(run.err, AllOf(HasSubstr("standard input, line 2: not JSON: "), HasSubstr(reason),
                               Not(HasSubstr("json.exception"))));
  }
}

// A pass of the bench has the totals that inspect and the data set give.
TEST_F(DataTools, BenchDoesAllTheWork) {
  const json report = inspected({"--count", "all"});
  const Finished run = braid({"data", "bench", recipe_, "--one-pass", "--threads", "2", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json bench = json::parse(run.out);
  EXPECT_EQ(bench["samples"], kSamples);
  EXPECT_EQ(bench["tokens"], report["packing"]["tokens"]);
  EXPECT_EQ(bench["bytes"], report["stored_bytes"]);
  EXPECT_EQ(bench["pictures"], report["parts"]["png"]);
  EXPECT_EQ(bench["patches"].get<std::int64_t>(),
            4 * std::llround(report["pictures"]["embeddings"]["mean"].get<double>() *
                             report["pictures"]["embeddings"]["count"].get<double>()));
  EXPECT_THAT(braid({"data", "bench", recipe_, "--seconds", "0.01"}).out,
              AllOf(HasSubstr("tokenizing"), HasSubstr("MB at the end")));
}

// Two lanes; --stats stores the sequences that pack prints.
TEST_F(DataTools, StatsAreTheSizesOfTrainingSequences) {
  const std::string path = folder_.path() + "/stats.json";
  inspected({"--stats", path, "--sequences", "10"});
  const json stats = json::parse(testing::read_file(path));
  EXPECT_EQ(stats["sequence_length"], kLength);
  EXPECT_EQ(stats["encoders"], json({"images"}));
  EXPECT_GT(stats["reading"]["sequence_s"], 0);
  EXPECT_GT(stats["reading"]["patch_s"], 0);
  std::vector<json> expected = packs({"--count", "5"}), second = packs({"--count", "5", "--lane", "1"});
  expected.insert(expected.end(), second.begin(), second.end());
  ASSERT_EQ(stats["sequences"].size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const json& sequence = stats["sequences"][i];
    json extents = json::array();
    ASSERT_EQ(sequence["pieces"].size(), expected[i]["samples"].size());
    for (std::size_t p = 0; p < sequence["pieces"].size(); ++p) {
      const json &piece = sequence["pieces"][p], &sample = expected[i]["samples"][p];
      EXPECT_EQ(piece[0], sample["length"]);
      EXPECT_EQ(piece[1], sample["labels"]);
      EXPECT_LE(piece[1].get<int>(), piece[3].get<int>() - piece[2].get<int>());
      EXPECT_LT(piece[3].get<int>(), piece[0].get<int>()) << "the last token predicts nothing";
      for (const json& media : sample["media"]) extents.push_back(media["extent"]);
    }
    EXPECT_EQ(sequence.contains("media") ? sequence["media"][0] : json::array(), extents);
  }
  const Finished alone = braid({"data", "inspect", set(), "--stats", path});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_FALSE(json::parse(testing::read_file(path)).contains("sequences")) << "no tokenizer";
}

TEST_F(DataTools, PageShowsWhatIsPredictedAndEscapesTheRest) {
  const std::string page = folder_.path() + "/page.html", stats = folder_.path() + "/stats.json";
  inspected({"--html", page, "--stats", stats, "--show", "5"});
  const std::string html = testing::read_file(page);
  EXPECT_THAT(html, AllOf(HasSubstr("data:image/png;base64,"), HasSubstr(", predicted\">"),
                          HasSubstr("embeddings</span>"), HasSubstr("class=\"patches\""), Not(HasSubstr("://"))));
  const json counts = json::parse(testing::read_file(stats));
  std::int64_t samples = 0;
  for (const json& pair : counts["lengths"]) samples += pair[1].get<std::int64_t>();
  EXPECT_EQ(samples, kSamples);
  EXPECT_LE(counts["sequences"].size(), kSamples) << "not more sequences than samples";

  const std::string hostile = folder_.write("hostile.jsonl", R"({"text": "<script>alert(1)</script>"})"
                                                             "\n");
  ASSERT_EQ(braid({"data", "prepare", hostile}).exit_code, 0);
  const Finished run = braid({"data", "inspect", hostile, "--html", page});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(testing::read_file(page), AllOf(HasSubstr("&lt;script&gt;alert"), Not(HasSubstr("<script>"))));
}

}  // namespace
}  // namespace braid
