#include "ops/embedding.h"

#include "cases.h"

namespace braid {

// Half of the tokens are an image's, which all have one id.
std::vector<KernelCase> embedding_cases() {
  constexpr std::int64_t kVocabulary = 131072;
  const Weight weight = {random_bf16({kVocabulary, kHidden})};
  const at::Tensor grad = random_bf16({kTokens, kHidden});
  const at::Tensor ids = at::randint(kVocabulary, {kTokens}, grad.options().dtype(at::kLong));
  ids.narrow(0, kTokens / 4, kTokens / 2).fill_(7);
  weight.sum->value = at::zeros_like(weight.value, at::kFloat);
  const auto bytes = static_cast<double>(grad.nbytes());
  return {{"embedding", 2 * bytes, 0, [=] { embedding_forward(ids, weight.value, {}); }},
          {"embedding backward", 3 * bytes, 0, [=] { embedding_backward(grad, ids, weight, {}); }}};
}

}  // namespace braid
