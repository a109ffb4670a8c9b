// Secrets are passed by name: their values come from the environment and are never written to a file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace braid {

bool names_a_secret(std::string_view variable);  // HF_TOKEN, WANDB_API_KEY, DB_PASSWORD

// Describes the secret that a text contains: the value of such a variable of this process, or something that looks like
// a token.
std::optional<std::string> secret_in(std::string_view text);

// ConfigError if a shell text contains one, or gives such a variable or option (--hf-token) a literal value.
void refuse_secrets(std::string_view text);

}  // namespace braid
