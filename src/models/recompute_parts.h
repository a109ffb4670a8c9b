// What there is to compute again in backward (model.recompute) depends on a model's layers. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "models/providers.h"

namespace braid {

// The recompute_names() that change something for this language model, together with its encoders if it has any.
std::vector<std::string> recompute_parts(const LanguageConfig& language, bool has_encoders);

}  // namespace braid
