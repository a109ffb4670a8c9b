#include "data/text/template_operators.h"

#include <cmath>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_format.h"

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

bool contains_value(const TemplateValue& container, const TemplateValue& value, TemplateBuiltins& builtins,
                    TemplateBudget& budget) {
  const TemplateMap* const* map = container.get<TemplateMap*>() ? container.get<TemplateMap*>() : nullptr;
  if (map) return (*map)->find(to_text(value)) && (*map)->key(to_text(value)) == value;
  if (const auto* text = container.get<std::string>()) {
    if (!value.is<std::string>()) refuse("in", value, container);
    return text->find(*value.get<std::string>()) != std::string::npos;
  }
  for (const TemplateValue& item : builtins.items_of(container)) {
    budget.step();
    if (item == value) return true;
  }
  return false;
}

bool less(const std::string& symbol, const TemplateValue& left, const TemplateValue& right) {
  if (left.is_number() && right.is_number()) return left.number() < right.number();
  if (left.is<std::string>() && right.is<std::string>()) return *left.get<std::string>() < *right.get<std::string>();
  refuse(symbol, left, right);
}

TemplateValue repeated(const std::string& text, std::int64_t count, TemplateBudget& budget) {
  std::string result;
  for (; count > 0 && !text.empty(); --count) {
    budget.bytes(text.size());
    result += text;
  }
  return TemplateValue(std::move(result));
}

}  // namespace

TemplateValue apply_operator(const std::string& symbol, const TemplateValue& left, const TemplateValue& right,
                             TemplateBuiltins& builtins, TemplateHeap& heap, TemplateBudget& budget) {
  if (symbol == "==") return left == right;
  if (symbol == "!=") return !(left == right);
  if (symbol == "<") return less(symbol, left, right);
  if (symbol == ">") return less(symbol, right, left);
  if (symbol == "<=") return !less(symbol, right, left);
  if (symbol == ">=") return !less(symbol, left, right);
  if (symbol == "in") return contains_value(right, left, builtins, budget);
  if (symbol == "not in") return !contains_value(right, left, builtins, budget);
  const bool texts = left.is<std::string>() && right.is<std::string>();
  if (symbol == "~" || (symbol == "+" && texts)) {
    TemplateText text = to_text_with_origins(left);
    text.append(to_text_with_origins(right));
    budget.bytes(text.text.size());
    return TemplateValue(std::move(text));
  }
  if (symbol == "%" && left.is<std::string>()) {
    TemplateText text =
        format_percent(left.text(), right.is<TemplateList*>() ? builtins.items_of(right) : TemplateList{right});
    budget.bytes(text.text.size());
    return TemplateValue(std::move(text));
  }
  if (left.is_number() && right.is_number()) return arithmetic(symbol, left, right);
  if (symbol == "+" && left.is<TemplateList*>() && right.is<TemplateList*>()) {
    TemplateList joined = builtins.items_of(left);
    for (TemplateValue& item : builtins.items_of(right)) joined.push_back(std::move(item));
    return heap.list(std::move(joined));
  }
  if (symbol == "*" && left.is<std::string>() && right.is<std::int64_t>())
    return repeated(*left.get<std::string>(), *right.get<std::int64_t>(), budget);
  refuse(symbol, left, right);
}

TemplateValue negative(const TemplateValue& value) {
  if (const auto* integer = value.get<std::int64_t>()) return integer_arithmetic("-", 0, *integer);
  if (value.is<double>()) return -value.number();
  throw DataError(fmt::format("'-' does not apply to {}", value.type_name()));
}

}  // namespace braid
