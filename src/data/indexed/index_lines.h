// Writes Megatron's indexed text from JSON lines.
#pragma once

#include "base/error.h"

namespace braid {

struct IndexLinesRequest {
  std::string lines{};       // a file with one JSON object per line
  std::string prefix{};      // of the files to write
  std::string tokenizer{};   // a file or a folder
  std::string key = "text";  // of the text in each line
  bool append_eod = true;    // documents end with the tokenizer's EOS token
  bool force = false;        // replaces files that exist
  int threads = 1;
  std::function<void(std::int64_t done, std::int64_t total)> progress{};  // in bytes
};

struct IndexedLines {
  std::int64_t documents = 0, tokens = 0;
  std::int64_t empty = 0;  // lines whose text has no tokens; they have no document
};

// Each line becomes a document with the tokens that training on the lines would give it. ConfigError if a file exists,
// or if the tokenizer cannot be used; DataError for a line without text. Then no file is written.
IndexedLines index_lines(const IndexLinesRequest& request);

}  // namespace braid
