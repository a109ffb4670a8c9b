#include <unistd.h>
#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "cluster/megatron/commands.h"
#include "cluster/slurm/script.h"
#include "plan/cluster_config.h"

namespace braid {
namespace {

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)); }

struct TokenShape {
  const char* what;
  std::string_view prefix;
  std::size_t length;      // minimum length of what follows
  std::string_view marks;  // allowed in that besides letters and digits
};

// Ordinary names (sk-learn-..., hf_...) have no digits or are shorter.
bool has_token(std::string_view text, const TokenShape& shape) {
  for (std::size_t at = text.find(shape.prefix); at != text.npos; at = text.find(shape.prefix, at + 1)) {
    if (at > 0 && (is_alnum(text[at - 1]) || text[at - 1] == '_' || text[at - 1] == '-')) continue;
    std::size_t end = at + shape.prefix.size();
    while (end < text.size() && (is_alnum(text[end]) || shape.marks.find(text[end]) != shape.marks.npos)) ++end;
    const std::string_view rest = text.substr(at + shape.prefix.size(), end - at - shape.prefix.size());
    const bool has_digit = std::ranges::any_of(rest, [](unsigned char c) { return std::isdigit(c); });
    if (rest.size() >= shape.length && (shape.marks.empty() || has_digit)) return true;
  }
  return false;
}

// "hf_token" for --model.hf-token
std::string plain_name(std::string_view option) {
  std::string name(option.substr(std::min(option.find_first_not_of("-+"), option.size())));
  name.erase(0, name.rfind('.') + 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : std::tolower(c); });
  return name;
}

// --hf-token, --wandb-key, wandb.api_key; not --pad-token, --tokenizer-key
bool option_names_a_secret(std::string_view option) {
  static const std::set<std::string> always = {"password", "passwd", "apikey", "secret"};
  static const std::set<std::string> of_keys = {"api", "wandb", "access", "secret", "auth"};
  static const std::set<std::string> of_tokens = {"hf", "huggingface", "hub",    "auth",  "access", "api",
                                                  "gh", "github",      "gitlab", "wandb", "bearer", "ngc"};
  const std::string name = plain_name(option);
  if (name == "token") return option.starts_with("-") && option.find('.') == option.npos;
  const auto parts = split(name, '_');
  const std::string before = parts.size() > 1 ? parts[parts.size() - 2] : "";
  return always.count(parts.back()) || (parts.back() == "key" && of_keys.count(before)) ||
         (parts.back() == "token" && of_tokens.count(before));
}

bool is_literal_secret(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* harmless : {"true", "false", "none", "null", "empty", "dummy", "0", "1"})
    if (value == harmless) return false;
  return !value.empty() && std::string_view("-$/.~").find(value[0]) == std::string_view::npos;
}

[[noreturn]] void refuse_option(const std::string& option) {
  std::string variable = plain_name(option);
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
  throw ConfigError(
      {fmt::format("the command contains the value of {}", option), "the command",
       fmt::format("export it in your shell as {0}, give --secret {0}, and write \"${0}\" in its place, in "
                   "shell text: --command-file, or one word in single quotes",
                   variable)});
}

void refuse_options(const ShellCommand& command) {
  for (std::size_t i = 0; i < command.words.size(); ++i) {
    const ShellWord& word = command.words[i];
    const std::size_t equals = word.head.find('=');
    const std::string name = word.head.substr(0, equals);
    if (!option_names_a_secret(name)) continue;
    if (equals != name.npos && is_literal_secret(word.head.substr(equals + 1))) refuse_option(name);
    const bool value_follows =
        equals == name.npos && word.value && name.starts_with("-") && i + 1 < command.words.size();
    if (value_follows && is_literal_secret(command.words[i + 1].head)) refuse_option(name);
  }
}

bool is_safe(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-'; }

bool has_control_character(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return std::iscntrl(static_cast<unsigned char>(c)); });
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
    {"--no-requeue", "", "use --no-requeue", true},
    {"--container-image", "", "use --container"},
    {"--container-mounts", "", "use --mount"},
    {"--container-workdir", "", "use --workdir"},
    {"--container-mount-home", "", "use --mount for the folder that ranks need"}};

// name, name=value, name value; of a letter also -Nvalue.
bool is_option(std::string_view option, std::string_view name) {
  if (name.empty() || !option.starts_with(name)) return false;
  return option.size() == name.size() || name.size() == 2 || option[name.size()] == '=' || option[name.size()] == ' ';
}

bool is_of_pyxis(std::string_view option) {
  return option.starts_with("--container-") || option.starts_with("--no-container-");
}

class Checks {
 public:
  explicit Checks(const SlurmOptions& options) : o_(options) {}

  std::vector<Problem> all() {
    sizes_and_names();
    container();
    environment();
    stop();
    try {
      refuse_secrets(o_.warm_up);
    } catch (const ConfigError& e) {
      for (const Problem& found : e.problems()) problems_.push_back({found.what, "--warm-up", found.fix});
    }
    for (const std::string& option : o_.sbatch) further("--sbatch", option);
    for (const std::string& option : o_.srun) further("--srun", option);
    return std::move(problems_);
  }

 private:
  bool refuse_if(bool wrong, std::string what, std::string where, std::string fix) {
    if (wrong) problems_.push_back({std::move(what), std::move(where), std::move(fix)});
    return wrong;
  }

  void sizes_and_names() {
    refuse_if(o_.nodes.value_or(1) < 1, fmt::format("the number of nodes is {}", o_.nodes.value_or(1)), "--nodes",
              "use at least 1");
    refuse_if(o_.gpus_per_node < 0, fmt::format("a node cannot have {} GPUs", o_.gpus_per_node), "--gpus-per-node",
              "use at least 0");
    refuse_if(!parse_wall_time(o_.time), fmt::format("'{}' is not a time limit", o_.time), "--time",
              "use MINUTES, HH:MM:SS, DAYS-HH or DAYS-HH:MM:SS, e.g. 04:00:00");
    refuse_if(!o_.task.empty() && !find_task(o_.task), fmt::format("unknown task '{}'", o_.task), "--task",
              "use train, inference or convert");
    refuse_if(o_.style != "srun" && o_.style != "torchrun", fmt::format("unknown style '{}'", o_.style), "--style",
              "use srun (one Slurm task per rank) or torchrun (one per node)");
    const std::pair<const char*, const std::string*> one_line[] = {
        {"--account", &o_.account},     {"--partition", &o_.partition},
        {"--log-dir", &o_.log_dir},     {"--workdir", &o_.workdir},
        {"--container", &o_.container}, {"--cache-dir", &o_.cache_dir},
        {"--stage", &o_.stage},         {"--mpi", &o_.mpi}};
    for (const auto& [where, text] : one_line)
      refuse_if(has_control_character(*text),
                fmt::format("{} contains a line break or another control character", in_quotes(*text)), where,
                "leave it out");
    refuse_if(o_.log_dir.find('\\') != std::string::npos,
              fmt::format("Slurm cannot write to '{}': a backslash has a special meaning for Slurm", o_.log_dir),
              "--log-dir", "use a folder without a backslash");
    refuse_if(!std::ranges::all_of(o_.job_name, is_safe),
              fmt::format("{} cannot be the name of a job and its log file", in_quotes(o_.job_name)), "--job-name",
              fmt::format("use letters, digits and ._- only, e.g. {}", safe_job_name(o_.job_name)));
  }

  void container() {
    for (const std::string& mount : o_.mounts) {
      const auto parts = split(mount, ':');
      refuse_if(mount.find(',') != std::string::npos || has_control_character(mount),
                fmt::format("mount '{}' contains a comma, which separates mounts", mount), "--mount",
                "give --mount once for each, and mount a parent folder of paths with commas") ||
          refuse_if(parts.size() < 2 || parts[0].empty() || parts[1].empty(),
                    fmt::format("mount '{}' has no target", mount), "--mount",
                    fmt::format("write SRC:DST, e.g. {0}:{0}", parts[0].empty() ? "/data" : parts[0])) ||
          refuse_if(!parts[1].starts_with('/'), fmt::format("the target of mount '{}' is not absolute", mount),
                    "--mount", fmt::format("write {}:/{}", parts[0], parts[1]));
    }
    if (const auto problem = image_problem(o_.container)) problems_.push_back(*problem);
    refuse_if(!o_.mounts.empty() && o_.container.empty(), "mounts were given but no container", "--mount",
              "give --container IMAGE, or leave the mounts out");
  }

  std::string secret_fix(const std::string& name) const {
    return o_.is_session ? fmt::format("export {} in your shell: salloc and srun pass it on", name)
                         : fmt::format("export {0} in your shell and give --secret {0}", name);
  }

  void environment() {
    for (const std::string& setting : o_.env) {
      const std::size_t equals = setting.find('=');
      const std::string name = setting.substr(0, equals);
      const auto secret = secret_in(setting);
      refuse_if(!is_identifier(name), fmt::format("{} cannot be the name of a variable", in_quotes(name)), "--env",
                "write NAME=VALUE") ||
          refuse_if(equals == std::string::npos, fmt::format("'{}' has no value", name), "--env",
                    fmt::format("write {}=VALUE; to pass your value without writing it to a file, {}", name,
                                secret_fix(name))) ||
          refuse_if(names_a_secret(name), fmt::format("the value of {} would be in a file that others can read", name),
                    "--env", secret_fix(name)) ||
          refuse_if(
              secret.has_value(),
              fmt::format("{} contains {}, which would be in a file that others can read", name, secret.value_or("")),
              "--env", secret_fix("NAME")) ||
          refuse_if(setting.find('\0') != std::string::npos, fmt::format("the value of {} contains a zero byte", name),
                    "--env", "leave it out");
    }
    for (const std::string& name : o_.secrets)
      refuse_if(!is_identifier(name),
                fmt::format("{} cannot be the name of a variable", in_quotes(name.substr(0, name.find('=')))),
                "--secret", "give the name only: its value is taken from the environment when the job is submitted");
  }

  void stop() {
    refuse_if(o_.stop_signal != "USR1" && o_.stop_signal != "TERM",
              fmt::format("unsupported stop signal '{}'", o_.stop_signal), "--stop-signal",
              "use USR1, or TERM for programs that save on SIGTERM");
    refuse_if(o_.stop_lead_s < 1, fmt::format("the signal cannot be sent {} s before the end", o_.stop_lead_s),
              "--stop-lead", "use as many seconds as the run needs to save");
    refuse_if(o_.style == "torchrun" && o_.stop_signal == "TERM" && o_.requeue.value_or(false),
              "torchrun ends its ranks when it gets SIGTERM, before they can save", "--stop-signal",
              "use USR1, or --style srun");
  }

  // --qos=high; secrets may be in --export=ALL,HF_TOKEN=abc
  void further(const char* where, const std::string& option) {
    if (refuse_if(!option.starts_with("-") || has_control_character(option),
                  fmt::format("{} is not an option", in_quotes(option)), where,
                  fmt::format("give one whole option each time, e.g. {} --qos=high", where)))
      return;
    const std::size_t name_end = option.find_first_of("= ");
    for (const std::string& part : split(option.substr(std::min(name_end, option.size() - 1) + 1), ',')) {
      const std::string name = part.substr(0, part.find('='));
      refuse_if(name != part && names_a_secret(name),
                fmt::format("the value of {} would be in a file that others can read", name), where, secret_fix(name));
    }
    const auto secret = secret_in(option);
    refuse_if(secret.has_value(), fmt::format("{} contains {}", option.substr(0, name_end), secret.value_or("")), where,
              secret_fix("NAME"));
    constexpr std::string_view kWithValue = "ABCDGJLMNSTWcdeimnopqrtwx";  // short options of sbatch and srun
    const std::string_view name = std::string_view(option).substr(0, option.find_last_not_of(' ') + 1);
    const bool needs_value = name.size() == 2 && kWithValue.find(name[1]) != kWithValue.npos;
    if (refuse_if(needs_value, fmt::format("{} has no value", option), where,
                  fmt::format("write both as one word, e.g. {} '{}VALUE'", where, option)))
      return;
    if (where == std::string_view("--sbatch"))
      if (auto problem = pyxis_in_sbatch(option, where)) return problems_.push_back(std::move(*problem));
    const auto* taken = std::ranges::find_if(kTaken, [&](const Taken& each) {
      return (is_option(option, each.name) || is_option(option, each.letter)) &&
             (!each.of_sbatch_only || where == std::string_view("--sbatch"));
    });
    if (taken == std::end(kTaken)) return;
    const bool by_torchrun = o_.style == "torchrun" && taken->name == std::string_view("--ntasks-per-node");
    refuse_if(by_torchrun,
              fmt::format("{} with torchrun: every task would start a torchrun with {}, and all but the first would "
                          "fail with EADDRINUSE",
                          option, counted(o_.gpus_per_node, "rank")),
              where, "leave it out: torchrun needs one task per node; --style srun has one per rank") ||
        refuse_if(true, fmt::format("{} conflicts with an option that the script sets itself", option), where,
                  fmt::format("leave it out; {}", taken->instead));
  }

  const SlurmOptions& o_;
  std::vector<Problem> problems_;
};

std::string absolute(const std::string& path, const std::string& base) {
  std::string text = (fs::path(base) / path).lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

struct Mount {
  std::string source, target;
};

// The last one is first, as it covers the earlier ones.
std::vector<Mount> mounts_of(const SlurmOptions& options) {
  std::vector<Mount> mounts;
  for (const std::string& text : options.mounts) {
    const auto parts = split(text, ':');
    if (parts.size() > 1) mounts.insert(mounts.begin(), {parts[0], absolute(parts[1], "/")});
  }
  return mounts;
}

// "/b/x" for "/a/x" if `from` is "/a" and `to` is "/b"; nothing if the path is not in `from`.
std::optional<std::string> moved(const std::string& path, const std::string& from, const std::string& to) {
  const fs::path rest = fs::path(path).lexically_relative(from);
  if (rest.empty() || *rest.begin() == "..") return std::nullopt;
  return absolute(rest, to);
}

}  // namespace

bool names_a_secret(std::string_view variable) {
  for (const char* part : {"API_KEY", "APIKEY", "ACCESS_KEY", "SECRET", "PASSWORD", "PASSWD"})
    if (variable.find(part) != std::string_view::npos) return true;
  // Whole words only: TOKENIZERS_PARALLELISM and TRAIN_TOKENS are not secrets.
  return contains(split(variable, '_'), "TOKEN");
}

std::optional<std::string> secret_in(std::string_view text) {
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view setting = *entry;
    const std::size_t equals = setting.find('=');
    if (equals == setting.npos || !names_a_secret(setting.substr(0, equals))) continue;
    const std::string_view value = setting.substr(equals + 1);
    // A file name is not a secret, and short values occur in many texts by chance.
    if (value.size() >= 8 && value[0] != '/' && text.find(value) != text.npos)
      return fmt::format("the value of your {}", setting.substr(0, equals));
  }
  static constexpr TokenShape shapes[] = {
      {"a Hugging Face token", "hf_", 20, ""},  {"a GitHub token", "ghp_", 20, ""},
      {"a GitHub token", "gho_", 20, ""},       {"a GitHub token", "ghs_", 20, ""},
      {"a GitHub token", "ghu_", 20, ""},       {"a GitHub token", "github_pat_", 20, "_"},
      {"an API key (sk-...)", "sk-", 20, "-_"}, {"a GitLab token", "glpat-", 16, "-_"},
      {"a Slack token", "xox", 12, "-"},        {"an AWS key", "AKIA", 16, ""}};
  const auto* found = std::ranges::find_if(shapes, [&](const TokenShape& shape) { return has_token(text, shape); });
  return found == std::end(shapes) ? std::nullopt : std::optional<std::string>(found->what);
}

void refuse_secrets(std::string_view text) {
  for (const ShellCommand& command : simple_commands(text)) {
    for (const auto* part : {&command.assignments, &command.words})
      for (const ShellWord& word : *part) {
        const std::size_t equals = word.head.find('=');
        const std::string name = word.head.substr(0, equals);
        if (equals == std::string::npos || !is_identifier(name) || !names_a_secret(name)) continue;
        if (word.head.size() == equals + 1) continue;  // empty, or from another variable
        throw ConfigError({fmt::format("the command contains the value of {}", name), "the command",
                           fmt::format("export {0} in your shell, leave it out here and give --secret {0}", name)});
      }
    refuse_options(command);
  }
  if (const auto secret = secret_in(text))
    throw ConfigError({fmt::format("the command contains {}", *secret), "the command",
                       "export it in your shell, give --secret NAME, and write \"$NAME\" in its place, in shell text: "
                       "--command-file, or one word in single quotes"});
}

std::optional<Problem> image_problem(const std::string& container) {
  // dockerd:// is an image of this machine, whose name may contain a registry.
  if (container.empty() || is_image_file(container) || container.starts_with("dockerd://")) return std::nullopt;
  const std::size_t scheme_end = container.find("://");
  const std::string scheme = scheme_end == container.npos ? "" : container.substr(0, scheme_end + 3);
  std::string name = container.substr(scheme.size()), user;
  if (const std::size_t at = name.find_first_of("@/#"); at != name.npos && name[at] == '@') {
    user = name.substr(0, at + 1);
    name.erase(0, at + 1);
  }
  const std::size_t end = name.find_first_of("/#");
  const std::string registry = name.substr(0, end), path = end == name.npos ? "" : name.substr(end + 1);
  const bool is_marked = end != name.npos && name[end] == '#';
  const bool is_registry =
      is_marked || (end != name.npos && (registry.find_first_of(".:") != registry.npos || registry == "localhost"));
  const bool has_docker_scheme = scheme.empty() || scheme == "docker://";
  const bool is_complete = end == name.npos || (!registry.empty() && !path.empty());
  if (has_docker_scheme && is_complete && is_registry == is_marked && path.find('#') == path.npos) return std::nullopt;
  if (!is_complete || !is_registry || (is_marked && path.find('#') != path.npos))
    return Problem{fmt::format("{} is not the name of an image", in_quotes(container)), "--container",
                   "write [USER@][REGISTRY#]IMAGE[:TAG], e.g. nvcr.io#nvidia/pytorch:25.01, or the path of a file"};
  std::string image = path;
  std::ranges::replace(image, '#', '/');
  return Problem{
      fmt::format("pyxis would look for {} on Docker Hub: a registry is followed by #", in_quotes(container)),
      "--container",
      fmt::format("give --container '{}{}{}'", user, registry == "docker.io" ? "" : registry + "#", image)};
}

SlurmOptions with_absolute_paths(SlurmOptions options, const std::string& current_folder) {
  const bool in_container = !options.container.empty(), is_given = options.workdir.starts_with('/');
  const std::string workdir = absolute(options.workdir, current_folder);
  const bool is_inside = in_container && is_given && (path_on_host(options, workdir) || !is_folder(workdir));
  const std::string base = is_inside ? current_folder : workdir;
  if (is_image_file(options.container)) options.container = absolute(options.container, base);
  for (std::string& mount : options.mounts) {
    const std::size_t colon = std::min(mount.find(':'), mount.size());
    if (colon > 0) mount = absolute(mount.substr(0, colon), base) + mount.substr(colon);
  }
  options.launch_folder = current_folder;
  options.host_workdir = is_inside ? path_on_host(options, workdir).value_or("") : workdir;
  options.workdir = is_inside ? workdir : path_inside(options, workdir).value_or(workdir);
  const std::string& logs_start = options.host_workdir.empty() ? current_folder : options.host_workdir;
  if (options.log_dir.starts_with('/'))
    options.log_dir = absolute(path_on_host(options, options.log_dir).value_or(options.log_dir), "/");
  else if (!options.log_dir.empty())
    options.log_dir = absolute(options.log_dir, logs_start);
  for (std::string* folder : {&options.cache_dir, &options.stage})
    if (!folder->empty()) *folder = seen_by_ranks(options, absolute(*folder, options.workdir));
  return options;
}

std::optional<std::string> path_on_host(const SlurmOptions& options, const std::string& inside) {
  if (options.container.empty()) return inside;
  for (const auto& [source, target] : mounts_of(options))
    if (auto path = moved(inside, target, source)) return path;
  return std::nullopt;
}

std::optional<std::string> path_inside(const SlurmOptions& options, const std::string& on_host) {
  if (options.container.empty()) return on_host;
  for (const auto& [source, target] : mounts_of(options))
    if (auto path = moved(on_host, source, target); path && path_on_host(options, *path) == on_host) return path;
  return std::nullopt;
}

std::string seen_by_ranks(const SlurmOptions& options, const std::string& path) {
  return path_on_host(options, path) ? path : path_inside(options, path).value_or(path);
}

std::string seen_here(const SlurmOptions& options, const std::string& path) {
  return path_on_host(options, path).value_or(path);
}

Problem missing_mount(const std::string& what, const std::string& path) {
  const std::string folder = is_folder(path) ? path : fs::path(path).parent_path().string();
  const bool is_of_host = is_folder(folder) && folder != "/";
  return {fmt::format("no --mount covers '{}', so the container does not have it", path), what,
          fmt::format("give --mount {}:{}{}", is_of_host ? folder : "SRC", folder,
                      is_of_host ? "" : ", where SRC is this folder on the host")};
}

const Task* find_task(std::string_view name) {
  const auto* found = std::ranges::find(kTasks, name, &Task::name);
  return found == std::end(kTasks) ? nullptr : found;
}

const Task& task_of(std::string_view program) {
  std::string name(program);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return c == '-' || c == '.' ? '_' : std::tolower(c); });
  for (const std::string& part : split(name, '_'))
    for (const Task& task : kTasks)
      if (contains(split(task.words, ' '), part) && !part.empty()) return task;
  return kTasks[0];
}

std::optional<Problem> pyxis_in_sbatch(const std::string& option, const std::string& where) {
  if (!is_of_pyxis(option)) return std::nullopt;
  const std::string name = option.substr(0, option.find_first_of("= "));
  const bool is_given = name == "--no-container-mount-home";
  return Problem{fmt::format("{} is an option of srun; sbatch would not pass it to the ranks", name), where,
                 is_given                        ? "leave it out: with --container, the script gives it to srun"
                 : name == "--container-image"   ? "use --container"
                 : name == "--container-mounts"  ? "use --mount"
                 : name == "--container-workdir" ? "use --workdir"
                                                 : fmt::format("give --srun '{}'", option)};
}

std::vector<Problem> validate(const SlurmOptions& options) { return Checks(options).all(); }

std::string safe_job_name(std::string_view name) {
  std::string safe(name);
  std::ranges::replace_if(
      safe, [](char c) { return !is_safe(c); }, '-');
  return safe.empty() ? "job" : safe;
}

}  // namespace braid
