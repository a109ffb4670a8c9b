#include "mimo/activation_dump.h"
#include <ATen/core/Tensor.h>
#include "base/ranges.h"
#include "ckpt/tensor_io.h"

namespace braid {

ActivationDump::~ActivationDump() = default;

void ActivationDump::add(const std::string& name, std::int64_t first_row, const at::Tensor& rows) {
  const std::string key = fmt::format("{}@{}", name, first_row);
  tensors_[key] = rows.detach().to(at::kCPU, rows.scalar_type(), /*non_blocking=*/false, /*copy=*/true).contiguous();
}

void ActivationDump::write() const {
  if (tensors_.empty()) return;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
  const auto info = [](const auto& entry) -> TensorInfo {
    return {entry.first, stored_dtype(entry.second.scalar_type()), entry.second.sizes().vec()};
  };
  SafetensorsWriter writer = SafetensorsWriter::to_file(path_, vector_of<TensorInfo>(tensors_, info));
  for (const auto& [name, tensor] : tensors_) write_tensor(writer, name, tensor);
  writer.finish();
}

}  // namespace braid
