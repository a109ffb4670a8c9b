#include "data/text/template_value.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"

namespace braid {
namespace {

constexpr int kDeepest = 50;
constexpr std::size_t kLongestText = 16 << 20;

std::string number_text(double number) {
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\')
      result += fmt::format("\\{}", c);
    else if (c == '\n' || c == '\r' || c == '\t')
      result += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      result += c;
  }
  return result + quote;
}

// Writes a value as Python's repr() or as JSON.
class Writer {
 public:
  Writer(bool json, JsonStyle style) : json_(json), style_(std::move(style)) {}

  void write(const TemplateValue& value, int depth) {
    if (depth > kDeepest) throw DataError("a value is nested too deep to print");
    if (out.text.size() > kLongestText) throw DataError("a value is too long to print");
    if (const auto* list = value.get<TemplateList*>())
      write_items((*list)->size(), "[]", depth, [&](std::size_t i) { write((**list)[i], depth + 1); });
    else if (const auto* map = value.get<TemplateMap*>())
      write_map(**map, depth);
    else
      write_scalar(value);
  }

  TemplateText out;

 private:
  void put(std::string text) { out.append({std::move(text), {}}); }

  void write_map(const TemplateMap& map, int depth) {
    auto items = map.items;
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    write_items(items.size(), "{}", depth, [&](std::size_t i) {
      write(json_ ? TemplateValue(items[i].first) : map.key(items[i].first), depth + 1);
      put(style_.key_separator);
      write(items[i].second, depth + 1);
    });
  }

  // A string in JSON is of one source. One in repr() is of none: a template that prints a list by accident does not
  // write what the list says.
  void write_string(const TemplateText& value) {
    if (!json_) return put(quoted(value.text));
    TemplateText written = {
        nlohmann::json(value.text).dump(-1, ' ', style_.ensure_ascii, nlohmann::json::error_handler_t::replace), {}};
    if (!value.origins.empty()) written.origins = {{0, written.text.size(), value.origins.front().source}};
    out.append(written);
  }

  void write_scalar(const TemplateValue& value) {
    if (value.is<std::string>())
      write_string(value.text());
    else if (const auto* truth = value.get<bool>())
      put(json_ ? (*truth ? "true" : "false") : (*truth ? "True" : "False"));
    else if (const auto* integer = value.get<std::int64_t>())
      put(std::to_string(*integer));
    else if (const auto* number = value.get<double>())
      put(number_text(*number));
    else if (value.is<TemplateNone>())
      put(json_ ? "null" : "None");
    else if (json_)
      throw DataError(fmt::format("{} cannot become JSON", value.type_name()));
    else if (value.is<TemplateFunction>())
      throw DataError("a function cannot be printed");
  }

  template <class WriteItem>
  void write_items(std::size_t count, const char* brackets, int depth, const WriteItem& write_item) {
    put({brackets[0]});
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) put(style_.item_separator);
      new_line(depth + 1);
      write_item(i);
    }
    if (count > 0) new_line(depth);
    put({brackets[1]});
  }
  void new_line(int depth) {
    if (style_.indent >= 0) put('\n' + std::string(static_cast<std::size_t>(style_.indent * depth), ' '));
  }

  const bool json_;
  const JsonStyle style_;
};

bool equal(const TemplateValue& a, const TemplateValue& b, int depth) {
  if (depth > kDeepest) throw DataError("values are nested too deep to compare");
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.is<std::string>() && b.is<std::string>()) return *a.get<std::string>() == *b.get<std::string>();
  if (a.is<TemplateList*>() && b.is<TemplateList*>()) {
    const TemplateList &left = **a.get<TemplateList*>(), &right = **b.get<TemplateList*>();
    if (left.size() != right.size()) return false;
    for (std::size_t i = 0; i < left.size(); ++i)
      if (!equal(left[i], right[i], depth + 1)) return false;
    return true;
  }
  if (a.is<TemplateMap*>() && b.is<TemplateMap*>()) {
    const TemplateMap &left = **a.get<TemplateMap*>(), &right = **b.get<TemplateMap*>();
    if (left.items.size() != right.items.size()) return false;
    for (const auto& [key, value] : left.items) {
      const TemplateValue* other = right.find(key);
      if (!other || !equal(value, *other, depth + 1)) return false;
    }
    return true;
  }
  return (a.is<TemplateNone>() && b.is<TemplateNone>()) || (a.is<TemplateUndefined>() && b.is<TemplateUndefined>());
}

}  // namespace

void TemplateText::append(const TemplateText& other) {
  const std::size_t shift = text.size();
  text += other.text;
  for (const Origin& origin : other.origins) {
    if (!origins.empty() && origins.back().end == origin.begin + shift && origins.back().source == origin.source)
      origins.back().end = origin.end + shift;
    else
      origins.push_back({origin.begin + shift, origin.end + shift, origin.source});
  }
}

TemplateText TemplateText::part(std::size_t begin, std::size_t size) const {
  TemplateText result = {text.substr(begin, size), {}};
  const std::size_t end = begin + result.text.size();
  for (const Origin& origin : origins)
    if (origin.begin < end && begin < origin.end)
      result.origins.push_back(
          {std::max(origin.begin, begin) - begin, std::min(origin.end, end) - begin, origin.source});
  return result;
}

double TemplateValue::number() const {
  if (const auto* truth = get<bool>()) return *truth;
  if (const auto* integer = get<std::int64_t>()) return static_cast<double>(*integer);
  return std::get<double>(data_);
}

bool TemplateValue::truth() const {
  if (is_number()) return number() != 0;
  if (const auto* text = get<std::string>()) return !text->empty();
  if (const auto* list = get<TemplateList*>()) return !(*list)->empty();
  if (const auto* map = get<TemplateMap*>()) return (*map)->is_namespace || !(*map)->items.empty();
  return is<TemplateFunction>();
}

std::string TemplateValue::type_name() const {
  static const char* const names[] = {"an undefined value", "none",   "a boolean", "an integer", "a number",
                                      "a string",           "a list", "a mapping", "a function"};
  return names[data_.index()];
}

bool TemplateValue::operator==(const TemplateValue& other) const { return equal(*this, other, 0); }

const TemplateValue* TemplateMap::find(const std::string& key) const {
  for (const auto& [name, value] : items)
    if (name == key) return &value;
  return nullptr;
}

TemplateValue TemplateMap::key(const std::string& text) const {
  for (const auto& [name, value] : other_keys)
    if (name == text) return value;
  return text;
}

void TemplateMap::put(const std::string& key, TemplateValue value) {
  for (auto& [name, old] : items)
    if (name == key) {
      old = std::move(value);
      return;
    }
  items.emplace_back(key, std::move(value));
}

std::string to_text(const TemplateValue& value) {
  return value.is<std::string>() ? *value.get<std::string>() : to_repr(value);
}

TemplateText to_text_with_origins(const TemplateValue& value) {
  return value.is<std::string>() ? value.text() : TemplateText{to_repr(value), {}};
}

std::string to_repr(const TemplateValue& value) {
  Writer writer(/*json=*/false, {});
  writer.write(value, 0);
  return std::move(writer.out.text);
}

TemplateText to_json(const TemplateValue& value, const JsonStyle& style) {
  Writer writer(/*json=*/true, style);
  writer.write(value, 0);
  return std::move(writer.out);
}

const TemplateValue* TemplateArguments::find(std::size_t index, const char* name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

const std::string& text_of(const TemplateValue& value, const std::string& user) {
  if (const auto* text = value.get<std::string>()) return *text;
  throw DataError(fmt::format("{} needs a string, not {}", user, value.type_name()));
}

std::int64_t integer_of(const TemplateValue& value, const std::string& user) {
  if (const auto* integer = value.get<std::int64_t>()) return *integer;
  if (const auto* truth = value.get<bool>()) return *truth;
  throw DataError(fmt::format("{} needs an integer, not {}", user, value.type_name()));
}

const TemplateValue& needed_argument(const TemplateArguments& arguments, std::size_t index, const char* name,
                                     const std::string& user) {
  if (const TemplateValue* value = arguments.find(index, name)) return *value;
  throw DataError(fmt::format("{} needs the argument {}", user, name));
}

}  // namespace braid
