// Divides a chat template into text and the words of its tags, with Jinja's rules for white space (trim_blocks and
// lstrip_blocks, as transformers sets them).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct TemplateToken {
  enum class Kind {
    Text,
    StatementBegin,
    StatementEnd,
    OutputBegin,
    OutputEnd,
    Name,
    String,
    Integer,
    Float,
    Operator,
    End
  };
  Kind kind;
  std::string text;  // of strings: their value
  int line = 0;
};

// `name` is for messages. DataError for an unclosed tag or string and for characters that no tag contains.
std::vector<TemplateToken> lex_template(std::string_view source, const std::string& name);

}  // namespace braid
