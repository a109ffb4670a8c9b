// The program as a user sees it in a terminal: exit codes, one clear message, help everywhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/strings.h"
#include "cli/cli_support.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TemporaryFolder;

TEST(Cli, HelpListsOnlyWhatWorks) {
  const Finished help = braid({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"train", "eval", "plan", "model", "run", "launch", "report", "compare", "doctor", "trace",
                              "ckpt", "data", "forward"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    const Finished own = braid({command, "--help"});
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_THAT(own.out, HasSubstr("Usage: "));
    for (const std::string& line : split(own.out, '\n')) EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_THAT(braid({"plan", "show", "--help"}).out, HasSubstr("--rank"));
  const std::size_t list = help.out.find("Subcommands:");
  ASSERT_NE(list, std::string::npos);
  int listed = 0;
  for (const std::string& line : split(help.out.substr(list), '\n')) listed += line.find_first_not_of(' ') == 2;
  EXPECT_EQ(listed, 13) << help.out;
}

TEST(Cli, CompareTellsByItsExitCodeWhetherRunsDiffer) {
  const TemporaryFolder folder;
  const std::string a = folder.write("a.jsonl", "{\"iteration\":1,\"lm_loss\":4}\n"),
                    b = folder.write("b.jsonl", "{\"iteration\":1,\"lm_loss\":4.1}\n");
  EXPECT_EQ(braid({"compare", a, a}).exit_code, 0);
  EXPECT_EQ(braid({"compare", a, b}).exit_code, 1);
  EXPECT_EQ(braid({"compare", a, b, "--rtol", "0.1"}).exit_code, 0);
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {}, {"/nowhere"}, {b, "--samples", "--html", "a.html"}, {b, "--samples"}}) {
    std::vector<std::string> command = {"compare", a};
    command.insert(command.end(), more.begin(), more.end());
    const Finished refused = braid(command);
    EXPECT_EQ(refused.exit_code, 2) << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("fix:"));
  }
  // A folder with two runs is not one run.
  EXPECT_THAT(braid({"compare", folder.path(), b}).err, HasSubstr("has 2 runs: a, b"));
}

// Help, plans, Slurm scripts and diagnoses answer at once, even if libtorch's libraries cannot be loaded.
TEST(Cli, CommandsWithoutTensorsDoNotLoadLibtorch) {
  const std::map<std::string, std::string> list_libraries = {{"LD_TRACE_LOADED_OBJECTS", "1"}};
  EXPECT_THAT(braid({}, list_libraries).out,
              AllOf(HasSubstr("libfmt"), Not(HasSubstr("libtorch")), Not(HasSubstr("libc10"))));
  EXPECT_THAT(testing::run_program({testing::built_program("braid-tensors")}, list_libraries).out,
              HasSubstr("libtorch_cpu"));
}

TEST(Cli, BraidAloneSaysWhatIsMissing) {
  const TemporaryFolder folder;
  const std::string copy = folder.path() + "/braid";
  std::filesystem::copy_file(testing::built_program("braid"), copy);
  const Finished ckpt = testing::run_program({copy, "ckpt", "ls", "x"});
  EXPECT_EQ(ckpt.exit_code, 1);
  EXPECT_THAT(ckpt.err, AllOf(HasSubstr("braid-tensors: No such file"), HasSubstr("keep it beside braid")));
  const Finished train = testing::run_program({copy, "train", BRAID_SOURCE_DIR "/recipes/tiny-vlm.yaml"});
  EXPECT_EQ(train.exit_code, 2);
  EXPECT_THAT(train.err, AllOf(HasSubstr("braid-tensors', which runs the ranks"), HasSubstr("beside braid")));
  EXPECT_EQ(testing::run_program({copy, "doctor", "--help"}).exit_code, 0);
}

TEST(Cli, VersionNamesWhatItIsBuiltOn) {
  const Finished version = braid({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, AllOf(ContainsRegex("braid [0-9]"), ContainsRegex("libtorch 2\\.11"), HasSubstr("CUDA "),
                                 HasSubstr("NCCL ")));
}

TEST(Cli, MisuseIsExitCodeTwoWithAHint) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{},
                                                                     {"fly"},
                                                                     {"run"},
                                                                     {"run", "-n", "0", "--", "true"},
                                                                     {"run", "-n", "two", "--", "true"},
                                                                     {"train"},
                                                                     {"plan", "show"},
                                                                     {"plan", "show", "no-such-file.yaml"},
                                                                     {"train", "no-such-file.yaml"},
                                                                     {"run", "-n", "1"},
                                                                     {"--version", "extra"}}) {
    const Finished run = braid(arguments);
    EXPECT_EQ(run.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_THAT(run.err, AllOf(HasSubstr("braid: "), HasSubstr("fix:"))) << ::testing::PrintToString(arguments);
    EXPECT_THAT(run.out, IsEmpty());
  }
}

TEST(Cli, ErrorsAreRedOnATerminalThatShowsColour) {
  const std::string command = testing::built_program("braid") + " train no-such-file.yaml";
  const std::string shown = testing::run_program({"script", "-qec", command, "/dev/null"}, {{"TERM", "xterm"}}).out;
  EXPECT_THAT(shown, HasSubstr("\033[1;31mbraid: cannot read 'no-such-file.yaml': No such file or directory\033[0m"));
  for (const std::map<std::string, std::string>& env :
       {std::map<std::string, std::string>{{"NO_COLOR", "1"}, {"TERM", "xterm"}}, {{"TERM", "dumb"}}})
    EXPECT_THAT(testing::run_program({"script", "-qec", command, "/dev/null"}, env).out,
                AllOf(HasSubstr("braid: cannot read"), Not(HasSubstr("\033["))));
}

// The terminal has 80 columns; files and pipes get unwrapped lines, which programs can search.
TEST(Cli, MessagesFitTheTerminal) {
  const TemporaryFolder folder;
  const std::string command = testing::built_program("braid") + " train " + folder.write("r.yaml", kShortRecipe);
  for (const char* flags : {" --llm-tp 3", " --llm-dp 64 --lr 1e999", " --train-iters 1"}) {
    const std::string shown = testing::run_program({"script", "-qec", command + flags, "/dev/null"}).out;
    std::string told = shown.substr(0, shown.find(" [20"));  // log lines have Megatron's format
    std::erase(told, '\r');
    for (const std::string& line : split(told, '\n')) EXPECT_LT(line.size(), 80u) << line;
  }
  const Finished piped = testing::run_program({"bash", "-c", command + " --llm-dp 64"});
  EXPECT_THAT(piped.err, ContainsRegex("where: command line, --llm-dp, against .*, train.global_batch\n"));
}

// Output that was cut off by a full disk must not look complete to a program that reads it.
TEST(Cli, OutputThatCannotBeWrittenIsAFailure) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe), log = folder.write("log", "nothing to see\n");
  for (const char* arguments :
       {"--version", "plan show $RECIPE --json", "model describe tiny-vlm --json", "doctor $LOG --json",
        "train $RECIPE --print-recipe", "launch slurm $RECIPE --gpus-per-node 0 --force --dry-run"}) {
    const std::string script =
        fmt::format("RECIPE={} LOG={}; {} {} >/dev/full", recipe, log, testing::built_program("braid"), arguments);
    const Finished run = testing::run_program({"bash", "-c", script});
    EXPECT_EQ(run.exit_code, 1) << arguments << "\n" << run.err;
    EXPECT_THAT(run.err, AllOf(HasSubstr("standard output is incomplete"), Not(HasSubstr("cannot write"))))
        << arguments;
  }
}

// In Braid's words, not in those of CLI11.
TEST(Cli, MisuseSaysWhereAndHowToFix) {
  const auto told = [](const std::vector<std::string>& arguments) {
    const Finished run = braid(arguments);
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.err, AllOf(HasSubstr("\n  where: command line\n"), HasSubstr("\n  fix:   ")));
    return run.err;
  };
  EXPECT_THAT(told({"plan"}), AllOf(HasSubstr("no subcommand is given"), HasSubstr("show, schedule")));
  EXPECT_THAT(told({"--hepl"}), AllOf(HasSubstr("braid has no option '--hepl'"), HasSubstr("did you mean '--help'?")));
  EXPECT_THAT(told({"plan", "show", "r.yaml", "--rank", "one"}), HasSubstr("--rank should be a number, not 'one'"));
  EXPECT_THAT(told({"launch", "interactive", "--nodes", "0"}),
              HasSubstr("--nodes should be a number greater than 0, not '0'\n"));
  EXPECT_THAT(told({"ckpt", "convert", "a", "b", "--files", "0"}),
              HasSubstr("--files should be a number from 1 to 4096"));
  EXPECT_THAT(told({"ckpt", "convert", "a", "b", "--naming", "module"}),
              AllOf(HasSubstr("--naming should be one of modules, nemotron, not 'module'\n"),
                    HasSubstr("did you mean 'modules'?")));
  EXPECT_THAT(told({"model", "describe", "tiny-vlm", "--topolgy", "tp=2"}),
              AllOf(HasSubstr("unknown option --topolgy"), HasSubstr("did you mean --topology?")));
  EXPECT_THAT(told({"model", "describe", "tiny-vlm", "one", "two"}), HasSubstr("unexpected argument 'one'"));
  EXPECT_THAT(told({"plan", "schedule", "r.yaml", "--svg", ""}), HasSubstr("--svg: its value is empty"));
  EXPECT_THAT(told({"plan", "show", "r.yaml", "--llm-tp"}), HasSubstr("write --llm-tp VALUE"));
  EXPECT_EQ(braid({"run", "-n", "1", "--", "echo", ""}).out, "[0] \n");
}

TEST(Cli, AMistypedSubcommandGetsASuggestion) {
  EXPECT_THAT(braid({"trian"}).err, AllOf(HasSubstr("no subcommand 'trian'"), HasSubstr("did you mean 'train'?")));
  EXPECT_THAT(braid({"launch", "locl"}).err,
              AllOf(HasSubstr("launch has no subcommand 'locl'"), HasSubstr("'local'?")));
}

}  // namespace
}  // namespace braid
