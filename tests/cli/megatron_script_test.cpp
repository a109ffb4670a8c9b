// Training commands in scripts for Megatron-LM, which are run with stand-ins: variables, functions, branches,
// launchers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cli/from_megatron_support.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::converted;
using testing::converted_script;
using testing::error_of;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::refusal;
using testing::squeezed;
using testing::TemporaryFolder;

std::string recipe_of(const std::string& script) { return squeezed(converted_script(script)); }

// A command line has only words; what needs a shell is refused with the way to read it.
TEST(MegatronScript, ACommandLineIsNotAScript) {
  for (const char* text :
       {"torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py --lr 1", "--lr $LR", "torchrun x.py --save \"$ROOT/ckpt\"",
        "A=(--lr 3e-4)", "--save ~/ckpt", "--load /data/iter_*", "python prepare.py --lr 7\ntorchrun x.py --lr 1e-3",
        "for i in 1 2; do torchrun x.py --lr 1; done", "torchrun x.py --lr $(cat lr)"})
    EXPECT_THAT(refusal(text), AllOf(HasSubstr("where: --from-megatron"), HasSubstr("--run-script"))) << text;
  EXPECT_THAT(refusal("torchrun x.py --lr $LR"), HasSubstr("only a shell can expand '$LR'"));
}

TEST(MegatronScript, RanksAreThoseOfTheLauncher) {
  const std::string train = " x.py --tensor-model-parallel-size 2 --micro-batch-size 1 ";
  for (const std::string launcher :
       {"srun -n 16 python", "srun -N2 --ntasks-per-node=8 --label", "mpirun -np 16 -x A python",
        "srun --ntasks 16 ./own", "srun --nodes 2 --ntasks-per-node 1 torchrun --nproc-per-node 8"}) {
    EXPECT_THAT(squeezed(converted(launcher + train)), HasSubstr(" dp: 8\n")) << launcher;
    EXPECT_THAT(recipe_of(launcher + train), HasSubstr(" dp: 8\n")) << launcher;
  }
  EXPECT_THAT(
      recipe_of("ARGS=(\n  --tensor-model-parallel-size 2  # of 8\n  --micro-batch-size 1\n)\nMORE=(--lr 3e-4)\n"
                "srun -n 16 python x.py \"${ARGS[@]}\" ${MORE[@]} ${OTHER[@]} --bf16\n"),
      AllOf(HasSubstr(" dp: 8\n"), HasSubstr("lr: 3e-4"), HasSubstr("tp: 2 ")));
  EXPECT_THAT(
      recipe_of("EVAL=(--eval-iters 7)\nif [ $BIG ]; then SIZE=(--lr 1); else SIZE=(--lr 2); "
                "fi\nREST=\"--tensor-model-parallel-size 2 "
                "--micro-batch-size 1\"\nALL=($REST --train-iters 3)\npython x.py ${SIZE[@]} ${ALL[@]} --bf16\n"),
      AllOf(HasSubstr("tp: 2 "), HasSubstr("iterations: 3"), HasSubstr("lr: 2 "), Not(HasSubstr("eval_iters: 7")),
            Not(HasSubstr("lr: 1 "))));
  for (const char* count : {"gpu", "auto"})
    EXPECT_THAT(squeezed(converted(std::string("torchrun --nproc-per-node ") + count + train)),
                AllOf(HasSubstr(std::string("'torchrun --nproc-per-node ") + count + "' does not give"),
                      HasSubstr(" dp: 1\n")));
  EXPECT_THAT(squeezed(converted("torchrun --nproc-per-node 8" + train + "--llm-dp 3")),
              HasSubstr("6 ranks, which follow from the sizes below: 'torchrun --nproc-per-node 8' starts 8"));
  EXPECT_THAT(squeezed(converted("torchrun --nproc-per-node 10" + train + "--encoder-dp 2")), HasSubstr(" dp: 4\n"));
}

TEST(MegatronScript, TheCommandWithMostFlagsTrains) {
  EXPECT_THAT(recipe_of("python prepare.py --lr 7\ntorchrun --nproc-per-node 2 x.py --lr 1e-3 --bf16\n"
                        "python report.py --lr 3\n"),
              AllOf(HasSubstr("lr: 1e-3"), HasSubstr("python, another command"), HasSubstr(" dp: 2\n")));
  EXPECT_THAT(recipe_of("python x.py --lr 1e-3\nsrun --foo bar\n"), HasSubstr("srun, another command"));
  EXPECT_THAT(recipe_of("for i in 1 2; do torchrun x.py --lr 1e-3; done"), Not(HasSubstr("another")));
  EXPECT_THAT(error_of([] { converted_script("torchrun x.py --lr 1e-3\ntorchrun y.py --lr 2e-3\n"); }),
              AllOf(HasSubstr("several training commands: 'torchrun x.py --lr 1e-3' and 'torchrun y.py --lr 2e-3'"),
                    HasSubstr("where: --run-script")));
  EXPECT_THAT(error_of([] { converted_script("python x.py\n"); }), HasSubstr("no command with flags"));
}

// Under sbatch, the script does not contain the number of nodes.
TEST(MegatronScript, AnUnknownNumberOfRanksIsNotGuessed) {
  const std::string train =
      " x.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --hidden-size 64 "
      "--num-attention-heads 8 --num-layers 4 --untie-embeddings-and-output-weights --vocab-size 512 --seq-length 128";
  for (const char* launcher : {"srun torchrun --nproc-per-node 8", "srun --ntasks-per-node=8 python",
                               "torchrun --nproc-per-node 8 --nnodes 1:4"})
    EXPECT_THAT(squeezed(converted(launcher + train)), HasSubstr("does not give the number of ranks")) << launcher;
}

TEST(MegatronScript, SrunInheritsWhatSbatchIsTold) {
  const std::string train = " x.py --tensor-model-parallel-size 2 --micro-batch-size 1 --bf16";
  const std::string head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node 8\n\nset -e\n#SBATCH -N 7\n";
  EXPECT_THAT(recipe_of(head + "srun python" + train), HasSubstr(" dp: 8\n"));
  EXPECT_THAT(recipe_of(head + "srun -N 4 python" + train), HasSubstr(" dp: 16\n"));
  EXPECT_THAT(recipe_of("#!/bin/bash\n \n#SBATCH\t-N 4\nsrun -n 1 torchrun --nproc-per-node 8" + train),
              HasSubstr(" dp: 4\n"));  // one torchrun, on one of the nodes
  EXPECT_THAT(recipe_of("#SBATCH\t-N 4\nsrun torchrun --nproc-per-node 8" + train), HasSubstr(" dp: 16\n"));
  EXPECT_THAT(recipe_of("#SBATCH -N2\nsrun torchrun --nproc-per-node 8" + train), HasSubstr(" dp: 8\n"));
}

TEST(MegatronScript, BranchesAreThoseThatAreTaken) {
  EXPECT_THAT(
      recipe_of("ARGS=\"--lr 1e-3 --micro-batch-size 1\"\nif [ $DEBUG ]; then ARGS=\"$ARGS --train-iters 7\"; TP=4\n"
                "else ARGS+=\" --train-iters 8\"; fi\n[ $SP ] && ARGS=\"$ARGS --seed 5\"\n"
                "case $X in a) ARGS=\"$ARGS --seed 6\";; esac\nfor i in 1 2; do MORE=(--bf16); "
                "done\nARGS=\"$ARGS --seed 9\"\n"
                "torchrun x.py $ARGS ${MORE[@]} --tensor-model-parallel-size ${TP:-2}\n"),
      AllOf(HasSubstr("lr: 1e-3"), HasSubstr("seed: 9 "), HasSubstr("iterations: 8"), HasSubstr("dtype: bfloat16"),
            HasSubstr("tp: 2 "), Not(HasSubstr("Left out"))));
}

TEST(MegatronScript, TextForAShellIsRead) {
  for (const char* shell : {"srun --label bash -c ", "/bin/sh -c ", "srun -l bash -lc "})
    EXPECT_THAT(recipe_of("#SBATCH --nodes=2\nARGS=\"--lr 1e-3 --micro-batch-size 1\"\n" + std::string(shell) +
                          "\"cd / && torchrun --nproc-per-node 8 --nnodes 2 \\\n x.py $ARGS --bf16\"\n"),
                AllOf(HasSubstr("lr: 1e-3"), HasSubstr(" dp: 16\n"), HasSubstr("bfloat16"), Not(HasSubstr("Left out"))))
        << shell;
}

TEST(MegatronScript, ACommandInAVariableIsReadInAShell) {
  EXPECT_THAT(recipe_of("#SBATCH -N 4 --ntasks-per-node=8\nRUN=\"python -u x.py --lr 1e-3 --bf16\"\n"
                        "srun --output=x.log bash -c \"${RUN}\"\n"),
              AllOf(HasSubstr("lr: 1e-3"), HasSubstr("bfloat16"), HasSubstr(" dp: 32\n")));
}

TEST(MegatronScript, AWrappedJobIsRead) {
  for (const char* wrap : {"--wrap=", "--wrap "})
    EXPECT_THAT(recipe_of("sbatch --nodes=2 -A x " + std::string(wrap) +
                          "\"srun torchrun --nproc-per-node 8 x.py --micro-batch-size 1 --lr 1e-3\"\n"),
                AllOf(HasSubstr("lr: 1e-3"), HasSubstr(" dp: 16\n"), Not(HasSubstr("Left out"))));
  EXPECT_THAT(recipe_of("H=3\nsbatch --wrap=\"module load x; srun torchrun --nproc-per-node 8 x.py --seed $H "
                        "--save \\$OUT/c\" --nodes=2\nsbatch --wrap=\"srun python z.py --seed 1\"\n"),
              AllOf(HasSubstr("seed: 3"), HasSubstr(" dp: 16\n"), HasSubstr("# --save $OUT/c\n")));
}

TEST(MegatronScript, VariablesHaveTheValuesOfTheCall) {
  for (const char* change :
       {"let TP=TP*2", "((TP *= 2))", "eval \"TP=4\"", "read -r TP PP < <(echo 4 2)", "printf -v TP %d 4",
        "for TP in 4; do :; done", "TP[0]=4", "setv() { declare -n r=$1; r=4; }; setv TP", "TP=${TP/2/4}"})
    EXPECT_THAT(
        recipe_of("TP=2\n" + std::string(change) + "\ntorchrun x.py --lr 1e-3 --tensor-model-parallel-size $TP\n"),
        HasSubstr("tp: 4"))
        << change;
  for (const char* change : {"ARGS=${ARGS/6e-4/2e-4}", "ARGS=$(echo \"$ARGS\" | sed s/6/2/)",
                             "mapfile -t ARGS < <(printf '%s\\n' --lr 2e-4)"})
    EXPECT_THAT(recipe_of("ARGS=\"--lr 6e-4\"\n" + std::string(change) + "\ntorchrun x.py ${ARGS[@]} --bf16\n"),
                AllOf(HasSubstr("lr: 2e-4"), Not(HasSubstr("lr: 6e-4"))))
        << change;
}

TEST(MegatronScript, AFunctionHasTheVariablesOfItsCall) {
  EXPECT_THAT(
      recipe_of("ARGS=\"--lr 1e-3\"\nTP=2\ntrain() {\n  torchrun x.py $ARGS --tensor-model-parallel-size $TP $MORE\n}\n"
                "function more { MORE=\"--micro-batch-size 3\"; }\nTP=4\nARGS=\"$ARGS --bf16\"\nmore\ntrain\n"),
      AllOf(HasSubstr("lr: 1e-3"), HasSubstr("bfloat16"), HasSubstr("micro_batch: 3"), HasSubstr("tp: 4 ")));
  EXPECT_THAT(recipe_of("train() (\n torchrun x.py $ARGS )\nARGS=\"--lr 1e-3\"\nARGS=\"$ARGS --bf16\"\ntrain\n"),
              AllOf(HasSubstr("lr: 1e-3"), HasSubstr("bfloat16")));
  const TemporaryFolder folder;  // the caller names the function
  const std::string script = folder.write(
      "run.sh", "launch() { torchrun x.py --lr 1e-3 --seed ${SEED:-1}; }\nmain() { SEED=8; launch; }\n\"$@\"\n");
  EXPECT_THAT(squeezed(converted(read_megatron_command(run_script("'" + script + "' main")))), HasSubstr("seed: 8"));
}

TEST(MegatronScript, AVariableMayBeExtendedByItself) {
  EXPECT_THAT(
      recipe_of(
          "ARGS=\"--lr 1e-3\"\nARGS=\"${ARGS:-} --bf16\"\nARGS=\"$ARGS --seed 7\"\ndeclare -a MORE=(--train-iters 3)\n"
          "MORE=(\"${MORE[@]}\" --micro-batch-size 2)\ntorchrun x.py $ARGS \"${MORE[@]}\"\n"),
      AllOf(HasSubstr("lr: 1e-3"), HasSubstr("bfloat16"), HasSubstr("seed: 7"), HasSubstr("iterations: 3"),
            HasSubstr("micro_batch: 2"), Not(HasSubstr("which is not used"))));
}

TEST(MegatronScript, VariablesAndDefaultsAreExpanded) {
  EXPECT_THAT(recipe_of("GPUS=8\nTITLE=\"a (b\"\nexport TP=2\nNAME=\"my run\"\nROOT=$1\nOUT=/ckpt/$NAME\nif [ $X ]; "
                        "then PP=2; else PP=1; fi\n"
                        "ARGS=(--tensor-model-parallel-size $TP --save \"${OUT}_tp$TP\" --load $ROOT/x --lr ${LR:-1} "
                        "--pipeline-model-parallel-size $PP)\n"
                        "DIST=\"--nproc_per_node $GPUS --nnodes 1\"\ntorchrun $DIST x.py \"${ARGS[@]}\" --bf16\n"),
              AllOf(HasSubstr(" dp: 4\n"), HasSubstr("tp: 2 "), HasSubstr("pp: 1 "),
                    HasSubstr("save: \"/ckpt/my run_tp2\" "), HasSubstr("load: /x "), HasSubstr("lr: 1 ")));
  EXPECT_THAT(
      recipe_of("TP=${TP:-2}\nSET=3\ntorchrun --nproc-per-node ${GPUS:-8} x.py --tensor-model-parallel-size $TP "
                "--train-iters ${SET:-9} --bf16 --micro-batch-size ${MBS:-1} --lr ${LR-1}\n"),
      AllOf(HasSubstr("tp: 2 "), HasSubstr(" dp: 4\n"), HasSubstr("iterations: 3"), HasSubstr("lr: 1 ")));
}

// As in Megatron's own script for Llama 3 8B, which gives the size in both branches of a condition.
TEST(MegatronScript, TheVocabularyIsThatOfTheBranchTaken) {
  const std::string script =
      "A=()\nif [[ $T == MOCK ]]; then\n A+=(\"--mock-data\" --vocab-size 128256)\nelse\n A+=(--vocab-size "
      "128256)\nfi\n"
      "torchrun x.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 "
      "--tensor-model-parallel-size 2 ${A[@]}\n";
  EXPECT_THAT(recipe_of(script), HasSubstr("vocab: 128256 # --vocab-size"));
}

// On the command line: a file with a command, a script to run, or flags as one word.
TEST(MegatronScript, FilesAreReadWhereTheirPathIsGiven) {
  const TemporaryFolder folder;
  const std::string script =
      folder.write("my run.sh",
                   "#!/bin/bash\nA=(--lr 3e-4 --num-layers 2 --hidden-size 64)\n"
                   "torchrun x.py ${A[@]} --num-attention-heads 2 --bf16 --vocab-size 99 --seq-length 64\n");
  const Finished run = braid({"train", "--run-script", script, "--print-recipe"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("lr: 3e-4"), HasSubstr("bfloat16"))) << run.err;
  EXPECT_EQ(braid({"plan", "show", folder.write("recipe.yaml", run.out)}).exit_code, 0);
  EXPECT_THAT(braid({"train", "--from-megatron", script, "--print-recipe"}).err, HasSubstr("--run-script"));
  const std::string command =
      folder.write("my command",
                   "torchrun x.py --lr 3e-4 --num-layers 2 --hidden-size 64 \\\n --num-attention-heads 2 --bf16 "
                   "--vocab-size 99 --seq-length 64\n");
  EXPECT_EQ(braid({"train", "--from-megatron", command, "--print-recipe"}).out, run.out);
}

// A recipe for another model than the script's would be worse than none.
TEST(MegatronScript, AScriptWhoseModelIsUnknownIsRefused) {
  const TemporaryFolder folder;
  for (const char* text : {"torchrun x.py --lr 1e-3\n", "torchrun x.py --model-provider mine --lr 1e-3\n"}) {
    const std::string script = folder.write("run.sh", text);
    for (const char* flag : {"--run-script", "--from-megatron"}) {
      const Finished run = braid({"train", flag, script, "--print-recipe"});
      EXPECT_EQ(run.exit_code, 2) << run.out;
      EXPECT_THAT(run.err, AllOf(HasSubstr("the model of '" + script + "' is unknown"),
                                 HasSubstr("fix:   give the flags that the script passes to Megatron as text")));
    }
  }
  const std::string partly = folder.write(
      "run.sh", "read -r -d '' OPTS <<EOT\n--hidden-size 64\nEOT\ntorchrun x.py $OPTS --num-attention-heads 2\n");
  EXPECT_THAT(braid({"train", "--run-script", partly, "--print-recipe"}).err,
              AllOf(HasSubstr("sizes are missing"), HasSubstr("--num-layers")));
  const std::string script = folder.write("run.sh", "torchrun x.py --lr 1e-3\n");
  EXPECT_EQ(braid({"train", "--run-script", script, "--print-recipe", "--model-provider", "tiny-vlm"}).exit_code, 0);
}

}  // namespace
}  // namespace braid
