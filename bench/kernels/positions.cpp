#include "cases.h"
#include "ops/packed_sequences.h"

namespace braid {

std::vector<KernelCase> position_cases() {
  const at::Tensor x = random_bf16({kTokens, 32, 128});
  const at::Tensor positions = at::arange(kTokens, at::TensorOptions(at::kLong).device(at::kCUDA));
  return {{"rotary_embedding", 2 * static_cast<double>(x.nbytes()), 0,
           [=] { rotary_embedding(x, positions, 10000, x.size(-2)); }}};
}

}  // namespace braid
