#include "ops/cross_entropy.h"

#include <memory>

#include "cases.h"
#include "comm/progress.h"

namespace braid {

std::vector<KernelCase> cross_entropy_cases() {
  constexpr std::int64_t kVocabulary = 131072;
  const at::Tensor logits = random_bf16({kTokens, kVocabulary});
  const at::Tensor labels = at::randint(kVocabulary, {kTokens}, logits.options().dtype(at::kLong));
  const at::Tensor grad = at::zeros({kTokens}, logits.options().dtype(at::kFloat));
  static Progress progress;
  const Group alone("alone", logits.device(), progress);
  const RowSums sums = vocab_parallel_cross_entropy_forward(logits, labels, alone).saved;
  const auto bytes = static_cast<double>(logits.nbytes());
  return {{"cross_entropy", bytes, 0, [=] { vocab_parallel_cross_entropy_forward(logits, labels, alone); }},
          {"cross_entropy backward", 2 * bytes, 0,
           [=] { vocab_parallel_cross_entropy_backward(grad, logits, labels, sums, alone); }}};
}

}  // namespace braid
