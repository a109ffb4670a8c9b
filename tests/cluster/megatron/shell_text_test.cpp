// Oracle for quoting: bash itself, which must return every quoted word byte for byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "base/strings.h"
#include "cluster/megatron/commands.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> through_bash(const std::vector<std::string>& words) {
  const auto run = testing::run_program({"bash", "-c", "printf '%s\\0' " + joined_quoted(words)});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::vector<std::string> back = split(run.out, '\0');
  back.pop_back();
  return back;
}

TEST(ShellQuoting, HostileWordsComeBackFromBash) {
  const std::vector<std::string> words = {
      "",      "a b", "it's",  "\"",    "'\\''", "$HOME", "`id`", "$(id)", "a\nb",  "\n",  "-n",  "--", "~",
      "~root", "*",   "[a-z]", "{a,b}", "!x",    "#",     "a#b",  "a=b",   "\\",    "\\n", "a\\", ";",  "&&",
      "|",     "<",   ">(x)",  "größe", "\x01x", "\x7f",  "\t",   "\r\n",  "x\xff", "=",   "if",  "1>2"};
  EXPECT_EQ(through_bash(words), words);
}

TEST(ShellQuoting, RandomBytesComeBackFromBash) {
  std::mt19937 random(7);
  std::vector<std::string> words(300);
  for (std::string& word : words) {
    word.resize(random() % 40);
    for (char& c : word) c = static_cast<char>(1 + random() % 255);
  }
  EXPECT_EQ(through_bash(words), words);
}

TEST(ShellQuoting, OnlyWhereNeeded) {
  EXPECT_EQ(joined_quoted({"torchrun", "--nproc_per_node=8", "a/b.py", "x:y,z@1%", "a b"}),
            "torchrun --nproc_per_node=8 a/b.py x:y,z@1% 'a b'");
  EXPECT_EQ(shell_quoted("NAME=x"), "'NAME=x'");  // as the first word it would be an assignment
}

// The values of all words, "?" for those with expansions; commands are separated by ";".
std::vector<std::string> words_in(const std::string& text) {
  std::vector<std::string> words;
  for (const ShellCommand& command : simple_commands(text)) {
    if (!words.empty()) words.push_back(";");
    for (const auto* part : {&command.assignments, &command.words})
      for (const ShellWord& word : *part) words.push_back(word.value.value_or("?"));
  }
  return words;
}

TEST(ShellLexer, QuotesAreRemoved) {
  EXPECT_THAT(words_in(R"(a 'b c' "d e" f\ g 'h'"i"j)"), ElementsAre("a", "b c", "d e", "f g", "hij"));
  EXPECT_THAT(words_in(R"(a "x\"y\\z\$w\q" '\' \')"), ElementsAre("a", "x\"y\\z$w\\q", "\\", "'"));
  EXPECT_THAT(words_in(R"(a $'x\t\'z' $"hi" $)"), ElementsAre("a", "?", "$hi", "$"));
  EXPECT_THAT(words_in("a '' \"\""), ElementsAre("a", "", ""));
}

TEST(ShellLexer, ExpansionsAreNotGuessed) {
  for (const char* word : {"$X",        "${X}",
                           "${X:-a b}", "${X//\"}\"/'}'}",
                           "$(a b)",    "$(a \"$(b ')')\")",
                           "`a b`",     "$((1 + (2)))",
                           "\"$X\"",    "\"$(a \"b c\")\"",
                           "$1",        "$@",
                           "a*",        "?",
                           "[ab]",      "{a,b}",
                           "{1..3}",    "~",
                           "~/x",       "<(a b)",
                           "a$X'b c'"})
    EXPECT_THAT(words_in(std::string("p ") + word + " q"), ElementsAre("p", "?", "q")) << word;
  const ShellWord word = simple_commands("\"$VENV\"/bin/torch'run' --n=$X/y")[0].words[0];
  EXPECT_EQ(word.tail, "/bin/torchrun");
  EXPECT_EQ(simple_commands("--n=$X/y")[0].words[0].head, "--n=");
}

TEST(ShellLexer, CommandsEndWhereBashEndsThem) {
  EXPECT_THAT(words_in("a 1 && b || c; d | e |& f & g\nh"),
              ElementsAre("a", "1", ";", "b", ";", "c", ";", "d", ";", "e", ";", "f", ";", "g", ";", "h"));
  EXPECT_THAT(words_in("a \\\n  b\\\nc \\\n"), ElementsAre("a", "bc"));
  EXPECT_THAT(words_in("(a; b) && { c; }"), ElementsAre("a", ";", "b", ";", "c"));
  EXPECT_THAT(words_in("if a; then b; elif c; then d; else e; fi"),
              ElementsAre("a", ";", "b", ";", "c", ";", "d", ";", "e"));
  EXPECT_THAT(words_in("for x in 1 2; do a; done; while b; do c; done"),
              ElementsAre("for", "x", "in", "1", "2", ";", "a", ";", "b", ";", "c"));
  EXPECT_THAT(words_in("case $x in a) b;; c|d) e;; esac; f"), ::testing::IsSupersetOf({"b", "e", "f"}));
  EXPECT_THAT(words_in("(case $x in (a) b;; esac); c $(case x in y) z;; esac)"),
              ::testing::IsSupersetOf({"b", "c", "?"}));
  EXPECT_THAT(words_in("run() { a; }; run"), ::testing::IsSupersetOf({"a", "run"}));
  EXPECT_THAT(words_in("((x = 1 < 2)); a"), ElementsAre("a"));
  EXPECT_THAT(words_in("! time a"), ElementsAre("a"));
}

TEST(ShellLexer, AssignmentsStandInFront) {
  const auto commands = simple_commands("A=1 B+='x y' C[0]=2 run D=3; E=(a b 'c)' $(d)) F=");
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(commands[0].assignments.size(), 3u);
  EXPECT_EQ(commands[0].words.size(), 2u);
  EXPECT_EQ(commands[1].assignments.size(), 2u);
  EXPECT_THAT(commands[1].words, IsEmpty());
}

TEST(ShellLexer, RedirectionsAndCommentsAreNoWords) {
  EXPECT_THAT(words_in("a >x 2>&1 b <in >>y 3<>z &>all c <<<'here word' d >| e # f"), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(words_in("a b#c '#d' #e\n#f\ng"), ElementsAre("a", "b#c", "#d", ";", "g"));
}

TEST(ShellLexer, HereDocumentsAreSkipped) {
  EXPECT_THAT(words_in("a <<EOF b\ntext 'of \"a\nEOF\nc"), ElementsAre("a", "b", ";", "c"));
  EXPECT_THAT(words_in("a <<-'E F' <<\\G\n\ttext\n\tE F\nmore\nG\nc"), ElementsAre("a", ";", "c"));
  EXPECT_THAT(words_in("a $(cat <<EOF\n)'\nEOF\n) b"), ElementsAre("a", "?", "b"));
}

TEST(ShellLexer, SpansAreThoseOfTheText) {
  const std::string text = "x=1 a 'b c'\\\n  $(d e) \"f\"";
  std::string spans;
  const auto commands = simple_commands(text);
  for (const ShellWord& word : commands[0].words) spans += "<" + text.substr(word.begin, word.end - word.begin) + ">";
  EXPECT_EQ(spans, "<a><'b c'\\\n><$(d e)><\"f\">");
}

// For any text, lexing ends with words that are in the text, in order, or with a ConfigError.
TEST(ShellLexer, AnyTextEnds) {
  const std::vector<std::string> pieces = {
      "a",    " ",     "\n",   "'",    "\"",  "\\", "$",   "(",     ")",     "{",  "}",  "`",
      "<",    ">",     "&",    "|",    ";",   "#",  "=",   "<<EOF", "EOF\n", "$(", "${", "$((",
      "))",   "case ", " in ", "esac", "if ", "fi", "x=(", "[",     "*",     "~",  "1>", std::string(1, '\0'),
      "\xff", "$'"};
  std::mt19937 random(11);
  int lexed = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    for (auto count = random() % 20; count > 0; --count) text += pieces[random() % pieces.size()];
    try {
      for (const ShellCommand& command : simple_commands(text)) {
        ASSERT_LE(command.begin, command.end) << text;
        ASSERT_LE(command.end, text.size()) << text;
        for (std::size_t i = 0; i < command.words.size(); ++i) {
          const ShellWord& word = command.words[i];
          ASSERT_LT(word.begin, word.end) << text;
          ASSERT_LE(word.end, text.size()) << text;
          ASSERT_LE(i > 0 ? command.words[i - 1].end : 0, word.begin) << text;
        }
      }
      ++lexed;
    } catch (const ConfigError&) {
    }
  }
  EXPECT_GT(lexed, 1000);
  for (const char* deep : {"$(", "${", "\"$(", "x=(", "$(("}) {
    std::string text = "a ";
    for (int i = 0; i < 100000; ++i) text += deep;
    EXPECT_THROW(simple_commands(text), ConfigError);
  }
}

// A file of one line, such as JSON without blanks, is one word with many brackets.
TEST(ShellLexer, LongWordsDoNotTakeLong) {
  for (const std::string piece : {"[", "{", "[1]", "{\"a\":[1,2.5]},"}) {
    std::string text;
    while (text.size() < 1'000'000) text += piece;
    const auto commands = simple_commands(text);
    ASSERT_EQ(commands.size(), 1u);
    EXPECT_EQ(commands[0].words.size(), 1u);
  }
}

TEST(ShellLexer, BracketsAloneAreWords) {
  EXPECT_THAT(words_in("[ a ] [[ b ]] { c; } [a] {a,b} 'y ]'"),
              ElementsAre("[", "a", "]", "[[", "b", "]]", "{", "c", ";", "?", "?", "y ]"));
  EXPECT_THAT(words_in("[\"b c\"] {' '{,"), ElementsAre("?", "?"));
}

// The words of one command; everything else is refused with the way to read it.
TEST(PlainWords, OneCommandOrLinesOfFlags) {
  EXPECT_THAT(plain_words("A=1 torchrun x.py --a 'b c' \\\n --d M-M*- # no word\n", "--x"),
              ElementsAre("A=1", "torchrun", "x.py", "--a", "b c", "--d", "M-M*-"));
  EXPECT_THAT(plain_words("--a 1\n  --b 2\n", "--x"), ElementsAre("--a", "1", "--b", "2"));
  EXPECT_THAT(plain_words("x --save '$HOME' \\$1 >log 2>&1", "--x"), ElementsAre("x", "--save", "$HOME", "$1"));
  for (const char* text : {"x --lr $LR", "x \"$A\"", "x `id`", "x $(id)", "x ~/a", "x /a/*", "A=(--lr 1)", "x; y",
                           "x && y", "x | tee log", "x &", "x\ny", "for i in 1; do x; done"})
    try {
      plain_words(text, "--from-megatron");
      ADD_FAILURE() << text;
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), ::testing::AllOf(HasSubstr("where: --from-megatron"), HasSubstr("--run-script"))) << text;
    }
}

TEST(ShellLexer, UnclosedConstructsAreErrors) {
  for (const char* text :
       {"a 'b", "a \"b", "a `b", "a $(b", "a ${b", "a $((1", "(a", "a )", "a $'b", "x=(a", "a \"$(b\""}) {
    try {
      simple_commands(text);
      ADD_FAILURE() << text;
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), HasSubstr("is not closed")) << text;
    }
  }
}

}  // namespace
}  // namespace braid
