// A lane that is saved and restored anywhere continues as if nothing had happened. The oracle is the same lane without
// interruption.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/strings.h"
#include "data/samples/lane_set.h"
#include "data/samples/stored_sample.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LaneSetOptions drawn(const LoaderConfig& loader) {
  LaneSetOptions options = {.loader = loader, .split = "train", .sequence_length = 64, .seed = 3};
  options.data = {.path = testing::drawn_data(),
                  .tokenizer = testing::drawn_data() + "/tokenizer",
                  .prompt_format = "chatml",
                  .max_bad_samples = 0};
  options.vision = VisionInput{.token = "<image>", .token_id = 511};
  return options;
}

// Keys, lengths and borders of a sequence, as text.
std::string text_of(const Pack& pack) {
  std::string text;
  for (const ReadSample& sample : pack)
    text += fmt::format("{}/{} {} {} {}|", sample.shard->name, sample.key, sample.ref.epoch, sample.tokens.ids.size(),
                        sample.tokens.media.size());
  return text;
}

// One lane with what it needs.
class OwnLane {
 public:
  explicit OwnLane(const LaneSetOptions& options, int lane = 0)
      : set_(options), pool_(options.loader.threads), lane_(set_, pool_, set_.order(), lane) {}

  std::string next() {
    const auto pack = lane_.next();
    return pack ? text_of(*pack) : "end";
  }
  PackLane* operator->() { return &lane_; }

 private:
  LaneSet set_;
  WorkerPool pool_;
  PackLane lane_;
};

void expect_to_continue_from_everywhere(const LaneSetOptions& options, int sequences) {
  OwnLane whole(options);
  std::vector<std::string> states = {whole->save()}, expected;
  for (int i = 0; i < sequences; ++i) {
    expected.push_back(whole.next());
    states.push_back(whole->save());
  }
  for (std::size_t from = 0; from < states.size(); ++from) {
    OwnLane lane(options);
    lane.next();  // what was read before does not matter
    lane->restore(states[from]);
    EXPECT_EQ(lane->save(), states[from]);
    for (std::size_t i = from; i < std::min(expected.size(), from + 4); ++i)
      EXPECT_EQ(lane.next(), expected[i]) << "restored before sequence " << from;
    if (from + 4 <= expected.size()) EXPECT_EQ(lane->save(), states[from + 4]);
  }
}

TEST(PackLanes, ContinueFromEverySavedPosition) {
  expect_to_continue_from_everywhere(drawn({}), 130);  // two epochs
  expect_to_continue_from_everywhere(drawn({.packing_buffer = 10}), 60);
  expect_to_continue_from_everywhere(drawn({.num_workers = 3, .packing_buffer = 7, .packing = Packing::Even}), 60);
  expect_to_continue_from_everywhere(
      drawn({.num_workers = 2, .packing_buffer = 5, .shuffle_buffer = 8, .max_samples_per_sequence = 4, .threads = 1}),
      60);
}

TEST(PackLanes, ContinueInAndAfterEvaluation) {
  for (const std::optional<int> buffer : {std::optional<int>{}, std::optional<int>{8}}) {
    LaneSetOptions options = drawn({.num_workers = 2, .packing_buffer = buffer});
    options.split = "val";
    options.is_training = false;
    expect_to_continue_from_everywhere(options, 45);
  }
}

TEST(PackLanes, GiveEachSampleOncePerEpoch) {
  LaneSetOptions options = drawn({.num_workers = 2, .packing_buffer = 8});
  options.split = "val";
  options.is_training = false;
  OwnLane lane(options);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<std::string> keys;
    int samples = 0;
    for (std::string text = lane.next(); text != "end"; text = lane.next())
      for (const std::string& sample : split(text, '|'))
        if (!sample.empty()) samples += keys.insert(split(sample, ' ')[0]).second;
    EXPECT_EQ(samples, 20);
    EXPECT_EQ(keys.size(), 20u);
  }
}

TEST(PackLanes, DoNotDependOnThreads) {
  const auto first = [](int threads) {
    OwnLane lane(drawn({.packing_buffer = 16, .threads = threads}));
    std::string all;
    for (int i = 0; i < 30; ++i) all += lane.next() + "\n";
    return all;
  };
  EXPECT_EQ(first(1), first(2));
  EXPECT_EQ(first(1), first(4));
}

TEST(PackLanes, RefuseStatesOfOtherSettingsByName) {
  const LoaderConfig usual = {.packing_buffer = 10};
  OwnLane lane(drawn(usual));
  lane.next();
  const std::string state = lane->save();
  const auto refusal = [&](const LaneSetOptions& options, int index = 0) {
    OwnLane other(options, index);
    return testing::error_of([&] { other->restore(state); });
  };
  const auto with = [&](auto change) {
    LaneSetOptions options = drawn(usual);
    change(options);
    return options;
  };
  EXPECT_THAT(refusal(with([](auto& o) { o.loader.packing_buffer = 11; })),
              HasSubstr("loader.packing_buffer has changed"));
  EXPECT_THAT(refusal(with([](auto& o) { o.loader.packing = Packing::Even; })),
              HasSubstr("loader.packing has changed since the state was saved: greedy then, even now"));
  EXPECT_THAT(refusal(with([](auto& o) { o.sequence_length = 128; })), HasSubstr("data.sequence_length has changed"));
  EXPECT_THAT(refusal(with([](auto& o) { o.loader.num_workers = 2; })), HasSubstr("loader.num_workers has changed"));
  EXPECT_THAT(refusal(with([](auto& o) { o.seed = 4; })), HasSubstr("train.seed has changed"));
  EXPECT_THAT(refusal(with([](auto& o) { o.lanes = 2; })), HasSubstr("loader.lanes has changed"));
  EXPECT_THAT(refusal(with([](auto& o) { o.split = "val"; })),
              AllOf(HasSubstr("data set '"), HasSubstr(" samples in "), HasSubstr("20 samples in ")));
  LaneSetOptions two = with([](auto& o) { o.lanes = 2; });
  OwnLane first(two);
  OwnLane second(two, 1);
  const std::string of_first = first->save();
  EXPECT_THAT(testing::error_of([&] { second->restore(of_first); }), HasSubstr("the lane has changed"));
}

TEST(PackLanes, RefuseStatesOfOtherTextAndPicturesByName) {
  const std::string state = OwnLane(drawn({}))->save();
  const auto refusal = [&](auto change) {
    LaneSetOptions options = drawn({});
    change(options);
    return testing::error_of([&] { OwnLane(options)->restore(state); });
  };
  EXPECT_THAT(refusal([](auto& o) { o.data.prompt_format = "qwen2p0"; }),
              HasSubstr("data.prompt_format has changed since the state was saved: 'chatml' then, 'qwen2p0' now"));
  EXPECT_THAT(refusal([](auto& o) { o.data.image_tag = "nvlm"; }), HasSubstr("data.image_tag has changed"));
  EXPECT_THAT(refusal([](auto& o) { o.data.system = "be brief"; }), HasSubstr("data.system has changed"));
  EXPECT_THAT(refusal([](auto& o) { o.data.over_long = OverLong::Truncate; }), HasSubstr("data.over_long has changed"));
  EXPECT_THAT(refusal([](auto& o) { o.data.fields.text = "txt"; }), HasSubstr("data.fields.text has changed"));
  EXPECT_THAT(refusal([](auto& o) { o.data.pictures.max_patches = 8; }),
              HasSubstr("data.pictures.max_patches has changed since the state was saved: 0 then, 8 now"));
  EXPECT_THAT(refusal([](auto& o) { o.vision->pixel_shuffle = false; }), HasSubstr("the vision encoder's input has"));
  OwnLane moved([] {
    LaneSetOptions options = drawn({.threads = 3});
    options.data.pictures.filter = ResizeFilter::Bilinear;
    options.data.max_bad_samples = 9;
    return options;
  }());
  moved->restore(state);  // what changes no sequence may change
}

TEST(PackLanes, RefuseStatesOfATokenizerWithOtherContents) {
  const testing::TemporaryFolder folder;
  LaneSetOptions options = drawn({});
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    folder.write(name, testing::read_file(options.data.tokenizer + "/" + name));
  const std::string state = OwnLane(options)->save();
  options.data.tokenizer = folder.path();
  OwnLane(options)->restore(state);  // a copy elsewhere is the same
  folder.write("chat_template.jinja",
               "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}");
  EXPECT_THAT(testing::error_of([&] { OwnLane(options)->restore(state); }), HasSubstr("data.tokenizer has changed"));
}

TEST(PackLanes, RefuseStatesOfOtherMappings) {
  const testing::TemporaryFolder folder;
  std::filesystem::copy(testing::drawn_data(), folder.path(), std::filesystem::copy_options::recursive);
  const std::string file = folder.path() + "/.nv-meta/dataset.yaml";
  const auto write = [&](const std::string& text) { std::ofstream(file) << "__module__: megatron.energon\n" << text; };
  const auto options = [&](const std::string& caption) {
    LaneSetOptions all = drawn({});
    all.data.path = folder.path();
    all.data.fields.caption = caption;
    return all;
  };
  write("__class__: CaptioningSample\nfield_map: {image: png, caption: 'json[task]'}\n");
  const std::string state = OwnLane(options(""))->save(), by_recipe = OwnLane(options("json[task]"))->save();
  OwnLane(options(""))->restore(state);
  write("__class__: CaptioningSample\nfield_map: {image: png, caption: 'json[task],txt'}\n");
  EXPECT_THAT(testing::error_of([&] { OwnLane(options(""))->restore(state); }),
              HasSubstr("the mapping in '" + file +
                        "' has changed since the state was saved: CaptioningSample (image: png, caption: json[task]) "
                        "then, CaptioningSample (image: png, caption: json[task],txt) now"));
  OwnLane(options("json[task]"))->restore(by_recipe);  // which does not use dataset.yaml's
  write("__class__: CrudeWebdataset\npart_filter: [json]\n");
  EXPECT_THAT(testing::error_of([&] { OwnLane(options("json[task]"))->restore(by_recipe); }),
              HasSubstr("that of data.fields then, that of data.fields, only the parts json now"));
}

TEST(PackLanes, RefuseDamagedStates) {
  OwnLane lane(drawn({.packing_buffer = 10}));
  lane.next();
  const std::string state = lane->save();
  const auto restore = [](const std::string& text) { OwnLane(drawn({.packing_buffer = 10}))->restore(text); };
  EXPECT_THROW(restore(""), DataError);
  EXPECT_THROW(restore("zz"), DataError);
  for (std::size_t at = 0; at < state.size(); at += 1 + state.size() / 40) {
    std::string damaged = state;
    damaged[at] = damaged[at] == '7' ? '8' : '7';
    EXPECT_THROW(restore(damaged), DataError) << at;
    EXPECT_THROW(restore(state.substr(0, at)), DataError) << at;
  }
}

// The same shards with other words: as many bytes, but more tokens.
TEST(PackLanes, RefuseSequencesThatHaveBecomeTooLong) {
  const testing::TemporaryFolder folder;
  draw_data_set({.folder = folder.path(), .train = 60, .val = 20, .per_shard = 20});
  LaneSetOptions options = drawn({.packing_buffer = 20});
  options.data.path = folder.path();
  options.is_training = false;  // its positions do not depend on contents
  OwnLane lane(options);
  lane.next();
  const std::string state = lane->save();
  for (const char* shard : {"train_0000.tar", "train_0001.tar", "train_0002.tar"}) {
    std::string tar = testing::read_file(folder.path() + "/" + shard);
    for (auto at = tar.find(" is "); at != std::string::npos; at = tar.find(" is ", at)) tar.replace(at, 4, " xq ");
    folder.write(shard, tar);
  }
  EXPECT_THAT(testing::error_of([&] { OwnLane(options)->restore(state); }), HasSubstr("now they have"));
}

TEST(PackLanes, EndWithAnErrorIfNoSampleFits) {
  LaneSetOptions options = drawn({.packing_buffer = 100});
  options.sequence_length = 8;
  OwnLane lane(options);
  EXPECT_THAT(testing::error_of<DataError>([&] { lane.next(); }),
              HasSubstr("none can be used in a sequence of 8 tokens: "));
}

// Two replicas of two lanes each see what one replica with four lanes sees.
TEST(ReplicaLanes, ServeTheSameSequencesWithAnyNumberOfReplicas) {
  LaneSetOptions options = drawn({.packing_buffer = 6});
  options.lanes = 4;
  const auto set = std::make_shared<const LaneSet>(options);
  ReplicaLanes one(set, {0, 1, 1}, {}), both(set, {0, 2, 2}, {}), second(set, {1, 1, 2}, {});
  std::vector<std::vector<std::string>> lanes(4);
  for (std::size_t i = 0; i < 24; ++i) lanes[i % 4].push_back(text_of(one.next(0)));
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(text_of(both.next(0)), lanes[i % 2][i / 2]);
    EXPECT_EQ(text_of(both.next(1)), lanes[2 + i % 2][i / 2]);
    EXPECT_EQ(text_of(second.next(0)), lanes[2 + i % 2][i / 2]);
  }
  std::vector<std::string> positions(4);
  for (const auto& [lane, text] : one.positions(0)) positions.at(static_cast<std::size_t>(lane)) = text;
  for (const int replica : {0, 1})
    for (const auto& [lane, text] : both.positions(replica)) {
      EXPECT_EQ(lane / 2, replica);
      EXPECT_EQ(positions[static_cast<std::size_t>(lane)], text);
    }
  ReplicaLanes continued(set, {1, 1, 2}, positions);
  EXPECT_EQ(text_of(continued.next(0)), text_of(second.next(0)));
}

TEST(ReplicaLanes, StartAgainAfterTheEndOfEvaluation) {
  LaneSetOptions options = drawn({.packing_buffer = 6});
  options.split = "val";
  options.is_training = false;
  ReplicaLanes lanes(std::make_shared<const LaneSet>(options), {0, 1, 1}, {});
  std::map<std::string, int> seen;  // by key
  for (int i = 0; i < 40; ++i)
    for (const ReadSample& sample : lanes.next(0)) ++seen[sample.key];
  EXPECT_EQ(seen.size(), 20u);
  for (const auto& [key, times] : seen) EXPECT_GE(times, 2) << key;
}

}  // namespace
}  // namespace braid
