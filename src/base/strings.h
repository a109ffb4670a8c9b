// Text: splitting, numbers, advice about misspelt words, and values formatted for people.
#pragma once

#include "base/ranges.h"

namespace braid {

std::vector<std::string> split(std::string_view text, char separator);

// The whole text as a decimal integer, or nothing.
std::optional<int> parse_int(std::string_view text);
std::optional<std::int64_t> parse_int64(std::string_view text);
std::optional<double> parse_double(std::string_view text);  // "nan" and "inf" too

bool contains(const std::vector<std::string>& words, std::string_view word);

// The candidate the user most likely meant, or nothing when none is close. By default close means at most two edits or
// half of the word.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates,
                                   std::optional<std::size_t> most_edits = std::nullopt);

// What to write instead of a word that is not one of the choices: "did you mean 'cosine'?", or "use linear or cosine"
// where the word is short or equally close to several.
std::string choice_advice(std::string_view word, const std::vector<std::string>& choices);

// Words and numbers with a separator between them. Unlike fmt::join, this does not compile the formatting anew in each
// file.
std::string joined(const std::vector<std::string>& words, std::string_view separator);
std::string joined(const std::vector<int>& numbers, std::string_view separator);
std::string joined(const std::vector<std::int64_t>& numbers, std::string_view separator);

// "tp, cp or dp"
std::string joined_by_or(const std::vector<std::string>& words);

// A name from a file in quotes, shortened if long, without control characters (which could corrupt the terminal).
std::string in_quotes(std::string_view name);

// "1 rank", "2 ranks", "2 batches"
std::string counted(std::int64_t count, std::string_view thing);

// A number to so many significant digits, never with an exponent: "51440", "374.5", "0.00352".
std::string plain_number(double value, int digits = 4);

// "512 B", "1.50 GiB"
std::string readable_bytes(double bytes);
inline std::string readable_bytes(std::int64_t bytes) { return readable_bytes(static_cast<double>(bytes)); }

// "3:07:59": hours, minutes, seconds; "?" for an invalid time.
std::string clock_text(double seconds);

// "0-3,8,10-11": ascending ranks, with consecutive ones folded.
std::string fold_ranks(const std::vector<int>& ranks);

// Rows under a header, columns padded to their widest cell, two spaces apart.
using Rows = std::vector<std::vector<std::string>>;
std::string format_table(const std::vector<std::string>& header, const Rows& rows);

// "[json.exception.parse_error.101] parse error at line 2, column 1: syntax error while parsing value - invalid
// literal" becomes "line 2, column 1: invalid literal"; long ones are cut.
std::string json_error(std::string_view what);

// The names of dtypes that users type: PyTorch's, and short ones.
inline std::vector<std::string> dtype_names() { return {"bfloat16", "float32", "float64", "bf16", "fp32", "fp64"}; }

// "bfloat16" for "bf16"; other names are unchanged.
inline std::string full_dtype_name(const std::string& name) {
  if (name == "bf16") return "bfloat16";
  if (name == "fp32") return "float32";
  return name == "fp64" ? "float64" : name;
}

}  // namespace braid
