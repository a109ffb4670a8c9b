// What chat templates may do with values: items, attributes, filters, tests, methods and functions.
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

const std::vector<std::string> kFunctions = {"range", "namespace", "dict", "raise_exception", "strftime_now"};
const std::vector<std::string> kTextMethods = {
    "strip",  "lstrip",       "rstrip",       "startswith", "endswith",   "split",  "rsplit", "replace",
    "upper",  "lower",        "title",        "capitalize", "find",       "join",   "count",  "splitlines",
    "format", "removeprefix", "removesuffix", "partition",  "rpartition", "isdigit"};
const std::vector<std::string> kMapMethods = {"items", "keys", "values", "get"};
constexpr int kDeepest = 1000;  // statements, expressions and macro calls inside each other

// A call of a filter, a test, a method or a function.
struct Call {
  TemplateState& state;
  const std::string& name;
  const TemplateValue& self;
  const TemplateArguments& arguments;

  const TemplateValue* find(std::size_t index, const char* key) const { return arguments.find(index, key); }
  bool is_set(std::size_t index, const char* key) const { return arguments.is_set(index, key); }
  const TemplateValue& needed(std::size_t index, const char* key) const { return arguments.needed(index, key, name); }
  const std::string& text(std::size_t index, const char* key = "text") const {
    return text_of(needed(index, key), name);
  }
  std::int64_t integer(std::size_t index, const char* key, std::int64_t otherwise) const {
    const TemplateValue* given = find(index, key);
    return given ? integer_of(*given, name) : otherwise;
  }
};

TemplateValue call_method(const Call& call);

std::int64_t character_count(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

TemplateList list_of(const TemplateText& text, const std::vector<std::string_view>& parts) {
  return vector_of<TemplateValue>(parts, [&](std::string_view part) { return text.part(part); });
}

// Joins characters into a text, which has no origins.
TemplateValue text_of_all(TemplateState& state, const TemplateList& characters) {
  std::string text;
  for (const TemplateValue& character : characters) text += *character.string();
  return state.keep(TemplateText{std::move(text), {}});
}

// indent(width, first)
TemplateText indented(const Call& call, const TemplateText& text) {
  const std::int64_t width = call.integer(0, "width", 4);
  const bool first = call.is_set(1, "first");
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

// tojson(ensure_ascii, indent, separators, sort_keys), as transformers defines it.
JsonStyle json_style(const Call& call) {
  JsonStyle style = {.ensure_ascii = call.is_set(0, "ensure_ascii"), .sort_keys = call.is_set(3, "sort_keys")};
  const TemplateValue *indent = call.find(1, "indent"), *separators = call.find(2, "separators");
  if (indent && !indent->is<TemplateNone>())
    style.indent = static_cast<int>(std::clamp<std::int64_t>(integer_of(*indent, "tojson"), -1, 16));
  if (style.indent >= 0) style.item_separator = ",";
  if (separators && !separators->is<TemplateNone>()) {
    const TemplateList* list = separators->list();
    if (!list || list->size() != 2) throw DataError("tojson needs two separators");
    style.item_separator = text_of((*list)[0], "tojson");
    style.key_separator = text_of((*list)[1], "tojson");
  }
  return style;
}

bool is_less(const TemplateValue& a, const TemplateValue& b, bool with_case, bool reverse = false) {
  if (reverse) return is_less(b, a, with_case);
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (!a.string() || !b.string())
    throw DataError(fmt::format("{} and {} cannot be sorted", a.type_name(), b.type_name()));
  return with_case ? *a.string() < *b.string() : lower_text(*a.string()) < lower_text(*b.string());
}

TemplateValue text_filter(const Call& call) {
  const auto& [state, name, self, arguments] = call;
  if (name == "int" || name == "float") {
    const std::string digits(self.string() ? strip_text(*self.string(), nullptr, true, true) : "");
    if (name == "int" && self.string()) return parse_int64(digits).value_or(0);
    const double number = self.string() ? parse_double(digits).value_or(0) : self.is_number() ? self.number() : 0;
    if (name == "float") return number;
    return std::abs(number) < 9e18 ? static_cast<std::int64_t>(number) : std::int64_t{0};
  }
  if (name == "tojson") return state.keep(to_json(self, json_style(call)));
  const TemplateText text = self.text();
  state.bytes(text.text.size());
  if (name == "string" || name == "safe") return text;
  if (name == "indent") return state.keep(indented(call, text));
  return call_method({state, name == "trim" ? "strip" : name, text, arguments});
}

// join(d, attribute)
TemplateValue join(const Call& call, const TemplateList& items) {
  const TemplateValue *separator = call.find(0, "d"), *by = call.find(1, "attribute");
  TemplateText text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t before = text.text.size();
    if (i > 0 && separator) text.append(separator->text());
    text.append((by ? attribute_of(call.state, items[i], text_of(*by, "join")) : items[i]).text());
    call.state.bytes(text.text.size() - before);
  }
  return text;
}

// sort(reverse, case_sensitive, attribute), or dictsort(case_sensitive, by, reverse) of pairs of keys and values.
TemplateValue sorted(const Call& call, TemplateList items, bool is_map) {
  const bool reverse = call.is_set(is_map ? 2 : 0, "reverse"),
             with_case = call.is_set(is_map ? 0 : 1, "case_sensitive");
  const TemplateValue* by = call.find(is_map ? 1 : 2, is_map ? "by" : "attribute");
  const bool by_value = is_map && by && text_of(*by, call.name) == "value";
  const auto key = [&](const TemplateValue& item) {
    if (is_map) return (*item.list())[by_value];
    return by ? attribute_of(call.state, item, text_of(*by, call.name)) : item;
  };
  std::ranges::stable_sort(items, [&](const TemplateValue& a, const TemplateValue& b) {
    call.state.step();
    return is_less(key(a), key(b), with_case, reverse);
  });
  return call.state.keep(std::move(items));
}

TemplateValue unique(const Call& call, const TemplateList& items) {
  TemplateList seen;
  for (const TemplateValue& item : items) {
    for (std::size_t i = 0; i < seen.size(); ++i) call.state.step();
    if (std::ranges::find(seen, item) == seen.end()) seen.push_back(item);
  }
  return call.state.keep(std::move(seen));
}

TemplateValue list_filter(const Call& call) {
  const auto& [state, name, self, arguments] = call;
  if ((name == "length" || name == "count") && self.string()) return character_count(*self.string());
  if (name == "dictsort" || (name == "items" && !self.is<TemplateUndefined>())) {
    const TemplateValue pairs = call_method({state, "items", self, {}});
    return name == "items" ? pairs : sorted(call, state.items_of(pairs), /*is_map=*/true);
  }
  TemplateList items = state.items_of(self);
  if (name == "length" || name == "count") return std::ssize(items);
  if (name == "join") return join(call, items);
  if (name == "sort") return sorted(call, std::move(items), /*is_map=*/false);
  if (name == "unique") return unique(call, items);
  if (name == "list" || name == "items") return state.keep(std::move(items));
  if (name == "reverse") {
    std::ranges::reverse(items);
    return self.string() ? text_of_all(state, items) : state.keep(std::move(items));
  }
  if (items.empty()) return TemplateUndefined{fmt::format("the {} of an empty list", name)};
  if (name == "first" || name == "last") return name == "first" ? items.front() : items.back();
  const bool with_case = call.is_set(0, "case_sensitive");  // of min and max
  return *std::ranges::min_element(items, [&](const TemplateValue& a, const TemplateValue& b) {
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
  const TemplateValue* by = call.find(SIZE_MAX, "attribute");
  const std::string name = by ? text_of(*by, "map") : take_name(rest, "map");
  if (name.empty()) throw DataError("map needs the argument filter");
  if (!by && name == "map") throw DataError("map inside map is not supported");
  TemplateList results;
  for (const TemplateValue& item : items_if_any(call))
    results.push_back(by ? attribute_of(call.state, item, name) : apply_filter(call.state, name, item, rest));
  return call.state.keep(std::move(results));
}

TemplateValue text_method(const Call& call) {
  TemplateState& state = call.state;
  const std::string& name = call.name;
  const TemplateText given = call.self.text();
  const std::string& self = given.text;
  const TemplateValue* first = call.find(0, "sep");
  const bool has_text = first && !first->is<TemplateNone>();
  const auto list = [&](const std::vector<std::string_view>& parts) {
    state.bytes(self.size());
    return state.keep(list_of(given, parts));
  };
  // The changed text has as many bytes, so its origins stay.
  const auto with_case = [&](std::string changed) {
    return state.keep(TemplateText{std::move(changed), given.origins});
  };
  // Whether any of these is at an end; the argument is a string or a list of them.
  const auto has_any = [&](const char* key, const auto& has_it) {
    const TemplateValue& wanted = call.needed(0, key);
    return std::ranges::any_of(wanted.list() ? *wanted.list() : TemplateList{wanted},
                               [&](const TemplateValue& one) { return has_it(text_of(one, call.name)); });
  };
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return state.keep(
        given.part(strip_text(self, has_text ? &call.text(0) : nullptr, name != "rstrip", name != "lstrip")));
  if (name == "startswith") return has_any("prefix", [&](const std::string& one) { return self.starts_with(one); });
  if (name == "endswith") return has_any("suffix", [&](const std::string& one) { return self.ends_with(one); });
  if (name == "split")
    return list(split_text(self, has_text ? &text_of(*first, name) : nullptr, call.integer(1, "maxsplit", -1)));
  if (name == "rsplit") return list(rsplit_text(self, call.text(0, "sep"), call.integer(1, "maxsplit", -1)));
  if (name == "splitlines") {
    const std::string end = "\n";
    std::vector<std::string_view> lines = split_text(self, &end, -1);
    if (lines.back().empty()) lines.pop_back();
    return list(lines);
  }
  if (name == "replace") {
    state.bytes(self.size() * (call.text(1).size() / std::max<std::size_t>(call.text(0).size(), 1) + 1));
    return replaced(given, call.text(0), call.needed(1, "text").text(), call.integer(2, "count", -1));
  }
  if (name == "upper") return with_case(upper_text(self));
  if (name == "lower") return with_case(lower_text(self));
  if (name == "title") return with_case(title_text(self));
  if (name == "capitalize") return with_case(capitalize_text(self));
  if (name == "find") {
    const std::size_t at = self.find(call.text(0));
    return at == std::string::npos ? std::int64_t{-1} : character_count(std::string_view(self).substr(0, at));
  }
  if (name == "format") return state.keep(format_braces(given, call.arguments));
  if (name == "isdigit") return !self.empty() && self.find_first_not_of("0123456789") == self.npos;
  if (name == "join") return apply_filter(state, "join", call.needed(0, "list"), {{given}, {}});
  const std::string& other = call.text(0);
  if (name == "removeprefix") return self.starts_with(other) ? given.part(other.size(), self.npos) : given;
  if (name == "removesuffix") return self.ends_with(other) ? given.part(0, self.size() - other.size()) : given;
  if (name == "count") return std::ssize(split_text(self, &other, -1)) - 1;
  const bool is_first = name == "partition";  // else rpartition
  const std::size_t found = is_first ? self.find(other) : self.rfind(other);
  const std::size_t at = found != self.npos ? found : is_first ? self.size() : 0;
  const std::size_t end = found != self.npos ? found + other.size() : at;
  return state.keep(TemplateList{given.part(0, at), given.part(at, end - at), given.part(end, self.npos)});
}

TemplateValue map_method(const Call& call) {
  const TemplateMap& self = *call.self.map();
  if (call.name == "get") {
    const TemplateValue* found = self.find(call.text(0, "key"));
    const TemplateValue* otherwise = call.find(1, "default");
    return found ? *found : otherwise ? *otherwise : TemplateValue(TemplateNone{});
  }
  TemplateList items;
  for (const auto& [key, value] : self.items) {
    call.state.step();
    if (call.name == "keys") items.push_back(self.key(key));
    if (call.name == "values") items.push_back(value);
    if (call.name == "items") items.push_back(call.state.keep(TemplateList{self.key(key), value}));
  }
  return call.state.keep(std::move(items));
}

const std::vector<std::string>& methods_of(const TemplateValue& value) {
  static const std::vector<std::string> none;
  if (value.string()) return kTextMethods;
  return value.map() && !value.map()->is_namespace ? kMapMethods : none;
}

TemplateValue call_method(const Call& call) {
  call.state.step();
  if (!contains(methods_of(call.self), call.name))
    throw DataError(fmt::format("{} has no method {}", call.self.type_name(), in_quotes(call.name)));
  return call.self.map() ? map_method(call) : text_method(call);
}

// range(end), range(begin, end) or range(begin, end, step)
TemplateValue range(const Call& call) {
  const std::size_t count = call.arguments.positional.size();
  if (count < 1 || count > 3) throw DataError("range needs one to three integers");
  const auto bound = [&](std::size_t i) { return integer_of(call.arguments.positional[i], call.name); };
  const std::int64_t begin = count > 1 ? bound(0) : 0, end = bound(count > 1 ? 1 : 0), step = count > 2 ? bound(2) : 1;
  constexpr std::int64_t kFar = std::int64_t{1} << 40;
  if (step == 0 || std::abs(begin / 2) > kFar || std::abs(end / 2) > kFar || std::abs(step / 2) > kFar)
    throw DataError("range needs smaller integers, and a step other than 0");
  TemplateList numbers;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    call.state.step();
    numbers.emplace_back(i);
  }
  return call.state.keep(std::move(numbers));
}

TemplateValue call_function(const Call& call) {
  const auto& [state, name, self, arguments] = call;
  state.step();
  if (name == "raise_exception")
    throw DataError(fmt::format("the template refuses the conversation: {}", to_text(call.needed(0, "message"))));
  if (name == "strftime_now") {
    const std::string& format = call.text(0, "format");
    std::string text(format.empty() ? 0 : 16 * format.size() + 256, '\0');
    text.resize(std::strftime(text.data(), text.size(), format.c_str(), &state.now));
    return text;
  }
  if (name == "range") return range(call);
  if (!arguments.positional.empty()) throw DataError(fmt::format("{} needs named arguments", name));
  return state.keep(TemplateMap{.items = arguments.named, .is_namespace = name == "namespace"});
}

}  // namespace

TemplateDepth TemplateState::deeper() {
  if (depth_ == kDeepest) throw DataError("the template is nested too deep, or a macro calls itself for ever");
  return TemplateDepth(depth_);
}

void TemplateState::throw_exhausted(const char* what) {
  throw DataError(fmt::format("the template needs {}; it may be in an endless loop", what));
}

TemplateList TemplateState::items_of(const TemplateValue& value) {
  TemplateList items;
  if (const TemplateList* list = value.list()) {
    items = *list;
  } else if (const TemplateMap* map = value.map()) {
    for (const auto& [key, item] : map->items) items.push_back(map->key(key));
  } else if (const std::string* text = value.string()) {
    bytes(text->size() * sizeof(TemplateValue));
    const TemplateText whole = value.text();
    items = list_of(whole, characters_of(whole.text));
  } else if (!value.is<TemplateUndefined>()) {
    throw DataError(fmt::format("{} is not a list", value.type_name()));
  }
  bytes(items.size() * sizeof(TemplateValue));
  return items;
}

TemplateValue apply_filter(TemplateState& state, const std::string& name, const TemplateValue& self,
                           const TemplateArguments& arguments) {
  state.step();
  const Call call = {state, name, self, arguments};
  if (contains(kTextFilters, name)) return text_filter(call);
  if (contains(kListFilters, name)) return list_filter(call);
  if (contains(kSelections, name)) return select(call);
  if (name == "map") return map(call);
  if (name == "default" || name == "d") {
    const bool replaced = self.is<TemplateUndefined>() || (call.is_set(1, "boolean") && !self.truth());
    const TemplateValue* given = call.find(0, "default_value");
    return !replaced ? self : given ? *given : TemplateValue("");
  }
  if (name == "format") return state.keep(format_percent(self.text(), arguments.positional));
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
  const auto other = [&]() -> const TemplateValue& { return arguments.needed(0, "other", "the test " + name); };
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
    return value.string() || value.list() || value.map() || value.is<TemplateUndefined>();
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
    if (other().string()) return other().string()->find(text_of(value, "in")) != std::string::npos;
    return std::ranges::find(items, value) != items.end();
  }
  throw DataError(fmt::format(
      "the test {} is not supported; known: defined, undefined, none, string, mapping, boolean, integer, float, "
      "number, true, false, callable, iterable, sequence, odd, even, divisibleby, lt, gt, le, ge, equalto, eq, sameas, "
      "ne, in",
      in_quotes(name)));
}

TemplateFunction builtin_function(TemplateState& state, const std::string& name) {
  if (!contains(kFunctions, name)) return nullptr;
  return template_function([&state, name](const TemplateArguments& arguments) {
    return call_function({state, name, {}, arguments});
  });
}

TemplateValue call_value(const TemplateValue& function, const TemplateArguments& arguments) {
  if (const auto* callable = function.get<TemplateFunction>()) return (**callable)(arguments);
  const auto* undefined = function.get<TemplateUndefined>();
  if (!undefined) throw DataError(fmt::format("{} is not a function", function.type_name()));
  throw DataError(fmt::format("{} is not a function; known functions: {}; methods of strings: {}; of mappings: {}",
                              in_quotes(undefined->name), joined(kFunctions, ", "), joined(kTextMethods, ", "),
                              joined(kMapMethods, ", ")));
}

TemplateValue attribute_of(TemplateState& state, const TemplateValue& value, const std::string& name) {
  if (const auto* undefined = value.get<TemplateUndefined>())
    throw DataError(fmt::format("{} is undefined, so it has no {}", in_quotes(undefined->name), in_quotes(name)));
  if (contains(methods_of(value), name))
    return template_function([&state, value, name](const TemplateArguments& arguments) {
      return call_method({state, name, value, arguments});
    });
  const TemplateValue* found = value.map() ? value.map()->find(name) : nullptr;
  return found ? *found : TemplateValue(TemplateUndefined{name});
}

TemplateValue item_of(TemplateState& state, const TemplateValue& value, const TemplateValue& index) {
  if (const std::string* key = index.string()) {
    const TemplateValue* found = value.map() ? value.map()->find(*key) : nullptr;
    return found ? *found : attribute_of(state, value, *key);
  }
  if (value.is<TemplateUndefined>()) return attribute_of(state, value, to_text(index));
  if (const TemplateMap* map = value.map()) {
    const TemplateValue* found = map->at(index);
    return found ? *found : TemplateValue(TemplateUndefined{to_text(index)});
  }
  const TemplateList characters = value.list() ? TemplateList() : state.items_of(value);
  const TemplateList& items = value.list() ? *value.list() : characters;
  std::int64_t at = integer_of(index, "an index");
  if (at < 0) at += std::ssize(items);
  const bool exists = at >= 0 && at < std::ssize(items);
  return exists ? items[at] : TemplateValue(TemplateUndefined{fmt::format("item {}", at)});
}

// Python's rules: negative bounds count from the end, and bounds outside are cut.
TemplateValue slice_of(TemplateState& state, const TemplateValue& value, const std::array<TemplateValue, 3>& bounds) {
  const bool is_text = value.string() != nullptr;
  if (!is_text && !value.list()) throw DataError(fmt::format("{} has no slices", value.type_name()));
  const TemplateList items = state.items_of(value);
  const std::int64_t size = std::ssize(items);
  const std::int64_t by = bounds[2].is<TemplateNone>() ? 1 : integer_of(bounds[2], "a slice");
  if (by == 0) throw DataError("a slice needs a step other than 0");
  const std::int64_t least = by > 0 ? 0 : -1, most = by > 0 ? size : size - 1;
  const auto bound = [&](const TemplateValue& given, std::int64_t otherwise) {
    if (given.is<TemplateNone>()) return otherwise;
    const std::int64_t at = integer_of(given, "a slice");
    return std::clamp(at < 0 ? at + size : at, least, most);
  };
  const std::int64_t from = bound(bounds[0], by > 0 ? 0 : size - 1), to = bound(bounds[1], by > 0 ? size : -1);
  if (is_text && by == 1) {
    std::size_t begin = 0, bytes = 0;
    for (std::int64_t i = 0; i < to; ++i) (i < from ? begin : bytes) += items[i].string()->size();
    return value.text().part(begin, bytes);
  }
  TemplateList chosen;
  for (std::int64_t i = from; by > 0 ? i < to : i > to; i += std::clamp(by, -size - 1, size + 1))
    chosen.push_back(items[i]);
  return is_text ? text_of_all(state, chosen) : state.keep(std::move(chosen));
}

}  // namespace braid
