#include "tensor/autograd.h"
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include "base/error.h"

namespace braid {
namespace {

using torch::autograd::variable_list;

class HandwrittenNode : public torch::autograd::Node {
 public:
  HandwrittenNode(const char* name, Backward backward) : name_(name), backward_(std::move(backward)) {}

  variable_list apply(variable_list&& grads) override {
    BRAID_CHECK(backward_ != nullptr, "{} runs a second time, but its saved tensors are freed", name_);
    // The backward may contain collectives: peers take part in it whether or not this rank's output was used.
    for (std::size_t i = 0; i < grads.size(); ++i)
      if (!grads[i].defined()) grads[i] = input_metadata(i).zeros_like();
    variable_list result = backward_(grads);
    if (num_outputs() == 0) return {};
    BRAID_CHECK_EQ(result.size(), static_cast<std::size_t>(num_outputs()), "gradients of {}", name_);
    return result;
  }
  void release_variables() override { backward_ = nullptr; }
  std::string name() const override { return name_; }

 private:
  const char* name_;
  Backward backward_;
};

}  // namespace

bool needs_gradient(const Tensors& tensors) {
  return at::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
           return tensor.defined() && tensor.requires_grad();
         });
}

Tensors attach_backward(const char* name, const Tensors& inputs, Tensors outputs, Backward backward) {
  std::shared_ptr<HandwrittenNode> node(new HandwrittenNode(name, std::move(backward)), torch::autograd::deleteNode);
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs)
    edges.push_back(input.defined() ? torch::autograd::impl::gradient_edge(input) : torch::autograd::Edge());
  if (!edges.empty()) node->set_next_edges(std::move(edges));
  torch::autograd::set_history(outputs, node);
  return outputs;
}

}  // namespace braid
