#include "log/iteration_log.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <ctime>

namespace braid {
namespace {

std::string timestamp(std::chrono::system_clock::time_point time) {
  const auto since_epoch = std::chrono::floor<std::chrono::microseconds>(time.time_since_epoch());
  const auto whole_seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:06}", fmt::localtime(std::time_t{whole_seconds.count()}),
                     (since_epoch - whole_seconds).count());
}

// Python prints NaN without a sign, and tools expect that.
double plain(double value) { return std::isnan(value) ? std::abs(value) : value; }

}  // namespace

std::string to_line(const IterationRecord& record) {
  const StepRecord& step = record.step;
  std::string line =
      fmt::format(" [{}] iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per iteration (ms): {:.1f} |",
                  timestamp(record.time), step.iteration, record.iterations, step.consumed_samples, record.elapsed_ms);
  if (record.tflops_per_device)
    line += fmt::format(" throughput per {0} (TFLOP/s/{0}): {1:.1f} |", record.device, *record.tflops_per_device);
  if (record.tokens_per_device)
    line += fmt::format(" tokens per {0} (tokens/s/{0}): {1:.1f} |", record.device, *record.tokens_per_device);
  if (step.learning_rate) line += fmt::format(" learning rate: {:.6E} |", *step.learning_rate);
  line += fmt::format(" global batch size: {:5d} |", record.global_batch);
  if (step.lm_loss) line += fmt::format(" lm loss: {:.6E} |", plain(*step.lm_loss));
  if (step.seq_load_balancing_loss)
    line += fmt::format(" seq_load_balancing_loss: {:.6E} |", plain(*step.seq_load_balancing_loss));
  line += fmt::format(" loss scale: {:.1f} |", step.loss_scale);
  if (step.grad_norm) line += fmt::format(" grad norm: {:.3f} |", plain(*step.grad_norm));
  if (step.num_zeros) line += fmt::format(" num zeros: {} |", *step.num_zeros);
  line += fmt::format(" number of skipped iterations: {:3d} | number of nan iterations: {:3d} |",
                      record.skipped_iterations, record.nan_iterations);
  if (record.without_targets > 0)
    line += fmt::format(" iterations with nothing to predict: {:3d} |", record.without_targets);
  return line;
}

void IterationLog::Mean::add(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return;
  sum += *value;
  ++count;
}

std::optional<IterationRecord> IterationLog::add(const StepRecord& step, const Moment& now) {
  last_step_ = step;
  ++interval_.iterations;
  interval_.tokens += step.num_tokens;
  if (step.lm_loss && !std::isfinite(*step.lm_loss)) ++interval_.nans;
  if (!step.lm_loss) ++interval_.without_targets;
  if (step.skipped) {
    ++interval_.skipped;
  } else {
    interval_.lm_loss.add(step.lm_loss);
    interval_.seq_load_balancing_loss.add(step.seq_load_balancing_loss);
  }
  const bool is_last = step.last || step.iteration == facts_.iterations;
  return closes_interval(log_interval_, step.iteration, is_last) ? close(now) : std::nullopt;
}

std::optional<IterationRecord> IterationLog::close(const Moment& now) {
  if (interval_.iterations == 0) return std::nullopt;
  const IterationRecord record = record_of(last_step_, now);
  interval_ = {.since = now.steady};
  return record;
}

IterationRecord IterationLog::record_of(const StepRecord& last, const Moment& now) const {
  const double elapsed_s = std::chrono::duration<double>(now.steady - interval_.since).count();
  const auto per_device = [&](double done) {
    return done > 0 && elapsed_s > 0 ? std::optional(done / elapsed_s / facts_.ranks) : std::nullopt;
  };
  IterationRecord record = {.step = last,
                            .time = now.wall,
                            .iterations = facts_.iterations,
                            .elapsed_ms = 1e3 * elapsed_s / interval_.iterations,
                            .tflops_per_device = per_device(1e-12 * facts_.flops_per_iteration * interval_.iterations),
                            .tokens_per_device = per_device(interval_.tokens),
                            .device = facts_.device,
                            .global_batch = facts_.global_batch,
                            .skipped_iterations = interval_.skipped,
                            .nan_iterations = interval_.nans,
                            .without_targets = interval_.without_targets};
  record.step.lm_loss = interval_.lm_loss.value_or(last.lm_loss);
  record.step.seq_load_balancing_loss = interval_.seq_load_balancing_loss.value_or(last.seq_load_balancing_loss);
  return record;
}

double perplexity(double loss) { return std::exp(std::min(20.0, loss)); }

std::string to_lines(const EvaluationRecord& record) {
  const std::string line = fmt::format(
      " validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | right tokens: {:.1f} % "
      "| right answers: {:.1f} % | ",
      record.iteration, record.lm_loss, perplexity(record.lm_loss), 100 * record.right_tokens,
      100 * record.right_answers);
  const std::string frame(line.size() + 1, '-');
  return fmt::format("{0}\n{1}\n{0}\n", frame, line);
}

}  // namespace braid
