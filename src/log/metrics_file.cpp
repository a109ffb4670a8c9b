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

void MetricsFile::add(const IterationMetrics& metrics) {
  const nlohmann::ordered_json line = {
      {"iteration", metrics.iteration},
      {"consumed_samples", metrics.consumed_samples},
      {"lm_loss", or_null(metrics.lm_loss)},
      {"grad_norm", or_null(metrics.grad_norm)},
      {"learning_rate", or_null(metrics.learning_rate)},
      {"loss_scale", or_null(metrics.loss_scale)},
      {"num_zeros", or_null(metrics.num_zeros)},
      {"seq_load_balancing_loss", or_null(metrics.seq_load_balancing_loss)},
      {"iteration_ms", metrics.iteration_ms},
      {"tokens_per_s", metrics.tokens_per_s},
      {"skipped", metrics.skipped},
      {"time", metrics.time},
      {"started", metrics.started},
  };
  file_.append(line.dump() + "\n");
}

}  // namespace braid
