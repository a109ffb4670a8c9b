// Every way in which a sample may say its conversation.
#include "samples/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "samples/stored_sample.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using testing::Parts;

// "role: text" by turn, then the names of the pictures' parts.
std::string said(const Conversation& conversation) {
  std::string all;
  for (const ChatTurn& turn : conversation.turns) all += fmt::format("{}: {} | ", turn.role, turn.text);
  for (const Picture& picture : conversation.pictures) all += fmt::format("[{}={}]", picture.name, picture.bytes);
  return all;
}

std::string read(const Parts& parts, const SampleSpec& spec = {}, const SampleFields& fields = {}) {
  return said(read_conversation(testing::stored_sample(parts), spec, fields));
}

std::string refusal(const Parts& parts, const SampleSpec& spec = {}, const SampleFields& fields = {}) {
  return testing::error_of<DataError>([&] { read(parts, spec, fields); });
}

SampleSpec typed(const std::string& type, const std::vector<std::pair<std::string, std::string>>& map) {
  SampleSpec spec = {.sample_type = type};
  for (const auto& [field, source] : map) spec.field_map.emplace_back(field, parse_field_source(source, "test"));
  return spec;
}

TEST(Conversations, OfTypedSamples) {
  EXPECT_EQ(read({{"jpg", "A"}, {"txt", "a cat"}}, typed("CaptioningSample", {{"image", "jpg"}, {"caption", "txt"}})),
            "user: <image>\n | assistant: a cat | [jpg=A]");
  EXPECT_EQ(
      read({{"jpg", "A"}, {"json", R"({"t": "STOP"})"}}, typed("OCRSample", {{"image", "jpg"}, {"text", "json[t]"}})),
      "user: <image>\n | assistant: STOP | [jpg=A]");
  const SampleSpec vqa = typed("VQASample", {{"image", "jpg"}, {"context", "json[q]"}, {"answers", "json[a]"}});
  EXPECT_EQ(read({{"jpg", "A"}, {"json", R"({"q": "what?", "a": ["this", "that"]})"}}, vqa),
            "user: <image>\nwhat? | assistant: this | [jpg=A]");
  EXPECT_EQ(read({{"jpg", "A"}, {"json", R"({"q": "in <image>?", "a": 7})"}}, vqa),
            "user: in <image>? | assistant: 7 | [jpg=A]");
  const SampleSpec choices =
      typed("MultiChoiceVQASample",
            {{"image", "jpg"}, {"context", "json[q]"}, {"choices", "json[c]"}, {"correct_choice_idx", "json[r]"}});
  EXPECT_EQ(read({{"jpg", "A"}, {"json", R"({"q": "what?", "c": ["x", "y"], "r": 1})"}}, choices),
            "user: <image>\nwhat?\nA. x\nB. y\nAnswer with the option's letter from the given choices directly. | "
            "assistant: B | [jpg=A]");
  EXPECT_EQ(read({{"txt", "plain"}}, typed("TextSample", {{"text", "txt"}})), ": plain | ");
  EXPECT_EQ(read({{"a.jpg", "A"}, {"b.jpg", "B"}, {"json", R"({"s": ["one ", {"t": "image", "value": "b.jpg"}, " two ",
                                                              {"type": "text", "text": "three"}]})"}},
                 typed("InterleavedSample", {{"sequence", "json[s]"}})),
            ": one <image> two three | [b.jpg=B]");
  EXPECT_EQ(
      read({{"jpg", "A"}, {"json", R"([{"from": "human", "value": "hi <image>"}, {"from": "gpt", "value": "ho"}])"}},
           typed("SimilarityInterleavedSample", {{"images", "jpg"}, {"texts", "json"}})),
      "user: hi <image> | assistant: ho | [jpg=A]");
}

TEST(Conversations, ByTheRecipesFields) {
  const Parts parts = {
      {"left.png", "L"},
      {"right.png", "R"},
      {"json", R"({"pics": ["right.png", "x/7.left.png"], "q": "same?", "a": "no", "c": "two", "t": "t",
                         "talk": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "<image> or"},
                                  {"role": "assistant", "content": "or"}]})"}};
  const auto with = [](auto set) {
    SampleFields fields = {.images = "json[pics]"};
    set(fields);
    return fields;
  };
  EXPECT_EQ(read(parts, {}, with([](SampleFields& f) { f.conversation = "json[talk]"; })),
            "system: be brief | user: <image>\n<image> or | assistant: or | [right.png=R][left.png=L]");
  EXPECT_EQ(read(parts, {}, with([](SampleFields& f) { f.question = "json[q]", f.answer = "json[a]"; })),
            "user: <image>\n<image>\nsame? | assistant: no | [right.png=R][left.png=L]");
  EXPECT_EQ(read(parts, {}, with([](SampleFields& f) { f.caption = "json[c]"; })),
            "user: <image>\n<image>\n | assistant: two | [right.png=R][left.png=L]");
  EXPECT_EQ(read(parts, {}, {.images = "webp,left.png", .text = "json[t]"}), ": <image>\nt | [left.png=L]");
  EXPECT_EQ(read(parts, {}, {.images = "jpg,png", .text = "json[t]"}), ": t | ") << "a sample without pictures";
  EXPECT_EQ(read(parts, {}, {.images = "json[none]", .text = "json[t]"}), ": t | ");
  EXPECT_EQ(read(parts, typed("TextSample", {{"text", "json[q]"}}), {.text = "json[t]"}), ": t | ")
      << "the recipe comes first";
}

TEST(Conversations, ByTheUsualNames) {
  const std::string talk = R"([{"role": "user", "content": "hi"}, {"sender": "model", "text": "ho"}])";
  const std::string expected = "user: hi | assistant: ho | ";
  for (const char* key : {"conversations", "conversation", "messages", "texts"})
    EXPECT_EQ(read({{"json", fmt::format(R"({{"{}": {}}})", key, talk)}}), expected);
  EXPECT_EQ(read({{"json", talk}}), expected);
  EXPECT_EQ(read({{"JPG", "A"}, {"mask.bin", "x"}, {"json", talk}}), "user: <image>\nhi | assistant: ho | [JPG=A]");
  EXPECT_EQ(read({{"jpg", "A"}, {"json", R"({"question": "what?", "answer": "this"})"}}),
            "user: <image>\nwhat? | assistant: this | [jpg=A]");
  EXPECT_EQ(read({{"png", "A"}, {"json", R"({"caption": "a cat"})"}}), "user: <image>\n | assistant: a cat | [png=A]");
  EXPECT_EQ(read({{"json", R"({"text": "plain"})"}}), ": plain | ");
  EXPECT_EQ(read({{"txt", "plain"}}), ": plain | ");
  EXPECT_EQ(read({{"webp", "A"}, {"txt", "a cat"}}), "user: <image>\n | assistant: a cat | [webp=A]");
  EXPECT_EQ(read({{"a.png", "A"}, {"b.png", "B"}, {"json", R"({"images": ["b.png", "a.png"], "text": "x"})"}}),
            ": <image>\n<image>\nx | [b.png=B][a.png=A]");
  EXPECT_EQ(read({{"a.png", "A"}, {"b.png", "B"}, {"json", R"([{"role": "user", "fragments": ["see ",
              {"type": "image", "image": "b.png"}, " ok"]}, {"role": "assistant", "content": [{"text": "yes"}]}])"}}),
            "user: see <image> ok | assistant: yes | [b.png=B]");
}

TEST(Conversations, GiveMissingTagsToTheFirstTurnOfTheUser) {
  EXPECT_EQ(read({{"jpg", "A"}, {"json", R"([{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"},
                                             {"role": "user", "content": "u"}])"}}),
            "system: s | assistant: a | user: <image>\nu | [jpg=A]");
}

TEST(Conversations, ThatDoNotMakeSenseAreRefused) {
  const auto turns = [](const std::string& turn) { return Parts{{"json", "[" + turn + "]"}}; };
  EXPECT_THAT(refusal(turns(R"({"role": "user", "content": "<image> <image>"})")),
              HasSubstr("2 times <image>, but there are 0 pictures"));
  EXPECT_THAT(refusal({{"jpg", "A"}, {"json", R"([{"role": "assistant", "content": "<image>"}])"}}),
              HasSubstr("an answer has a picture"));
  EXPECT_THAT(refusal({{"json", "{"}}), HasSubstr("its part 'json' is not valid JSON"));
  EXPECT_THAT(refusal({{"json", "\"text\""}}), HasSubstr("neither turns nor text"));
  EXPECT_THAT(refusal({{"json", R"({"conversations": "hi"})"}}), HasSubstr("not a list"));
  EXPECT_THAT(refusal({{"json", R"({"conversations": []})"}}), HasSubstr("neither turns nor text"));
  EXPECT_THAT(refusal({{"jpg", "A"}}), HasSubstr("neither turns nor text"));
  EXPECT_THAT(refusal({}), HasSubstr("neither turns nor text"));
  EXPECT_THAT(refusal(turns("7")), HasSubstr("not an object"));
  EXPECT_THAT(refusal(turns(R"({"role": "user"})")), HasSubstr("a turn needs a role"));
  EXPECT_THAT(refusal(turns(R"({"role": "cat", "content": "x"})")), HasSubstr("unknown role 'cat'"));
  EXPECT_THAT(refusal(turns(R"({"role": ["user"], "content": "x"})")), HasSubstr("a role is not a text"));
  EXPECT_THAT(refusal(turns(R"({"role": "user", "content": {}})")), HasSubstr("a turn is not a text"));
  EXPECT_THAT(refusal(turns(R"({"role": "user", "content": [7]})")), HasSubstr("neither a text nor an object"));
  EXPECT_THAT(refusal(turns(R"({"role": "user", "content": [{"type": "video"}]})")), HasSubstr("unknown type 'video'"));
  EXPECT_THAT(refusal(turns(R"({"role": "user", "content": [{"type": "image", "image": "b.png"}]})")),
              HasSubstr("no part 'b.png'"));
  EXPECT_THAT(refusal({{"json", R"({"question": "q", "answer": []})"}}), HasSubstr("list of answers is empty"));
  EXPECT_THAT(refusal({{"json", R"({"images": [{}], "text": "x"})"}}), HasSubstr("name of a picture is not a text"));
  const SampleSpec choices =
      typed("MultiChoiceVQASample", {{"context", "txt"}, {"choices", "json[c]"}, {"correct_choice_idx", "json[r]"}});
  for (const char* json : {R"({"c": ["x"], "r": 1})", R"({"c": ["x"], "r": -1})", R"({"c": ["x"], "r": 0.5})",
                           R"({"c": "x", "r": 0})", R"({"c": [], "r": 0})"})
    EXPECT_THAT(refusal({{"txt", "q"}, {"json", json}}, choices), HasSubstr("the choices are not a list")) << json;
  EXPECT_THAT(refusal({{"txt", "x"}}, typed("CaptioningSample", {{"image", "jpg"}, {"caption", "txt"}})),
              HasSubstr("has no 'jpg'"));
  EXPECT_THAT(refusal({{"txt", "x"}}, typed("VQASample", {{"context", "txt"}})), HasSubstr("does not name 'answers'"));
  EXPECT_THAT(refusal({{"json", R"({"pics": 7, "t": "x"})"}}, {}, {.images = "json[pics]", .text = "json[t]"}),
              HasSubstr("neither a part nor a list of names"));
}

// Copies of such a value would overflow the stack.
TEST(Conversations, MayBeNestedVeryDeep) {
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  EXPECT_THAT(refusal({{"json", R"({"conversations": )" + deep + "}"}}), HasSubstr("not an object"));
  EXPECT_THAT(refusal({{"json", R"({"c": )" + deep + "}"}}, {}, {.conversation = "json[c]"}),
              HasSubstr("not an object"));
  EXPECT_THAT(refusal({{"json", R"({"images": )" + deep + "}"}}), HasSubstr("name of a picture is not a text"));
  EXPECT_THAT(refusal({{"json", R"({"caption": )" + deep + "}"}}), HasSubstr("the answer is not a text"));
  EXPECT_THAT(refusal({{"json", R"({"question": "?", "answer": )" + deep + "}"}}),
              HasSubstr("the answer is not a text"));
  EXPECT_THAT(refusal({{"json", R"({"c": )" + deep + "}"}}, {}, {.caption = "json[c]"}),
              HasSubstr("the answer is not a text"));
}

TEST(Conversations, OfUnknownTypesAndPythonCodeAreRefusedAtTheStart) {
  Blend blend;
  blend.leaves.resize(3);
  blend.leaves[0].spec = typed("VidQASample", {{"video", "mp4"}});
  blend.leaves[1].spec.needs_python = Problem{"Python loads them", "dataset.yaml", "map the parts"};
  const std::vector<Problem> problems = unreadable_leaves(blend, {});
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_THAT(problems[0].what, HasSubstr("samples of type VidQASample"));
  EXPECT_EQ(problems[1].what, "Python loads them");
  EXPECT_TRUE(unreadable_leaves(blend, {.text = "txt"}).empty()) << "the recipe says what is in a sample";
}

TEST(Conversations, NeedOneKindOfTextFromTheRecipe) {
  Blend blend;
  blend.leaves.resize(1);
  EXPECT_TRUE(unreadable_leaves(blend, {.question = "json[q]", .answer = "json[a]"}).empty());
  std::vector<Problem> problems = unreadable_leaves(blend, {.images = "jpg"});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].where, "data.fields.images");
  problems = unreadable_leaves(blend, {.caption = "txt", .text = "txt"});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].where, "data.fields.caption data.fields.text");
}

}  // namespace
}  // namespace braid
