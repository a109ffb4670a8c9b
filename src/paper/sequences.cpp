// Operators on paper: attention and Mamba2's mixer.
#include <bit>
#include <numeric>

#include "paper/ops.h"

namespace braid {

using namespace paper;

std::int64_t PaperSequences::chunks_of(std::int64_t length) const {
  const auto in = [length](std::int64_t all) { return (all + length - 1) / length; };
  return have_one_length() ? count * in(longest) : in(tokens) + count - 1;  // else, at most
}

// ops/attention.cpp: cudnn_shape(), and kernels/cudnn_attention.cpp: backward_piece(). cuDNN's deterministic
// algorithm has a matrix of scores for every head, in bf16; the other adds the gradients of queries in fp32. Flash
// attention has copies of the inputs, and several such sums.
std::int64_t PaperOps::attention_workspace(const Heads& heads, const PaperSequences& sequences) const {
  const auto ceil = [](std::int64_t size) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, size))));
  };
  const bool one = sequences.count == 1, whole_sequences = heads.queries == 1 && sequences.have_one_length() && !one;
  const bool packed = !whole_sequences && !(heads.causal && one);
  const std::int64_t groups = heads.all() / heads.queries;
  const std::int64_t parts = whole_sequences ? sequences.count : packed ? ceil(sequences.count) * groups : groups;
  const std::int64_t heads_of_part = whole_sequences ? heads.all() : heads.queries;
  const std::int64_t length = packed ? std::max<std::int64_t>(128, ceil(sequences.longest)) : sequences.longest;
  constexpr std::int64_t kMultiple = 64, kScore = 2;
  const std::int64_t padded = round_up(length, kMultiple), sums = length * heads.width * kFloat;
  const std::int64_t part =
      heads_of_part * ((device_.deterministic ? padded * padded * kScore : sums) + length * kFloat);

  constexpr std::int64_t kGood = std::int64_t{2} << 30, kMost = std::int64_t{9} << 30;
  if (parts * part <= kGood) return parts * part;
  const std::int64_t least = packed ? 4 : 4 / std::gcd(std::int64_t{4}, heads_of_part * length);
  std::int64_t piece = std::max(least, kGood / part / least * least);
  while (piece > 0 && parts % piece != 0) piece -= least;
  if (piece == 0) piece = parts;
  if (piece * part <= kMost) return piece * part;
  constexpr std::int64_t kProcessors = 132;
  const std::int64_t splits = device_.deterministic ? (kProcessors + heads.all() - 1) / heads.all() : 1;
  return sequences.tokens * heads.width * ((heads.all() + 2 * groups) * element() + heads.all() * splits * kFloat);
}

PaperTensor PaperOps::attention(const PaperTensor& groups, const Heads& heads, const PaperSequences& sequences) {
  const PaperTensor out = matrix(groups.rows, heads.all() * heads.width);
  const PaperMemory log_sum_exp = tape_.make(groups.rows * heads.all() * wide());
  if (!device_.kernels) tape_.ledger().touch(groups.elements() * wide());
  const OperatorWork work =
      works(true).attention(real(groups.rows), real(heads.all()), real(heads.width), sequences.squares, heads.causal);
  return tape_.differentiable(work, out, groups.trains(), [=, this, saved = out.memory](const PaperMemory&) {
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

// kernels/ssd_scan_backward.cu. ATen's operators widen and reorder everything, in blocks of chunks.
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

PaperOps::MixerWork PaperOps::mixer_work(const Mixer& mixer, std::int64_t cp, const PaperSequences& sequences) const {
  const Operators works = this->works(mixer.trains);
  const double inner = real(mixer.inner()), states = real(mixer.groups * mixer.state), state = real(mixer.state);
  const double scanned = real(sequences.tokens), tokens = scanned / real(cp), share = 1 / real(cp);
  const double chunk = std::min(real(mixer.chunk), sequences.squares > 0 ? sequences.squares / scanned : 1e9);
  const double amount = 2 * scanned * share * ((states + inner) * chunk / 2 + 2 * inner * state);
  const std::array<double, 3> size = {scanned, real(mixer.heads) * share, real(mixer.width) * state};
  const double convolved = tokens * real(mixer.convolved());
  // The convolution's weight and bias, A_log, D, dt_bias, and the norm's weight have small gradients.
  return {.convolution = {works.stream(Operator::Convolution, 2 * convolved),
                          works.stream(Operator::ConvolutionBackward, 3 * convolved, 2)},
          .scan = {{{.op = Operator::Scan, .amount = amount, .size = size, .launches = 3}},
                   {{.op = Operator::ScanBackward, .amount = 2 * amount, .size = size, .launches = 5}}},
          .gated_norm = {
              works.stream(Operator::GatedNorm, 3 * tokens * inner),
              works.small_gradients(6, inner) + works.stream(Operator::GatedNormBackward, 5 * tokens * inner, 2)}};
}

PaperRecomputable PaperOps::mamba_mixer(const PaperTensor& features, const Mixer& mixer,
                                        const PaperSequences& sequences, bool recompute_output, bool recompute_all) {
  const auto saved = std::make_shared<std::optional<MixerSaved>>();
  const auto run = [=, this](const PaperTensor& from) { return mix(from, mixer, sequences, saved->emplace()); };
  PaperTensor output = {features.rows, mixer.inner(), element()};
  output.memory = run(features);
  const MixerWork parts = mixer_work(mixer, 1, sequences);
  OperatorWork work = repeated_if(recompute_all, parts.convolution + parts.scan + parts.gated_norm);
  if (recompute_output && !recompute_all) work.backward = parts.gated_norm.forward + work.backward;
  output = tape_.differentiable(work, output, features.trains() || mixer.trains, [=, this](const PaperMemory&) {
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

PaperTensor PaperOps::convolution(const OperatorWork& work, const PaperTensor& x, const Mixer& mixer) {
  wide_copies(x.elements(), 2);
  const PaperMemory filter = tape_.make(x.columns * (mixer.taps + 1) * element());
  return tape_.differentiable(work, tape_.like(x), x.trains() || mixer.trains, [this, x, filter](const PaperMemory&) {
    keep(filter);
    wide_copies(x.elements(), 2);
    tape_.pass(x, tape_.make(x.bytes()));
  });
}

PaperTensor PaperOps::scan(const OperatorWork& work, const PaperTensor& convolved, const PaperTensor& steps,
                           const Mixer& mixer, const PaperSequences& sequences) {
  const PaperTensor y = matrix(convolved.rows, mixer.inner());
  const PaperMemory states = scan_states(mixer, sequences), of_heads = tape_.make(3 * mixer.heads * element());
  scan_scratch(mixer, sequences, false);
  return tape_.differentiable(work, y, convolved.trains() || mixer.trains, [=, this](const PaperMemory&) {
    keep(states, of_heads);
    scan_scratch(mixer, sequences, true);
    tape_.pass(convolved, tape_.make(convolved.bytes()));
    tape_.pass(steps, tape_.make(steps.bytes()));
  });
}

PaperTensor PaperOps::gated_norm(const OperatorWork& work, const PaperTensor& y, const PaperTensor& z,
                                 const Mixer& mixer) {
  const PaperMemory inverse_root = tape_.make(y.rows * mixer.groups * wide());
  wide_copies(y.elements(), 3);
  return tape_.differentiable(work, tape_.like(y), y.trains() || z.trains() || mixer.trains,
                              [=, this](const PaperMemory&) {
                                keep(inverse_root);
                                wide_copies(y.elements(), 5);
                                const PaperMemory z_grad = tape_.make(y.bytes());
                                tape_.pass(y, tape_.make(y.bytes()));
                                tape_.pass(z, z_grad);
                              });
}

}  // namespace braid
