// The filters and tests of chat templates.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_interpreter.h"

namespace braid {
namespace {

const std::vector<std::string> kTextFilters = {"trim", "upper",   "lower",  "title",  "capitalize", "string",
                                               "safe", "replace", "tojson", "indent", "int",        "float"};
const std::vector<std::string> kListFilters = {"length", "count",  "first", "last", "list", "join",    "reverse",
                                               "items",  "unique", "sort",  "min",  "max",  "dictsort"};
const std::vector<std::string> kSelections = {"selectattr", "rejectattr", "select", "reject"};

TemplateText indented(const TemplateText& text, std::int64_t width, bool first) {
  if (width < 0 || width > 1000) throw DataError("indent needs a width from 0 to 1000");
  const TemplateText space = {std::string(static_cast<std::size_t>(width), ' '), {}};
  TemplateText result;
  std::size_t done = 0;
  for (const std::string& line : split(text.text, '\n')) {
    if (!line.empty() && (first || done > 0)) result.append(space);
    result.append(text.part(done, line.size() + 1));
    done += line.size() + 1;
  }
  return result;
}

std::int64_t to_integer(const TemplateValue& value) {
  if (const auto* text = value.get<std::string>())
    return parse_int64(strip_text(*text, nullptr, true, true)).value_or(0);
  if (!value.is_number()) return 0;
  const double number = value.number();
  return std::abs(number) < 9e18 ? static_cast<std::int64_t>(number) : 0;
}

double to_float(const TemplateValue& value) {
  if (const auto* text = value.get<std::string>())
    return parse_double(strip_text(*text, nullptr, true, true)).value_or(0);
  return value.is_number() ? value.number() : 0;
}

// tojson(ensure_ascii, indent, separators, sort_keys), as transformers defines it.
JsonStyle json_style(const TemplateArguments& arguments) {
  JsonStyle style;
  const auto given = [&](std::size_t i, const char* key) -> const TemplateValue* {
    const TemplateValue* value = arguments.find(i, key);
    return value && !value->is<TemplateNone>() ? value : nullptr;
  };
  if (const TemplateValue* value = given(0, "ensure_ascii")) style.ensure_ascii = value->truth();
  if (const TemplateValue* value = given(1, "indent"))
    style.indent = static_cast<int>(std::clamp<std::int64_t>(integer_of(*value, "tojson"), -1, 16));
  if (style.indent >= 0) style.item_separator = ",";
  if (const TemplateValue* value = given(2, "separators")) {
    const auto* list = value->get<TemplateList*>();
    if (!list || (*list)->size() != 2) throw DataError("tojson needs two separators");
    style.item_separator = text_of((**list)[0], "tojson");
    style.key_separator = text_of((**list)[1], "tojson");
  }
  if (const TemplateValue* value = given(3, "sort_keys")) style.sort_keys = value->truth();
  return style;
}

bool is_less(const TemplateValue& a, const TemplateValue& b, bool with_case, bool reverse = false) {
  if (reverse) return is_less(b, a, with_case);
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (!a.is<std::string>() || !b.is<std::string>())
    throw DataError(fmt::format("{} and {} cannot be sorted", a.type_name(), b.type_name()));
  const std::string &left = *a.get<std::string>(), &right = *b.get<std::string>();
  return with_case ? left < right : lower_text(left) < lower_text(right);
}

// self | name(arguments)
struct Call {
  TemplateState& state;
  const std::string& name;
  const TemplateValue& self;
  const TemplateArguments& arguments;
};

TemplateValue text_filter(const Call& call) {
  const auto& [state, name, self, arguments] = call;
  if (name == "int") return to_integer(self);
  if (name == "float") return to_float(self);
  if (name == "tojson") return state.keep(to_json(self, json_style(arguments)));
  const TemplateText text = to_text_with_origins(self);
  state.bytes(text.text.size());
  if (name == "string" || name == "safe") return text;
  if (name != "indent") return call_method(state, text, name == "trim" ? "strip" : name, arguments);
  const TemplateValue* width = arguments.find(0, "width");
  return state.keep(indented(text, width ? integer_of(*width, name) : 4, arguments.is_set(1, "first")));
}

TemplateValue join(const Call& call, const TemplateList& items) {
  const TemplateValue *separator = call.arguments.find(0, "d"), *by = call.arguments.find(1, "attribute");
  TemplateText text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t before = text.text.size();
    if (i > 0 && separator) text.append(to_text_with_origins(*separator));
    text.append(to_text_with_origins(by ? attribute_of(call.state, items[i], text_of(*by, "join")) : items[i]));
    call.state.bytes(text.text.size() - before);
  }
  return text;
}

// sort(reverse, case_sensitive, attribute).
TemplateValue sorted(const Call& call, TemplateList items) {
  const auto& arguments = call.arguments;
  const bool reverse = arguments.is_set(0, "reverse"), with_case = arguments.is_set(1, "case_sensitive");
  const TemplateValue* by = arguments.find(2, "attribute");
  const auto key = [&](const TemplateValue& item) {
    return by ? attribute_of(call.state, item, text_of(*by, "sort")) : item;
  };
  std::stable_sort(items.begin(), items.end(), [&](const TemplateValue& a, const TemplateValue& b) {
    call.state.step();
    return is_less(key(a), key(b), with_case, reverse);
  });
  return call.state.keep(std::move(items));
}

// dictsort(case_sensitive, by, reverse): pairs of keys and values.
TemplateValue dict_sorted(const Call& call) {
  const auto& arguments = call.arguments;
  const bool with_case = arguments.is_set(0, "case_sensitive"), reverse = arguments.is_set(2, "reverse");
  const TemplateValue* by = arguments.find(1, "by");
  const std::size_t part = by && text_of(*by, "dictsort") == "value" ? 1 : 0;
  TemplateList pairs = call.state.items_of(call_method(call.state, call.self, "items", {}));
  std::stable_sort(pairs.begin(), pairs.end(), [&](const TemplateValue& a, const TemplateValue& b) {
    call.state.step();
    return is_less((**a.get<TemplateList*>())[part], (**b.get<TemplateList*>())[part], with_case, reverse);
  });
  return call.state.keep(std::move(pairs));
}

TemplateValue unique(const Call& call, const TemplateList& items) {
  TemplateList seen;
  for (const TemplateValue& item : items) {
    for (std::size_t i = 0; i < seen.size(); ++i) call.state.step();
    if (std::find(seen.begin(), seen.end(), item) == seen.end()) seen.push_back(item);
  }
  return call.state.keep(std::move(seen));
}

TemplateValue list_filter(const Call& call) {
  const auto& [state, name, self, arguments] = call;
  if ((name == "length" || name == "count") && self.is<std::string>())
    return static_cast<std::int64_t>(character_count(*self.get<std::string>()));
  if (name == "dictsort") return dict_sorted(call);
  if (name == "items")
    return self.is<TemplateUndefined>() ? state.keep(TemplateList{}) : call_method(state, self, name, {});
  TemplateList items = state.items_of(self);
  if (name == "length" || name == "count") return std::ssize(items);
  if (name == "join") return join(call, items);
  if (name == "sort") return sorted(call, std::move(items));
  if (name == "unique") return unique(call, items);
  if (name == "list") return state.keep(std::move(items));
  if (name == "reverse") {
    std::reverse(items.begin(), items.end());
    if (!self.is<std::string>()) return state.keep(std::move(items));
    std::string text;
    for (const TemplateValue& character : items) text += *character.get<std::string>();
    return state.keep(TemplateText{std::move(text), {}});
  }
  if (items.empty()) return TemplateUndefined{fmt::format("the {} of an empty list", name)};
  if (name == "first" || name == "last") return name == "first" ? items.front() : items.back();
  const bool with_case = arguments.is_set(0, "case_sensitive");  // of min and max
  return *std::min_element(items.begin(), items.end(), [&](const TemplateValue& a, const TemplateValue& b) {
    return is_less(a, b, with_case, /*reverse=*/call.name == "max");
  });
}

// Jinja's filters that go through a list take none, 0 and false for an empty one.
TemplateList items_if_any(const Call& call) {
  return call.self.truth() ? call.state.items_of(call.self) : TemplateList{};
}

// Takes the first argument, which is a name; empty: there is none.
std::string take_name(TemplateArguments& arguments, const std::string& user) {
  if (arguments.positional.empty()) return "";
  const std::string name = text_of(arguments.positional[0], user);
  arguments.positional.erase(arguments.positional.begin());
  return name;
}

// selectattr("role", "equalto", "user") and the like.
TemplateValue select(const Call& call) {
  const bool by_attribute = call.name.ends_with("attr"), keeps = call.name.starts_with("select");
  TemplateArguments rest = call.arguments;
  const std::string attribute = by_attribute ? take_name(rest, call.name) : "", test = take_name(rest, call.name);
  TemplateList chosen;
  for (const TemplateValue& item : items_if_any(call)) {
    const TemplateValue tested = by_attribute ? attribute_of(call.state, item, attribute) : item;
    if ((test.empty() ? tested.truth() : apply_test(call.state, test, tested, rest)) == keeps) chosen.push_back(item);
  }
  return call.state.keep(std::move(chosen));
}

// map(attribute="role") or map("trim").
TemplateValue map(const Call& call) {
  TemplateArguments rest = call.arguments;
  const TemplateValue* by = call.arguments.find(SIZE_MAX, "attribute");
  const std::string name = by ? text_of(*by, "map") : take_name(rest, "map");
  if (name.empty()) throw DataError("map needs the argument filter");
  if (!by && name == "map") throw DataError("map inside map is not supported");
  TemplateList results;
  for (const TemplateValue& item : items_if_any(call))
    results.push_back(by ? attribute_of(call.state, item, name) : apply_filter(call.state, name, item, rest));
  return call.state.keep(std::move(results));
}

}  // namespace

TemplateValue apply_filter(TemplateState& state, const std::string& name, const TemplateValue& self,
                           const TemplateArguments& arguments) {
  state.step();
  const Call call = {state, name, self, arguments};
  if (contains(kTextFilters, name)) return text_filter(call);
  if (contains(kListFilters, name)) return list_filter(call);
  if (contains(kSelections, name)) return select(call);
  if (name == "map") return map(call);
  if (name == "default" || name == "d") {
    const bool replaced = self.is<TemplateUndefined>() || (arguments.is_set(1, "boolean") && !self.truth());
    const TemplateValue* given = arguments.find(0, "default_value");
    return !replaced ? self : given ? *given : TemplateValue("");
  }
  if (name == "format") return state.keep(format_percent(to_text_with_origins(self), arguments.positional));
  if (name == "abs") {
    if (self.is<double>()) return std::abs(self.number());
    const std::int64_t integer = integer_of(self, "abs");
    return integer < -INT64_MAX ? integer : std::abs(integer);
  }
  throw DataError(fmt::format("the filter {} is not supported; known: map, default, format, abs, {}, {}, {}",
                              in_quotes(name), joined(kTextFilters, ", "), joined(kListFilters, ", "),
                              joined(kSelections, ", ")));
}

bool apply_test(TemplateState& state, const std::string& name, const TemplateValue& value,
                const TemplateArguments& arguments) {
  state.step();
  const auto other = [&]() -> const TemplateValue& {
    return needed_argument(arguments, 0, "other", "the test " + name);
  };
  const auto integer = [&] { return integer_of(value, "the test " + name); };
  if (name == "defined") return !value.is<TemplateUndefined>();
  if (name == "undefined") return value.is<TemplateUndefined>();
  if (name == "none") return value.is<TemplateNone>();
  if (name == "string") return value.is<std::string>();
  if (name == "mapping") return value.is<TemplateMap*>();
  if (name == "boolean") return value.is<bool>();
  if (name == "integer") return value.is<std::int64_t>();
  if (name == "float") return value.is<double>();
  if (name == "number") return value.is_number();
  if (name == "true" || name == "false") return value.is<bool>() && value.truth() == (name == "true");
  if (name == "callable") return value.is<TemplateFunction>();
  if (name == "iterable" || name == "sequence")
    return value.is<std::string>() || value.is<TemplateList*>() || value.is<TemplateMap*>() ||
           value.is<TemplateUndefined>();
  if (name == "odd") return integer() % 2 != 0;
  if (name == "even") return integer() % 2 == 0;
  if (name == "divisibleby") {
    const std::int64_t by = integer_of(other(), name);
    if (by == 0 || by == -1) throw DataError("divisibleby needs another number");
    return integer() % by == 0;
  }
  if (name == "lt" || name == "gt")
    return is_less(name == "lt" ? value : other(), name == "lt" ? other() : value, true);
  if (name == "le" || name == "ge")
    return !is_less(name == "le" ? other() : value, name == "le" ? value : other(), true);
  if (name == "equalto" || name == "eq" || name == "sameas") return value == other();
  if (name == "ne") return !(value == other());
  if (name == "in") {
    const TemplateList items = state.items_of(other());
    if (other().is<std::string>()) return other().get<std::string>()->find(text_of(value, "in")) != std::string::npos;
    return std::find(items.begin(), items.end(), value) != items.end();
  }
  throw DataError(fmt::format(
      "the test {} is not supported; known: defined, undefined, none, string, mapping, boolean, integer, float, "
      "number, "
      "true, false, callable, iterable, sequence, odd, even, divisibleby, lt, gt, le, ge, equalto, eq, sameas, ne, in",
      in_quotes(name)));
}

}  // namespace braid
