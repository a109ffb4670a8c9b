// A team of 1, 4 or 16 warps holds one group of one row in registers, 16 channels per thread, and walks along the rows.
// A block has four teams of one warp or one larger team, all with the same group.
#include "kernels/device.cuh"
#include "kernels/mamba.h"

namespace braid::kernels {
namespace {

constexpr int kValues = 16;                          // per thread
constexpr int kForwardRows = 8, kBackwardRows = 64;  // per block

template <class T, int kWidth>
struct Values {
  Vector<T, kWidth> vectors[kValues / kWidth];

  __device__ float operator[](int i) const { return to_float(vectors[i / kWidth].values[i % kWidth]); }
  __device__ void forget() {
    for (Vector<T, kWidth>& vector : vectors) kernels::forget(vector);
  }
};

// A thread's channels of its block's group, and its team's rows.
template <class T, int kWidth, int kTeamWarps>
struct Team {
  static constexpr int kSize = kTeamWarps * kWarp, kTeams = kTeamWarps == 1 ? 4 : 1, kThreads = kTeams * kSize;
  int size, index, thread;  // of the group, in the block, in the team
  std::int64_t group, block, begin, end;

  __device__ Team(std::int64_t rows, std::int64_t columns, std::int64_t groups, int rows_per_block)
      : size(static_cast<int>(columns / groups)), index(threadIdx.x / kSize), thread(threadIdx.x % kSize) {
    group = blockIdx.x % groups;
    block = blockIdx.x / groups;
    begin = block * rows_per_block + index;
    end = min(rows, (block + 1) * rows_per_block);
  }

  // In the group.
  __device__ int channel(int value) const { return (value / kWidth * kSize + thread) * kWidth + value % kWidth; }
  __device__ bool has(int value) const { return channel(value) < size; }
  __device__ std::int64_t column(int value) const { return group * size + channel(value); }

  __device__ Values<T, kWidth> load(const Matrix<const T>& x, std::int64_t row) const {
    Values<T, kWidth> values = {};
    for (int i = 0; i < kValues; i += kWidth)
      if (has(i)) values.vectors[i / kWidth] = Vector<T, kWidth>::load(x.data + row * x.stride + column(i));
    return values;
  }
  __device__ void store(const Matrix<T>& x, std::int64_t row, int first, const float (&values)[kWidth]) const {
    if (has(first)) pack<T>(values).store(x.data + row * x.stride + column(first));
  }
  __device__ float load(const Parameter& parameter, int value) const {
    return has(value) ? value_at(parameter, column(value)) : 0;
  }

  __device__ static float sum(float x) {
    if constexpr (kTeamWarps == 1) return warp_sum(x);
    __shared__ float scratch[kTeamWarps];
    const float sum = block_sum(x, scratch);
    __syncthreads();
    return sum;
  }
};

template <class T, int kWidth, int kTeamWarps>
__global__ void __launch_bounds__(Team<T, kWidth, kTeamWarps>::kThreads)
    forward(Matrix<const T> y, Matrix<const T> z, Parameter weight, std::int64_t groups, float eps, Matrix<T> out,
            float* inverse_root) {
  wait_for_previous();
  using OwnTeam = Team<T, kWidth, kTeamWarps>;
  const OwnTeam team(y.rows, y.columns, groups, kForwardRows);
  float weights[kValues];
  for (int i = 0; i < kValues; ++i) weights[i] = team.load(weight, i);
  for (std::int64_t row = team.begin; row < team.end; row += OwnTeam::kTeams) {
    const Values<T, kWidth> ys = team.load(y, row), zs = team.load(z, row);
    float gated[kValues], squares = 0;
    for (int i = 0; i < kValues; ++i) {
      gated[i] = ys[i] * zs[i] * sigmoid(zs[i]);
      squares += gated[i] * gated[i];
    }
    const float root = rsqrtf(OwnTeam::sum(squares) / team.size + eps);
    for (int first = 0; first < kValues; first += kWidth) {
      float normed[kWidth];
      for (int i = 0; i < kWidth; ++i) normed[i] = gated[first + i] * root * weights[first + i];
      team.store(out, row, first, normed);
    }
    if (team.thread == 0) inverse_root[row * groups + team.group] = root;
  }
}

// The sum of all teams of the block, in order, in the last team's `values`. shared: an element per value and thread of
// a team
template <class OwnTeam>
__device__ void sum_teams(const OwnTeam& team, float (&values)[kValues], float* shared) {
  for (int turn = 0; turn < OwnTeam::kTeams; ++turn) {
    __syncthreads();
    if (team.index != turn) continue;
    for (int i = 0; i < kValues; ++i) {
      float& sum = shared[i * OwnTeam::kSize + team.thread];
      if (turn > 0) values[i] += sum;
      sum = values[i];
    }
  }
}

// A thread's channels of a row.
template <class T, int kWidth>
struct BackwardRow {
  Values<T, kWidth> grad, y, z;
  float root;
};

// The rows of a team, which its threads read one after the other. Teams of one warp copy rows of bf16 to shared memory
// ahead of their use; others would need too much of it.
template <class T, int kWidth, int kTeamWarps>
struct BackwardRows {
  static constexpr bool kAhead = kTeamWarps == 1 && sizeof(T) == 2 && kWidth == kVectorWidth<T>;
  static constexpr int kStages = kAhead ? 3 : 1, kVectors = kAhead ? kValues / kWidth : 1;
  struct Stage {
    Vector<T, kWidth> vectors[3][kVectors][kWarp];
    float root[kWarp];
  };

  const Team<T, kWidth, kTeamWarps>& team;
  Matrix<const T> matrices[3];  // grad, y, z
  const float* inverse_root;
  std::int64_t groups;
  Stage* stages;  // of the team

  __device__ const float* root_of(std::int64_t row) const { return inverse_root + row * groups + team.group; }

  __device__ void copy(std::int64_t row, int stage) const {
    for (int i = 0; i < 3 * kVectors; ++i) {
      const Matrix<const T>& from = matrices[i / kVectors];
      const int first = i % kVectors * kWidth;
      __pipeline_memcpy_async(&stages[stage].vectors[i / kVectors][i % kVectors][team.thread],
                              from.data + row * from.stride + team.column(first), 16, team.has(first) ? 0 : 16);
    }
    __pipeline_memcpy_async(&stages[stage].root[team.thread], root_of(row), sizeof(float));
  }
  __device__ BackwardRow<T, kWidth> read(std::int64_t row, int stage) const {
    BackwardRow<T, kWidth> held;
    if constexpr (kAhead) {
      for (int i = 0; i < kVectors; ++i) {
        held.grad.vectors[i] = stages[stage].vectors[0][i][team.thread];
        held.y.vectors[i] = stages[stage].vectors[1][i][team.thread];
        held.z.vectors[i] = stages[stage].vectors[2][i][team.thread];
      }
      held.root = stages[stage].root[team.thread];
    } else {
      held = {team.load(matrices[0], row), team.load(matrices[1], row), team.load(matrices[2], row), *root_of(row)};
    }
    return held;
  }
  // The same row once more: what was computed from it need not stay in registers.
  __device__ void read_again(BackwardRow<T, kWidth>& held, std::int64_t row, int stage) const {
    if constexpr (kAhead) {
      asm volatile("" ::: "memory");
      held = read(row, stage);
    } else {
      held.grad.forget();
      held.y.forget();
      held.z.forget();
    }
  }
};

// With n = y silu(z) root and d = grad weight: the gradient of y silu(z) is (d - n mean(d n)) root. The weights are in
// shared memory, because registers limit how many rows are on their way.
// partials: a row per block along the rows
template <class T, int kWidth, int kTeamWarps>
__global__ void __launch_bounds__(Team<T, kWidth, kTeamWarps>::kThreads, kTeamWarps == 1 ? 4 : 1)
    backward(Matrix<const T> grad, Matrix<const T> y, Matrix<const T> z, Parameter weight, std::int64_t groups,
             const float* inverse_root, Matrix<T> y_grad, Matrix<T> z_grad, float* partials) {
  wait_for_previous();
  using OwnTeam = Team<T, kWidth, kTeamWarps>;
  using Rows = BackwardRows<T, kWidth, kTeamWarps>;
  __shared__ typename Rows::Stage stages[OwnTeam::kTeams * Rows::kStages];
  __shared__ Vector<float, 4> shared[kValues / 4 * OwnTeam::kSize];
  const OwnTeam team(y.rows, y.columns, groups, kBackwardRows);
  const Rows rows = {team, {grad, y, z}, inverse_root, groups, stages + team.index * Rows::kStages};
  const auto row_at = [&](std::int64_t i) { return team.begin + i * OwnTeam::kTeams; };
  for (int i = team.index; i < kValues; i += OwnTeam::kTeams)
    shared[i / 4 * OwnTeam::kSize + team.thread].values[i % 4] = team.load(weight, i);
  __syncthreads();
  const float inverse_size = 1.f / team.size;
  float weight_grad[kValues] = {};
  const auto take_row = [&](std::int64_t i, int stage) {
    const std::int64_t row = row_at(i);
    BackwardRow<T, kWidth> held = rows.read(row, stage);
    const float root = held.root;
    float shares[kValues], along = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      shares[i] = sigmoid(held.z[i]);
      const float slope = held.grad[i] * (held.y[i] * (held.z[i] * shares[i]));
      weight_grad[i] += slope * root;
      along += slope * shared[i / 4 * OwnTeam::kSize + team.thread].values[i % 4];
    }
    along = OwnTeam::sum(along) * (root * root * inverse_size);
    rows.read_again(held, row, stage);
#pragma unroll
    for (int first = 0; first < kValues; first += kWidth) {
      float y_grads[kWidth], z_grads[kWidth];
#pragma unroll
      for (int i = first; i < first + kWidth; ++i) {
        const float share = shares[i], silu = held.z[i] * share;
        const float weight_at = shared[i / 4 * OwnTeam::kSize + team.thread].values[i % 4];
        const float gated_grad = (held.grad[i] * weight_at - held.y[i] * silu * along) * root;
        y_grads[i - first] = gated_grad * silu;
        z_grads[i - first] = gated_grad * held.y[i] * (share + silu * (1 - share));
      }
      team.store(y_grad, row, first, y_grads);
      team.store(z_grad, row, first, z_grads);
    }
  };
  const std::int64_t count = blocks_for(max(team.end - team.begin, std::int64_t{0}), OwnTeam::kTeams);
  if constexpr (Rows::kAhead)
    pipeline<Rows::kStages>(
        count, [&](std::int64_t i, int stage) { rows.copy(row_at(i), stage); }, take_row);
  else
    for (std::int64_t i = 0; i < count; ++i) take_row(i, 0);
  sum_teams(team, weight_grad, &shared[0].values[0]);
  if (team.index < OwnTeam::kTeams - 1) return;
  for (int i = 0; i < kValues; ++i)
    if (team.has(i)) partials[team.block * y.columns + team.column(i)] = weight_grad[i];
}

// call.operator()<T, kWidth, kTeamWarps>()
template <class Call>
void with_team(std::int64_t group_size, std::initializer_list<Tensor> matrices, const Call& call) {
  with_vectors(group_size, matrices, [&]<class T, int kWidth>() {
    if (group_size <= kValues * kWarp)
      call.template operator()<T, kWidth, 1>();
    else if (group_size <= 4 * kValues * kWarp)
      call.template operator()<T, kWidth, 4>();
    else
      call.template operator()<T, kWidth, 16>();
  });
}

}  // namespace

void gated_rms_norm_forward(const Tensor& y, const Tensor& z, const Tensor& weight, std::int64_t groups, float eps,
                            const Tensor& out, const Tensor& inverse_root, const Queue& queue) {
  const std::int64_t blocks = blocks_for(y.rows(), kForwardRows) * groups;
  with_team(y.columns() / groups, {y, z, out}, [&]<class T, int kWidth, int kTeamWarps>() {
    constexpr int kThreads = Team<T, kWidth, kTeamWarps>::kThreads;
    launch_kernel(forward<T, kWidth, kTeamWarps>, {blocks, kThreads, 0, queue}, y, z, weight, groups, eps, out,
                  inverse_root);
  });
}

void gated_rms_norm_backward(const Tensor& grad, const Tensor& y, const Tensor& z, const Tensor& weight,
                             std::int64_t groups, const Tensor& inverse_root, const Tensor& y_grad,
                             const Tensor& z_grad, const Tensor& weight_grad, const Queue& queue) {
  const std::int64_t blocks = blocks_for(y.rows(), kBackwardRows);
  float* const partials = queue.scratch<float>(blocks * y.columns());
  const auto launch = [&]<class T, int kWidth, int kTeamWarps>() {
    constexpr int kThreads = Team<T, kWidth, kTeamWarps>::kThreads;
    launch_kernel(backward<T, kWidth, kTeamWarps>, {blocks * groups, kThreads, 0, queue}, grad, y, z, weight, groups,
                  inverse_root, y_grad, z_grad, partials);
  };
  with_team(y.columns() / groups, {grad, y, z, y_grad, z_grad}, launch);
  const Parameter to = weight_grad;
  const auto store = [=] __device__(std::int64_t column, float sum) { set_value(to, column, sum); };
  launch_sum_partial_rows(partials, blocks, y.columns(), queue, store);
}

}  // namespace braid::kernels
