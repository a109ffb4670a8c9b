// Advice about keys that a config does not have, but another section of it does.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace braid {

inline constexpr const char* kUnknownKey = "unknown key";  // how YamlReader begins such a problem

// Of a YAML document's values.
std::vector<std::string> dotted_keys(const std::string& yaml);

// Suggests the key that has this name in another section, with or without its section's: "log.interval" for
// "train.log_interval" and "train.interval". `all`: dotted keys.
void suggest_keys_elsewhere(std::vector<Problem>& problems, const std::vector<std::string>& all);

}  // namespace braid
