// The names of dtypes that users type: PyTorch's, and short ones.
#pragma once

#include <string>
#include <vector>

namespace braid {

inline std::vector<std::string> dtype_names() { return {"bfloat16", "float32", "float64", "bf16", "fp32", "fp64"}; }

// "bfloat16" for "bf16"; other names are unchanged.
inline std::string full_dtype_name(const std::string& name) {
  if (name == "bf16") return "bfloat16";
  if (name == "fp32") return "float32";
  return name == "fp64" ? "float64" : name;
}

}  // namespace braid
