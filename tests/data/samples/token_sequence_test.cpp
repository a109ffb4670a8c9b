// Tokens, targets and places of pictures, with a tokenizer that has one token per word.
#include "data/samples/token_sequence.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "data/samples/stored_sample.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kPicture = 511;
const VisionInput kVision = {.patch = 16, .pixel_shuffle = true, .token = "<image>", .token_id = kPicture};

DataConfig chatml() { return {.prompt_format = "chatml"}; }

// A 32 x 32 picture is 2 x 2 patches, one embedding; 64 x 32 are two, 64 x 64 four.
const std::string& png(int width, int height) {
  static std::map<std::pair<int, int>, std::string> files;
  std::string& file = files[{width, height}];
  if (file.empty()) file = testing::some_png({width, height});
  return file;
}

Conversation asked(const std::string& question, const std::string& answer,
                   const std::vector<std::string_view>& pngs = {}) {
  Conversation conversation = {.turns = {{"user", question}, {"assistant", answer}}};
  for (const std::string_view bytes : pngs) conversation.pictures.push_back({"png", bytes});
  return conversation;
}

SequenceMaker maker(const DataConfig& config, std::int64_t capacity,
                    const std::optional<VisionInput>& vision = kVision) {
  return SequenceMaker(config, testing::word_tokenizer(), vision, capacity);
}

std::optional<TokenSequence> fitted(const SequenceMaker& maker, const Conversation& conversation) {
  TokenSequence sequence = maker.encode(conversation);
  if (!is_usable(maker.fit(sequence))) return std::nullopt;
  return sequence;
}

std::string text_of(const std::vector<int>& ids) {
  std::vector<int> shown;
  for (const int id : ids)
    if (id >= 0) shown.push_back(id);
  return testing::word_tokenizer()->decode(shown);
}

TEST(TokenSequences, PredictTheAnswerAndItsEnd) {
  const auto sequence = fitted(maker(chatml(), 100), asked("what is this?", "a red star"));
  ASSERT_TRUE(sequence);
  EXPECT_EQ(text_of(sequence->ids),
            "<|im_start|>user\nwhat is this?<|im_end|>\n<|im_start|>assistant\na red star<|im_end|>\n");
  ASSERT_EQ(sequence->ids.size(), sequence->targets.size());
  EXPECT_THAT(text_of(sequence->targets), ::testing::StartsWith("a red star<|im_end|>"));
  for (std::size_t i = 0; i < sequence->ids.size(); ++i)
    EXPECT_TRUE(sequence->targets[i] == kIgnoredLabel || sequence->targets[i] == sequence->ids[i]) << i;
}

TEST(TokenSequences, OfPlainTextHaveNoTools) {
  const auto tools =
      std::make_shared<const nlohmann::ordered_json>(nlohmann::ordered_json::parse(R"([{"name": "f"}])"));
  EXPECT_THAT(testing::error_of<DataError>([&] {
                maker(chatml(), 100).encode({.turns = {{"", "a red star"}}, .tools = tools});
              }),
              HasSubstr("it has tools, but a plain text has no turns"));
}

TEST(TokenSequences, OfPlainTextPredictEverythingAndItsEnd) {
  const Conversation plain = {.turns = {{"", "a red star"}}};
  const auto sequence = fitted(maker(chatml(), 100), plain);
  ASSERT_TRUE(sequence);
  EXPECT_EQ(text_of(sequence->ids), "a red star<|im_end|>");
  EXPECT_EQ(sequence->targets, sequence->ids);
  DataConfig endless = chatml();
  endless.append_eod = false;
  EXPECT_EQ(text_of(fitted(maker(endless, 100), plain)->ids), "a red star");
}

// The words of drawn data, with other settings beside them.
std::shared_ptr<const Tokenizer> tokenizer_with(const testing::TemporaryFolder& folder, const nlohmann::json& config,
                                                const nlohmann::json& generation) {
  std::filesystem::copy_file(testing::drawn_data() + "/tokenizer/tokenizer.json", folder.path() + "/tokenizer.json");
  std::ofstream(folder.path() + "/tokenizer_config.json") << config;
  std::ofstream(folder.path() + "/generation_config.json") << generation;
  return std::make_shared<const Tokenizer>(load_tokenizer(folder.path()));
}

TEST(TokenSequences, OfPlainTextNeedAnEnd) {
  const testing::TemporaryFolder folder;
  const SequenceMaker sequences({.prompt_format = "identity"},
                                tokenizer_with(folder, {{"bos_token", "a"}}, nlohmann::json::object()), std::nullopt,
                                100);
  EXPECT_THAT(testing::error_of([&] {
                sequences.encode({.turns = {{"", "a red star"}}});
              }),
              HasSubstr("set eos_token in tokenizer_config.json, or data.append_eod=false"));
}

// A model that never sees its stop token at the end of an answer goes on for ever.
TEST(TokenSequences, WarnOfAnswersThatDoNotEndInAStopToken) {
  const nlohmann::json config = {{"eos_token", "star"}};
  const auto warnings = [&](const nlohmann::json& generation) {
    const testing::TemporaryFolder folder;
    return SequenceMaker({.prompt_format = "qwen2p0"}, tokenizer_with(folder, config, generation), std::nullopt, 100)
        .warnings();
  };
  EXPECT_THAT(warnings(nlohmann::json::object()),
              ElementsAre(HasSubstr("no answer ends in a stop token of the tokenizer (star)")));
  const int end = testing::word_tokenizer()->find("<|im_end|>").value();
  EXPECT_THAT(warnings({{"eos_token_id", {end, 1}}}), ::testing::IsEmpty());
  EXPECT_THAT(maker(chatml(), 100).warnings(), ::testing::IsEmpty());
}

// A template may write system turns, write its own, or know none.
TEST(TokenSequences, SystemTurnsThatTheTemplateDoesNotWriteAreNotUsed) {
  const std::string turns =
      "{% for m in messages if m.role != 'system' %}{{ m.role }} {{ m.content }}<|im_end|>"
      "{% endfor %}";
  const auto maker_with = [](const std::string& source, const std::string& system) {
    const testing::TemporaryFolder folder;
    const nlohmann::json config = {{"eos_token", "<|im_end|>"}, {"chat_template", source}};
    return SequenceMaker({.prompt_format = "nemotron6-moe", .system = system},
                         tokenizer_with(folder, config, nlohmann::json::object()), std::nullopt, 100);
  };
  const Conversation without = asked("what", "this");
  Conversation with = without;
  with.turns.insert(with.turns.begin(), {"system", "red"});
  for (const std::string& leaves_out : {turns, "{% if messages[0].role == 'system' %}a star{% endif %}" + turns}) {
    EXPECT_THAT(maker_with(leaves_out, "").unused_fields(with), ElementsAre("system turn"));
    EXPECT_THAT(maker_with(leaves_out, "").unused_fields(without), ::testing::IsEmpty());
    EXPECT_THAT(maker_with(leaves_out, "").warnings(), ::testing::IsEmpty());
    EXPECT_THAT(maker_with(leaves_out, "how many").warnings(), ElementsAre(HasSubstr("data.system has no effect")));
  }
  for (const std::string& uses :
       {"{{ messages[0].content }}" + turns, "{% if 'red' in messages[0].content %}a star{% endif %}" + turns})
    EXPECT_THAT(maker_with(uses, "red").unused_fields(with), ::testing::IsEmpty());
  EXPECT_THAT(maker_with("{{ messages[0].content }}" + turns, "red").warnings(), ::testing::IsEmpty());
}

// Each marker of a format is one token of a tokenizer that suits it.
TEST(TokenSequences, NeedATokenizerWithTheMarkersOfTheFormat) {
  EXPECT_THAT(testing::error_of([&] { maker({.prompt_format = "llama3p1"}, 100); }),
              AllOf(HasSubstr("does not suit the tokenizer"), HasSubstr("it has no token '<|start_header_id|>'"),
                    HasSubstr("data.prompt_format")));
}

TEST(TokenSequences, HaveTheRecipesSystemTurnUnlessTheyHaveTheirOwn) {
  DataConfig config = chatml();
  config.system = "how many";
  const SequenceMaker sequences = maker(config, 100);
  EXPECT_THAT(text_of(fitted(sequences, asked("what", "this"))->ids), HasSubstr("system\nhow many<|im_end|>"));
  Conversation own = {.turns = {{"system", "red"}, {"user", "what"}, {"assistant", "this"}}};
  EXPECT_THAT(text_of(fitted(sequences, own)->ids), ::testing::Not(HasSubstr("how many")));
  EXPECT_THAT(text_of(fitted(sequences, {.turns = {{"", "a star"}}})->ids), "a star<|im_end|>");
}

TEST(TokenSequences, HaveOneTokenForEachEmbedding) {
  const auto sequence = fitted(maker(chatml(), 100), asked("<image> or <image>?", "this", {png(64, 64), png(64, 32)}));
  ASSERT_TRUE(sequence);
  ASSERT_EQ(sequence->media.size(), 2u);
  EXPECT_EQ(sequence->media[0].embeddings, 4);
  EXPECT_EQ(sequence->media[1].embeddings, 2);
  EXPECT_EQ(sequence->media[1].picture, 1u);
  EXPECT_THAT(text_of(sequence->ids), HasSubstr("\n<image><image><image><image> or <image><image>?"));
  for (std::size_t i = 0; i < sequence->ids.size(); ++i)
    if (sequence->ids[i] == kPicture) EXPECT_EQ(sequence->targets[i], kIgnoredLabel);
}

TEST(TokenSequences, MatchTagsAndPictures) {
  const SequenceMaker sequences = maker(chatml(), 100);
  const auto refusal = [](const SequenceMaker& maker, const Conversation& conversation) {
    return testing::error_of<DataError>([&] { maker.encode(conversation); });
  };
  EXPECT_THAT(refusal(sequences, asked("<image>", "this", {png(32, 32), png(32, 32)})), HasSubstr("1 of its 2"));
  EXPECT_THAT(refusal(sequences, asked("<image><image>", "this", {png(32, 32)})), HasSubstr("more than 1 picture"));
  EXPECT_THAT(refusal(sequences, asked("<image>", "this", {"no picture"})), HasSubstr("png: this is not a JPEG"));
  EXPECT_THAT(refusal(sequences, asked("", "this")), HasSubstr("turn 1 (user) is empty"));
  EXPECT_THAT(refusal(maker(chatml(), 100, std::nullopt), asked("<image>", "this", {png(32, 32)})),
              HasSubstr("no encoder for them"));
}

// An audio encoder's token, for example: the data set has no sound.
TEST(TokenSequences, AreRefusedWithATokenOfInputThatIsNotThere) {
  const int star = testing::word_tokenizer()->find("star").value();
  const SequenceMaker sequences(chatml(), testing::word_tokenizer(), kVision, 100, {star});
  EXPECT_TRUE(fitted(sequences, asked("what is this?", "a circle")));
  EXPECT_THAT(testing::error_of<DataError>([&] { sequences.encode(asked("what is this?", "star")); }),
              HasSubstr(fmt::format("its text has token {}, which stands for input that is not a picture", star)));
}

TEST(TokenSequences, NeedTheModelsPictureToken) {
  VisionInput vision = kVision;
  vision.token_id = 7;
  vision.token_id_key = "model.images.token_id";
  EXPECT_THAT(testing::error_of([&] { maker(chatml(), 100, vision); }), HasSubstr("use model.images.token_id=511"));
  vision.token = "<video>";
  EXPECT_THAT(testing::error_of([&] { maker(chatml(), 100, vision); }), HasSubstr("<video>"));
}

TEST(TokenSequences, ThatAreTooLongAreDroppedOrCut) {
  const Conversation one = asked("what is this?", "a red star");
  const auto whole = fitted(maker(chatml(), 100), one);
  const auto length = std::ssize(whole->ids);
  DataConfig truncates = chatml();
  truncates.over_long = OverLong::Truncate;
  EXPECT_TRUE(fitted(maker(chatml(), length), one));
  EXPECT_FALSE(fitted(maker(chatml(), length - 1), one));
  EXPECT_EQ(fitted(maker(truncates, length - 1), one)->ids.size(), whole->ids.size() - 1);
  EXPECT_EQ(fitted(maker(truncates, length - 4), one)->targets.size(), whole->ids.size() - 4);
  EXPECT_FALSE(fitted(maker(truncates, length - 6), one)) << "nothing is left to predict";
  EXPECT_FALSE(fitted(maker(truncates, 1), {.turns = {{"", "a star"}}})) << "the first token is not predicted";
}

// The second picture has 4 embeddings; with room for 3 it goes, with all that follows.
TEST(TokenSequences, AreCutBeforeAPictureThatDoesNotFit) {
  DataConfig truncates = chatml();
  truncates.over_long = OverLong::Truncate;
  truncates.pictures = {.fit = PictureFit::Square, .tile_side = 64};
  const Conversation conversation = {.turns = {{"user", "<image> this"}, {"assistant", "a star"}, {"user", "<image>"}},
                                     .pictures = {{"png", png(64, 64)}, {"png", png(64, 64)}}};
  const auto whole = fitted(maker(truncates, 100), conversation);
  ASSERT_EQ(whole->media.size(), 2u);
  std::size_t second = whole->ids.size();
  for (int left = 4; left > 0;) left -= whole->ids[--second] == kPicture;
  const auto cut = fitted(maker(truncates, static_cast<std::int64_t>(second) + 3), conversation);
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->media.size(), 1u);
  EXPECT_EQ(cut->ids, std::vector<int>(whole->ids.begin(), whole->ids.begin() + static_cast<std::ptrdiff_t>(second)));
  EXPECT_EQ(fitted(maker(truncates, static_cast<std::int64_t>(second) + 4), conversation)->media.size(), 2u);
}

// Tiles of one picture stay together.
TEST(TokenSequences, AreCutBeforeTheFirstTileOfAPicture) {
  DataConfig truncates = chatml();
  truncates.over_long = OverLong::Truncate;
  truncates.pictures = {.fit = PictureFit::Tiles, .tile_side = 32, .max_tiles = 4};
  const Conversation conversation = {.turns = {{"", "a star <image> this"}}, .pictures = {{"png", png(64, 32)}}};
  const auto whole = fitted(maker(truncates, 100), conversation);
  ASSERT_EQ(whole->media.size(), 2u);
  EXPECT_EQ(whole->media[1].tile_column, 1);
  truncates.pictures.max_tiles = 2;
  for (const std::int64_t capacity : {std::ssize(whole->ids) - 2}) {
    const auto cut = fitted(maker(truncates, capacity), conversation);
    ASSERT_TRUE(cut);
    EXPECT_LE(std::ssize(cut->ids), capacity);
    EXPECT_EQ(std::count(cut->ids.begin(), cut->ids.end(), kPicture), std::ssize(cut->media));
  }
}

// However small the sequence is, a picture never makes it longer than it may be.
TEST(TokenSequences, NeverExceedTheirCapacity) {
  for (const PictureFit fit : {PictureFit::Dynamic, PictureFit::Tiles, PictureFit::Square})
    for (const OverLong over_long : {OverLong::Drop, OverLong::Truncate})
      for (std::int64_t capacity = 2; capacity < 40; ++capacity) {
        DataConfig config = chatml();
        config.over_long = over_long;
        config.pictures = {.fit = fit, .tile_side = 32, .max_tiles = 6, .thumbnail = true};
        const auto sequence =
            fitted(maker(config, capacity), asked("<image> or <image>?", "this", {png(64, 64), png(64, 32)}));
        if (!sequence) continue;
        EXPECT_LE(std::ssize(sequence->ids), capacity);
        std::int64_t embeddings = 0;
        for (const MediaPlan& media : sequence->media) embeddings += media.embeddings;
        EXPECT_EQ(std::count(sequence->ids.begin(), sequence->ids.end(), kPicture), embeddings);
      }
}

TEST(DataConfigs, HaveDatesOfOneForm) {
  EXPECT_EQ(time_of_date("2026-01-31").value().tm_mday, 31);
  for (const char* date : {"26-1-1", "2026-1-01", "2026- 1- 1", "2026-02-30", "2026-01-31 ", "2026/01/31"})
    EXPECT_FALSE(time_of_date(date)) << date;
}

}  // namespace
}  // namespace braid
