#include "comm/world.h"
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "comm/comm_meter.h"
#include "comm/store.h"
#include "plan/channels.h"
#include "plan/topology.h"

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
  std::vector<Result> results{};
  std::vector<at::Tensor> inputs{};
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
    return Pending(std::make_shared<Operation>(std::move(operation)));
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

const std::string& Group::name() const { return state_->name; }
int Group::rank() const { return state_->rank; }
int Group::size() const { return static_cast<int>(state_->ranks.size()); }
const std::vector<int>& Group::ranks() const { return state_->ranks; }
c10::Device Group::device() const { return state_->device; }

// A collective that changes one tensor, or that gives `output` from `input`. The board is told the size of the larger.
template <class Start>
Pending Group::start(const char* op, std::string content, at::Tensor& output, const at::Tensor* input,
                     Start start) const {
  if (!state_->backend) {
    if (input) output.copy_(input->reshape(output.sizes()));
    return {};
  }
  Pending::Operation operation = {.group = state_, .name = op, .results = {{output, state_->to_wire(output)}}};
  if (input) operation.inputs.push_back(state_->to_wire(*input));
  const std::int64_t bytes = input ? std::max(bytes_of(output), bytes_of(*input)) : bytes_of(output);
  return Pending::Operation::start(
      std::move(operation), {state_->collective(std::move(content), bytes)},
      [&](c10d::Backend& backend, Pending::Operation& o) { return Works{start(backend, o)}; });
}

Pending Group::start_all_reduce(at::Tensor& tensor, Reduce op) const {
  return start("all_reduce", (op == Reduce::Sum ? "all_reduce of " : "maximum of ") + elements(tensor), tensor, nullptr,
               [&](c10d::Backend& backend, Pending::Operation& o) {
                 std::vector<at::Tensor> wires = {o.results[0].wire};
                 c10d::AllreduceOptions options;
                 options.reduceOp = op == Reduce::Sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
                 return backend.allreduce(wires, options);
               });
}

Pending Group::start_broadcast(at::Tensor& tensor, int root) const {
  return start("broadcast", fmt::format("broadcast of {} from {}", elements(tensor), ranks()[root]), tensor, nullptr,
               [&](c10d::Backend& backend, Pending::Operation& o) {
                 std::vector<at::Tensor> wires = {o.results[0].wire};
                 c10d::BroadcastOptions options;
                 options.rootRank = root;
                 return backend.broadcast(wires, options);
               });
}

Pending Group::start_reduce(at::Tensor& tensor, int root) const {
  return start("reduce", fmt::format("reduce of {} to {}", elements(tensor), ranks()[root]), tensor, nullptr,
               [&](c10d::Backend& backend, Pending::Operation& o) {
                 std::vector<at::Tensor> wires = {o.results[0].wire};
                 if (rank() != root) {  // what it holds after that is undefined
                   o.inputs = wires;
                   o.results.clear();
                 }
                 c10d::ReduceOptions options;
                 options.rootRank = root;
                 return backend.reduce(wires, options);
               });
}

Pending Group::start_all_gather(at::Tensor& output, const at::Tensor& input) const {
  BRAID_CHECK_EQ(output.numel(), input.numel() * size(), "all_gather on {}", name());
  return start("all_gather", "all_gather of " + elements(input), output, &input,
               [](c10d::Backend& backend, Pending::Operation& o) {
                 return backend._allgather_base(o.results[0].wire, o.inputs[0]);
               });
}

Pending Group::start_reduce_scatter(at::Tensor& output, const at::Tensor& input) const {
  BRAID_CHECK_EQ(input.numel(), output.numel() * size(), "reduce_scatter on {}", name());
  return start("reduce_scatter", "reduce_scatter of " + elements(input), output, &input,
               [](c10d::Backend& backend, Pending::Operation& o) {
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
  Pending::Operation operation = {state_, "all_to_all"};
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

Pending Group::start_exchange(const std::vector<Transfer>& transfers, const char* op) const {
  if (transfers.empty()) return {};
  BRAID_CHECK(state_->backend, "{} on {}, a group of one", op, name());
  Pending::Operation operation = {state_, op};
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
  start_exchange({{sent, to, true}}, "send").wait();
}

void Group::receive(at::Tensor& tensor, int from) const { start_exchange({{tensor, from, false}}, "receive").wait(); }

void Group::barrier() const {
  if (!state_->backend) return;
  Pending::Operation::start({state_, "barrier"}, {state_->collective("barrier")},
                            [](c10d::Backend& backend, Pending::Operation&) { return Works{backend.barrier()}; })
      .wait();
}

// --- the world

World::World(int rank, int size, c10::Device device, MakeBackend backends, Progress& progress,
             MakeBackend host_backends)
    : rank_(rank), size_(size), device_(device), backends_(std::move(backends)),
      host_backends_(host_backends ? std::move(host_backends) : backends_), progress_(progress),
      meter_(std::make_shared<CommMeter>(device)) {}

World::~World() { progress_.forget_devices(); }

void World::close() {
  for (const auto& connection : connections_) connection->shutdown();
}

Group World::make_group(const std::string& name, const std::vector<int>& ranks, bool on_host) {
  const auto self = std::find(ranks.begin(), ranks.end(), rank_);
  BRAID_CHECK(self != ranks.end(), "rank {} makes group {} without being in it", rank_, name);
  const int group_rank = static_cast<int>(self - ranks.begin());
  const c10::Device device = on_host ? c10::Device(c10::kCPU) : device_;
  if (ranks.size() == 1) return Group(name, {rank_}, 0, device, nullptr, progress_);

  const std::string instance = fmt::format("{}@{}", name, ++groups_made_[group_key(name, ranks)]);
  auto scope = progress_.meet("connect", {{name, ranks}});
  try {
    connections_.push_back((on_host ? host_backends_ : backends_)(instance, ranks, group_rank));
    return Group(name, ranks, group_rank, device, connections_.back(), progress_, meter_);
  } catch (const std::logic_error&) {
    throw;  // our own mistake
  } catch (const std::exception& e) {
    throw CommError(fmt::format("connecting group {}: {}", name, words_of(e)));
  }
}

const Group& World::everyone() {
  if (!everyone_) {
    std::vector<int> ranks(static_cast<std::size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    everyone_ = make_group("world", ranks);
    everyone_->barrier();
  }
  return *everyone_;
}

Groups::Groups(World& world, const Topology& topology) : world_(world.everyone()) {
  const std::vector<GroupSpec> channels = make_channel_groups(topology);
  for (const std::vector<GroupSpec>* specs : {&topology.groups(), &channels})
    for (const GroupSpec& spec : *specs)
      if (spec.connected && std::binary_search(spec.ranks.begin(), spec.ranks.end(), world.rank()))
        by_name_.emplace(spec.name, world.make_group(spec.name, spec.ranks, spec.on_host));
}

const Group& Groups::get(const std::string& module, const std::string& key) const {
  const auto group = by_name_.find(module + "." + key);
  BRAID_CHECK(group != by_name_.end(), "rank {} is in no group {}.{}", world_.rank(), module, key);
  return group->second;
}

}  // namespace braid
