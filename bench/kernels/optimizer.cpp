#include "cases.h"
#include "comm/progress.h"
#include "optim/sharded_adam.h"

namespace braid {
namespace {

// Matrices of 2.57 B parameters in all, as the slice has, and a norm's vector between each two of them.
std::vector<Parameters::Entry> slice_parameters() {
  std::vector<std::vector<std::int64_t>> shapes = {{131072, kHidden}, {131072, kHidden}};
  for (int i = 0; i < 94; ++i) shapes.insert(shapes.end(), {{7392, kHidden}, {kHidden}});
  std::vector<Parameters::Entry> entries;
  for (const auto& shape : shapes) {
    const at::Tensor value = at::zeros(shape, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
    entries.push_back({{.name = "parameter", .shape = shape}, value.requires_grad_()});
  }
  return entries;
}

struct Optimizer {
  Progress progress;
  Group alone{"alone", at::Device(at::kCUDA, 0), progress};
  std::vector<Parameters::Entry> parameters = slice_parameters();
  ShardedAdam adam{parameters, alone, alone, {}, 0};
};

}  // namespace

std::vector<KernelCase> optimizer_cases() {
  // Made when it is needed, since it takes 57 GB.
  const auto adam = [made = std::make_shared<std::unique_ptr<Optimizer>>()]() -> ShardedAdam& {
    if (!*made) *made = std::make_unique<Optimizer>();
    return (*made)->adam;
  };
  const auto norm = [=] { adam().norm_terms(); };
  const auto update = [=] {
    adam().update(1, 1e-4, 0.1, 0.5);
    adam().finish_publishing();
  };
  constexpr double kElements = 2.0 * 131072 * kHidden + 94.0 * 7393 * kHidden;
  return {{"optimizer: norm of 2.57 B gradients", 4 * kElements, 0, norm},
          {"optimizer: update of 2.57 B parameters", 30 * kElements, 0, update},
          {"optimizer: norm + update", 34 * kElements, 0, [=] { norm(), update(); }}};
}

}  // namespace braid
