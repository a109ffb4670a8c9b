#include "models/assemble.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "comm/group.h"

namespace braid {
namespace {

// The shape of a rank's shard, which its boxes tile.
std::vector<std::int64_t> extent(const std::vector<Box>& boxes) {
  std::vector<std::int64_t> shape(boxes.front().size.size(), 0);
  for (const Box& box : boxes)
    for (std::size_t dim = 0; dim < shape.size(); ++dim)
      shape[dim] = std::max(shape[dim], box.local_begin[dim] + box.size[dim]);
  return shape;
}

}  // namespace

at::Tensor assemble(const at::Tensor& local, const std::vector<std::int64_t>& shape, const BoxesOf& boxes_of,
                    const Group& everyone, const at::TensorOptions& options) {
  at::NoGradGuard guard;
  if (everyone.rank() != 0) {
    if (!boxes_of(everyone.rank()).empty()) everyone.send(local.contiguous(), 0);
    return {};
  }
  at::Tensor whole = at::zeros(shape, options);
  for (int rank = 0; rank < everyone.size(); ++rank) {
    const std::vector<Box> boxes = boxes_of(rank);
    if (boxes.empty()) continue;
    at::Tensor part = rank == 0 ? local : at::empty(extent(boxes), options);
    if (rank != 0) everyone.receive(part, rank);
    for (const Box& box : boxes)
      box_of(whole, box.global_begin, box.size).add_(box_of(part, box.local_begin, box.size));
  }
  return whole;
}

void assemble_gradients(const std::vector<ParamSpec>& specs, const Parameters& parameters, const Module& module,
                        const Group& everyone, const at::TensorOptions& options, const TakeTensor& take) {
  for (const ParamSpec& spec : specs) {
    if (!spec.trainable) continue;
    const auto boxes_of = [&](int rank) {
      const bool holds =
          module.dense.contains(rank) && module.dense.coord(rank, "pp") == spec.stage % module.dense.size_of("pp");
      return holds ? shard_boxes(spec, shard_coordinates(module, rank)) : std::vector<Box>();
    };
    at::Tensor gradient;
    if (const at::Tensor value = parameters.get_if_declared(spec.name); value.defined())
      gradient = value.grad().defined() ? value.grad() : at::zeros_like(value);
    const at::Tensor whole = assemble(gradient, spec.shape, boxes_of, everyone, options);
    if (whole.defined()) take(spec.name, whole);
  }
}

NamedTensors assemble_gradients(const std::vector<ParamSpec>& specs, const Parameters& parameters, const Module& module,
                                const Group& everyone, const at::TensorOptions& options) {
  NamedTensors all;
  assemble_gradients(specs, parameters, module, everyone, options,
                     [&](const std::string& name, const at::Tensor& gradient) { all.emplace_back(name, gradient); });
  return all;
}

}  // namespace braid
