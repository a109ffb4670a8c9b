// Advice about keys that a config does not have, but another section of it does.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace braid {

inline constexpr const char* kUnknownKey = "unknown key";  // how YamlReader begins such a problem

// The dotted keys of the values that a YAML document sets; "" for a document that is one value.
std::vector<std::string> set_keys(const std::string& yaml);
// The same for the text of a YamlWriter, which also names keys without a value.
std::vector<std::string> dotted_keys(const std::string& yaml);

// The dotted key that has this name, with or without its section's: "log.interval" for "log_interval" and "interval".
// Nothing if several sections have it.
std::optional<std::string> key_named(const std::string& name, const std::vector<std::string>& all);

// Suggests such a key for each unknown one: "log.interval" for "train.log_interval"; or a longer name in its section,
// or a key that other programs call so. `all`: dotted keys.
void suggest_keys_elsewhere(std::vector<Problem>& problems, const std::vector<std::string>& all);

}  // namespace braid
