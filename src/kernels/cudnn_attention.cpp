#include <algorithm>
#include <cudnn_frontend.h>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>
#include "kernels/attention.h"

namespace braid::kernels {
namespace {

namespace fe = cudnn_frontend;
using Attributes = fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Attributes>;

enum Id : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kStatistics,
  kOutGrad,
  kQGrad,
  kKGrad,
  kVGrad,
  kLengths,
  kInInputs,
  kInOutput,
  kInStatistics
};

// The tensors of a graph, as the plan of one shape describes them.
class GraphOf {
 public:
  GraphOf(fe::graph::Graph& graph, const CudnnAttention& shape) : graph_(graph), shape_(shape) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (!shape.packed) return;
    lengths_ = graph.tensor(table(kLengths, shape.parts, fe::DataType_t::INT32));
    in_inputs_ = graph.tensor(table(kInInputs, shape.parts + 1, fe::DataType_t::INT64));
    in_output_ = graph.tensor(table(kInOutput, shape.parts + 1, fe::DataType_t::INT64));
    in_statistics_ = graph.tensor(table(kInStatistics, shape.parts + 1, fe::DataType_t::INT64));
  }

  TensorPtr input(Id id) const {
    Attributes attributes;
    describe(attributes, id);
    return graph_.tensor(attributes);
  }
  void output(const TensorPtr& tensor, Id id) const {
    tensor->set_output(true);
    describe(*tensor, id);
  }

  template <class Options>
  Options options() const {
    Options options;
    options.set_attn_scale(static_cast<float>(shape_.scale));
    if (shape_.causal) options.set_causal_mask(true);
    if (shape_.packed) options.set_padding_mask(true).set_seq_len_q(lengths_).set_seq_len_kv(lengths_);
    return options;
  }

 private:
  static Attributes table(Id id, std::int64_t size, fe::DataType_t type) {
    return Attributes().set_uid(id).set_dim({size, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(type);
  }

  void describe(Attributes& attributes, Id id) const {
    attributes.set_uid(id);
    if (id == kStatistics)
      describe_statistics(attributes);
    else if (id == kOut || id == kOutGrad)
      place(attributes, shape_.query_heads, shape_.out, in_output_);
    else if (id == kQ || id == kQGrad)
      place(attributes, shape_.query_heads, shape_.queries, in_inputs_);
    else
      place(attributes, shape_.key_heads, shape_.keys, in_inputs_);
  }
  void place(Attributes& attributes, std::int64_t heads, const AttentionStrides& strides,
             const TensorPtr& part_begin) const {
    attributes.set_dim({shape_.parts, heads, shape_.length, shape_.width})
        .set_stride({shape_.packed ? shape_.length * strides.token : strides.part, strides.head, strides.token, 1});
    if (shape_.packed) attributes.set_ragged_offset(part_begin);
  }
  void describe_statistics(Attributes& attributes) const {
    const std::int64_t heads = shape_.query_heads, length = shape_.length;
    attributes.set_dim({shape_.parts, heads, length, 1}).set_data_type(fe::DataType_t::FLOAT);
    if (shape_.packed)
      attributes.set_stride({heads * length, 1, heads, 1}).set_ragged_offset(in_statistics_);
    else
      attributes.set_stride({heads * length, length, 1, 1});
  }

  fe::graph::Graph& graph_;
  const CudnnAttention& shape_;
  TensorPtr lengths_, in_inputs_, in_output_, in_statistics_;
};

void describe_forward(fe::graph::Graph& graph, const CudnnAttention& shape) {
  const GraphOf of(graph, shape);
  const auto options = of.options<fe::graph::SDPA_attributes>().set_generate_stats(true);
  const auto [out, statistics] = graph.sdpa(of.input(kQ), of.input(kK), of.input(kV), options);
  of.output(out, kOut);
  of.output(statistics, kStatistics);
}

void describe_backward(fe::graph::Graph& graph, const CudnnAttention& shape) {
  const GraphOf of(graph, shape);
  const auto options =
      of.options<fe::graph::SDPA_backward_attributes>().set_deterministic_algorithm(shape.deterministic);
  const auto [q, k, v] = graph.sdpa_backward(of.input(kQ), of.input(kK), of.input(kV), of.input(kOut),
                                             of.input(kOutGrad), of.input(kStatistics), options);
  of.output(q, kQGrad);
  of.output(k, kKGrad);
  of.output(v, kVGrad);
}

int current_gpu() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

// A handle belongs to one thread and the GPU that is current when it is made.
cudnnHandle_t handle_of_thread() {
  thread_local std::map<int, cudnnHandle_t> handles;
  cudnnHandle_t& handle = handles[current_gpu()];
  if (handle == nullptr && cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS)
    throw std::runtime_error("cuDNN gives no handle");
  return handle;
}

using Describe = void (*)(fe::graph::Graph&, const CudnnAttention&);

struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;  // null: cuDNN cannot do it
  std::int64_t workspace = 0;
};

Plan make_plan(const CudnnAttention& shape, Describe describe, cudnnHandle_t handle) {
  auto graph = std::make_shared<fe::graph::Graph>();
  describe(*graph, shape);
  std::int64_t workspace = 0;
  if (!graph->build(handle, {fe::HeurMode_t::A}).is_good() || !graph->get_workspace_size(workspace).is_good())
    return {};
  return {graph, workspace};
}

// A plan is made for one model of GPU.
const Plan& plan_for(const CudnnAttention& shape, Describe describe, cudnnHandle_t handle) {
  static std::mutex mutex;
  static std::map<std::tuple<int, Describe, CudnnAttention>, Plan> plans;
  const std::lock_guard lock(mutex);
  const auto [plan, is_new] = plans.try_emplace({current_gpu(), describe, shape});
  if (is_new) plan->second = make_plan(shape, describe, handle);
  return plan->second;
}

// A tensor of a graph, and the distance between its parts.
struct Operand {
  Id id;
  void* data;
  std::int64_t part_bytes;
};

std::vector<Operand> operands_of(const CudnnAttention& shape, const AttentionTensors& tensors) {
  // Parts that are packed are found by the tables.
  const auto bytes = [&](std::int64_t elements, std::int64_t of_each) { return shape.packed ? 0 : elements * of_each; };
  const std::int64_t queries = bytes(shape.queries.part, 2), keys = bytes(shape.keys.part, 2),
                     out = bytes(shape.out.part, 2);
  std::vector<Operand> operands = {{kQ, tensors.q.data, queries},
                                   {kK, tensors.k.data, keys},
                                   {kV, tensors.v.data, keys},
                                   {kOut, tensors.out.data, out},
                                   {kStatistics, tensors.statistics.data, bytes(shape.query_heads * shape.length, 4)}};
  if (shape.packed)
    operands.insert(operands.end(), {{kLengths, tensors.lengths.data, sizeof(std::int32_t)},
                                     {kInInputs, tensors.in_inputs.data, sizeof(std::int64_t)},
                                     {kInOutput, tensors.in_output.data, sizeof(std::int64_t)},
                                     {kInStatistics, tensors.in_statistics.data, sizeof(std::int64_t)}});
  if (tensors.out_grad.data)
    operands.insert(operands.end(), {{kOutGrad, tensors.out_grad.data, out},
                                     {kQGrad, tensors.q_grad.data, queries},
                                     {kKGrad, tensors.k_grad.data, keys},
                                     {kVGrad, tensors.v_grad.data, keys}});
  return operands;
}

// One piece of the parts after the other.
bool execute(const CudnnAttention& shape, const CudnnAttention& piece, Describe describe,
             const AttentionTensors& tensors, const Queue& queue) {
  const cudnnHandle_t handle = handle_of_thread();
  const Plan& plan = plan_for(piece, describe, handle);
  if (!plan.graph) return false;
  if (cudnnSetStream(handle, queue.stream) != CUDNN_STATUS_SUCCESS) throw std::runtime_error("cuDNN takes no stream");
  void* const workspace = queue.allocate(static_cast<std::size_t>(plan.workspace));
  const std::vector<Operand> operands = operands_of(shape, tensors);
  for (std::int64_t first = 0; first < shape.parts; first += piece.parts) {
    std::unordered_map<std::int64_t, void*> pointers;
    for (const auto& [id, data, part_bytes] : operands) pointers[id] = static_cast<char*>(data) + first * part_bytes;
    if (auto status = plan.graph->execute(handle, pointers, workspace); !status.is_good())
      throw std::runtime_error("cuDNN's attention fails: " + status.get_message());
  }
  return true;
}

// The workspace of the deterministic backward grows with the square of the length: a part of four heads of 128 needs
// 0.5 GiB at 8,192 tokens, and 8 GiB at 32,768, which kMostWorkspaceBytes still allows. So only as many parts run at
// once as have room in kGoodWorkspaceBytes.
constexpr std::int64_t kGoodWorkspaceBytes = std::int64_t{2} << 30, kMostWorkspaceBytes = std::int64_t{9} << 30;

// cuDNN relies on addresses that are multiples of 16 bytes, so a piece has a multiple of this many parts. The tables of
// packed parts and the statistics have elements of 4 bytes.
std::int64_t least_piece(const CudnnAttention& shape) {
  constexpr std::int64_t kElements = 16 / 4;
  return shape.packed ? kElements : kElements / std::gcd(kElements, shape.query_heads * shape.length);
}

// The shape of equal pieces. None if cuDNN has no plan, or needs more than kMostWorkspaceBytes for a piece.
std::optional<CudnnAttention> backward_piece(const CudnnAttention& shape) {
  const cudnnHandle_t handle = handle_of_thread();
  const Plan& whole = plan_for(shape, describe_backward, handle);
  if (!whole.graph) return std::nullopt;
  if (whole.workspace <= kGoodWorkspaceBytes) return shape;
  const std::int64_t least = least_piece(shape), room = kGoodWorkspaceBytes / (whole.workspace / shape.parts);
  CudnnAttention piece = shape;
  piece.parts = std::max(least, room / least * least);
  while (piece.parts > 0 && shape.parts % piece.parts != 0) piece.parts -= least;
  if (piece.parts == 0) piece.parts = shape.parts;
  const Plan& plan = plan_for(piece, describe_backward, handle);
  if (!plan.graph || plan.workspace > kMostWorkspaceBytes) return std::nullopt;
  return piece;
}

}  // namespace

bool has_cudnn_attention_backward(const CudnnAttention& shape) { return backward_piece(shape).has_value(); }

bool cudnn_attention_forward(const CudnnAttention& shape, const AttentionTensors& tensors, const Queue& queue) {
  return execute(shape, shape, describe_forward, tensors, queue);
}

bool cudnn_attention_backward(const CudnnAttention& shape, const AttentionTensors& tensors, const Queue& queue) {
  const std::optional<CudnnAttention> piece = backward_piece(shape);
  return piece && execute(shape, *piece, describe_backward, tensors, queue);
}

}  // namespace braid::kernels
