// Scripts run with stand-ins: what is recorded, what is executed, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "cluster/megatron/commands.h"
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
using Words = std::vector<std::string>;

class RunScript : public ::testing::Test {
 protected:
  ScriptRun run(const std::string& text, const std::string& arguments = "") const {
    const std::string path = folder_.write("my run.sh", text);
    return run_script(arguments.empty() ? path : "'" + path + "' " + arguments);
  }
  std::string refusal(const std::string& text) const {
    return error_of([&] { run(text); });
  }
  std::string started(const std::string& text) const { return started_command(run(text)); }

  testing::TemporaryFolder folder_;
};

TEST_F(RunScript, StandInsRecordTheirArgumentsAndDoNothing) {
  const ScriptRun run = this->run(
      "set -eux\nA=(--lr 'a  b' '' \"$1\")\nfor i in 1 2; do torchrun x.py \"${A[@]}\" $i; done\npython -c 'exit(7)'\n"
      "srun -n 2 torchrun never.py\n",
      "'c d'");
  std::vector<Words> calls;
  for (const RecordedCall& call : run.calls) calls.push_back(call.words);
  EXPECT_THAT(calls, ElementsAre(Words{"torchrun", "x.py", "--lr", "a  b", "", "c d", "1"},
                                 Words{"torchrun", "x.py", "--lr", "a  b", "", "c d", "2"},
                                 Words{"python", "-c", "exit(7)"}, Words{"srun", "-n", "2", "torchrun", "never.py"}));
  EXPECT_EQ(run.path, folder_.path() + "/my run.sh");
}

TEST_F(RunScript, TheFolderAndTheChangedVariablesAreRecorded) {
  const ScriptRun run = this->run("cd /; export A='x\ny' HOME=\"$HOME\"; B=1; MASTER_PORT=7 torchrun x.py\n");
  ASSERT_EQ(run.calls.size(), 1u);
  EXPECT_EQ(run.calls[0].folder, "/");
  EXPECT_THAT(run.calls[0].environment, ElementsAre(Pair("A", "x\ny"), Pair("MASTER_PORT", "7")));
  EXPECT_EQ(started_command(run), "cd /\nexport A='x\ny'\nexport MASTER_PORT=7\ntorchrun x.py\n");
}

// conda and virtual environments put their programs in front of PATH; scripts call others.
TEST_F(RunScript, RealProgramsAreNotReached) {
  const std::string real = folder_.path() + "/venv/bin";
  fs::create_directories(real);
  folder_.write("venv/bin/torchrun", "#!/bin/sh\ntouch " + folder_.path() + "/started\n");
  fs::permissions(real + "/torchrun", fs::perms::owner_all);
  folder_.write("inner.sh", "torchrun inner.py\n");
  const ScriptRun run = this->run("export PATH=" + real + ":$PATH\ntorchrun a.py\nbash '" + folder_.path() +
                                  "/inner.sh'\n(torchrun b.py)\n");
  ASSERT_EQ(run.calls.size(), 3u);
  EXPECT_THAT(run.calls[1].words, ElementsAre("torchrun", "inner.py"));
  EXPECT_FALSE(fs::exists(folder_.path() + "/started"));
  EXPECT_THAT(run.calls[0].environment.at("PATH"), AllOf(HasSubstr(real + ":"), Not(HasSubstr("braid-script"))));
  for (const char* start : {"exec", "env A=1", "exec env A=1 nice", "nohup", "timeout 5", "command",
                            "sh -c '\"$0\" \"$@\"'", "unset -f torchrun; nohup"})
    EXPECT_THAT(this->run("export PATH=" + real + ":$PATH\n" + start + " torchrun x.py").calls.at(0).words,
                ElementsAre("torchrun", "x.py"))
        << start;
  EXPECT_THAT(this->run("export PATH=" + real + ":$PATH\n$(which torchrun) x.py").calls.size(), 1u);
  for (const char* start : {"PATH={}:$PATH nohup", "env PATH={}:$PATH"})
    EXPECT_THAT(refusal(fmt::format(fmt::runtime(start), real) + " torchrun x.py"),
                HasSubstr("PATH is set for one command"))
        << start;
  EXPECT_FALSE(fs::exists(folder_.path() + "/started"));
}

TEST_F(RunScript, WhatRunsInTheBackgroundIsRecordedAndEnds) {
  const std::string ticks = folder_.path() + "/ticks";
  const ScriptRun run =
      this->run("(sleep 1; nohup torchrun x.py) &\nwhile echo >> " + ticks + "; do sleep 0.1; done &\n");
  ASSERT_EQ(run.calls.size(), 1u);
  const auto size = fs::file_size(ticks);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(fs::file_size(ticks), size);
}

TEST_F(RunScript, ASignalEndsTheScriptAndLeavesNothing) {
  const std::string ticks = folder_.write("ticks", ""), temporary = folder_.path() + "/tmp";
  fs::create_directories(temporary);
  const std::string script = folder_.write("endless.sh", "while echo >> " + ticks + "; do sleep 0.1; done\n");
  const pid_t braid = fork();
  if (braid == 0) {
    setenv("TMPDIR", temporary.c_str(), 1);
    run_script(script);
    _exit(0);
  }
  while (fs::file_size(ticks) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  kill(braid, SIGTERM);
  int status = 0;
  ASSERT_EQ(waitpid(braid, &status, 0), braid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  const auto size = fs::file_size(ticks);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(fs::file_size(ticks), size);
  EXPECT_TRUE(fs::is_empty(temporary));
}

TEST_F(RunScript, TheStartedCommandIsTheOneOfTorchrun) {
  EXPECT_EQ(started("python tool.py\ntorchrun x.py 'a b'\ntorchrun x.py 'a b'\n"), "torchrun x.py 'a b'\n");
  EXPECT_EQ(started("uv run python -m torch.distributed.run x.py"), "uv run python -m torch.distributed.run x.py\n");
  EXPECT_EQ(started("python train.py"), "python train.py\n");
  for (const char* text : {"torchrun a.py; torchrun b.py", "python a.py; python b.py"})
    EXPECT_THAT(error_of([&] { started(text); }),
                AllOf(HasSubstr("starts several programs"), HasSubstr("a.py"), HasSubstr("b.py")))
        << text;
}

TEST_F(RunScript, FailuresAreExplained) {
  EXPECT_THAT(refusal("torchrun x.py; echo no data >&2; exit 3"),
              AllOf(HasSubstr("my run.sh' ended with exit code 3: 'no data'"), HasSubstr("where: --run-script"),
                    HasSubstr("fix:")));
  EXPECT_THAT(refusal("set -u; torchrun $NO_SUCH_VARIABLE"), HasSubstr("NO_SUCH_VARIABLE"));
  EXPECT_THAT(refusal("echo nothing"),
              AllOf(HasSubstr("called neither python nor torchrun"), HasSubstr("by its name")));
  EXPECT_THAT(error_of([] { run_script("no-such-file arguments"); }), HasSubstr("cannot read 'no-such-file'"));
  EXPECT_THAT(error_of([] { run_script("-"); }), HasSubstr("cannot be read from standard input"));
  const std::string slow = folder_.write("slow.sh", "torchrun x.py; sleep 100 | cat");
  EXPECT_THAT(error_of([&] { run_script(slow, std::chrono::seconds(1)); }), HasSubstr("did not end within 1 second"));
}

}  // namespace
}  // namespace braid
