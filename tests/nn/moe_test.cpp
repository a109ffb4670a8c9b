// The mixture of experts against its definition, written token by token: output, every gradient, the auxiliary loss and
// the expert bias after a step, in one process and in layouts. In double, where rounding cannot hide a wrong factor.
#include "nn/moe.h"
#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include "nn/layer.h"
#include "nn/layer_check.h"
#include "nn/recomputed.h"
#include "nn/unused_result.h"

namespace braid {
namespace {

using namespace testing;

constexpr std::int64_t kTokens = 24, kHidden = 6, kExperts = 8, kWidth = 4, kSharedWidth = 12;
constexpr double kSameFormula = 1e-12;
const char* const kPrefix = "layer.";

const MoeOptions kOptions = {
    .experts = kExperts, .router = {.top_k = 3, .scaling = 2.5}, .aux_loss_coeff = 0.3, .expert_bias_rate = 0.01};

std::vector<ParamSpec> make_specs(bool shared_expert) {
  const InitRule normal = {.kind = InitRule::Normal, .scale = 0.7}, wide = {.kind = InitRule::Normal, .scale = 2};
  const auto named = [](const char* name) { return std::string(kPrefix) + name; };
  std::vector<ParamSpec> specs = {{.name = named("pre_mlp_layernorm.weight"), .shape = {kHidden}, .init = normal},
                                  {.name = named("mlp.router.weight"), .shape = {kExperts, kHidden}, .init = wide},
                                  {.name = named("mlp.router.expert_bias"), .shape = {kExperts}, .trainable = false},
                                  {.name = named("mlp.experts.experts.linear_fc1.weight"),
                                   .shape = {kExperts, kWidth, kHidden},
                                   .tp_dim = 1,
                                   .expert = true,
                                   .init = normal},
                                  {.name = named("mlp.experts.experts.linear_fc2.weight"),
                                   .shape = {kExperts, kHidden, kWidth},
                                   .tp_dim = 2,
                                   .expert = true,
                                   .init = normal}};
  if (!shared_expert) return specs;
  specs.push_back({.name = named("mlp.shared_experts.linear_fc1.weight"),
                   .shape = {kSharedWidth, kHidden},
                   .tp_dim = 0,
                   .init = normal});
  specs.push_back({.name = named("mlp.shared_experts.linear_fc2.weight"),
                   .shape = {kHidden, kSharedWidth},
                   .tp_dim = 1,
                   .init = normal});
  return specs;
}

Parameters make_parameters(bool shared_expert, const ShardCoordinates& place = {}) {
  Parameters parameters(make_specs(shared_expert), 0, place, at::kDouble, at::Device("cpu"));
  parameters.initialize(3);
  // A bias of zero would hide where it is added.
  parameters.get(std::string(kPrefix) + "mlp.router.expert_bias").copy_(random_tensor({kExperts}, 4) * 0.05);
  return parameters;
}

// One step of a layer on one microbatch.
struct Step {
  Layout layout{};
  MoeOptions options = kOptions;
  std::int64_t samples = 1;
  double aux_loss_scale = 0.5;
  bool shared_expert = true;
  bool recomputed = false;
  RecomputeConfig parts{};
  std::uint64_t x_seed = 10;

  at::Tensor x() const { return random_tensor({layout.dp, kTokens, kHidden}, x_seed); }
  at::Tensor output_grad() const { return random_tensor({layout.dp, kTokens, kHidden}, 20); }
  SequenceBatch batch() const { return {pack_sequences({0, kTokens}, at::Device("cpu")), samples, aux_loss_scale}; }
};

struct Outcome {
  at::Tensor output, x_grad;                // [dp, T, H]
  std::map<std::string, at::Tensor> grads;  // of whole parameters
  double aux_loss = 0;                      // all shares
  Tensors biases;                           // every rank's expert bias after the step
};

void expect_same(const Outcome& got, const Outcome& expected) {
  expect_close(got.output, expected.output, kSameFormula, "output");
  expect_close(got.x_grad, expected.x_grad, kSameFormula, "gradient of x");
  for (const auto& [name, grad] : expected.grads) expect_close(got.grads.at(name), grad, kSameFormula, name);
  EXPECT_NEAR(got.aux_loss, expected.aux_loss, kSameFormula);
  for (const at::Tensor& bias : got.biases) EXPECT_TRUE(at::equal(bias, expected.biases[0])) << bias;
}

// ---- The definition, token by token.

struct Definition {
  explicit Definition(const Step& step) : step(step), parameters(make_parameters(step.shared_expert)) {}

  at::Tensor get(const std::string& name) const { return parameters.get(kPrefix + name); }

  at::Tensor norm(const at::Tensor& x) const {
    return x / (x.square().mean() + step.options.norm_eps).sqrt() * get("pre_mlp_layernorm.weight");
  }

  at::Tensor scores(const at::Tensor& normed) const { return get("mlp.router.weight").mv(normed).sigmoid(); }

  static std::vector<std::int64_t> best(const at::Tensor& values, std::int64_t k) {
    std::vector<std::int64_t> experts(kExperts);
    std::iota(experts.begin(), experts.end(), 0);
    std::sort(experts.begin(), experts.end(),
              [&](std::int64_t a, std::int64_t b) { return values[a].item<double>() > values[b].item<double>(); });
    experts.resize(static_cast<std::size_t>(k));
    return experts;
  }

  static at::Tensor mlp(const at::Tensor& x, const at::Tensor& fc1, const at::Tensor& fc2) {
    return fc2.mv(fc1.mv(x).clamp_min(0).square());
  }

  at::Tensor token_output(const at::Tensor& x) {
    const at::Tensor normed = norm(x), score = scores(normed);
    const auto chosen = best(score.detach() + get("mlp.router.expert_bias"), step.options.router.top_k);
    at::Tensor sum = at::full({}, 1e-20, at::kDouble), y = at::zeros({kHidden}, at::kDouble);
    for (const auto expert : chosen) sum = sum + score[expert];
    for (const auto expert : chosen) {
      ++counts[expert];
      y = y + score[expert] / sum * step.options.router.scaling *
                  mlp(normed, get("mlp.experts.experts.linear_fc1.weight")[expert],
                      get("mlp.experts.experts.linear_fc2.weight")[expert]);
    }
    if (!step.shared_expert) return y;
    return y + mlp(normed, get("mlp.shared_experts.linear_fc1.weight"), get("mlp.shared_experts.linear_fc2.weight"));
  }

  // E / (k S^2) * sum over samples and experts of P f, over the number of samples.
  at::Tensor aux_loss(const at::Tensor& x) const {
    const std::int64_t length = kTokens / step.samples, k = step.options.router.top_k;
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (std::int64_t sample = 0; sample < step.samples; ++sample) {
      at::Tensor total = at::zeros({kExperts}, at::kDouble);
      std::vector<double> chosen(kExperts, 0);
      for (std::int64_t t = sample * length; t < (sample + 1) * length; ++t) {
        const at::Tensor score = scores(norm(x[t])), share = score / score.sum();
        total = total + share;
        for (const auto expert : best(share, k)) ++chosen[expert];
      }
      sum = sum + (total * at::tensor(chosen, at::kDouble)).sum();
    }
    return sum * static_cast<double>(kExperts) / static_cast<double>(k * length * length * step.samples);
  }

  at::Tensor bias_after_step() const {
    const double mean = std::accumulate(counts.begin(), counts.end(), 0.0) / kExperts;
    at::Tensor bias = get("mlp.router.expert_bias").clone();
    for (std::int64_t expert = 0; expert < kExperts; ++expert)
      bias[expert] += step.options.expert_bias_rate * (counts[expert] < mean ? 1 : counts[expert] > mean ? -1 : 0);
    return bias;
  }

  const Step& step;
  const Parameters parameters;
  std::vector<double> counts = std::vector<double>(kExperts, 0);
};

Outcome run_definition(const Step& step) {
  Definition definition(step);
  const at::Tensor x = step.x().requires_grad_();
  Outcome outcome;
  Tensors replicas;
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::int64_t replica = 0; replica < step.layout.dp; ++replica) {
    Tensors tokens;
    for (std::int64_t t = 0; t < kTokens; ++t) tokens.push_back(definition.token_output(x[replica][t]));
    replicas.push_back(at::stack(tokens));
    const at::Tensor aux_loss = definition.aux_loss(x[replica]);
    outcome.aux_loss += aux_loss.item<double>();
    loss = loss + step.options.aux_loss_coeff * step.aux_loss_scale * aux_loss;
  }
  outcome.output = at::stack(replicas);
  (loss + (outcome.output * step.output_grad()).sum()).backward();
  outcome.x_grad = x.grad();
  for (const auto& entry : definition.parameters.entries())
    if (entry.spec.trainable) outcome.grads[entry.spec.name] = entry.value.grad();
  outcome.biases = {definition.bias_after_step()};
  return outcome;
}

// ---- The layer, on the ranks of a layout.

Outcome run_layer(const Step& step) {
  Outcome outcome;
  const at::Tensor all_x = step.x(), all_output_grad = step.output_grad();
  outcome.output = at::zeros_like(all_x);
  outcome.x_grad = at::zeros_like(all_x);
  std::mutex mutex;
  outcome.biases = on_layout(step.layout, [&](const Rank& rank) {
    const Parameters parameters = make_parameters(step.shared_expert, rank.coordinates());
    Moe moe(step.options, parameters, kPrefix, rank.parallel, step.parts);
    const auto own = [&](const at::Tensor& all) { return rank.rows_outside(all[rank.replica]); };
    const at::Tensor x = own(all_x).clone().requires_grad_();
    const SequenceBatch batch = step.batch();
    const auto branch = [&](const at::Tensor& input) { return moe.branch(input, batch); };
    const at::Tensor y = step.recomputed ? testing::recomputed(branch, x) : branch(x);
    // Without sequence parallelism every tp rank has the same output; each counts its share of it.
    y.backward(own(all_output_grad) / (rank.parallel.sequence_parallel ? 1 : rank.parallel.tp.size()));
    Moe::update_expert_biases({&moe}, rank.world);
    const std::lock_guard<std::mutex> lock(mutex);
    own(outcome.output).copy_(y.detach());
    own(outcome.x_grad).add_(x.grad());
    add_gradients(parameters, outcome.grads);
    outcome.aux_loss += moe.take_aux_loss().item<double>();
    EXPECT_EQ(moe.take_aux_loss().item<double>(), 0) << "it was taken";
    return parameters.get(std::string(kPrefix) + "mlp.router.expert_bias");
  });
  return outcome;
}

// Ranks hold 6 tokens or more, samples have 8: with four ranks, two of them hold tokens of two samples.
TEST(Moe, IsItsDefinitionInEveryLayout) {
  const std::vector<Layout> layouts = {{},
                                       {.tp = 2},
                                       {.tp = 2, .sp = true},
                                       {.cp = 2},
                                       {.cp = 4},
                                       {.tp = 2, .cp = 2},
                                       {.tp = 2, .cp = 2, .ep = 4, .sp = true},
                                       {.ep = 2, .dp = 2},
                                       {.tp = 2, .ep = 2},
                                       {.tp = 2, .expt_tp = 2, .sp = true},
                                       {.tp = 2, .ep = 2, .expt_tp = 2, .dp = 2},
                                       {.tp = 2, .ep = 2, .sp = true, .overlap = {.tp_pieces = 2}},
                                       {.ep = 2, .dp = 2, .overlap = {.expert_pieces = 2}},
                                       {.tp = 2, .ep = 2, .overlap = {.expert_pieces = 3}},
                                       {.tp = 2, .expt_tp = 2, .sp = true, .overlap = {.expert_pieces = 2}},
                                       {.tp = 2, .ep = 2, .expt_tp = 2, .dp = 2, .overlap = {.expert_pieces = 2}},
                                       // 6 tokens in 7 pieces: one is empty
                                       {.tp = 2, .cp = 2, .ep = 4, .sp = true, .overlap = {2, 7}}};
  std::map<int, Outcome> expected;  // by dp
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(::testing::Message() << layout);
    const Step step = {.layout = layout, .samples = 3};
    if (expected.count(layout.dp) == 0) expected[layout.dp] = run_definition(step);
    expect_same(run_layer(step), expected[layout.dp]);
  }
}

TEST(Moe, IsItsDefinitionForOneSampleOrOneTokenPerSample) {
  for (const std::int64_t samples : {std::int64_t{1}, kTokens}) {
    const Step step = {.layout = {.cp = 2}, .samples = samples};
    expect_same(run_layer(step), run_definition(step));
  }
}

TEST(Moe, IsItsDefinitionRecomputed) {
  const Step step = {.layout = {.tp = 2, .ep = 2, .sp = true}, .samples = 3, .recomputed = true};
  expect_same(run_layer(step), run_definition(step));
}

TEST(Moe, IsItsDefinitionWithExpertsRecomputedInPieces) {
  for (const bool recomputed : {false, true}) {
    const Step step = {.layout = {.tp = 2, .ep = 2, .sp = true, .overlap = {.expert_pieces = 2}},
                       .samples = 3,
                       .recomputed = recomputed,
                       .parts = {.norms = true, .activations = true, .experts = true}};
    expect_same(run_layer(step), run_definition(step));
  }
}

// Left out: the last product of the shared expert, and one of every local expert.
TEST(Moe, DoesNotMultiplyForAnUnusedResult) {
  for (const Layout& layout : {Layout{}, {.ep = 2, .dp = 2}})
    for (const bool experts_recomputed : {false, true}) {
      const Step step = {.layout = layout, .parts = {.experts = experts_recomputed}};
      on_layout(layout, [&](const Rank& rank) {
        const Parameters parameters = make_parameters(step.shared_expert, rank.coordinates());
        Moe moe(step.options, parameters, kPrefix, rank.parallel, step.parts);
        expect_products_left_out(1 + static_cast<int>(kExperts) / layout.ep, moe, parameters, step.x()[rank.replica],
                                 step.batch());
        return true;
      });
    }
}

// A bucket of gradients is reduced when each of its gradients was added once.
TEST(Moe, PiecesMakeOneGradient) {
  const Step step = {.layout = {.ep = 2, .dp = 2, .overlap = {.expert_pieces = 3}}};
  const Outcome expected = run_definition(step);
  on_layout(step.layout, [&](const Rank& rank) {
    const Parameters parameters = make_parameters(step.shared_expert, rank.coordinates());
    const std::string name = std::string(kPrefix) + "mlp.experts.experts.linear_fc1.weight";
    const Weight weight = parameters.weight(name);
    int gradients = 0;
    weight.sum->value = at::full_like(weight.value, 7).detach();
    weight.sum->is_unset = true;
    weight.sum->added = [&] { ++gradients; };
    Moe moe(step.options, parameters, kPrefix, rank.parallel);
    for (int microbatch = 1; microbatch <= 2; ++microbatch) {
      moe.branch(step.x()[rank.replica], step.batch()).backward(step.output_grad()[rank.replica]);
      EXPECT_EQ(gradients, microbatch);
    }
    expect_close(weight.sum->value, 2 * expected.grads.at(name).chunk(2, 0)[rank.parallel.ep.rank()], kSameFormula,
                 "both microbatches");
    return true;
  });
}

using Nodes = std::set<torch::autograd::Node*>;

// Lets every node of a graph append its name when it has run.
void record(const std::shared_ptr<torch::autograd::Node>& node, Nodes& seen, std::vector<std::string>& names) {
  if (!node || !seen.insert(node.get()).second) return;
  node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [&names, name = node->name()](const Tensors& outputs, const Tensors&) {
        names.push_back(name);
        return outputs;
      }));
  for (const auto& edge : node->next_edges()) record(edge.function, seen, names);
}

// Autograd chooses the order of a backward. The outputs' gradients of both pieces start before the experts run; their
// rows' gradients start after each piece, and are awaited when the experts are done with both.
TEST(Moe, GradientsOfAPieceTravelDuringTheBackwardOfAnother) {
  const std::string starts = "StartRowsBackward", awaits = "AwaitRowsBackward", computes = "GroupedLinearBackward";
  const std::vector<std::string> expected = {starts, starts,   awaits,   computes, computes, starts,
                                             awaits, computes, computes, starts,   awaits,   awaits};
  const Step step = {.layout = {.ep = 2, .dp = 2, .overlap = {.expert_pieces = 2}}};
  on_layout(step.layout, [&](const Rank& rank) {
    const Parameters parameters = make_parameters(step.shared_expert, rank.coordinates());
    Moe moe(step.options, parameters, kPrefix, rank.parallel);
    const at::Tensor x = step.x()[rank.replica].clone().requires_grad_();
    const at::Tensor y = moe.branch(x, step.batch());
    Nodes seen;
    std::vector<std::string> names;
    record(y.grad_fn(), seen, names);
    y.backward(step.output_grad()[rank.replica]);
    std::erase_if(names, [&](const std::string& name) { return name != starts && name != awaits && name != computes; });
    EXPECT_EQ(names, expected);
    return true;
  });
}

TEST(Moe, DoesWithoutASharedExpert) {
  const Step step = {.layout = {.tp = 2}, .shared_expert = false};
  expect_same(run_layer(step), run_definition(step));
}

// The weight of the loss changes gradients, never the reported value; without a weight nothing is reported.
TEST(Moe, AuxiliaryLossIsReportedUnweighted) {
  const auto aux_loss = [](double coeff, double scale) {
    Step step = {.samples = 3, .aux_loss_scale = scale};
    step.options.aux_loss_coeff = coeff;
    return run_layer(step).aux_loss;
  };
  const double expected = run_definition({.samples = 3}).aux_loss;
  EXPECT_NEAR(aux_loss(0.3, 0.5), expected, kSameFormula);
  EXPECT_NEAR(aux_loss(7, 11), expected, kSameFormula);
  EXPECT_EQ(aux_loss(0, 0.5), 0);
  EXPECT_EQ(aux_loss(0.3, 0), 0);
}

struct OneMoe : ::testing::Test {
  // Runs `body` with a layer on one rank.
  void with_layer(
      const MoeOptions& options, const std::function<void(Moe&, const Parameters&)>& body,
      const std::function<void(const Parameters&)>& change = [](const Parameters&) {}) {
    on_layout({}, [&](const Rank& rank) {
      const Parameters parameters = make_parameters(/*shared_expert=*/false);
      {
        at::NoGradGuard guard;
        change(parameters);
      }
      Moe moe(options, parameters, kPrefix, rank.parallel);
      group = &rank.world;
      body(moe, parameters);
      return true;
    });
  }
  static at::Tensor bias_of(const Parameters& parameters) {
    return parameters.get(std::string(kPrefix) + "mlp.router.expert_bias");
  }

  Step step{.samples = 3};
  SequenceBatch batch = step.batch();
  at::Tensor x = step.x()[0];
  const Group* group = nullptr;
};

// With a router of zeros all scores are equal: P is S / E for every expert, and the choices sum to k S.
TEST_F(OneMoe, BalancedRoutingHasAnAuxiliaryLossOfOne) {
  for (const std::int64_t samples : {1, 3}) {
    batch.samples = samples;
    with_layer(
        kOptions,
        [&](Moe& moe, const Parameters&) {
          moe.branch(x, batch);
          EXPECT_NEAR(moe.take_aux_loss().item<double>(), 1, kSameFormula) << samples << " samples";
        },
        [](const Parameters& parameters) { parameters.get(std::string(kPrefix) + "mlp.router.weight").zero_(); });
  }
}

TEST_F(OneMoe, AuxiliaryLossesOfForwardsWithGradientsAddUp) {
  with_layer(kOptions, [&](Moe& moe, const Parameters&) {
    moe.branch(x, batch);
    const double once = moe.take_aux_loss().item<double>();
    moe.branch(x, batch);
    moe.branch(x, batch);
    {
      at::NoGradGuard guard;
      moe.branch(x, batch);
    }
    EXPECT_NEAR(moe.take_aux_loss().item<double>(), 2 * once, kSameFormula);
  });
}

TEST_F(OneMoe, RefusesSamplesOfUnequalLength) {
  batch.samples = 5;
  with_layer(kOptions, [&](Moe& moe, const Parameters&) { EXPECT_THROW(moe.branch(x, batch), std::logic_error); });
}

TEST_F(OneMoe, ExpertBiasMovesByTheTokensSinceTheLastUpdate) {
  with_layer(kOptions, [&](Moe& moe, const Parameters& parameters) {
    const at::Tensor before = bias_of(parameters).clone();
    {
      at::NoGradGuard guard;
      moe.branch(x, batch);
    }
    Moe::update_expert_biases({&moe}, *group);
    EXPECT_TRUE(at::equal(bias_of(parameters), before)) << "tokens without gradients count";
    moe.branch(x, batch);
    Moe::update_expert_biases({&moe}, *group);
    const at::Tensor moved = bias_of(parameters).clone();
    EXPECT_TRUE(at::equal(moved, run_definition(step).biases[0]));
    Moe::update_expert_biases({&moe}, *group);
    EXPECT_TRUE(at::equal(bias_of(parameters), moved)) << "tokens count twice";
  });
}

// An expert that gets 8 tokens of 24 is below the mean of 9; counted twice, it would have 16 and the mean would be 12.
TEST_F(OneMoe, RecomputedTokensCountOnce) {
  const at::Tensor recomputed = x[0].expand({8, kHidden}), plain = -x[0].expand({16, kHidden});
  batch.samples = 1;
  step.shared_expert = false;
  const auto bias_when_counted = [&](std::int64_t times) {
    Definition definition(step);
    const at::Tensor tokens = at::cat({plain, recomputed.repeat({times, 1})});
    for (std::int64_t t = 0; t < tokens.size(0); ++t) definition.token_output(tokens[t]);
    return definition.bias_after_step();
  };
  ASSERT_FALSE(at::equal(bias_when_counted(1), bias_when_counted(2))) << "the test proves nothing";
  with_layer(kOptions, [&](Moe& moe, const Parameters& parameters) {
    moe.branch(plain, batch);
    testing::recomputed([&](const at::Tensor& x) { return moe.branch(x, batch); }, recomputed).sum().backward();
    Moe::update_expert_biases({&moe}, *group);
    EXPECT_TRUE(at::equal(bias_of(parameters), bias_when_counted(1)));
  });
}

// Replicas whose counts would move an expert's bias in different directions: only the sum decides.
TEST(Moe, ExpertBiasCountsTheTokensOfAllRanks) {
  const Step all = {.layout = {.dp = 4}};
  const at::Tensor expected = run_definition(all).biases[0];
  const auto biases_after = [&](bool together) {
    return on_layout(all.layout, [&](const Rank& rank) {
      const Parameters parameters = make_parameters(/*shared_expert=*/true);
      Moe moe(kOptions, parameters, kPrefix, rank.parallel);
      moe.branch(all.x()[rank.replica], all.batch());
      Moe::update_expert_biases({&moe}, together ? rank.world : rank.parallel.tp);
      return OneMoe::bias_of(parameters);
    });
  };
  const auto is_expected = [&](const at::Tensor& bias) { return at::equal(bias, expected); };
  const Tensors together = biases_after(true), alone = biases_after(false);
  EXPECT_TRUE(std::all_of(together.begin(), together.end(), is_expected));
  EXPECT_FALSE(std::all_of(alone.begin(), alone.end(), is_expected)) << "the test proves nothing";
}

// Logits of -1e30 make every score zero; dividing by their sum must not produce NaN.
TEST(Moe, AuxiliaryLossOfVanishingScoresIsFinite) {
  on_layout({}, [&](const Rank& rank) {
    const Parameters parameters = make_parameters(true);
    {
      at::NoGradGuard guard;
      parameters.get(std::string(kPrefix) + "pre_mlp_layernorm.weight").fill_(1);
      parameters.get(std::string(kPrefix) + "mlp.router.weight").fill_(-1e30);
    }
    Moe moe(kOptions, parameters, kPrefix, rank.parallel);
    const at::Tensor x = at::ones({kTokens, kHidden}, at::kDouble).requires_grad_();
    moe.branch(x, Step{}.batch()).sum().backward();
    EXPECT_TRUE(std::isfinite(moe.take_aux_loss().item<double>()));
    EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
    return true;
  });
}

MoeOptions forced() {
  MoeOptions options = kOptions;
  options.force_load_balancing = true;
  return options;
}

TEST(ForcedLoadBalancing, RoutesAlikeInEveryLayout) {
  const Outcome expected = run_layer({.options = forced(), .samples = 3});
  for (const Layout& layout : {Layout{.tp = 2}, Layout{.tp = 2, .sp = true}, Layout{.cp = 2},
                               Layout{.tp = 2, .cp = 2, .ep = 2}, Layout{.tp = 2, .cp = 2, .ep = 4, .sp = true}}) {
    SCOPED_TRACE(::testing::Message() << layout);
    expect_same(run_layer({.layout = layout, .options = forced(), .samples = 3}), expected);
  }
}

// The auxiliary loss is made of all scores, and the bias of all choices.
TEST(ForcedLoadBalancing, RoutesWithoutLookingAtTheTokens) {
  const Outcome one = run_layer({.options = forced()}), other = run_layer({.options = forced(), .x_seed = 11});
  EXPECT_EQ(one.aux_loss, other.aux_loss);
  EXPECT_TRUE(at::equal(one.biases[0], other.biases[0]));
  EXPECT_FALSE(at::equal(one.output, other.output));
  EXPECT_EQ(one.grads.at("layer.mlp.router.weight").abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace braid
