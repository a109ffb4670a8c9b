// Values of chat templates, with Python's meaning: a template sees what it would see in Jinja.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <concepts>
#include <cstdint>
#include <deque>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace braid {

class TemplateValue;
using TemplateList = std::vector<TemplateValue>;
// Keys are strings, in order of insertion; templates look up few keys, so a list is enough.
struct TemplateMap;
struct TemplateMacro;  // of chat_template.cpp

struct TemplateUndefined {
  std::string name;  // for messages
};
struct TemplateNone {};
// A function or method that only the interpreter can call.
struct TemplateFunction {
  std::string name;
  const TemplateMacro* macro = nullptr;  // null: built in
};

class TemplateValue {
 public:
  using Data = std::variant<TemplateUndefined, TemplateNone, bool, std::int64_t, double, std::string, TemplateList*,
                            TemplateMap*, TemplateFunction>;
  TemplateValue() = default;
  template <class T>
  requires std::constructible_from<Data, T> &&(!std::same_as<std::remove_cvref_t<T>, TemplateValue>)  //
      TemplateValue(T&& value)
      : data_(std::forward<T>(value)) {}

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
  std::string type_name() const;  // for messages

  bool operator==(const TemplateValue& other) const;

 private:
  Data data_;
};

struct TemplateMap {
  std::vector<std::pair<std::string, TemplateValue>> items;
  bool is_namespace = false;  // whether templates may assign to its items

  const TemplateValue* find(const std::string& key) const;
  void put(const std::string& key, TemplateValue value);
};

// Owns the lists and maps of one rendering, so that values may refer to each other in circles.
class TemplateHeap {
 public:
  TemplateList* list(TemplateList items = {}) { return &lists_.emplace_back(std::move(items)); }
  TemplateMap* map(TemplateMap items = {}) { return &maps_.emplace_back(std::move(items)); }

 private:
  std::deque<TemplateList> lists_;
  std::deque<TemplateMap> maps_;
};

TemplateValue from_json(const nlohmann::ordered_json& json, TemplateHeap& heap);

// str() and repr() of Python. DataError if values are nested too deep, as in a circle.
std::string to_text(const TemplateValue& value);
std::string to_repr(const TemplateValue& value);
// json.dumps(value, ensure_ascii=False, indent=indent); a negative indent means one line.
std::string to_json(const TemplateValue& value, int indent);

}  // namespace braid
