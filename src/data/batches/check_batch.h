// Checks that a batch is complete and consistent, so that a faulty source ends a run with an error that names it.
#pragma once

#include <cstdint>

#include "data/batches/batch.h"
#include "models/providers.h"

namespace braid {

struct LanguageExpects {
  std::size_t encoders = 0;  // of the topology
  std::int64_t vocabulary = 0;
};

// DataError otherwise. `samples`: of the replica, in this microbatch.
void check_batch(const LanguageBatch& batch, std::int64_t samples, const LanguageExpects& expected);
void check_batch(const EncoderBatch& batch, std::int64_t samples, const EncoderConfig& config);

}  // namespace braid
