#include "comm/group.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>

#include "base/error.h"
#include "base/strings.h"
#include "comm/backend_factory.h"
#include "comm/comm_meter.h"
#include "comm/progress.h"

namespace braid {

namespace {

using Works = CommMeter::Works;

std::string elements(const at::Tensor& tensor) {
  return fmt::format("{} {}", tensor.numel(), c10::toString(tensor.scalar_type()));
}

std::int64_t bytes_of(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

}  // namespace

struct Group::State {
  std::string name;
  std::vector<int> ranks;
  int rank;
  c10::Device device;
  c10::intrusive_ptr<c10d::Backend> backend;
  Progress& progress;
  std::shared_ptr<CommMeter> meter;
  bool is_gloo;
  bool through_host;  // Gloo supports CUDA tensors only for some operations, so all of them go through host memory
  std::string queue = fmt::format("{}", fmt::ptr(backend.get()));  // its name for Progress

  bool on_device() const { return device.is_cuda() && !is_gloo; }  // its operations run in a queue of the GPU

  // Without a time-out here, Gloo's sends and receives would fail after the connect time-out. NCCL's wait() returns
  // once the operation is queued, but with a time-out only when it is complete.
  bool finish(c10d::Work& work) const { return is_gloo ? work.wait(kCollectiveTimeout) : work.wait(); }

  // Runs `act` as an operation visible to the failure board, and puts op, group and ranks into its errors.
  template <class Act>
  auto watched(const char* op, const std::vector<Wait>& waits, Act act) const {
    auto scope = progress.wait_in(op, waits);
    try {
      return act();
    } catch (const c10::DistError& e) {
      fail(op, e.what_without_backtrace());
    } catch (const c10::Error& e) {
      // Not caused by a peer: the arguments were wrong (mixed dtypes, splits that do not add up).
      throw std::invalid_argument(describe(op, e.what_without_backtrace()));
    } catch (const std::exception& e) {
      fail(op, e.what());
    }
  }

  // Whether the device has done what the rank's current stream has been given so far.
  std::function<bool()> passes_here() const {
    const auto event = std::make_shared<c10::Event>(device.type());
    event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    return [event, device = device] {
      const c10::DeviceGuard guard(device);  // else the thread would open a context on the first GPU
      return event->query();
    };
  }

  // The works of start(). What a device will carry out is followed there, too.
  template <class Start>
  Works launch(const char* op, const std::vector<Wait>& waits, Start start) const {
    const std::function<bool()> inputs_ready = on_device() ? passes_here() : nullptr;
    Works works = watched(op, waits, start);
    if (on_device())
      progress.follow(queue, op, waits, [inputs_ready, is_done = completion_of(*works.back()), device = device] {
        const c10::DeviceGuard guard(device);
        return is_done() ? DeviceState::Done : inputs_ready() ? DeviceState::Started : DeviceState::Queued;
      });
    return works;
  }

  void finish(const char* op, const std::vector<Wait>& waits, const Works& works) const {
    if (on_device()) progress.await_device(queue, waits, passes_here());
    watched(op, waits, [&] {
      for (const auto& work : works) finish(*work);
      return true;
    });
  }

  Meeting collective(std::string content, std::int64_t bytes = 0) const {
    return {name, ranks, std::move(content), bytes};
  }

  std::string describe(const char* op, const std::string& why) const {
    return fmt::format("{} on {} (ranks {}): {}", op, name, fold_ranks(ranks), why);
  }
  [[noreturn]] void fail(const char* op, const std::string& why) const { throw CommError(describe(op, why)); }

  Meeting pair(int from, int to, const at::Tensor& tensor) const {
    Meeting meeting{fmt::format("{} {}>{}", name, ranks.at(from), ranks.at(to)),
                    {ranks.at(from), ranks.at(to)},
                    elements(tensor),
                    bytes_of(tensor),
                    ranks.at(from)};
    if (from > to) std::swap(meeting.members[0], meeting.members[1]);
    return meeting;
  }

  at::Tensor to_wire(const at::Tensor& tensor) const {
    return through_host ? tensor.cpu().contiguous() : tensor.contiguous();
  }
  static void from_wire(at::Tensor& tensor, const at::Tensor& wire) {
    if (!wire.is_same(tensor)) tensor.copy_(wire);
  }
};

struct Pending::Operation {
  // `wire` is the tensor that the backend works on; a result is copied from it to `output`.
  struct Result {
    at::Tensor output, wire;
  };
  std::shared_ptr<const Group::State> group;
  const char* name;
  std::vector<Result> results;
  std::vector<at::Tensor> inputs;
  std::vector<Wait> waits{};
  Works works{};
  CommMeter::Measured measured{};

  // A start may wait for peers too: NCCL connects them in their first operation.
  template <class Start>
  static Pending start(Operation operation, std::vector<Meeting> meetings, Start start) {
    const Group::State& group = *operation.group;
    operation.waits = group.progress.arrive(operation.name, std::move(meetings));
    if (group.meter) operation.measured = group.meter->start(group.name, operation.name, group.on_device());
    operation.works = group.launch(operation.name, operation.waits, [&] { return start(*group.backend, operation); });
    if (group.meter) operation.measured.timing->launched(operation.works);
    return Pending(std::make_unique<Operation>(std::move(operation)));
  }
  template <class Start>
  static Pending start_collective(Operation operation, std::string content, const at::Tensor& whole, Start start) {
    std::vector<Meeting> meetings = {operation.group->collective(std::move(content), bytes_of(whole))};
    return Operation::start(std::move(operation), std::move(meetings),
                            [&](c10d::Backend& backend, Operation& o) { return Works{start(backend, o)}; });
  }

  void wait() {
    if (group->meter) measured.timing->wait_begins();
    group->finish(name, waits, works);
    if (group->meter) {
      measured.timing->wait_ends();
      group->meter->finish(std::move(measured), waits);
    }
    for (Result& result : results) Group::State::from_wire(result.output, result.wire);
  }
};

Pending::Pending() = default;
Pending::Pending(std::unique_ptr<Operation> operation) : operation_(std::move(operation)) {}
Pending::~Pending() = default;
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;

void Pending::wait() {
  if (const auto operation = std::move(operation_)) operation->wait();
}

namespace {

// start(0), ..., start(count - 1) as one operation, where the backend can do that.
template <class Start>
Works start_together(c10d::Backend& backend, std::size_t count, Start start) {
  const bool together = backend.supportsCoalescing();
  Works works;
  if (together) backend.startCoalescing();
  for (std::size_t i = 0; i < count; ++i) works.push_back(start(i));
  return together ? Works{backend.endCoalescing()} : works;
}

c10d::ReduceOp to_c10d(Reduce op) { return op == Reduce::Sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX; }

}  // namespace

Group::Group(std::string name, std::vector<int> ranks, int group_rank, const c10::Device& device,
             c10::intrusive_ptr<c10d::Backend> backend, Progress& progress, std::shared_ptr<CommMeter> meter) {
  BRAID_CHECK(backend || ranks.size() == 1, "group {} of {} ranks needs a backend", name, ranks.size());
  const bool is_gloo = backend && backend->getBackendName() == "gloo";
  state_ = std::make_shared<State>(State{std::move(name), std::move(ranks), group_rank, device, std::move(backend),
                                         progress, std::move(meter), is_gloo, is_gloo && device.is_cuda()});
}
Group::Group(std::string name, const c10::Device& device, Progress& progress)
    : Group(std::move(name), {0}, 0, device, nullptr, progress) {}
Group::~Group() = default;
Group::Group(const Group&) = default;
Group& Group::operator=(const Group&) = default;

const std::string& Group::name() const { return state_->name; }
int Group::rank() const { return state_->rank; }
int Group::size() const { return static_cast<int>(state_->ranks.size()); }
const std::vector<int>& Group::ranks() const { return state_->ranks; }
c10::Device Group::device() const { return state_->device; }

Pending Group::start_all_reduce(at::Tensor& tensor, Reduce op) const {
  if (!state_->backend) return {};
  return Pending::Operation::start_collective({state_, "all_reduce", {{tensor, state_->to_wire(tensor)}}, {}},
                                              (op == Reduce::Sum ? "all_reduce of " : "maximum of ") + elements(tensor),
                                              tensor, [&](c10d::Backend& backend, Pending::Operation& o) {
                                                std::vector<at::Tensor> wires = {o.results[0].wire};
                                                c10d::AllreduceOptions options;
                                                options.reduceOp = to_c10d(op);
                                                return backend.allreduce(wires, options);
                                              });
}

Pending Group::start_broadcast(at::Tensor& tensor, int root) const {
  if (!state_->backend) return {};
  return Pending::Operation::start_collective({state_, "broadcast", {{tensor, state_->to_wire(tensor)}}, {}},
                                              fmt::format("broadcast of {} from {}", elements(tensor), ranks()[root]),
                                              tensor, [&](c10d::Backend& backend, Pending::Operation& o) {
                                                std::vector<at::Tensor> wires = {o.results[0].wire};
                                                c10d::BroadcastOptions options;
                                                options.rootRank = root;
                                                return backend.broadcast(wires, options);
                                              });
}

Pending Group::start_reduce(at::Tensor& tensor, int root) const {
  if (!state_->backend) return {};
  std::vector<at::Tensor> wires = {state_->to_wire(tensor)};
  Pending::Operation operation = {state_, "reduce", {}, {wires[0]}};
  if (rank() == root) operation.results.push_back({tensor, wires[0]});
  return Pending::Operation::start_collective(std::move(operation),
                                              fmt::format("reduce of {} to {}", elements(tensor), ranks()[root]),
                                              tensor, [&](c10d::Backend& backend, Pending::Operation&) {
                                                c10d::ReduceOptions options;
                                                options.rootRank = root;
                                                return backend.reduce(wires, options);
                                              });
}

Pending Group::start_all_gather(at::Tensor& output, const at::Tensor& input) const {
  BRAID_CHECK_EQ(output.numel(), input.numel() * size(), "all_gather on {}", name());
  if (!state_->backend) {
    output.copy_(input.reshape(output.sizes()));
    return {};
  }
  return Pending::Operation::start_collective(
      {state_, "all_gather", {{output, state_->to_wire(output)}}, {state_->to_wire(input)}},
      "all_gather of " + elements(input), output, [](c10d::Backend& backend, Pending::Operation& o) {
        return backend._allgather_base(o.results[0].wire, o.inputs[0]);
      });
}

Pending Group::start_reduce_scatter(at::Tensor& output, const at::Tensor& input) const {
  BRAID_CHECK_EQ(input.numel(), output.numel() * size(), "reduce_scatter on {}", name());
  if (!state_->backend) {
    output.copy_(input.reshape(output.sizes()));
    return {};
  }
  return Pending::Operation::start_collective(
      {state_, "reduce_scatter", {{output, state_->to_wire(output)}}, {state_->to_wire(input)}},
      "reduce_scatter of " + elements(input), input, [](c10d::Backend& backend, Pending::Operation& o) {
        return backend._reduce_scatter_base(o.results[0].wire, o.inputs[0]);
      });
}

Pending Group::start_all_to_all(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                                const std::vector<std::int64_t>& output_rows,
                                const std::vector<std::int64_t>& input_rows) const {
  if (!state_->backend) {
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(inputs[i]);
    return {};
  }
  Pending::Operation operation = {state_, "all_to_all", {}, {}};
  std::string content = "all_to_all of rows of";  // ranks send different numbers of them
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    operation.results.push_back({outputs[i], state_->to_wire(outputs[i])});
    operation.inputs.push_back(state_->to_wire(inputs[i]));
    bytes += bytes_of(inputs[i]);
    content += fmt::format("{} {} {}", i == 0 ? "" : " and", c10::multiply_integers(inputs[i].sizes().slice(1)),
                           c10::toString(inputs[i].scalar_type()));
  }
  return Pending::Operation::start(std::move(operation), {state_->collective(std::move(content), bytes)},
                                   [&](c10d::Backend& backend, Pending::Operation& o) {
                                     return start_together(backend, o.inputs.size(), [&](std::size_t i) {
                                       std::vector<std::int64_t> out_rows = output_rows, in_rows = input_rows;
                                       return backend.alltoall_base(o.results[i].wire, o.inputs[i], out_rows, in_rows);
                                     });
                                   });
}

Pending Group::start_exchange(const std::vector<Transfer>& transfers) const {
  return start_transfers("exchange", transfers);
}

Pending Group::start_transfers(const char* op, const std::vector<Transfer>& transfers) const {
  if (transfers.empty()) return {};
  BRAID_CHECK(state_->backend, "{} on {}, a group of one", op, name());
  Pending::Operation operation = {state_, op, {}, {}};
  std::vector<std::vector<at::Tensor>> wires;
  std::vector<Meeting> meetings;
  for (const Transfer& transfer : transfers) {
    wires.push_back({state_->to_wire(transfer.tensor)});
    const int from = transfer.outgoing ? rank() : transfer.peer, to = transfer.outgoing ? transfer.peer : rank();
    meetings.push_back(state_->pair(from, to, transfer.tensor));
    if (transfer.outgoing)
      operation.inputs.push_back(wires.back()[0]);
    else
      operation.results.push_back({transfer.tensor, wires.back()[0]});
  }
  return Pending::Operation::start(
      std::move(operation), std::move(meetings), [&](c10d::Backend& backend, Pending::Operation&) {
        return start_together(backend, transfers.size(), [&](std::size_t i) {
          const int peer = transfers[i].peer;
          return transfers[i].outgoing ? backend.send(wires[i], peer, 0) : backend.recv(wires[i], peer, 0);
        });
      });
}

void Group::all_reduce(at::Tensor& tensor, Reduce op) const { start_all_reduce(tensor, op).wait(); }
void Group::broadcast(at::Tensor& tensor, int root) const { start_broadcast(tensor, root).wait(); }
void Group::reduce(at::Tensor& tensor, int root) const { start_reduce(tensor, root).wait(); }
void Group::all_gather(at::Tensor& output, const at::Tensor& input) const { start_all_gather(output, input).wait(); }
void Group::reduce_scatter(at::Tensor& output, const at::Tensor& input) const {
  start_reduce_scatter(output, input).wait();
}
void Group::all_to_all(at::Tensor& output, const at::Tensor& input, const std::vector<std::int64_t>& output_rows,
                       const std::vector<std::int64_t>& input_rows) const {
  start_all_to_all({output}, {input}, output_rows, input_rows).wait();
}

void Group::send(const at::Tensor& tensor, int to) const {
  at::Tensor sent = tensor;
  start_transfers("send", {{sent, to, true}}).wait();
}

void Group::receive(at::Tensor& tensor, int from) const { start_transfers("receive", {{tensor, from, false}}).wait(); }

void Group::barrier() const {
  if (!state_->backend) return;
  Pending::Operation::start({state_, "barrier", {}, {}}, {state_->collective("barrier")},
                            [](c10d::Backend& backend, Pending::Operation&) { return Works{backend.barrier()}; })
      .wait();
}

}  // namespace braid
