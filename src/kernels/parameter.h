#pragma once

namespace braid::kernels {

// A parameter or its gradient, float or bf16; its dtype may differ from that of the activations. No data: there is
// none.
struct Parameter {
  void* data = nullptr;
  bool is_float = false;
};

}  // namespace braid::kernels
