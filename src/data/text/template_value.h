// Values of chat templates, with Python's meaning: a template sees what it would see in Jinja.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace braid {

class TemplateValue;
using TemplateList = std::vector<TemplateValue>;
// Keys are strings, in order of insertion; templates look up few keys, so a list is enough.
struct TemplateMap;
struct TemplateArguments;
// What a template can call: a macro, a function or a method of a value.
using TemplateFunction = std::shared_ptr<const std::function<TemplateValue(const TemplateArguments&)>>;

// A text, and which of its bytes are those of a message: what the masks of a conversation follow from. Operations that
// cut and join texts keep the origins; those that write other characters lose them.
struct TemplateText {
  struct Origin {
    std::size_t begin = 0, end = 0;
    int source = 0;
  };
  std::string text{};
  std::vector<Origin> origins{};  // in order, without overlap; neighbours of one source are joined

  void append(const TemplateText& other);
  TemplateText part(std::size_t begin, std::size_t size) const;
};

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
  bool is_number() const { return is<bool>() || is<std::int64_t>() || is<double>(); }
  double number() const;  // of a number
  bool truth() const;
  TemplateText text() const { return {std::get<std::string>(data_), origins_}; }  // of a string
  std::string type_name() const;                                                  // for messages

  bool operator==(const TemplateValue& other) const;

 private:
  Data data_;
  std::vector<TemplateText::Origin> origins_{};  // of a string
};

struct TemplateMap {
  std::vector<std::pair<std::string, TemplateValue>> items;
  bool is_namespace = false;                                        // whether templates may assign to its items
  std::vector<std::pair<std::string, TemplateValue>> other_keys{};  // keys that are not strings, by their text

  TemplateValue key(const std::string& text) const;
  const TemplateValue* find(const std::string& key) const;
  void put(const std::string& key, TemplateValue value);
};

// str() and repr() of Python. DataError if values are nested too deep, as in a circle.
std::string to_text(const TemplateValue& value);
TemplateText to_text_with_origins(const TemplateValue& value);  // to_text(); only strings have origins
std::string to_repr(const TemplateValue& value);
// The arguments of json.dumps.
struct JsonStyle {
  int indent = -1;  // negative: one line
  bool ensure_ascii = false, sort_keys = false;
  std::string item_separator = ", ", key_separator = ": ";
};
TemplateText to_json(const TemplateValue& value, const JsonStyle& style);

// Of a call of a function, method or filter.
struct TemplateArguments {
  std::vector<TemplateValue> positional;
  std::vector<std::pair<std::string, TemplateValue>> named;

  // The argument at this place or with this name; null if absent.
  const TemplateValue* find(std::size_t index, const char* name) const;
  bool is_set(std::size_t index, const char* name) const { return find(index, name) && find(index, name)->truth(); }
};

// Each throws a DataError if the value does not suit; `user` is for messages.
const TemplateValue& needed_argument(const TemplateArguments& arguments, std::size_t index, const char* name,
                                     const std::string& user);
const std::string& text_of(const TemplateValue& value, const std::string& user);
std::int64_t integer_of(const TemplateValue& value, const std::string& user);

// Python's methods of str.
std::vector<std::string> characters_of(std::string_view text);
std::size_t character_count(std::string_view text);

// str.strip(characters); without characters: white space.
std::string strip_text(std::string_view text, const std::string* characters, bool left, bool right);

// The result has as many bytes. DataError for upper case beyond ASCII, and for the few other letters that cannot be
// changed in their place.
std::string upper_text(std::string text);
std::string lower_text(std::string_view text);
std::string title_text(std::string_view text);
std::string capitalize_text(std::string_view text);

TemplateText replaced(const TemplateText& text, std::string_view old, const TemplateText& with, std::int64_t most);
std::string replace_text(std::string_view text, std::string_view old, std::string_view with, std::int64_t most);
// str.split(separator, most); without separator: at white space. A negative `most` means all.
std::vector<std::string> split_text(std::string_view text, const std::string* separator, std::int64_t most);
std::vector<std::string> rsplit_text(std::string_view text, const std::string& separator, std::int64_t most);
std::vector<std::string> lines_of(std::string_view text);

}  // namespace braid
