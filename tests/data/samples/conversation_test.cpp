// Every way in which a sample may say its conversation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "data/samples/stored_sample.h"
#include "data/samples/token_sequence.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Parts;

// "role: text" by turn, then the names of the pictures' parts.
std::string said(const Conversation& conversation) {
  std::string all;
  for (const ChatTurn& turn : conversation.turns) all += fmt::format("{}: {} | ", turn.role, turn.text);
  for (const SamplePart& picture : conversation.pictures) all += fmt::format("[{}={}]", picture.name, picture.bytes);
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
      {"json", R"({"pics": ["right.png", "x/0001.left.png"], "q": "same?", "a": "no", "c": "two", "t": "t",
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

// Pictures of samples with key 0001 whose fragments or lists spell their names in several ways.
TEST(Conversations, HaveThePicturesThatFragmentsName) {
  const auto asks = [](const std::string& key, const std::string& fragments, const std::string& beside = "") {
    return fmt::format(R"({{{}"messages": [{{"role": "user", "{}": ["q ", {}]}}]}})", beside, key, fragments);
  };
  for (const char* key : {"content", "value", "fragments"})
    for (const char* name : {"jpg", "0001.jpg", "file:///data/0001.jpg", "coco/7.jpg", ""})
      EXPECT_EQ(read({{"jpg", "A"}, {"json", asks(key, fmt::format(R"({{"type": "image", "image": "{}"}})", name))}}),
                "user: q <image> | [jpg=A]")
          << key << ' ' << name;
  const Parts pictures = {{"0.jpg", "A"}, {"1.jpg", "B"}};
  const auto with = [&](const std::string& record) {
    Parts parts = pictures;
    parts.emplace_back("json", record);
    return parts;
  };
  const std::string second = R"({"type": "image", "image": "1.jpg"})", unnamed = R"({"type": "image"})";
  EXPECT_EQ(read(with(asks("content", second))), "user: q <image> | [1.jpg=B]");
  EXPECT_EQ(read(with(asks("content", second, R"("images": ["a/1.jpg"], )"))), "user: q <image> | [1.jpg=B]");
  EXPECT_EQ(read(with(asks("content", second)), {}, {.images = "0.jpg", .conversation = "json[messages]"}),
            "user: q <image> | [1.jpg=B]");
  EXPECT_EQ(read(with(asks("fragments", unnamed + ", " + unnamed))), "user: q <image><image> | [0.jpg=A][1.jpg=B]");
  EXPECT_THAT(refusal(with(asks("content", second + ", " + unnamed))), HasSubstr("2 times <image>, but there is 1"));
}

// Trainers have several keys for the name; without one, fragments have the pictures in turn.
TEST(Conversations, FindTheNameOfAFragmentsPictureOrRefuseIt) {
  const Parts pictures = {{"a.png", "A"}, {"b.png", "B"}};
  const auto with = [&](const std::string& fragments) {
    Parts parts = pictures;
    parts.emplace_back("json", fmt::format(R"([{{"role": "user", "content": [{}]}}])", fragments));
    return parts;
  };
  for (const char* key :
       {"image", "value", "url", "path", "src", "image_url", "file", "file_name", "filename", "content"})
    EXPECT_EQ(read(with(fmt::format(R"({{"type": "image", "text": "", "{}": "x/b.png"}})", key))),
              "user: <image> | [b.png=B]")
        << key;
  EXPECT_EQ(read(with(R"({"image": "b.png"}, {"text": "?"})")), "user: <image>? | [b.png=B]") << "without a type";
  for (const char* name : {R"("image": "", "url": "b.png")", R"("image": {"path": "b.png", "bytes": null})"})
    EXPECT_EQ(read(with(fmt::format(R"({{"type": "image", {}}})", name))), "user: <image> | [b.png=B]") << name;
  EXPECT_EQ(read(with(R"({"type": "image_url", "image_url": {"url": "x/b.png"}})")), "user: <image> | [b.png=B]");
  EXPECT_EQ(read(with(R"({"type": "image", "width": 7}, "and", {"type": "image", "detail": "low"})")),
            "user: <image>and<image> | [a.png=A][b.png=B]");
  for (const char* key : {"id", "image_id", "source", "img", "image_path", "position"})
    EXPECT_THAT(refusal(with(fmt::format(R"({{"type": "image", "{}": "b.png"}}, {{"type": "image"}})", key))),
                HasSubstr(fmt::format("has only the key '{}' to say which of 2 pictures it is", key)));
  EXPECT_THAT(refusal(with(R"({"type": "image", "image": "data:image/png;base64,iVBO"})")), HasSubstr("as a data URL"));
  EXPECT_THAT(refusal(with(R"({"image": "b.png", "text": "?"})")), HasSubstr("has both a text and a picture"));
  EXPECT_THAT(refusal(with(R"({"type": "text", "text": "?", "image": "b.png"})")), HasSubstr("both a text and a pict"));
}

TEST(Conversations, FindAPictureByItsIndexOrRefuseIt) {
  const auto asks = [](const std::string& first, const std::string& second) {
    return Parts{{"a.png", "A"},
                 {"b.png", "B"},
                 {"json", fmt::format(R"([{{"role": "user", "content": [{}]}}, {{"role": "user", "content": [{}]}}])",
                                      first, second)}};
  };
  const std::string zero = R"({"type": "image", "index": 0})", one = R"({"type": "image", "index": 1})";
  EXPECT_EQ(read(asks(zero, one)), "user: <image> | user: <image> | [a.png=A][b.png=B]");
  EXPECT_EQ(read(asks(R"("<image>")", one)), "user: <image> | user: <image> | [a.png=A][b.png=B]");
  EXPECT_THAT(refusal(asks(one, zero)), HasSubstr("with index 1 has place 0 (counted from 0) of 2 for 2 pictures"));
  EXPECT_THAT(refusal(asks(R"("<image>")", zero)), HasSubstr("with index 0 has place 1 (counted from 0) of 2"));
  EXPECT_THAT(refusal(asks(R"("first")", zero)), HasSubstr("with index 0 has place 0 (counted from 0) of 1 for 2"));
  EXPECT_EQ(read({{"jpg", "A"}, {"json", R"([{"role": "user", "content": [)" + one + "]}]"}}),
            "user: <image> | [jpg=A]")
      << "there is only one";
}

TEST(Conversations, HaveThePicturesThatATurnLists) {
  const auto turns = [](const std::string& first, const std::string& second) {
    return Parts{{"a.png", "A"},
                 {"b.png", "B"},
                 {"json", fmt::format(R"([{{"role": "user", {}}}, {{"role": "assistant", "content": "ho"}},
                                          {{"role": "user", {}}}])",
                                      first, second)}};
  };
  const std::string second = R"("content": "hu", "images": ["b.png"])";
  EXPECT_EQ(read(turns(R"("content": "hi")", second)), "user: hi | assistant: ho | user: <image>\nhu | [b.png=B]");
  EXPECT_EQ(read(turns(R"("content": "in <image>", "image": "a.png")", second)),
            "user: in <image> | assistant: ho | user: <image>\nhu | [a.png=A][b.png=B]");
  const auto lists = [](const std::string& name) {
    return fmt::format(R"("content": [{{"type": "image", "image": "a.png"}}], "images": ["{}"])", name);
  };
  EXPECT_EQ(read(turns(lists("a.png"), second)),
            "user: <image> | assistant: ho | user: <image>\nhu | [a.png=A][b.png=B]");
  EXPECT_EQ(read(turns(lists("img/a.png"), second)), read(turns(lists("a.png"), second)));
  EXPECT_EQ(read(turns(R"("content": "hi", "images": [], "image": "a.png")", second)),
            "user: <image>\nhi | assistant: ho | user: <image>\nhu | [a.png=A][b.png=B]");
  EXPECT_EQ(read(turns(R"("content": "hi", "images": [])", R"("content": "hu", "images": [])")),
            "user: hi | assistant: ho | user: hu | ")
      << "no turn has a picture";
  EXPECT_EQ(read(turns(R"("content": [{"type": "image", "id": 7}], "images": ["b.png"])",
                       R"("content": [{"type": "image", "index": 0}], "images": ["a.png"])")),
            "user: <image> | assistant: ho | user: <image> | [b.png=B][a.png=A]");
  EXPECT_THAT(refusal(turns(lists("b.png"), second)), HasSubstr("lists other pictures than its fragments name"));
  EXPECT_THAT(refusal(turns(R"("content": "in <image>", "images": ["a.png", "b.png"])", second)),
              HasSubstr("lists 2 pictures, but its text has 1 times <image>"));
}

TEST(Conversations, HaveThePicturesThatAListNames) {
  const auto lists = [](const std::string& names) { return fmt::format(R"({{"text": "x", {}}})", names); };
  const Parts one = {{"jpg", "A"}}, two = {{"0.jpg", "A"}, {"1.jpg", "B"}}, mixed = {{"jpg", "A"}, {"png", "B"}};
  const auto with = [](Parts parts, const std::string& record) {
    parts.emplace_back("json", record);
    return parts;
  };
  EXPECT_EQ(read(with(one, lists(R"("images": ["x.jpeg"])"))), ": <image>\nx | [jpg=A]") << "one name, one picture";
  EXPECT_EQ(read(with(two, lists(R"("images": ["a/1.jpg", "a/0.jpg"])"))),
            ": <image>\n<image>\nx | [1.jpg=B][0.jpg=A]");
  EXPECT_EQ(read(with(mixed, lists(R"("images": ["x.png", "y.jpg"])"))), ": <image>\n<image>\nx | [png=B][jpg=A]");
  for (const char* names : {R"("images": "1.jpg")", R"("image": "1.jpg")"})
    EXPECT_EQ(read(with(two, lists(names))), ": <image>\nx | [1.jpg=B]") << names;
  EXPECT_THAT(refusal(with(one, lists(R"("images": ["x.jpg", "y.jpg"])"))),
              HasSubstr("'x.jpg' and 'y.jpg' would both be its part 'jpg'"));
  EXPECT_THAT(refusal(with(one, lists(R"("images": ["0001.jpg", "y.png"])"))), HasSubstr("no part 'y.png'"));
  for (const char* names : {R"("images": ["2.jpg"])", R"("image": "2.jpg")"})
    EXPECT_THAT(refusal(with(two, lists(names))), HasSubstr("no part '2.jpg'")) << names;
  EXPECT_THAT(refusal(with({{"jpg", "A"}, {"1.jpg", "B"}}, lists(R"("images": ["x.jpg"])"))),
              HasSubstr("no part 'x.jpg'"));
}

Conversation of_record(const std::string& record) {
  const Parts parts = {{"json", record}};
  return read_conversation(testing::stored_sample(parts), {}, {});
}

// Keys that are for a chat template, as text.
std::string fields_of(const ChatTurn& turn) { return turn.fields ? turn.fields->dump() : ""; }

TEST(Conversations, KeepWhatAChatTemplateWrites) {
  const Conversation chat = of_record(R"({"tools": [{"name": "z", "b": 1, "a": 2}], "messages": [
      {"role": "user", "content": "hi", "name": null},
      {"role": "assistant", "content": null, "tool_calls": [{"name": "z", "arguments": {"y": 1, "x": 2}}]},
      {"role": "tool", "content": "", "tool_call_id": "7"},
      {"role": "assistant", "reasoning_content": "hm", "content": "ho", "weight": 0},
      {"from": "gpt", "value": "hu", "weight": 1.0}]})");
  ASSERT_EQ(chat.turns.size(), 5u);
  EXPECT_EQ(chat.tools->dump(), R"([{"name":"z","b":1,"a":2}])") << "in the order of the file";
  EXPECT_EQ(fields_of(chat.turns[0]), "");
  EXPECT_EQ(fields_of(chat.turns[1]), R"({"tool_calls":[{"name":"z","arguments":{"y":1,"x":2}}],"content":null})");
  EXPECT_EQ(fields_of(chat.turns[2]), R"({"tool_call_id":"7","content":""})");
  EXPECT_EQ(fields_of(chat.turns[3]), R"({"reasoning_content":"hm"})");
  EXPECT_EQ(fields_of(chat.turns[4]), "");
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(chat.turns[i].is_learned, i != 3) << i;
  EXPECT_EQ(of_record(R"({"tools": "[{\"name\": \"f\"}]", "text": "x"})").tools->dump(), R"([{"name":"f"}])");
  EXPECT_EQ(of_record(R"({"tools": null, "text": "x"})").tools, nullptr);
}

TEST(Conversations, LearnTurnsByTheirWeights) {
  for (const char* key : {"weight", "train", "loss", "loss_mask"})
    for (const char* value : {"0", "false", "0.0", "1", "true", "null"}) {
      const Conversation chat =
          of_record(fmt::format(R"([{{"role": "assistant", "content": "x", "{}": {}}}])", key, value));
      EXPECT_EQ(chat.turns[0].is_learned, value[0] == '1' || value[0] == 't' || value[0] == 'n') << key << value;
      EXPECT_EQ(fields_of(chat.turns[0]), "");
    }
  EXPECT_FALSE(
      of_record(R"([{"role": "assistant", "content": "x", "weight": 1, "train": false}])").turns[0].is_learned);
}

TEST(Conversations, RefuseWhatATemplateCannotGet) {
  const auto turn = [](const std::string& keys) {
    return Parts{{"json", R"([{"role": "assistant", "content": "x", )" + keys + "}]"}};
  };
  EXPECT_THAT(refusal(turn(R"("weight": 0.5)")), HasSubstr("weight 0.5; only 0 (not learned) and 1"));
  EXPECT_THAT(refusal(turn(R"("loss_mask": [])")), HasSubstr("the loss_mask array"));
  EXPECT_THAT(refusal(turn(R"("mask": true)")), HasSubstr("trainers read in opposite ways"));
  EXPECT_THAT(refusal(turn(R"("tool_calls": )" + std::string(99999, '[') + std::string(99999, ']'))),
              HasSubstr("its 'tool_calls' are nested too deep"));
  EXPECT_THAT(refusal(turn(R"("tool_calls": [18446744073709551615])")), HasSubstr("more than 63 bits"));
  EXPECT_THAT(refusal({{"json", R"([{"role": "assistant", "tool_calls": []}])"}}), HasSubstr("a turn needs a role"));
  for (const char* tools : {"7", "[7]", R"("{}")", R"("[")"})
    EXPECT_THAT(refusal({{"json", fmt::format(R"({{"tools": {}, "text": "x"}})", tools)}}), HasSubstr("its tools are"));
}

TEST(Conversations, NameWhatTheyLeaveOut) {
  const auto unused = [](const Parts& parts, const SampleSpec& spec = {}, const SampleFields& fields = {}) {
    return fmt::format("{}", fmt::join(read_conversation(testing::stored_sample(parts), spec, fields).unused, ", "));
  };
  const std::string talk = R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])";
  EXPECT_EQ(unused({{"json", R"({"id": 7, "source": "web", "messages": )" + talk + "}"}}), "");
  EXPECT_EQ(unused({{"json", R"({"note": "x", "none": null, "caption": "", "videos": [], "mask": false, "tools": [],
                                 "messages": )" +
                                 talk + "}"},
                    {"cls", "1"}}),
            "note, caption, videos, mask, part cls");
  EXPECT_EQ(unused({{"txt", "x"}, {"json", R"({"text": "y"})"}}), "part txt");
  EXPECT_EQ(unused({{"json", R"([{"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}]}])"}}),
            "fragment.cache");
  EXPECT_EQ(unused({{"json", R"({"question": "?", "answer": ["a", "b"]})"}}), "answers after the first");
  const auto listed = [&](const std::string& list, const SampleFields& fields = {}) {
    const std::string turn = R"({"role": "user", "content": [{"type": "image", "image": "b.png"}]})";
    return unused(
        {{"a.png", "A"}, {"b.png", "B"}, {"json", R"({"images": )" + list + R"(, "messages": [)" + turn + "]}"}}, {},
        fields);
  };
  EXPECT_EQ(listed(R"(["x/b.png"])"), "part a.png");
  EXPECT_EQ(listed(R"(["a.png", "b.png"])"), "images, part a.png") << "the turns come first";
  const SampleFields by_recipe = {.images = "json[images]", .conversation = "json[messages]"};
  EXPECT_EQ(listed(R"(["b.png"])", by_recipe), "part a.png");
  EXPECT_EQ(listed(R"(["a.png"])", by_recipe), "images, part a.png");
  EXPECT_EQ(listed("[]", {.images = "a.png", .conversation = "json[messages]"}), "images, part a.png");
  Parts parts = {{"jpg", "A"}, {"wav", "W"}, {"json", R"({"q": "?", "a": "!", "w": [1], "extra": 2, "id": 3})"}};
  EXPECT_EQ(
      unused(parts,
             typed("VQASample",
                   {{"image", "jpg"}, {"context", "json[q]"}, {"answers", "json[a]"}, {"answer_weights", "json[w]"}})),
      "answer_weights, extra, part wav")
      << "Energon, too, reads only the parts that a field_map names";
  parts[1].first = "cls";
  EXPECT_EQ(unused(parts, {}, {.images = "jpg", .question = "json[q]", .answer = "json[a]"}), "w, extra, part cls");
  EXPECT_EQ(unused({{"json", R"({"x": 1})"}, {"b.json", talk}}, {}, {.conversation = "b.json"}), "part json");
}

TEST(Conversations, NamePartsThatALaterOneReplaces) {
  const Parts parts = {{"json", R"({"text": "x"})"}};
  Sample sample = testing::stored_sample(parts);
  sample.replaced = {"json", "json"};
  EXPECT_THAT(read_conversation(sample, {}, {}).unused, ::testing::ElementsAre("part json before another json"));
}

TEST(Conversations, WithToolsThatTheRecipeDoesNotMapAreRefused) {
  const Parts parts = {{"json", R"({"talk": [{"role": "user", "content": "hi"}], "tools": [{"name": "f"}]})"}};
  EXPECT_THAT(refusal(parts, {}, {.conversation = "json[talk]"}), HasSubstr("set data.fields.tools=json[tools]"));
  const SampleFields mapped = {.conversation = "json[talk]", .tools = "json[tools]"};
  EXPECT_EQ(read_conversation(testing::stored_sample(parts), {}, mapped).tools->dump(), R"([{"name":"f"}])");
}

TEST(Conversations, WithSoundOrVideoAreRefused) {
  const Parts talk = {{"json", R"([{"role": "user", "content": "hi"}])"}};
  for (const char* part : {"wav", "mp4", "left.MP3", "webm", "flac"}) {
    Parts parts = talk;
    parts.emplace_back(part, "x");
    EXPECT_THAT(refusal(parts), HasSubstr(fmt::format("its part '{}' is sound or video", part)));
  }
  for (const char* tag : {"<video>", "<audio>"}) {
    const auto says = [&](const char* role) {
      return Parts{{"json", fmt::format(R"([{{"role": "{}", "content": "see {}"}}])", role, tag)}};
    };
    EXPECT_THAT(refusal(says("user")), HasSubstr(fmt::format("its text has {}", tag)));
    EXPECT_EQ(read(says("assistant")), fmt::format("assistant: see {} | ", tag)) << "it may speak of HTML";
  }
  EXPECT_THAT(refusal({{"json", R"({"video": "a.mp4", "caption": "x"})"}}), HasSubstr("its 'video' is sound or video"));
  EXPECT_THAT(refusal({{"wav", "x"}, {"jpg", "A"}, {"json", talk[0].second}},
                      typed("SimilarityInterleavedSample", {{"images", "jpg"}, {"texts", "json"}, {"audio", "wav"}})),
              HasSubstr("its 'audio' is sound or video"));
  const SampleFields mapped = {.conversation = "json[talk]"};
  const std::string said = R"([{"role": "user", "content": "hi"}])";
  EXPECT_THAT(refusal({{"mp4", "x"}, {"json", R"({"talk": )" + said + "}"}}, {}, mapped),
              HasSubstr("its part 'mp4' is sound or video"));
  EXPECT_EQ(read({{"json", R"({"video": "a.mp4", "talk": )" + said + "}"}}, {}, mapped), "user: hi | ")
      << "the recipe says what is read, and the key is counted";
  EXPECT_EQ(
      read({{"jpg", "A"}, {"json", R"({"talk": )" + said + R"(, "au": null})"}},
           typed("SimilarityInterleavedSample", {{"images", "jpg"}, {"texts", "json[talk]"}, {"audio", "json[au]"}})),
      "user: <image>\nhi | [jpg=A]");
  EXPECT_THAT(
      refusal({{"json", R"([{"role": "user", "content": [{"type": "text", "text": "x", "video": "a.mp4"}]}])"}}),
      HasSubstr("its 'video' is sound or video"));
  EXPECT_THAT(refusal({{"json", R"([{"role": "user", "content": "hi", "video": "a.mp4"}])"}}),
              HasSubstr("its 'video' is sound or video"));
  EXPECT_EQ(read({{"json", R"({"audio": null, "video": "", "messages": )" + said + "}"}}), "user: hi | ");
}

TEST(Conversations, ReasonsNameFormatsAndKeysWithDots) {
  const std::string talk = R"([{"role": "user", "content": "<image> hi"}])";
  EXPECT_THAT(refusal({{"gif", "GIF89a"}, {"json", talk}}), HasSubstr("its part 'gif' is a picture in a format"));
  EXPECT_THAT(refusal({{"001.jpg", "A"}, {"001.json", talk}}),
              AllOf(HasSubstr("its parts are '001.jpg', '001.json'"), HasSubstr("a key ends at the first dot")));
  EXPECT_THAT(
      refusal({{"001.jpg", "A"}, {"txt", "x"}}, typed("CaptioningSample", {{"image", "jpg"}, {"caption", "txt"}})),
      AllOf(HasSubstr("has no 'jpg'"), HasSubstr("a key ends at the first dot")));
  EXPECT_THAT(refusal({{"json", R"({"image": "a.jpg", "caption": "x"})"}}), HasSubstr("no part 'a.jpg' for a picture"));
  for (const char* images : {"7", "true"})
    EXPECT_THAT(refusal({{"jpg", "A"}, {"json", fmt::format(R"({{"images": {}, "caption": "x"}})", images)}}),
                HasSubstr("neither a part nor a list of names"));
  EXPECT_THAT(refusal({{"json", R"({"caption": "x"})"}}),
              HasSubstr("its caption has no picture; its parts are 'json'"));
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
  problems = unreadable_leaves(blend, {.tools = "json[tools]"});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].where, "data.fields.tools") << "it would have no effect";
  problems = unreadable_leaves(blend, {.caption = "txt", .text = "txt"});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].where, "data.fields.caption data.fields.text");
}

}  // namespace
}  // namespace braid
