// Classes, case and normal forms of characters, as tokenizers use them. Normal forms need ICU; without it (no_icu.cpp)
// they throw a ConfigError.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace braid {

// Refuses a tokenizer that needs ICU, in a build without it.
void require_normal_forms(const std::string& needed_by);

enum class NormalForm { NFC, NFD, NFKC, NFKD };
// `text` is valid UTF-8. Characters that Unicode added after version 9 stay as they are: Hugging Face's tokenizers do
// not know them.
std::string normal_form(std::string_view text, NormalForm form);

bool is_white_space(std::uint32_t code);
bool is_word_character(std::uint32_t code);  // \w of Rust's regex
void append_lowercase(std::string& out, std::uint32_t code);

}  // namespace braid
