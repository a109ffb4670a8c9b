// Named activations of a whole step, to compare layouts or programs (`braid compare --activations`): each rank writes
// those rows that it has. Rows are numbered over the step's samples in their order, which no layout changes.
#pragma once

namespace at {
class Tensor;
}

namespace braid {

class ActivationDump {
 public:
  explicit ActivationDump(std::string path) : path_(std::move(path)) {}
  ~ActivationDump();

  void add(const std::string& name, std::int64_t first_row, const at::Tensor& rows);  // [rows, width]
  void write() const;  // safetensors, "NAME@FIRST_ROW"; no file if there is nothing

 private:
  const std::string path_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace braid
