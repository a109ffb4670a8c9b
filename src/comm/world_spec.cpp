#include "comm/world_spec.h"
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include "base/strings.h"

namespace braid {
namespace {

// Below Linux's range of ports for outgoing connections (32768 and up).
constexpr int kSlurmFirstPort = 15000, kSlurmPortCount = 15000;

constexpr int kMaxRanks = 1 << 20;

[[noreturn]] void refuse(std::string what, std::string fix = "") {
  throw ConfigError({std::move(what), "environment", std::move(fix)});
}

int to_int(const std::string& name, const std::string& text, int lowest, int highest) {
  const auto value = parse_int(text);
  if (!value || *value < lowest || *value > highest)
    refuse(fmt::format("{}='{}' should be an integer from {} to {}", name, text, lowest, highest));
  return *value;
}

void check_rank(const char* rank_name, int rank, const char* size_name, int size) {
  if (rank >= size)
    refuse(fmt::format("{}={} is out of range: {}={} has ranks 0 to {}", rank_name, rank, size_name, size, size - 1));
}

// The variables of a launcher, one of which, `found`, is set.
struct Variables {
  const Env& env;
  const char* found;

  std::string text(const std::string& name) const {
    auto value = env(name);
    if (!value || value->empty())
      refuse(fmt::format("{} is not set, although {} is", name, found),
             "start ranks with `braid run`, torchrun or srun, or unset the variables that one of them left");
    return *value;
  }
  int number(const std::string& name, int lowest = 0, int highest = kMaxRanks) const {
    return to_int(name, text(name), lowest, highest);
  }
  int number_or(const std::string& name, const std::string& otherwise, int lowest, int highest) const {
    return to_int(name, env(name).value_or(otherwise), lowest, highest);
  }
  std::string node_list() const {
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST"})
      if (const auto list = env(name)) return *list;
    return text("SLURM_JOB_NODELIST");
  }
};

WorldSpec from_torchrun(const Env& env) {
  const Variables variables = {env, env("RANK") ? "RANK" : "WORLD_SIZE"};
  WorldSpec spec;
  spec.launcher = env("BRAID_LAUNCHER") == "local" ? Launcher::Local : Launcher::Torchrun;
  spec.size = variables.number("WORLD_SIZE", 1);
  spec.rank = variables.number("RANK");
  check_rank("RANK", spec.rank, "WORLD_SIZE", spec.size);
  spec.local_rank = variables.number("LOCAL_RANK");
  // Hand-written launch scripts often omit this one; then all ranks are assumed to be on this host.
  spec.local_size = variables.number_or("LOCAL_WORLD_SIZE", std::to_string(spec.size), 1, spec.size);
  check_rank("LOCAL_RANK", spec.local_rank, "LOCAL_WORLD_SIZE", spec.local_size);
  spec.store = {variables.text("MASTER_ADDR"), variables.number("MASTER_PORT", 1, 65535)};
  spec.store_is_served = env("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (env(kStoreSocket)) spec.store_socket = variables.number(kStoreSocket);
  spec.attempt = env("TORCHELASTIC_RESTART_COUNT").value_or("0");
  if (auto board = env("BRAID_BOARD")) spec.board = parse_endpoint(*board);
  spec.board_nonce = env("BRAID_BOARD_NONCE").value_or("");
  return spec;
}

int slurm_port(const Variables& variables) {
  const std::string job = variables.text("SLURM_JOB_ID");
  const auto job_id = parse_int64(job);
  if (!job_id || *job_id < 0) refuse(fmt::format("SLURM_JOB_ID='{}' is not a job id", job));
  const std::int64_t step = parse_int64(variables.env("SLURM_STEP_ID").value_or("")).value_or(0);
  // Concurrent steps of one job must not share a port.
  return kSlurmFirstPort +
         static_cast<int>((*job_id % kSlurmPortCount + 131 * (step % kSlurmPortCount)) % kSlurmPortCount);
}

int slurm_local_size(const Variables& variables, int world_size) {
  auto counts = variables.env("SLURM_STEP_TASKS_PER_NODE");
  if (!counts) counts = variables.env("SLURM_TASKS_PER_NODE");
  if (!counts) return variables.number_or("SLURM_NTASKS_PER_NODE", "1", 1, world_size);
  const std::vector<int> per_node = expand_tasks_per_node(*counts);
  const int node = variables.number_or("SLURM_NODEID", "0", 0, kMaxRanks);
  check_rank("SLURM_NODEID", node, "nodes in SLURM_TASKS_PER_NODE", static_cast<int>(per_node.size()));
  return per_node[node];
}

WorldSpec from_slurm(const Env& env) {
  const Variables variables = {env, "SLURM_PROCID"};
  WorldSpec spec;
  spec.launcher = Launcher::Slurm;
  spec.size = variables.number("SLURM_NTASKS", 1);
  spec.rank = variables.number("SLURM_PROCID");
  check_rank("SLURM_PROCID", spec.rank, "SLURM_NTASKS", spec.size);
  spec.local_rank = variables.number("SLURM_LOCALID");
  spec.local_size = std::max(slurm_local_size(variables, spec.size), spec.local_rank + 1);
  const auto address = env("MASTER_ADDR"), port = env("MASTER_PORT");
  spec.store.host = address ? *address : expand_nodelist(variables.node_list()).front();
  spec.store.port = port ? to_int("MASTER_PORT", *port, 1, 65535) : slurm_port(variables);
  return spec;
}

// Both sets of variables are set: correct when torchrun runs inside an srun task, once per node; otherwise an error
// unless they agree.
void check_torchrun_against_slurm(const Env& env) {
  if (env("TORCHELASTIC_RUN_ID")) {
    const auto tasks = parse_int(env("SLURM_STEP_NUM_TASKS").value_or(""));
    const auto nodes = parse_int(env("SLURM_STEP_NUM_NODES").value_or(""));
    if (tasks && nodes && *tasks > *nodes)
      refuse(
          fmt::format("srun started {} tasks on {} and each of them started torchrun", *tasks, counted(*nodes, "node")),
          "use srun --ntasks-per-node=1 with torchrun, or srun alone");
    return;
  }
  for (auto [ours, slurms] : {std::pair{"RANK", "SLURM_PROCID"}, {"WORLD_SIZE", "SLURM_NTASKS"}}) {
    const auto a = env(ours), b = env(slurms);
    if (a && b && a != b)
      refuse(fmt::format("{}={} contradicts {}={}", ours, *a, slurms, *b),
             fmt::format("unset {} to use Slurm's value, or unset the SLURM_ variables", ours));
  }
}

// Slurm sets SLURM_PROCID=0 also in processes that are not ranks: the batch script, the shell of an interactive step
// (whose number is one of the last before 2^32), a shell on a pseudo terminal. There Braid starts its own ranks.
bool started_by_srun(const Env& env) {
  constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;
  const bool batch_script = env("ENVIRONMENT") == "BATCH" && !env("SLURM_STEP_ID");
  const bool interactive =
      env("SLURM_PTY_PORT") || parse_int64(env("SLURM_STEP_ID").value_or("")).value_or(0) >= kFirstSpecialStep;
  return env("SLURM_PROCID") && !batch_script && !interactive;
}

}  // namespace

Env process_env() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

std::optional<WorldSpec> world_spec_from(const Env& env) {
  const bool torchrun = env("RANK") || env("WORLD_SIZE");
  const bool slurm = started_by_srun(env);
  // Ranks of the local launcher ignore a Slurm allocation around them.
  if (torchrun && slurm && env("BRAID_LAUNCHER") != "local") check_torchrun_against_slurm(env);
  if (!torchrun && !slurm) return std::nullopt;
  WorldSpec spec = torchrun ? from_torchrun(env) : from_slurm(env);
  const std::string threads = env("OMP_NUM_THREADS").value_or("");  // a list has one number per level of nesting
  spec.threads = parse_int(threads.substr(0, threads.find(',')));
  if (spec.threads && *spec.threads < 1) spec.threads.reset();
  if (const auto names = env("GLOO_SOCKET_IFNAME"); names && !names->empty()) spec.gloo_interfaces = split(*names, ',');
  return spec;
}

std::map<std::string, std::string> local_rank_env(const WorldSpec& spec) {
  std::map<std::string, std::string> env = {
      {"BRAID_LAUNCHER", "local"},
      {"RANK", std::to_string(spec.rank)},
      {"WORLD_SIZE", std::to_string(spec.size)},
      {"LOCAL_RANK", std::to_string(spec.local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(spec.local_size)},
      {"MASTER_ADDR", spec.store.host},
      {"MASTER_PORT", std::to_string(spec.store.port)},
      {"TORCHELASTIC_USE_AGENT_STORE", spec.store_is_served ? "True" : "False"},
  };
  if (spec.store_socket) env[kStoreSocket] = std::to_string(*spec.store_socket);
  if (spec.board) env["BRAID_BOARD"] = to_string(*spec.board);
  if (spec.board) env["BRAID_BOARD_NONCE"] = spec.board_nonce;
  return env;
}

namespace {

constexpr std::size_t kMaxHosts = 65536;

[[noreturn]] void malformed(const std::string& text, const char* why) {
  throw ConfigError(
      {fmt::format("'{}' is not a Slurm list: {}", text, why), "", "compare with `scontrol show hostnames`"});
}

// "0012-0015,0020" -> 0012 0013 0014 0015 0020
std::vector<std::string> expand_ranges(const std::string& ranges, const std::string& text) {
  std::vector<std::string> numbers;
  for (const std::string& range : split(ranges, ',')) {
    const std::vector<std::string> ends = split(range, '-');
    const auto first = parse_int(ends.front()), last = parse_int(ends.back());
    if (ends.size() > 2 || !first || !last || *first < 0 || *last < *first) malformed(text, "bad range in brackets");
    if (static_cast<std::size_t>(*last - *first) >= kMaxHosts) malformed(text, "too many hosts");
    for (std::int64_t number = *first; number <= *last; ++number)
      numbers.push_back(fmt::format("{:0{}}", number, ends.front().size()));
  }
  return numbers;
}

}  // namespace

std::vector<std::string> expand_nodelist(const std::string& text) {
  std::vector<std::string> all, hosts = {""};  // of finished patterns; of the pattern so far: "rack[0-1]node[00-01]"
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || text[i] == ',') {
      if (hosts[0].empty()) malformed(text, "empty host name");
      if (all.size() + hosts.size() > kMaxHosts) malformed(text, "too many hosts");
      all.insert(all.end(), hosts.begin(), hosts.end());
      hosts = {""};
    } else if (text[i] == '[' || text[i] == ']') {
      const std::size_t open = i, close = text.find(']', i);
      if (text[open] == ']' || close == std::string::npos) malformed(text, "brackets do not match");
      const std::vector<std::string> begun = std::exchange(hosts, {});
      const std::vector<std::string> numbers = expand_ranges(text.substr(open + 1, close - open - 1), text);
      if (begun.size() * numbers.size() > kMaxHosts) malformed(text, "too many hosts");
      for (const std::string& begin : begun)
        for (const std::string& number : numbers) hosts.push_back(begin + number);
      i = close;
    } else {
      for (std::string& host : hosts) host += text[i];
    }
  }
  return all;
}

std::vector<int> expand_tasks_per_node(const std::string& text) {
  std::vector<int> counts;
  for (const std::string& part : split(text, ',')) {
    const std::size_t times = part.find("(x");
    const auto count = parse_int(part.substr(0, times));
    auto repeat = std::optional(1);
    if (times != std::string::npos)
      repeat = part.back() == ')' ? parse_int(std::string_view(part).substr(times + 2, part.size() - times - 3))
                                  : std::nullopt;
    if (!count || *count < 1 || !repeat || *repeat < 1) malformed(text, "expected counts such as 8(x4),3");
    if (counts.size() + static_cast<std::size_t>(*repeat) > kMaxHosts) malformed(text, "too many hosts");
    counts.insert(counts.end(), static_cast<std::size_t>(*repeat), *count);
  }
  return counts;
}

// --- the addresses of hosts

namespace {

std::string address_in(const ifaddrs& entry) {
  const bool ipv6 = entry.ifa_addr && entry.ifa_addr->sa_family == AF_INET6;
  if (!entry.ifa_addr || (!ipv6 && entry.ifa_addr->sa_family != AF_INET)) return "";
  // A link-local address is unusable without an interface name, and that differs between hosts.
  if (ipv6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr)) return "";
  char text[NI_MAXHOST] = {};
  getnameinfo(entry.ifa_addr, ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in), text, sizeof text, nullptr, 0,
              NI_NUMERICHOST);
  return text;
}

}  // namespace

std::string address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw_errno("cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::set<std::string> names;
  std::string ipv4, ipv6;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    names.insert(entry->ifa_name);
    const std::string address = entry->ifa_name == name ? address_in(*entry) : "";
    std::string& kept = address.find(':') == std::string::npos ? ipv4 : ipv6;
    if (kept.empty()) kept = address;
  }
  if (!ipv4.empty() || !ipv6.empty()) return ipv4.empty() ? ipv6 : ipv4;
  throw ConfigError({names.count(name)
                         ? fmt::format("network interface '{}' of host {} has no address", name, host_name())
                         : fmt::format("host {} has no network interface '{}'", host_name(), name),
                     "GLOO_SOCKET_IFNAME",
                     fmt::format("it has {}", joined(std::vector<std::string>(names.begin(), names.end()), ", "))});
}

Fd listen_for_store(const std::string& bind_host, int port) {
  try {
    return listen_tcp(bind_host, port);
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::address_in_use) throw;
    throw ConfigError({fmt::format("port {} of {} is in use by another program", port, host_name()), "MASTER_PORT",
                       "set MASTER_PORT to a free port, or end the run that still holds this one"});
  }
}

std::string serving_address(const WorldSpec& spec) {
  if (spec.launcher == Launcher::Local) return "127.0.0.1";
  try {
    const std::string address = local_address(listen_tcp(spec.store.host, 0));
    return address == spec.store.host ? address : "";
  } catch (const std::exception&) {  // an address that is not this host's, but that of a proxy
    return "";
  }
}

std::chrono::milliseconds wait_for_name(const std::string& host, const NameWait& wait) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (bool told = false;;) {
    try {
      wait.check ? wait.check(host) : check_resolves(host);
      return std::chrono::duration_cast<std::chrono::milliseconds>(start + wait.timeout - Clock::now());
    } catch (const UnknownHost& e) {
      const auto waited = Clock::now() - start;
      if (wait.stopped && wait.stopped())
        throw std::runtime_error(fmt::format("asked to stop before the run began: {}", e.what()));
      if (waited >= wait.timeout) refuse_store_host(fmt::format("{}, for {} s", e.what(), wait.timeout.count() / 1000));
      if (wait.say && !told && waited >= wait.quiet) {
        wait.say(fmt::format("{} yet; trying for up to {} s (dist.connect_timeout_s)", e.what(),
                             wait.timeout.count() / 1000));
        told = true;
      }
    }
    std::this_thread::sleep_for(wait.pause);
  }
}

void refuse_store_host(const std::string& what) {
  throw ConfigError({what, "MASTER_ADDR", "give a name or address at which this host can reach rank 0's host"});
}

}  // namespace braid
