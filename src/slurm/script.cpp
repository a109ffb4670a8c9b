#include "slurm/script.h"

#include <fmt/ranges.h>

#include "base/strings.h"
#include "slurm/script_text.h"
#include "shell/text.h"
#include "slurm/step.h"
#include "plan/cluster_config.h"

namespace braid {
namespace {

bool by_torchrun(const SlurmOptions& options) { return options.style == "torchrun"; }
bool gets_signal(const SlurmOptions& options, const SlurmJob& job) {
  return options.requeue.value_or(false) || job.can_stop;
}

// --- the parts, from top to bottom -------------------------------------------------------------------------------
std::string heading(const SlurmOptions& options, const SlurmJob& job) {
  const int ranks = job.nodes * job.ranks_per_node;
  std::string text = "#!/bin/bash\n" + std::string(kSlurmScriptMark) + "\n#\n";
  text += comment(fmt::format("{}: {} rank{} on {} node{}, {}.", job.title, ranks, ranks == 1 ? "" : "s", job.nodes,
                              job.nodes == 1 ? "" : "s",
                              by_torchrun(options) ? "one torchrun per node" : "one Slurm task per rank"));
  text += comment("To submit it:  sbatch " + shell_quoted(options.output) +
                  "  (then: braid launch status JOB, braid launch tail JOB)");
  text += "# Made by this command; change that and make it again rather than editing here:\n" +
          comment(job.made_by, "#   ");
  for (const std::string& note : job.notes) text += comment(note);
  return text;
}

void check_stop_lead(const SlurmOptions& options) {
  const auto time = parse_wall_time(options.time);
  if (!time || options.stop_lead_s < time->count()) return;
  throw ConfigError(
      {fmt::format("a signal {} s before the end does not fit a time limit of {}", options.stop_lead_s, options.time),
       "--stop-lead", "use less, but enough for the run to save"});
}

std::string sbatch_lines(const SlurmOptions& options, const SlurmJob& job) {
  std::string text = "#\n";
  const auto line = [&text](const std::string& option) { text += "#SBATCH " + option + "\n"; };
  line("--job-name=" + sbatch_quoted(options.job_name));
  if (!options.account.empty()) line("--account=" + sbatch_quoted(options.account));
  if (!options.partition.empty()) line("--partition=" + sbatch_quoted(options.partition));
  line(fmt::format("--nodes={}", job.nodes));
  line(fmt::format("--ntasks-per-node={}", by_torchrun(options) ? 1 : job.ranks_per_node));
  if (options.gpus_per_node > 0) line(fmt::format("--gpus-per-node={}", options.gpus_per_node));
  line("--exclusive");
  line("--time=" + options.time);
  line("--chdir=" + sbatch_quoted(options.workdir));
  line("--output=" + sbatch_quoted(percent_escaped(log_stem(options)) + "%j.log"));
  line("--open-mode=append");
  if (options.requeue) line(*options.requeue ? "--requeue" : "--no-requeue");
  if (gets_signal(options, job)) {
    check_stop_lead(options);
    line(fmt::format("--signal=B:USR1@{}", options.stop_lead_s));
  }
  for (const std::string& option : options.sbatch) line(sbatch_option(option));
  return text;
}

// NAME=value, ready for `export`.
std::vector<std::string> exports(const SlurmOptions& options, const SlurmJob& job) {
  std::vector<std::string> all = job.exports;
  for (const std::string& setting : exports_of_options(options, job.is_braid)) all.push_back(setting);
  return all;
}

std::string export_lines(const SlurmOptions& options, const SlurmJob& job) {
  std::string text;
  for (const std::string& setting : exports(options, job)) text += "export " + setting + "\n";
  return text;
}

// The value of --env NAME=..., or else `otherwise`; both as bash reads them.
std::string given_or(const SlurmOptions& options, const std::string& name, const std::string& otherwise) {
  std::string value = otherwise;
  for (const std::string& setting : options.env)
    if (setting.starts_with(name + "=")) value = shell_quoted(setting.substr(name.size() + 1));
  return value;
}

// Not from the environment: sbatch exports that of the submitter, and a MASTER_ADDR=localhost of earlier work would
// send every node to itself.
std::string meeting_point(const SlurmOptions& options) {
  return fmt::format(
      "# Where ranks meet: on the first node, at a port below those that Linux gives to outgoing connections.\n"
      "master_addr={}\nmaster_port={}\n",
      given_or(options, "MASTER_ADDR", "$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)"),
      given_or(options, "MASTER_PORT", "$((15000 + SLURM_JOB_ID % 15000))"));
}

const char* const kFinish = R"sh(
# How it ended, the first losses of this attempt, and the way on.
finish() {  # finish STATUS
  local losses
  losses=$(tail -c "+$((log_begin + 1))" "$log" 2>/dev/null |
    grep -m 25 -E 'iteration.*(lm loss|reduced_train_loss)|(lm loss|reduced_train_loss).*iteration')
  if [[ -n $losses ]]; then printf '\n== the first losses\n%s\n' "$losses"; fi
  if (($1 == 0)); then
    printf '\n== ended well, %s\n' "$(date)"
  else
    printf '\n== failed with exit code %s, %s\n   why: braid doctor %q --exit-code %s\n' "$1" "$(date)" "$log" "$1"
  fi
}
)sh";

std::string secrets(const SlurmOptions& options) {
  if (options.secrets.empty()) return "";
  std::string text =
      "# By name only: the values come from the environment of whoever submits this.\n"
      "insist_on() {  # insist_on NAME\n"
      "  if [[ -n ${!1:-} ]]; then return; fi\n"
      "  echo \"$1 is not set: export it before sbatch\"\n"
      "  finish 1\n"
      "  exit 1\n"
      "}\n";
  for (const std::string& name : options.secrets) text += "insist_on " + name + "\n";
  return text;
}

std::string environment(const SlurmOptions& options, const SlurmJob& job) {
  std::string text = "\nset -uo pipefail\n";
  text += fmt::format("log={}\"$SLURM_JOB_ID\".log\n", shell_quoted(log_stem(options)));
  text += "log_begin=$(stat -c %s \"$log\" 2>/dev/null || echo 0)  # behind what earlier attempts wrote\n";
  text += "echo \"job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, attempt $((${SLURM_RESTART_COUNT:-0} + 1)), $(date)\"\n";
  text += kFinish + rule("environment");
  if (!by_torchrun(options)) text += export_lines(options, job);
  return text + secrets(options) + meeting_point(options);
}

// Variables that must win over those of the image.
std::vector<std::string> container_names(const SlurmOptions& options, const SlurmJob& job) {
  std::vector<std::string> names = options.secrets;
  for (const std::string& name : options.passed)
    if (!contains(names, name)) names.push_back(name);
  if (by_torchrun(options)) return names;
  for (const std::string& setting : exports(options, job)) {
    const std::string name = setting.substr(0, setting.find('='));
    if (!contains(names, name)) names.push_back(name);
  }
  return names;
}

// Options that both phases give to srun.
std::vector<std::string> common_srun_options(const SlurmOptions& options, const SlurmJob& job) {
  std::vector<std::string> all = container_options(options);
  if (!options.container.empty()) {
    all.push_back("--container-workdir=" + options.workdir);
    const auto names = container_names(options, job);
    if (!names.empty()) all.push_back(fmt::format("--container-env={}", fmt::join(names, ",")));
  }
  for (const std::string& option : mpi_option(options)) all.push_back(option);
  all.insert(all.end(), options.srun.begin(), options.srun.end());
  return all;
}

std::string common_array(const SlurmOptions& options, const SlurmJob& job) {
  const auto common = common_srun_options(options, job);
  if (common.empty()) return "";
  std::string text = "\n# For both phases.\nsrun_options=(\n";
  for (const std::string& option : common) {
    const bool quotes = shell_quoted(option) == option && option.find(',') != std::string::npos;
    text += "  " + (quotes ? "'" + option + "'" : shell_quoted(option)) + "\n";  // bare commas look like a mistake
  }
  return text + ")\n";
}

std::string use_of_array(const SlurmOptions& options, const SlurmJob& job) {
  return common_srun_options(options, job).empty() ? "" : " \"${srun_options[@]}\"";
}

// A step does not take the GPUs of its job by itself, and some clusters refuse one that does not ask.
std::string gpu_option(const SlurmOptions& options) {
  return options.gpus_per_node > 0 ? fmt::format(" --gpus-per-node={}", options.gpus_per_node) : "";
}

std::string first_phase(const SlurmOptions& options, const SlurmJob& job) {
  const std::string work = with_line_end(options.warm_up) + job.first_phase;
  if (work.empty()) return "";
  const std::string exported = by_torchrun(options) ? export_lines(options, job) : "";
  return rule("phase 1: one task prepares what all of them share") +
         here_document("first_phase", "set -e\n" + exported + work, "--warm-up") +
         "srun --nodes=1 --ntasks=1 --ntasks-per-node=1" + gpu_option(options) + use_of_array(options, job) +
         " bash -c \"$first_phase\" first-phase\n"
         "status=$?\n"
         "if ((status != 0)); then\n"
         "  finish \"$status\"\n"
         "  exit \"$status\"\n"
         "fi\n";
}

// What every rank (with torchrun: every node) runs.
std::string rank_script(const SlurmOptions& options, const SlurmJob& job) {
  std::string text = "export MASTER_ADDR=$1 MASTER_PORT=$2\n";
  if (job.sets_rank_variables)
    text += "BRAID_MASTER_ADDR=$1 BRAID_MASTER_PORT=$2  # the command sets the others for one node\n";
  text += "shift 2\n";
  if (by_torchrun(options)) text += export_lines(options, job);
  if (!by_torchrun(options) && job.is_braid)
    text += "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE  # left over from elsewhere; Slurm's variables count\n";
  if (!by_torchrun(options) && !job.is_braid)
    text += "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=" +
            std::to_string(job.ranks_per_node) + "\n";
  if (!by_torchrun(options) && job.had_torchrun && job.ranks_per_node > 1)
    text += "export OMP_NUM_THREADS=\"${OMP_NUM_THREADS:-1}\"  # as torchrun does\n";
  if (gets_signal(options, job))
    text += options.stop_signal == "TERM"
                ? "trap : TERM  # is for the program, not for this shell\n"
                : "trap '' USR1  # is for a program that asks for it; nothing else shall die of it\n";
  if (const std::string again = with_line_end(options.warm_up) + job.repeated; !again.empty())
    text += "# Phase 1 has done this; now there is nothing left to do.\nset -e\n" + again + "set +e\n";
  return text + job.prelude + with_line_end(job.command);
}

std::string signal_handling(const SlurmOptions& options, const SlurmJob& job) {
  if (!gets_signal(options, job)) return "";
  std::string text = fmt::format(
      "\n# {} s before the time is up Slurm sends USR1 to this shell. It asks the ranks to save and to end.\n"
      "signals=0\n"
      "# shellcheck disable=SC2317  # the trap below calls it\n"
      "pass_signal() {{\n"
      "  signals=$((signals + 1))\n"
      "  echo \"== the time is nearly up: asking the ranks to save and to end\"\n",
      options.stop_lead_s);
  // srun passes USR1 on; SIGTERM it would take as an order to kill them all.
  text +=
      options.stop_signal == "TERM" ? "  scancel --signal=TERM \"$SLURM_JOB_ID\"\n" : "  kill -USR1 \"$srun_pid\"\n";
  return text + "}\n";
}

std::string main_phase(const SlurmOptions& options, const SlurmJob& job, bool has_first_phase) {
  const int tasks_per_node = by_torchrun(options) ? 1 : job.ranks_per_node;
  std::string text = rule(fmt::format("{}all ranks", has_first_phase ? "phase 2: " : ""));
  text += by_torchrun(options) ? "# What the one task of each node runs.\n" : "# What each task runs.\n";
  text += here_document("rank_script", rank_script(options, job), "the command");
  text += signal_handling(options, job);
  text += fmt::format(
      "\nsrun --label --no-kill --kill-on-bad-exit=1 --nodes={} --ntasks={} --ntasks-per-node={}{} \\\n"
      " {} bash -c \"$rank_script\" {} \"$master_addr\" \"$master_port\" &\n"
      "srun_pid=$!\n",
      job.nodes, job.nodes * tasks_per_node, tasks_per_node, gpu_option(options), use_of_array(options, job),
      shell_quoted(job.zeroth_argument));
  if (!gets_signal(options, job)) return text + "wait \"$srun_pid\"\nstatus=$?\n";
  return text +
         "trap pass_signal USR1\n"
         "# `wait` ends early when a signal comes; then it is not srun's status, and we wait again.\n"
         "while true; do\n"
         "  signals_before=$signals\n"
         "  wait \"$srun_pid\"\n"
         "  status=$?\n"
         "  if ((signals == signals_before)); then break; fi\n"
         "done\n";
}

std::string ending(const SlurmOptions& options) {
  std::string text = rule("the end") + "finish \"$status\"\n";
  if (options.requeue.value_or(false))
    text +=
        "# Stopped by the clock, not finished: go on from the checkpoint in a new turn of this job.\n"
        "if ((signals > 0 && status == 0)); then\n"
        "  echo \"== requeued\"\n"
        "  scontrol requeue \"$SLURM_JOB_ID\"\n"
        "fi\n";
  return text + "exit \"$status\"\n";
}

// Text in single quotes is meant as it is; without this, shellcheck asks about each.
std::string shellcheck_line(const std::string& body) {
  return body.find('$') == std::string::npos && body.find('`') == std::string::npos
             ? ""
             : "# shellcheck disable=SC2016  # what is in single quotes shall not expand\n";
}

}  // namespace

std::string log_stem(const SlurmOptions& options) { return options.log_dir + "/" + options.job_name + "_"; }

std::string rank_environment(int ranks_per_node) {
  return fmt::format(
      "RANK=\"$SLURM_PROCID\" WORLD_SIZE=\"$SLURM_NTASKS\" LOCAL_RANK=\"$SLURM_LOCALID\" LOCAL_WORLD_SIZE={} "
      "MASTER_ADDR=\"$BRAID_MASTER_ADDR\" MASTER_PORT=\"$BRAID_MASTER_PORT\"",
      ranks_per_node);
}

std::string torchrun_world(int ranks_per_node, bool sets_rank_variables) {
  const char* prefix = sets_rank_variables ? "BRAID_" : "";
  return fmt::format(
      "--nnodes=\"$SLURM_JOB_NUM_NODES\" --node_rank=\"$SLURM_NODEID\" --nproc_per_node={} "
      "--master_addr=\"${}MASTER_ADDR\" --master_port=\"${}MASTER_PORT\"",
      ranks_per_node, prefix, prefix);
}

std::string slurm_script(const SlurmOptions& options, const SlurmJob& job) {
  const std::string preparation = first_phase(options, job);
  const std::string quoted_values = joined_quoted(options.env) + joined_quoted(common_srun_options(options, job)) +
                                    options.cache_dir + options.log_dir;
  return heading(options, job) + sbatch_lines(options, job) + shellcheck_line(quoted_values) +
         environment(options, job) + common_array(options, job) + preparation +
         main_phase(options, job, !preparation.empty()) + ending(options);
}

}  // namespace braid
