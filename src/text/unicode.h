// Classes, case and normal forms of Unicode characters, as tokenizers use them. All functions except is_white_space
// need ICU; without it (no_icu.cpp) they throw a ConfigError.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace braid {

// Refuses a tokenizer that needs ICU, in a build without it.
void require_unicode_data(const std::string& needed_by);

enum class NormalForm { NFC, NFD, NFKC, NFKD };
// `text` is valid UTF-8.
std::string normal_form(std::string_view text, NormalForm form);

bool is_white_space(std::uint32_t code);
bool is_number(std::uint32_t code);       // categories Nd, Nl, No
bool is_punctuation(std::uint32_t code);  // categories P*, and all ASCII characters that are not letters, digits, space
bool is_combining_mark(std::uint32_t code);
bool is_word_character(std::uint32_t code);  // letters, marks, decimal digits, connectors: \w of Rust's regex
void append_lowercase(std::string& out, std::uint32_t code);

}  // namespace braid
