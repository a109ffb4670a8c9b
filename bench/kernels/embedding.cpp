#include "cases.h"
#include "ops/rows.h"

namespace braid {

// Half of the tokens are an image's, which all have one id, and are replaced by its embeddings.
std::vector<KernelCase> embedding_cases() {
  constexpr std::int64_t kVocabulary = 131072;
  const Weight weight = {random_bf16({kVocabulary, kHidden})};
  const at::Tensor grad = random_bf16({kTokens, kHidden});
  const at::Tensor ids = at::randint(kVocabulary, {kTokens}, grad.options().dtype(at::kLong));
  ids.narrow(0, kTokens / 4, kTokens / 2).fill_(7);
  weight.sum->value = at::zeros_like(weight.value, at::kFloat);
  const auto bytes = static_cast<double>(grad.nbytes());
  const at::Tensor image = random_bf16({kTokens / 2, kHidden});
  const RowPlaces places = {at::full_like(ids, -1), at::arange(kTokens / 4, kTokens * 3 / 4, ids.options())};
  places.row_of.narrow(0, kTokens / 4, kTokens / 2).copy_(places.place_of - kTokens / 4);
  return {{"embedding", 2 * bytes, 0, [=] { embedding_forward(ids, weight.value, {}); }},
          {"embedding backward", 3 * bytes, 0, [=] { embedding_backward(grad, ids, weight, {}); }},
          {"put rows", 2 * bytes, 0, [=] { put_rows_forward(grad, image, places.row_of); }},
          {"put rows backward", 2.5 * bytes, 0, [=] { put_rows_backward(grad, places, {}); }}};
}

}  // namespace braid
