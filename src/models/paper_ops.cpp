#include "models/paper_ops.h"

#include <bit>

namespace braid {
namespace {

constexpr std::int64_t kIndex = 8, kFloat = 4;  // bytes of an int64 and of an fp32 number

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

// What a node keeps of its inputs is captured whole; of the others it knows only where their gradients go.
PaperTensor target(const PaperTensor& x) { return x.without_memory(); }

template <class... Memory>
void keep(const Memory&...) {}  // names what a closure has captured only to keep it

}  // namespace

std::int64_t PaperSequences::chunks_of(std::int64_t length) const {
  const auto in = [length](std::int64_t all) { return (all + length - 1) / length; };
  return have_one_length() ? count * in(longest) : in(tokens) + count - 1;  // else, at most
}

// --- norms

PaperTensor PaperOps::norm(const PaperTensor& x, bool trains, bool has_mean) {
  const PaperTensor y = tape_.like(x);
  const PaperMemory statistics = tape_.make((has_mean ? 2 : 1) * x.rows * wide());
  wide_copies(x.elements(), 2);
  return tape_.differentiable(y, x.trains() || trains, [this, x, statistics](const PaperMemory&) {
    keep(statistics);
    wide_copies(x.elements(), 5);
    tape_.pass(x, tape_.make(x.bytes()));
  });
}

PaperOps::SumAndNormed PaperOps::add_norm(const PaperTensor& x, const PaperTensor& branch, bool trains, bool has_mean) {
  PaperTensor sum = tape_.like(x), normed = tape_.like(x);
  const PaperMemory statistics = tape_.make((has_mean ? 2 : 1) * x.rows * wide());
  wide_copies(x.elements(), 2);
  if (!tape_.records() || !(x.trains() || branch.trains() || trains)) return {sum, normed};
  sum.gradient = std::make_shared<PaperMemory>();
  normed.gradient = std::make_shared<PaperMemory>();
  tape_.add([this, to_x = target(x), to_branch = target(branch), statistics, saved = sum.memory, of_sum = sum.gradient,
             of_normed = normed.gradient] {
    keep(saved, statistics);
    const auto taken = [&](const std::shared_ptr<PaperMemory>& slot) {
      return *slot ? std::exchange(*slot, nullptr) : tape_.make(to_x.bytes());
    };
    const PaperMemory sum_grad = taken(of_sum), normed_grad = taken(of_normed);
    wide_copies(to_x.elements(), 5);
    const PaperMemory grad = tape_.make(to_x.bytes());
    tape_.pass(to_x, grad);
    tape_.pass(to_branch, grad);
  });
  return {sum, normed};
}

PaperMemory PaperOps::norm_again(std::int64_t rows, std::int64_t columns) {
  const PaperMemory y = tape_.make(rows * columns * element());
  tape_.ledger().touch(rows * wide());
  wide_copies(rows * columns, 2);
  return y;
}

// --- products

PaperMemory PaperOps::product(std::int64_t rows, std::int64_t columns) {
  const PaperMemory result = tape_.make(rows * columns * element());
  choose_product(rows * columns * element(), element());
  return result;
}

// The sum of gradients is fp32 or wider; on a CPU its factors are copied to that.
void PaperOps::add_weight_gradient(const PaperWeight& weight) {
  if (weight.matrices == 1) choose_product(weight.in * weight.out * wide(), wide());
}

PaperMemory PaperOps::linear_backward(const PaperRecomputable::Function& saved, const PaperWeight& weight,
                                      std::int64_t rows, bool x_trains) {
  const PaperMemory x = saved();
  const PaperMemory x_grad = !x_trains              ? nullptr
                             : weight.matrices == 1 ? product(rows, weight.in)
                                                    : tape_.make(rows * weight.in * element());
  if (!weight.trains) return x_grad;
  add_weight_gradient(weight);
  if (!device_.kernels && element() < wide()) tape_.ledger().touch(rows * (weight.in + weight.out) * wide());
  return x_grad;
}

PaperTensor PaperOps::linear(const PaperRecomputable& input, const PaperWeight& weight) {
  const PaperTensor& x = input.value;
  if (weight.fp8 && x.rows > 0) return linear_fp8(x, weight);
  PaperTensor y = {x.rows, weight.out, element()};
  y.memory = weight.matrices == 1 ? product(x.rows, weight.out) : tape_.make(y.bytes());
  return tape_.differentiable(
      y, x.trains() || weight.trains,
      [this, saved = input.saved_if(weight.trains), weight, to_x = target(x)](const PaperMemory&) {
        tape_.pass(to_x, linear_backward(saved, weight, to_x.rows, to_x.trains()));
      });
}

PaperTensor PaperOps::linear_of_gelu(const PaperTensor& inner, const PaperRecomputable& activated,
                                     const PaperWeight& weight) {
  PaperTensor y = {inner.rows, weight.out, element()};
  y.memory = product(y.rows, y.columns);
  return tape_.differentiable(y, inner.trains() || weight.trains,
                              [this, inner, saved = activated.saved_if(weight.trains), weight](const PaperMemory&) {
                                const PaperMemory x = saved();
                                if (weight.trains) add_weight_gradient(weight);
                                if (!inner.trains()) return;
                                const PaperMemory of_activated = device_.kernels ? nullptr : tape_.make(inner.bytes());
                                tape_.pass(inner, product(inner.rows, inner.columns));
                              });
}

// --- fp8

PaperMemory PaperOps::fp8(std::int64_t rows, std::int64_t columns) { return tape_.make(rows * (columns + kFloat)); }

// Rows of experts have gaps in kernels, see ops/quantize_experts_cuda.cpp.
PaperMemory PaperOps::fp8_columns(std::int64_t rows, std::int64_t columns, std::int64_t groups) {
  constexpr std::int64_t kMultiple = 16, kGroupMultiple = 32;
  const bool has_gaps = groups > 1 && device_.kernels;
  const std::int64_t length =
      has_gaps ? round_up(rows + groups * (kGroupMultiple - 1), kGroupMultiple) : round_up(rows, kMultiple);
  return tape_.make(columns * (length + kFloat));
}

PaperTensor PaperOps::linear_fp8(const PaperTensor& x, const PaperWeight& weight) {
  PaperMemory columns;
  PaperTensor y = {x.rows, weight.out, element()};
  {
    const PaperMemory rows = fp8(x.rows, weight.in);
    if (weight.trains && tape_.records()) columns = fp8_columns(x.rows, weight.in, weight.matrices);
    y.memory = tape_.make(y.bytes());
    wide_copies(x.elements() + weight.in * weight.out * weight.matrices + y.elements(), 1);
  }
  return tape_.differentiable(
      y, x.trains() || weight.trains, [this, columns, weight, to_x = target(x)](const PaperMemory&) {
        keep(columns);
        const std::int64_t tokens = to_x.rows;
        const PaperMemory rows = to_x.trains() ? fp8(tokens, weight.out) : nullptr;
        const PaperMemory of_grad = weight.trains ? fp8_columns(tokens, weight.out, weight.matrices) : nullptr;
        const PaperMemory x_grad = to_x.trains() ? tape_.make(to_x.bytes()) : nullptr;
        wide_copies(tokens * (weight.in + weight.out) + weight.in * weight.out * weight.matrices, 1);
        // After the first microbatch of a step, a product that is added to the sum.
        if (weight.trains && weight.matrices == 1) tape_.ledger().touch(weight.in * weight.out * wide());
        tape_.pass(to_x, x_grad);
      });
}

PaperTensor PaperOps::expert_mlp_fp8(const PaperRecomputable& tokens, const PaperTensor& weights,
                                     const PaperTensor& added, const ExpertMlp& mlp, const PaperMemory& order,
                                     bool recomputed) {
  struct Saved {
    PaperMemory rows, activated, inner, scales;
  };
  const std::int64_t hidden = mlp.fc1.in, ffn = mlp.fc1.out, rows = tokens.value.rows * mlp.top_k,
                     experts = mlp.fc1.matrices;
  const bool trains = mlp.fc1.trains;
  // activate(): what is saved, and fc2's input, which is not
  const auto activate = [=, this](bool with_columns, PaperMemory& activated) {
    Saved saved;
    {
      const PaperMemory permuted = fp8(rows, hidden);
      if (with_columns) saved.rows = fp8_columns(rows, hidden, experts);
      saved.inner = tape_.make(rows * ffn * element());
      wide_copies(rows * (hidden + ffn), 1);
    }
    saved.scales = tape_.make(rows * wide());
    activated = fp8(rows, ffn);
    if (with_columns) saved.activated = fp8_columns(rows, ffn, experts);
    return saved;
  };
  PaperTensor y = matrix(tokens.value.rows, hidden);
  PaperMemory activated;
  Saved saved = activate(trains && !recomputed && tape_.records(), activated);
  {
    const PaperMemory outputs = tape_.make(rows * hidden * element());
    wide_copies(rows * (hidden + ffn), 1);
  }
  activated.reset();
  if (recomputed) saved = {};
  return tape_.differentiable(
      y, tokens.value.trains() || weights.trains() || trains,
      [=, this, again = tokens.saved_if(recomputed), of_weights = weights, to_tokens = target(tokens.value),
       to_added = target(added)](const PaperMemory& grad) {
        keep(order);
        Saved now = saved;
        PaperMemory activated_again;
        if (recomputed) {
          const PaperMemory from = again();
          now = activate(trains, activated_again);
        }
        PaperMemory of_activated;
        {
          const PaperMemory grad_rows = fp8(rows, hidden);
          const PaperMemory grad_columns = trains ? fp8_columns(rows, hidden, experts) : nullptr;
          of_activated = tape_.make(rows * ffn * element());
          wide_copies(rows * (hidden + ffn), 1);
        }
        PaperMemory inner_rows = fp8(rows, ffn), inner_columns = trains ? fp8_columns(rows, ffn, experts) : nullptr;
        tape_.ledger().touch(rows * ffn * element());  // the gradient before it is converted
        const PaperMemory of_rows = tape_.make(rows * hidden * element());
        tape_.pass(to_tokens, tape_.make(to_tokens.bytes()));
        tape_.pass(of_weights, tape_.make(of_weights.bytes()));
        tape_.pass(to_added, grad);
      });
}

// --- elements

PaperTensor PaperOps::activation(const PaperTensor& x, std::int64_t columns) {
  const PaperTensor y = matrix(x.rows, columns);
  return tape_.differentiable(y, x.trains(), [this, x](const PaperMemory&) {
    wide_copies(x.elements(), 1);
    tape_.pass(x, tape_.make(x.bytes()));
  });
}

PaperTensor PaperOps::scaled_activation(const PaperTensor& x, const PaperTensor& scales) {
  const PaperTensor y = tape_.like(x);
  wide_copies(x.elements(), 1);
  return tape_.differentiable(y, x.trains() || scales.trains(), [this, x, scales](const PaperMemory&) {
    wide_copies(x.elements(), 3);
    tape_.pass(x, tape_.make(x.bytes()));
    tape_.pass(scales, tape_.make(scales.bytes()));
  });
}

PaperTensor PaperOps::sum(const PaperTensor& a, const PaperTensor& b) {
  return tape_.differentiable(tape_.like(a), a.trains() || b.trains(),
                              [this, to_a = target(a), to_b = target(b)](const PaperMemory& grad) {
                                tape_.pass(to_a, grad);
                                tape_.pass(to_b, grad);
                              });
}

PaperTensor PaperOps::scaled_by_channel(const PaperTensor& x, bool trains) {
  return tape_.differentiable(tape_.like(x), x.trains() || trains,
                              [this, to_x = target(x), saved = trains ? x.memory : nullptr](const PaperMemory&) {
                                keep(saved);
                                tape_.ledger().touch(saved ? to_x.bytes() : 0);  // of the scale's gradient
                                tape_.pass(to_x, tape_.make(to_x.bytes()));
                              });
}

PaperTensor PaperOps::copy(const PaperTensor& x, std::int64_t rows, std::int64_t columns) {
  return tape_.differentiable(
      tape_.matrix(rows, columns, x.element_bytes), x.trains(),
      [this, to_x = target(x)](const PaperMemory&) { tape_.pass(to_x, tape_.make(to_x.bytes())); });
}

// --- sequences

// ops/attention_cuda.cpp: cudnn_shape(), of the backward. cuDNN's deterministic algorithm has a matrix of scores for
// every head, in bf16; the other adds the gradients of queries in fp32.
std::int64_t PaperOps::attention_workspace(const Heads& heads, const PaperSequences& sequences) const {
  const auto ceil = [](std::int64_t size) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, size))));
  };
  const bool one = sequences.count == 1;
  const bool in_parts =
      (heads.queries == 1 && sequences.have_one_length() && (heads.causal || !one)) || (heads.causal && one);
  const std::int64_t all = (in_parts ? sequences.count : ceil(sequences.count)) * heads.all();
  const std::int64_t length = in_parts ? sequences.longest : std::max<std::int64_t>(128, ceil(sequences.longest));
  constexpr std::int64_t kMultiple = 64, kScore = 2;
  const std::int64_t padded = round_up(length, kMultiple);
  const std::int64_t sums =
      device_.deterministic ? all * padded * padded * kScore : all * length * heads.width * kFloat;
  return sums + all * length * kFloat;
}

PaperTensor PaperOps::attention(const PaperTensor& groups, const Heads& heads, const PaperSequences& sequences) {
  const PaperTensor out = matrix(groups.rows, heads.all() * heads.width);
  const PaperMemory log_sum_exp = tape_.make(groups.rows * heads.all() * wide());
  if (!device_.kernels) tape_.ledger().touch(groups.elements() * wide());
  return tape_.differentiable(out, groups.trains(), [=, this, saved = out.memory](const PaperMemory&) {
    keep(saved, log_sum_exp);
    const PaperMemory grad = tape_.make(groups.bytes());
    tape_.ledger().touch(device_.kernels ? attention_workspace(heads, sequences) : groups.elements() * 2 * wide());
    tape_.pass(groups, grad);
  });
}

std::int64_t PaperOps::chunks(const PaperSequences& sequences, const Mixer& mixer) const {
  constexpr std::int64_t kKernelChunk = 128;
  const std::int64_t longest = std::max<std::int64_t>(1, sequences.longest);
  return sequences.chunks_of(has_scan_kernel(mixer) ? kKernelChunk : std::min(mixer.chunk, longest));
}

bool PaperOps::has_scan_kernel(const Mixer& mixer) const {
  return device_.kernels && element() == 2 && mixer.width == 64 && (mixer.state == 64 || mixer.state == 128);
}

// States before each chunk; ATen's scan also has the state after the last one. Kernels keep four numbers per token and
// head besides.
PaperMemory PaperOps::scan_states(const Mixer& mixer, const PaperSequences& sequences) {
  const std::int64_t count = chunks(sequences, mixer), numbers = mixer.inner() * mixer.state;
  if (!has_scan_kernel(mixer)) return tape_.make((count + 1) * numbers * wide());
  constexpr std::int64_t kStepNumbers = 4 * 128;
  const std::int64_t states = tape_.ledger().rounded(count * numbers * element());
  return tape_.make(states + count * mixer.heads * kStepNumbers * kFloat);
}

// ops/ssd_scan_cuda.cpp: Scratch. ATen's operators widen and reorder everything, in blocks of chunks.
void PaperOps::scan_scratch(const Mixer& mixer, const PaperSequences& sequences, bool backward) {
  const std::int64_t count = chunks(sequences, mixer), numbers = mixer.inner() * mixer.state;
  if (has_scan_kernel(mixer)) {
    constexpr std::int64_t kPassed = 256, kTokenNumbers = 6 * 128, kScores = 128 * 128;
    if (backward)
      tape_.ledger().touch(count * (numbers * element() + numbers / kPassed * kFloat +
                                    mixer.heads * (kTokenNumbers + 3) * kFloat + mixer.groups * kScores * element()));
    return;
  }
  constexpr std::int64_t kBlockNumbers = std::int64_t{1} << 24;
  const std::int64_t tokens = sequences.tokens, length = std::min(mixer.chunk, std::max<std::int64_t>(1, tokens));
  const std::int64_t block = std::min(kBlockNumbers, mixer.heads * length * std::max(tokens, length));
  tape_.ledger().touch(
      (tokens * (mixer.convolved() + mixer.heads) + (backward ? count * numbers : 0) + (backward ? 6 : 3) * block) *
      wide());
}

// What a call of the mixer saves besides its input.
struct PaperOps::MixerSaved {
  PaperMemory convolved, y, states, inverse_root;
};

PaperMemory PaperOps::mix(const PaperTensor& features, const Mixer& mixer, const PaperSequences& sequences,
                          MixerSaved& saved) {
  saved.convolved = tape_.make(features.rows * mixer.convolved() * element());
  wide_copies(features.rows * mixer.convolved(), 2);
  saved.y = tape_.make(features.rows * mixer.inner() * element());
  saved.states = scan_states(mixer, sequences);
  scan_scratch(mixer, sequences, false);
  saved.inverse_root = tape_.make(features.rows * mixer.groups * wide());
  wide_copies(features.rows * mixer.inner(), 3);
  return tape_.make(features.rows * mixer.inner() * element());
}

PaperRecomputable PaperOps::mamba_mixer(const PaperTensor& features, const Mixer& mixer,
                                        const PaperSequences& sequences, bool recompute_output, bool recompute_all) {
  const auto saved = std::make_shared<std::optional<MixerSaved>>();
  const auto run = [=, this](const PaperTensor& from) { return mix(from, mixer, sequences, saved->emplace()); };
  PaperTensor output = {features.rows, mixer.inner(), element()};
  output.memory = run(features);
  output = tape_.differentiable(output, features.trains() || mixer.trains, [=, this](const PaperMemory&) {
    if (!*saved) run(features);
    const PaperMemory features_grad = tape_.make(features.bytes());
    const std::int64_t of_y = features.rows * mixer.inner() * element();
    const PaperMemory y_grad = tape_.make(of_y);
    const PaperMemory convolved_grad = tape_.make(features.rows * mixer.convolved() * element());
    wide_copies(features.rows * mixer.convolved(), 3);
    scan_scratch(mixer, sequences, true);
    tape_.pass(features, features_grad);
  });
  if (recompute_all || !tape_.records()) saved->reset();
  if (!recompute_all && !recompute_output) return output;
  return {output, [=, this] { return *saved ? tape_.make(features.rows * mixer.inner() * element()) : run(features); }};
}

PaperTensor PaperOps::convolution(const PaperTensor& x, bool trains) {
  wide_copies(x.elements(), 2);
  return tape_.differentiable(tape_.like(x), x.trains() || trains, [this, x](const PaperMemory&) {
    wide_copies(x.elements(), 2);
    tape_.pass(x, tape_.make(x.bytes()));
  });
}

PaperTensor PaperOps::scan(const PaperTensor& convolved, const PaperTensor& steps, const Mixer& mixer,
                           const PaperSequences& sequences) {
  const PaperTensor y = matrix(convolved.rows, mixer.inner());
  const PaperMemory states = scan_states(mixer, sequences);
  scan_scratch(mixer, sequences, false);
  return tape_.differentiable(y, convolved.trains() || mixer.trains, [=, this](const PaperMemory&) {
    keep(states);
    scan_scratch(mixer, sequences, true);
    tape_.pass(convolved, tape_.make(convolved.bytes()));
    tape_.pass(steps, tape_.make(steps.bytes()));
  });
}

PaperTensor PaperOps::gated_norm(const PaperTensor& y, const PaperTensor& z, std::int64_t groups, bool trains) {
  const PaperMemory inverse_root = tape_.make(y.rows * groups * wide());
  wide_copies(y.elements(), 3);
  return tape_.differentiable(tape_.like(y), y.trains() || z.trains() || trains, [=, this](const PaperMemory&) {
    keep(inverse_root);
    wide_copies(y.elements(), 5);
    const PaperMemory z_grad = tape_.make(y.bytes());
    tape_.pass(y, tape_.make(y.bytes()));
    tape_.pass(z, z_grad);
  });
}

// --- experts

PaperOps::Routed PaperOps::router(const PaperRecomputable& input, std::int64_t experts, bool trains,
                                  std::size_t other_users) {
  const PaperTensor& x = input.value;
  Routed routed;
  routed.logits = tape_.matrix(x.rows, experts, wide());
  wide_copies(element() < wide() ? x.elements() : 0, 1);
  routed.tokens.assign(other_users, x);
  if (!tape_.records() || !(x.trains() || trains)) return routed;
  routed.logits.gradient = std::make_shared<PaperMemory>();
  std::vector<std::shared_ptr<PaperMemory>> users;
  for (PaperTensor& user : routed.tokens) {
    if (x.trains()) user.gradient = std::make_shared<PaperMemory>();
    if (x.trains()) users.push_back(user.gradient);
  }
  tape_.add([this, saved = input.saved_if(true), to_x = target(x), users, experts, slot = routed.logits.gradient] {
    const PaperMemory grad = *slot ? std::exchange(*slot, nullptr) : tape_.make(to_x.rows * experts * wide());
    std::vector<PaperMemory> added;
    for (const auto& user : users) added.push_back(*user ? std::exchange(*user, nullptr) : tape_.make(to_x.bytes()));
    const PaperMemory tokens = saved();
    wide_copies(to_x.elements(), element() < wide() ? 2 : 1);
    if (to_x.trains()) tape_.pass(to_x, tape_.make(to_x.bytes()));
  });
  return routed;
}

PaperOps::Routing PaperOps::route(const PaperTensor& logits, std::int64_t top_k) {
  Routing routing;
  routing.scores = tape_.matrix(logits.rows, logits.columns, wide());
  routing.experts = tape_.make(logits.rows * top_k * kIndex);
  if (!device_.kernels) tape_.ledger().touch(logits.elements() * (2 * wide() + 2 * kIndex));
  routing.weights = tape_.matrix(logits.rows, top_k, wide());
  if (!tape_.records() || !logits.trains()) return routing;
  routing.scores.gradient = std::make_shared<PaperMemory>();
  routing.weights.gradient = std::make_shared<PaperMemory>();
  tape_.add([this, to_logits = target(logits), scores = routing.scores.memory, experts = routing.experts,
             of_scores = routing.scores.gradient, of_weights = routing.weights.gradient] {
    keep(scores, experts);
    const PaperMemory scores_grad = *of_scores ? std::exchange(*of_scores, nullptr) : tape_.make(to_logits.bytes());
    const PaperMemory weights_grad = std::exchange(*of_weights, nullptr);
    wide_copies(to_logits.elements(), 2);
    tape_.pass(to_logits, tape_.make(to_logits.bytes()));
  });
  return routing;
}

PaperMemory PaperOps::expert_order(std::int64_t rows, std::int64_t experts) {
  const std::int64_t of_rows = 2 * tape_.ledger().rounded(rows * kIndex);
  if (!device_.kernels) tape_.ledger().touch(of_rows + 2 * rows * kIndex);
  return tape_.make(of_rows + tape_.ledger().rounded(experts * kIndex) + tape_.ledger().rounded(experts * kFloat));
}

PaperTensor PaperOps::permute(const PaperTensor& x, const PaperMemory& order, std::int64_t top_k) {
  return tape_.differentiable(matrix(x.rows * top_k, x.columns), x.trains(),
                              [this, order, to_x = target(x), top_k](const PaperMemory&) {
                                keep(order);
                                if (!device_.kernels) tape_.ledger().touch((top_k + 1) * to_x.bytes());
                                tape_.pass(to_x, tape_.make(to_x.bytes()));
                              });
}

PaperTensor PaperOps::unpermute(const PaperTensor& rows, const PaperMemory& order, std::int64_t top_k,
                                const PaperTensor& added) {
  if (!device_.kernels) tape_.ledger().touch(rows.bytes());
  return tape_.differentiable(matrix(rows.rows / top_k, rows.columns), rows.trains() || added.trains(),
                              [this, order, to_rows = target(rows), to_added = target(added)](const PaperMemory& grad) {
                                keep(order);
                                if (to_rows.trains()) tape_.pass(to_rows, tape_.make(to_rows.bytes()));
                                tape_.pass(to_added, grad);
                              });
}

PaperTensor PaperOps::with_aux_loss(const PaperTensor& y, const PaperTensor& scores, std::int64_t samples) {
  if (!tape_.records() || !scores.trains()) return y;
  const PaperMemory chosen = tape_.make((device_.kernels ? 2 : 1) * samples * scores.columns * wide());
  wide_copies(scores.elements(), 3);
  const auto reached = std::make_shared<bool>(false);
  tape_.add([this, scores, chosen, reached] {
    keep(chosen);
    wide_copies(scores.elements(), 3);
    if (*reached) tape_.pass(scores, tape_.make(scores.bytes()));
  });
  PaperTensor with_loss = y;
  with_loss.gradient = nullptr;
  return tape_.differentiable(with_loss, true, [this, to_y = target(y), reached](const PaperMemory& grad) {
    *reached = true;
    tape_.pass(to_y, grad);
  });
}

// --- text

PaperTensor PaperOps::embedding(std::int64_t tokens, std::int64_t hidden, bool trains) {
  const PaperTensor y = matrix(tokens, hidden);
  const PaperMemory ids = tape_.make(tokens * kIndex);
  if (!device_.kernels) tape_.ledger().touch(y.bytes());
  return tape_.differentiable(y, trains, [this, ids, elements = y.elements()](const PaperMemory&) {
    keep(ids);
    wide_copies(elements, 3);
  });
}

PaperTensor PaperOps::put_rows(const PaperTensor& x, const PaperTensor& rows) {
  const std::int64_t place_bytes = (x.rows + rows.rows) * kIndex;
  const PaperMemory places = tape_.make(place_bytes);
  return tape_.differentiable(tape_.like(x), x.trains() || rows.trains(),
                              [this, places, to_x = target(x), to_rows = target(rows)](const PaperMemory&) {
                                keep(places);
                                const PaperMemory x_grad = to_x.trains() ? tape_.make(to_x.bytes()) : nullptr;
                                if (to_rows.trains()) tape_.pass(to_rows, tape_.make(to_rows.bytes()));
                                tape_.pass(to_x, x_grad);
                              });
}

// Backward overwrites the logits with their gradient.
PaperTensor PaperOps::cross_entropy(const PaperTensor& logits, std::int64_t ranks) {
  const bool one_table = device_.kernels && ranks == 1;  // the largest logit, the sum, the label's and the loss
  const PaperMemory row_sums = tape_.make((one_table ? 4 : 3) * logits.rows * wide());
  const std::int64_t of_block = std::min(std::int64_t{16} << 20, logits.elements());
  const auto scratch = [this, of_block] { wide_copies(of_block, 2); };
  scratch();
  PaperTensor loss = tape_.matrix(1, 1, wide());
  return tape_.differentiable(loss, logits.trains(), [this, logits, row_sums, scratch](const PaperMemory&) {
    keep(row_sums);
    scratch();
    tape_.pass(logits, logits.memory);
  });
}

// --- collectives

PaperTensor PaperOps::all_reduce(const PaperTensor& x) { return copy(x, x.rows, x.columns); }

PaperTensor PaperOps::all_gather(const PaperTensor& x, std::int64_t ranks) {
  return copy(x, x.rows * ranks, x.columns);
}

// It gathers rows of the transposed matrix.
PaperTensor PaperOps::gather_columns(const PaperTensor& x, std::int64_t ranks) {
  tape_.ledger().touch(x.bytes() * (ranks + 1));
  return copy(x, x.rows, x.columns * ranks);
}

PaperTensor PaperOps::reduce_scatter(const PaperTensor& x, std::int64_t ranks) {
  return copy(x, x.rows / ranks, x.columns);
}

PaperTensor PaperOps::exchange(const PaperTensor& x, std::int64_t rows, std::int64_t columns) {
  return copy(x, rows, columns);
}

PaperTensor PaperOps::gather_and_multiply(const PaperRecomputable& x, const PaperWeight& weight, std::int64_t ranks) {
  const std::int64_t own = x.value.rows, rows = own * ranks, gathered_bytes = rows * weight.in * element();
  const bool gathers_again = weight.trains && x.again && !weight.fp8;
  PaperMemory kept = tape_.make(gathered_bytes);
  PaperTensor y = {rows, weight.out, element()};
  y.memory = product(rows, weight.out);
  if (weight.fp8 && weight.trains) kept = fp8_columns(rows, weight.in);
  if (!weight.trains || gathers_again || !tape_.records()) kept.reset();
  return tape_.differentiable(
      y, x.value.trains() || weight.trains,
      [=, this, again = gathers_again ? x.again : nullptr, to_x = target(x.value)](const PaperMemory&) {
        PaperMemory input = kept;
        if (again) {
          input = tape_.make(gathered_bytes);
          const PaperMemory own_rows = again();
        }
        const PaperMemory x_grad = to_x.trains() ? tape_.make(to_x.bytes()) : nullptr;
        const PaperMemory partial = to_x.trains() ? product(rows, weight.in) : nullptr;
        if (weight.trains) add_weight_gradient(weight);
        tape_.pass(to_x, x_grad);
      });
}

PaperTensor PaperOps::multiply_and_scatter(const PaperRecomputable& x, const PaperWeight& weight, std::int64_t ranks) {
  PaperTensor y = matrix(x.value.rows / ranks, weight.out);
  const PaperMemory columns =
      weight.fp8 && weight.trains && tape_.records() ? fp8_columns(x.value.rows, weight.in) : nullptr;
  { const PaperMemory partial = tape_.make(x.value.rows * weight.out * element()); }
  return tape_.differentiable(
      y, x.value.trains() || weight.trains,
      [=, this, saved = x.saved_if(weight.trains && !weight.fp8), to_x = target(x.value)](const PaperMemory&) {
        keep(columns);
        const std::int64_t gathered_bytes = to_x.rows * weight.out * element();
        const PaperMemory arriving = tape_.make(gathered_bytes);
        const PaperMemory x_grad = to_x.trains() ? tape_.make(to_x.bytes()) : nullptr;
        const PaperMemory all = weight.trains ? tape_.make(gathered_bytes) : nullptr;
        const PaperMemory input = saved();
        if (weight.trains) add_weight_gradient(weight);
        tape_.pass(to_x, x_grad);
      });
}

// --- recomputation

PaperOps::Tensors PaperOps::recompute(const std::function<Tensors(const Tensors&)>& function,
                                      const std::vector<PaperRecomputable>& inputs, bool trains) {
  Tensors values;
  bool needs_gradient = trains;
  for (const PaperRecomputable& input : inputs) {
    values.push_back(input.value);
    needs_gradient = needs_gradient || input.value.trains();
  }
  if (!tape_.records() || !needs_gradient) return function(values);
  std::vector<PaperRecomputable::Function> saved;
  Tensors targets, outputs;
  for (const PaperRecomputable& input : inputs) {
    saved.push_back(input.saved_if(true));
    targets.push_back(target(input.value));
  }
  {
    const PaperTape::Mode without_gradients(tape_, false);
    outputs = function(values);
  }
  std::vector<std::shared_ptr<PaperMemory>> slots;
  for (PaperTensor& output : outputs) {
    output.gradient = std::make_shared<PaperMemory>();
    slots.push_back(output.gradient);
  }
  tape_.add([this, function, saved, targets, slots] {
    std::vector<PaperMemory> grads;  // the caller's, which outlive the inner backward
    for (const auto& slot : slots) grads.push_back(std::exchange(*slot, nullptr));
    Tensors again;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      again.push_back(targets[i]);
      again.back().memory = saved[i]();
      if (targets[i].trains()) again.back().gradient = std::make_shared<PaperMemory>();
    }
    const PaperTape::Mode with_gradients(tape_, true);
    const std::size_t before = tape_.size();
    const Tensors results = function(again);
    for (std::size_t i = 0; i < results.size(); ++i)
      tape_.pass(results[i], grads[i] ? grads[i] : tape_.make(results[i].bytes()));
    tape_.backward(before);
    for (std::size_t i = 0; i < again.size(); ++i)
      if (targets[i].trains()) tape_.pass(targets[i], std::exchange(*again[i].gradient, nullptr));
  });
  return outputs;
}

}  // namespace braid
