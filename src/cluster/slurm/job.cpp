#include "cluster/slurm/job.h"
#include <nlohmann/json.hpp>
#include <sys/vfs.h>
#include <unistd.h>
#include "base/files.h"
#include "base/process.h"
#include "base/strings.h"
#include "plan/cluster_config.h"

namespace braid {
namespace {

std::string in_words(const Allocation& allocation) {
  return fmt::format("{} of {} {} {}", counted(allocation.nodes, "node"), counted(allocation.gpus_per_node, "GPU"),
                     allocation.nodes == 1 ? "has" : "have", allocation.gpus());
}

// The language dp with which the topology fills this many GPUs, if there is one.
std::optional<int> language_dp_for(TopologyConfig topology, const Workload& workload, std::int64_t gpus) {
  topology.world_size.reset();
  std::int64_t others = 0;
  ModuleConfig* language = nullptr;
  for (ModuleConfig& module : topology.modules) {
    if (module.kind == ModuleKind::Language)
      language = &module;
    else
      others += grid_size(module);
    module.rank_offset.reset();
    module.ranks.reset();
    module.expt_dp.reset();
  }
  const std::int64_t replica = std::int64_t{language->tp} * language->cp * language->pp;
  if (gpus <= others || (gpus - others) % replica) return std::nullopt;
  language->dp = static_cast<int>((gpus - others) / replica);
  return validate(topology, workload).empty() ? std::optional(language->dp) : std::nullopt;
}

// "--nodes 9 for the recipe as it is", "--nodes 17 with --llm-dp 64": for the requested number if another layout fits
// it, for the nearest below and above, and for that of the recipe itself.
std::vector<std::string> nodes_that_fit(const TopologyConfig& topology, const Workload& workload,
                                        const Allocation& allocation) {
  constexpr int kSearched = 128;  // in each direction; layouts further away are not useful
  const std::int64_t ranks = world_size_of(topology);
  const auto with = [&](int nodes) -> std::string {
    const std::int64_t gpus = std::int64_t{nodes} * allocation.gpus_per_node;
    if (ranks == gpus) return fmt::format("--nodes {} for the recipe as it is", nodes);
    const auto dp = topology.colocated ? std::nullopt : language_dp_for(topology, workload, gpus);
    if (!dp) return "";
    return fmt::format("--nodes {} with --llm-dp {}{}", nodes, *dp,
                       topology.world_size ? fmt::format(" --topology.world_size {}", gpus) : "");
  };
  const int own = ranks % allocation.gpus_per_node ? 0 : static_cast<int>(ranks / allocation.gpus_per_node);
  std::set<int> nodes;
  if (own) nodes.insert(own);
  if (!with(allocation.nodes).empty()) {
    nodes.insert(allocation.nodes);
  } else {
    int below = allocation.nodes - 1, above = allocation.nodes + 1;
    const int lowest = std::max(1, allocation.nodes - kSearched), highest = allocation.nodes + kSearched;
    while (below >= lowest && with(below).empty()) --below;
    while (above <= highest && with(above).empty()) ++above;
    if (below >= lowest) nodes.insert(below);
    if (above <= highest) nodes.insert(above);
  }
  auto texts = vector_of<std::string>(nodes, with);
  if (own || ranks > 1024) return texts;
  std::int64_t per_node = 1;  // the largest number of ranks, at most its GPUs, that fills every node
  for (const std::int64_t divisor : divisors(ranks))
    if (divisor <= allocation.gpus_per_node) per_node = std::max(per_node, divisor);
  texts.push_back(fmt::format("--gpus-per-node {} --nodes {}", per_node, ranks / per_node));
  return texts;
}

constexpr std::uint64_t kMostOfAModel = 1 << 30;  // larger sizes are not those of a model

std::string gigabytes(double bytes) { return fmt::format("{:.3g} GB", bytes / 1e9); }

void check_partition(const std::string& name, const SlurmRequest& request, const std::vector<Partition>& partitions,
                     Preflight& preflight) {
  const std::string offers = "sinfo offers " + offered(partitions);
  const auto partition = std::ranges::find(partitions, name, &Partition::name);
  if (partition == partitions.end()) {
    preflight.problems.push_back(
        {name.empty() ? std::string("no partition was given") : fmt::format("there is no partition '{}'", name),
         "--partition", offers});
    return;
  }
  const auto time = parse_wall_time(request.time);
  const int nodes = request.allocation.nodes;
  if (!partition->up)
    preflight.warnings.push_back(
        {fmt::format("partition '{}' is not up", partition->name), "--partition", "the job will wait until it is up"});
  if (nodes > partition->nodes)
    preflight.problems.push_back(
        {fmt::format("partition '{}' has {}, not {}", partition->name, counted(partition->nodes, "node"), nodes),
         "--nodes", offers});
  const int gpus = request.allocation.gpus_per_node;
  if (partition->gpus_per_node > 0 && gpus > partition->gpus_per_node)
    preflight.problems.push_back({fmt::format("nodes of partition '{}' have {}, not {}", partition->name,
                                              counted(partition->gpus_per_node, "GPU"), gpus),
                                  "--gpus-per-node", fmt::format("use --gpus-per-node {}", partition->gpus_per_node)});
  if (time && partition->time_limit && *time > *partition->time_limit)
    preflight.problems.push_back(
        {fmt::format("{} is longer than partition '{}' allows", request.time, partition->name), "--time", offers});
}

void check_account(const SlurmRequest& request, const std::vector<Association>& associations, Preflight& preflight) {
  std::vector<std::string> accounts;
  for (const auto& [account, partition] : associations) {
    if (!contains(accounts, account)) accounts.push_back(account);
    if (account == request.account && (partition.empty() || contains(split(request.partition, ','), partition))) return;
  }
  preflight.problems.push_back(
      {request.account.empty() ? "no account was given"
       : contains(accounts, request.account)
           ? fmt::format("account '{}' may not use partition '{}'", request.account, request.partition)
           : fmt::format("you have no account '{}'", request.account),
       "--account", fmt::format("yours are {}", fmt::join(accounts, ", "))});
}

// Whether each node has its own: a folder for temporary files, or a file system in memory.
bool is_node_local(const fs::path& path) {
  for (const char* folder : {"/tmp", "/var/tmp", "/dev/shm", "/run"})
    if (const auto relative = path.lexically_relative(folder); !relative.empty() && *relative.begin() != "..")
      return true;
  constexpr long kTmpfs = 0x01021994, kRamfs = 0x858458f6, kOverlay = 0x794c7630;
  struct statfs info {};
  if (statfs(nearest_existing(path).c_str(), &info) != 0) return false;
  return info.f_type == kTmpfs || info.f_type == kRamfs || static_cast<long>(info.f_type) == kOverlay;
}

Rows rows_of(const std::string& text) {
  Rows rows;
  for (const std::string& line : split(text, '\n'))
    if (!line.empty()) rows.push_back(split(line, '|'));
  return rows;
}

// What a program prints, as its parts; nothing if it is missing or fails.
template <class Part>
std::optional<std::vector<Part>> answer_of(const std::vector<std::string>& command,
                                           std::vector<Part> (*parse)(const std::string& text)) {
  const auto answer = output_of(command);
  return answer && answer->exit_code == 0 ? std::optional(parse(answer->out)) : std::nullopt;
}

std::optional<JobRecord> ask_sacct(const std::string& id) {
  const auto answer =
      output_of({"sacct", "-nPX", "-j", id, "--format=JobID,JobName,State,Elapsed,Timelimit,NodeList,ExitCode"});
  if (!answer || answer->exit_code != 0) return std::nullopt;
  const std::vector<std::string> row = split(split(answer->out, '\n').front(), '|');
  if (row.size() != 7) return std::nullopt;
  return JobRecord{.id = row[0],
                   .name = row[1],
                   .state = row[2],
                   .run_time = row[3],
                   .time_limit = row[4],
                   .nodes = row[5],
                   .exit_code = row[6]};
}

constexpr std::int64_t kTailBytes = 1 << 18;

// The whole lines in the last part of a file.
std::vector<std::string> last_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::int64_t size = file.tellg();
  const std::int64_t begin = std::max<std::int64_t>(0, size - kTailBytes);
  std::string text(static_cast<std::size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
  std::vector<std::string> lines = split(text, '\n');
  if (begin > 0) lines.erase(lines.begin());
  return lines;
}

// The word after a label, with optional padding: "lm loss: 1.2E+00", "iteration       10/     100".
std::string_view word_behind(std::string_view line, std::string_view label) {
  const std::size_t at = line.find(label);
  if (at == std::string_view::npos) return {};
  line.remove_prefix(at + label.size());
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  return line.substr(0, line.find_first_of(" |/,\r"));
}

std::optional<double> number_behind(std::string_view line, std::string_view label) {
  return parse_double(word_behind(line, label));
}

template <class Number>
std::optional<Number> member(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::optional(found->get<Number>()) : std::nullopt;
}

std::optional<LoggedProgress> from_metrics(const std::string& path) {
  constexpr int kMeanOver = 20;
  std::optional<LoggedProgress> progress;
  double milliseconds = 0;
  int counted = 0;
  const std::vector<std::string> lines = last_lines(path);
  for (auto line = lines.rbegin(); line != lines.rend() && counted < kMeanOver; ++line) {
    const auto object = nlohmann::json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;
    const auto iteration = member<std::int64_t>(object, "iteration");
    if (!iteration) continue;
    if (!progress) progress = LoggedProgress{.iteration = *iteration, .loss = member<double>(object, "lm_loss")};
    if (const auto time = member<double>(object, "iteration_ms")) {
      milliseconds += *time;
      ++counted;
    }
  }
  if (counted > 0) progress->iteration_ms = milliseconds / counted;
  return progress;
}

}  // namespace

void check_nodes(const TopologyConfig& topology, const Workload& workload, const Allocation& allocation,
                 Preflight& preflight) {
  const std::int64_t ranks = world_size_of(topology);
  if (ranks == allocation.gpus()) return;
  const bool fits_one_node = allocation.nodes == 1 && ranks < allocation.gpus();  // wasteful, but it runs
  (fits_one_node ? preflight.warnings : preflight.problems)
      .push_back({fmt::format("the recipe has {}, but {}", counted(ranks, "rank"), in_words(allocation)), "--nodes",
                  use_one_of(nodes_that_fit(topology, workload, allocation))});
}

void check_nodes(const ParallelFlags& flags, const Allocation& allocation, Preflight& preflight) {
  const std::int64_t gpus = allocation.gpus();
  const auto nearest_nodes = [&](std::int64_t unit) {
    const std::int64_t step = unit / std::gcd(unit, std::int64_t{allocation.gpus_per_node});
    const std::int64_t below = allocation.nodes / step * step;
    return use_one_of({below ? fmt::format("--nodes {}", below) : "", fmt::format("--nodes {}", below + step)});
  };
  if (flags.grid_ranks) {
    if (*flags.grid_ranks == gpus) return;
    const bool whole = *flags.grid_ranks % allocation.gpus_per_node == 0;
    preflight.problems.push_back(
        {fmt::format("the two grids of the command have {} ranks, but {}", *flags.grid_ranks, in_words(allocation)),
         "--nodes",
         whole ? fmt::format("use --nodes {}", *flags.grid_ranks / allocation.gpus_per_node)
               : fmt::format("choose sizes whose ranks are a multiple of {}", allocation.gpus_per_node)});
    return;
  }
  const std::int64_t replica = std::int64_t{flags.tp} * flags.cp * flags.pp;
  const std::int64_t unit = std::lcm(replica, std::int64_t{flags.ep} * flags.expt_tp * flags.pp);
  if (gpus % unit) {
    preflight.problems.push_back(
        {fmt::format("{}, which cannot be divided into tp={} x cp={} x pp={}{}", in_words(allocation), flags.tp,
                     flags.cp, flags.pp, gpus % replica ? "" : fmt::format(" with ep={}", flags.ep)),
         "--nodes", nearest_nodes(unit)});
  } else if (flags.micro_batch && flags.global_batch) {
    const std::int64_t at_once = gpus / replica * *flags.micro_batch;
    if (*flags.global_batch % at_once == 0) return;
    preflight.problems.push_back(
        {fmt::format("global batch {} is not a multiple of dp {} x micro batch {} on {}", *flags.global_batch,
                     gpus / replica, *flags.micro_batch, counted(gpus, "GPU")),
         "--global-batch-size",
         fmt::format("use {} or another multiple of {}", (*flags.global_batch / at_once + 1) * at_once, at_once)});
  }
}

void check_experts(const ParallelFlags& flags, const ExpertsUse& use, const Allocation& allocation,
                   Preflight& preflight) {
  if (!flags.experts || !flags.hidden || !flags.expert_ffn || !flags.layers) return;
  constexpr double kBytesOfBf16 = 2, kGpuOfTasks = 80;
  const std::int64_t experts = *flags.experts, stage = std::int64_t{flags.tp} * flags.cp * flags.pp;
  const double matrices = flags.gated ? 3 : 2, room = use.task.weights_gb / kGpuOfTasks * use.gpu_gb * 1e9;
  const double layer = kBytesOfBf16 * matrices * *flags.experts * *flags.hidden * *flags.expert_ffn;
  const double bytes = layer * *flags.layers / flags.pp / flags.expt_tp;
  // Four square matrices of attention per layer, which is about right for most models.
  const double attention = kBytesOfBf16 * 4 * *flags.hidden * *flags.hidden * *flags.layers / flags.pp / flags.tp;
  const auto bytes_with = [&](std::int64_t ep) { return bytes / static_cast<double>(ep) + attention; };
  const bool gathers = use.exports && bytes_with(flags.ep) + layer > use.gpu_gb * 1e9;
  if (bytes_with(flags.ep) <= room && !gathers) return;
  const auto fits = [&](std::int64_t ep) {
    return bytes_with(ep) <= room && (!use.exports || bytes_with(ep) + layer <= use.gpu_gb * 1e9);
  };
  const ModuleConfig module = {.tp = flags.tp,
                               .cp = flags.cp,
                               .dp = static_cast<int>(std::max<std::int64_t>(1, allocation.gpus() / stage)),
                               .pp = flags.pp,
                               .expt_tp = flags.expt_tp};
  std::optional<std::int64_t> enough;
  for (const std::int64_t ep : possible_ep(module, *flags.experts))
    if (fits(ep) && ep < enough.value_or(ep + 1)) enough = ep;
  const std::string held =
      fmt::format("{} per GPU ({} / ep {}), in total {} of weights", counted(experts / flags.ep, "expert"), experts,
                  flags.ep, gigabytes(bytes_with(flags.ep)));
  preflight.warnings.push_back(
      {bytes_with(flags.ep) > room
           ? fmt::format("the model has {}; for {}, a GPU with {:g} GB has room for about {} of weights", held,
                         use.task.noun, use.gpu_gb, gigabytes(room))
           : fmt::format("the model has {}; rank 0 of an export also gathers the experts of a layer, {}, which is more "
                         "than a GPU with {:g} GB has",
                         held, gigabytes(layer), use.gpu_gb),
       "memory",
       enough ? fmt::format("TP does not shrink experts; EP {} would give {} experts/GPU ({})", *enough,
                            experts / *enough, gigabytes(bytes_with(*enough)))
              : "TP does not shrink experts, only EP does, and no EP that fits these nodes is enough: use more nodes"});
}

void take_model_sizes(const std::string& config_json, ParallelFlags& flags) {
  nlohmann::json config = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  for (const char* part : {"text_config", "llm_config"})
    if (config.is_object() && config.contains(part)) config = nlohmann::json(config[part]);
  if (!config.is_object()) return;
  const auto take = [&](std::optional<int>& size, std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (const auto found = config.find(name); !size && found != config.end() && found->is_number_unsigned())
        if (const auto value = found->get<std::uint64_t>(); value >= 1 && value <= kMostOfAModel)
          size = static_cast<int>(value);
  };
  if (const auto layers = config.find("hybrid_override_pattern");
      !flags.layers && layers != config.end() && layers->is_string()) {
    const auto& pattern = layers->get_ref<const std::string&>();
    if (const auto count = std::ranges::count(pattern, 'E'); count > 0) flags.layers = static_cast<int>(count);
  }
  take(flags.experts, {"num_experts", "num_local_experts", "n_routed_experts"});
  take(flags.hidden, {"hidden_size"});
  take(flags.expert_ffn, {"moe_intermediate_size", "intermediate_size"});
  take(flags.layers, {"num_hidden_layers"});
  for (const char* name : {"hidden_act", "mlp_hidden_act"})
    if (const auto act = config.find(name); act != config.end() && *act == "silu") flags.gated = true;
}

std::string sizes_text(const ParallelFlags& flags, const Allocation& allocation) {
  std::string text = fmt::format("{} on {}", counted(allocation.gpus(), "GPU"), counted(allocation.nodes, "node"));
  if (flags.grid_ranks) return text + fmt::format(": two grids with {}", counted(*flags.grid_ranks, "rank"));
  text += fmt::format(": TP {}, PP {}, CP {}, EP {}, DP {}", flags.tp, flags.pp, flags.cp, flags.ep,
                      allocation.gpus() / (std::int64_t{flags.tp} * flags.pp * flags.cp));
  if (flags.micro_batch) text += fmt::format(", MBS {}", *flags.micro_batch);
  return flags.global_batch ? text + fmt::format(", GBS {}", *flags.global_batch) : text;
}

void check_slurm(const SlurmRequest& request, const SlurmView& view, Preflight& preflight) {
  if (view.partitions)
    for (const std::string& name : split(request.partition, ','))  // Slurm takes the first that can start the job
      check_partition(name, request, *view.partitions, preflight);
  if (view.associations && !view.associations->empty())
    check_account(request, *view.associations, preflight);
  else if (request.account.empty())
    preflight.warnings.push_back({"no account was given, and sacctmgr does not list any", "--account",
                                  "a cluster with accounting will refuse the job"});
}

bool can_be_seen(const std::string& path) {
  const fs::path whole(path);
  if (!whole.has_relative_path()) return true;  // the root itself
  return is_there(whole.root_path() / *whole.relative_path().begin());
}

void check_paths(const std::vector<PathUse>& uses, const Allocation& allocation, Preflight& preflight) {
  for (const PathUse& use : uses) {
    if (use.path.empty()) continue;
    const fs::path path = fs::absolute(use.path).lexically_normal();
    if (use.kind == PathUse::MustExist) {
      if (!can_be_seen(path))
        preflight.warnings.push_back(
            {fmt::format("'{}' cannot be checked from here", use.path), use.what, "make sure that the nodes have it"});
      else if (!is_there(path))
        preflight.problems.push_back(
            {fmt::format("'{}' does not exist", use.path), use.what,
             fmt::format("the nearest existing folder is {}", nearest_existing(path).string())});
      continue;
    }
    if (allocation.nodes > 1 && is_node_local(path))
      preflight.warnings.push_back(
          {fmt::format("'{}' is on each node's local file system: other nodes do not see what one node writes there",
                       use.path),
           use.what, "use a folder on the shared file system"});
    const fs::path folder = nearest_existing(path);
    const bool is_writable = is_folder(folder) && access(folder.c_str(), W_OK | X_OK) == 0;
    if (use.kind == PathUse::Written && can_be_seen(path) && !is_writable)
      preflight.problems.push_back({fmt::format("'{}' cannot be written to", use.path), use.what,
                                    fmt::format("check the permissions of {}", folder.string())});
  }
}

std::vector<Partition> parse_partitions(const std::string& text) {
  std::vector<Partition> partitions;
  for (const auto& row : rows_of(text)) {
    if (row.size() != 5) continue;
    const bool is_default = row[0].ends_with('*');
    const std::string name = row[0].substr(0, row[0].size() - (is_default ? 1 : 0));
    // A partition with several kinds of nodes has one line for each kind.
    if (partitions.empty() || partitions.back().name != name)
      partitions.push_back(
          {.name = name, .up = row[1] == "up", .time_limit = parse_wall_time(row[2]), .is_default = is_default});
    Partition& partition = partitions.back();
    partition.nodes += parse_int(row[3]).value_or(0);
    int gpus = 0;  // the count in "gpu:8", "gpu:h100:8(S:0-1),nvme:1"
    for (const std::string& resource : split(row[4], ',')) {
      const std::vector<std::string> parts = split(resource.substr(0, resource.find('(')), ':');
      if (parts[0] == "gpu") gpus += parse_int(parts.back()).value_or(0);
    }
    partition.gpus_per_node = std::max(partition.gpus_per_node, gpus);
  }
  return partitions;
}

std::vector<Association> parse_associations(const std::string& text) {
  std::vector<Association> associations;
  for (const auto& row : rows_of(text))
    if (!row[0].empty()) associations.push_back({row[0], row.size() > 1 ? row[1] : ""});
  return associations;
}

SlurmView view_slurm(const std::string& user) {
  return {answer_of({"sinfo", "--noheader", "--format=%P|%a|%l|%D|%G"}, parse_partitions),
          answer_of({"sacctmgr", "-nP", "show", "assoc", "where", "user=" + user, "format=account,partition"},
                    parse_associations)};
}

std::string offered(const std::vector<Partition>& partitions) {
  std::vector<std::string> texts;
  for (const Partition& partition : partitions) {
    const bool limited = partition.time_limit && *partition.time_limit != std::chrono::seconds::max();
    const std::string limit =
        limited ? ", up to " + clock_text(static_cast<double>(partition.time_limit->count())) : std::string();
    texts.push_back(fmt::format("{} ({}{}{}{})", partition.name, partition.is_default ? "the default, " : "",
                                counted(partition.nodes, "node"), limit, partition.up ? "" : ", not up"));
  }
  return joined(texts, ", ");
}

std::optional<int> exit_code_of(const JobRecord& job) {
  const std::vector<std::string> parts = split(job.exit_code, ':');  // code:signal
  const int code = parse_int(parts[0]).value_or(0), signal = parts.size() > 1 ? parse_int(parts[1]).value_or(0) : 0;
  if (is_waiting(job) || is_running(job) || (code == 0 && signal == 0)) return std::nullopt;
  return signal > 0 ? 128 + signal : code;
}

std::optional<JobRecord> ask_slurm(const std::string& id) {
  const auto answer = output_of({"scontrol", "show", "job", id});
  if (!answer) return std::nullopt;
  if (answer->exit_code == 0) return parse_job(answer->out);
  if (answer->err.find("Invalid job id") != std::string::npos) return JobRecord{.id = id};
  return std::nullopt;
}

JobRecord parse_job(const std::string& text) {
  // Most lines are "Key=value Key=value"; a path has its own line and may contain blanks.
  std::map<std::string, std::string> fields;
  for (const std::string& line : split(text, '\n')) {
    const std::string content = line.substr(std::min(line.find_first_not_of(' '), line.size()));
    const bool is_path = content.starts_with("StdOut=") || content.starts_with("WorkDir=");
    for (const std::string& item : is_path ? std::vector{content} : split(content, ' '))
      if (const std::size_t equals = item.find('='); equals != std::string::npos)
        fields.emplace(item.substr(0, equals), item.substr(equals + 1));
  }
  JobRecord job;
  job.id = fields["JobId"];
  job.name = fields["JobName"];
  job.state = fields["JobState"];
  job.reason = fields["Reason"] == "None" ? "" : fields["Reason"];
  job.run_time = fields["RunTime"];
  job.time_limit = fields["TimeLimit"];
  job.nodes = fields["NodeList"] == "(null)" ? "" : fields["NodeList"];
  job.exit_code = fields["ExitCode"];
  job.restarts = parse_int(fields["Restarts"]).value_or(0);
  job.log = fields["StdOut"];
  return job;
}

JobRecord find_job(const std::string& id, const std::string& log_dir) {
  if (id.empty() || !std::ranges::all_of(id, [](unsigned char c) { return std::isdigit(c) || c == '_'; }))
    throw ConfigError({fmt::format("'{}' is not a job id", id), "command line", "squeue --me lists your jobs"});
  auto job = ask_slurm(id);
  const bool answers = job.has_value();
  if (!job || job->state.empty()) job = ask_sacct(id);
  std::string log;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(log_dir, ignored)) {
    const std::string name = entry.path().filename().string(), end = "_" + id + ".log";
    if (log.empty() && name.size() > end.size() && name.ends_with(end)) log = entry.path().string();
  }
  if (!job && log.empty())
    throw ConfigError({fmt::format("job {} was not found: Slurm {}, and '{}' has no *_{}.log", id,
                                   answers ? "does not know it" : "does not answer", log_dir, id),
                       "command line", "squeue --me lists your jobs; give the folder of the logs with --log-dir"});
  if (!job) job = JobRecord{.id = id, .slurm_answers = answers};
  if (job->log.empty()) job->log = log;
  return *job;
}

std::optional<LoggedProgress> parse_iteration_line(const std::string& line) {
  LoggedProgress progress;
  progress.loss = number_behind(line, "lm loss:");
  if (!progress.loss) progress.loss = number_behind(line, "reduced_train_loss:");
  const std::size_t at = line.find("iteration ");
  const auto iteration = parse_int64(word_behind(line, "iteration "));
  if (!progress.loss || !iteration) return std::nullopt;
  progress.iteration = *iteration;
  const std::size_t slash = line.find('/', at);
  if (slash < line.find('|', at)) {
    const auto total = parse_int64(word_behind(std::string_view(line).substr(slash), "/"));
    if (total && *total >= 1) progress.iterations = total;
  }
  progress.iteration_ms = number_behind(line, "elapsed time per iteration (ms):");
  if (const auto seconds = number_behind(line, "train_step_timing in s:")) progress.iteration_ms = 1000 * *seconds;
  return progress;
}

std::optional<LoggedProgress> read_progress(const std::string& log_path) {
  std::error_code ignored;
  const std::string metrics_file = fs::path(log_path).replace_extension(".jsonl").string();  // of the same name
  std::optional<LoggedProgress> log;
  for (const std::string& line : last_lines(log_path))
    if (auto progress = parse_iteration_line(line)) log = std::move(progress);
  const auto metrics = from_metrics(metrics_file);
  if (!metrics || !log) return metrics ? metrics : log;
  // The metrics file has every iteration, the log only some. If both were written at the same time, use the metrics.
  const auto lag = fs::last_write_time(log_path, ignored) - fs::last_write_time(metrics_file, ignored);
  if (log->iteration > metrics->iteration && lag > std::chrono::seconds(0)) return log;
  auto progress = metrics;
  progress->iterations = log->iterations;
  return progress;
}

std::string to_text(const LoggedProgress& progress, bool still_runs) {
  std::string text = fmt::format("iteration {}", progress.iteration);
  if (progress.iterations)
    text += fmt::format(" of {} ({:.1f} %)", *progress.iterations,
                        100.0 * static_cast<double>(progress.iteration) / static_cast<double>(*progress.iterations));
  if (progress.loss) text += fmt::format(", lm loss {:.4f}", *progress.loss);
  if (!progress.iteration_ms) return text;
  text += fmt::format(", {:.4g} ms per iteration", *progress.iteration_ms);
  if (still_runs && progress.iterations && *progress.iterations > progress.iteration) {
    const double left = static_cast<double>(*progress.iterations - progress.iteration) * *progress.iteration_ms / 1000;
    text += fmt::format(", {} left", clock_text(left));
  }
  return text;
}

}  // namespace braid
