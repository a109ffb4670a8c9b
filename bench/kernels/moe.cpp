#include "ops/moe.h"
#include "cases.h"
#include "ops/moe.h"

namespace braid {
namespace {

constexpr std::int64_t kExperts = 16, kTopK = 6, kRows = kTokens * kTopK, kFfn = 1856;

at::TensorOptions floats() { return at::TensorOptions(at::kFloat).device(at::kCUDA); }
double bytes_of(const at::Tensor& x) { return static_cast<double>(x.nbytes()); }

void add_router_cases(std::vector<KernelCase>& cases, std::int64_t experts) {
  const std::string name = "router " + std::to_string(experts);
  const at::Tensor x = random_bf16({kTokens, kHidden}).requires_grad_(), grad = at::randn({kTokens, experts}, floats());
  const Weight weight = {random_bf16({experts, kHidden})}, trained = {random_bf16({experts, kHidden}).requires_grad_()};
  trained.sum->value = at::zeros({experts, kHidden}, floats());
  const at::Tensor frozen = x.detach();
  const double bytes = bytes_of(x) + bytes_of(grad);
  cases.push_back({name + " logits", bytes, 0, [=] { router_logits_forward(x, weight.value); }});
  cases.push_back({name + " logits, dx", bytes, 0, [=] { router_logits_backward(grad, x, weight, true); }});
  const Tensors users = {random_bf16({kTokens, kHidden}), random_bf16({kTokens, kHidden})};
  cases.push_back({name + " logits, dx of three users", bytes + 2 * bytes_of(x), 0,
                   [=] { router_logits_backward(grad, x, weight, true, users); }});
  cases.push_back({name + " logits, dW", bytes, 0, [=] { router_logits_backward(grad, frozen, trained, false); }});
}

void add_route_cases(std::vector<KernelCase>& cases) {
  const at::Tensor logits = at::randn({kTokens, kExperts}, floats()), bias = at::zeros({kExperts}, floats());
  const RouterOptions options{.top_k = kTopK, .scaling = 2.5};
  const Routing routing = route_forward(logits, bias, options);
  const SampleTokens samples = {0, kTokens, 1};
  const ExpertShares shares = expert_shares(routing.scores, kTopK, samples);
  const at::Tensor one = at::ones({}, floats());
  const double scores = bytes_of(logits), weights = bytes_of(routing.weights), chosen = bytes_of(routing.experts);
  cases.push_back({"route", 2 * scores + weights + chosen, 0, [=] { route_forward(logits, bias, options); }});
  cases.push_back({"route backward", 3 * scores + weights + chosen, 0,
                   [=] { route_backward(logits, routing.weights, routing.scores, routing.experts, options); }});
  cases.push_back({"aux loss", scores, 0, [=] { aux_loss(routing.scores, kTopK, samples, [](at::Tensor&) {}); }});
  cases.push_back({"aux loss backward", 2 * scores, 0,
                   [=] { aux_loss_backward(one, routing.scores, shares.chosen, samples, 0.5); }});
}

ExpertOrder random_order() {
  const at::Tensor scores = at::randn({kTokens, kExperts}, floats());
  return sort_by_expert(std::get<1>(scores.topk(kTopK, 1)), kExperts);
}

void add_order_cases(std::vector<KernelCase>& cases) {
  const at::Tensor experts = std::get<1>(at::randn({kTokens, kExperts}, floats()).topk(kTopK, 1));
  const ExpertOrder order = sort_by_expert(experts, kExperts);
  const at::Tensor x = random_bf16({kTokens, kHidden}), rows = random_bf16({kRows, kHidden});
  const at::Tensor weights = at::randn({kTokens, kTopK}, floats());
  cases.push_back({"sort by expert", 3 * bytes_of(experts), 0, [=] { sort_by_expert(experts, kExperts); }});
  cases.push_back({"permute", bytes_of(x) + bytes_of(rows), 0, [=] { permute_to_experts_forward(x, order, kTopK); }});
  cases.push_back({"unpermute, shared expert added", 2 * bytes_of(x) + bytes_of(rows), 0,
                   [=] { permute_to_experts_backward(rows, order, kTopK, x); }});
  cases.push_back({"weights by expert", 2 * bytes_of(weights), 0, [=] { weights_by_expert(weights, order); }});
}

void add_product_cases(std::vector<KernelCase>& cases) {
  const at::Tensor rows = random_bf16({kRows, kHidden}), grad = random_bf16({kRows, kFfn});
  const Weight weight = {random_bf16({kExperts, kFfn, kHidden}).requires_grad_()}, with_sum = {weight.value};
  with_sum.sum->value = at::zeros(weight.value.sizes(), floats());
  const at::Tensor turned = random_bf16({kExperts, kHidden, kFfn});
  const ExpertRows on_device(random_order().ends);
  const double flops = 2.0 * static_cast<double>(kRows * kHidden * kFfn), bytes = bytes_of(rows) + bytes_of(grad);
  const double sum_bytes = 2 * bytes_of(with_sum.sum->value);
  const auto gradient = [=](const Weight& of, const ExpertRows& experts) {
    return [=] { grouped_linear_backward(grad, rows, of, experts, /*rows_want_gradient=*/false); };
  };
  cases.push_back({"experts' fc1", bytes + bytes_of(weight.value), flops,
                   [=] { grouped_linear_forward(rows, weight.value, on_device); }});
  cases.push_back({"experts' fc2", bytes + bytes_of(weight.value), flops,
                   [=] { grouped_linear_forward(grad, turned, on_device); }});
  cases.push_back({"experts' dx", bytes + bytes_of(weight.value), flops,
                   [=] { grouped_linear_backward(grad, {}, weight, on_device, /*rows_want_gradient=*/true); }});
  cases.push_back({"experts' dW", bytes + bytes_of(weight.value), flops, gradient(weight, on_device)});
  cases.push_back({"experts' dW, added to a sum", bytes + sum_bytes, flops, gradient(with_sum, on_device)});
}

}  // namespace

std::vector<KernelCase> moe_cases() {
  std::vector<KernelCase> cases;
  add_router_cases(cases, kExperts);
  add_router_cases(cases, 128);
  add_route_cases(cases);
  add_order_cases(cases);
  add_product_cases(cases);
  return cases;
}

}  // namespace braid
