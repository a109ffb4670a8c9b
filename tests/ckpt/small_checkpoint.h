// Small checkpoints for tests, each in its own root.
#pragma once

#include <ATen/ATen.h>
#include "ckpt/checkpoint_folder.h"
#include "ckpt/dist_checkpoint.h"

namespace braid::testing {

using Tensors = std::map<std::string, at::Tensor>;
using Objects = std::map<std::string, PickleValue>;

// Publishes an iteration of `root` with the given number of writers: each tensor with enough rows is cut into as many
// chunks along its first dimension. Returns the iteration's folder.
inline std::string save(const std::string& root, std::int64_t iteration, const Tensors& tensors, int writers = 1,
                        const Objects& objects = {}) {
  begin_iteration(root, iteration);
  const std::string partial = partial_folder(root, iteration);
  for (int w = 0; w < writers; ++w) {
    DistWriter writer(partial, w);
    if (w == 0)
      for (const auto& [key, value] : objects) writer.add_object(key, value);
    for (const auto& [key, tensor] : tensors) {
      const std::vector<std::int64_t> shape = tensor.sizes().vec();
      const std::vector<Slab> slabs = slabs_of(shape, (tensor.numel() + writers - 1) / writers);
      for (std::size_t i = 0; i < slabs.size(); ++i) {
        if (static_cast<int>(i) % writers != w) continue;
        at::Tensor part = tensor;
        for (std::size_t dim = 0; dim < shape.size(); ++dim)
          part = part.narrow(static_cast<std::int64_t>(dim), slabs[i].begin[dim], slabs[i].size[dim]);
        writer.add_tensor(key, shape, slabs[i].begin, part.contiguous());
      }
    }
    writer.finish();
    hand_in(partial, w, writer);
  }
  publish(root, iteration, writers, write_archive(pickle_dict({{"iteration", pickle(iteration)}})));
  return iteration_folder(root, iteration);
}

}  // namespace braid::testing
