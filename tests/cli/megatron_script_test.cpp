// Training commands in scripts for Megatron-LM: variables, functions, launchers, and what only a shell can expand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/from_megatron_support.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::converted;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::squeezed;
using testing::TemporaryFolder;

TEST(MegatronScript, UnexpandedVariablesAreListed) {
  const std::string recipe = converted(
      "torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py --lr $LR --save \"$ROOT/ckpt\" --save-interval 10 \\\n"
      "  --micro-batch-size 2 ${MODEL_ARGS[@]} --train-iters 10 --my-flag $X --other 3\n");
  EXPECT_THAT(recipe, AllOf(HasSubstr("only a shell can expand it:\n#   ${DISTRIBUTED_ARGS[@]}\n"),
                            HasSubstr("#   --lr $LR\n#   --save $ROOT/ckpt\n#   ${MODEL_ARGS[@]}\n#   --my-flag $X\n"),
                            HasSubstr("not a known flag of Megatron:\n#   --other 3\n"),
                            HasSubstr("--save-interval: --save is left out"), HasSubstr("micro_batch: 2")));
}

TEST(MegatronScript, RanksAreThoseOfTheLauncher) {
  const std::string train = " x.py --tensor-model-parallel-size 2 --micro-batch-size 1 ";
  for (const std::string launcher :
       {"srun -n 16 python", "srun -N2 --ntasks-per-node=8 --label", "mpirun -np 16 -x A python",
        "srun --ntasks 16 ./own", "srun --nodes 2 --ntasks-per-node 1 torchrun --nproc-per-node 8"})
    EXPECT_THAT(squeezed(converted(launcher + train)), HasSubstr(" dp: 8\n")) << launcher;
  const std::string script =
      "ARGS=(\n  --tensor-model-parallel-size 2  # of 8\n  --micro-batch-size 1\n)\nMORE=(--lr 3e-4)\n"
      "srun -n 16 python x.py \"${ARGS[@]}\" ${MORE[@]} ${OTHER[@]} --bf16\n";
  EXPECT_THAT(squeezed(converted(script)),
              AllOf(HasSubstr(" dp: 8\n"), HasSubstr("lr: 3e-4"), HasSubstr("tp: 2 "), HasSubstr("${OTHER[@]}"),
                    Not(HasSubstr("${ARGS")), Not(HasSubstr("${MORE"))));
  const std::string branches =
      "EVAL=(--eval-iters 7)\nif [ $BIG ]; then SIZE=(--lr 1); else SIZE=(--lr 2); "
      "fi\nREST=\"--tensor-model-parallel-size 2 "
      "--micro-batch-size 1\"\nALL=($REST --train-iters 3)\npython x.py ${SIZE[@]} ${ALL[@]} --bf16\n";
  EXPECT_THAT(
      squeezed(converted(branches)),
      AllOf(HasSubstr("only conditionally:\n# EVAL, which is not used"), HasSubstr("${SIZE[@]}"), HasSubstr("tp: 2 "),
            HasSubstr("iterations: 3"), Not(HasSubstr("eval_iters: 7")), Not(HasSubstr("lr: 1 "))));
  EXPECT_THAT(squeezed(converted("python prepare.py --lr 7\ntorchrun --nproc-per-node 2 x.py --lr 1e-3 --bf16\n"
                                 "python report.py --lr 3\n")),
              AllOf(HasSubstr("lr: 1e-3"), HasSubstr("python, another command"), HasSubstr(" dp: 2\n")));
  EXPECT_THAT(converted("python x.py --lr 1e-3\nsrun --foo bar"), HasSubstr("srun, another command"));
  EXPECT_THAT(squeezed(converted("A=(--lr 3e-4)\nB+=(--bf16)")), AllOf(HasSubstr("lr: 3e-4"), HasSubstr("bfloat16")));
  for (const char* count : {"gpu", "$GPUS"})
    EXPECT_THAT(squeezed(converted(std::string("torchrun --nproc-per-node ") + count + train)),
                AllOf(HasSubstr(std::string("'torchrun --nproc-per-node ") + count + "' does not give"),
                      HasSubstr(" dp: 1\n")));
  EXPECT_THAT(squeezed(converted("torchrun --nproc-per-node 8" + train + "--llm-dp 3")),
              HasSubstr("6 ranks, which follow from the sizes below: 'torchrun --nproc-per-node 8' starts 8"));
  EXPECT_THAT(squeezed(converted("torchrun --nproc-per-node 10" + train + "--encoder-dp 2")), HasSubstr(" dp: 4\n"));
}

// Under sbatch, the script does not contain the number of nodes.
TEST(MegatronScript, AnUnknownNumberOfRanksIsNotGuessed) {
  const std::string train =
      " x.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --hidden-size 64 "
      "--num-attention-heads 8 --num-layers 4 --untie-embeddings-and-output-weights --vocab-size 512 --seq-length 128";
  for (const char* launcher : {"srun torchrun --nproc-per-node 8", "srun --ntasks-per-node=8 python",
                               "torchrun --nproc-per-node 8 --nnodes $NODES"})
    EXPECT_THAT(squeezed(converted(launcher + train)), HasSubstr("does not give the number of ranks")) << launcher;
}

TEST(MegatronScript, SrunInheritsWhatSbatchIsTold) {
  const std::string train = " x.py --tensor-model-parallel-size 2 --micro-batch-size 1 --bf16";
  const std::string head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node 8\n\nset -e\n#SBATCH -N 7\n";
  EXPECT_THAT(squeezed(converted(head + "srun python" + train)), HasSubstr(" dp: 8\n"));
  EXPECT_THAT(squeezed(converted(head + "srun -N 4 python" + train)), HasSubstr(" dp: 16\n"));
  EXPECT_THAT(squeezed(converted("#!/bin/bash\n \r\n#SBATCH\t-N 4\r\nsrun -n 1 torchrun --nproc-per-node 8" + train)),
              HasSubstr(" dp: 4\n"));  // one torchrun, on one of the nodes
  EXPECT_THAT(squeezed(converted("#SBATCH\t-N 4\r\nsrun torchrun --nproc-per-node 8" + train)), HasSubstr(" dp: 16\n"));
  EXPECT_THAT(squeezed(converted("#SBATCH -N2\nsrun torchrun --nproc-per-node 8" + train)), HasSubstr(" dp: 8\n"));
}

TEST(MegatronScript, FlagsInBranchesAreLeftOutAndListed) {
  const std::string recipe = squeezed(
      converted("ARGS=\"--lr 1e-3 --micro-batch-size 1\"\nif [ $DEBUG ]; then ARGS=\"$ARGS --train-iters 7\"; TP=4\n"
                "else ARGS+=\" --train-iters 8\"; fi\n[ $SP ] && ARGS=\"$ARGS --seed 5\"\n"
                "case $X in a) ARGS=\"$ARGS --seed 6\";; esac\nfor i in 1 2; do MORE=(--bf16\n  --fp16); "
                "done\nARGS=\"$ARGS --seed 9\"\n"
                "torchrun x.py $ARGS ${MORE[@]} --tensor-model-parallel-size $TP\n"));
  EXPECT_THAT(recipe,
              AllOf(HasSubstr("lr: 1e-3"), HasSubstr("seed: 9 "), Not(HasSubstr("iterations:")),
                    Not(HasSubstr("dtype: bfloat16")), HasSubstr("# --tensor-model-parallel-size $TP\n"),
                    HasSubstr("# MORE=(--bf16 --fp16), in a branch"), HasSubstr("--train-iters 7\", in a branch")));
}

TEST(MegatronScript, TextForAShellIsRead) {
  for (const char* shell : {"srun --label bash -c ", "/bin/sh -c ", "srun -l bash -lc "})
    EXPECT_THAT(squeezed(converted("#SBATCH --nodes=2\nARGS=\"--lr 1e-3 --micro-batch-size 1\"\n" + std::string(shell) +
                                   "\"cd /x && torchrun --nproc-per-node 8 --nnodes 2 \\\n x.py $ARGS --bf16\"\n")),
                AllOf(HasSubstr("lr: 1e-3"), HasSubstr(" dp: 16\n"), HasSubstr("bfloat16"), Not(HasSubstr("Left out"))))
        << shell;
}

TEST(MegatronScript, ACommandInAVariableIsReadInAShell) {
  EXPECT_THAT(squeezed(converted("#SBATCH -N 4 --ntasks-per-node=8\nRUN=\"python -u x.py --lr 1e-3 --bf16\"\n"
                                 "srun --output=x.log bash -c \"${RUN}\"\n")),
              AllOf(HasSubstr("lr: 1e-3"), HasSubstr("bfloat16"), HasSubstr(" dp: 32\n")));
}

TEST(MegatronScript, AWrappedJobIsRead) {
  for (const char* wrap : {"--wrap=", "--wrap "})
    EXPECT_THAT(squeezed(converted("sbatch --nodes=2 -A x " + std::string(wrap) +
                                   "\"srun torchrun --nproc-per-node 8 x.py --micro-batch-size 1 --lr 1e-3\"\n")),
                AllOf(HasSubstr("lr: 1e-3"), HasSubstr(" dp: 16\n"), Not(HasSubstr("Left out"))));
  EXPECT_THAT(squeezed(converted("H=3\nsbatch --wrap=\"module load x; srun torchrun --nproc-per-node 8 x.py --seed $H "
                                 "--save \\$OUT/c\" --nodes=2\nsbatch --wrap=\"srun python z.py --seed 1\"\n")),
              AllOf(HasSubstr("seed: 3"), HasSubstr(" dp: 16\n"), HasSubstr("# --save $OUT/c\n")));
}

// What changes a variable in a way that only a shell knows: its value is not used.
TEST(MegatronScript, VariablesChangedByMoreThanAssignmentsAreNotExpanded) {
  for (const char* change : {"let TP=TP*2", "((TP *= 2))", "(( TP++ ))", "X=$((++TP))", "eval \"TP=4\"",
                             "read -r TP PP < <(echo 4 2)", "printf -v TP %d 4", "for TP in 4; do :; done", "unset TP",
                             "TP[0]=4", "setv() { declare -n r=$1; r=4; }; setv TP", "TP=${TP/2/4}"})
    EXPECT_THAT(squeezed(converted("TP=2\n" + std::string(change) +
                                   "\ntorchrun x.py --lr 1e-3 --tensor-model-parallel-size $TP\n")),
                AllOf(HasSubstr("# --tensor-model-parallel-size $TP\n"), Not(HasSubstr("tp: 2"))))
        << change;
  for (const char* change : {"ARGS=${ARGS/6e-4/2e-4}", "ARGS=$(echo \"$ARGS\" | sed s/6/2/)", "unset ARGS",
                             "mapfile -t ARGS < args.txt", "ARGS[1]=4"})
    EXPECT_THAT(squeezed(converted("ARGS=\"--lr 6e-4\"\n" + std::string(change) + "\ntorchrun x.py $ARGS --bf16\n")),
                AllOf(HasSubstr("# $ARGS\n"), Not(HasSubstr("lr: 6e-4"))))
        << change;
  EXPECT_THAT(squeezed(converted("TP=2\nif ((TP == 2)); then :; fi\n. ./env.sh\nsource venv/bin/activate\n"
                                 "torchrun x.py --tensor-model-parallel-size $TP --lr 1 --lr $LR\n")),
              AllOf(HasSubstr("tp: 2"), HasSubstr("./env.sh, a sourced file, which is not read"),
                    Not(HasSubstr("activate")), Not(HasSubstr("lr: 1 "))));
}

// A function's variables have the values of its call.
TEST(MegatronScript, AFunctionIsReadWhereItIsCalled) {
  const std::string recipe = squeezed(
      converted("ARGS=\"--lr 1e-3\"\nTP=2\ntrain() {\n  torchrun x.py $ARGS --tensor-model-parallel-size $TP $MORE\n}\n"
                "function more { MORE=\"--micro-batch-size 3\"; }\nTP=4\nARGS=\"$ARGS --bf16\"\nmore\ntrain\n"));
  EXPECT_THAT(recipe, AllOf(HasSubstr("lr: 1e-3"), HasSubstr("bfloat16"), HasSubstr("micro_batch: 3"),
                            HasSubstr("# --tensor-model-parallel-size $TP\n"), Not(HasSubstr("tp: 2"))));
  EXPECT_THAT(
      squeezed(converted("train() (\n torchrun x.py $ARGS )\nARGS=\"--lr 1e-3\"\nARGS=\"$ARGS --bf16\"\ntrain\n")),
      AllOf(HasSubstr("lr: 1e-3"), HasSubstr("bfloat16")));
  EXPECT_THAT(squeezed(converted("big() { TP=8; }\n[ $B ] && big\nlocals() { local PP=2; }\nlocals\n"
                                 "rest() { torchrun y.py --lr 2 --seed 1 --bf16; }\n"
                                 "torchrun x.py --lr 1e-3 --tensor-model-parallel-size ${TP:-1} "
                                 "--pipeline-model-parallel-size ${PP:-1}\n")),
              AllOf(HasSubstr("# --tensor-model-parallel-size ${TP:-1}\n"), HasSubstr("lr: 1e-3"),
                    HasSubstr("# --pipeline-model-parallel-size ${PP:-1}\n"), HasSubstr("rest(), which is not used")));
  EXPECT_THAT(squeezed(converted("launch() { torchrun x.py --lr 1e-3 --seed ${SEED:-1}; }\nmain() { SEED=8; launch; }\n"
                                 "\"$@\"\n")),
              HasSubstr("seed: 8"));
  EXPECT_THAT(squeezed(converted("main ( ) { torchrun x.py --lr 1e-3 --seed $SEED; }\nSEED=5\n\"$@\"\n")),
              AllOf(HasSubstr("lr: 1e-3"), HasSubstr("seed: 5")));
}

TEST(MegatronScript, AVariableMayBeExtendedByItself) {
  EXPECT_THAT(
      squeezed(converted(
          "ARGS=\"--lr 1e-3\"\nARGS=\"${ARGS:-} --bf16\"\nARGS=\"$ARGS --seed 7\"\ndeclare -a MORE=(--train-iters 3)\n"
          "MORE=(\"${MORE[@]}\" --micro-batch-size 2)\ntorchrun x.py $ARGS \"${MORE[@]}\"\n")),
      AllOf(HasSubstr("lr: 1e-3"), HasSubstr("bfloat16"), HasSubstr("seed: 7"), HasSubstr("iterations: 3"),
            HasSubstr("micro_batch: 2"), Not(HasSubstr("which is not used"))));
}

TEST(MegatronScript, VariablesThatTheScriptSetsOnceAreExpanded) {
  const std::string recipe =
      squeezed(converted("GPUS=8\nTITLE=\"a (b\"\nexport TP=2\nNAME=\"my run\"\nROOT=$1\nOUT=/ckpt/$NAME\nif [ $X ]; "
                         "then PP=1; else PP=2; fi\n"
                         "ARGS=(--tensor-model-parallel-size $TP --save \"${OUT}_tp$TP\" --load $ROOT/x --lr ${LR:-$1} "
                         "--pipeline-model-parallel-size $PP)\n"
                         "DIST=\"--nproc_per_node $GPUS --nnodes 1\"\ntorchrun $DIST x.py ${ARGS[@]} --bf16\n"));
  EXPECT_THAT(recipe, AllOf(HasSubstr(" dp: 4\n"), HasSubstr("tp: 2 "), HasSubstr("save: \"/ckpt/my run_tp2\" "),
                            HasSubstr("# --load $ROOT/x\n"), HasSubstr("# --lr ${LR:-$1}\n"),
                            HasSubstr("# --pipeline-model-parallel-size $PP\n")));
}

TEST(MegatronScript, DefaultsOfTheScriptAreUsedAndListed) {
  const std::string recipe =
      squeezed(converted("TP=${TP:-2}\nPP=\"${PP:-1}\"\nSET=3\ntorchrun --nproc-per-node ${GPUS:-8} x.py "
                         "--tensor-model-parallel-size $TP --train-iters ${SET:-9} --bf16 "
                         "--micro-batch-size ${MBS:-1} --lr ${LR-1}\n"));
  EXPECT_THAT(recipe, AllOf(HasSubstr("tp: 2 "), HasSubstr(" dp: 4\n"), HasSubstr("iterations: 3"),
                            HasSubstr("TP 2: the script's default, ${TP:-2}"), HasSubstr("MBS 1: "),
                            HasSubstr("# --lr ${LR-1}\n"), Not(HasSubstr("SET 9"))));
}

TEST(MegatronScript, HomeFoldersAndFilePatternsAreListed) {
  const std::string recipe = squeezed(
      converted("OUT=~/runs\ntorchrun x.py --save ~/ckpt --tensorboard-dir $OUT/tb --load /data/iter_* --bf16\n"));
  EXPECT_THAT(recipe, AllOf(HasSubstr("# --save ~/ckpt\n"), HasSubstr("# --tensorboard-dir $OUT/tb\n"),
                            HasSubstr("# --load /data/iter_*\n")));
}

// On the command line: a script's path, or flags as one word.
TEST(MegatronScript, AScriptIsReadWhereItsPathIsGiven) {
  const TemporaryFolder folder;
  const std::string script =
      folder.write("my run.sh",
                   "#!/bin/bash\nA=(--lr 3e-4 --num-layers 2 --hidden-size 64)\n"
                   "torchrun x.py ${A[@]} --num-attention-heads 2 --bf16 --vocab-size 99 --seq-length 64\n");
  const Finished run = braid({"train", "--from-megatron", script, "--print-recipe"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("lr: 3e-4"), HasSubstr("bfloat16"))) << run.err;
  EXPECT_EQ(braid({"plan", "show", folder.write("recipe.yaml", run.out)}).exit_code, 0);
}

// A recipe for another model than the script's would be worse than none.
TEST(MegatronScript, AScriptWhoseModelCannotBeReadIsRefused) {
  const TemporaryFolder folder;
  for (const char* text :
       {"read -r -d '' OPTS <<EOT\n--hidden-size 64\nEOT\ntorchrun x.py $OPTS --lr 1e-3\n",
        "torchrun x.py --hidden-size $SIZE --lr 1e-3\n", "torchrun x.py --model-provider mine --lr 1e-3\n"}) {
    const std::string script = folder.write("run.sh", text);
    const Finished run = braid({"train", "--from-megatron", script, "--print-recipe"});
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_THAT(run.err, AllOf(HasSubstr("the model of '" + script + "' is unknown"),
                               HasSubstr("fix:   give the flags that the script passes to Megatron as text")));
  }
  const std::string partly = folder.write(
      "run.sh", "torchrun x.py --hidden-size 64 --num-layers $N --num-attention-heads 2 --ffn-hidden-size $F\n");
  EXPECT_THAT(braid({"train", "--from-megatron", partly, "--print-recipe"}).err,
              AllOf(HasSubstr("4 sizes are missing"), HasSubstr("--num-layers"), HasSubstr("--ffn-hidden-size")));
  const std::string script = folder.write("run.sh", "torchrun x.py $OPTS --lr 1e-3\n");
  EXPECT_EQ(braid({"train", "--from-megatron", script, "--print-recipe", "--model-provider", "tiny-vlm"}).exit_code, 0);
}

}  // namespace
}  // namespace braid
