// The conversion of a single-node command. tests/cluster/slurm/script_test.cpp runs the results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cluster/megatron/commands.h"
#include "cluster/slurm/script.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Finished;
using ::testing::HasSubstr;

std::string for_ranks(const std::string& text) { return rank_command(text, "ENVIRONMENT").text; }
std::string for_nodes(const std::string& text) { return node_command(text, "WORLD").text; }

TEST(RankCommand, OnlyTheWordsOfTorchrunAreReplaced) {
  EXPECT_EQ(for_ranks("uv run python -m torch.distributed.run --nproc_per_node=8 pretrain_gpt.py --x  'a'"),
            "uv run python -u pretrain_gpt.py --x  'a'");
  EXPECT_EQ(for_ranks("torchrun x.py"), "python3 -u x.py");
  EXPECT_EQ(for_ranks("/venv/bin/torchrun x.py"), "/venv/bin/python3 -u x.py");
  EXPECT_EQ(for_ranks("\"$V/bin/torchrun\" x.py"), "\"$V/bin/python3\" -u x.py");
  EXPECT_EQ(for_ranks("A=1  torchrun \\\n -t 3 x.py \\\n  y # z\n"), "A=1  python3 -u x.py \\\n  y # z\n");
  EXPECT_EQ(for_ranks("nsys profile -o out torchrun x.py"), "nsys profile -o out python3 -u x.py");
  EXPECT_EQ(for_ranks("torchrun --nproc_per_node=8 -- x.py -- y"), "python3 -u x.py -- y");
  EXPECT_EQ(for_ranks("echo torchrun x.py; which torchrun"), "echo torchrun x.py; which torchrun");
  EXPECT_EQ(for_ranks("python -m torch.distributed.launch x.py a"), "python -u x.py --local-rank=\"$LOCAL_RANK\" a");
}

TEST(RankCommand, TorchrunPerNodeGetsItsWorldFromOutside) {
  EXPECT_EQ(for_nodes("torchrun --standalone --nproc_per_node=8 x.py a"), "torchrun WORLD x.py a");
  EXPECT_EQ(for_nodes("python -W ignore -m torch.distributed.run --tee=3 -m x a"),
            "python -W ignore -m torch.distributed.run WORLD --tee=3 -m x a");
  EXPECT_EQ(for_nodes("python -u x.py a"), "python -m torch.distributed.run WORLD x.py a");
  EXPECT_EQ(for_nodes("python -O x.py a"), "python -m torch.distributed.run WORLD --no-python python -O x.py a");
  EXPECT_EQ(for_nodes("cd y && exec ./prog a"), "cd y && exec torchrun WORLD --no-python ./prog a");
  EXPECT_EQ(for_nodes("uv run --extra a x.py b"), "uv run --extra a torchrun WORLD x.py b");
  EXPECT_EQ(for_nodes("uv run --extra a prog b"), "uv run --extra a torchrun WORLD --no-python prog b");
}

TEST(RankCommand, ScriptsForOneNodeSetVariablesThatMustNotReachTheRanks) {
  EXPECT_EQ(for_ranks("MASTER_ADDR=localhost\ntorchrun x.py"),
            "MASTER_ADDR=localhost\nenv ENVIRONMENT python3 -u x.py");
  EXPECT_EQ(for_ranks("export WORLD_SIZE=8\nuv run torchrun x.py"),
            "export WORLD_SIZE=8\nuv run env ENVIRONMENT python3 -u x.py");
  EXPECT_EQ(for_ranks("export WORLD_SIZE=1; exec python x.py"),
            "export WORLD_SIZE=1; exec env ENVIRONMENT python x.py");
  EXPECT_EQ(for_ranks("env RANK=0 python x.py"), "env RANK=0 env ENVIRONMENT python x.py");
  EXPECT_EQ(for_ranks("RANK=0 ./prog"), "RANK=0 env ENVIRONMENT ./prog");
  EXPECT_EQ(for_ranks("RANK=0; function_or_program"), "RANK=0; function_or_program");
}

TEST(RankCommand, ReportsWhatItFound) {
  const RankCommand command =
      rank_command("torchrun --nnodes 2 --nproc-per-node=8 --max-restarts 3 --tee=3 dir/pretrain_gpt.py", "");
  EXPECT_EQ(command.program, "pretrain_gpt");
  EXPECT_EQ(command.script, "dir/pretrain_gpt.py");
  EXPECT_EQ(command.ranks_per_node, 8);
  EXPECT_EQ(command.nodes, 2);
  EXPECT_TRUE(command.had_torchrun);
  EXPECT_THAT(command.left_out, ElementsAre("--max-restarts 3", "--tee=3"));
  EXPECT_EQ(rank_command("torchrun --nproc_per_node=gpu x.py", "").ranks_per_node, std::nullopt);
  EXPECT_EQ(rank_command("torchrun --nproc_per_node=$N x.py", "").ranks_per_node, std::nullopt);
  EXPECT_EQ(rank_command("python -m a.b.train x", "").program, "train");
  EXPECT_EQ(rank_command("cd x && ./run.sh", "").program, "run.sh");
}

TEST(Phases, WhatMustHappenOnceIsNotForEveryRank) {
  const std::vector<std::array<const char*, 3>> cases = {
      {"torchrun x.py", "", "torchrun x.py"},
      {"rm -rf a; torchrun x.py", "once rm -rf a;", "true; torchrun x.py"},
      {"wandb login >/dev/null\ntorchrun x.py", "once wandb login >/dev/null\n", "true >/dev/null\ntorchrun x.py"},
      {"cd a && uv sync && torchrun x.py", "cd a && once uv sync", "cd a && true && torchrun x.py"},
      {"if [ -d a ]; then rm -rf a; fi; ./x", "if [ -d a ]; then once rm -rf a; fi;",
       "if [ -d a ]; then true; fi; ./x"},
      {"for d in a b; do\n  rm -r $d\ndone\npython x.py", "for d in a b; do\n  once rm -r $d\ndone\n",
       "for d in a b; do\n  true\ndone\npython x.py"},
      {"wandb login <<E\nkey\nE\n./x", "once wandb login <<E\nkey\nE\n", "true <<E\nkey\nE\n./x"},
      {"case $A in a) rm -rf a;; esac\n(uv sync; ls)\n./x", "case $A in a) once rm -rf a;; esac\n(once uv sync; ls)\n",
       "case $A in a) true;; esac\n(true; ls)\n./x"},
      {"uv run x.py", "once uv sync --inexact", "uv run --no-sync x.py"},
      {"uv run --extra a --frozen x.py", "once uv sync --inexact --extra a --frozen",
       "uv run --no-sync --extra a --frozen x.py"},
      {"cd a; { A=1 uv run x.py; } | tee l", "cd a; \nA=1 once uv sync --inexact",
       "cd a; { A=1 uv run --no-sync x.py; } | tee l"},
      {"uv run a.py && uv run --group g torchrun x.py",
       "uv run a.py && \nonce uv sync --inexact\nonce uv sync --inexact --group g",
       "uv run --no-sync a.py && uv run --no-sync --group g torchrun x.py"},
      {"uv run --no-sync x.py", "", "uv run --no-sync x.py"},
      {"uv run --script x.py", "", "uv run --script x.py"},
      {"uv sync", "", "uv sync"},
      {"rm -f a; rm -rf /tmp/a /dev/shm/b b$RANK; torchrun x.py", "",
       "rm -f a; rm -rf /tmp/a /dev/shm/b b$RANK; torchrun x.py"},
  };
  for (const auto& [text, once, each] : cases) {
    EXPECT_EQ(phases_of(text).once, once) << text;
    EXPECT_EQ(phases_of(text).each, each) << text;
  }
  EXPECT_EQ(without_once("export A=1; uv sync; if b; then wandb login; fi"), "export A=1; true; if b; then true; fi");
  EXPECT_EQ(without_once("uv sync\nrm -rf a"), "");
}

TEST(RankCommand, TheNameOfAProgramIsKnownWhateverItsLauncher) {
  EXPECT_EQ(program_name("torchrun --virtual-local-rank dir/train.py"), "train");
  EXPECT_EQ(program_name("python -m a.b.train x"), "train");
  EXPECT_EQ(program_name("./a; ./b"), "");
}

template <class Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

// Shell text of nested constructs, at random.
std::string statement(std::mt19937& random, int depth) {
  static const std::vector<std::string> simple = {"rm -r a", "uv sync >l", "uv run y.py 2>&1", "wandb login <<< k",
                                                  "ls",      "A=1",        "B=2 uv run z"};
  const auto inner = [&] { return statement(random, depth - 1); };
  if (depth == 0) return simple[random() % simple.size()];
  switch (random() % 11) {
    case 0: return "if ls; then " + inner() + "\nelse " + inner() + "; fi";
    case 1: return "for i in a b; do " + inner() + "; done";
    case 2: return "while false\ndo\n" + inner() + "\ndone >l";
    case 3: return "case $A in a) " + inner() + ";; *) " + inner() + "\nesac";
    case 4: return "{ " + inner() + "; }";
    case 5: return "(" + inner() + ")";
    case 6: return inner() + " && " + inner();
    case 7: return inner() + " |\n " + inner();
    case 8: return inner() + "; " + inner();
    case 9: return "f() {\n" + inner() + "\n}";
    default: return inner() + " # c (\n" + inner();
  }
}

// What bash can read stays readable.
TEST(Phases, BashCanReadBothParts) {
  const testing::TemporaryFolder folder;
  std::mt19937 random(5);
  std::string all;
  int divided = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const std::string text =
        statement(random, 3) + "\n" + statement(random, 2) + "\n" + statement(random, 1) + "\n./main";
    Phases phases;
    try {
      phases = phases_of(text);
    } catch (const ConfigError&) {
      continue;
    }
    divided += !phases.once.empty();
    all += fmt::format("once_{0}() {{\n:\n{1}\n}}\neach_{0}() {{\n{2}\n}}\n", trial, phases.once, phases.each);
    EXPECT_EQ(phases_of(phases.each).once, "") << text;
  }
  EXPECT_GT(divided, 500);
  const Finished checked = testing::run_program({"bash", "-n", folder.write("all.sh", all)});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
}

TEST(Phases, RefusesWhatCannotBeMoved) {
  EXPECT_THAT(error_of([] { phases_of("torchrun x.py; rm -rf nemo_experiments"); }),
              AllOf(HasSubstr("every rank would run 'rm -rf nemo_experiments'"), HasSubstr("when the job has ended")));
  EXPECT_THAT(error_of([] { phases_of("for i in 1 2; do rm -rf a; torchrun x.py; done"); }), HasSubstr("--warm-up"));
  EXPECT_THAT(error_of([] { phases_of("{ uv sync; ./x; } | tee log"); }), HasSubstr("--warm-up"));
}

TEST(RankCommand, RefusesWhatItCannotDetermine) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"torchrun $ARGS train.py",
       {"$ARGS", "only the shell can expand", "--run-script", "\"$ARGS\" in quotes if it is the program"}},
      {"torchrun \"${ARGS[@]}\" train.py", {"${ARGS[@]}", "only the shell can expand", "--run-script"}},
      {"ARGS=\"$ARGS --nnodes 1\"; torchrun $ARGS train.py", {"$ARGS", "only the shell can expand"}},
      {"A=$B B=$A; torchrun $A train.py", {"only the shell can expand"}},
      {"torchrun --nproc-pernode=8 x.py", {"--nproc-pernode", "did you mean --nproc-per-node?"}},
      {"torchrun --nproc_per_node=8", {"no program to run"}},
      {"torchrun --rdzv x.py", {"no option --rdzv, or several that begin with it"}},
      {"torchrun --standalone=1 x.py", {"takes no value"}},
      {"torchrun a.py; python -m torch.distributed.run b.py", {"twice", "torchrun a.py", "torch.distributed.run b.py"}},
      {"srun -n 8 python x.py", {"srun starts ranks itself", "give only the command that it starts"}},
      {"exec mpirun -n 8 x", {"mpirun starts ranks itself"}},
      {"accelerate launch x.py", {"accelerate starts ranks itself"}},
      {"braid run -n 8 -- python x.py", {"braid starts ranks itself"}},
      {"sbatch x.sh", {"sbatch starts ranks itself"}},
      {"LAUNCHER='python -m torch.distributed.run'; $LAUNCHER x.py", {"through a variable: LAUNCHER="}},
      {"cmd=\"torchrun $ARGS x.py\"; eval $cmd", {"through a variable: cmd="}},
      {"eval 'torchrun x.py'", {"through eval", "write the torchrun call directly"}},
      {"bash -lc 'cd x && torchrun x.py'", {"through bash"}},
      {"torchrun --virtual-local-rank x.py", {"--style torchrun"}},
  };
  for (const auto& [text, parts] : cases) {
    const std::string error = error_of([&text = text] { rank_command(text, ""); });
    for (const std::string& part : parts) EXPECT_THAT(error, HasSubstr(part)) << text;
  }
  EXPECT_THAT(error_of([] { node_command("./a; ./b", ""); }), HasSubstr("which of the commands"));
}

// Every rank of the job would end at once with success.
TEST(RankCommand, RefusesAProgramInTheBackground) {
  for (const char* text : {"nohup torchrun x.py &", "torchrun x.py 2>&1 | tee x.log &", "cd x && ./prog & \n",
                           "{ torchrun x.py; } > x.log & echo started", "(cd x; torchrun x.py) &",
                           "torchrun x.py & disown", "torchrun x.py & wait"})
    for (const auto& convert : {for_ranks, for_nodes})
      EXPECT_THAT(error_of([&] { convert(text); }), AllOf(HasSubstr("in the background"), HasSubstr("wait \"$!\"")))
          << text;
  for (const char* text : {"nvidia-smi dmon & torchrun x.py", "torchrun x.py &\npid=$!\nwait \"$pid\"",
                           "torchrun x.py &>x.log", "torchrun x.py 2>&1", "true && torchrun x.py",
                           "torchrun x.py; ls &", "case $A in a) ls ;;& b) torchrun x.py ;& esac", "torchrun x.py '&'"})
    EXPECT_EQ(error_of([&] { for_ranks(text); }), "no error") << text;
}

TEST(RankCommand, KnowsPipes) {
  for (const char* text : {"torchrun x.py | tee log", "(torchrun x.py) |& cat", "torchrun x.py |\n  cat"})
    EXPECT_TRUE(rank_command(text, "").has_pipe) << text;
  for (const char* text : {"torchrun x.py || ls", "torchrun x.py '|' cat", "torchrun x.py >|log", "a=$(ls | cat); x"})
    EXPECT_FALSE(rank_command(text, "").has_pipe) << text;
}

TEST(RankCommand, KnowsFilesThatAllRanksWriteTo) {
  EXPECT_THAT(shared_outputs("torchrun x.py 2>&1 | tee -a run.log"), ElementsAre("run.log"));
  EXPECT_THAT(shared_outputs("./prog | tee \"$DIR/run.log\""), ElementsAre("\"$DIR/run.log\""));
  EXPECT_THAT(shared_outputs("torchrun x.py >out.log 2>err.log"), ElementsAre("out.log", "err.log"));
  EXPECT_THAT(shared_outputs("exec &>>run.log; python x.py"), ElementsAre("run.log"));
  EXPECT_THAT(shared_outputs("{ date; torchrun x.py; } >& run.log"), ElementsAre("run.log"));
  for (const char* text : {"torchrun x.py | tee run_$SLURM_PROCID.log", "F=log.$RANK; torchrun x.py | tee $F",
                           "cat >x.yaml; torchrun x.py", "torchrun x.py >/dev/null 2>&1 <in", "torchrun x.py | tee",
                           "torchrun x.py --tee run.log"})
    EXPECT_THAT(shared_outputs(text), ElementsAre()) << text;
}

TEST(RankCommand, ValuesOfSecretsAreRefused) {
  for (const char* text :
       {"HF_TOKEN=abc torchrun x.py", "export WANDB_API_KEY='abc'; x", "env MY_SECRET=a x", "DB_PASSWORD=a x"})
    EXPECT_THAT(error_of([text] { refuse_secrets(text); }), AllOf(HasSubstr("value of "), HasSubstr("--secret ")))
        << text;
  for (const char* text :
       {"HF_TOKEN=$TOKEN x", "HF_TOKEN= x", "TOKENIZERS_PARALLELISM=false x", "TRAIN_TOKENS=300 x", "x --pad_token=0"})
    EXPECT_EQ(error_of([text] { refuse_secrets(text); }), "no error") << text;
}

TEST(RankCommand, ValuesOfSecretOptionsAreRefused) {
  for (const char* text :
       {"x --api-key=abc", "x --wandb-key abc", "x --token 'a b'", "x --hf-token a$B", "x --hf_token=a",
        "x --password=a1", "x logger.wandb.api_key=abc", "x +hub.client_secret=abc"})
    EXPECT_THAT(error_of([text] { refuse_secrets(text); }), AllOf(HasSubstr("value of "), HasSubstr("--secret ")))
        << text;
  for (const char* text :
       {"x --api-key=\"$KEY\"", "x --hf-token $HF_TOKEN --bf16", "x --token --bf16", "x --use-auth-token true",
        "x --tokenizer-model abc", "x --max-tokens 4096", "x --token-id 128009", "x --image-token '<image>'",
        "x --eos-token=abc", "x --password /run/secrets/db", "x --key abc", "x --api-key EMPTY", "x data.token=abc",
        "x --sort-key name"})
    EXPECT_EQ(error_of([text] { refuse_secrets(text); }), "no error") << text;
}

TEST(RankCommand, WhatLooksLikeATokenIsRefused) {
  for (const char* text :
       {"x hf_abcdefghijklmnopqrstuvwx", "x --a=ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "x 'github_pat_11ABCDEFG0abcdefghijkl_mn'", "x sk-proj-0123456789abcdefghij",
        "cat <<E\nglpat-0123456789abcdefghij\nE", "x xoxb-1234567890-abc", "x AKIAIOSFODNN7EXAMPLE"}) {
    const std::string error = error_of([text] { refuse_secrets(text); });
    EXPECT_THAT(error, AllOf(HasSubstr("the command contains a"), HasSubstr("--secret NAME"))) << text;
    EXPECT_EQ(error.find("0123456789"), error.npos) << "the token itself is printed";
  }
  for (const char* text :
       {"x hf_checkpoint_converted_to_megatron", "x task-0123456789abcdefghijklm", "x --hf_model_name a/b",
        "x sk-learn-and-some-more-words-of-it", "x out/AKIA", "x my_hf_0123456789abcdefghijklmnop"})
    EXPECT_EQ(error_of([text] { refuse_secrets(text); }), "no error") << text;
}

TEST(RankCommand, ValuesOfTheCallersSecretsAreRefused) {
  ::setenv("BRAID_TEST_TOKEN", "correct horse", 1);
  ::setenv("BRAID_TEST_SECRET", "short", 1);
  ::setenv("BRAID_TEST_PASSWORD_FILE", "/run/secrets/password", 1);
  const std::string error = error_of([] { refuse_secrets("x --a 'the correct horse'"); });
  EXPECT_THAT(error, AllOf(HasSubstr("the value of your BRAID_TEST_TOKEN"), HasSubstr("--secret NAME")));
  EXPECT_EQ(error.find("horse"), error.npos);
  EXPECT_EQ(error_of([] { refuse_secrets("x --a shorter /run/secrets/password \"$BRAID_TEST_TOKEN\""); }), "no error");
  for (const char* name : {"BRAID_TEST_TOKEN", "BRAID_TEST_SECRET", "BRAID_TEST_PASSWORD_FILE"}) ::unsetenv(name);
}

TEST(RankCommand, OneWordWithBlanksIsShellText) {
  EXPECT_EQ(command_text({"a b"}), "a b");
  EXPECT_EQ(command_text({"a b", "c d"}), "'a b' 'c d'");
  EXPECT_EQ(command_text({"a"}), "a");
  EXPECT_EQ(command_text({"A=x y", "B=", "prog", "C=1"}), "A='x y' B='' prog 'C=1'");
}

}  // namespace
}  // namespace braid
