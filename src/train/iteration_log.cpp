#include "train/iteration_log.h"

#include <fmt/chrono.h>

#include <cmath>
#include <ctime>

namespace braid {
namespace {

std::string timestamp(std::chrono::system_clock::time_point time) {
  const auto since_epoch = std::chrono::floor<std::chrono::microseconds>(time.time_since_epoch());
  const auto whole_seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  const std::time_t seconds = whole_seconds.count();
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:06}", local, (since_epoch - whole_seconds).count());
}

}  // namespace

std::string to_line(const IterationRecord& record) {
  std::string line = fmt::format(
      " [{}] iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per iteration (ms): {:.1f} |",
      timestamp(record.time), record.iteration, record.iterations, record.consumed_samples, record.elapsed_ms);
  if (record.learning_rate) line += fmt::format(" learning rate: {:.6E} |", *record.learning_rate);
  line += fmt::format(" global batch size: {:5d} |", record.global_batch);
  if (record.lm_loss) line += fmt::format(" lm loss: {:.6E} |", *record.lm_loss);
  line += fmt::format(" loss scale: {:.1f} |", record.loss_scale);
  if (record.grad_norm) line += fmt::format(" grad norm: {:.3f} |", *record.grad_norm);
  if (record.num_zeros) line += fmt::format(" num zeros: {} |", *record.num_zeros);
  return line + fmt::format(" number of skipped iterations: {:3d} | number of nan iterations: {:3d} |",
                            record.skipped_iterations, record.nan_iterations);
}

IterationLog::IterationLog(const Config& config, const Moment& start)
    : config_(config), interval_{.since = start.steady} {}

std::optional<IterationRecord> IterationLog::add(const IterationOutcome& outcome, const Moment& now) {
  ++interval_.iterations;
  if (outcome.skipped) ++interval_.skipped;
  if (outcome.lm_loss && !std::isfinite(*outcome.lm_loss)) {
    ++interval_.nans;
  } else if (outcome.lm_loss && !outcome.skipped) {
    interval_.loss_sum += *outcome.lm_loss;
    ++interval_.finite_losses;
  }
  if (outcome.iteration % config_.log_interval != 0 && outcome.iteration != config_.iterations) return std::nullopt;
  const IterationRecord record = record_of(outcome, now);
  interval_ = {.since = now.steady};
  return record;
}

IterationRecord IterationLog::record_of(const IterationOutcome& last, const Moment& now) const {
  const double elapsed_ms = std::chrono::duration<double, std::milli>(now.steady - interval_.since).count();
  return {.time = now.wall,
          .iteration = last.iteration,
          .iterations = config_.iterations,
          .consumed_samples = last.consumed_samples,
          .elapsed_ms = elapsed_ms / interval_.iterations,
          .learning_rate = last.learning_rate,
          .global_batch = config_.global_batch,
          .lm_loss = interval_.finite_losses > 0 ? interval_.loss_sum / interval_.finite_losses : last.lm_loss,
          .loss_scale = last.loss_scale,
          .grad_norm = last.grad_norm,
          .num_zeros = last.num_zeros,
          .skipped_iterations = interval_.skipped,
          .nan_iterations = interval_.nans};
}

}  // namespace braid
