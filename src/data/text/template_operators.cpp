// The operators of chat templates and Python's ways to put values into a text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_interpreter.h"

namespace braid {
namespace {

[[noreturn]] void refuse(const std::string& symbol, const TemplateValue& left, const TemplateValue& right) {
  for (const TemplateValue* value : {&left, &right})
    if (const auto* undefined = value->get<TemplateUndefined>())
      throw DataError(fmt::format("{} is undefined", in_quotes(undefined->name)));
  throw DataError(fmt::format("'{}' does not apply to {} and {}", symbol, left.type_name(), right.type_name()));
}

std::int64_t as_integer(const TemplateValue& value) {
  return value.is<bool>() ? *value.get<bool>() : *value.get<std::int64_t>();
}

TemplateValue integer_arithmetic(const std::string& symbol, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  if (symbol == "+") overflows = __builtin_add_overflow(a, b, &result);
  if (symbol == "-") overflows = __builtin_sub_overflow(a, b, &result);
  if (symbol == "*") overflows = __builtin_mul_overflow(a, b, &result);
  if (symbol == "//" || symbol == "%") {
    if (b == 0) throw DataError("division by zero");
    overflows = a == INT64_MIN && b == -1;
    if (!overflows) {
      const std::int64_t rest = a % b;
      const bool rounds_down = rest != 0 && (rest < 0) != (b < 0);  // Python rounds towards minus infinity
      result = symbol == "//" ? a / b - rounds_down : rest + (rounds_down ? b : 0);
    }
  }
  if (symbol == "**") {
    if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
    result = 1;
    for (; b > 0 && !overflows && a != 1; --b) overflows = b > 64 || __builtin_mul_overflow(result, a, &result);
  }
  if (overflows) throw DataError("an integer is too large");
  return result;
}

TemplateValue arithmetic(const std::string& symbol, const TemplateValue& left, const TemplateValue& right) {
  if (symbol != "/" && !left.is<double>() && !right.is<double>())
    return integer_arithmetic(symbol, as_integer(left), as_integer(right));
  const double a = left.number(), b = right.number();
  if (symbol == "+") return a + b;
  if (symbol == "-") return a - b;
  if (symbol == "*") return a * b;
  if (symbol == "**") return std::pow(a, b);
  if (b == 0) throw DataError("division by zero");
  if (symbol == "/") return a / b;
  const double whole = std::floor(a / b);
  return symbol == "//" ? whole : a - whole * b;
}

bool contains_value(TemplateState& state, const TemplateValue& container, const TemplateValue& value) {
  if (const auto* map = container.get<TemplateMap*>())
    return (*map)->find(to_text(value)) && (*map)->key(to_text(value)) == value;
  if (const auto* text = container.get<std::string>()) {
    if (!value.is<std::string>()) refuse("in", value, container);
    return text->find(*value.get<std::string>()) != std::string::npos;
  }
  const TemplateList items = state.items_of(container);
  return std::any_of(items.begin(), items.end(), [&](const TemplateValue& item) {
    state.step();
    return item == value;
  });
}

bool less(const std::string& symbol, const TemplateValue& left, const TemplateValue& right) {
  if (left.is_number() && right.is_number()) return left.number() < right.number();
  if (left.is<std::string>() && right.is<std::string>()) return *left.get<std::string>() < *right.get<std::string>();
  refuse(symbol, left, right);
}

TemplateValue repeated(TemplateState& state, const std::string& text, std::int64_t count) {
  std::string result;
  for (; count > 0 && !text.empty(); --count) {
    state.bytes(text.size());
    result += text;
  }
  return TemplateValue(std::move(result));
}

constexpr std::size_t kWidest = 1000;  // of a field

// One value with a format specification of str.format, which fmt shares.
TemplateText with_specification(const TemplateValue& value, const std::string& specification) try {
  if (specification.empty()) return to_text_with_origins(value);
  for (const char* at = specification.c_str(); *at; ++at)
    if (*at >= '0' && *at <= '9' && std::strtoull(at, nullptr, 10) > kWidest)
      throw DataError(fmt::format("the format {} is too wide", in_quotes(specification)));
  if (specification.find_first_of("{}") != std::string::npos) throw DataError("fields inside fields are not supported");
  const std::string pattern = "{:" + specification + "}";
  if (const auto* integer = value.get<std::int64_t>()) {
    const bool as_float = std::string("eEfFgG%").find(specification.back()) != std::string::npos;
    if (as_float) return {fmt::format(fmt::runtime(pattern), static_cast<double>(*integer)), {}};
    return {fmt::format(fmt::runtime(pattern), *integer), {}};
  }
  if (value.is_number()) {
    if (std::string("eEfFgG%").find(specification.back()) == std::string::npos)
      throw DataError(fmt::format("the format {} of a float is not supported", in_quotes(specification)));
    return {fmt::format(fmt::runtime(pattern), value.number()), {}};
  }
  return {fmt::format(fmt::runtime(pattern), to_text(value)), {}};
} catch (const fmt::format_error&) {
  throw DataError(fmt::format("the format {} does not suit {}", in_quotes(specification), value.type_name()));
}

const TemplateValue& field_value(const std::string& name, std::size_t& next, const TemplateArguments& arguments) {
  const std::optional<std::int64_t> number = name.empty() ? std::optional(std::int64_t(next++)) : parse_int64(name);
  const std::size_t at = number && *number >= 0 ? static_cast<std::size_t>(*number) : arguments.positional.size();
  if (const TemplateValue* found = arguments.find(at, name.c_str())) return *found;
  throw DataError(fmt::format("format has no argument for the field {}", in_quotes(name)));
}

}  // namespace

TemplateValue apply_operator(TemplateState& state, const std::string& symbol, const TemplateValue& left,
                             const TemplateValue& right) {
  if (symbol == "==") return left == right;
  if (symbol == "!=") return !(left == right);
  if (symbol == "<") return less(symbol, left, right);
  if (symbol == ">") return less(symbol, right, left);
  if (symbol == "<=") return !less(symbol, right, left);
  if (symbol == ">=") return !less(symbol, left, right);
  if (symbol == "in") return contains_value(state, right, left);
  if (symbol == "not in") return !contains_value(state, right, left);
  const bool texts = left.is<std::string>() && right.is<std::string>();
  if (symbol == "~" || (symbol == "+" && texts)) {
    TemplateText text = to_text_with_origins(left);
    text.append(to_text_with_origins(right));
    return state.keep(std::move(text));
  }
  if (symbol == "%" && left.is<std::string>())
    return state.keep(
        format_percent(left.text(), right.is<TemplateList*>() ? state.items_of(right) : TemplateList{right}));
  if (left.is_number() && right.is_number()) return arithmetic(symbol, left, right);
  if (symbol == "+" && left.is<TemplateList*>() && right.is<TemplateList*>()) {
    TemplateList joined = state.items_of(left);
    for (TemplateValue& item : state.items_of(right)) joined.push_back(std::move(item));
    return state.list(std::move(joined));
  }
  if (symbol == "*" && left.is<std::string>() && right.is<std::int64_t>())
    return repeated(state, *left.get<std::string>(), *right.get<std::int64_t>());
  refuse(symbol, left, right);
}

TemplateValue negative(const TemplateValue& value) {
  if (const auto* integer = value.get<std::int64_t>()) return integer_arithmetic("-", 0, *integer);
  if (value.is<double>()) return -value.number();
  throw DataError(fmt::format("'-' does not apply to {}", value.type_name()));
}

TemplateText format_braces(const TemplateText& text, const TemplateArguments& arguments) {
  TemplateText result;
  std::size_t next = 0, done = 0;
  for (std::size_t at; (at = text.text.find_first_of("{}", done)) != std::string::npos;) {
    result.append(text.part(done, at - done));
    if (at + 1 < text.text.size() && text.text[at + 1] == text.text[at]) {  // "{{" or "}}"
      result.append(text.part(at, 1));
      done = at + 2;
      continue;
    }
    const std::size_t end = text.text.find('}', at);
    if (text.text[at] == '}' || end == std::string::npos) throw DataError("format has a single brace");
    const std::string field = text.text.substr(at + 1, end - at - 1);
    const std::size_t colon = std::min(field.find(':'), field.size()), bang = std::min(field.find('!'), colon);
    const TemplateValue& value = field_value(field.substr(0, bang), next, arguments);
    const bool as_repr = field.substr(bang, 2) == "!r";
    result.append(with_specification(as_repr ? TemplateValue(to_repr(value)) : value,
                                     field.substr(std::min(colon + 1, field.size()))));
    done = end + 1;
  }
  result.append(text.part(done, std::string::npos));
  return result;
}

TemplateText format_percent(const TemplateText& text, const std::vector<TemplateValue>& values) {
  TemplateText result;
  std::size_t next = 0, done = 0;
  for (std::size_t at; (at = text.text.find('%', done)) != std::string::npos;) {
    result.append(text.part(done, at - done));
    const std::size_t kind = text.text.find_first_not_of("0123456789.+-", at + 1);
    if (kind == std::string::npos) throw DataError("a format ends with %");
    done = kind + 1;
    const char letter = text.text[kind];
    if (letter == '%') {
      result.append({"%", {}});
      continue;
    }
    if (std::string_view("sdifr").find(letter) == std::string_view::npos)
      throw DataError(fmt::format("the format %{} is not supported; known: %s, %d, %i, %f, %r, %%", letter));
    if (next == values.size()) throw DataError("a format has more fields than values");
    const TemplateValue& value = values[next++];
    std::string specification = text.text.substr(at + 1, kind - at - 1);
    // str.format aligns texts to the left and has no '-'.
    const bool is_text = letter == 's' || letter == 'r', to_left = std::erase(specification, '-') > 0;
    if (!specification.empty() && (to_left || is_text)) specification.insert(0, to_left ? "<" : ">");
    if (letter == 'f') specification += specification.find('.') == std::string::npos ? ".6f" : "f";
    if (letter == 'r') result.append(with_specification(TemplateValue(to_repr(value)), specification));
    if (letter == 's' && !specification.empty())
      result.append(with_specification(TemplateValue(to_text(value)), specification));
    else if (letter == 's' || letter == 'f')
      result.append(with_specification(value, specification));
    if (letter == 'd' || letter == 'i') result.append(with_specification(integer_of(value, "%d"), specification));
  }
  if (next < values.size()) throw DataError("a format has fewer fields than values");
  result.append(text.part(done, std::string::npos));
  return result;
}

}  // namespace braid
