// Each warp walks along the tokens of one piece with kWarp * kWidth channels, kWidth per thread, and keeps the filter
// and the last inputs in registers. The warps of a block have the same channels and consecutive pieces. In shared
// memory are the rows to come: copied asynchronously in batches, each element by the thread that reads it.
#include <cuda_pipeline.h>
#include "kernels/device.cuh"
#include "kernels/mamba.h"

namespace braid::kernels {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kBatch = 4, kBatches = 3;                   // one is computed while the others arrive
constexpr int kForwardTokens = 32, kBackwardTokens = 64;  // of a piece; multiples of kWarp

struct ConvFilter {
  Parameter weight;  // [C, taps]
  Parameter bias;    // [C], or none
};

// Channels of a thread: wider vectors would need too many registers.
template <class T>
constexpr int kPieceWidth = 8 / sizeof(T);

// A thread's channels and its warp's tokens.
template <int kWidth>
struct Piece {
  std::int64_t block, first_channel, channel, begin;
  int tokens, stored_tokens;  // of the piece; of those, how many have this thread's channels: all or none

  __device__ Piece(std::int64_t rows, std::int64_t columns, int length) {
    const std::int64_t blocks_across = (columns + kWarp * kWidth - 1) / (kWarp * kWidth);
    block = blockIdx.x / blocks_across;
    first_channel = blockIdx.x % blocks_across * (kWarp * kWidth);
    channel = first_channel + threadIdx.x % kWarp * kWidth;
    begin = min(rows, (block * kWarps + threadIdx.x / kWarp) * length);
    tokens = static_cast<int>(min(rows - begin, std::int64_t{length}));
    stored_tokens = channel < columns ? tokens : 0;
  }
};

// A thread's elements of the rows to come; zeros behind the last.
template <class T, int kWidth>
class Rows {
 public:
  static constexpr int kShared = kWarps * kBatches * kBatch * kWarp;
  using Element = Vector<T, kWidth>;

  // shared: of the block, kShared elements
  __device__ Rows(const Matrix<const T>& x, const Piece<kWidth>& piece, int count, Element* shared)
      : from_(x.data + piece.begin * x.stride + piece.channel), stride_(x.stride),
        left_(piece.stored_tokens > 0 ? count : 0),
        ring_(shared + threadIdx.x / kWarp * (kBatches * kBatch * kWarp) + threadIdx.x % kWarp) {}

  __device__ void copy_batch() {
    for (int i = 0; i < kBatch; ++i) {
      Element* to = ring_ + (arriving_ * kBatch + i) * kWarp;
      if constexpr (sizeof(Element) >= 4)
        __pipeline_memcpy_async(to, from_, sizeof(Element), i < left_ ? 0 : sizeof(Element));
      else
        *to = i < left_ ? Element::load(from_) : Element{};
      from_ += stride_;
    }
    left_ -= kBatch;
    arriving_ = arriving_ + 1 < kBatches ? arriving_ + 1 : 0;
  }
  __device__ Element operator[](int i) const { return ring_[(present_ * kBatch + i) * kWarp]; }
  __device__ void next_batch() { present_ = present_ + 1 < kBatches ? present_ + 1 : 0; }

 private:
  const T* from_;
  std::int64_t stride_;
  int left_, arriving_ = 0, present_ = 0;
  Element* ring_;
};

// Copies the next batches, and waits for the first that was not yet taken.
template <class... AllRows>
__device__ void copy_ahead(AllRows&... rows) {
  (rows.copy_batch(), ...);
  __pipeline_commit();
  __pipeline_wait_prior(kBatches - 1);
}
template <class... AllRows>
__device__ void copy_first(AllRows&... rows) {
  for (int i = 0; i < kBatches - 1; ++i) {
    (rows.copy_batch(), ...);
    __pipeline_commit();
  }
}

// The filter of a thread's channels.
template <int kTaps, int kWidth>
struct Filter {
  static constexpr int kChannels = kWarp * kWidth, kShared = (kTaps + 1) * kChannels;
  float weight[kTaps][kWidth];  // weight[back]: of the input `back` tokens earlier
  float bias[kWidth];

  __device__ Filter(const ConvFilter& filter, const Piece<kWidth>& piece, std::int64_t channels, float* shared) {
    const int count = static_cast<int>(min(std::int64_t{kChannels}, channels - piece.first_channel));
    for (int i = threadIdx.x; i < count * kTaps; i += kThreads)
      shared[(kTaps - 1 - i % kTaps) * kChannels + i / kTaps] =
          value_at(filter.weight, piece.first_channel * kTaps + i);
    for (int i = threadIdx.x; i < count; i += kThreads)
      shared[kTaps * kChannels + i] = filter.bias.data ? value_at(filter.bias, piece.first_channel + i) : 0;
    __syncthreads();
    const float* own = shared + threadIdx.x % kWarp * kWidth;
    for (int i = 0; i < kWidth; ++i) {
      for (int back = 0; back < kTaps; ++back) weight[back][i] = own[back * kChannels + i];
      bias[i] = own[kTaps * kChannels + i];
    }
  }
};

// For the next kWarp tokens, a bit each: whether the token `back` earlier belongs to the same sequence.
template <int kTaps>
struct Reach {
  unsigned bits[kTaps];

  __device__ void look_up(const std::int64_t* position_of, std::int64_t begin, std::int64_t tokens) {
    const std::int64_t token = begin + threadIdx.x % kWarp;
    const std::int64_t position = token < tokens ? position_of[token] : 0;
    for (int back = 1; back < kTaps; ++back) bits[back] = __ballot_sync(~0u, position >= back);
  }
  __device__ bool has(int token, int back) const { return bits[back] >> token & 1; }
  // Whether the next kBatch tokens all have every token before them.
  __device__ bool is_whole() const { return !(~bits[kTaps - 1] & ((1u << kBatch) - 1)); }
  __device__ void advance() {
    for (int back = 1; back < kTaps; ++back) bits[back] >>= kBatch;
  }
};

// Of tokens that have every token before them. Most do, and need fewer instructions.
struct WholeReach {
  __device__ bool has(int, int) const { return true; }
};

// use(step, reach) for the next kBatch tokens
template <int kTaps, class Use>
__device__ void for_batch(const Reach<kTaps>& reach, const Use& use) {
  const auto take = [&](const auto& reach) {
#pragma unroll
    for (int step = 0; step < kBatch; ++step) use(step, reach);
  };
  if (reach.is_whole())
    take(WholeReach());
  else
    take(reach);
}

// The inputs of a token and of those before it; inputs[back] is zero where the token before is of another sequence.
template <int kTaps, int kWidth>
struct Window {
  float inputs[kTaps][kWidth] = {};

  template <class T>
  __device__ void fill(const Matrix<const T>& x, const Piece<kWidth>& piece, const std::int64_t* position_of) {
    const std::int64_t position = piece.stored_tokens > 0 ? position_of[piece.begin] : 0;
    for (int back = 1; back < kTaps; ++back) {
      Vector<T, kWidth> row = {};
      if (position >= back) row = Vector<T, kWidth>::load(x.data + (piece.begin - back) * x.stride + piece.channel);
      for (int i = 0; i < kWidth; ++i) inputs[back - 1][i] = to_float(row.values[i]);
    }
  }
  template <class T>
  __device__ void push(const Vector<T, kWidth>& row, bool starts_sequence) {
    for (int back = kTaps - 1; back > 0; --back)
      for (int i = 0; i < kWidth; ++i) inputs[back][i] = inputs[back - 1][i];
    if (starts_sequence)
      for (int back = 1; back < kTaps; ++back)
        for (int i = 0; i < kWidth; ++i) inputs[back][i] = 0;
    for (int i = 0; i < kWidth; ++i) inputs[0][i] = to_float(row.values[i]);
  }
  __device__ float before_silu(const Filter<kTaps, kWidth>& filter, int i) const {
    float sum = filter.bias[i];
    for (int back = 0; back < kTaps; ++back) sum += filter.weight[back][i] * inputs[back][i];
    return sum;
  }
};

template <class T, int kWidth, int kTaps>
__global__ void __launch_bounds__(kThreads, 6)
    forward(Matrix<const T> x, ConvFilter parameters, const std::int64_t* position_of, Matrix<T> y) {
  wait_for_previous();
  __shared__ float shared[Filter<kTaps, kWidth>::kShared];
  __shared__ Vector<T, kWidth> ring[Rows<T, kWidth>::kShared];
  const Piece<kWidth> piece(x.rows, x.columns, kForwardTokens);
  Rows<T, kWidth> rows(x, piece, piece.tokens, ring);
  copy_first(rows);
  Window<kTaps, kWidth> window;
  window.fill(x, piece, position_of);
  Reach<kTaps> reach;
  const Filter<kTaps, kWidth> filter(parameters, piece, x.columns, shared);
  T* to = y.data + piece.begin * y.stride + piece.channel;
  for (int token = 0; token < piece.tokens; token += kBatch) {
    if (token % kWarp == 0) reach.look_up(position_of, piece.begin + token, x.rows);
    copy_ahead(rows);
    for_batch(reach, [&](int step, const auto& of_batch) {
      window.push(rows[step], !of_batch.has(step, 1));
      float result[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        const float sum = window.before_silu(filter, i);
        result[i] = sum * sigmoid(sum);
      }
      if (token + step < piece.stored_tokens) pack<T>(result).store(to);
      to += y.stride;
    });
    reach.advance();
    rows.next_batch();
  }
}

// What the backward collects while it walks.
template <int kTaps, int kWidth>
struct Gradients {
  float pending[kTaps][kWidth] = {};  // pending[back]: the gradient of the input `back` tokens earlier, so far
  float weight[kTaps][kWidth] = {}, bias[kWidth] = {};

  // Takes the next token. Its own piece alone adds it to the parameters' gradients.
  // has_before(back): whether the token `back` earlier belongs to the same sequence.
  template <bool kOwn, class T, class HasBefore>
  __device__ void add(const Filter<kTaps, kWidth>& filter, const Window<kTaps, kWidth>& window,
                      const Vector<T, kWidth>& output_grad, const HasBefore& has_before) {
    float grad[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      const float sum = window.before_silu(filter, i), share = sigmoid(sum);
      grad[i] = to_float(output_grad.values[i]) * (share + share * (sum - sum * share));
    }
    for (int back = kTaps - 1; back > 0; --back) {
      for (int i = 0; i < kWidth; ++i) pending[back][i] = pending[back - 1][i];
      if (has_before(back))
        for (int i = 0; i < kWidth; ++i) pending[back][i] += filter.weight[back][i] * grad[i];
    }
    for (int i = 0; i < kWidth; ++i) pending[0][i] = filter.weight[0][i] * grad[i];
    if constexpr (kOwn)
      for (int i = 0; i < kWidth; ++i) {
        for (int back = 0; back < kTaps; ++back) weight[back][i] += window.inputs[back][i] * grad[i];
        bias[i] += grad[i];
      }
  }

  // Adds the block's warps in order, and writes a row of partial sums.   partials: [taps + 1, C]
  __device__ void write_sums(const Piece<kWidth>& piece, std::int64_t channels, float* partials, float* shared) const {
    constexpr int kChannels = kWarp * kWidth;
    for (int warp = 0; warp < kWarps; ++warp) {
      __syncthreads();
      if (threadIdx.x / kWarp != warp) continue;
      float* own = shared + threadIdx.x % kWarp * kWidth;
      for (int i = 0; i < kWidth; ++i) {
        for (int back = 0; back < kTaps; ++back) {
          float& sum = own[back * kChannels + i];
          sum = weight[back][i] + (warp > 0 ? sum : 0);
        }
        float& sum = own[kTaps * kChannels + i];
        sum = bias[i] + (warp > 0 ? sum : 0);
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (kTaps + 1) * kChannels; i += kThreads)
      if (const std::int64_t channel = piece.first_channel + i % kChannels; channel < channels)
        partials[i / kChannels * channels + channel] = shared[i];
  }
};

// Recomputes the sums before silu. A piece's inputs also reach the first taps - 1 tokens of the next piece, so the warp
// walks on through these. partials: a row per block along the tokens
template <class T, int kWidth, int kTaps>
__global__ void __launch_bounds__(kThreads, 4)
    backward(Matrix<const T> grad, Matrix<const T> x, ConvFilter parameters, const std::int64_t* position_of,
             Matrix<T> x_grad, float* partials) {
  wait_for_previous();
  __shared__ float shared[Filter<kTaps, kWidth>::kShared];
  __shared__ Vector<T, kWidth> ring[2][Rows<T, kWidth>::kShared];
  const Piece<kWidth> piece(x.rows, x.columns, kBackwardTokens);
  const int reached = static_cast<int>(min(x.rows - piece.begin, std::int64_t{piece.tokens + kTaps - 1}));
  Rows<T, kWidth> inputs(x, piece, reached, ring[0]), output_grads(grad, piece, reached, ring[1]);
  copy_first(inputs, output_grads);
  Window<kTaps, kWidth> window;
  window.fill(x, piece, position_of);
  Reach<kTaps> reach;
  const Filter<kTaps, kWidth> filter(parameters, piece, x.columns, shared);
  Gradients<kTaps, kWidth> gradients;

  T* to = x_grad.data + (piece.begin - (kTaps - 1)) * x_grad.stride + piece.channel;
  const auto take = [&]<bool kOwn>(int token, int step, const auto& of_batch) {
    window.push(inputs[step], !of_batch.has(step, 1));
    gradients.template add<kOwn>(filter, window, output_grads[step],
                                 [&](int back) { return of_batch.has(step, back); });
    const int complete = token + step - (kTaps - 1);
    if (complete >= 0 && complete < piece.stored_tokens) pack<T>(gradients.pending[kTaps - 1]).store(to);
    to += x_grad.stride;
  };
  static_assert(kTaps - 1 <= kBatch, "one more batch has the tokens behind the piece");
  int token = 0;
  for (; token < piece.tokens; token += kBatch) {
    if (token % kWarp == 0) reach.look_up(position_of, piece.begin + token, x.rows);
    copy_ahead(inputs, output_grads);
    for_batch(reach, [&](int step, const auto& of_batch) { take.template operator()<true>(token, step, of_batch); });
    reach.advance();
    inputs.next_batch();
    output_grads.next_batch();
  }
  if (token % kWarp == 0) reach.look_up(position_of, piece.begin + token, x.rows);
  copy_ahead(inputs, output_grads);
#pragma unroll
  for (int step = 0; step < kTaps - 1; ++step) take.template operator()<false>(token, step, reach);
  gradients.write_sums(piece, x.columns, partials + piece.block * (kTaps + 1) * x.columns, shared);
}

// call.operator()<T, kWidth, kTaps>() for matrices that a thread reads some channels of.
template <class Call>
void with_taps(std::int64_t taps, std::initializer_list<Tensor> matrices, const Call& call) {
  const Tensor& x = *matrices.begin();
  with_type(x, [&]<class T>() {
    const auto sized = [&]<int kTaps>() {
      constexpr int kWidth = kPieceWidth<T>;
      if (are_aligned(matrices, kWidth * sizeof(T)) && x.columns() % kWidth == 0)
        call.template operator()<T, kWidth, kTaps>();
      else
        call.template operator()<T, 1, kTaps>();
    };
    if (taps == 2) sized.template operator()<2>();
    if (taps == 3) sized.template operator()<3>();
    if (taps == 4) sized.template operator()<4>();
  });
}

}  // namespace

void causal_conv_silu_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& position_of,
                              const Tensor& y, const Queue& queue) {
  with_taps(weight.columns(), {x, y}, [&]<class T, int kWidth, int kTaps>() {
    const std::int64_t blocks = blocks_for(x.rows(), kWarps * kForwardTokens) * blocks_for(x.columns(), kWarp * kWidth);
    launch_kernel(forward<T, kWidth, kTaps>, {blocks, kThreads, 0, queue}, x, ConvFilter{weight, bias}, position_of, y);
  });
}

void causal_conv_silu_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& bias,
                               const Tensor& position_of, const Tensor& x_grad, const Tensor& weight_grad,
                               const Tensor& bias_grad, const Queue& queue) {
  const int taps = static_cast<int>(weight.columns());
  const std::int64_t channels = x.columns(), pieces = blocks_for(x.rows(), kWarps * kBackwardTokens);
  float* const partials = queue.scratch<float>(pieces * (taps + 1) * channels);
  with_taps(taps, {x, grad, x_grad}, [&]<class T, int kWidth, int kTaps>() {
    launch_kernel(backward<T, kWidth, kTaps>, {pieces * blocks_for(channels, kWarp * kWidth), kThreads, 0, queue}, grad,
                  x, ConvFilter{weight, bias}, position_of, x_grad, partials);
  });
  const ConvFilter filter_grad = {weight_grad, bias_grad};
  const auto store = [=] __device__(std::int64_t column, float sum) {
    const std::int64_t back = column / channels, channel = column % channels;
    if (back < taps)
      set_value(filter_grad.weight, channel * taps + taps - 1 - back, sum);
    else if (filter_grad.bias.data)
      set_value(filter_grad.bias, channel, sum);
  };
  launch_sum_partial_rows(partials, pieces, (taps + 1) * channels, queue, store);
}

}  // namespace braid::kernels
