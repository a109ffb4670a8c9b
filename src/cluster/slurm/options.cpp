#include "cluster/slurm/options.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/strings.h"
#include "cluster/megatron/shell_text.h"
#include "plan/cluster_config.h"

namespace braid {
namespace {

bool is_safe(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-'; }

bool has_control_character(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return std::iscntrl(static_cast<unsigned char>(c)); });
}

// Options that the script sets itself, and what to use instead.
struct Taken {
  const char *name, *letter, *instead;
  bool of_sbatch_only = false;
};
constexpr Taken kTaken[] = {
    {"--ntasks-per-node", "", "use --nodes and --gpus-per-node"},
    {"--ntasks", "-n", "use --nodes and --gpus-per-node"},
    {"--nodes", "-N", "use --nodes and --gpus-per-node"},
    {"--gpus-per-node", "", "use --nodes and --gpus-per-node"},
    {"--output", "-o", "use --log-dir and --job-name: braid launch status, tail and doctor look for the log there"},
    {"--error", "-e", "the log contains standard output and standard error, and braid doctor reads it"},
    {"--job-name", "-J", "use --job-name", true},
    {"--time", "-t", "use --time", true},
    {"--account", "-A", "use --account", true},
    {"--partition", "-p", "use --partition", true},
    {"--chdir", "-D", "use --workdir"},
    {"--open-mode", "", "a requeued job appends to its log", true},
    {"--signal", "", "use --stop-lead and --stop-signal", true},
    {"--requeue", "", "use --requeue", true},
    {"--no-requeue", "", "use --no-requeue", true}};

// name, name=value, name value; of a letter also -Nvalue.
bool is_option(std::string_view option, std::string_view name) {
  if (name.empty() || !option.starts_with(name)) return false;
  return option.size() == name.size() || name.size() == 2 || option[name.size()] == '=' || option[name.size()] == ' ';
}

// A short option of sbatch or srun that needs a value but has none.
bool needs_value(std::string_view option) {
  const std::string_view name = option.substr(0, option.find_last_not_of(' ') + 1);
  return name.size() == 2 && std::string_view("ABCDGJLMNSTWcdeimnopqrtwx").find(name[1]) != std::string_view::npos;
}

class Checks {
 public:
  explicit Checks(const SlurmOptions& options) : o_(options) {}

  std::vector<Problem> all() {
    sizes();
    texts();
    container();
    environment();
    stop();
    warm_up();
    for (const std::string& option : o_.sbatch) further("--sbatch", option);
    for (const std::string& option : o_.srun) further("--srun", option);
    return std::move(problems_);
  }

 private:
  void problem(std::string what, std::string where, std::string fix) {
    problems_.push_back({std::move(what), std::move(where), std::move(fix)});
  }

  void sizes() {
    if (o_.nodes && *o_.nodes < 1)
      problem(fmt::format("the number of nodes is {}", *o_.nodes), "--nodes", "use at least 1");
    if (o_.gpus_per_node < 0)
      problem(fmt::format("a node cannot have {} GPUs", o_.gpus_per_node), "--gpus-per-node", "use at least 0");
    if (!parse_wall_time(o_.time))
      problem(fmt::format("'{}' is not a time limit", o_.time), "--time",
              "use MINUTES, HH:MM:SS, DAYS-HH or DAYS-HH:MM:SS, e.g. 04:00:00");
    if (o_.style != "srun" && o_.style != "torchrun")
      problem(fmt::format("unknown style '{}'", o_.style), "--style",
              "use srun (one Slurm task per rank) or torchrun (one per node)");
  }

  void texts() {
    const std::pair<const char*, const std::string*> one_line[] = {
        {"--account", &o_.account},     {"--partition", &o_.partition},
        {"--log-dir", &o_.log_dir},     {"--workdir", &o_.workdir},
        {"--container", &o_.container}, {"--cache-dir", &o_.cache_dir},
        {"--stage", &o_.stage},         {"--mpi", &o_.mpi}};
    for (const auto& [where, text] : one_line)
      if (has_control_character(*text))
        problem(fmt::format("{} contains a line break or another control character", in_quotes(*text)), where,
                "leave it out");
    if (o_.log_dir.find('\\') != std::string::npos)
      problem(fmt::format("Slurm cannot write to '{}': a backslash has a special meaning for Slurm", o_.log_dir),
              "--log-dir", "use a folder without a backslash");
    if (!std::all_of(o_.job_name.begin(), o_.job_name.end(), is_safe))
      problem(fmt::format("{} cannot be the name of a job and its log file", in_quotes(o_.job_name)), "--job-name",
              fmt::format("use letters, digits and ._- only, e.g. {}", safe_job_name(o_.job_name)));
  }

  void container() {
    for (const std::string& mount : o_.mounts) {
      const auto parts = split(mount, ':');
      if (mount.find(',') != std::string::npos || has_control_character(mount))
        problem(fmt::format("mount '{}' contains a comma, which separates mounts", mount), "--mount",
                "give --mount once for each, and mount a parent folder of paths with commas");
      else if (parts.size() < 2 || parts[0].empty() || parts[1].empty())
        problem(fmt::format("mount '{}' has no target", mount), "--mount",
                fmt::format("write SRC:DST, e.g. {0}:{0}", parts[0].empty() ? "/data" : parts[0]));
    }
    if (!o_.mounts.empty() && o_.container.empty())
      problem("mounts were given but no container", "--mount", "give --container IMAGE, or leave the mounts out");
  }

  std::string secret_fix(const std::string& name) const {
    return o_.is_session ? fmt::format("export {} in your shell: salloc and srun pass it on", name)
                         : fmt::format("export {0} in your shell and give --secret {0}", name);
  }

  void environment() {
    for (const std::string& setting : o_.env) {
      const std::size_t equals = setting.find('=');
      const std::string name = setting.substr(0, equals);
      if (!is_identifier(name))
        problem(fmt::format("{} cannot be the name of a variable", in_quotes(name)), "--env", "write NAME=VALUE");
      else if (equals == std::string::npos)
        problem(
            fmt::format("'{}' has no value", name), "--env",
            fmt::format("write {}=VALUE; to pass your value without writing it to a file, {}", name, secret_fix(name)));
      else if (names_a_secret(name))
        problem(fmt::format("the value of {} would be in a file that others can read", name), "--env",
                secret_fix(name));
      else if (const auto secret = secret_in(setting))
        problem(fmt::format("{} contains {}, which would be in a file that others can read", name, *secret), "--env",
                secret_fix("NAME"));
      else if (setting.find('\0') != std::string::npos)
        problem(fmt::format("the value of {} contains a zero byte", name), "--env", "leave it out");
    }
    for (const std::string& name : o_.secrets)
      if (!is_identifier(name))
        problem(fmt::format("{} cannot be the name of a variable", in_quotes(name.substr(0, name.find('=')))),
                "--secret", "give the name only: its value is taken from the environment when the job is submitted");
  }

  void stop() {
    if (o_.stop_signal != "USR1" && o_.stop_signal != "TERM")
      problem(fmt::format("unsupported stop signal '{}'", o_.stop_signal), "--stop-signal",
              "use USR1, or TERM for programs that save on SIGTERM");
    if (o_.stop_lead_s < 1)
      problem(fmt::format("the signal cannot be sent {} s before the end", o_.stop_lead_s), "--stop-lead",
              "use as many seconds as the run needs to save");
    if (o_.style == "torchrun" && o_.stop_signal == "TERM" && o_.requeue.value_or(false))
      problem("torchrun ends its ranks when it gets SIGTERM, before they can save", "--stop-signal",
              "use USR1, or --style srun");
  }

  void warm_up() {
    try {
      refuse_secrets(o_.warm_up);
    } catch (const ConfigError& e) {
      for (const Problem& found : e.problems()) problem(found.what, "--warm-up", found.fix);
    }
  }

  // --export=ALL,HF_TOKEN=abc
  void secrets_in(const char* where, const std::string& option) {
    for (const std::string& part :
         split(option.substr(std::min(option.find_first_of("= "), option.size() - 1) + 1), ',')) {
      const std::string name = part.substr(0, part.find('='));
      if (name != part && names_a_secret(name))
        problem(fmt::format("the value of {} would be in a file that others can read", name), where, secret_fix(name));
    }
    if (const auto secret = secret_in(option))
      problem(fmt::format("{} contains {}", option.substr(0, option.find_first_of("= ")), *secret), where,
              secret_fix("NAME"));
  }

  void further(const char* where, const std::string& option) {
    if (!option.starts_with("-") || has_control_character(option))
      return problem(fmt::format("{} is not an option", in_quotes(option)), where,
                     fmt::format("give one whole option each time, e.g. {} --qos=high", where));
    secrets_in(where, option);
    if (needs_value(option))
      return problem(fmt::format("{} has no value", option), where,
                     fmt::format("write both as one word, e.g. {} '{}VALUE'", where, option));
    for (const Taken& taken : kTaken) {
      const bool is_it = is_option(option, taken.name) || is_option(option, taken.letter);
      if (!is_it || (taken.of_sbatch_only && where != std::string_view("--sbatch"))) continue;
      if (o_.style == "torchrun" && taken.name == std::string_view("--ntasks-per-node"))
        problem(fmt::format("{} with torchrun: every task would start a torchrun with {}, and all but the first "
                            "would fail with EADDRINUSE",
                            option, counted(o_.gpus_per_node, "rank")),
                where, "leave it out: torchrun needs one task per node; --style srun has one per rank");
      else
        problem(fmt::format("{} conflicts with an option that the script sets itself", option), where,
                fmt::format("leave it out; {}", taken.instead));
      return;
    }
  }

  const SlurmOptions& o_;
  std::vector<Problem> problems_;
};

std::string absolute(const std::string& path, const std::string& base) {
  std::string text = (std::filesystem::path(base) / path).lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace

bool is_image_file(const std::string& container) {
  return container.ends_with(".sqsh") || container.starts_with("/") || container.starts_with(".");
}

SlurmOptions with_absolute_paths(SlurmOptions options, const std::string& current_folder) {
  options.workdir = absolute(options.workdir, current_folder);
  options.log_dir = absolute(options.log_dir, options.workdir);
  for (std::string* folder : {&options.cache_dir, &options.stage})
    if (!folder->empty()) *folder = absolute(*folder, options.workdir);
  if (is_image_file(options.container)) options.container = absolute(options.container, options.workdir);
  for (std::string& mount : options.mounts) {
    const std::size_t colon = mount.find(':');
    mount = absolute(mount.substr(0, colon), options.workdir) + mount.substr(colon);
  }
  return options;
}

std::vector<Problem> validate(const SlurmOptions& options) { return Checks(options).all(); }

std::string safe_job_name(std::string_view name) {
  std::string safe(name);
  std::replace_if(
      safe.begin(), safe.end(), [](char c) { return !is_safe(c); }, '-');
  return safe.empty() ? "job" : safe;
}

}  // namespace braid
