// Damaged samples are skipped, counted and named with shard and key; the others are read. One more than the limit ends
// the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "data/samples/lane_set.h"
#include "data/samples/stored_sample.h"
#include "data/samples/token_sequence.h"
#include "data/shards/lane.h"
#include "data/shards/prepare.h"
#include "data/shards/tar_files.h"
#include "support/errors.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Parts;
using ::testing::StartsWith;

constexpr std::size_t kSamples = 4, kDamaged = 2;

std::string key_of(std::size_t sample) { return fmt::format("s{}", sample); }

std::vector<std::pair<std::string, Parts>> good_samples() {
  static const std::string png = testing::some_png({32, 32});
  std::vector<std::pair<std::string, Parts>> samples;
  for (std::size_t i = 0; i < kSamples; ++i)
    samples.push_back({key_of(i), {{"png", png}, {"json", R"([{"role": "user", "content": "<image> this?"},
                                     {"role": "assistant", "content": "a star"}])"}}});
  return samples;
}

std::string talk(const std::string& question, const std::string& answer) {
  return fmt::format(R"([{{"role": "user", "content": "{}"}}, {{"role": "assistant", "content": "{}"}}])", question,
                     answer);
}

struct Kind {
  const char* name;
  std::function<void(std::string& png, std::string& json)> damage;
  const char* reason;
};

const std::vector<Kind>& kinds() {
  static const std::string deep(1 << 18, '['), nested = deep + std::string(deep.size(), ']');
  static const std::vector<Kind> all = {
      {"picture cut off", [](auto& png, auto&) { png.resize(20); }, "png"},
      {"picture with a flipped bit in its signature", [](auto& png, auto&) { png[1] ^= 4; }, "not a JPEG, PNG or WebP"},
      {"picture of 50,000 x 50,000 pixels",
       [](auto& png, auto&) { png.replace(16, 8, std::string("\x00\x00\xc3\x50\x00\x00\xc3\x50", 8)); },
       "50000 x 50000 pixels are more than the limit"},
      {"picture without pixels", [](auto& png, auto&) { png.replace(16, 4, std::string(4, '\0')); }, "png"},
      {"empty picture", [](auto& png, auto&) { png.clear(); }, "the file is empty"},
      {"text as a picture", [](auto& png, auto&) { png = "a star"; }, "not a JPEG, PNG or WebP"},
      {"empty JSON", [](auto&, auto& json) { json.clear(); }, "not valid JSON"},
      {"cut JSON", [](auto&, auto& json) { json.resize(json.size() / 2); }, "not valid JSON"},
      {"a picture as JSON", [](auto& png, auto& json) { json = png; }, "not valid JSON"},
      {"zeros as JSON", [](auto&, auto& json) { json.assign(json.size(), '\0'); }, "not valid JSON"},
      {"broken UTF-8", [](auto&, auto& json) { json = talk("<image> \xff\xfe?", "this"); }, "not valid JSON"},
      {"unclosed JSON", [](auto&, auto& json) { json = deep; }, "not valid JSON"},
      {"deep JSON as pictures", [](auto&, auto& json) { json = R"({"text": "this", "images": )" + nested + "}"; },
       "name of a picture is not a text"},
      {"deep JSON as an answer", [](auto&, auto& json) { json = R"({"question": "?", "answer": )" + nested + "}"; },
       "the answer is not a text"},
      {"a number as a conversation", [](auto&, auto& json) { json = "7"; }, "neither turns nor text"},
      {"a text as a conversation", [](auto&, auto& json) { json = R"({"messages": "hi"})"; }, "not a list"},
      {"a turn without a role", [](auto&, auto& json) { json = R"([{"content": "hi"}])"; }, "needs a role"},
      {"an unknown role", [](auto&, auto& json) { json = R"([{"role": "cat", "content": "hi"}])"; }, "unknown role"},
      {"a list as a text", [](auto&, auto& json) { json = R"([{"role": "user", "content": [[]]}])"; }, "fragment"},
      {"an empty answer", [](auto&, auto& json) { json = talk("<image>", ""); }, "turn 2 (assistant) is empty"},
      {"a tag too many", [](auto&, auto& json) { json = talk("<image><image>", "this"); }, "there is 1 picture"},
      {"a tag in the answer", [](auto&, auto& json) { json = talk("this?", "<image>"); }, "an answer has a picture"},
      {"a picture that is missing",
       [](auto&, auto& json) { json = R"({"images": ["png", "left.jpg"], "text": "<image> a star"})"; },
       "no part 'left.jpg'"}};
  return all;
}

struct Read {
  std::vector<std::string> keys;   // of one epoch
  std::vector<std::string> notes;  // about damaged samples
};

LaneSetOptions options_for(const std::string& folder, std::int64_t most_bad) {
  LaneSetOptions options = {
      .loader = {.packing_buffer = 2}, .split = "train", .is_training = false, .sequence_length = 40};
  options.data = {.path = folder,
                  .tokenizer = testing::drawn_data() + "/tokenizer",
                  .prompt_format = "chatml",
                  .max_bad_samples = most_bad};
  options.vision = VisionInput{.token = "<image>", .token_id = 511};
  return options;
}

Read read_all(const std::string& folder, std::int64_t most_bad) {
  Read read;
  LaneSetOptions options = options_for(folder, most_bad);
  options.bad = std::make_shared<BadSamples>(most_bad, [&](const std::string& text) { read.notes.push_back(text); });
  options.read_pauses.clear();
  const LaneSet set(options);
  WorkerPool pool(2);
  PackLane lane(set, pool, set.order(), 0);
  while (const auto pack = lane.next())
    for (const ReadSample& sample : *pack) read.keys.push_back(sample.key);
  std::sort(read.keys.begin(), read.keys.end());
  return read;
}

// A data set of one shard; changes afterwards are not in its index.
class DamagedShard : public ::testing::Test {
 protected:
  std::string prepare(const std::vector<std::pair<std::string, Parts>>& samples) {
    const std::string folder = fmt::format("{}/{}", root_.path(), next_++);
    testing::write_text(folder + "/a.tar", testing::tar_of(samples));
    prepare_data_set({.path = folder, .ratios = {{"train", 1}}});
    return folder;
  }

  const testing::TemporaryFolder root_;
  int next_ = 0;
};

TEST_F(DamagedShard, LosesOnlyTheDamagedSample) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    auto samples = good_samples();
    kind.damage(samples[kDamaged].second[0].second, samples[kDamaged].second[1].second);
    const std::string folder = prepare(samples);
    const Read read = read_all(folder, 1);
    EXPECT_EQ(read.keys, (std::vector<std::string>{"s0", "s1", "s3"}));
    ASSERT_EQ(read.notes.size(), 1u);
    EXPECT_THAT(read.notes[0], AllOf(HasSubstr("sample 's2' of shard 'a.tar' is skipped"), HasSubstr(kind.reason),
                                     HasSubstr("(1 skipped)")));
    EXPECT_THAT(testing::error_of<DataError>([&] { read_all(folder, 0); }),
                AllOf(HasSubstr("'s2'"), HasSubstr("'a.tar'"), HasSubstr("data.max_bad_samples=0")));
  }
}

TEST_F(DamagedShard, LosesASampleWithoutItsParts) {
  for (const std::size_t missing : {0u, 1u}) {
    auto samples = good_samples();
    samples[kDamaged].second.erase(samples[kDamaged].second.begin() + static_cast<std::ptrdiff_t>(missing));
    const Read read = read_all(prepare(samples), 1);
    EXPECT_EQ(read.keys.size(), kSamples - 1);
    EXPECT_THAT(read.notes, Each(HasSubstr("'s2' of shard 'a.tar'")));
  }
}

// The tar file changed after its index was written.
TEST_F(DamagedShard, LosesWhatItsIndexDoesNotFind) {
  const std::string whole = testing::tar_of(good_samples());
  const auto offset = whole.find("s2.png");
  const auto read_changed = [&](const std::function<void(std::string&)>& change) {
    const std::string folder = prepare(good_samples());
    std::string tar = whole;
    change(tar);
    testing::write_text(folder + "/a.tar", tar);
    return read_all(folder, kSamples);
  };
  const auto names_the_shard = Each(HasSubstr("a.tar"));
  const Read flipped = read_changed([&](std::string& tar) { tar[offset + 150] ^= 1; });  // the header's checksum
  EXPECT_EQ(flipped.keys, (std::vector<std::string>{"s0", "s1", "s3"}));
  EXPECT_THAT(flipped.notes, AllOf(::testing::SizeIs(1), Each(HasSubstr("a.tar' is damaged at byte"))));
  const Read zeros = read_changed([&](std::string& tar) {
    for (const char* name : {"s0.png", "s2.png", "s3.png"}) tar.replace(tar.find(name), 512, std::string(512, '\0'));
  });
  EXPECT_EQ(zeros.keys, (std::vector<std::string>{"s1"}));
  EXPECT_THAT(zeros.notes, AllOf(::testing::SizeIs(3), Each(HasSubstr("a.tar' is damaged at byte"))));
  const Read larger = read_changed([&](std::string& tar) {
    tar.replace(offset, 512, testing::with_checksum(tar.substr(offset, 512).replace(124, 11, "77777777777")));
  });
  EXPECT_EQ(larger.keys, (std::vector<std::string>{"s0", "s1", "s3"}));
  EXPECT_THAT(larger.notes, AllOf(::testing::SizeIs(1), names_the_shard));
  const auto of_another_tar = Each(AllOf(HasSubstr("a.tar.idx' does not fit its shard: sample "),
                                         HasSubstr("`braid data prepare --force`"), Not(HasSubstr("damaged"))));
  const Read moved = read_changed([](std::string& tar) { tar.insert(0, testing::tar_member("s.txt", "new")); });
  EXPECT_TRUE(moved.keys.empty());
  EXPECT_THAT(moved.notes, AllOf(::testing::SizeIs(kSamples), of_another_tar));
  const Read larger_part = read_changed([&](std::string& tar) {
    auto samples = good_samples();
    samples[0].second[1].second += std::string(2000, ' ');
    tar = testing::tar_of(samples);
  });
  EXPECT_THAT(larger_part.notes, AllOf(::testing::SizeIs(2), of_another_tar));  // the others begin at a header
}

// --- files that the system cannot deliver: no sample is skipped, since other ranks may read it

struct Trouble {
  const char* name;
  std::function<void(const std::string& folder)> begin;
  const char* reason;
};

const std::vector<Trouble>& troubles() {
  static const std::vector<Trouble> all = {
      {"no shard", [](auto& folder) { fs::remove(folder + "/a.tar"); }, "No such file"},
      {"no index", [](auto& folder) { fs::remove(folder + "/a.tar.idx"); }, "No such file"},
      {"a folder", [](auto& f) { fs::remove(f + "/a.tar"), fs::create_directory(f + "/a.tar"); }, "not a regular file"},
      {"a cut shard", [](auto& folder) { fs::resize_file(folder + "/a.tar", 1000); }, "it has been cut"},
      {"an empty shard", [](auto& folder) { fs::resize_file(folder + "/a.tar", 0); }, "it has been cut"},
      {"a cut index", [](auto& folder) { fs::resize_file(folder + "/a.tar.idx", 13); }, "are not an index"},
      {"an index of fewer samples", [](auto& folder) { fs::resize_file(folder + "/a.tar.idx", 24); }, "counts 4"},
      {"an empty index", [](auto& folder) { fs::resize_file(folder + "/a.tar.idx", 0); }, "are not an index"}};
  return all;
}

TEST_F(DamagedShard, IsNotSkippedWhenItCannotBeRead) {
  for (const Trouble& trouble : troubles()) {
    const std::string folder = prepare(good_samples());
    trouble.begin(folder);
    EXPECT_THAT(testing::error_of<ReadError>([&] { read_all(folder, kSamples); }),
                AllOf(HasSubstr(trouble.reason), HasSubstr("a.tar")))
        << trouble.name;
    const std::vector<Problem> problems = unreadable_shards(*open_blend(folder, "train"));
    ASSERT_EQ(problems.size(), 1u) << trouble.name;
    EXPECT_THAT(problems[0].what, AllOf(HasSubstr("1 of 1 shard of '"), HasSubstr(trouble.reason))) << trouble.name;
  }
  EXPECT_THAT(unreadable_shards(*open_blend(prepare(good_samples()), "train")), ::testing::IsEmpty());
}

// The file is whole again when the reader says that it will try again, or it never is.
TEST_F(DamagedShard, IsReadAgainAfterAPause) {
  for (const Trouble& trouble : troubles())
    for (const bool ends : {true, false}) {
      SCOPED_TRACE(trouble.name);
      const std::string folder = prepare(good_samples()), copy = folder + ".whole";
      fs::copy(folder, copy, fs::copy_options::recursive);
      LaneSetOptions options = options_for(folder, 0);
      options.loader.threads = 1;
      options.read_pauses.assign(2, std::chrono::milliseconds(1));
      std::vector<std::string> notes;
      options.bad = std::make_shared<BadSamples>(0, [&](const std::string& text) {
        notes.push_back(text);
        if (!ends) return;
        fs::remove_all(folder + "/a.tar");
        for (const char* file : {"/a.tar", "/a.tar.idx"})
          fs::copy_file(copy + file, folder + file, fs::copy_options::overwrite_existing);
      });
      const auto set = std::make_shared<LaneSet>(options);
      trouble.begin(folder);
      const auto read = [&] {
        ReplicaLanes lanes(set, {}, {});
        std::vector<std::string> keys;
        for (int i = 0; i < 2; ++i)
          for (const ReadSample& sample : lanes.next(0)) keys.push_back(sample.key);
        return keys;
      };
      if (ends) {
        EXPECT_THAT(read(), ::testing::UnorderedElementsAre("s0", "s1", "s2", "s3"));
        EXPECT_THAT(notes, ::testing::ElementsAre(AllOf(HasSubstr(trouble.reason), HasSubstr("trying again in"))));
      } else {
        EXPECT_THAT(testing::error_of<ReadError>(read), AllOf(HasSubstr(trouble.reason), HasSubstr("tried 3 times")));
        EXPECT_EQ(notes.size(), 2u) << "the other sample of the buffer does not wait, too";
      }
      EXPECT_EQ(options.bad->count(), 0);
    }
}

TEST_F(DamagedShard, EndsTheRunWhenItIsCutBeforeItsPicturesAreDecoded) {
  const std::string folder = prepare(good_samples());
  LaneSetOptions options = options_for(folder, kSamples);
  options.read_pauses.clear();
  const auto set = std::make_shared<LaneSet>(options);
  ReplicaLanes lanes(set, {}, {});
  const Pack pack = lanes.next(0);
  std::vector<PictureJob> jobs;
  for (const ReadSample& sample : pack) add_picture_jobs(sample, jobs);
  ASSERT_EQ(jobs.size(), 2u);
  fs::resize_file(folder + "/a.tar", 0);
  std::vector<std::uint8_t> rows(static_cast<std::size_t>(patches_of(jobs)) * 3 * 16 * 16);
  EXPECT_THAT(testing::error_of<ReadError>([&] { decode_into(rows, jobs[1], *set); }), HasSubstr("it has been cut"));
}

// A sample that waits to be packed is part of the checkpoint; without it, the run would go on with other sequences.
TEST_F(DamagedShard, IsNotContinuedWithoutASampleOfTheCheckpoint) {
  const std::string folder = prepare(good_samples());
  LaneSetOptions options = options_for(folder, kSamples);
  options.loader.packing_buffer = 4;
  const auto position = [&] {
    ReplicaLanes lanes(std::make_shared<LaneSet>(options), {}, {});
    lanes.next(0);
    return lanes.positions(0)[0].second;
  }();
  std::string tar = testing::read_file(folder + "/a.tar");
  for (auto at = tar.find("a star"); at != tar.npos; at = tar.find("a star", at)) tar.replace(at, 6, "\"\"\"\"\"\"");
  testing::write_text(folder + "/a.tar", tar);
  EXPECT_THAT(testing::error_of<DataError>([&] { ReplicaLanes(std::make_shared<LaneSet>(options), {}, {position}); }),
              AllOf(HasSubstr("of shard 'a.tar' was waiting to be packed"), HasSubstr("checkpoint.load_data=false")));
}

// Names, counts and sizes are those of the data set before.
TEST_F(DamagedShard, IsNotContinuedWithOtherContents) {
  auto samples = good_samples();
  const std::string folder = prepare(samples);
  LaneSetOptions options = options_for(folder, kSamples);
  options.is_training = true;
  const auto lanes = [&](const std::vector<std::string>& positions) {
    return ReplicaLanes(std::make_shared<LaneSet>(options), {}, positions);
  };
  const std::string position = lanes({}).positions(0)[0].second;
  EXPECT_EQ(lanes({position}).positions(0)[0].second, position);
  samples[0].second[1].second.replace(samples[0].second[1].second.find("a star"), 6, "a ring");
  testing::write_text(folder + "/a.tar", testing::tar_of(samples));
  EXPECT_THAT(testing::error_of<ConfigError>([&] { lanes({position}); }),
              AllOf(HasSubstr("data set '" + folder + "' (split train) has changed"), HasSubstr("load_data=false")));
}

TEST(BadSamples, EndTheRunAtTheLimit) {
  std::vector<std::string> notes;
  BadSamples bad(2, [&](const std::string& text) { notes.push_back(text); });
  const DataSet data{.path = "/x", .split = "val", .shards = {{"a.tar", "/x/a.tar"}, {"b.tar", "/x/b.tar"}}};
  bad.set_inspect_flags(" --data.tokenizer 't'");
  bad.add(data, {.shard = 0, .index = 1}, "'k1'", "broken");
  bad.add(data, {.shard = 0, .index = 2}, "'k2'", "broken");
  EXPECT_EQ(bad.count(), 2);
  for (int reader = 0; reader < 2; ++reader)  // no reader continues with the sample that is one too many
    EXPECT_THAT(
        testing::error_of<DataError>([&] { bad.add(data, {.shard = 1, .index = 3}, "'k3'", "no JSON"); }),
        "more than data.max_bad_samples=2 samples are damaged or do not suit the recipe: sample 'k3' of shard 'b.tar' "
        "is skipped: no JSON; "
        "repair the data set, correct the recipe, or raise data.max_bad_samples. `braid data inspect '/x' --split "
        "'val' --data.tokenizer 't' --count all --decode --all-damaged` lists these samples");
  EXPECT_EQ(notes.size(), 2u);
}

TEST(BadSamples, SayOnceWhatIsNotUsed) {
  std::vector<std::string> notes;
  const Shard shard = {"a.tar", "/x/a.tar"};
  BadSamples bad(2, nullptr, [&](const std::string& text) { notes.push_back(text); });
  bad.add_unused({"note", "part cls"}, "'k1'", shard);
  bad.add_unused({"note", "turn.name"}, "'k2'", shard);
  EXPECT_THAT(notes, ::testing::ElementsAre(
                         "'note' in samples is not used; the first sample that has it is 'k1' of shard 'a.tar'",
                         "'part cls' in samples is not used; the first sample that has it is 'k1' of shard 'a.tar'",
                         "'turn.name' in samples is not used; the first sample that has it is 'k2' of shard 'a.tar'"));
  EXPECT_EQ(bad.count(), 0);
}

TEST(BadSamples, AdviseALongerSequenceOnlyIfSomeAreTooLong) {
  BadSamples bad(0, {});
  EXPECT_EQ(bad.why_none_is_left(), "there are none; use fewer lanes");
  const Shard shard = {"a.tar", "/x/a.tar"};
  bad.add(Unfit::WithoutTargets, shard, 7, "k7", 3);
  EXPECT_EQ(bad.why_none_is_left(), "0 too long, 1 with nothing to predict");
  for (int epoch = 0; epoch < 2; ++epoch) bad.add(Unfit::TooLong, shard, 8, "k8", 99);
  EXPECT_THAT(bad.why_none_is_left(), StartsWith("1 too long, 1 with nothing to predict; use a longer"));
}

TEST(BadSamples, TheFirstOfEachKindThatIsLeftOutOrCutIsNamed) {
  std::vector<std::string> notes;
  const Shard shard = {"a.tar", "/x/a.tar"};
  BadSamples bad(0, nullptr, [&](const std::string& text) { notes.push_back(text); });
  for (int epoch = 0; epoch < 2; ++epoch)
    for (const int index : {1, 2, 3}) {
      const std::string key = fmt::format("k{}", index);
      bad.add(Unfit::TooLong, shard, index, key, 100 + index);
      bad.add(Unfit::Cut, shard, 10 + index, key, 1);
      if (index == 3) bad.add(Unfit::WithoutTargets, shard, 20, key, 5);
    }
  EXPECT_THAT(
      notes,
      ::testing::ElementsAre(
          "samples that are longer than a sequence are left out; use a longer data.sequence_length, or "
          "data.over_long=truncate. The first one is 'k1' of shard 'a.tar', which has 101 tokens",
          "samples that are longer than a sequence are cut. The first one is 'k1' of shard 'a.tar', which has 1 token",
          "samples with nothing to predict are left out. The first one is 'k3' of shard 'a.tar', which has 5 tokens"));
  EXPECT_EQ(bad.count(Unfit::TooLong), 3);
  EXPECT_EQ(bad.count(Unfit::Cut), 3);
  EXPECT_EQ(bad.ids(Unfit::WithoutTargets), std::set{id_of_sample(shard, 20)});
  EXPECT_EQ(bad.count(), 0) << "they are not damaged";
}

TEST(BadSamples, CountOnceHoweverOftenTheyAreMet) {
  std::vector<std::string> notes;
  BadSamples bad(3, [&](const std::string& text) { notes.push_back(text); });
  const Shard a{"a.tar", "/x/a.tar"}, other_set{"a.tar", "/y/a.tar"};
  const DataSet data{.shards = {a, other_set}};
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch)
    for (const std::uint32_t shard : {0, 1})
      bad.add(data, {.shard = shard, .index = 1, .epoch = epoch}, "'k1'", "broken");
  bad.add(data, {.index = 1}, "number 1", "broken");
  bad.add(data, {.index = 2}, "'k2'", "broken");
  EXPECT_EQ(bad.count(), 3);
  EXPECT_EQ(notes.size(), 3u);
  EXPECT_EQ(bad.damaged(), (std::set{id_of_sample(a, 1), id_of_sample(other_set, 1), id_of_sample(a, 2)}));
}

// Readers of one set share its count, and so do sets of one run.
TEST_F(DamagedShard, IsCountedOnceByAllReaders) {
  auto samples = good_samples();
  samples[kDamaged].second[0].second = "no picture";
  LaneSetOptions options = {.split = "train", .is_training = false, .sequence_length = 40};
  options.data = {
      .path = prepare(samples), .tokenizer = testing::drawn_data() + "/tokenizer", .prompt_format = "chatml"};
  options.vision = VisionInput{.token = "<image>", .token_id = 511};
  int notes = 0;
  options.bad = std::make_shared<BadSamples>(1, [&](const std::string&) { ++notes; });
  for (const auto& set : {std::make_shared<LaneSet>(options), std::make_shared<LaneSet>(options)})
    for (int reader = 0; reader < 2; ++reader) {
      ReplicaLanes lanes(set, {}, {});
      for (std::size_t i = 0; i < 2 * kSamples; ++i) EXPECT_FALSE(lanes.next(0).empty());
    }
  EXPECT_EQ(options.bad->count(), 1);
  EXPECT_EQ(notes, 1);
}

}  // namespace
}  // namespace braid
