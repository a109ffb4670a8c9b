// The parts of the interpreter of chat templates: values with Python's meaning, words, programs, operators, and what
// templates may call.
#pragma once

#include <concepts>
#include "data/text/chat.h"

namespace braid {

class TemplateValue;
using TemplateList = std::vector<TemplateValue>;
struct TemplateMap;
struct TemplateArguments;
// What a template can call: a macro, a function or a method of a value.
using TemplateFunction = std::shared_ptr<const std::function<TemplateValue(const TemplateArguments&)>>;

struct TemplateUndefined {
  std::string name;  // for messages
};
struct TemplateNone {};

class TemplateValue {
 public:
  using Data = std::variant<TemplateUndefined, TemplateNone, bool, std::int64_t, double, std::string, TemplateList*,
                            TemplateMap*, TemplateFunction>;
  TemplateValue() = default;
  template <class T>
  requires std::constructible_from<Data, T> &&(!std::same_as<std::remove_cvref_t<T>, TemplateValue>)  //
      TemplateValue(T&& value)
      : data_(std::forward<T>(value)) {}
  TemplateValue(TemplateText text) : data_(std::move(text.text)), origins_(std::move(text.origins)) {}

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  // Each is null if the value is of another kind.
  const std::string* string() const { return get<std::string>(); }
  TemplateList* list() const { return is<TemplateList*>() ? std::get<TemplateList*>(data_) : nullptr; }
  TemplateMap* map() const { return is<TemplateMap*>() ? std::get<TemplateMap*>(data_) : nullptr; }

  bool is_number() const { return is<bool>() || is<std::int64_t>() || is<double>(); }
  double number() const;  // of a number
  bool truth() const;
  // The text of a string, or what Python's str() writes for another value.
  TemplateText text() const;
  std::string type_name() const;  // for messages

  bool operator==(const TemplateValue& other) const;

 private:
  Data data_;
  std::vector<TemplateText::Origin> origins_{};  // of a string
};

// Keys are strings, in order of insertion; templates look up few keys, so a list is enough.
struct TemplateMap {
  std::vector<std::pair<std::string, TemplateValue>> items{};
  bool is_namespace = false;                                        // whether templates may assign to its items
  std::vector<std::pair<std::string, TemplateValue>> other_keys{};  // keys that are not strings, by their text

  TemplateValue key(const std::string& text) const;
  const TemplateValue* find(const std::string& key) const;
  const TemplateValue* at(const TemplateValue& key) const;  // as find(), for a key that need not be a string
  void put(const std::string& key, TemplateValue value);
};

// str() and repr() of Python. DataError if values are nested too deep, as in a circle.
std::string to_repr(const TemplateValue& value);
inline std::string to_text(const TemplateValue& value) { return value.string() ? *value.string() : to_repr(value); }
// The arguments of json.dumps.
struct JsonStyle {
  int indent = -1;  // negative: one line
  bool ensure_ascii = false, sort_keys = false;
  std::string item_separator = ", ", key_separator = ": ";
};
TemplateText to_json(const TemplateValue& value, const JsonStyle& style);

// Each throws a DataError if the value does not suit; `user` is for messages.
const std::string& text_of(const TemplateValue& value, const std::string& user);
std::int64_t integer_of(const TemplateValue& value, const std::string& user);

// The arguments of a function, method or filter.
struct TemplateArguments {
  std::vector<TemplateValue> positional{};
  std::vector<std::pair<std::string, TemplateValue>> named{};

  // The argument at this place or with this name; null if absent.
  const TemplateValue* find(std::size_t index, const char* name) const;
  bool is_set(std::size_t index, const char* name) const { return find(index, name) && find(index, name)->truth(); }
  const TemplateValue& needed(std::size_t index, const char* name, const std::string& user) const;
};

// A chat template as text and the words of its tags.
struct TemplateToken {
  enum class Kind { Text, Name, String, Number, Operator, End };  // tags begin and end with operators
  Kind kind;
  std::string text;  // of strings: their value
  int line = 0;
};

// Applies Jinja's rules for white space (trim_blocks and lstrip_blocks, as transformers sets them). `name` is for
// messages. DataError for an unclosed tag or string and for characters that no tag contains.
std::vector<TemplateToken> lex_template(std::string_view source, const std::string& name);

// Variables of a loop, a macro or the whole template.
struct TemplateScope {
  const TemplateScope* parent = nullptr;
  std::unordered_map<std::string, TemplateValue> variables{};
};

// Counts calls that are inside each other.
class TemplateDepth {
 public:
  explicit TemplateDepth(int& depth) : depth_(depth) { ++depth_; }
  ~TemplateDepth() { --depth_; }
  TemplateDepth(const TemplateDepth&) = delete;

 private:
  int& depth_;
};

// The state of one rendering. It bounds what a template may do: a hostile one ends with a DataError.
class TemplateState {
 public:
  // `time` is that of strftime_now.
  TemplateState(std::int64_t steps, const std::tm& time) : now(time), steps_(steps) {}
  TemplateState(const TemplateState&) = delete;

  std::int64_t steps_left() const { return steps_; }
  void step() {
    if (--steps_ < 0) throw_exhausted("too many steps");
  }
  void bytes(std::size_t count) {
    if (count > bytes_) throw_exhausted("too much memory");
    bytes_ -= count;
  }

  // Statements, expressions and macro calls inside each other: DataError if they are too deep.
  TemplateDepth deeper();

  // These live until the end of the rendering, so that values and macros may refer to each other in circles. Their
  // memory counts.
  TemplateScope& scope(const TemplateScope* parent) {
    bytes(kScopeBytes);
    return scopes_.emplace_back(TemplateScope{.parent = parent});
  }
  TemplateValue keep(TemplateText text) {
    bytes(text.text.size());
    return TemplateValue(std::move(text));
  }
  TemplateValue keep(TemplateList items) {
    bytes((items.size() + 1) * sizeof(TemplateValue));
    return &lists_.emplace_back(std::move(items));
  }
  TemplateValue keep(TemplateMap items) {
    bytes((items.items.size() + 1) * sizeof(TemplateValue));
    return &maps_.emplace_back(std::move(items));
  }

  // The values that a loop visits: items of a list, keys of a mapping, characters of a string.
  TemplateList items_of(const TemplateValue& value);

  const std::tm now;
  int line = 1;  // for messages

 private:
  [[noreturn]] static void throw_exhausted(const char* what);
  static constexpr std::size_t kScopeBytes = 1000;  // roughly what a scope and its variables take

  std::int64_t steps_;
  std::size_t bytes_ = 128 << 20;
  int depth_ = 0;
  std::deque<TemplateScope> scopes_;
  std::deque<TemplateList> lists_;
  std::deque<TemplateMap> maps_;
};

// A part of a parsed template: a function that is cheap to copy into other parts.
template <class Result, class... More>
class TemplatePart {
 public:
  TemplatePart() = default;
  template <class Run>
  TemplatePart(Run run) : run_(std::make_shared<const Function>(std::move(run))) {}

  explicit operator bool() const { return run_ != nullptr; }
  Result operator()(TemplateState& state, TemplateScope& scope, More... more) const {
    return (*run_)(state, scope, more...);
  }

 private:
  using Function = std::function<Result(TemplateState&, TemplateScope&, More...)>;
  std::shared_ptr<const Function> run_;
};

enum class TemplateFlow { Next, Break, Continue };
using TemplateStatement = TemplatePart<TemplateFlow, TemplateText&>;  // adds to the text

// `name` is for messages. DataError if the template is invalid or uses what is not supported.
TemplateStatement parse_template(std::string_view source, const std::string& name);

// Filters, tests, methods and functions. Each throws a DataError for unknown names and unsuitable values.
TemplateValue apply_filter(TemplateState& state, const std::string& name, const TemplateValue& self,
                           const TemplateArguments& arguments);
bool apply_test(TemplateState& state, const std::string& name, const TemplateValue& value,
                const TemplateArguments& arguments);
TemplateValue call_value(const TemplateValue& function, const TemplateArguments& arguments);
TemplateFunction builtin_function(TemplateState& state, const std::string& name);  // null: there is none
inline TemplateFunction template_function(std::function<TemplateValue(const TemplateArguments&)> run) {
  return std::make_shared<const std::function<TemplateValue(const TemplateArguments&)>>(std::move(run));
}

// An item of a mapping, or a method.
TemplateValue attribute_of(TemplateState& state, const TemplateValue& value, const std::string& name);
TemplateValue item_of(TemplateState& state, const TemplateValue& value, const TemplateValue& index);
// `bounds`: begin, end and step; none for those that are absent.
TemplateValue slice_of(TemplateState& state, const TemplateValue& value, const std::array<TemplateValue, 3>& bounds);

// All binary operators except `and` and `or`. DataError for unsuitable values.
TemplateValue apply_operator(TemplateState& state, const std::string& symbol, const TemplateValue& left,
                             const TemplateValue& right);
TemplateValue negative(const TemplateValue& value);

// "{} of {name:>3}".format(...). DataError for attributes of fields, and for a field without an argument.
TemplateText format_braces(const TemplateText& text, const TemplateArguments& arguments);
// "%s of %d" % values.
TemplateText format_percent(const TemplateText& text, const std::vector<TemplateValue>& values);

}  // namespace braid
