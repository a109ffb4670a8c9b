// Secrets pass by name: their values come from the environment and are never written to a file.
#pragma once

#include <string_view>

namespace braid {

bool names_a_secret(std::string_view variable);  // HF_TOKEN, WANDB_API_KEY, DB_PASSWORD

// ConfigError where a shell text gives such a variable a literal value.
void refuse_secrets(std::string_view text);

}  // namespace braid
