#include "train/all_ranks.h"
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <future>
#include "base/error.h"
#include "base/process.h"
#include "base/ranges.h"
#include "comm/world.h"
#include "tensor/copies.h"

namespace braid {

std::vector<double> reduced(const std::vector<double>& values, Reduce how, World& world) {
  at::Tensor tensor = upload(at::tensor(values, at::kDouble), world.device());
  world.everyone().all_reduce(tensor, how);
  tensor = to_host(tensor);
  return {tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel()};
}

std::vector<std::vector<double>> sum_terms(const std::vector<at::Tensor>& terms, const Group& world) {
  at::Tensor sums = at::cat(vector_of<at::Tensor>(terms, [&](auto& term) { return upload(term, world.device()); }));
  world.all_reduce(sums);
  sums = to_host(sums);
  const double* next = sums.const_data_ptr<double>();
  std::vector<std::vector<double>> split;
  for (const at::Tensor& term : terms) {
    split.emplace_back(next, next + term.numel());
    next += term.numel();
  }
  return split;
}

std::vector<std::string> gathered_texts(const std::vector<std::pair<int, std::string>>& own, int count, World& world) {
  const auto texts_wanted = static_cast<std::size_t>(count);
  std::vector<double> sizes(2 * texts_wanted);  // bytes of each text, then the number of ranks that provide it
  for (const auto& [number, text] : own) {
    sizes.at(static_cast<std::size_t>(number)) = static_cast<double>(text.size());
    sizes.at(texts_wanted + static_cast<std::size_t>(number)) = 1;
  }
  sizes = reduced(sizes, Reduce::Sum, world);
  for (std::size_t i = 0; i < texts_wanted; ++i)
    BRAID_CHECK_EQ(sizes[texts_wanted + i], 1, "ranks that provide text {} of {}", i, count);
  sizes.resize(texts_wanted);
  std::vector<std::size_t> offsets = {0};
  for (const double size : sizes) offsets.push_back(offsets.back() + static_cast<std::size_t>(size));
  at::Tensor bytes = at::zeros({static_cast<std::int64_t>(offsets.back())}, at::kByte);
  char* all = static_cast<char*>(bytes.data_ptr());
  for (const auto& [number, text] : own) text.copy(all + offsets[static_cast<std::size_t>(number)], text.size());
  bytes = upload(bytes, world.device());
  world.everyone().all_reduce(bytes);
  bytes = to_host(bytes);
  all = static_cast<char*>(bytes.data_ptr());
  std::vector<std::string> texts;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) texts.emplace_back(all + offsets[i], all + offsets[i + 1]);
  return texts;
}

std::string first_text(const std::string& own, World& world) {
  constexpr std::size_t kLongest = 1000;
  const double has_text = own.empty() ? 0 : world.size() - world.rank();
  const int first = world.size() - static_cast<int>(reduced({has_text}, Reduce::Max, world)[0]);
  if (first == world.size()) return "";
  std::vector<std::pair<int, std::string>> text;
  if (first == world.rank()) text.emplace_back(0, own.substr(0, kLongest));
  return gathered_texts(text, 1, world)[0];
}

void wait_for_all_ranks(World& world, const std::function<bool()>& finished, const std::function<Amount()>& amount,
                        const std::function<void(const Amount& of_all, double seconds)>& report) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongestPause(500);
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const PollingBackoff pause(kLongestPause);
  double next_report = 5;
  while (true) {
    const double busy = finished() ? 0 : 1;
    const Amount own = amount();
    const std::vector<double> sums = reduced({busy, own.done, own.total}, Reduce::Sum, world);
    if (sums[0] == 0) return;
    if (seconds() > next_report) {
      report({sums[1], sums[2]}, seconds());
      next_report *= 1.5;
    }
    pause();
  }
}

void run_while_all_wait(World& world, const std::function<void()>& work, const std::function<Amount()>& amount,
                        const std::function<void(const Amount& of_all, double seconds)>& report) {
  // Its destructor waits for the thread, also when another rank's failure ends the wait here.
  const std::shared_future<void> result = std::async(std::launch::async, [&] {
    const c10::DeviceGuard device(world.device());
    const at::NoGradGuard no_grad;
    work();
  });
  const auto finished = [&] {
    if (result.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    result.get();  // throws without another collective: the other ranks learn of it when this rank ends
    return true;
  };
  wait_for_all_ranks(world, finished, amount, report);
}

}  // namespace braid
