// Collectives forward and backward, on Gloo processes and on threads.
//
// The oracle simulates all ranks in one process: it creates every rank's input, computes every rank's output with plain
// tensor operations, and lets autograd differentiate the sum of all losses. Inputs are small integers whose sums are
// exact in every dtype, so results must be equal to the last bit.
#include "comm/collectives.h"
#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/cuda.h>
#include "base/error.h"
#include "comm/backend_factory.h"
#include "comm/store.h"
#include "comm/world_spec.h"
#include "support/ranks.h"

namespace braid {
namespace {

using testing::on_processes;
using testing::on_threads;
using Tensors = std::vector<at::Tensor>;  // one per rank

struct Case {
  const Group& group;
  at::ScalarType dtype;

  int ranks() const { return group.size(); }

  // Different in every element and rank; bf16 holds integers up to 256 exactly, so its sums stay below that.
  at::Tensor fill(at::IntArrayRef shape, int rank, int salt) const {
    at::Tensor index = at::arange(c10::multiply_integers(shape), at::kLong);
    at::Tensor values = index * 7 + rank * 100 + salt * 13;
    if (dtype == at::kBFloat16) values = values.remainder(std::max(2, 128 / ranks()));
    return values.reshape(shape).to(dtype).to(group.device());
  }

  Tensors inputs(const std::function<std::vector<std::int64_t>(int rank)>& shape) const {
    Tensors all;
    for (int rank = 0; rank < ranks(); ++rank) all.push_back(fill(shape(rank), rank, 1));
    return all;
  }
};

bool differentiable(const at::Tensor& x) { return at::isFloatingType(x.scalar_type()); }

// Runs `real` on this rank's input and `naive` on the inputs of all ranks; compares outputs, and gradients if there are
// any.
void expect_same(const Case& c, const Tensors& inputs, const std::function<at::Tensor(const at::Tensor&)>& real,
                 const std::function<Tensors(const Tensors&)>& naive, const char* what) {
  const auto rank = static_cast<std::size_t>(c.group.rank());
  const bool grads = differentiable(inputs[0]);
  at::Tensor x = inputs[rank].clone().requires_grad_(grads);
  Tensors all;
  for (const at::Tensor& input : inputs) all.push_back(input.to(at::kDouble).requires_grad_());

  const at::Tensor y = real(x);
  const Tensors expected = naive(all);
  ASSERT_TRUE(at::equal(y.detach().to(at::kDouble), expected[rank].detach()))
      << what << " forward on " << c.group.name();
  EXPECT_EQ(y.scalar_type(), c.dtype) << what;
  EXPECT_EQ(y.requires_grad(), grads) << what;
  if (!grads) return;

  at::Tensor loss = at::zeros({}, expected[0].options());
  for (int r = 0; r < c.ranks(); ++r)
    loss = loss + (expected[r] * c.fill(expected[r].sizes(), r, 2).to(at::kDouble)).sum();
  loss.backward();
  y.backward(c.fill(y.sizes(), c.group.rank(), 2));
  ASSERT_TRUE(x.grad().defined()) << what;
  EXPECT_TRUE(at::equal(x.grad().to(at::kDouble), all[rank].grad())) << what << " backward on " << c.group.name();
}

at::Tensor sum(const Tensors& parts) { return at::stack(parts).sum(0); }

void check_all_reduce(const Case& c) {
  expect_same(
      c, c.inputs([](int) {
        return std::vector<std::int64_t>{3, 5};
      }),
      [&](const at::Tensor& x) { return all_reduce(x, c.group); },
      [](const Tensors& all) { return Tensors(all.size(), sum(all)); }, "all_reduce");
}

void check_all_gather(const Case& c) {
  for (std::int64_t dim : {0, 1})
    expect_same(
        c, c.inputs([](int) {
          return std::vector<std::int64_t>{2, 3};
        }),
        [&](const at::Tensor& x) { return all_gather(x, c.group, dim); },
        [&](const Tensors& all) { return Tensors(all.size(), at::cat(all, dim)); }, "all_gather");
}

void check_reduce_scatter(const Case& c) {
  for (std::int64_t dim : {0, 1})
    expect_same(
        c, c.inputs([&](int) {
          return std::vector<std::int64_t>{2 * c.ranks(), 3 * c.ranks()};
        }),
        [&](const at::Tensor& x) { return reduce_scatter(x, c.group, dim); },
        [&](const Tensors& all) { return sum(all).chunk(c.ranks(), dim); }, "reduce_scatter");
}

// Rank r sends (r + 2 * to) % 3 rows to each other rank: uneven, some of them none.
void check_all_to_all(const Case& c) {
  const auto rows_to = [&](int from) {
    std::vector<std::int64_t> rows;
    for (int to = 0; to < c.ranks(); ++to) rows.push_back((from + 2 * to) % 3);
    return rows;
  };
  const auto rows_from = [&](int to) {
    std::vector<std::int64_t> rows;
    for (int from = 0; from < c.ranks(); ++from) rows.push_back(rows_to(from)[static_cast<std::size_t>(to)]);
    return rows;
  };
  const auto total = [](const std::vector<std::int64_t>& rows) {
    std::int64_t sum = 0;
    for (std::int64_t count : rows) sum += count;
    return sum;
  };
  expect_same(
      c, c.inputs([&](int rank) {
        return std::vector<std::int64_t>{total(rows_to(rank)), 3};
      }),
      [&](const at::Tensor& x) { return all_to_all(x, rows_to(c.group.rank()), rows_from(c.group.rank()), c.group); },
      [&](const Tensors& all) {
        std::vector<Tensors> parts;  // [from][to]
        for (int from = 0; from < c.ranks(); ++from) parts.push_back(all[from].split_with_sizes(rows_to(from)));
        Tensors received;
        for (int to = 0; to < c.ranks(); ++to) {
          Tensors column;
          for (int from = 0; from < c.ranks(); ++from) column.push_back(parts[from][to]);
          received.push_back(at::cat(column));
        }
        return received;
      },
      "all_to_all");
}

// Only the root's values are read. Gradients arrive at the root.
void check_broadcast(const Case& c) {
  const int root = c.ranks() - 1;
  const bool is_root = c.group.rank() == root;
  at::Tensor x = c.fill({2, 3}, root, 1).requires_grad_(c.dtype != at::kLong);
  const at::Tensor given = is_root ? x : at::zeros_like(x).requires_grad_(x.requires_grad());
  const at::Tensor y = broadcast(given, root, c.group);
  EXPECT_EQ(y.const_data_ptr(), given.const_data_ptr()) << "memory for a copy";
  ASSERT_TRUE(at::equal(y.detach(), x.detach()));
  EXPECT_EQ(y.requires_grad(), x.requires_grad());
  if (!y.requires_grad()) return;
  y.backward(c.fill({2, 3}, c.group.rank(), 2));
  Tensors grads;
  for (int rank = 0; rank < c.ranks(); ++rank) grads.push_back(c.fill({2, 3}, rank, 2).to(at::kDouble));
  if (is_root) {
    EXPECT_TRUE(at::equal(x.grad().to(at::kDouble), sum(grads)));
  }
}

// Every rank sends to the next and receives from the previous at once.
void check_exchange(const Case& c) {
  if (c.ranks() < 2) return;
  const int rank = c.group.rank(), next = (rank + 1) % c.ranks(), previous = (rank + c.ranks() - 1) % c.ranks();
  at::Tensor mine = c.fill({4}, rank, 1), theirs = at::zeros_like(mine);
  c.group.start_exchange({{mine, next, true}, {theirs, previous, false}}).wait();
  EXPECT_TRUE(at::equal(theirs, c.fill({4}, previous, 1)));
}

void check_max(const Case& c) {
  at::Tensor x = c.fill({4}, c.group.rank(), 1);
  c.group.all_reduce(x, Reduce::Max);
  Tensors all;
  for (int rank = 0; rank < c.ranks(); ++rank) all.push_back(c.fill({4}, rank, 1));
  EXPECT_TRUE(at::equal(x, at::stack(all).amax(0)));
}

// Only the root's tensor is defined afterwards.
void check_reduce(const Case& c) {
  const int root = c.ranks() / 2;
  at::Tensor x = c.fill({4}, c.group.rank(), 1);
  c.group.reduce(x, root);
  Tensors all;
  for (int rank = 0; rank < c.ranks(); ++rank) all.push_back(c.fill({4}, rank, 1));
  if (c.group.rank() == root) {
    EXPECT_TRUE(at::equal(x, sum(all)));
  }
}

// Several in flight at once, awaited in another order than started: each equals its blocking form.
void check_started(const Case& c) {
  at::Tensor sum = c.fill({5}, c.group.rank(), 1), largest = sum.clone();
  at::Tensor started_sum = sum.clone(), started_largest = sum.clone();
  const at::Tensor part = sum.clone(), whole = c.fill({c.ranks() * 3}, c.group.rank(), 1);
  at::Tensor gathered = at::zeros({c.ranks() * 5}, sum.options()), started_gathered = gathered.clone();
  at::Tensor scattered = at::zeros({3}, sum.options()), started_scattered = scattered.clone();

  std::vector<Pending> under_way;
  under_way.push_back(c.group.start_all_reduce(started_sum));
  under_way.push_back(c.group.start_all_gather(started_gathered, part));
  under_way.push_back(c.group.start_reduce_scatter(started_scattered, whole));
  under_way.push_back(c.group.start_all_reduce(started_largest, Reduce::Max));
  at::Tensor started_reduced = sum.clone();
  under_way.push_back(c.group.start_reduce(started_reduced, 0));
  c.group.all_reduce(sum);
  for (const std::size_t i : {2, 4, 0, 3, 1}) under_way[i].wait();
  under_way[0].wait();  // which has no effect

  c.group.all_reduce(largest, Reduce::Max);
  c.group.all_gather(gathered, part);
  c.group.reduce_scatter(scattered, whole);
  EXPECT_TRUE(at::equal(started_sum, sum));
  EXPECT_TRUE(c.group.rank() != 0 || at::equal(started_reduced, sum));
  EXPECT_TRUE(at::equal(started_largest, largest));
  EXPECT_TRUE(at::equal(started_gathered, gathered));
  EXPECT_TRUE(at::equal(started_scattered, scattered));
}

void check_all(const Group& group) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    const Case c{group, dtype};
    check_all_reduce(c);
    check_all_gather(c);
    check_reduce_scatter(c);
    check_all_to_all(c);
    check_broadcast(c);
    check_exchange(c);
    check_max(c);
    check_reduce(c);
    check_started(c);
    group.barrier();
  }
}

void check_world(World& world) { check_all(world.make_group("everyone", world.everyone().ranks())); }

// Forward sends nothing, and the gradient is that of the collective.
void check_unused(const std::function<at::Tensor(const at::Tensor&, Result)>& collective, const at::Tensor& input,
                  World& world) {
  const auto operations = [&] {
    std::int64_t sum = 0;
    for (const auto& [key, traffic] : world.progress().traffic()) sum += traffic.operations;
    return sum;
  };
  Tensors gradients;
  for (const Result result : {Result::Needed, Result::Unused}) {
    const at::Tensor x = input.clone().requires_grad_();
    const std::int64_t before = operations();
    const at::Tensor y = collective(x, result);
    EXPECT_EQ(operations() - before, result == Result::Needed ? 1 : 0);
    y.backward(at::arange(y.numel(), at::kDouble).view(y.sizes()) + 10 * world.rank());
    EXPECT_EQ(operations() - before, result == Result::Needed ? 2 : 1);
    gradients.push_back(x.grad());
  }
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
}

TEST(Collectives, WithAnUnusedResultCommunicateInBackwardOnly) {
  on_threads(2, [](World& world) {
    const Group& group = world.everyone();
    const at::Tensor x = at::arange(8, at::kDouble).view({4, 2}) + world.rank();
    check_unused([&](const at::Tensor& in, Result result) { return all_reduce(in, group, result); }, x, world);
    check_unused([&](const at::Tensor& in, Result result) { return all_gather(in, group, 1, result); }, x, world);
    check_unused([&](const at::Tensor& in, Result result) { return reduce_scatter(in, group, 0, result); }, x, world);
    const std::vector<std::int64_t> rows_to = {1, 3}, rows_from(2, rows_to[static_cast<std::size_t>(world.rank())]);
    check_unused([&](const at::Tensor& in, Result result) { return all_to_all(in, rows_to, rows_from, group, result); },
                 x, world);
  });
}

TEST(Collectives, OneProcess) { on_processes(1, check_world); }
TEST(Collectives, TwoProcesses) { on_processes(2, check_world); }
TEST(Collectives, FourProcesses) { on_processes(4, check_world); }
TEST(Collectives, EightProcesses) { on_processes(8, check_world); }

class CollectivesOnThreads : public ::testing::TestWithParam<std::tuple<int, ThreadSemantics>> {};

TEST_P(CollectivesOnThreads, ForwardAndBackward) {
  const auto [ranks, semantics] = GetParam();
  on_threads(ranks, check_world, semantics);
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesOnThreads,
                         ::testing::Combine(::testing::Values(1, 2, 4, 8, 32),
                                            ::testing::Values(ThreadSemantics::Relaxed, ThreadSemantics::Strict)));

// With 256 ranks, creating the inputs of all ranks on every rank would take gigabytes: closed forms instead.
TEST(CollectivesOnManyThreads, TwoHundredFiftySixRanks) {
  on_threads(256, [](World& world) {
    const Group group = world.everyone();
    const std::vector<std::int64_t> ones(256, 1);
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      const Case c{group, dtype};
      check_broadcast(c);
      check_exchange(c);
      at::Tensor x = at::full({2}, 1, at::TensorOptions(dtype)).requires_grad_(dtype != at::kLong);
      const at::Tensor y = all_reduce(x, group);
      EXPECT_EQ(y[0].item<double>(), 256);
      const at::Tensor gathered = all_gather(x * 0 + group.rank() % 128, group);
      EXPECT_EQ(gathered[2 * 77].item<double>(), 77);
      const at::Tensor scattered = reduce_scatter(at::ones({256}, at::TensorOptions(dtype)), group);
      EXPECT_EQ(scattered[0].item<double>(), 256);
      const at::Tensor exchanged = all_to_all(at::arange(256, at::kLong).remainder(128).to(dtype), ones, ones, group);
      EXPECT_EQ(exchanged[3].item<double>(), group.rank() % 128);
      if (dtype != at::kLong) {
        y.sum().backward();
        EXPECT_EQ(x.grad()[0].item<double>(), 256);
      }
    }
  });
}

// One GPU holds one NCCL rank, so NCCL cannot get larger on a single-GPU machine.
TEST(Collectives, NcclInAWorldOfOne) {
  if (nccl_version().empty()) GTEST_SKIP() << "this build has no NCCL";
  if (torch::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
  const StoreServer server(listen_for_store("127.0.0.1", 0));
  const auto store = std::make_shared<Store>(Endpoint{"127.0.0.1", server.port()}, std::chrono::seconds(30));
  const auto backend = nccl_backends(store, 0, std::chrono::seconds(60))("nccl", {0}, 0);
  Progress progress;
  check_all(Group("nccl", {0}, 0, c10::Device(c10::kCUDA, 0), backend, progress));
}

// Two groups of a subset of the world, used at once, do not disturb each other.
TEST(Collectives, SubgroupsAreIndependent) {
  on_threads(6, [](World& world) {
    const bool even = world.rank() % 2 == 0;
    const Group group = world.make_group("parity", even ? std::vector{0, 2, 4} : std::vector{1, 3, 5});
    at::Tensor x = at::full({1}, world.rank(), at::kLong);
    group.all_reduce(x);
    EXPECT_EQ(x.item<std::int64_t>(), even ? 6 : 9);
  });
}

// A rank whose output does not matter to its loss takes part in the backward collective with zeros.
TEST(Collectives, BackwardWithoutGradientOnSomeRanks) {
  on_threads(2, [](World& world) {
    const Group group = world.everyone();
    at::Tensor x = at::ones({2}).requires_grad_();
    const at::Tensor y = all_reduce(x, group);
    y.backward(world.rank() == 0 ? at::full({2}, 5.0) : at::zeros({2}));
    EXPECT_EQ(x.grad()[1].item<float>(), 5);
  });
}

// An operation that names no GPU uses this rank's.
TEST(Collectives, TheRanksGpuIsTheCurrentOne) {
  if (torch::cuda::device_count() < 2) GTEST_SKIP() << "fewer than two GPUs here";
  on_processes(2, [](World& world) {
    if (!world.device().is_cuda()) return;
    EXPECT_EQ(at::empty({1}, at::kCUDA).device().index(), world.device().index());
  });
}

}  // namespace
}  // namespace braid
