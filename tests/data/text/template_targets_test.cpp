// Targets of conversations in the tokenizer's own template, by hand; tests/oracles/template_targets_test.py compares
// them with transformers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "data/text/chat.h"
#include "data/text/small_tokenizer.h"
#include "support/errors.h"

namespace braid {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

// Answers are learned as text, since the small tokenizer has a token for each of these characters.
std::string learned(const std::string& source, const std::vector<ChatTurn>& turns) {
  const Tokenizer tokenizer(testing::read_codec(testing::small_tokenizer()), {.chat_template = source},
                            "tokenizer.json");
  const ChatTokens chat = ChatEncoder(tokenizer, "nemotron6-moe").encode_with_targets(turns);
  std::vector<int> targets;
  for (std::size_t i = 0; i < chat.tokens.size(); ++i) {
    if (chat.targets[i] == kIgnoredLabel) continue;
    EXPECT_EQ(chat.targets[i], chat.tokens[i]);
    targets.push_back(chat.targets[i]);
  }
  return tokenizer.decode(targets);
}

std::string refusal(const std::string& source, const std::vector<ChatTurn>& turns) {
  return error_of<DataError>([&] { learned(source, turns); });
}

const std::vector<ChatTurn> kTwoRounds = {
    {"system", ""}, {"user", "ab"}, {"assistant", "CD"}, {"user", "ef"}, {"assistant", "GH"}};
const std::string kPrompt = "{% if add_generation_prompt %}<s>a:{% endif %}";

TEST(TemplateTargets, AreAnswersWithoutTheGenerationPrompt) {
  const std::string turn = "<s>{{ m.role[0] }}:{{ m.content }};";
  EXPECT_EQ(learned("{% for m in messages %}" + turn + "{% endfor %}" + kPrompt, kTwoRounds), "CD;GH;");
  EXPECT_EQ(learned("{% for m in messages %}" + turn + "{% endfor %}", kTwoRounds), "CD;GH;")
      << "without a prompt, the header is given";
}

// A model must learn the token that begins a call of a tool, though no prompt shows where the header ends.
TEST(TemplateTargets, WithoutAPromptBeginWhereAPlainAnswerWould) {
  const std::string source =
      "{% for m in messages %}<s>{{ m.role[0] }}:{% if m.tool_calls %}<t>{{ m.tool_calls[0].name }}{% else %}"
      "{{ m.content }}{% endif %};{% endfor %}";
  ChatTurn call{"assistant", ""};
  call.fields = std::make_shared<const nlohmann::ordered_json>(
      nlohmann::ordered_json{{"tool_calls", {{{"name", "GH"}}}}, {"content", ""}});
  EXPECT_EQ(learned(source, {{"user", "ab"}, call, {"tool", "cd"}, {"assistant", "EF"}}), "<t>GH;EF;");
}

// Each answer begins with the same tokens, which do not end the answer before it.
TEST(TemplateTargets, OfAnswersInARowDoNotEndWithTheNextHeader) {
  EXPECT_EQ(learned("{% for m in messages %}{{ '<s>()' if m.role == 'assistant' }}{{ m.content }}{{ '<s>' if m.role "
                    "== 'user' }}{% endfor %}{% if add_generation_prompt %}<s>(){% endif %}",
                    {{"user", "ab"}, {"assistant", "CD"}, {"assistant", "GH"}}),
            "CDGH");
  EXPECT_EQ(learned("{% for m in messages %}{{ '<s>' if m.role == 'assistant' }}{{ m.content }}{% endfor %}"
                    "{% if add_generation_prompt %}<s>{% endif %}",
                    {{"user", "ab"}, {"assistant", "CD"}, {"assistant", "GH"}}),
            "CDGH");
}

// The prompt opens thoughts, which the answers then close: what they share is given.
TEST(TemplateTargets, ThePromptMayEndDifferently) {
  EXPECT_EQ(learned("{% for m in messages %}<s>{{ m.role[0] }}:{{ '()' if m.role == 'assistant' }}{{ m.content }};"
                    "{% endfor %}{% if add_generation_prompt %}<s>a:(.{% endif %}",
                    kTwoRounds),
            ")CD;)GH;");
}

TEST(TemplateTargets, EarlierAnswersMayBeWrittenDifferently) {
  EXPECT_EQ(learned("{% for m in messages %}<s>{{ m.role[0] }}:{{ '()' if loop.last and m.role[0] == 'a' }}{{ "
                    "m.content }};{% endfor %}" +
                        kPrompt,
                    {{"user", "ab"}, {"assistant", "CD"}, {"user", "ef"}, {"assistant", "GH"}, {"user", "a"}}),
            "CD;GH;");
}

TEST(TemplateTargets, HaveAnEndThatIsWrittenBetweenTurns) {
  const std::string source =
      "{% for m in messages %}{{ '<s>' if m.role == 'user' and not loop.first }}{{ m.role[0] }}:{{ m.content }}{% "
      "endfor "
      "%}{% if add_generation_prompt %}a:{% endif %}";
  EXPECT_EQ(learned(source, {kTwoRounds.begin() + 1, kTwoRounds.end()}), "CD<s>GH<s>");
}

// The question that follows an answer has a header only because the answer is there.
TEST(TemplateTargets, WhatFollowsAnAnswerIsNotLearned) {
  const std::string source =
      "{% for m in messages %}{% if loop.previtem is undefined or loop.previtem.role != m.role %}<s>{{ m.role[0] }}:"
      "{% endif %}{{ '()' if loop.last and m.role[0] == 'a' }}{{ m.content }};{% endfor %}" +
      kPrompt;
  EXPECT_EQ(learned(source, kTwoRounds), "CD;()GH;");
}

TEST(TemplateTargets, OtherTurnsMayChangeWhenMoreFollow) {
  EXPECT_EQ(learned("{{ messages | length }}{% for m in messages %}{{ m.content }};{% endfor %}", kTwoRounds),
            "CD;GH;");
}

TEST(TemplateTargets, TurnsThatAreLeftOutOrMergedAreRefused) {
  EXPECT_THAT(refusal("{% for m in messages %}{{ m.content }}{% endfor %}", {{"user", "he"}, {"assistant", "llo"}}),
              HasSubstr("turn 2 cannot be masked: its first or last token contains text of another turn"));
  EXPECT_THAT(refusal("{{ messages[0].content }}", {{"user", "a"}, {"assistant", "b"}}),
              HasSubstr("the chat template leaves out the text of turn 2 (assistant)"));
  EXPECT_THAT(
      refusal("{% for m in messages %}{{ m.content[:2] }}<s>{% endfor %}", {{"user", "a"}, {"assistant", "ab c"}}),
      HasSubstr("the chat template leaves out a part of turn 2 (assistant): 'c'"));
}

TEST(TemplateTargets, TextsAreChecked) {
  const std::string source = "{% for m in messages %}{{ m.content }}<s>{% endfor %}";
  EXPECT_THAT(refusal(source, {{"user", ""}, {"assistant", "a"}}), HasSubstr("turn 1 (user) is empty"));
  EXPECT_THAT(refusal(source, {{"user", "a"}, {"assistant", "<image>"}}), HasSubstr("turn 2 is the assistant's"));
  std::vector<ChatTurn> many;
  for (int i = 0; i < 2000; ++i) many.push_back({i % 2 == 0 ? "user" : "assistant", "a"});
  EXPECT_THAT(refusal(source, many),
              HasSubstr("too long to mask with the tokenizer's chat template (2000 turns, 8000 bytes); split it"));
}

}  // namespace
}  // namespace braid
