// How long collectives take, and Braid's overhead: the group (visible to the failure board, with named errors) against
// the same c10d backend called directly in the same run, over Gloo processes; then ranks as threads.
//
//   build/bench_collectives        (or ./dev bench)
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include "base/error.h"
#include "base/process.h"
#include "base/strings.h"
#include "cluster/local/local_launcher.h"
#include "comm/backend_factory.h"
#include "comm/group.h"
#include "comm/progress.h"
#include "comm/store.h"
#include "comm/world.h"
#include "comm/world_spec.h"
#include "support/thread_backend.h"

namespace {

using namespace braid;
using Clock = std::chrono::steady_clock;

constexpr int kProcesses = 2, kRepeats = 300;

struct Timing {
  double p50_us, p99_us;
};

// The variants alternate, so that other load on the machine slows all of them equally.
std::vector<Timing> measure(int repeats, const std::vector<std::function<void()>>& acts) {
  std::vector<std::vector<double>> times_us(acts.size());
  for (int i = -repeats / 10; i < repeats; ++i)
    for (std::size_t k = 0; k < acts.size(); ++k) {
      const auto start = Clock::now();
      acts[k]();
      if (i >= 0) times_us[k].push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
  std::vector<Timing> timings;
  for (auto& times : times_us) {
    std::sort(times.begin(), times.end());
    timings.push_back({times[times.size() / 2], times[times.size() * 99 / 100]});
  }
  return timings;
}

std::vector<int> first_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void check_sum(at::Tensor& x, int ranks, const std::function<void()>& reduce) {
  x.fill_(1);
  reduce();
  BRAID_CHECK_EQ(x.sum().item<double>(), static_cast<double>(x.numel()) * ranks, "all_reduce is wrong");
  x.zero_();
}

void bench_gloo(const WorldSpec& spec) {
  const std::chrono::seconds timeout(60);
  const auto store = std::make_shared<Store>(spec.store, timeout);
  const std::vector<int> ranks = first_ranks(spec.size);
  const GlooSettings settings = {.addresses = {"127.0.0.1"}, .connect_timeout = timeout, .timeout = timeout};
  const auto backend = gloo_backends(store, settings)("bench", ranks, spec.rank);
  Progress progress;
  const Group group("bench", ranks, spec.rank, c10::kCPU, backend, progress);

  std::vector<std::vector<std::string>> rows;
  for (std::int64_t elements : {1LL, 1LL << 10, 1LL << 16, 1LL << 20}) {
    at::Tensor x = at::zeros({elements});
    std::vector<at::Tensor> same = {x};
    const auto ours = [&] { group.all_reduce(x); };
    const auto direct = [&] { backend->allreduce(same)->wait(); };
    check_sum(x, spec.size, ours);
    const auto timings = measure(kRepeats, {ours, direct});
    const Timing timing = timings[0], peer = timings[1];
    const double megabytes = static_cast<double>(elements) * 4 / 1e6;
    rows.push_back({fmt::format("{:.3f}", megabytes), fmt::format("{:.0f}", timing.p50_us),
                    fmt::format("{:.0f}", timing.p99_us), fmt::format("{:.0f}", megabytes / timing.p50_us * 1e6),
                    fmt::format("{:.0f}", peer.p50_us), fmt::format("{:.2f}", timing.p50_us / peer.p50_us)});
  }
  if (spec.rank == 0)
    fmt::print("all_reduce, {} Gloo processes\n{}", spec.size,
               format_table({"MB", "p50 us", "p99 us", "MB/s", "c10d p50 us", "ratio"}, rows));
}

void bench_threads() {
  std::vector<std::vector<std::string>> rows;
  for (int ranks : {2, 8, 64, 256}) {
    Timing timing{};
    run_as_threads(ranks, [&](World& world) {
      const Group group = world.everyone();
      at::Tensor x = at::zeros({1024});
      check_sum(x, ranks, [&] { group.all_reduce(x); });
      const Timing own = measure(std::max(20, 2000 / ranks), {[&] { group.all_reduce(x); }})[0];
      if (world.rank() == 0) timing = own;
    });
    rows.push_back({std::to_string(ranks), fmt::format("{:.0f}", timing.p50_us), fmt::format("{:.0f}", timing.p99_us),
                    fmt::format("{:.2f}", timing.p50_us / ranks)});
  }
  fmt::print("\nall_reduce of 1024 floats, ranks as threads\n{}",
             format_table({"ranks", "p50 us", "p99 us", "us per rank"}, rows));
}

}  // namespace

int main() {
  at::set_num_threads(1);
  if (const auto spec = world_spec_from(process_env())) {
    bench_gloo(*spec);
    return 0;
  }
  const int code = launch_local(
      {.ranks = kProcesses, .command = {own_executable()}, .log_dir = "", .port = 0, .rank_coordinates = {}});
  if (code == 0) bench_threads();
  return code;
}
