#include <cudnn_frontend.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

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

using Pointers = std::unordered_map<std::int64_t, void*>;

bool execute(const CudnnAttention& shape, Describe describe, Pointers pointers, const PartTables& parts,
             const AllocateWorkspace& allocate, cudaStream_t stream) {
  const cudnnHandle_t handle = handle_of_thread();
  const Plan& plan = plan_for(shape, describe, handle);
  if (!plan.graph) return false;
  if (cudnnSetStream(handle, stream) != CUDNN_STATUS_SUCCESS) throw std::runtime_error("cuDNN takes no stream");
  if (shape.packed) {
    pointers[kLengths] = const_cast<std::int32_t*>(parts.lengths);
    pointers[kInInputs] = const_cast<std::int64_t*>(parts.in_inputs);
    pointers[kInOutput] = const_cast<std::int64_t*>(parts.in_output);
    pointers[kInStatistics] = const_cast<std::int64_t*>(parts.in_statistics);
  }
  void* workspace = allocate(plan.workspace);
  if (auto status = plan.graph->execute(handle, pointers, workspace); !status.is_good())
    throw std::runtime_error("cuDNN's attention fails: " + status.get_message());
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

template <class T>
void add_bytes(T*& pointer, std::int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  pointer = static_cast<Byte*>(pointer) + bytes;
}

// Moves the pointers on by so many parts.
void advance(const CudnnAttention& shape, std::int64_t parts, AttentionTensors& tensors,
             AttentionGradients& gradients) {
  if (shape.packed) {
    tensors.parts.lengths += parts;
    for (const std::int64_t** table :
         {&tensors.parts.in_inputs, &tensors.parts.in_output, &tensors.parts.in_statistics})
      *table += parts;
    return;
  }
  constexpr std::int64_t kElementBytes = 2, kStatisticBytes = 4;
  const std::int64_t keys = parts * shape.keys.part * kElementBytes, out = parts * shape.out.part * kElementBytes,
                     queries = parts * shape.queries.part * kElementBytes;
  add_bytes(tensors.q, queries);
  add_bytes(tensors.k, keys);
  add_bytes(tensors.v, keys);
  add_bytes(tensors.out, out);
  add_bytes(tensors.statistics, parts * shape.query_heads * shape.length * kStatisticBytes);
  add_bytes(gradients.q, queries);
  add_bytes(gradients.k, keys);
  add_bytes(gradients.v, keys);
  add_bytes(gradients.out, out);
}

Pointers inputs_of(const AttentionTensors& tensors) {
  return {{kQ, const_cast<void*>(tensors.q)},
          {kK, const_cast<void*>(tensors.k)},
          {kV, const_cast<void*>(tensors.v)},
          {kOut, tensors.out},
          {kStatistics, tensors.statistics}};
}

}  // namespace

bool has_cudnn_attention_backward(const CudnnAttention& shape) { return backward_piece(shape).has_value(); }

bool cudnn_attention_forward(const CudnnAttention& shape, const AttentionTensors& tensors,
                             const AllocateWorkspace& allocate, cudaStream_t stream) {
  return execute(shape, describe_forward, inputs_of(tensors), tensors.parts, allocate, stream);
}

bool cudnn_attention_backward(const CudnnAttention& shape, AttentionTensors tensors, AttentionGradients gradients,
                              const AllocateWorkspace& allocate, cudaStream_t stream) {
  const std::optional<CudnnAttention> piece = backward_piece(shape);
  if (!piece) return false;
  for (std::int64_t done = 0; done < shape.parts; done += piece->parts) {
    Pointers pointers = inputs_of(tensors);
    pointers[kOutGrad] = const_cast<void*>(gradients.out);
    pointers[kQGrad] = gradients.q;
    pointers[kKGrad] = gradients.k;
    pointers[kVGrad] = gradients.v;
    execute(*piece, describe_backward, std::move(pointers), tensors.parts, allocate, stream);
    advance(shape, piece->parts, tensors, gradients);
  }
  return true;
}

}  // namespace braid::kernels
