// The parts of the interpreter of chat templates: words, syntax trees, operators, and what templates may call.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/text/template_value.h"

namespace braid {

// A chat template as text and the words of its tags.
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

// Applies Jinja's rules for white space (trim_blocks and lstrip_blocks, as transformers sets them). `name` is for
// messages. DataError for an unclosed tag or string and for characters that no tag contains.
std::vector<TemplateToken> lex_template(std::string_view source, const std::string& name);

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

// "{} of {name:>3}".format(...). DataError for attributes of fields, and for a field without an argument.
TemplateText format_braces(const TemplateText& text, const TemplateArguments& arguments);
// "%s of %d" % values.
TemplateText format_percent(const TemplateText& text, const std::vector<TemplateValue>& values);
std::string format_time(const std::string& format, const std::tm& time);

// Bounds what a template may do: a hostile one ends with a DataError.
class TemplateBudget {
 public:
  explicit TemplateBudget(std::int64_t steps) : steps_(steps) {}
  std::int64_t steps_left() const { return steps_; }
  void step() {
    if (--steps_ < 0) throw_exhausted("too many steps");
  }
  void bytes(std::size_t count) {
    if (count > bytes_) throw_exhausted("too much memory");
    bytes_ -= count;
  }

 private:
  [[noreturn]] static void throw_exhausted(const char* what);
  std::int64_t steps_;
  std::size_t bytes_ = 128 << 20;
};

// The filters, tests, methods and functions. Each throws a DataError for unknown names and unsuitable values.
class TemplateBuiltins {
 public:
  // `now` is the time of strftime_now.
  TemplateBuiltins(TemplateHeap& heap, TemplateBudget& budget, const std::tm& now)
      : heap_(heap), budget_(budget), now_(now) {}

  TemplateValue filter(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments);
  bool test(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue method(const TemplateValue& self, const std::string& name, const TemplateArguments& arguments);
  TemplateValue function(const std::string& name, const TemplateArguments& arguments);

  static bool is_function(const std::string& name);
  static bool is_method(const TemplateValue& self, const std::string& name);

  // The values that a loop visits: items of a list, keys of a mapping, characters of a string.
  TemplateList items_of(const TemplateValue& value);
  TemplateList items_if_any(const TemplateValue& value);
  TemplateValue attribute(const TemplateValue& value, const std::string& name) const;
  TemplateValue slice(const TemplateValue& value, const TemplateValue* begin, const TemplateValue* end,
                      const TemplateValue* step);
  TemplateValue item(const TemplateValue& value, const TemplateValue& index);

 private:
  TemplateValue keep(TemplateText text);
  TemplateValue keep(TemplateList list);
  TemplateValue sorted(TemplateList items, const TemplateArguments& arguments);
  TemplateValue dict_sorted(const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue select(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue map(const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue text_filter(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue list_filter(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue text_method(const TemplateText& self, const std::string& name, const TemplateArguments& arguments);
  TemplateValue map_method(const TemplateMap& self, const std::string& name, const TemplateArguments& arguments);

  TemplateHeap& heap_;
  TemplateBudget& budget_;
  const std::tm now_;
};

// All binary operators except `and` and `or`. DataError for unsuitable values.
TemplateValue apply_operator(const std::string& symbol, const TemplateValue& left, const TemplateValue& right,
                             TemplateBuiltins& builtins, TemplateHeap& heap, TemplateBudget& budget);
TemplateValue negative(const TemplateValue& value);

}  // namespace braid
