// What a run says of itself: its size, its steps, its end.
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRun[] = {
    {"/job:jax_worker/replica:", Sign::AbsentRank},     // JAX
    {"[missing ranks: ", Sign::AbsentRank},             // Horovod
    {"ranks have not called it: [", Sign::AbsentRank},  // Ray
    {"following ranks to join the", Sign::AbsentRank},
    {"but didn't join collective", Sign::AbsentRank},  // PyTorch's report of a desync
    {"are the lagging ranks that caused", Sign::AbsentRank},
    {"missing ranks: {", Sign::AbsentRank},  // its flight recorder
    {"joined but didn't finish", Sign::AbsentRank},
    {"[allreduce.", Sign::AbsentRank},  // below its "Missing ranks:"
    {"[allgather.", Sign::AbsentRank},
    {"[broadcast.", Sign::AbsentRank},
    {"HorovodAllreduce", Sign::AbsentRank},
    {"HorovodAllgather", Sign::AbsentRank},
    {"HorovodBroadcast", Sign::AbsentRank},
    {"Begin global rank ", Sign::RankBlock},  // Composer
    {"End global rank ", Sign::RankBlock},
    {"num_experts", Sign::Experts},
    {"num-experts", Sign::Experts},
    {"expert_model_parallel", Sign::Experts},
    {"expert-model-parallel", Sign::Experts},
    {"float8", Sign::Fp8},
    {"scale_inv", Sign::Fp8},
    {"quant_method", Sign::Fp8},
    {".weight", Sign::DifferingRow, "\xe2\x9d\x8c"},  // a red cross
    {"save_hf_weights", Sign::SaveArtifacts},
    {"save_artifacts", Sign::SaveArtifacts},
    {"save_hf_pretrained", Sign::SaveArtifacts},
    {"inished saving", Sign::Saved},
    {"aved checkpoint", Sign::Saved},
    {"heckpoint saved", Sign::Saved},
    {"aved model", Sign::Saved},
    {"odel saved", Sign::Saved},
    {"tate saved", Sign::Saved},
    {"task/s, elapsed", Sign::Saved},  // mm*: it goes on with other work
    {"unning evaluation", Sign::Saved},
    {"unning Evaluation", Sign::Saved},
    {"unning validation", Sign::Saved},
    {"Saving ", Sign::Saving, "heckpoint"},
    {"saving ", Sign::Saving, "heckpoint"},
    {"xporting ", Sign::Saving, "heckpoint"},
    {"xporting ", Sign::Saving, "odel"},
    {"xporting ", Sign::Saving, "ugging"},
    {"aving item", Sign::Saving},  // Orbax
    {"aving model", Sign::Saving},
    {"aving state", Sign::Saving},
    {"aving the model", Sign::Saving},
    {"aving optimizer", Sign::Saving},
    {"TimeLimit=", Sign::JobLimit},  // scontrol
    {"EndTime=", Sign::JobLimit},
    {"--time=", Sign::JobLimit},
    {"#SBATCH -t ", Sign::JobLimit},
    {"ime limit", Sign::JobLimit, nullptr, "rror"},
    {"using world size: ", Sign::RunStarts},
    {"restart worker group", Sign::RunStarts},          // torchrun --max-restarts
    {"Starting with JobEnvironment", Sign::RunStarts},  // submitit
    {"world size", Sign::WorldSize},
    {"world_size", Sign::WorldSize},
    {"WORLD_SIZE", Sign::WorldSize},
    {", MEMBER: ", Sign::WorldSize},  // Lightning
    {"run ended   ", Sign::Hangup, "SIGHUP"},
    {"run ended   ", Sign::JobCancelled, "SIG"},
    {"run ended   ", Sign::EndedWell, nullptr, "skipped"},
    {"braid: stopped; ", Sign::JobCancelled},
    {"already at iteration ", Sign::EndedWell, "nothing to do"},
    {"== ended well, ", Sign::ScriptEndedWell},  // scripts of `braid launch`
    {"== failed with exit code ", Sign::JobExit},
    {", attempt ", Sign::RunStarts, "job "},
    {" ranks: ", Sign::RunStarts, "braid: "},
    {"[after training is done]", Sign::EndedWell},

    // Ends of other trainers. One process says it, so it is not believed against one that failed.
    {"[exiting program at iteration", Sign::SaysDone},  // Megatron, as its arguments say
    {"[exiting program after ", Sign::SaysDone, " minutes]"},
    {"'train_runtime'", Sign::SaysDone},  // Hugging Face
    {"train_runtime  ", Sign::SaysDone},
    {"raining complete", Sign::SaysDone},
    {"raining finished", Sign::SaysDone, nullptr, "iteration"},
    {"inished training", Sign::SaysDone},
    {"raining is done", Sign::SaysDone},
    {"one training", Sign::SaysDone, "one training in"},  // fairseq
    {"raining has been finished", Sign::SaysDone},
    {"raining has finished", Sign::SaysDone},
    {"raining has completed", Sign::SaysDone},
    {"raining job completed", Sign::SaysDone},
    {"raining ended successfully", Sign::SaysDone},
    {"raining took ", Sign::SaysDone},
    {"raining run completed", Sign::SaysDone},
    {"End of training", Sign::SaysDone},
    {"Finished Training", Sign::SaysDone},
    {"Completed training", Sign::SaysDone},
    {"Job succeeded", Sign::SaysDone},
    {"JobSucceeded", Sign::SaysDone},  // Kubeflow
    {"Job completed", Sign::SaysDone, nullptr, "rror"},
    {"State: ", Sign::SaysDone, "Succeeded"},
    {"phase: Succeeded", Sign::SaysDone},
    {"JobState=COMPLETED", Sign::SaysDone},
    {"with exit code 0", Sign::SaysDone},
    {" Completed ", Sign::SaysDone, "0/1"},  // kubectl get pods
    {"successfully completed", Sign::SaysDone},
    {"ompleted successfully", Sign::SaysDone, nullptr, "abort"},
    {"inished successfully", Sign::SaysDone},
    {"raining ends @", Sign::SaysDone},
    {"raining finalized", Sign::SaysDone},
    {"ine-tuning complete", Sign::SaysDone},
    {"ine-tuning finished", Sign::SaysDone},
    {"inetuning complete", Sign::SaysDone},
    {"inished fine-tuning", Sign::SaysDone},
    {"End time of running main", Sign::SaysDone},    // ms-swift
    {"(status: SUCCEEDED)", Sign::SaysDone},         // SkyPilot
    {"' succeeded", Sign::SaysDone, "Job '"},        // Ray
    {"total images/sec: ", Sign::SaysDone},          // TensorFlow's benchmarks
    {"Final validation metrics: ", Sign::SaysDone},  // verl
    {"Loss for final step: ", Sign::SaysDone},       // TensorFlow's estimators
    {"worker group successfully finished", Sign::SaysDone},
    {"Training exit with code 0", Sign::SaysDone},
    {"raining done", Sign::SaysDone},
    {"raining successfully", Sign::SaysDone},
    {"`Trainer.fit` stopped: `max_", Sign::SaysDone},    // Lightning
    {"Total training time: ", Sign::SaysDone},           // detectron2
    {"raining SUCCESS", Sign::SaysDone},                 // SageMaker
    {"Successfully completed.", Sign::ScriptEndedWell},  // LSF, which may say so before what the job printed
    {"finished (SUCCEEDED)", Sign::SaysDone},            // torchrun
    {"COMPLETED  ", Sign::SaysDone, "0:0"},              // sacct
    {"to finish... (success)", Sign::SaysDone},          // W&B, whose word it is of the process' end
    {"tatus: Succeeded", Sign::SaysDone},
    {"exits successfully", Sign::SaysDone},       // DeepSpeed
    {"peak memory allocated: ", Sign::SaysDone},  // at the end of nanoGPT's descendants
};

// Anchors that lines of a step have; progress_styles.cpp reads the step. Bars are found by their percent sign.
constexpr Rule kProgress[] = {
    {" iteration ", Sign::Progress},
    {"'loss':", Sign::Progress},
    {"\"loss\":", Sign::Progress},
    {"global_step", Sign::Progress},
    {" loss ", Sign::Progress},   // nanoGPT
    {" loss: ", Sign::Progress},  // Keras, mm*
    {" loss=", Sign::Progress},
    {"| loss", Sign::Progress},  // llm.c
    {"| Loss", Sign::Progress},
    {", Loss", Sign::Progress},
    {"|Loss: ", Sign::Progress},  // torchtune
    {"mloss: ", Sign::Progress},  // torchtitan, in colour
    {" Loss: ", Sign::Progress},
    {"\tLoss:", Sign::Progress},
    {"#011Loss: ", Sign::Progress},  // a tab, as syslog has it
    {"\tLoss ", Sign::Progress},
    {"loss = ", Sign::Progress},  // TensorFlow
    {"train/loss", Sign::Progress},
    {"step_loss", Sign::Progress},
    {"sec/step", Sign::Progress},
    {"train_loss", Sign::Progress},
    {"train loss", Sign::Progress},
    {"grad_norm", Sign::Progress},
    {"it [00", Sign::Progress},             // a bar without an end
    {"skipped=", Sign::Progress, "step="},  // DeepSpeed
    {"SamplesPerSec", Sign::Progress},
    {"images/sec", Sign::Progress},
    {"samples/sec", Sign::Progress},
    {"data_time:", Sign::Progress},  // mm*, detectron2
    {"num_updates", Sign::Progress},
    {"completed step: ", Sign::Progress},  // MaxText
    {"Training: step ", Sign::Progress},   // T5X
    {"[batch=", Sign::Progress},           // Composer
    {"[step=", Sign::Progress},            // OLMo
    {"pg_loss:", Sign::Progress},          // verl
    {"iter_time=", Sign::Progress},        // ESPnet
    {"batch_cost", Sign::Progress},        // Paddle
    {"steps_per_sec", Sign::Progress},
    {"tokens_per_second", Sign::Progress},
    {"Progress on:train", Sign::Progress},         // Levanter
    {"\xe2\x94\x81\xe2\x94\x81", Sign::Progress},  // Rich's and Keras' bars
    {"braid: ", Sign::BraidSays},
};

constexpr Rule kRemarks[] = {
    {"slurm_script: line ", Sign::ShellError},  // the batch script, whatever it says of itself
    {"Error: ", Sign::Remark},
    {"Exception: ", Sign::Remark},
    {"error: ", Sign::Remark},
    {"ERROR:", Sign::Remark},
    {"ERROR]", Sign::Remark},
    {" ERROR ", Sign::Remark},
    {"_ERROR", Sign::Remark},
    {"[ERROR", Sign::Remark},
    {"FATAL:", Sign::Remark},
    {" FATAL", Sign::Remark},
    {"fatal: ", Sign::Remark},
    {"failed: ", Sign::Remark},
    {"ailed to ", Sign::Remark},
    {"Unable to ", Sign::Remark},
    {"FAILED", Sign::Remark},
    {"Killed", Sign::Remark},
    {"Terminated", Sign::Remark},
    {"Hangup", Sign::Remark},
    {"zsh: killed", Sign::Remark},
    {"zsh: terminated", Sign::Remark},
    {"zsh: hangup", Sign::Remark},
    {" killed     ", Sign::Remark},  // zsh, of a job in the background
    {" terminated  ", Sign::Remark},
    {" hangup     ", Sign::Remark},
};

}  // namespace

std::span<const Rule> run_rules() { return kRun; }
std::span<const Rule> progress_rules() { return kProgress; }
std::span<const Rule> remark_rules() { return kRemarks; }

}  // namespace braid
