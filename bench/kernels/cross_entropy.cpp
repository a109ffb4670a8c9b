#include "ops/cross_entropy.h"
#include "cases.h"

namespace braid {

std::vector<KernelCase> cross_entropy_cases() {
  constexpr std::int64_t kVocabulary = 131072;
  const at::Tensor logits = random_bf16({kTokens, kVocabulary});
  const at::Tensor labels = at::randint(kVocabulary, {kTokens}, logits.options().dtype(at::kLong));
  const at::Tensor grad = at::zeros({kTokens}, logits.options().dtype(at::kFloat));
  const RowSums sums = vocab_parallel_cross_entropy_forward(logits, labels, {}).saved;
  const auto bytes = static_cast<double>(logits.nbytes());
  return {{"cross_entropy", bytes, 0, [=] { vocab_parallel_cross_entropy_forward(logits, labels, {}); }},
          {"cross_entropy backward", 2 * bytes, 0,
           [=] { vocab_parallel_cross_entropy_backward(grad, logits, labels, sums, {}); }}};
}

}  // namespace braid
