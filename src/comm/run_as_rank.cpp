#include "comm/run_as_rank.h"
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <signal.h>
#include <torch/cuda.h>
#include <unistd.h>
#include "base/process.h"
#include "base/strings.h"
#include "comm/backend_factory.h"
#include "comm/cpu_share.h"
#include "comm/failure_board.h"
#include "comm/gpus.h"
#include "comm/store.h"
#include "comm/world.h"

namespace braid {
namespace {

using std::chrono::milliseconds;

// The monitor's thread and the rank's own may both get here; the first one prints and ends the process.
[[noreturn]] void end_process(const RootCause& cause, int exit_code) {
  static std::mutex only_one;
  only_one.lock();
  signal(SIGPIPE, SIG_IGN);
  std::fputs(fmt::format("braid: root cause: {}\n", cause.line).c_str(), stderr);
  std::fflush(nullptr);
  _exit(exit_code);
}

void say(const std::string& text) {
  std::fputs(fmt::format("braid: {}\n", text).c_str(), stderr);
  std::fflush(stderr);
}

milliseconds to_ms(double seconds) { return milliseconds(static_cast<long long>(seconds * 1e3)); }

c10::Device choose_device(const WorldSpec& spec, const CommConfig& config) {
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  if (config.device == DeviceChoice::Cuda && gpus == 0)
    throw ConfigError(no_gpu("dist.device", fmt::format(" to rank {}", spec.rank)));
  if (config.device == DeviceChoice::Cpu || gpus == 0) return c10::kCPU;
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(spec.local_rank % gpus));
}

// Rank 0 collects a text of every rank and decides for all, so that the ranks agree.
using Decide = std::function<std::string(const std::vector<std::string>& of_ranks)>;
std::string agree_on(const std::string& name, const std::string& own, const WorldSpec& spec, Store& store,
                     const Decide& decide) {
  const auto key = [&](int rank) { return fmt::format("{}/{}", name, rank); };
  store.set(key(spec.rank), own);
  if (spec.rank == 0) {
    std::vector<std::string> of_ranks;
    for (int rank = 0; rank < spec.size; ++rank) of_ranks.push_back(store.get(key(rank)));
    store.set(name, decide(of_ranks));
  }
  return store.get(name);
}

// By default libtorch starts a thread per CPU on every rank, and ranks that share CPUs wait for each other's threads.
void choose_threads(const WorldSpec& spec, Store& store) {
  const std::string of_ranks =
      agree_on("threads", to_text(cpu_share_of_this_process()), spec, store, [](const auto& texts) {
        const auto shares = vector_of<CpuShare>(texts, parse_cpu_share);
        return joined(threads_of_ranks(shares), " ");
      });
  if (spec.threads) return at::set_num_threads(*spec.threads);  // MKL alone would use at most a thread per core
  const int share = parse_int(split(of_ranks, ' ').at(spec.rank)).value();
  at::set_num_threads(std::min(share, at::get_num_threads()));
  if (spec.rank == 0 && spec.size > 1)
    say(fmt::format("rank 0 computes with {}, its share of the CPUs (OMP_NUM_THREADS sets another number)",
                    counted(at::get_num_threads(), "thread")));
}

// The address of this host at which the others can reach it: the local address of its connection to the store. Where
// that is a loopback address, as may be on the store's own host, it is the address at which the others reach the store.
std::string agree_on_address(const WorldSpec& spec, Store& store) {
  const std::string of_store = agree_on("store_address", store.route().peer, spec, store, [](const auto& seen) {
    const auto found = std::ranges::find_if_not(seen, is_loopback);
    return found == seen.end() ? "" : *found;
  });
  if (!is_loopback(store.route().local)) return store.route().local;
  return of_store.empty() ? store.route().local : of_store;  // all ranks are on this host
}

std::vector<std::string> gloo_addresses(const WorldSpec& spec, Store& store) {
  if (spec.launcher == Launcher::Local) return {"127.0.0.1"};  // listen only where other hosts cannot connect
  const std::string leads_to_store = agree_on_address(spec, store);
  if (spec.gloo_interfaces.empty()) return {leads_to_store};
  return vector_of<std::string>(spec.gloo_interfaces, address_of_interface);
}

std::string choose_backend(const WorldSpec& spec, const CommConfig& config, c10::Device device, Store& store) {
  const std::vector<std::string> fitting =
      split(agree_on("backends", device.is_cuda() ? gpu_identity(device.index()) : "", spec, store,
                     [](const auto& devices) { return joined(fitting_backends(devices), " "); }),
            ' ');
  if (config.backend == BackendChoice::Auto) return fitting.front();
  if (contains(fitting, name_of(config.backend))) return name_of(config.backend);
  const bool nccl = config.backend == BackendChoice::Nccl;
  throw ConfigError({fmt::format("{} needs {}", name_of(config.backend),
                                 nccl ? counted(spec.size, "GPU") + ", one for each rank" : "every rank on a GPU"),
                     "dist.backend", nccl ? "use gloo or auto, or fewer ranks per host" : "use gloo or auto"});
}

MakeBackend make_gloo(const WorldSpec& spec, const CommConfig& config, const std::shared_ptr<Store>& store) {
  return gloo_backends(store, {.addresses = gloo_addresses(spec, *store),
                               // While ranks connect, Gloo's errors say more than the watchdog's.
                               .connect_timeout = to_ms(std::min(config.connect_timeout_s, 0.8 * config.hang_limit_s)),
                               .timeout = kCollectiveTimeout});
}

// Returns the time left to connect. There is no board to report to yet, so the first rank of each host reports for the
// others, which wait longer to let it.
milliseconds wait_for_store_host(const WorldSpec& spec, const CommConfig& config,
                                 const std::function<bool()>& stopped) {
  constexpr milliseconds kOthersWait{2000}, kLeast{1000};
  const milliseconds timeout = to_ms(config.connect_timeout_s);
  if (spec.launcher == Launcher::Local) return timeout;
  const bool speaks = spec.local_rank == 0;
  NameWait wait = {.timeout = speaks ? timeout : timeout + kOthersWait, .stopped = stopped};
  if (speaks) wait.say = say;
  return std::max(wait_for_name(spec.store.host, wait), kLeast);
}

// While it exists, exit() ends the process before libtorch's statics are destroyed, which Gloo's threads use until the
// end: the rank would at times end by SIGABRT. Exit handlers run in reverse order, so construct it after the first
// collective has constructed those statics.
class ExitGuard {
 public:
  ExitGuard() {
    static const int registered = on_exit(
        [](int exit_code, void*) {
          if (!active_) return;
          std::fflush(nullptr);
          _exit(exit_code);
        },
        nullptr);
    BRAID_CHECK(registered == 0, "cannot register an exit handler");
    active_ = true;
  }
  ~ExitGuard() { active_ = false; }
  ExitGuard(const ExitGuard&) = delete;

 private:
  inline static std::atomic<bool> active_ = false;
};

// Holds everything that a rank's body needs. Rank 0 serves whatever the launcher does not.
class RankRuntime {
 public:
  RankRuntime(const WorldSpec& spec, const CommConfig& config, const std::vector<std::string>& rank_coordinates,
              milliseconds time_to_connect)
      : spec_(spec), config_(config), rank_coordinates_(rank_coordinates), time_to_connect_(time_to_connect) {}

  // Failures are reported to the board as soon as there is one.
  void run(const std::function<void(World&)>& body) {
    if (spec_.size > 1) broken_pipes_.emplace();
    if (spec_.board) watch(*spec_.board, spec_.board_nonce);
    connect_store();
    if (!spec_.board) share_board();
    choose_threads(spec_, *store_);
    const c10::Device device = choose_device(spec_, config_);
    // Code that names no device, libraries included, would otherwise allocate on the first GPU.
    if (device.is_cuda()) at::accelerator::setDeviceIndex(device.index());
    const std::string backend = choose_backend(spec_, config_, device, *store_);
    const MakeBackend gloo = make_gloo(spec_, config_, store_);
    MakeBackend nccl;
    if (backend == "nccl-shared") share_gpu_over_nccl(spec_.rank, spec_.local_size == spec_.size);
    if (backend != "gloo") nccl = nccl_backends(store_, device.index(), kCollectiveTimeout);
    world_.emplace(spec_.rank, spec_.size, device, nccl ? nccl : gloo, progress_, gloo);

    world_->everyone().barrier();
    const ExitGuard exit_guard;
    body(*world_);
    // Ranks finish together: the board would count an early one as lost. It still watches while connections are closed.
    auto scope = progress_.phase("finish");
    world_->everyone().barrier();
    world_->close();
    world_.reset();
    monitor_->goodbye();
  }

  [[noreturn]] void fail(const std::string& message, bool consequence, int exit_code) {
    end_process(monitor_ ? monitor_->report(message, consequence)
                         : make_root_cause(identity(), progress_.op_at_failure(), message),
                exit_code);
  }

 private:
  RankIdentity identity() const {
    const auto rank = static_cast<std::size_t>(spec_.rank);
    return {spec_.rank, host_name(), rank < rank_coordinates_.size() ? rank_coordinates_[rank] : ""};
  }

  void connect_store() {
    auto scope = progress_.phase("connecting to the store at " + to_string(spec_.store));
    if (spec_.rank == 0 && !spec_.store_is_served)
      store_server_.emplace(spec_.store_socket ? Fd(*spec_.store_socket)
                                               : listen_for_store(serving_address(spec_), spec_.store.port));
    store_ = std::make_shared<Store>(spec_.store, to_ms(config_.connect_timeout_s), "braid/" + spec_.attempt,
                                     time_to_connect_);
  }

  // Only a process that reads the store knows the board's address and nonce.
  void share_board() {
    const std::string where = "failure_board", nonce = "failure_board_nonce";
    if (spec_.rank == 0) {
      const std::string made_here = make_nonce();
      board_.emplace(BoardOptions{.bind_host = serving_address(spec_),
                                  .server = identity(),
                                  .world_size = spec_.size,
                                  .rank_coordinates = rank_coordinates_,
                                  .ends_follow = false,
                                  .nonce = made_here},
                     [](const RootCause&) {});
      store_->set(nonce, made_here);
      store_->set(where, to_string(Endpoint{spec_.store.host, board_->port()}));
    }
    watch(parse_endpoint(store_->get(where)), store_->get(nonce));
  }

  void watch(const Endpoint& board, const std::string& nonce) {
    monitor_.emplace(
        board,
        Hello{identity(), spec_.size, config_.hang_limit_s, config_.silence_limit_s, config_.connect_timeout_s, nonce},
        progress_, [](const RootCause& cause) { end_process(cause, 1); }, to_ms(config_.connect_timeout_s));
    crash_handler_.emplace(*monitor_);
  }

  const WorldSpec& spec_;
  const CommConfig& config_;
  const std::vector<std::string>& rank_coordinates_;
  const milliseconds time_to_connect_;
  Progress progress_;
  std::optional<BrokenPipeGuard> broken_pipes_;  // none without peers: SIGPIPE then ends the rank (braid train | head)
  std::optional<StoreServer> store_server_;
  std::shared_ptr<Store> store_;
  std::optional<FailureBoard> board_;
  std::optional<RankMonitor> monitor_;
  std::optional<CrashHandler> crash_handler_;
  std::optional<World> world_;
};

}  // namespace

void run_as_rank(const WorldSpec& spec, const CommConfig& config, const std::vector<std::string>& rank_coordinates,
                 const std::function<void(World&)>& body, const std::function<bool()>& stopped) {
  work_around_blas();
  RankRuntime runtime(spec, config, rank_coordinates, wait_for_store_host(spec, config, stopped));
  try {
    runtime.run(body);
  } catch (const CommError& e) {
    runtime.fail(e.what(), true, 1);
  } catch (const ConfigError& e) {
    runtime.fail(e.what(), false, 2);
  } catch (const std::exception& e) {
    runtime.fail(words_of(e), false, 1);
  }
}

}  // namespace braid
