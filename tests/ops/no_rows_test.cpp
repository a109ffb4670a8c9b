// Operators on no rows, as on an encoder rank whose samples have no images: gradients of parameters are zeros that were
// written. On a GPU, every test of an operator starts with free memory full of NaN.

#include "ops/gradients.h"
#include "ops/linear.h"
#include "ops/mamba.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/poison.h"
#include "ops/rows.h"
#include "ops/vision.h"
#include "support/expert_rows.h"

namespace braid {
namespace {

using namespace testing;

class PoisonFreeMemory : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { poison_free_memory(); }
};
// gtest owns its listeners.
const bool poisons = (::testing::UnitTest::GetInstance()->listeners().Append(new PoisonFreeMemory), true);

struct Case {
  Operator op;
  Tensors inputs;
};

at::Tensor values(at::IntArrayRef shape) { return random_tensor(shape, 1); }

Case mixer(std::int64_t heads, std::int64_t width, std::int64_t groups, std::int64_t state) {
  const std::int64_t inner = heads * width, conv = inner + 2 * groups * state;
  const PackedSequences none = pack_sequences({0, 0}, test_device());
  return {[=](const Tensors& in) {
            return mamba_mixer(in[0], {in[1], in[2], in[3], in[4], in[5], in[6]},
                               {.groups = groups, .scan = {}, .norm_eps = 1e-5}, none)
                .value;
          },
          {values({0, inner + conv + heads}), values({conv, 4}), values({conv}), values({heads}), values({heads}),
           values({heads}), values({inner})}};
}

// Widths are those of kernels: multiples of 8, and of 64 for the scan.
std::map<std::string, Case> cases() {
  const PackedSequences none = pack_sequences({0, 0}, test_device());
  const at::Tensor no_ids = at::empty({0}, at::TensorOptions(at::kLong).device(test_device()));
  return {
      {"linear",
       {[](const Tensors& in) { return linear(in[0], Weight{in[1]}, in[2]); },
        {values({0, 16}), values({24, 16}), values({24})}}},
      {"linear and gelu",
       {[](const Tensors& in) {
          const auto [inner, activated] = linear_with_gelu(in[0], Weight{in[1]}, in[2], Activation::GeluErf);
          return linear_of_gelu(inner, {activated, {}}, Activation::GeluErf, Weight{in[3]}, in[4]);
        },
        {values({0, 16}), values({24, 16}), values({24}), values({16, 24}), values({16})}}},
      {"grouped linear",
       {[](const Tensors& in) {
          return grouped_linear(in[0], {in[1]}, expert_rows({0, 0}, test_device()));
        },
        {values({0, 16}), values({2, 24, 16})}}},
      {"router", {[](const Tensors& in) { return router_logits(in[0], {in[1]}); }, {values({0, 16}), values({8, 16})}}},
      {"embedding", {[no_ids](const Tensors& in) { return embedding(no_ids, Weight{in[0]}, {}); }, {values({8, 16})}}},
      {"convolution",
       {[none](const Tensors& in) { return causal_conv_silu(in[0], in[1], in[2], none); },
        {values({0, 16}), values({16, 4}), values({16})}}},
      {"mixer", mixer(4, 8, 2, 16)},
      {"mixer of a large model's widths", mixer(8, 64, 8, 128)},
      {"rms norm", {[](const Tensors& in) { return rms_norm(in[0], in[1], 1e-5); }, {values({0, 16}), values({16})}}},
      {"layer norm",
       {[](const Tensors& in) { return layer_norm(in[0], in[1], in[2], 1e-5); },
        {values({0, 16}), values({16}), values({16})}}},
      {"patches",
       {[](const Tensors& in) { return place_patches(in[0], in[1], in[2], {}); },
        {values({0, 16}), values({16, 16}), values({2, 16})}}},
  };
}

TEST(NoRows, GiveParameterGradientsOfZeros) {
  for (const auto& [name, c] : cases())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(name + " in " + c10::toString(dtype));
      Tensors inputs;
      for (const at::Tensor& input : c.inputs) inputs.push_back(input.to(dtype));
      poison_free_memory();
      const at::Tensor output = c.op(inputs);
      EXPECT_EQ(output.size(0), 0);
      for (const at::Tensor& gradient : evaluate(c.op, inputs, output).gradients)
        EXPECT_TRUE(gradient.eq(0).all().item<bool>());
    }
}

}  // namespace
}  // namespace braid
