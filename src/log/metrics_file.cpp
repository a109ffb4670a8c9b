#include "log/metrics_file.h"

#include <nlohmann/json.hpp>

namespace braid {
namespace {

// nlohmann's dump() already writes a number that is not finite as null.
template <class Number>
nlohmann::ordered_json or_null(const std::optional<Number>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : file_(path, AppendOnlyFile::Start::AtEnd) {
  if (file_.size() > 0 && file_.last_char() != '\n') file_.append("\n");
}

void MetricsFile::add(const StepRecord& step, const IterationTimes& times) {
  const nlohmann::ordered_json line = {
      {"iteration", step.iteration},
      {"consumed_samples", step.consumed_samples},
      {"lm_loss", or_null(step.lm_loss)},
      {"grad_norm", or_null(step.grad_norm)},
      {"learning_rate", or_null(step.learning_rate)},
      {"loss_scale", step.loss_scale},
      {"num_zeros", or_null(step.num_zeros)},
      {"seq_load_balancing_loss", or_null(step.seq_load_balancing_loss)},
      {"iteration_ms", times.iteration_ms},
      {"tokens_per_s", times.tokens_per_s},
      {"skipped", step.skipped},
      {"time", times.time},
      {"started", times.started},
  };
  file_.append(line.dump() + "\n");
}

}  // namespace braid
