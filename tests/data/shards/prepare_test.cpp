// Preparing data sets: what is refused, and that nothing half-written is left. The comparison with what Energon writes
// is in tests/oracles/energon_test.py.
#include "data/shards/prepare.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include "data/shards/lane.h"
#include "data/shards/tar_files.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using testing::read_text;
using testing::tar_end;
using testing::tar_member;
using testing::write_shards;
using testing::write_text;

class Prepare : public ::testing::Test {
 protected:
  fs::path root() const { return folder_.path(); }
  std::string refusal(PrepareRequest request) const {
    request.path = root();
    return error_of<ConfigError>([&] { prepare_data_set(request); });
  }
  testing::TemporaryFolder folder_;
};

TEST_F(Prepare, CountsSamplesAndSplits) {
  write_shards(root(), {3, 2, 4}, "s");
  const Prepared prepared = prepare_data_set({.path = root(), .ratios = {{"train", 2}, {"val", 1}}});
  EXPECT_EQ(prepared.samples, 9);
  EXPECT_THAT(prepared.parts, ElementsAre("json", "txt"));
  ASSERT_EQ(prepared.splits.size(), 2u);
  EXPECT_EQ(prepared.splits[0].samples, 5);
  EXPECT_EQ(prepared.splits[1].samples, 4);
  EXPECT_EQ(open_blend(root(), "val")->leaves[0].data.samples(), 4);
}

// 0.6 + 0.3 + 0.1 is less than 1. tests/oracles/metadata_test.py compares the cuts with Energon's.
TEST_F(Prepare, PutsEveryShardInOneSplit) {
  write_shards(root(), std::vector<int>(10, 1), "s");
  const auto sizes = [&](const std::vector<double>& ratios) {
    PrepareRequest request = {.path = root(), .force = true};
    for (std::size_t i = 0; i < ratios.size(); ++i) request.ratios.emplace_back(fmt::format("s{}", i), ratios[i]);
    std::vector<std::int64_t> samples;
    for (const auto& split : prepare_data_set(request).splits) samples.push_back(split.samples);
    return samples;
  };
  EXPECT_THAT(sizes({6, 3, 1}), ElementsAre(6, 3, 1));
  EXPECT_THAT(sizes({0.6, 0.3, 0.1}), ElementsAre(6, 3, 1));
  EXPECT_THAT(sizes({6, 3, 1, 0}), ElementsAre(6, 3, 1, 0));
  EXPECT_THAT(sizes({1, 1, 1, 1, 1, 1}), ElementsAre(1, 2, 2, 1, 2, 2));
}

TEST_F(Prepare, WarnsOfShardsThatLookCut) {
  write_shards(root(), {2, 2}, "s");
  EXPECT_THAT(prepare_data_set({.path = root()}).warnings, ElementsAre());
  const std::string tar = read_text(root() / "s_1.tar");
  write_text(root() / "s_1.tar", tar.substr(0, tar.size() - tar_end().size() - 1));
  const Prepared prepared = prepare_data_set({.path = root(), .force = true});
  EXPECT_EQ(prepared.samples, 4);
  EXPECT_THAT(prepared.warnings, ElementsAre(HasSubstr("s_1.tar' ends within the padding of its last member")));
}

TEST_F(Prepare, AndReadersJudgeTheEndOfAShardAlike) {
  write_shards(root(), {2}, "s");
  const fs::path path = root() / "s_0.tar";
  const std::string tar = read_text(path), members = tar.substr(0, tar.size() - tar_end().size());
  prepare_data_set({.path = root()});
  for (const std::string& end : {std::string(100, '\0'), std::string(), tar_end() + "x", std::string("cut header")}) {
    write_text(path, members + end);
    const std::string remark = OpenShard({"s_0.tar", path, 2}).end_remark();
    EXPECT_NE(remark, "");
    try {
      EXPECT_THAT(prepare_data_set({.path = root(), .force = true}).warnings, ElementsAre(remark));
    } catch (const DataError& e) {
      EXPECT_EQ(e.what(), remark);
    }
  }
}

TEST_F(Prepare, RefusesAnUnfinishedFolder) {
  write_shards(root(), {2}, "s");
  write_text(root() / kUnfinishedMark, "");
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("is unfinished"), HasSubstr("write it again")));
  EXPECT_FALSE(fs::exists(root() / ".nv-meta"));
  EXPECT_THAT(error_of<ConfigError>([&] { open_blend(root(), "train"); }), HasSubstr("is unfinished"));
}

TEST_F(Prepare, RefusesToOverwrite) {
  write_shards(root(), {2}, "s");
  prepare_data_set({.path = root()});
  write_text(root() / ".nv-meta/dataset.yaml", "edited");
  EXPECT_THAT(refusal({}), HasSubstr("--force"));
  write_shards(root(), {2, 3}, "s");
  const Prepared again = prepare_data_set({.path = root(), .force = true});
  EXPECT_EQ(again.samples, 5);
  EXPECT_TRUE(again.kept_dataset_yaml);
  EXPECT_EQ(read_text(root() / ".nv-meta/dataset.yaml"), "edited");
}

TEST_F(Prepare, NamesARepeatedKeyAndLeavesItUnprepared) {
  write_shards(root() / "x", {2}, "s");
  write_shards(root() / "y", {2}, "s");
  const std::string error = error_of<DataError>([&] { prepare_data_set({.path = root()}); });
  EXPECT_THAT(error, AllOf(HasSubstr("'s0'"), HasSubstr("x/s_0.tar"), HasSubstr("y/s_0.tar")));
  EXPECT_FALSE(fs::exists(root() / ".nv-meta/.info.json"));
  for (const auto& entry : fs::directory_iterator(root() / ".nv-meta"))
    ADD_FAILURE() << entry.path() << " was left behind";
  fs::remove_all(root() / "y");
  prepare_data_set({.path = root()});  // without --force
}

std::map<fs::path, std::string> files_below(const fs::path& folder) {
  std::map<fs::path, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[entry.path()] = read_text(entry.path());
  return files;
}

TEST_F(Prepare, ChangesNothingWhenForcedAndAScanFails) {
  write_shards(root(), {2, 2}, "s");
  prepare_data_set({.path = root()});
  write_shards(root(), {3, 2}, "s");
  write_text(root() / ".nv-meta/.info.yaml", "shard_counts: {}");
  write_text(root() / "s_1.tar", "damaged");
  const auto before = files_below(root());
  EXPECT_THAT(refusal({.patterns = {{"train", "none"}}, .force = true}), HasSubstr("no shard matches"));
  EXPECT_NE(error_of<DataError>([&] { prepare_data_set({.path = root(), .force = true}); }), "no error");
  EXPECT_EQ(files_below(root()), before);
}

// The names are those of AtomicFile and of the key index.
TEST_F(Prepare, RemovesWhatKilledCallsLeft) {
  write_shards(root(), {2}, "s");
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  const auto left = [&](const char* name, pid_t pid, std::chrono::hours age = std::chrono::hours(2)) {
    const fs::path path = root() / fmt::format("{}.{}.tmp", name, pid);
    write_text(path, "");
    fs::last_write_time(path, fs::file_time_type::clock::now() - age);
    return path;
  };
  std::vector<fs::path> removed,
      kept = {left(".s_0.tar.idx.new", ::getppid()), left(".nv-meta/.mine", gone), left(".index.sqlite", gone),
              left("s_0.tar.idx.new", gone), left(".s_1.tar.idx.new", gone, std::chrono::hours(0))};
  for (const char* name : {".nv-meta/.index.sqlite", ".nv-meta/..info.json", ".s_0.tar.idx.new", "x/.t.tar.idx.new"})
    removed.push_back(left(name, gone));
  prepare_data_set({.path = root()});
  for (const fs::path& path : removed) EXPECT_FALSE(fs::exists(path)) << path;
  for (const fs::path& path : kept) EXPECT_TRUE(fs::exists(path)) << path;
}

TEST_F(Prepare, RefusesShardsThatLostSamples) {
  write_shards(root(), {2, 3}, "s");
  prepare_data_set({.path = root()});
  const std::string tar = read_text(root() / "s_1.tar");
  write_text(root() / "s_1.tar", tar.substr(0, 2 * 2048));  // between two members
  const auto before = files_below(root());
  const std::string error = error_of<DataError>([&] { prepare_data_set({.path = root(), .force = true}); });
  EXPECT_THAT(error, AllOf(HasSubstr("s_1.tar' has 2 samples, but had 3 when it was indexed: restore it"),
                           HasSubstr("s_1.tar.idx' (or"), HasSubstr("/.nv-meta'")));
  EXPECT_EQ(files_below(root()), before);
  fs::remove(root() / "s_1.tar.idx");
  EXPECT_EQ(prepare_data_set({.path = root(), .force = true}).samples, 4);

  write_text(root() / "s_1.tar", tar.substr(0, 2048));
  fs::remove_all(root() / ".nv-meta");
  EXPECT_EQ(prepare_data_set({.path = root()}).samples, 3);
  write_text(root() / "s_1.tar.idx", "damaged");
  EXPECT_EQ(prepare_data_set({.path = root(), .force = true}).samples, 3);
}

TEST_F(Prepare, KeepsItsSplitsUnlessOthersAreGiven) {
  write_shards(root(), {1, 2, 3}, "s");
  EXPECT_FALSE(prepare_data_set({.path = root(), .ratios = {{"train", 2}, {"val", 1}}}).kept_splits);
  const std::string edited =
      "split_parts: {train: ['s_{0,2}.tar'], held_out: [s_1.tar, s_2.tar]}\nexclude: [s_2.tar]\n";
  write_text(root() / ".nv-meta/split.yaml", edited);
  const Prepared kept = prepare_data_set({.path = root(), .force = true});
  EXPECT_TRUE(kept.kept_splits);
  EXPECT_EQ(read_text(root() / ".nv-meta/split.yaml"), edited);
  ASSERT_EQ(kept.splits.size(), 2u);
  EXPECT_EQ(kept.splits[0].samples, 1);
  EXPECT_EQ(kept.splits[1].name, "held_out");
  EXPECT_EQ(kept.splits[1].samples, 2);
  const Prepared cut = prepare_data_set({.path = root(), .patterns = {{"train", ".*"}}, .force = true});
  EXPECT_FALSE(cut.kept_splits);
  EXPECT_EQ(open_blend(root(), "train")->leaves[0].data.samples(), 3);
}

TEST_F(Prepare, RefusesToKeepSplitsWhoseShardIsGone) {
  write_shards(root(), {1, 2, 3}, "s");
  prepare_data_set({.path = root(), .ratios = {{"train", 2}, {"val", 1}}});
  fs::remove(root() / "s_1.tar");
  const auto before = files_below(root());
  EXPECT_THAT(refusal({.force = true}),
              AllOf(HasSubstr("the split 'train' names shard 's_1.tar', which is not there"), HasSubstr("--split ")));
  EXPECT_EQ(files_below(root()), before);
  prepare_data_set({.path = root(), .ratios = {{"train", 1}, {"val", 1}}, .force = true});
  EXPECT_EQ(open_data_set(root(), "train").samples(), 1);
  write_text(root() / ".nv-meta/split.yaml", "split_parts: {train: [s_1.tar], val: [s_7.tar]}");
  write_shards(root(), {1, 2, 3}, "s");
  const auto advice = [&](const char* split) { return error_of<ConfigError>([&] { open_data_set(root(), split); }); };
  EXPECT_THAT(advice("train"), AllOf(HasSubstr("run `braid data prepare --force"), Not(HasSubstr("--split"))));
  EXPECT_THAT(advice("val"), HasSubstr("with new splits (--split)"));
}

TEST_F(Prepare, NewSplitsKeepWhatIsExcluded) {
  write_shards(root(), {1, 2, 3, 4}, "s");
  prepare_data_set({.path = root()});
  write_text(root() / ".nv-meta/split.yaml",
             "split_parts: {train: ['s_{0..3}.tar']}\nexclude: ['s_{0,9}.tar', s_3.tar/s6]\n");
  const Prepared cut = prepare_data_set({.path = root(), .ratios = {{"train", 2}, {"val", 1}}, .force = true});
  EXPECT_EQ(cut.splits[1].samples, 3);
  EXPECT_EQ(cut.excluded_shards, 1);
  EXPECT_EQ(cut.excluded_samples, 1);
  EXPECT_THAT(cut.warnings, ElementsAre(HasSubstr("has entries that match no shard and no sample: 's_9.tar'")));
  EXPECT_THAT(cut.unused_shards, ElementsAre());
  const DataSet train = open_data_set(root(), "train"), val = open_data_set(root(), "val");
  EXPECT_EQ(train.samples(), 5);  // two of the three shards that are not excluded
  EXPECT_EQ(val.samples(), 4);
  EXPECT_THAT(val.excluded, ElementsAre(Pair(0, 0)));
  prepare_data_set({.path = root(), .patterns = {{"all", ".*"}}, .force = true});
  EXPECT_EQ(open_data_set(root(), "all").samples(), 9);
}

TEST_F(Prepare, NamesDamagedAndEmptyShards) {
  write_shards(root(), {2, 2}, "s");
  const std::string bytes = read_text(root() / "s_1.tar");
  write_text(root() / "s_1.tar", bytes.substr(0, 1500));
  EXPECT_THAT(error_of<DataError>([&] { prepare_data_set({.path = root()}); }),
              HasSubstr("s_1.tar' is damaged at byte 1024"));
  write_text(root() / "s_1.tar", tar_member("nodot", "x") + tar_end());
  EXPECT_THAT(error_of<DataError>([&] { prepare_data_set({.path = root()}); }), HasSubstr("s_1.tar' has no samples"));
  write_text(root() / "c.tgz", "x");
  EXPECT_THAT(refusal({}), HasSubstr("compressed"));
}

TEST_F(Prepare, NamesWithBracesAreFoundAgain) {
  write_text(root() / "s{1,2}\\x.tar", tar_member("a.txt", "one") + tar_end());
  prepare_data_set({.path = root()});
  const auto blend = open_blend(root(), "train");
  EXPECT_EQ(blend->leaves[0].data.shards.at(0).name, "s{1,2}\\x.tar");
  EXPECT_EQ(SampleReader(blend).key({}), "a");
}

TEST_F(Prepare, RefusesRequestsThatMakeNoSense) {
  EXPECT_THAT(refusal({}), HasSubstr("has no .tar files"));
  write_shards(root(), {2}, "s");
  EXPECT_THAT(refusal({.ratios = {{"train", 1}}, .patterns = {{"train", ".*"}}}),
              HasSubstr("--split or --split-parts"));
  for (const auto& patterns : {decltype(PrepareRequest::patterns){}, {{"train", ".*"}}})
    EXPECT_THAT(refusal({.patterns = patterns, .shuffle = true}), HasSubstr("there is no --split"));
  EXPECT_THAT(refusal({.ratios = {{"train", 0}}}), HasSubstr("add up to zero"));
  EXPECT_THAT(refusal({.ratios = {{"train", -1}}}), HasSubstr("not a ratio"));
  EXPECT_THAT(refusal({.ratios = {{"train", 1}, {"train", 1}}}), HasSubstr("named twice"));
  EXPECT_THAT(refusal({.patterns = {{"train", "a.*"}, {"train", "b.*"}}}),
              AllOf(HasSubstr("named twice"), HasSubstr("{a,b}")));
  EXPECT_THAT(refusal({.patterns = {{"", ".*"}}}), HasSubstr("a split has no name"));
  EXPECT_THAT(refusal({.patterns = {{"train", "*.tar"}}}), HasSubstr("regular expression"));
  EXPECT_THAT(refusal({.patterns = {{"train", "train/*"}}}),
              AllOf(HasSubstr("no shard matches"), HasSubstr("train/.*")));
  EXPECT_THAT(refusal({.sample_type = "VQASample"}), HasSubstr("belong together"));
  EXPECT_THAT(refusal({.sample_type = "TextSample", .field_map = {{"text", "["}}}), HasSubstr("--field-map text"));
  EXPECT_THAT(refusal({.sample_type = "TxtSample", .field_map = {{"text", "txt"}}}),
              AllOf(HasSubstr("no sample type 'TxtSample'"), HasSubstr("VQASample, MultiChoiceVQASample, TextSample")));
  EXPECT_THAT(refusal({.sample_type = "VQASample", .field_map = {{"context", "txt"}}}),
              AllOf(HasSubstr("a VQASample also needs image and answers"),
                    HasSubstr("--field-map image=PART --field-map answers=PART")));
}

TEST_F(Prepare, RefusesFieldsThatTheTypeDoesNotHave) {
  write_shards(root(), {2}, "s");
  prepare_data_set({.path = root(), .sample_type = "TextSample", .field_map = {{"text", "txt"}}});
  const auto before = files_below(root());
  const auto told = [&](decltype(PrepareRequest::field_map) fields) {
    return refusal({.force = true, .sample_type = "MultiChoiceVQASample", .field_map = std::move(fields)});
  };
  EXPECT_THAT(told({{"image", "jpg"}, {"context", "txt"}, {"choises", "json"}}),
              AllOf(HasSubstr("a MultiChoiceVQASample has no field 'choises'"),
                    HasSubstr("image, context, choices, correct_choice_idx")));
  EXPECT_THAT(told({{"image", "jpg"}, {"image", "png"}, {"context", "txt"}, {"choices", "json"}}),
              AllOf(HasSubstr("the field 'image' is mapped twice"), HasSubstr("--field-map image=jpg,png")));
  EXPECT_EQ(files_below(root()), before);
}

TEST_F(Prepare, WarnsOfFieldsWhosePartNoSampleHas) {
  write_shards(root(), {2}, "s");
  const Prepared prepared = prepare_data_set({.path = root(),
                                              .sample_type = "CaptioningSample",
                                              .field_map = {{"image", "jpg,png"}, {"caption", "text,json[n]"}}});
  EXPECT_THAT(prepared.warnings, ElementsAre("no sample has the part for --field-map image=jpg,png; parts: json, txt"));
}

TEST_F(Prepare, WarnsOfShardsInSeveralSplits) {
  write_shards(root(), {1, 1, 1}, "s");
  const auto warnings = [&](const char* val) {
    return prepare_data_set({.path = root(), .patterns = {{"train", "s"}, {"val", val}}, .force = true}).warnings;
  };
  EXPECT_THAT(warnings("s_2"), ElementsAre(HasSubstr("1 shard is in several splits")));
  EXPECT_THAT(warnings("s_[12]"), ElementsAre(AllOf(HasSubstr("2 shards are in several splits"),
                                                    HasSubstr("'s_1.tar' is in 'train' and 'val'"))));
}

TEST(CutSplits, CutsAsEnergonDoes) {
  std::vector<std::string> shards;
  for (char c = 'a'; c <= 'j'; ++c) shards.emplace_back(1, c);
  const auto sizes = [&](std::vector<std::pair<std::string, double>> ratios) {
    std::vector<std::size_t> result;
    for (const auto& [name, part] : cut_splits({.path = "", .ratios = std::move(ratios)}, shards))
      result.push_back(part.size());
    return result;
  };
  EXPECT_THAT(sizes({}), ElementsAre(10));
  EXPECT_THAT(sizes({{"train", 8}, {"val", 1}, {"test", 1}}), ElementsAre(8, 1, 1));
  EXPECT_THAT(sizes({{"train", 0.95}, {"val", 0.05}}), ElementsAre(9, 1));
  shards.resize(1);
  EXPECT_THAT(sizes({{"train", 99}, {"val", 1}}), ElementsAre(1, 0)) << "the largest ratio";
  EXPECT_THAT(sizes({{"val", 1}, {"train", 99}}), ElementsAre(0, 1));
  shards.resize(3, "k");
  EXPECT_THAT(sizes({{"val", 1}, {"train", 99}}), ElementsAre(1, 2)) << "one for each";
  EXPECT_THAT(sizes({{"a", 1}, {"b", 0}, {"c", 2}, {"d", 3}, {"e", 4}}), ElementsAre(0, 0, 1, 1, 1));
  shards = {"a", "b", "c", "d"};
  const auto by_name = cut_splits({.path = "", .patterns = {{"x", "[a-c]"}, {"y", "{c,d}"}}}, shards);
  EXPECT_THAT(by_name, ElementsAre(Pair("x", ElementsAre("a", "b", "c")), Pair("y", ElementsAre("c", "d"))));
}

}  // namespace
}  // namespace braid
