// Checks that a batch is complete and consistent, so that a faulty source ends a run with an error that names it.
#pragma once

#include <cstdint>

#include "data/batch.h"
#include "models/providers.h"

namespace braid {

// DataError otherwise. `samples`: of the replica, in this microbatch; `encoders`: how many the topology has.
void check_batch(const LanguageBatch& batch, std::int64_t samples, std::size_t encoders);
void check_batch(const EncoderBatch& batch, std::int64_t samples, const EncoderConfig& config);

}  // namespace braid
