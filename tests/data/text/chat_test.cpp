// Chat templates and formats by hand; tests/oracles/chat_test.py compares them with transformers.
#include "data/text/chat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "data/text/small_tokenizer.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

Tokenizer chat_tokenizer(TokenizerSettings settings) {
  return {testing::read_codec(testing::small_tokenizer()), std::move(settings), "tokenizer.json"};
}

// "hello" is one token; an end of turn is a target, what the user says is not.
TEST(Chat, OnlyTheAssistantIsTrained) {
  const Tokenizer tokenizer =
      chat_tokenizer({.chat_template = "{% for m in messages %}{{ m.content }}<s>{% endfor %}"});
  const std::vector<ChatTurn> turns = {{"user", "hell"}, {"assistant", "0hello"}};
  const ChatTokens chat = ChatEncoder(tokenizer, "chatml").encode_with_targets(turns);
  EXPECT_THAT(chat.tokens, ElementsAre(258, 260, '0', 259, 260));
  EXPECT_THAT(chat.targets, ElementsAre(-100, -100, '0', 259, 260));
  EXPECT_EQ(ChatEncoder(tokenizer, "default").encode_with_targets(turns).targets, chat.tokens);
}

TEST(Chat, TurnsThatMergeAreRefused) {
  const Tokenizer tokenizer = chat_tokenizer({.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"});
  const std::vector<ChatTurn> turns = {{"user", "he"}, {"assistant", "llo"}};
  EXPECT_THAT(error_of<DataError>([&] { ChatEncoder(tokenizer, "chatml").encode_with_targets(turns); }),
              HasSubstr("turn 2 cannot be masked: its first or last token contains text of another turn"));
}

std::string written(const Tokenizer& tokenizer, const ChatEncoder& encoder, const std::vector<ChatTurn>& turns) {
  return tokenizer.decode(encoder.encode_with_targets(turns).tokens);
}

// The small tokenizer splits "assistant" into nine tokens.
TEST(Chat, MasksFollowFromTheTextOfAFormat) {
  const Tokenizer tokenizer = chat_tokenizer({.bos = "<s>", .eos = "</s>"});
  const auto learned = [&](const char* format, const std::vector<ChatTurn>& turns) {
    std::vector<int> targets;
    for (const int id : ChatEncoder(tokenizer, format).encode_with_targets(turns).targets)
      if (id != kIgnoredLabel) targets.push_back(id);
    return tokenizer.decode(targets);
  };
  const std::vector<ChatTurn> turns = {{"user", "a"}, {"assistant", "B"}, {"user", "c"}, {"assistant", "D"}};
  EXPECT_EQ(learned("qwen2p0", turns), "B<|im_end|>\nD<|im_end|>\n");
  EXPECT_EQ(learned("llama3p1", turns), "B<|eot_id|>D<|eot_id|>");
  EXPECT_EQ(learned("nemotron5-aligned", turns), "B\n[PREFIX]D\n[PREFIX]");
  EXPECT_EQ(learned("mistral", turns), "B</s>D</s>");
  EXPECT_THAT(error_of<DataError>([&] {
                learned("nemotron-h-aligned", {{"assistant", "B"}});
              }),
              HasSubstr("the conversation begins with the assistant (turn 1)"));
}

TEST(Chat, FormatsWriteTheirFrames) {
  const Tokenizer tokenizer = chat_tokenizer({.bos = "<s>", .eos = "</s>"});
  const auto text = [&](const char* format) {
    return written(tokenizer, ChatEncoder(tokenizer, format), {{"system", "S"}, {"user", " U "}, {"assistant", "A"}});
  };
  EXPECT_EQ(text("qwen2p5"),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U <|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n");
  EXPECT_EQ(text("nemotron5-aligned"), "<s>System\nS\n[PREFIX]User\n U \n[PREFIX]Assistant\nA\n[PREFIX]");
  EXPECT_EQ(text("nemotron-nano-v2"),
            "<SPECIAL_10>System\nS\n<SPECIAL_11>User\nU\n<SPECIAL_11>Assistant\nA\n<SPECIAL_12>\n");
  EXPECT_EQ(text("mistral"), "<s>[INST]  U [/INST] A</s>");
  EXPECT_EQ(text("identity"), "S U A");
}

// A template must not see bytes that are no characters; the tokens are those of U+FFFD.
TEST(Chat, BrokenTextsReachTheTemplateRepaired) {
  const Tokenizer tokenizer = chat_tokenizer(
      {.chat_template = "{% for m in messages %}{% for w in m.content.split() %}{{ w }};{% endfor %}{% endfor %}"});
  EXPECT_EQ(written(tokenizer, ChatEncoder(tokenizer, "default"), {{"user", "a\xff b \xe2\x82"}}), "a\ufffd;b;\ufffd;");
}

ChatTurn answer_with(const std::string& text, const std::string& fields) {
  return {"assistant", text, true,
          std::make_shared<const nlohmann::ordered_json>(nlohmann::ordered_json::parse(fields))};
}

TemplateInput tools(const std::string& list) {
  return std::make_shared<const nlohmann::ordered_json>(nlohmann::ordered_json::parse(list));
}

TEST(Chat, TurnsWithWeight0AreContext) {
  const Tokenizer tokenizer =
      chat_tokenizer({.chat_template = "{% for m in messages %}{{ m.content }}<s>{% endfor %}"});
  const std::vector<ChatTurn> turns = {{"user", "a"}, {"assistant", "0123b", false}, {"assistant", "0123c"}};
  for (const char* format : {"chatml", "nemotron6-moe"}) {
    const ChatTokens chat = ChatEncoder(tokenizer, format).encode_with_targets(turns);
    std::vector<int> learned;
    for (const int target : chat.targets)
      if (target != kIgnoredLabel) learned.push_back(target);
    EXPECT_THAT(tokenizer.decode(chat.tokens), "a<s>0123b<s>0123c<s>");
    EXPECT_THAT(tokenizer.decode(learned), ::testing::EndsWith("3c<s>")) << format;
    EXPECT_THAT(tokenizer.decode(learned), ::testing::Not(HasSubstr("b"))) << format;
  }
  EXPECT_THAT(error_of<DataError>([&] { ChatEncoder(tokenizer, "default").encode_with_targets(turns); }),
              HasSubstr("turn 2 has weight 0, but the chat format default learns every token"));
}

TEST(Chat, FixedFormatsRefuseWhatTheyCannotWrite) {
  const Tokenizer tokenizer = chat_tokenizer({.bos = "<s>", .eos = "</s>"});
  const auto refusal = [&](const char* format, const std::vector<ChatTurn>& turns, const TemplateInput& given = {}) {
    return error_of<DataError>([&] { ChatEncoder(tokenizer, format).encode_with_targets(turns, given); });
  };
  const ChatTurn asked = {"user", "a"};
  EXPECT_THAT(refusal("qwen2p0", {asked}, tools(R"([{"name": "f"}])")),
              HasSubstr("qwen2p0 cannot write the sample's tools"));
  EXPECT_THAT(refusal("qwen2p0", {asked, answer_with("", R"({"tool_calls": [{"name": "f"}]})")}),
              HasSubstr("cannot write the tool_calls of turn 2; set data.prompt_format=nemotron6-moe"));
  EXPECT_THAT(refusal("identity", {asked, answer_with("b", R"({"reasoning_content": "c"})")}),
              HasSubstr("identity cannot write the reasoning_content of turn 2"));
  EXPECT_THAT(refusal("mistral", {asked, {"tool", "b"}}), HasSubstr("mistral cannot write the answer of a tool"));
  EXPECT_EQ(written(tokenizer, ChatEncoder(tokenizer, "nemotron5-aligned"), {asked, {"tool", "b"}}),
            "<s>User\na\n[PREFIX]Tool\nb\n[PREFIX]");
  const std::vector<ChatTurn> empty = {asked, answer_with("b", R"({"tool_calls": [], "thinking": "", "name": "n"})")};
  const ChatEncoder encoder(tokenizer, "qwen2p0");
  EXPECT_NO_THROW(encoder.encode_with_targets(empty, tools("[]")));
  EXPECT_THAT(encoder.unused_keys(empty, {}), ElementsAre("name"));
}

// A template writes some of what a message has, and says nothing about the rest.
TEST(Chat, WhatATemplateDoesNotWriteIsRefusedOrNamed) {
  const auto encoder_of = [](const std::string& source) {
    return chat_tokenizer({.chat_template = "{{ tools[0].name if tools }}{% for m in messages %}" + source +
                                            "{{ m.content }};{% endfor %}"});
  };
  const ChatTurn asked = {"user", "a"};
  const ChatTurn calls = answer_with("b", R"({"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]})");
  const ChatTurn thinks = answer_with("b", R"({"reasoning_content": "hm", "reasoning": "hm", "name": "n", "rank": 3})");
  const auto refusal = [&](const std::string& source, const std::vector<ChatTurn>& turns, const TemplateInput& given) {
    const Tokenizer tokenizer = encoder_of(source);
    return error_of<DataError>([&] { ChatEncoder(tokenizer, "default").encode_with_targets(turns, given); });
  };
  EXPECT_THAT(refusal("", {asked}, tools(R"([{"name": "f"}, {"name": "g"}])")),
              HasSubstr("not write the sample's tools[1].name"));
  EXPECT_THAT(refusal("", {asked, calls}, {}), HasSubstr("not write the tool_calls[0].name of turn 2 (assistant)"));
  const std::string names = "{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}";
  EXPECT_THAT(refusal(names, {asked, calls}, {}), HasSubstr("not write the tool_calls[0].arguments of turn 2"));
  EXPECT_THAT(refusal("{{ m.thinking }}", {asked, thinks}, {}), HasSubstr("not write the reasoning_content of turn 2"));

  const Tokenizer tokenizer = encoder_of("{{ m.reasoning }}{{ m.name }}{{ m.rank | length if false }}");
  const ChatEncoder encoder(tokenizer, "default");
  EXPECT_EQ(tokenizer.decode(encoder.encode_with_targets({asked, thinks}).tokens), "a;hmnb;") << "one of two names";
  EXPECT_THAT(encoder.unused_keys({asked, thinks}, {}), ElementsAre("rank"));
  const Tokenizer forgets = encoder_of("{{ m.reasoning if loop.last }}");
  EXPECT_NO_THROW(ChatEncoder(forgets, "default").encode_with_targets({asked, thinks, asked}))
      << "thoughts may be left out when a question follows";
}

TEST(Chat, ATokenizerMayHaveATemplateForTools) {
  const Tokenizer tokenizer = chat_tokenizer({.chat_template = "plain {{ messages[0].content }}",
                                              .tool_template = "{{ tools[0].name }} {{ messages[0].content }}"});
  const ChatEncoder encoder(tokenizer, "default");
  EXPECT_EQ(written(tokenizer, encoder, {{"user", "a"}}), "plain a");
  EXPECT_EQ(tokenizer.decode(encoder.encode_with_targets({{"user", "a"}}, tools(R"([{"name": "f"}])")).tokens), "f a");
}

TEST(Chat, ImagesGetTheirTags) {
  const Tokenizer tokenizer = chat_tokenizer({});
  const std::vector<ChatTurn> turns = {{"user", "<image>?"}};
  const auto text = [&](const char* tags) {
    return written(tokenizer, ChatEncoder(tokenizer, "identity", tags), turns);
  };
  EXPECT_EQ(text("nvlm"), "<Image><image></Image>?");
  EXPECT_EQ(text("internvl"), "<img><image></img>?");
  EXPECT_EQ(text(""), "<image>?");
}

TEST(Chat, MissingPartsOfATokenizerAreNamed) {
  const Tokenizer tokenizer = chat_tokenizer({});
  EXPECT_THAT(error_of([&] { ChatEncoder(tokenizer, "chatml"); }), HasSubstr("chat_template.jinja"));
  EXPECT_THAT(error_of([&] {
                ChatEncoder(tokenizer, "mistral").encode_with_targets({{"user", "a"}});
              }),
              HasSubstr("bos_token"));
  EXPECT_THAT(error_of([&] { ChatEncoder(tokenizer, "qwen"); }), HasSubstr("qwen2p5"));
}

// The expected lists are those of Python's str.split.
TEST(TemplateText, SplitsAtWhiteSpaceAsPythonDoes) {
  const auto words = [](std::string_view text, std::int64_t most) { return split_text(text, nullptr, most); };
  EXPECT_THAT(words(" a\u00a0b \n", -1), ElementsAre("a", "b"));
  EXPECT_THAT(words(" a  b c ", 1), ElementsAre("a", "b c "));
  EXPECT_THAT(words(" a ", 0), ElementsAre("a "));
  EXPECT_TRUE(words(" \t", -1).empty());
  EXPECT_THAT(words("\xff a\xe2\x82 \xff", -1), ElementsAre("\xff", "a\xe2\x82", "\xff")) << "invalid bytes are text";
  std::string many;
  for (int i = 0; i < 200'000; ++i) many += "a ";
  EXPECT_EQ(words(many, -1).size(), 200'000u);
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  const auto render = [](const char* source) { return ChatTemplate(source, "t").render({{"x", 1}}); };
  EXPECT_EQ(render("{{ x + 1 }}"), "2");
  EXPECT_THAT(error_of<DataError>([&] { render("a\n{{ y.z }}"); }), HasSubstr("t, line 2: 'y' is undefined"));
  EXPECT_THAT(error_of<DataError>([&] { render("a\n\n{% raise %}"); }), HasSubstr("t, line 3: the tag 'raise'"));
  EXPECT_THAT(error_of<DataError>([&] { render("{{ raise_exception('no') }}"); }),
              HasSubstr("refuses the conversation: no"));
}

// strftime_now sees the time that it is given, so that a conversation has the same tokens every day.
TEST(ChatTemplate, WritesTheGivenDate) {
  const std::tm time = {.tm_mday = 26, .tm_mon = 6, .tm_year = 124};
  EXPECT_EQ(ChatTemplate("{{ strftime_now('%d %b %Y') }}", "t", time).render({}), "26 Jul 2024");
}

// Cutting and joining keeps which bytes are those of a message.
TEST(ChatTemplate, KnowsTheOriginOfItsOutput) {
  const ChatTemplate chat_template(
      "{% set c = messages[0].content %}{{ c.split('|')[1] ~ '-' ~ c[1:3] | upper }}{{ c | trim | replace('x', 'yy') "
      "}}",
      "t");
  std::int64_t steps = 1000;
  const TemplateText text = chat_template.render({{"messages", {{{"role", "user"}, {"content", " abx|cd "}}}}}, steps);
  EXPECT_EQ(text.text, "cd -ABabyy|cd");
  std::string said;
  for (const TemplateText::Origin& origin : text.origins)
    said += text.text.substr(origin.begin, origin.end - origin.begin) + ";";
  EXPECT_EQ(said, "cd ;ABab;|cd;");
}

// Masking renders a conversation many times, so that a bound for each rendering alone would allow minutes.
TEST(ChatTemplate, RenderingsShareTheirSteps) {
  const ChatTemplate chat_template("{% for i in range(100) %}{% endfor %}", "t");
  std::int64_t steps = 1000;
  chat_template.render({}, steps);
  EXPECT_LT(steps, 900);
  EXPECT_THAT(error_of<DataError>([&] {
                for (int i = 0; i < 10; ++i) chat_template.render({}, steps);
              }),
              HasSubstr("t, line 1: the template needs too many steps"));
}

}  // namespace
}  // namespace braid
