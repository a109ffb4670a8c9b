#include "cluster/slurm/script.h"
#include <fmt/ranges.h>
#include "base/files.h"
#include "base/strings.h"
#include "cluster/megatron/commands.h"
#include "plan/cluster_config.h"

namespace braid {
namespace {

using Texts = std::vector<std::string>;

void append(Texts& all, const Texts& more) { all.insert(all.end(), more.begin(), more.end()); }

// --- jobs of programs other than Braid
// --------------------------------------------------------------------------------
void check_ranks(const SlurmOptions& options, const RankCommand& command) {
  const int gpus = options.gpus_per_node, ranks = command.ranks_per_node.value_or(gpus);
  if (gpus > 0 && ranks != gpus)
    throw ConfigError(
        {fmt::format("the command asks for {} per node (--nproc_per_node), but the job for {} per node "
                     "(--gpus-per-node)",
                     counted(ranks, "rank"), counted(gpus, "GPU")),
         "--gpus-per-node",
         fmt::format("give --gpus-per-node {}, or change --nproc_per_node in the command to {}", ranks, gpus)});
  if (!command.ranks_per_node && gpus == 0)
    throw ConfigError({"the number of ranks per node is unknown", "--gpus-per-node",
                       "on a cluster without GPUs, give a torchrun command with --nproc_per_node"});
  if (command.nodes && *command.nodes > 1 && options.nodes && *options.nodes != *command.nodes)
    throw ConfigError({fmt::format("the command has --nnodes={}, the job --nodes {}", *command.nodes, *options.nodes),
                       "--nodes", "leave --nnodes out of the command: the script sets it"});
}

// Every rank would run the script and so call torchrun.
void refuse_scripts_with_torchrun(const SlurmOptions& options, const std::string& text) {
  constexpr std::uintmax_t kLongestScript = 1 << 20;
  std::error_code ignored;
  for (const ShellCommand& command : simple_commands(text)) {
    bool read_by_shell = false;
    for (const ShellWord& word : command.words) {
      const std::string name = word.value.value_or(""), program = base_name(word);
      const fs::path file = path_on_host(options, fs::path(options.workdir) / name).value_or("");
      std::string script;
      if (!name.empty() && !name.ends_with(".py") && is_file(file) && fs::file_size(file, ignored) <= kLongestScript) {
        std::ifstream stream(file);
        script.assign(std::istreambuf_iterator<char>(stream), {});
      }
      const bool is_script =
          read_by_shell || file.extension() == ".sh" || file.extension() == ".bash" || script.starts_with("#!");
      if (is_script && calls_torchrun(script))
        throw ConfigError(
            {fmt::format("'{}' calls torchrun itself: every rank would start a torchrun", name), "the command",
             fmt::format("give --command-file {} instead, so that its torchrun can be replaced", shell_quoted(name))});
      read_by_shell |= program == "bash" || program == "sh" || program == "source" || program == ".";
    }
  }
}

// --- the building blocks of a script --------------------------------------------------------------------------------
std::string replaced(std::string text, char c, std::string_view by) {
  for (std::size_t at = text.find(c); at != text.npos; at = text.find(c, at + by.size())) text.replace(at, 1, by);
  return text;
}

// For a line #SBATCH --option=value: sbatch reads quotes and backslashes in its lines much as a shell does.
std::string sbatch_quoted(const std::string& value) {
  return shell_quoted(value) == value ? value : '"' + replaced(replaced(value, '\\', "\\\\"), '"', "\\\"") + '"';
}

std::string lines_of(const Texts& texts, const std::string& before) {
  return joined(vector_of<std::string>(texts, [&](const std::string& text) { return before + text + "\n"; }), "");
}

std::string comment(const std::string& text, const std::string& indent = "# ") {
  return lines_of(split(text, '\n'), indent);
}

std::string rule(const std::string& title) {
  const std::string line = "# --- " + title + " ";
  return "\n" + line + std::string(line.size() < 118 ? 118 - line.size() : 3, '-') + "\n";
}

std::string with_line_end(const std::string& text) { return text.empty() || text.ends_with('\n') ? text : text + "\n"; }

// Lines that set the variable `name` to any `text`. ConfigError at `where` for text that cannot be passed to a process.
std::string here_document(const std::string& name, const std::string& text, const std::string& where) {
  // Linux limits one argument of a program to 128 KiB; srun and containers add something to it.
  constexpr std::size_t kLongestKiB = 100;
  if (text.size() > kLongestKiB * 1024)
    throw ConfigError({fmt::format("the command has {} KiB, but one argument of a task may have at most {} KiB",
                                   (text.size() + 1023) / 1024, kLongestKiB),
                       where, "put it into a file and run that file"});
  if (text.find('\0') != std::string::npos)
    throw ConfigError({"the command contains a zero byte", where, "leave it out"});
  std::string delimiter = "END_OF_" + name;
  std::ranges::transform(delimiter, delimiter.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto lines = split(text, '\n');
  for (int i = 2; contains(lines, delimiter); ++i) delimiter = fmt::format("END_OF_TEXT_{}", i);
  return fmt::format("IFS= read -r -d '' {} <<'{}' || true\n{}{}\n", name, delimiter, with_line_end(text), delimiter);
}

// NAME=value, quoted for bash: ready for `export`. The caches (for Braid itself, only Hugging Face's) and --env.
Texts exports_of_options(const SlurmOptions& options, bool is_braid) {
  Texts all;
  for (const auto& [name, folder] : kCacheVariables)
    if (!options.cache_dir.empty() && (!is_braid || name == "HF_HOME"))
      all.push_back(fmt::format("{}={}", name, shell_quoted(fmt::format("{}/{}", options.cache_dir, folder))));
  for (const std::string& setting : options.env) {
    const std::size_t value = setting.find('=') + 1;
    all.push_back(setting.substr(0, value) + shell_quoted(setting.substr(value)));
  }
  return all;
}

// Options of srun that the container and --mpi need.
Texts container_options(const SlurmOptions& options) {
  if (options.container.empty()) return {};
  Texts all = {"--container-image=" + options.container};
  if (!options.mounts.empty()) all.push_back(fmt::format("--container-mounts={}", fmt::join(options.mounts, ",")));
  all.push_back("--no-container-mount-home");
  return all;
}
Texts mpi_option(const SlurmOptions& options) {
  if (!options.mpi.empty()) return {"--mpi=" + options.mpi};
  return options.container.empty() ? Texts{} : Texts{"--mpi=pmix"};
}

const char* const kFinish = R"sh(
# Prints the first losses of this attempt, how it ended, and the command that finds the cause of a failure.
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

constexpr const char* kSecretsMustBeSet = R"sh(# By name only: the values come from the submitter's environment.
insist_on() {  # insist_on NAME
  if [[ -n ${!1:-} ]]; then return; fi
  echo "$1 is not set: export it before sbatch"
  finish 1
  exit 1
}
)sh";

constexpr const char* kWaitThroughSignals = R"sh(trap pass_signal USR1
# A signal ends `wait` early; its status is then not srun's, and we wait again.
while true; do
  signals_before=$signals
  wait "$srun_pid"
  status=$?
  if ((signals == signals_before)); then break; fi
done
)sh";

constexpr const char* kRequeue =
    R"sh(# Stopped by the time limit, not finished: requeue this job to resume from the checkpoint.
if ((signals > 0 && status == 0)); then
  echo "== requeued"
  scontrol requeue "$SLURM_JOB_ID"
fi
)sh";

// --- the sections of a script, from top to bottom -------------------------------------------------------------------
class Script {
 public:
  Script(const SlurmOptions& options, const SlurmJob& job)
      : o_(options), job_(job), by_torchrun_(options.style == "torchrun"), requeues_(options.requeue.value_or(false)),
        gets_signal_(requeues_ || job.can_stop), exports_(job.exports) {
    append(exports_, exports_of_options(options, job.is_braid));
    srun_options_ = common_srun_options();
    if (options.gpus_per_node > 0) gpu_option_ = fmt::format(" --gpus-per-node={}", options.gpus_per_node);
    if (!srun_options_.empty()) use_of_array_ = " \"${srun_options[@]}\"";
  }

  std::string text() const {
    const std::string preparation = first_phase();
    const std::string top = heading() + sbatch_lines() + shellcheck_line() + environment() + common_array();
    return top + preparation + main_phase(!preparation.empty()) + rule("the end") + "finish \"$status\"\n" +
           (requeues_ ? kRequeue : "") + "exit \"$status\"\n";
  }

 private:
  std::string heading() const {
    std::string text = "#!/bin/bash\n" + std::string(kSlurmScriptMark) + "\n#\n";
    text += comment(fmt::format("{}: {} on {}, {}.", job_.title, counted(job_.nodes * job_.ranks_per_node, "rank"),
                                counted(job_.nodes, "node"),
                                by_torchrun_ ? "one torchrun per node" : "one Slurm task per rank"));
    text += comment("To submit it:  sbatch " + shell_quoted(o_.output) +
                    "  (then: braid launch status JOB, braid launch tail JOB)");
    text += "# Generated by this command; change it and run it again instead of editing this file:\n" +
            comment(job_.made_by, "#   ");
    for (const std::string& note : job_.notes) text += comment(note);
    if (!job_.start.empty()) text += comment("When this was written, a start " + job_.start + ".");
    return text;
  }

  std::string sbatch_lines() const {
    Texts options = {"--job-name=" + sbatch_quoted(o_.job_name)};
    if (!o_.account.empty()) options.push_back("--account=" + sbatch_quoted(o_.account));
    if (!o_.partition.empty()) options.push_back("--partition=" + sbatch_quoted(o_.partition));
    options.push_back(fmt::format("--nodes={}", job_.nodes));
    options.push_back(fmt::format("--ntasks-per-node={}", tasks_per_node()));
    if (o_.gpus_per_node > 0) options.push_back(fmt::format("--gpus-per-node={}", o_.gpus_per_node));
    // In the name of a log, %j is the job's number.
    const std::string& folder = o_.host_workdir.empty() ? o_.launch_folder : o_.host_workdir;
    append(options, {"--exclusive", "--time=" + o_.time, "--chdir=" + sbatch_quoted(folder),
                     "--output=" + sbatch_quoted(replaced(log_stem(o_), '%', "%%") + "%j.log"), "--open-mode=append"});
    if (o_.requeue) options.push_back(requeues_ ? "--requeue" : "--no-requeue");
    if (gets_signal_) options.push_back(fmt::format("--signal=B:USR1@{}", checked_stop_lead()));
    for (const std::string& option : o_.sbatch) {  // --name=value, --name value or -nvalue
      const std::size_t name_end = option.starts_with("--") ? option.find_first_of("= ") : 1;
      const std::size_t value = std::min(name_end, option.size() - 1) + 1;
      options.push_back(option.substr(0, value) + (value < option.size() ? sbatch_quoted(option.substr(value)) : ""));
    }
    return "#\n" + lines_of(options, "#SBATCH ");
  }

  int tasks_per_node() const { return by_torchrun_ ? 1 : job_.ranks_per_node; }

  int checked_stop_lead() const {
    const auto time = parse_wall_time(o_.time);
    if (!time || o_.stop_lead_s < time->count()) return o_.stop_lead_s;
    throw ConfigError(
        {fmt::format("a signal {} s before the end does not fit the time limit of {}", o_.stop_lead_s, o_.time),
         "--stop-lead", "use less, but enough for the run to save"});
  }

  // Single quotes are intended; without this line, shellcheck warns about each.
  std::string shellcheck_line() const {
    const std::string quoted = joined_quoted(o_.env) + joined_quoted(srun_options_) + o_.cache_dir + o_.log_dir;
    return quoted.find_first_of("$`") == quoted.npos
               ? ""
               : "# shellcheck disable=SC2016  # single quotes prevent expansion on purpose\n";
  }

  std::string environment() const {
    std::string text = "\nset -uo pipefail\n";
    text += fmt::format("log={}\"$SLURM_JOB_ID\".log\n", shell_quoted(log_stem(o_)));
    text += "log_begin=$(stat -c %s \"$log\" 2>/dev/null || echo 0)  # after the output of earlier attempts\n";
    text += "echo \"job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, attempt $((${SLURM_RESTART_COUNT:-0} + 1)), $(date)\"\n";
    text += kFinish + rule("environment");
    if (!by_torchrun_) text += lines_of(exports_, "export ");
    if (!o_.secrets.empty()) text += kSecretsMustBeSet + lines_of(o_.secrets, "insist_on ");
    // Not from the environment: with a leftover MASTER_ADDR=localhost, every node would connect to itself.
    return text + fmt::format(
                      "# The rendezvous: on the first node, at a port below the range that Linux uses for outgoing "
                      "connections.\nmaster_addr={}\nmaster_port={}\n",
                      given_or("MASTER_ADDR=", "$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)"),
                      given_or("MASTER_PORT=", "$((15000 + SLURM_JOB_ID % 15000))"));
  }

  // The value of --env NAME=..., or else `otherwise`; both as bash reads them.
  std::string given_or(const std::string& name_is, std::string otherwise) const {
    for (const std::string& setting : o_.env)
      if (setting.starts_with(name_is)) otherwise = shell_quoted(setting.substr(name_is.size()));
    return otherwise;
  }

  // Options that both phases give to srun. Some variables must override those of the image.
  Texts common_srun_options() const {
    Texts all = container_options(o_);
    if (!o_.container.empty()) {
      all.push_back("--container-workdir=" + o_.workdir);
      Texts names = o_.secrets;
      const auto add = [&](const std::string& name) {
        if (!contains(names, name)) names.push_back(name);
      };
      std::ranges::for_each(o_.passed, add);
      if (!by_torchrun_)
        for (const std::string& setting : exports_) add(setting.substr(0, setting.find('=')));
      if (!names.empty()) all.push_back("--container-env=" + joined(names, ","));
    }
    append(all, mpi_option(o_));
    append(all, o_.srun);
    return all;
  }

  std::string common_array() const {
    if (srun_options_.empty()) return "";
    std::string text = "\n# For both phases.\nsrun_options=(\n";
    for (const std::string& option : srun_options_) {
      const bool quotes = shell_quoted(option) == option && option.find(',') != std::string::npos;
      text += "  " + (quotes ? "'" + option + "'" : shell_quoted(option)) + "\n";  // bare commas look like a mistake
    }
    return text + ")\n";
  }

  // A step does not get the GPUs of its job by default, and some clusters refuse a step that requests none.
  std::string first_phase() const {
    const std::string work = with_line_end(o_.warm_up) + job_.first_phase;
    if (work.empty()) return "";
    const std::string exported = by_torchrun_ ? lines_of(exports_, "export ") : "";
    return rule("phase 1: one task prepares what all tasks share") +
           here_document("first_phase", "set -e\n" + exported + work, "--warm-up") +
           "srun --nodes=1 --ntasks=1 --ntasks-per-node=1" + gpu_option_ + use_of_array_ +
           " bash -c \"$first_phase\" " +
           (job_.zeroth_argument == "rank" ? "first-phase" : shell_quoted(job_.zeroth_argument)) +
           "\n"
           "status=$?\n"
           "if ((status != 0)); then\n"
           "  finish \"$status\"\n"
           "  exit \"$status\"\n"
           "fi\n";
  }

  // What every rank (with torchrun: every node) runs.
  std::string rank_script() const {
    std::string text = "export MASTER_ADDR=$1 MASTER_PORT=$2\n";
    if (job_.sets_rank_variables)
      text += "BRAID_MASTER_ADDR=$1 BRAID_MASTER_PORT=$2  # the command overwrites the others for one node\n";
    text += "shift 2\n";
    if (by_torchrun_)
      text += lines_of(exports_, "export ");
    else if (job_.is_braid)
      text += "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE  # possible leftovers; Slurm's variables are used\n";
    else
      text += "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=" +
              std::to_string(job_.ranks_per_node) + "\n";
    if (!by_torchrun_ && job_.had_torchrun && job_.ranks_per_node > 1)
      text += "export OMP_NUM_THREADS=\"${OMP_NUM_THREADS:-1}\"  # as torchrun does\n";
    if (gets_signal_)
      text += o_.stop_signal == "TERM"
                  ? "trap : TERM  # for the program, not for this shell\n"
                  : "trap '' USR1  # for a program that handles it; it must not kill anything else\n";
    if (const std::string again = without_once(o_.warm_up); !again.empty())
      text += "# Phase 1 has done this; now it finds nothing to do.\nset -e\n" + with_line_end(again) + "set +e\n";
    return text + job_.prelude + with_line_end(job_.command);
  }

  // srun forwards USR1, but on SIGTERM it would kill all tasks.
  std::string signal_handling() const {
    return fmt::format(
        "\n# {} s before the time limit, Slurm sends USR1 to this shell, which asks the ranks to save and to end.\n"
        "signals=0\n"
        "# shellcheck disable=SC2317  # the trap below calls it\n"
        "pass_signal() {{\n"
        "  signals=$((signals + 1))\n"
        "  echo \"== the time limit is near: asking the ranks to save and to end\"\n"
        "  {}\n"
        "}}\n",
        o_.stop_lead_s,
        o_.stop_signal == "TERM" ? "scancel --signal=TERM \"$SLURM_JOB_ID\"" : "kill -USR1 \"$srun_pid\"");
  }

  std::string main_phase(bool has_first_phase) const {
    std::string text = rule(fmt::format("{}all ranks", has_first_phase ? "phase 2: " : ""));
    text += by_torchrun_ ? "# The script of the one task on each node.\n" : "# The script of each task.\n";
    text += here_document("rank_script", rank_script(), "the command");
    if (gets_signal_) text += signal_handling();
    text += fmt::format(
        "\nsrun --label --no-kill --kill-on-bad-exit=1 --nodes={} --ntasks={} --ntasks-per-node={}{} \\\n"
        " {} bash -c \"$rank_script\" {} \"$master_addr\" \"$master_port\" &\n"
        "srun_pid=$!\n",
        job_.nodes, job_.nodes * tasks_per_node(), tasks_per_node(), gpu_option_, use_of_array_,
        shell_quoted(job_.zeroth_argument));
    return text + (gets_signal_ ? kWaitThroughSignals : "wait \"$srun_pid\"\nstatus=$?\n");
  }

  const SlurmOptions& o_;
  const SlurmJob& job_;
  const bool by_torchrun_, requeues_, gets_signal_;
  Texts exports_, srun_options_;
  std::string gpu_option_, use_of_array_;
};

}  // namespace

std::vector<std::string> exports_for_gpus() {
  return {"CUDA_DEVICE_MAX_CONNECTIONS=1", "NCCL_NVLS_ENABLE=0", "TORCH_NCCL_AVOID_RECORD_STREAMS=1",
          "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"};
}

std::string interactive_commands(const SlurmOptions& options, const std::string& last) {
  const int nodes = options.nodes.value_or(1);
  // salloc and srun both need these: srun does not take the GPUs of the allocation by itself.
  Texts common = {fmt::format("--nodes={}", nodes), "--job-name=" + options.job_name,
                  "--partition=" + options.partition};
  if (!options.account.empty()) common.push_back("--account=" + options.account);
  if (options.gpus_per_node > 0) common.push_back(fmt::format("--gpus-per-node={}", options.gpus_per_node));
  Texts salloc = {"salloc"}, srun = {"srun"}, container = container_options(options);
  append(salloc, common);
  salloc.push_back("--time=" + options.time);
  if (!container.empty() && path_on_host(options, options.workdir))
    container.push_back("--container-workdir=" + options.workdir);
  if (!container.empty() && !options.passed.empty())
    container.push_back("--container-env=" + joined(options.passed, ","));
  for (const Texts& part : {common, mpi_option(options), {"--no-kill"}, container, {"--pty", "bash"}})
    append(srun, part);
  std::string inside = lines_of(exports_of_options(options, /*is_braid=*/false), "export ");
  if (!options.warm_up.empty()) inside += options.warm_up + "\n";
  if (nodes > 1)
    inside += "# Run commands on all nodes with: srun --overlap (this shell is a step that already has their GPUs)\n";
  inside += last;
  return fmt::format(
      "# 1. On the login node: allocate nodes.\n{}\n\n# 2. In the shell that this starts: open a shell on the first "
      "node{}.\n{}\n{}",
      joined_quoted(salloc), options.container.empty() ? "" : ", in the container", joined_quoted(srun),
      inside.empty() ? "" : "\n# 3. In that shell, run these commands first.\n" + inside);
}

SlurmJob job_of_command(const SlurmOptions& options, const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    throw ConfigError({"there is no command", "command line", "give a recipe, or a command after --"});
  if (text.find("\r\n") != std::string::npos)
    throw ConfigError({"the command has Windows line endings, which bash treats as part of the words", "the command",
                       "convert it with dos2unix"});
  refuse_secrets(text);
  refuse_scripts_with_torchrun(options, text);
  SlurmJob job;
  job.sets_rank_variables = sets_rank_variables(text);
  const Phases phases = phases_of(text);
  const auto rewritten = [&](int ranks) {
    return options.style == "torchrun" ? node_command(phases.each, torchrun_world(ranks, job.sets_rank_variables))
                                       : rank_command(phases.each, rank_environment(ranks));
  };
  const RankCommand asked = rewritten(1);
  check_ranks(options, asked);
  job.nodes = options.nodes.value_or(asked.nodes.value_or(1));
  job.ranks_per_node = options.gpus_per_node > 0 ? options.gpus_per_node : *asked.ranks_per_node;
  const RankCommand command = rewritten(job.ranks_per_node);
  job.title = command.program.empty() ? "a command" : command.program;
  job.command = command.text;
  job.had_torchrun = command.had_torchrun;
  job.exports = exports_for_gpus();
  append(job.exports, {"NVTE_ALLOW_NONDETERMINISTIC_ALGO=1", "PYTHONUNBUFFERED=1"});
  // Megatron-LM's scripts import the copy of Megatron-LM that projects keep in 3rdparty/.
  const fs::path megatron = "3rdparty/Megatron-LM";
  const bool may_have_it = options.host_workdir.empty() || is_folder(options.host_workdir / megatron);
  if (fs::path(command.script).filename().string().starts_with("pretrain_") && may_have_it)
    job.prelude = fmt::format("export PYTHONPATH={}\"${{PYTHONPATH:+:$PYTHONPATH}}\"\n",
                              shell_quoted((options.workdir / megatron).string()));
  if (command.has_pipe) job.prelude += kPipesFail;
  if (!phases.once.empty()) job.first_phase = (command.has_pipe ? kPipesFail : "") + with_line_end(kOnce + phases.once);
  if (!command.left_out.empty())
    job.notes.push_back(fmt::format("torchrun is not used here, so these options of it have no effect: {}",
                                    fmt::join(command.left_out, ", ")));
  return job;
}

std::string rank_environment(int ranks_per_node) {
  return fmt::format(
      "RANK=\"$SLURM_PROCID\" WORLD_SIZE=\"$SLURM_NTASKS\" LOCAL_RANK=\"$SLURM_LOCALID\" LOCAL_WORLD_SIZE={} "
      "MASTER_ADDR=\"$BRAID_MASTER_ADDR\" MASTER_PORT=\"$BRAID_MASTER_PORT\"",
      ranks_per_node);
}

std::string torchrun_world(int ranks_per_node, bool sets_rank_variables) {
  return fmt::format(
      "--nnodes=\"$SLURM_JOB_NUM_NODES\" --node_rank=\"$SLURM_NODEID\" --nproc_per_node={0} "
      "--master_addr=\"${1}MASTER_ADDR\" --master_port=\"${1}MASTER_PORT\"",
      ranks_per_node, sets_rank_variables ? "BRAID_" : "");
}

std::string slurm_script(const SlurmOptions& options, const SlurmJob& job) { return Script(options, job).text(); }

}  // namespace braid
