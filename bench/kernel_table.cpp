#include "kernel_table.h"
#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include "base/strings.h"

namespace braid {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

constexpr std::size_t kKernelsShown = 25, kNameLength = 110;

struct Family {
  const char* name;
  std::vector<const char*> parts;  // of a kernel name, in lower case
};

// A kernel belongs to the first family that matches a part of its name, so the order matters: an
// index_elementwise_kernel indexes, a direct_copy inside an elementwise_kernel copies.
const std::vector<Family> kFamilies = {
    {"grouped GEMM", {"groupproblemshape", "grouped"}},
    {"attention", {"fmha", "flash", "sdpa", "attention"}},
    {"GEMM",
     {"gemm", "gemv", "nvjet", "xmma", "splitk", "cutlass", "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"}},
    {"conv/scan", {"conv1d", "conv2d", "convolution", "causal_conv", "depthwise", "ssd"}},
    {"sort/index",
     {"sort", "index", "gather", "scatter", "topk", "embedding", "histogram", "bincount", "cumsum", "scan"}},
    {"reduce/norm", {"reduce", "norm", "softmax", "aten::sum", "aten::mean", "aten::max", "aten::amax", "logsumexp"}},
    {"copy", {"copy", "memcpy", "memset", "fillfunctor", "aten::fill", "aten::cat", "catarray", "aten::zero_"}},
    {"element-wise",
     {"elementwise", "pointwise",    "aten::add",  "aten::mul",  "aten::sub",       "aten::div",      "aten::exp",
      "aten::pow",   "aten::neg",    "aten::relu", "aten::silu", "aten::sigmoid",   "aten::softplus", "aten::where",
      "aten::clamp", "aten::masked", "aten::tri",  "triu_tril",  "aten::threshold", "aten::rsqrt",    "aten::square"}},
};

std::string family_of(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const Family& family : kFamilies)
    for (const char* part : family.parts)
      if (name.find(part) != name.npos) return family.name;
  return "other";
}

// The rest of a template's name identifies the kernel.
std::string shortened(std::string name) {
  for (const std::string noise : {"void ", "at::native::", "(anonymous namespace)::", "at::cuda::", "c10::", "std::"})
    for (std::size_t at = name.find(noise); at != name.npos; at = name.find(noise, at)) name.erase(at, noise.size());
  return name.size() > kNameLength ? name.substr(0, kNameLength - 3) + "..." : name;
}

struct Total {
  double count = 0, ms = 0;
};
using Totals = std::map<std::string, Total>;

void add(Totals& totals, const std::string& name, double ns) {
  Total& total = totals[name];
  ++total.count;
  total.ms += ns / 1e6;
}

Totals gpu_kernels(const std::vector<profiler::KinetoEvent>& events) {
  Totals totals;
  for (const profiler::KinetoEvent& event : events)
    if (event.deviceType() == c10::kCUDA) add(totals, event.name(), static_cast<double>(event.durationNs()));
  return totals;
}

// The time between the first and the last kernel in which none ran. Waits longer than a launch are for the host.
struct Waits {
  double ms = 0, for_host_ms = 0;
};
Waits waits(const std::vector<profiler::KinetoEvent>& events) {
  constexpr std::uint64_t kLaunchNs = 10'000;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (const profiler::KinetoEvent& event : events)
    if (event.deviceType() == c10::kCUDA) spans.emplace_back(event.startNs(), event.endNs());
  std::sort(spans.begin(), spans.end());
  Waits waits;
  std::uint64_t busy_until = spans.empty() ? 0 : spans[0].first;
  for (const auto& [start, end] : spans) {
    const std::uint64_t idle = start - std::min(start, busy_until);
    waits.ms += static_cast<double>(idle) / 1e6;
    if (idle > kLaunchNs) waits.for_host_ms += static_cast<double>(idle) / 1e6;
    busy_until = std::max(busy_until, end);
  }
  return waits;
}

// Operators nest: each is counted without its children, which start and end inside it on the same thread.
Totals operators(const std::vector<profiler::KinetoEvent>& events) {
  std::map<std::uint64_t, std::vector<const profiler::KinetoEvent*>> by_thread;
  for (const profiler::KinetoEvent& event : events) by_thread[event.startThreadId()].push_back(&event);
  Totals totals;
  for (auto& [thread, ordered] : by_thread) {
    // Of two that start together, the longer one is the parent.
    std::stable_sort(ordered.begin(), ordered.end(), [](const auto* a, const auto* b) {
      return a->startNs() != b->startNs() ? a->startNs() < b->startNs() : a->endNs() > b->endNs();
    });
    std::vector<const profiler::KinetoEvent*> open;
    for (const profiler::KinetoEvent* event : ordered) {
      while (!open.empty() && open.back()->endNs() <= event->startNs()) open.pop_back();
      if (!open.empty()) totals[open.back()->name()].ms -= static_cast<double>(event->durationNs()) / 1e6;
      add(totals, event->name(), static_cast<double>(event->durationNs()));
      open.push_back(event);
    }
  }
  return totals;
}

std::unique_ptr<profiler::ProfilerResult> profile(bool on_gpu, int steps, const std::function<void()>& step) {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  // On a GPU, only kernels: recording operators too would slow the host, which launches the kernels.
  const std::set<ActivityType> activities = {on_gpu ? ActivityType::CUDA : ActivityType::CPU};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION});
  for (int i = 0; i < steps; ++i) step();
  return profiler::disableProfiler();
}

std::vector<std::pair<std::string, Total>> longest_first(const Totals& totals) {
  std::vector<std::pair<std::string, Total>> sorted(totals.begin(), totals.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  return sorted;
}

std::string table_of(const std::string& title, const std::vector<std::pair<std::string, Total>>& totals,
                     double sum_ms) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, total] : totals)
    rows.push_back({fmt::format("{:.3f}", total.ms), fmt::format("{:.1f} %", 100 * total.ms / sum_ms),
                    fmt::format("{:g}", total.count), shortened(name)});
  return format_table({"ms", "share", "count", title}, rows);
}

}  // namespace

std::string kernel_table(bool on_gpu, int steps, const std::function<void()>& step) {
  const auto result = profile(on_gpu, steps, step);
  Totals totals = on_gpu ? gpu_kernels(result->events()) : operators(result->events());
  const char* what = on_gpu ? "kernel" : "operator";
  if (totals.empty()) return fmt::format("the profiler saw no {}\n", what);

  Totals families;
  double sum_ms = 0;
  for (auto& [name, total] : totals) {
    total = {total.count / steps, total.ms / steps};
    Total& family = families[family_of(name)];
    family.count += total.count;
    family.ms += total.ms;
    sum_ms += total.ms;
  }
  auto kernels = longest_first(totals);
  const std::size_t different = kernels.size();
  kernels.resize(std::min(different, kKernelsShown));
  const auto [idle_ms, for_host_ms] = waits(result->events());
  const std::string idle = on_gpu ? fmt::format(", {:.2f} ms between kernels, {:.2f} of them waiting for the host",
                                                idle_ms / steps, for_host_ms / steps)
                                  : std::string();
  return fmt::format("{:.2f} ms in {} different {}s{}; the {} longest:\n{}\n{}", sum_ms, different, what, idle,
                     kernels.size(), table_of(what, kernels, sum_ms),
                     table_of("group", longest_first(families), sum_ms));
}

}  // namespace braid
