// What chat templates may do with values: items, attributes, methods and functions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_interpreter.h"

namespace braid {
namespace {

const std::vector<std::string> kFunctions = {"range", "namespace", "dict", "raise_exception", "strftime_now"};
const std::vector<std::string> kTextMethods = {
    "strip",  "lstrip",       "rstrip",       "startswith", "endswith",   "split",  "rsplit", "replace",
    "upper",  "lower",        "title",        "capitalize", "find",       "join",   "count",  "splitlines",
    "format", "removeprefix", "removesuffix", "partition",  "rpartition", "isdigit"};
const std::vector<std::string> kMapMethods = {"items", "keys", "values", "get"};
const std::string kNothing;
constexpr int kDeepest = 1000;             // statements, expressions and macro calls inside each other
constexpr std::size_t kScopeBytes = 1000;  // roughly what a scope and its variables take

// Whether `text` has one of these at an end; the argument is a string or a list of them.
template <class HasIt>
bool any_of_texts(const TemplateValue& wanted, const std::string& user, const HasIt& has_it) {
  const auto* list = wanted.get<TemplateList*>();
  if (!list) return has_it(text_of(wanted, user));
  return std::any_of((*list)->begin(), (*list)->end(),
                     [&](const TemplateValue& one) { return has_it(text_of(one, user)); });
}

// The characters from `from` up to `to`.
TemplateText part_of(const TemplateText& text, const TemplateList& characters, std::int64_t from, std::int64_t to) {
  std::size_t begin = 0, size = 0;
  for (std::int64_t i = 0; i < to; ++i)
    (i < from ? begin : size) += characters[static_cast<std::size_t>(i)].get<std::string>()->size();
  return text.part(begin, size);
}

TemplateText stripped(const TemplateText& text, const std::string* characters, bool left, bool right) {
  const std::size_t size = strip_text(text.text, characters, left, right).size();
  const std::size_t begin = left ? text.text.size() - strip_text(text.text, characters, true, false).size() : 0;
  return text.part(begin, size);
}

// The parts of a text, in order, with a separator between them; null: white space.
TemplateList parts_of(const TemplateText& text, const std::vector<std::string>& parts, const std::string* separator) {
  TemplateList result;
  std::size_t at = 0;
  for (const std::string& part : parts) {
    if (!separator) at = text.text.find(part, at);
    result.emplace_back(text.part(at, part.size()));
    at += part.size() + (separator ? separator->size() : 0);
  }
  return result;
}

const std::vector<std::string>& methods_of(const TemplateValue& value) {
  static const std::vector<std::string> none;
  if (value.is<std::string>()) return kTextMethods;
  return value.is<TemplateMap*>() && !(*value.get<TemplateMap*>())->is_namespace ? kMapMethods : none;
}

std::string time_text(const std::string& format, const std::tm& time) {
  if (format.empty()) return "";
  std::string text(16 * format.size() + 256, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &time));
  return text;
}

TemplateValue text_method(TemplateState& state, const TemplateText& given, const std::string& name,
                          const TemplateArguments& arguments) {
  const std::string& self = given.text;
  const TemplateValue* first = arguments.find(0, "sep");
  const bool has_text = first && !first->is<TemplateNone>();
  const auto text = [&](std::size_t i) -> const std::string& {
    return text_of(needed_argument(arguments, i, "text", name), name);
  };
  const auto count = [&](std::size_t i, const char* key) {
    const TemplateValue* most = arguments.find(i, key);
    return most ? integer_of(*most, name) : -1;
  };
  const auto list = [&](const std::vector<std::string>& parts, const std::string* separator) {
    state.bytes(self.size());
    return state.keep(parts_of(given, parts, separator));
  };
  const auto with_case = [&](std::string changed) {  // of as many bytes
    return state.keep(TemplateText{std::move(changed), given.origins});
  };
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return state.keep(stripped(given, has_text ? &text(0) : nullptr, name != "rstrip", name != "lstrip"));
  if (name == "startswith")
    return any_of_texts(needed_argument(arguments, 0, "prefix", name), name,
                        [&](const auto& t) { return self.starts_with(t); });
  if (name == "endswith")
    return any_of_texts(needed_argument(arguments, 0, "suffix", name), name,
                        [&](const auto& t) { return self.ends_with(t); });
  if (name == "split") {
    const std::string* separator = has_text ? &text_of(*first, name) : nullptr;
    return list(split_text(self, separator, count(1, "maxsplit")), separator);
  }
  if (name == "rsplit") {
    const std::string& separator = text_of(needed_argument(arguments, 0, "sep", name), name);
    return list(rsplit_text(self, separator, count(1, "maxsplit")), &separator);
  }
  if (name == "splitlines") {
    const std::string end = "\n";
    return list(lines_of(self), &end);
  }
  if (name == "replace") {
    state.bytes(self.size() * (text(1).size() / std::max<std::size_t>(text(0).size(), 1) + 1));
    return replaced(given, text(0), arguments.find(1, "text")->text(), count(2, "count"));
  }
  if (name == "upper") return with_case(upper_text(self));
  if (name == "lower") return with_case(lower_text(self));
  if (name == "title") return with_case(title_text(self));
  if (name == "capitalize") return with_case(capitalize_text(self));
  if (name == "find") {
    const std::size_t at = self.find(text(0));
    return at == std::string::npos ? std::int64_t{-1}
                                   : static_cast<std::int64_t>(character_count(std::string_view(self).substr(0, at)));
  }
  if (name == "format") return state.keep(format_braces(given, arguments));
  if (name == "removeprefix") return self.starts_with(text(0)) ? given.part(text(0).size(), self.npos) : given;
  if (name == "removesuffix") return self.ends_with(text(0)) ? given.part(0, self.size() - text(0).size()) : given;
  if (name == "isdigit") return !self.empty() && self.find_first_not_of("0123456789") == self.npos;
  if (name == "partition" || name == "rpartition") {
    const std::size_t at = name == "partition" ? self.find(text(0)) : self.rfind(text(0));
    if (at == self.npos && name == "partition") return state.keep(TemplateList{given, TemplateText{}, TemplateText{}});
    if (at == self.npos) return state.keep(TemplateList{TemplateText{}, TemplateText{}, given});
    const std::size_t size = text(0).size();
    return state.keep(TemplateList{given.part(0, at), given.part(at, size), given.part(at + size, self.npos)});
  }
  if (name == "count") return static_cast<std::int64_t>(split_text(self, &text(0), -1).size()) - 1;
  return apply_filter(state, "join", needed_argument(arguments, 0, "list", name), {{given}, {}});
}

TemplateValue map_method(TemplateState& state, const TemplateMap& self, const std::string& name,
                         const TemplateArguments& arguments) {
  if (name == "get") {
    const TemplateValue* found = self.find(text_of(needed_argument(arguments, 0, "key", name), name));
    const TemplateValue* otherwise = arguments.find(1, "default");
    return found ? *found : otherwise ? *otherwise : TemplateValue(TemplateNone{});
  }
  TemplateList items;
  for (const auto& [key, value] : self.items) {
    state.step();
    if (name == "keys") items.push_back(self.key(key));
    if (name == "values") items.push_back(value);
    if (name == "items") items.push_back(state.keep(TemplateList{self.key(key), value}));
  }
  return state.keep(std::move(items));
}

TemplateValue call_function(TemplateState& state, const std::string& name, const TemplateArguments& arguments) {
  state.step();
  if (name == "raise_exception")
    throw DataError(fmt::format("the template refuses the conversation: {}",
                                to_text(needed_argument(arguments, 0, "message", name))));
  if (name == "strftime_now") return time_text(text_of(needed_argument(arguments, 0, "format", name), name), state.now);
  if (name == "range") {
    const auto bound = [&](std::size_t i) { return integer_of(arguments.positional[i], name); };
    const std::size_t count = arguments.positional.size();
    if (count < 1 || count > 3) throw DataError("range needs one to three integers");
    const std::int64_t begin = count > 1 ? bound(0) : 0, end = bound(count > 1 ? 1 : 0),
                       step = count > 2 ? bound(2) : 1;
    constexpr std::int64_t kFar = std::int64_t{1} << 40;
    if (step == 0 || std::abs(begin / 2) > kFar || std::abs(end / 2) > kFar || std::abs(step / 2) > kFar)
      throw DataError("range needs smaller integers, and a step other than 0");
    TemplateList numbers;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      state.step();
      numbers.emplace_back(i);
    }
    return state.keep(std::move(numbers));
  }
  TemplateMap map{.items = arguments.named, .is_namespace = name == "namespace"};
  if (!arguments.positional.empty()) throw DataError(fmt::format("{} needs named arguments", name));
  return state.keep(std::move(map));
}

}  // namespace

TemplateDepth TemplateState::deeper() {
  if (depth_ == kDeepest) throw DataError("the template is nested too deep, or a macro calls itself for ever");
  return TemplateDepth(depth_);
}

void TemplateState::throw_exhausted(const char* what) {
  throw DataError(fmt::format("the template needs {}; it may be in an endless loop", what));
}

TemplateScope& TemplateState::scope(const TemplateScope* parent) {
  bytes(kScopeBytes);
  return scopes_.emplace_back(TemplateScope{.parent = parent});
}

TemplateValue TemplateState::keep(TemplateText text) {
  bytes(text.text.size());
  return TemplateValue(std::move(text));
}

TemplateValue TemplateState::keep(TemplateList items) {
  bytes((items.size() + 1) * sizeof(TemplateValue));
  return list(std::move(items));
}

TemplateValue TemplateState::keep(TemplateMap items) {
  bytes((items.items.size() + 1) * sizeof(TemplateValue));
  return map(std::move(items));
}

TemplateList TemplateState::items_of(const TemplateValue& value) {
  TemplateList items;
  if (const auto* list = value.get<TemplateList*>()) {
    items = **list;
  } else if (const auto* map = value.get<TemplateMap*>()) {
    for (const auto& [key, item] : (*map)->items) items.push_back((*map)->key(key));
  } else if (const auto* text = value.get<std::string>()) {
    bytes(text->size() * sizeof(TemplateValue));
    items = parts_of(value.text(), characters_of(*text), &kNothing);
  } else if (!value.is<TemplateUndefined>()) {
    throw DataError(fmt::format("{} is not a list", value.type_name()));
  }
  bytes(items.size() * sizeof(TemplateValue));
  return items;
}

TemplateValue call_method(TemplateState& state, const TemplateValue& self, const std::string& name,
                          const TemplateArguments& arguments) {
  state.step();
  if (!contains(methods_of(self), name))
    throw DataError(fmt::format("{} has no method {}", self.type_name(), in_quotes(name)));
  if (const auto* map = self.get<TemplateMap*>()) return map_method(state, **map, name, arguments);
  return text_method(state, to_text_with_origins(self), name, arguments);
}

TemplateFunction builtin_function(TemplateState& state, const std::string& name) {
  if (!contains(kFunctions, name)) return nullptr;
  return template_function(
      [&state, name](const TemplateArguments& arguments) { return call_function(state, name, arguments); });
}

TemplateFunction template_function(std::function<TemplateValue(const TemplateArguments&)> run) {
  return std::make_shared<const std::function<TemplateValue(const TemplateArguments&)>>(std::move(run));
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
      return call_method(state, value, name, arguments);
    });
  const auto* map = value.get<TemplateMap*>();
  const TemplateValue* found = map ? (*map)->find(name) : nullptr;
  return found ? *found : TemplateValue(TemplateUndefined{name});
}

TemplateValue item_of(TemplateState& state, const TemplateValue& value, const TemplateValue& index) {
  if (const auto* key = index.get<std::string>()) {
    const auto* map = value.get<TemplateMap*>();
    const TemplateValue* found = map ? (*map)->find(*key) : nullptr;
    return found ? *found : attribute_of(state, value, *key);
  }
  if (value.is<TemplateUndefined>()) return attribute_of(state, value, to_text(index));
  if (const auto* map = value.get<TemplateMap*>()) {
    const TemplateValue* found = (*map)->find(to_text(index));
    return found && (*map)->key(to_text(index)) == index ? *found : TemplateValue(TemplateUndefined{to_text(index)});
  }
  const TemplateList* items = value.is<TemplateList*>() ? *value.get<TemplateList*>() : nullptr;
  TemplateList characters;
  if (!items) {
    characters = state.items_of(value);
    items = &characters;
  }
  std::int64_t at = integer_of(index, "an index");
  if (at < 0) at += std::ssize(*items);
  const bool exists = at >= 0 && at < std::ssize(*items);
  return exists ? (*items)[static_cast<std::size_t>(at)] : TemplateValue(TemplateUndefined{fmt::format("item {}", at)});
}

// Python's rules: negative bounds count from the end, and bounds outside are cut.
TemplateValue slice_of(TemplateState& state, const TemplateValue& value, const std::array<TemplateValue, 3>& bounds) {
  const bool is_text = value.is<std::string>();
  if (!is_text && !value.is<TemplateList*>()) throw DataError(fmt::format("{} has no slices", value.type_name()));
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
  if (is_text && by == 1) return part_of(value.text(), items, from, to);
  TemplateList chosen;
  for (std::int64_t i = from; by > 0 ? i < to : i > to; i += std::clamp(by, -size - 1, size + 1))
    chosen.push_back(items[static_cast<std::size_t>(i)]);
  if (!is_text) return state.keep(std::move(chosen));
  std::string text;
  for (const TemplateValue& character : chosen) text += *character.get<std::string>();
  return state.keep(TemplateText{std::move(text), {}});
}

}  // namespace braid
