// RADIO on packed images. Two oracles: each image alone (packed images must not attend to each other), and one process
// (every layout computes the same features and, summed over ranks, the same gradients). In float64 both differ only by
// the order of sums, so a tolerance of 1e-10 of the largest value detects any wrong factor.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "models/encoder.h"
#include "models/forward_check.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::draw_everything;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::Layout;
using ::testing::Not;
using testing::relative_error;
using testing::waves;

constexpr double kTolerance = testing::kSameSums;

RadioConfig small_radio() {
  RadioConfig config;
  config.hidden = 16;
  config.layers = 3;
  config.heads = 4;
  config.ffn = 24;
  config.patch = 2;
  config.position_side = 5;
  config.class_tokens = 2;
  config.init_std = 0.4;
  config.layer_scale = true;
  config.final_norm = true;
  config.normalize_pixels = true;
  return config;
}

const std::vector<PatchGrid> kImages = {{2, 3}, {4, 2}, {1, 1}, {2, 3}, {6, 7}};

at::Tensor patches_for(const RadioConfig& config, const std::vector<PatchGrid>& images) {
  return waves({total_patches(images), config.channels * config.patch * config.patch}, 0.37);
}

// Features, and gradients of their sum weighted by fixed numbers.
ForwardResult run(const RadioConfig& config, const std::vector<PatchGrid>& images, const Layout& layout,
                  const at::Tensor& patches, const at::Tensor& loss_weights) {
  const ItemBatch batch = {.values = patches, .feature_grads = loss_weights, .items = extents_of(images)};
  return testing::in_layout(layout, [&](const ForwardOptions& options, const Topology& topology, World& world) {
    return forward_encoder(config, draw_everything, batch, options, topology, world);
  });
}

ForwardResult run(const RadioConfig& config, const Layout& layout = {}) {
  return run(config, kImages, layout, patches_for(config, kImages),
             waves({total_patches(kImages), config.hidden}, 0.9));
}

TEST(Radio, PackedImagesEqualEachImageAlone) {
  const RadioConfig config = small_radio();
  const at::Tensor patches = patches_for(config, kImages);
  const at::Tensor loss_weights = waves({total_patches(kImages), config.hidden}, 0.9);
  ForwardResult alone;
  std::vector<at::Tensor> features;
  std::int64_t begin = 0;
  for (const PatchGrid& image : kImages) {
    const ForwardResult one = run(config, {image}, {}, patches.narrow(0, begin, image.patches()),
                                  loss_weights.narrow(0, begin, image.patches()));
    features.push_back(one.output);
    if (alone.grads.empty()) {
      alone = one;
    } else {
      alone.loss += one.loss;
      for (std::size_t i = 0; i < one.grads.size(); ++i) alone.grads[i].second += one.grads[i].second;
    }
    begin += image.patches();
  }
  alone.output = at::cat(features);
  expect_same(run(config), alone);
}

class RadioLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(RadioLayouts, EqualOneProcess) { expect_same(run(small_radio(), GetParam()), run(small_radio())); }

INSTANTIATE_TEST_SUITE_P(Threads, RadioLayouts,
                         ::testing::Values(Layout{.tp = 2}, Layout{.tp = 4}, Layout{.pp = 2}, Layout{.pp = 3},
                                           Layout{.tp = 2, .pp = 2}, Layout{.recompute = true},
                                           Layout{.tp = 2, .pp = 2, .recompute = true}),
                         [](const auto& info) {
                           return fmt::format("tp{}_pp{}{}", info.param.tp, info.param.pp,
                                              info.param.recompute ? "_recompute" : "");
                         });

// As in the full recipes: no layer scale, unnormalised pixels, the tanh form of gelu.
TEST(Radio, OptionalPartsMayBeAbsent) {
  RadioConfig config = small_radio();
  config.layer_scale = config.final_norm = config.normalize_pixels = config.qkv_bias = false;
  config.gelu = GeluForm::Tanh;
  expect_same(run(config, {.tp = 2}), run(config));
  RadioConfig exact = config;
  exact.gelu = GeluForm::Erf;
  EXPECT_GT(relative_error(run(exact).output, run(config).output), 1e-6);
}

TEST(Radio, NoClassTokens) {
  RadioConfig config = small_radio();
  config.class_tokens = 0;
  const ForwardResult result = run(config, {.tp = 2});
  EXPECT_EQ(result.output.sizes(), (std::vector<std::int64_t>{total_patches(kImages), config.hidden}));
  EXPECT_LE(relative_error(result.output, run(config).output), kTolerance);
}

// A microbatch without images still takes part in every collective.
TEST(Radio, NoImages) {
  const RadioConfig config = small_radio();
  const ForwardResult result =
      run(config, {}, {.tp = 2, .pp = 2}, patches_for(config, {}), at::zeros({0, config.hidden}, at::kDouble));
  EXPECT_EQ(result.output.sizes(), (std::vector<std::int64_t>{0, config.hidden}));
  for (const auto& [name, grad] : result.grads) EXPECT_EQ(grad.abs().max().item<double>(), 0) << name;
}

// The definition written in ATen, sharing only the parameters: one image, one layer.
TEST(Radio, EqualsTheFormula) {
  RadioConfig config = small_radio();
  config.layers = 1;
  const PatchGrid image = {5, 5};  // as large as the table: positions are not resized
  Parameters parameters(declare_parameters(config), 0, {}, at::kDouble, at::kCPU);
  draw_everything(parameters);
  const auto p = [&](const std::string& name) { return parameters.get(name); };
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return at::linear(x, p(name + ".weight"), p(name + ".bias"));
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {config.hidden}, p(name + "weight"), p(name + "bias"), config.norm_eps);
  };
  const at::Tensor patches = patches_for(config, {image});
  const at::Tensor pixels = (patches.view({image.patches(), config.channels, config.patch, config.patch}) -
                             p("input_conditioner.norm_mean")) /
                            p("input_conditioner.norm_std");
  at::Tensor x = at::linear(pixels.flatten(1), p("embedder.weight")) + p("position_embeddings")[0];
  x = at::cat({p("class_token"), x});
  const std::string attention = "decoder.layers.0.self_attention.", mlp = "decoder.layers.0.mlp.";
  const at::Tensor qkv = linear(norm(x, attention + "linear_qkv.layer_norm_"), attention + "linear_qkv");
  std::vector<at::Tensor> heads;
  for (const at::Tensor& head : qkv.chunk(config.heads, 1)) {
    const std::vector<at::Tensor> parts = head.chunk(3, 1);
    const double scale = 1 / std::sqrt(static_cast<double>(config.hidden / config.heads));
    heads.push_back(at::mm(at::softmax(at::mm(parts[0], parts[1].t()) * scale, 1), parts[2]));
  }
  x = x + linear(at::cat(heads, 1), attention + "linear_proj") * p(attention + "layer_scale");
  const at::Tensor inner = at::gelu(linear(norm(x, mlp + "linear_fc1.layer_norm_"), mlp + "linear_fc1"));
  x = x + linear(inner, mlp + "linear_fc2") * p(mlp + "layer_scale");
  const at::Tensor expected = norm(x, "decoder.final_layernorm.").narrow(0, config.class_tokens, image.patches());

  testing::on_threads(1, [&](World& world) {
    const Group one = world.make_group("one", {0});
    const Parallel parallel = {one, one, one, one, one};
    const Encoder radio(config, parameters, parallel, 0, 1);
    const Extents images = extents_of({image});
    const at::Tensor got = radio.features(radio.run_layers(radio.embed(patches, images), images), images);
    EXPECT_LE(relative_error(got, expected), kTolerance);
  });
}

// A patch is (channel, y, x); patches go row by row.
TEST(Radio, PatchifyOrder) {
  const at::Tensor pixels = at::arange(2 * 3 * 4 * 6).view({2, 3, 4, 6});
  const at::Tensor patches = patchify(pixels, 2);
  ASSERT_EQ(patches.sizes(), (std::vector<std::int64_t>{2 * 2 * 3, 3 * 2 * 2}));
  const std::int64_t image = 1, row = 1, column = 2, channel = 2, y = 0, x = 1;
  EXPECT_TRUE(patches[(image * 2 + row) * 3 + column][(channel * 2 + y) * 2 + x].equal(
      pixels[image][channel][row * 2 + y][column * 2 + x]));
}

TEST(Radio, ImagesThatPatchesDoNotTileAreAllNamed) {
  EXPECT_EQ(patch_grids({{32, 48}}, 16)[0].columns, 3);
  try {
    patch_grids({{32, 32}, {33, 32}, {64, 64}, {16, 0}}, 16);
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("image 1 of 4 is 33 x 32"), HasSubstr("e.g. to 48 x 32"),
                                HasSubstr("image 3 of 4 is 16 x 0"), Not(HasSubstr("image 2"))));
  }
  EXPECT_THROW(patchify(at::zeros({1, 3, 20, 16}), 16), ConfigError);
}

// Sizes come from files: neither their products nor their sum may overflow.
TEST(Radio, ImagesTooLargeToExistAreRefused) {
  const auto error_of = [](const std::vector<ImageSize>& images) {
    return testing::error_of([&] { patch_grids(images, 16, "imgs_sizes"); });
  };
  const std::int64_t longest = std::int64_t{16} << 20, beyond = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(error_of({{longest, longest}}), "no error");
  EXPECT_THAT(error_of({{longest + 16, 16}}), AllOf(HasSubstr("image 0 of 1"), HasSubstr("too large")));
  EXPECT_THAT(error_of({{16, 16}, {16, beyond}, {beyond, beyond}}),
              AllOf(HasSubstr("image 1 of 3"), HasSubstr("image 2 of 3")));
  EXPECT_THAT(error_of({{std::numeric_limits<std::int64_t>::min(), 16}}), HasSubstr("not a multiple of"));
  EXPECT_THAT(error_of({{longest, longest}, {16, 16}}), HasSubstr("2 images have more than 1099511627776 patches"));
  EXPECT_THAT(error_of(std::vector<ImageSize>(1000, {1, 1})), HasSubstr("and 950 more problems"));
}

// --- the projector

NamedTensors project(const ProjectorConfig& config, int tp) {
  NamedTensors result;  // the output, then gradients
  const at::Tensor x = waves({5, config.input}, 0.7), loss_weights = waves({5, config.output}, 0.3);
  testing::on_threads(tp, [&](World& world) {
    const Topology topology = testing::topology_of({.tp = tp});
    const Module& module = topology.language();
    const Groups groups(world, topology);
    const std::vector<ParamSpec> specs = declare_parameters(config);
    Parameters parameters(specs, 0, shard_coordinates(module, world.rank()), at::kDouble, world.device());
    parameters.initialize(5);
    const Parallel parallel = make_parallel(groups, module.name, false);
    const at::Tensor y = Projector(config, parameters, parallel).forward(x);
    (y * loss_weights).sum().div(tp).backward();
    assemble_gradients(specs, parameters, module, groups.world(), at::TensorOptions(at::kDouble),
                       [&](const auto& name, const auto& gradient) { result.emplace_back(name, gradient); });
    if (world.rank() == 0) result.emplace_back("output", y.detach());
  });
  return result;
}

TEST(Projector, EveryTensorParallelSizeGivesTheSame) {
  for (const ProjectorKind kind : {ProjectorKind::Affine, ProjectorKind::Mlp}) {
    const ProjectorConfig config = {.kind = kind, .input = 12, .hidden = 16, .output = 8, .init_std = 0.5};
    const NamedTensors expected = project(config, 1);
    EXPECT_EQ(expected.back().second.sizes(), (std::vector<std::int64_t>{5, 8}));
    for (const int tp : {2, 4}) {
      const NamedTensors got = project(config, tp);
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(relative_error(got[i].second, expected[i].second), kTolerance)
            << name_of(kind) << " " << got[i].first;
    }
  }
}

}  // namespace
}  // namespace braid
