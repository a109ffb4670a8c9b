// A parsed chat template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/text/template_value.h"

namespace braid {

struct TemplateExpression {
  enum class Kind {
    Constant,     // constant
    Name,         // text
    List,         // parts
    Map,          // parts: key, value, key, value
    Attribute,    // parts[0] . text
    Item,         // parts[0] [ parts[1] ]
    Slice,        // parts[0] [ parts[1] : parts[2] : parts[3] ], absent ones null
    Call,         // parts[0] ( parts[1...], named )
    Filter,       // parts[0] | text ( parts[1...], named )
    Test,         // parts[0] is text ( parts[1...] )
    Unary,        // text: not, -, +
    Binary,       // text: the operator
    Conditional,  // parts[0] if parts[1] else parts[2], which may be null
    Unpacked,     // *parts[0], among the arguments of a call
  };
  Kind kind;
  int line = 0;
  int depth = 1;  // of the tree, bounded because it is walked recursively
  std::string text;
  TemplateValue constant;
  std::vector<std::unique_ptr<TemplateExpression>> parts;
  std::vector<std::pair<std::string, std::unique_ptr<TemplateExpression>>> named;
};

struct TemplateStatement;
using TemplateBody = std::vector<TemplateStatement>;

struct TemplateStatement {
  enum class Kind {
    Text,    // text
    Output,  // value
    If,      // value, body, otherwise
    For,     // names in value if condition: body, otherwise
    Set,     // names (one: a variable; two: namespace and item if is_item) = value, or body if value is null
    Macro,   // text (names, defaults): body
    Call,    // value is a call of a macro, which calls the body as caller(names, defaults)
    Body,    // body, without an effect of its own
    Break,
    Continue,
  };
  Kind kind;
  int line = 0;
  std::string text{};
  std::vector<std::string> names{};
  bool is_item = false;
  std::unique_ptr<TemplateExpression> value{}, condition{};
  std::vector<std::unique_ptr<TemplateExpression>> defaults{};  // of the last names
  TemplateBody body{}, otherwise{};
};

// `name` is for messages. DataError if the template is invalid or uses what is not supported.
TemplateBody parse_template(std::string_view source, const std::string& name);

}  // namespace braid
