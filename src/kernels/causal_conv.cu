// Each warp walks along the tokens of one piece with kWarp * kWidth channels, kWidth per thread, and keeps the filter
// and the last inputs in registers. The warps of a block have the same channels and consecutive pieces. Rows of a batch
// of tokens are loaded while the batch before is computed.
#include "kernels/causal_conv.h"
#include "kernels/parameter.cuh"

namespace braid::kernels {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kBatch = 4;
constexpr int kForwardTokens = 32, kBackwardTokens = 64;  // of a piece; multiples of kWarp

__device__ float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }

// A thread's channels and its warp's tokens.
template <int kWidth>
struct Piece {
  std::int64_t block, first_channel, channel, begin, end;
  bool has_channels;

  __device__ Piece(std::int64_t tokens, std::int64_t channels, int length) {
    const std::int64_t blocks_across = (channels + kWarp * kWidth - 1) / (kWarp * kWidth);
    block = blockIdx.x / blocks_across;
    first_channel = blockIdx.x % blocks_across * (kWarp * kWidth);
    channel = first_channel + threadIdx.x % kWarp * kWidth;
    has_channels = channel < channels;
    begin = min(tokens, (block * kWarps + threadIdx.x / kWarp) * length);
    end = min(tokens, begin + length);
  }

  // A thread's elements of a row; zeros where the matrix has none.
  template <class T>
  __device__ Vector<T, kWidth> load(const Matrix<const T>& x, std::int64_t row) const {
    if (has_channels && row >= 0 && row < x.rows) return Vector<T, kWidth>::load(x.data + row * x.stride + channel);
    return {};
  }
};

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
  __device__ bool has(int back) const { return bits[back] & 1; }
  __device__ void advance() {
    for (int back = 1; back < kTaps; ++back) bits[back] >>= 1;
  }
};

// The inputs of a token and of those before it; inputs[back] is zero where the token before is of another sequence.
template <int kTaps, int kWidth>
struct Window {
  float inputs[kTaps][kWidth] = {};

  template <class T>
  __device__ void fill(const Matrix<const T>& x, const Piece<kWidth>& piece, const std::int64_t* position_of) {
    const std::int64_t position = piece.begin < piece.end ? position_of[piece.begin] : 0;
    for (int back = 1; back < kTaps; ++back) {
      const Vector<T, kWidth> row = piece.load(x, position >= back ? piece.begin - back : -1);
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

template <class T, int kWidth>
struct Batch {
  Vector<T, kWidth> rows[kBatch];

  __device__ Batch(const Matrix<const T>& x, const Piece<kWidth>& piece, std::int64_t begin, std::int64_t end) {
    for (int i = 0; i < kBatch; ++i) rows[i] = piece.load(x, begin + i < end ? begin + i : -1);
  }
};

template <class T, int kWidth, int kTaps>
__global__ void __launch_bounds__(kThreads)
    forward(Matrix<const T> x, ConvFilter parameters, const std::int64_t* position_of, Matrix<T> y) {
  __shared__ float shared[Filter<kTaps, kWidth>::kShared];
  const Piece<kWidth> piece(x.rows, x.columns, kForwardTokens);
  Batch<T, kWidth> batch(x, piece, piece.begin, piece.end);
  Window<kTaps, kWidth> window;
  window.fill(x, piece, position_of);
  Reach<kTaps> reach;
  const Filter<kTaps, kWidth> filter(parameters, piece, x.columns, shared);
  for (std::int64_t token = piece.begin; token < piece.end; token += kBatch) {
    if ((token - piece.begin) % kWarp == 0) reach.look_up(position_of, token, x.rows);
    const Batch<T, kWidth> next(x, piece, token + kBatch, piece.end);
#pragma unroll
    for (int step = 0; step < kBatch; ++step) {
      window.push(batch.rows[step], !reach.has(1));
      reach.advance();
      Vector<T, kWidth> result;
      for (int i = 0; i < kWidth; ++i) {
        const float sum = window.before_silu(filter, i);
        result.values[i] = from_float<T>(sum * sigmoid(sum));
      }
      if (piece.has_channels && token + step < piece.end)
        result.store(y.data + (token + step) * y.stride + piece.channel);
    }
    batch = next;
  }
}

// What the backward collects while it walks.
template <int kTaps, int kWidth>
struct Gradients {
  float pending[kTaps][kWidth] = {};  // pending[back]: the gradient of the input `back` tokens earlier, so far
  float weight[kTaps][kWidth] = {}, bias[kWidth] = {};

  // Takes the next token. Its own piece alone adds it to the parameters' gradients.
  template <bool kOwn>
  __device__ void add(const Filter<kTaps, kWidth>& filter, const Window<kTaps, kWidth>& window,
                      const float* output_grad, const Reach<kTaps>& reach) {
    float grad[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      const float sum = window.before_silu(filter, i), share = sigmoid(sum);
      grad[i] = output_grad[i] * (share + share * (sum - sum * share));
    }
    for (int back = kTaps - 1; back > 0; --back) {
      for (int i = 0; i < kWidth; ++i) pending[back][i] = pending[back - 1][i];
      if (reach.has(back))
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
__global__ void __launch_bounds__(kThreads)
    backward(Matrix<const T> grad, Matrix<const T> x, ConvFilter parameters, const std::int64_t* position_of,
             Matrix<T> x_grad, float* partials) {
  __shared__ float shared[Filter<kTaps, kWidth>::kShared];
  const Piece<kWidth> piece(x.rows, x.columns, kBackwardTokens);
  const std::int64_t last = piece.begin < piece.end ? min(x.rows, piece.end + kTaps - 1) : 0;
  Batch<T, kWidth> inputs(x, piece, piece.begin, last), output_grads(grad, piece, piece.begin, last);
  Window<kTaps, kWidth> window;
  window.fill(x, piece, position_of);
  Reach<kTaps> reach;
  const Filter<kTaps, kWidth> filter(parameters, piece, x.columns, shared);
  Gradients<kTaps, kWidth> gradients;

  const auto take = [&]<bool kOwn>(std::int64_t token, int step) {
    window.push(inputs.rows[step], !reach.has(1));
    float output_grad[kWidth];
    for (int i = 0; i < kWidth; ++i) output_grad[i] = to_float(output_grads.rows[step].values[i]);
    gradients.template add<kOwn>(filter, window, output_grad, reach);
    reach.advance();
    const std::int64_t complete = token - (kTaps - 1);
    if (complete < piece.begin || complete >= piece.end || !piece.has_channels) return;
    Vector<T, kWidth> result;
    for (int i = 0; i < kWidth; ++i) result.values[i] = from_float<T>(gradients.pending[kTaps - 1][i]);
    result.store(x_grad.data + complete * x_grad.stride + piece.channel);
  };
  std::int64_t token = piece.begin;
  for (; token < piece.end; token += kBatch) {
    if ((token - piece.begin) % kWarp == 0) reach.look_up(position_of, token, x.rows);
    const Batch<T, kWidth> next_inputs(x, piece, token + kBatch, last), next_grads(grad, piece, token + kBatch, last);
#pragma unroll
    for (int step = 0; step < kBatch; ++step) take.template operator()<true>(token + step, step);
    inputs = next_inputs;
    output_grads = next_grads;
  }
  if ((token - piece.begin) % kWarp == 0) reach.look_up(position_of, token, x.rows);
#pragma unroll
  for (int step = 0; step < kTaps - 1; ++step) take.template operator()<false>(token + step, step);
  gradients.write_sums(piece, x.columns, partials + piece.block * (kTaps + 1) * x.columns, shared);
}

// call.operator()<kTaps>() for the filter's number of taps.
template <class Call>
void with_taps(int taps, const Call& call) {
  if (taps == 2) call.template operator()<2>();
  if (taps == 3) call.template operator()<3>();
  if (taps == 4) call.template operator()<4>();
}

template <class T>
bool has_vectors(const Matrix<T>& x) {
  return is_aligned(x.data, x.stride) && x.columns % kVectorWidth<T> == 0;
}

unsigned blocks_of(std::int64_t tokens, std::int64_t channels, int length, int width) {
  return static_cast<unsigned>(blocks_for(tokens, kWarps * length) * blocks_for(channels, kWarp * width));
}

}  // namespace

template <class T>
void causal_conv_silu_forward(Matrix<const T> x, const ConvFilter& filter, const std::int64_t* position_of, Matrix<T> y,
                              cudaStream_t stream) {
  if (x.rows == 0 || x.columns == 0) return;
  with_taps(filter.taps, [&]<int kTaps>() {
    const auto launch = [&]<int kWidth>() {
      const unsigned blocks = blocks_of(x.rows, x.columns, kForwardTokens, kWidth);
      forward<T, kWidth, kTaps><<<blocks, kThreads, 0, stream>>>(x, filter, position_of, y);
    };
    if (has_vectors(x) && has_vectors(y))
      launch.template operator()<kVectorWidth<T>>();
    else
      launch.template operator()<1>();
  });
}

std::int64_t causal_conv_partials(std::int64_t tokens) { return blocks_for(tokens, kWarps * kBackwardTokens); }

template <class T>
void causal_conv_silu_backward(Matrix<const T> grad, Matrix<const T> x, const ConvFilter& filter,
                               const std::int64_t* position_of, Matrix<T> x_grad, float* partials,
                               const ConvFilter& filter_grad, cudaStream_t stream) {
  const int taps = filter.taps;
  const std::int64_t channels = x.columns;
  with_taps(taps, [&]<int kTaps>() {
    const auto launch = [&]<int kWidth>() {
      const unsigned blocks = blocks_of(x.rows, channels, kBackwardTokens, kWidth);
      if (blocks > 0)
        backward<T, kWidth, kTaps><<<blocks, kThreads, 0, stream>>>(grad, x, filter, position_of, x_grad, partials);
    };
    if (has_vectors(grad) && has_vectors(x) && has_vectors(x_grad))
      launch.template operator()<4>();  // more would need too many registers
    else
      launch.template operator()<1>();
  });
  const auto store = [=] __device__(std::int64_t column, float sum) {
    const std::int64_t back = column / channels, channel = column % channels;
    if (back < taps)
      set_value(filter_grad.weight, channel * taps + taps - 1 - back, sum);
    else if (filter_grad.bias.data)
      set_value(filter_grad.bias, channel, sum);
  };
  launch_sum_rows(partials, causal_conv_partials(x.rows), (taps + 1) * channels, stream, store);
}

#define BRAID_CAUSAL_CONV(T)                                                                                        \
  template void causal_conv_silu_forward(Matrix<const T>, const ConvFilter&, const std::int64_t*, Matrix<T>,        \
                                         cudaStream_t);                                                             \
  template void causal_conv_silu_backward(Matrix<const T>, Matrix<const T>, const ConvFilter&, const std::int64_t*, \
                                          Matrix<T>, float*, const ConvFilter&, cudaStream_t);
BRAID_CAUSAL_CONV(float)
BRAID_CAUSAL_CONV(__nv_bfloat16)
#undef BRAID_CAUSAL_CONV

}  // namespace braid::kernels
