// The filters and tests of chat templates.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_interpreter.h"
#include "data/text/template_value.h"

namespace braid {
namespace {

const std::vector<std::string> kTextFilters = {"trim", "upper",   "lower",  "title",  "capitalize", "string",
                                               "safe", "replace", "tojson", "indent", "int",        "float"};
const std::vector<std::string> kListFilters = {"length",  "count", "first",  "last", "list", "join",
                                               "reverse", "items", "unique", "sort", "min",  "max"};
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

bool is_less(const TemplateValue& a, const TemplateValue& b, bool with_case) {
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (!a.is<std::string>() || !b.is<std::string>())
    throw DataError(fmt::format("{} and {} cannot be sorted", a.type_name(), b.type_name()));
  const std::string &left = *a.get<std::string>(), &right = *b.get<std::string>();
  return with_case ? left < right : lower_text(left) < lower_text(right);
}

}  // namespace

TemplateValue TemplateBuiltins::filter(const std::string& name, const TemplateValue& value,
                                       const TemplateArguments& arguments) {
  budget_.step();
  if (contains(kTextFilters, name)) return text_filter(name, value, arguments);
  if (contains(kListFilters, name)) return list_filter(name, value, arguments);
  if (contains(kSelections, name)) return select(name, value, arguments);
  if (name == "map") return map(value, arguments);
  if (name == "default" || name == "d") {
    const bool replaced = value.is<TemplateUndefined>() || (arguments.is_set(1, "boolean") && !value.truth());
    const TemplateValue* given = arguments.find(0, "default_value");
    return !replaced ? value : given ? *given : TemplateValue("");
  }
  if (name == "dictsort") return dict_sorted(value, arguments);
  if (name == "format") return keep(format_percent(to_text_with_origins(value), arguments.positional));
  if (name == "abs") {
    if (value.is<double>()) return std::abs(value.number());
    const std::int64_t integer = integer_of(value, "abs");
    return integer < -INT64_MAX ? integer : std::abs(integer);
  }
  std::vector<std::string> known = {"map", "default", "abs", "dictsort", "format"};
  for (const auto* names : {&kTextFilters, &kListFilters, &kSelections})
    known.insert(known.end(), names->begin(), names->end());
  throw DataError(fmt::format("the filter {} is not supported; known: {}", in_quotes(name), fmt::join(known, ", ")));
}

TemplateValue TemplateBuiltins::text_filter(const std::string& name, const TemplateValue& value,
                                            const TemplateArguments& arguments) {
  if (name == "int") return to_integer(value);
  if (name == "float") return to_float(value);
  if (name == "tojson") {
    return keep(to_json(value, json_style(arguments)));
  }
  const TemplateText text = to_text_with_origins(value);
  budget_.bytes(text.text.size());
  if (name == "string" || name == "safe") return text;
  if (name == "indent") {
    const TemplateValue* width = arguments.find(0, "width");
    return keep(indented(text, width ? integer_of(*width, name) : 4, arguments.is_set(1, "first")));
  }
  return text_method(text, name == "trim" ? "strip" : name, arguments);
}

TemplateValue TemplateBuiltins::list_filter(const std::string& name, const TemplateValue& value,
                                            const TemplateArguments& arguments) {
  if ((name == "length" || name == "count") && value.is<std::string>())
    return static_cast<std::int64_t>(character_count(*value.get<std::string>()));
  if (name == "items") {
    if (value.is<TemplateUndefined>()) return keep(TemplateList{});
    return method(value, "items", {});
  }
  TemplateList items = items_of(value);
  if (name == "length" || name == "count") return static_cast<std::int64_t>(items.size());
  if (name == "first" || name == "last") {
    if (items.empty()) return TemplateUndefined{fmt::format("the {} item of an empty list", name)};
    return name == "first" ? items.front() : items.back();
  }
  if (name == "join") {
    const TemplateValue *separator = arguments.find(0, "d"), *by = arguments.find(1, "attribute");
    TemplateText text;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::size_t before = text.text.size();
      if (i > 0 && separator) text.append(to_text_with_origins(*separator));
      text.append(to_text_with_origins(by ? attribute(items[i], text_of(*by, name)) : items[i]));
      budget_.bytes(text.text.size() - before);
    }
    return text;
  }
  if (name == "reverse") {
    std::reverse(items.begin(), items.end());
    if (!value.is<std::string>()) return keep(std::move(items));
    std::string text;
    for (const TemplateValue& character : items) text += *character.get<std::string>();
    return keep(TemplateText{std::move(text), {}});
  }
  if (name == "sort") return sorted(std::move(items), arguments);
  if (name == "min" || name == "max") {  // (case_sensitive)
    if (items.empty()) return TemplateUndefined{fmt::format("the {} of an empty list", name)};
    const bool with_case = arguments.is_set(0, "case_sensitive");
    const auto is_before = [&](const TemplateValue& a, const TemplateValue& b) {
      return name == "min" ? is_less(a, b, with_case) : is_less(b, a, with_case);
    };
    return *std::min_element(items.begin(), items.end(), is_before);
  }
  if (name == "unique") {
    TemplateList seen;
    for (const TemplateValue& item : items) {
      for (std::size_t i = 0; i < seen.size(); ++i) budget_.step();
      if (std::find(seen.begin(), seen.end(), item) == seen.end()) seen.push_back(item);
    }
    return keep(std::move(seen));
  }
  return keep(std::move(items));
}

// sort(reverse, case_sensitive, attribute).
TemplateValue TemplateBuiltins::sorted(TemplateList items, const TemplateArguments& arguments) {
  const bool reverse = arguments.is_set(0, "reverse"), with_case = arguments.is_set(1, "case_sensitive");
  const TemplateValue* by = arguments.find(2, "attribute");
  const auto key = [&](const TemplateValue& item) { return by ? attribute(item, text_of(*by, "sort")) : item; };
  std::stable_sort(items.begin(), items.end(), [&](const TemplateValue& a, const TemplateValue& b) {
    budget_.step();
    return is_less(key(reverse ? b : a), key(reverse ? a : b), with_case);
  });
  return keep(std::move(items));
}

// dictsort(case_sensitive, by, reverse): pairs of keys and values.
TemplateValue TemplateBuiltins::dict_sorted(const TemplateValue& value, const TemplateArguments& arguments) {
  const bool with_case = arguments.is_set(0, "case_sensitive"), reverse = arguments.is_set(2, "reverse");
  const TemplateValue* by = arguments.find(1, "by");
  const std::size_t part = by && text_of(*by, "dictsort") == "value" ? 1 : 0;
  TemplateList pairs = items_of(method(value, "items", {}));
  std::stable_sort(pairs.begin(), pairs.end(), [&](const TemplateValue& a, const TemplateValue& b) {
    budget_.step();
    const TemplateList &left = **(reverse ? b : a).get<TemplateList*>(),
                       &right = **(reverse ? a : b).get<TemplateList*>();
    return is_less(left[part], right[part], with_case);
  });
  return keep(std::move(pairs));
}

// Jinja's filters that go through a list take none, 0 and false for an empty one.
TemplateList TemplateBuiltins::items_if_any(const TemplateValue& value) {
  return value.truth() ? items_of(value) : TemplateList{};
}

// selectattr("role", "equalto", "user") and the like.
TemplateValue TemplateBuiltins::select(const std::string& name, const TemplateValue& value,
                                       const TemplateArguments& arguments) {
  const bool by_attribute = name.ends_with("attr"), keeps = name.starts_with("select");
  TemplateArguments rest = arguments;
  std::string attribute_name, test_name;
  const auto take = [&](std::string& text) {
    if (rest.positional.empty()) return;
    text = text_of(rest.positional[0], name);
    rest.positional.erase(rest.positional.begin());
  };
  if (by_attribute) take(attribute_name);
  take(test_name);
  TemplateList chosen;
  for (const TemplateValue& item : items_if_any(value)) {
    const TemplateValue tested = by_attribute ? attribute(item, attribute_name) : item;
    if ((test_name.empty() ? tested.truth() : test(test_name, tested, rest)) == keeps) chosen.push_back(item);
  }
  return keep(std::move(chosen));
}

// map(attribute="role") or map("trim").
TemplateValue TemplateBuiltins::map(const TemplateValue& value, const TemplateArguments& arguments) {
  TemplateArguments rest = arguments;
  TemplateList results;
  if (const TemplateValue* by = arguments.find(SIZE_MAX, "attribute")) {
    for (const TemplateValue& item : items_if_any(value)) results.push_back(attribute(item, text_of(*by, "map")));
    return keep(std::move(results));
  }
  const std::string name = text_of(needed_argument(arguments, 0, "filter", "map"), "map");
  if (name == "map") throw DataError("map inside map is not supported");
  rest.positional.erase(rest.positional.begin());
  for (const TemplateValue& item : items_if_any(value)) results.push_back(filter(name, item, rest));
  return keep(std::move(results));
}

bool TemplateBuiltins::test(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments) {
  budget_.step();
  const auto other = [&]() -> const TemplateValue& {
    return needed_argument(arguments, 0, "other", "the test " + name);
  };
  const auto integer = [&] { return integer_of(value, "the test " + name); };
  static const std::map<std::string, std::function<bool(const TemplateValue&)>> simple = {
      {"defined", [](const auto& v) { return !v.template is<TemplateUndefined>(); }},
      {"undefined", [](const auto& v) { return v.template is<TemplateUndefined>(); }},
      {"none", [](const auto& v) { return v.template is<TemplateNone>(); }},
      {"string", [](const auto& v) { return v.template is<std::string>(); }},
      {"mapping", [](const auto& v) { return v.template is<TemplateMap*>(); }},
      {"boolean", [](const auto& v) { return v.template is<bool>(); }},
      {"integer", [](const auto& v) { return v.template is<std::int64_t>(); }},
      {"float", [](const auto& v) { return v.template is<double>(); }},
      {"number", [](const auto& v) { return v.is_number(); }},
      {"true", [](const auto& v) { return v.template is<bool>() && v.truth(); }},
      {"false", [](const auto& v) { return v.template is<bool>() && !v.truth(); }},
      {"callable", [](const auto& v) { return v.template is<TemplateFunction>(); }},
  };
  if (const auto found = simple.find(name); found != simple.end()) return found->second(value);
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
    const TemplateList items = items_of(other());
    if (other().is<std::string>()) return other().get<std::string>()->find(text_of(value, "in")) != std::string::npos;
    return std::find(items.begin(), items.end(), value) != items.end();
  }
  std::vector<std::string> known = {"iterable", "sequence", "odd", "even", "divisibleby", "equalto", "ne",
                                    "sameas",   "in",       "lt",  "gt",   "le",          "ge"};
  for (const auto& entry : simple) known.push_back(entry.first);
  throw DataError(fmt::format("the test {} is not supported; known: {}", in_quotes(name), fmt::join(known, ", ")));
}

}  // namespace braid
