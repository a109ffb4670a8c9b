// The values and operators of chat templates, Python's ways to put values into a text, and its methods of texts.
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/template_interpreter.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

bool is_python_space(std::uint32_t code) { return is_white_space(code) || (code >= 0x1c && code <= 0x1f); }
bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::size_t length_at(std::string_view text) { return std::max<std::size_t>(utf8_length(text), 1); }

// The length of the white space character that the text begins with; 0 if it begins with another.
std::size_t space_at(std::string_view text) {
  std::string_view rest = text;
  const auto code = take_character(rest);
  return code && is_python_space(*code) ? text.size() - rest.size() : 0;
}

std::vector<std::string_view> split_at_white_space(std::string_view text, std::int64_t most) {
  std::vector<std::string_view> words;
  while (true) {
    for (std::size_t space; !text.empty() && (space = space_at(text)) > 0;) text.remove_prefix(space);
    if (text.empty()) return words;
    std::size_t end = most == 0 ? text.size() : 0;  // the last part keeps its white space
    while (end < text.size() && space_at(text.substr(end)) == 0) end += length_at(text.substr(end));
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    --most;
  }
}

void refuse_other_alphabets(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) throw DataError("upper case of text beyond ASCII is not supported");
}

constexpr int kDeepest = 50;
constexpr std::size_t kLongestText = 16 << 20;

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
    if (const TemplateList* list = value.list())
      write_items(list->size(), "[]", depth, [&](std::size_t i) { write((*list)[i], depth + 1); });
    else if (const TemplateMap* map = value.map())
      write_map(*map, depth);
    else if (value.string())
      write_string(value.text());
    else
      put(scalar_text(value));
  }

  TemplateText out;

 private:
  void put(std::string text) { out.append({std::move(text), {}}); }

  void write_map(const TemplateMap& map, int depth) {
    auto items = map.items;
    if (style_.sort_keys) std::ranges::stable_sort(items, {}, &std::pair<std::string, TemplateValue>::first);
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

  std::string scalar_text(const TemplateValue& value) const {
    if (const auto* truth = value.get<bool>()) return json_ ? (*truth ? "true" : "false") : (*truth ? "True" : "False");
    if (const auto* integer = value.get<std::int64_t>()) return std::to_string(*integer);
    if (const auto* number = value.get<double>()) {
      const std::string text = fmt::format("{}", *number);
      return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
    }
    if (value.is<TemplateNone>()) return json_ ? "null" : "None";
    if (json_) throw DataError(fmt::format("{} cannot become JSON", value.type_name()));
    if (value.is<TemplateFunction>()) throw DataError("a function cannot be printed");
    return "";
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
  const auto inner = [&](const TemplateValue& left, const TemplateValue& right) {
    return equal(left, right, depth + 1);
  };
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.string() && b.string()) return *a.string() == *b.string();
  if (a.list() && b.list()) return std::ranges::equal(*a.list(), *b.list(), inner);
  if (a.map() && b.map())
    return a.map()->items.size() == b.map()->items.size() && std::ranges::all_of(a.map()->items, [&](const auto& item) {
             const TemplateValue* other = b.map()->find(item.first);
             return other && inner(item.second, *other);
           });
  return (a.is<TemplateNone>() && b.is<TemplateNone>()) || (a.is<TemplateUndefined>() && b.is<TemplateUndefined>());
}

[[noreturn]] void refuse(const std::string& symbol, const TemplateValue& left, const TemplateValue& right) {
  for (const TemplateValue* value : {&left, &right})
    if (const auto* undefined = value->get<TemplateUndefined>())
      throw DataError(fmt::format("{} is undefined", in_quotes(undefined->name)));
  throw DataError(fmt::format("'{}' does not apply to {} and {}", symbol, left.type_name(), right.type_name()));
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
    return integer_arithmetic(symbol, integer_of(left, symbol), integer_of(right, symbol));
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
  if (const TemplateMap* map = container.map()) return map->at(value) != nullptr;
  if (const std::string* text = container.string()) {
    if (!value.string()) refuse("in", value, container);
    return text->find(*value.string()) != std::string::npos;
  }
  return std::ranges::any_of(state.items_of(container), [&](const TemplateValue& item) {
    state.step();
    return item == value;
  });
}

bool less(const std::string& symbol, const TemplateValue& left, const TemplateValue& right) {
  if (left.is_number() && right.is_number()) return left.number() < right.number();
  if (left.string() && right.string()) return *left.string() < *right.string();
  refuse(symbol, left, right);
}

constexpr std::size_t kWidest = 1000;  // of a field

// One value with a format specification of str.format, which fmt shares.
TemplateText with_specification(const TemplateValue& value, const std::string& specification) try {
  if (specification.empty()) return value.text();
  for (const char* at = specification.c_str(); *at; ++at)
    if (*at >= '0' && *at <= '9' && std::strtoull(at, nullptr, 10) > kWidest)
      throw DataError(fmt::format("the format {} is too wide", in_quotes(specification)));
  if (specification.find_first_of("{}") != std::string::npos) throw DataError("fields inside fields are not supported");
  const std::string pattern = "{:" + specification + "}";
  const bool as_float = std::string_view("eEfFgG%").find(specification.back()) != std::string_view::npos;
  const auto* integer = value.get<std::int64_t>();
  if (integer && !as_float) return {fmt::format(fmt::runtime(pattern), *integer), {}};
  if (!value.is_number()) return {fmt::format(fmt::runtime(pattern), to_text(value)), {}};
  if (!as_float) throw DataError(fmt::format("the format {} of a float is not supported", in_quotes(specification)));
  return {fmt::format(fmt::runtime(pattern), value.number()), {}};
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

double TemplateValue::number() const {
  if (const auto* truth = get<bool>()) return *truth;
  if (const auto* integer = get<std::int64_t>()) return static_cast<double>(*integer);
  return std::get<double>(data_);
}

bool TemplateValue::truth() const {
  if (is_number()) return number() != 0;
  if (string()) return !string()->empty();
  if (list()) return !list()->empty();
  if (map()) return map()->is_namespace || !map()->items.empty();
  return is<TemplateFunction>();
}

TemplateText TemplateValue::text() const {
  return string() ? TemplateText{*string(), origins_} : TemplateText{to_repr(*this), {}};
}

std::string TemplateValue::type_name() const {
  static const char* const names[] = {"an undefined value", "none",   "a boolean", "an integer", "a number",
                                      "a string",           "a list", "a mapping", "a function"};
  return names[data_.index()];
}

bool TemplateValue::operator==(const TemplateValue& other) const { return equal(*this, other, 0); }

const TemplateValue* TemplateMap::find(const std::string& key) const {
  const auto found = std::ranges::find(items, key, &std::pair<std::string, TemplateValue>::first);
  return found == items.end() ? nullptr : &found->second;
}

TemplateValue TemplateMap::key(const std::string& text) const {
  for (const auto& [name, value] : other_keys)
    if (name == text) return value;
  return text;
}

const TemplateValue* TemplateMap::at(const TemplateValue& wanted) const {
  const std::string text = to_text(wanted);
  const TemplateValue* found = find(text);
  return found && key(text) == wanted ? found : nullptr;
}

void TemplateMap::put(const std::string& key, TemplateValue value) {
  const auto old = std::ranges::find(items, key, &std::pair<std::string, TemplateValue>::first);
  if (old != items.end())
    old->second = std::move(value);
  else
    items.emplace_back(key, std::move(value));
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
  if (value.string()) return *value.string();
  throw DataError(fmt::format("{} needs a string, not {}", user, value.type_name()));
}

std::int64_t integer_of(const TemplateValue& value, const std::string& user) {
  if (const auto* integer = value.get<std::int64_t>()) return *integer;
  if (const auto* truth = value.get<bool>()) return *truth;
  throw DataError(fmt::format("{} needs an integer, not {}", user, value.type_name()));
}

const TemplateValue& TemplateArguments::needed(std::size_t index, const char* name, const std::string& user) const {
  if (const TemplateValue* value = find(index, name)) return *value;
  throw DataError(fmt::format("{} needs the argument {}", user, name));
}

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
  if (symbol == "~" || (symbol == "+" && left.string() && right.string())) {
    TemplateText text = left.text();
    text.append(right.text());
    return state.keep(std::move(text));
  }
  if (symbol == "%" && left.string())
    return state.keep(format_percent(left.text(), right.list() ? state.items_of(right) : TemplateList{right}));
  if (left.is_number() && right.is_number()) return arithmetic(symbol, left, right);
  if (symbol == "+" && left.list() && right.list()) {
    TemplateList joined = state.items_of(left);
    std::ranges::move(state.items_of(right), std::back_inserter(joined));
    return state.keep(std::move(joined));
  }
  if (symbol == "*" && left.string() && right.is<std::int64_t>()) {
    const std::size_t size = left.string()->size(), most = std::numeric_limits<std::size_t>::max();
    const auto count = static_cast<std::size_t>(std::max<std::int64_t>(*right.get<std::int64_t>(), 0));
    state.bytes(size > 0 && count > most / size ? most : count * size);
    std::string repeated;
    for (std::size_t i = 0; i < count && size > 0; ++i) repeated += *left.string();
    return repeated;
  }
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
    const TemplateValue written = letter == 'r'                             ? TemplateValue(to_repr(value))
                                  : letter == 's' && !specification.empty() ? TemplateValue(to_text(value))
                                  : letter == 'd' || letter == 'i'          ? TemplateValue(integer_of(value, "%d"))
                                                                            : value;
    result.append(with_specification(written, specification));
  }
  if (next < values.size()) throw DataError("a format has fewer fields than values");
  result.append(text.part(done, std::string::npos));
  return result;
}

// --- texts

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

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (std::size_t length; !text.empty(); text.remove_prefix(length)) {
    length = length_at(text);
    characters.emplace_back(text.substr(0, length));
  }
  return characters;
}

std::string_view strip_text(std::string_view text, const std::string* characters, bool left, bool right) {
  return without_ends(text, left, right, [&](std::string_view character) {
    return characters ? characters->find(character) != std::string::npos : space_at(character) > 0;
  });
}

std::string upper_text(std::string text) {
  refuse_other_alphabets(text);
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

std::string lower_text(std::string_view text) {
  constexpr std::uint32_t kSigma = 0x3a3;  // its lower case depends on what follows
  std::string result;
  for (std::size_t length; !text.empty(); text.remove_prefix(length)) {
    length = length_at(text);
    std::string_view rest = text;
    const auto code = take_character(rest);
    const std::size_t before = result.size();
    if (code)
      append_lowercase(result, *code);
    else
      result += text[0];
    if (code == kSigma || result.size() - before != length)
      throw DataError(fmt::format("the lower case of {} is not supported", in_quotes(text.substr(0, length))));
  }
  return result;
}

std::string title_text(std::string_view text) {
  refuse_other_alphabets(text);
  std::string result = lower_text(text);
  for (std::size_t i = 0; i < result.size(); ++i)
    if (i == 0 || !is_ascii_letter(result[i - 1])) result[i] = upper_text(result.substr(i, 1))[0];
  return result;
}

std::string capitalize_text(std::string_view text) {
  return upper_text(std::string(text.substr(0, 1))) + lower_text(text.substr(std::min<std::size_t>(1, text.size())));
}

TemplateText replaced(const TemplateText& text, std::string_view old, const TemplateText& with, std::int64_t most) {
  if (old.empty()) throw DataError("replacing an empty text is not supported");
  TemplateText result;
  std::size_t done = 0;
  for (std::size_t at; most != 0 && (at = text.text.find(old, done)) != std::string::npos; --most) {
    result.append(text.part(done, at - done));
    result.append(with);
    done = at + old.size();
  }
  result.append(text.part(done, std::string::npos));
  return result;
}

std::string replace_text(std::string_view text, std::string_view old, std::string_view with) {
  if (old.empty()) throw DataError("replacing an empty text is not supported");
  std::string result;
  for (std::size_t at; (at = text.find(old)) != text.npos; text.remove_prefix(at + old.size()))
    result.append(text.substr(0, at)).append(with);
  return result.append(text);
}

std::vector<std::string_view> split_text(std::string_view text, const std::string* separator, std::int64_t most) {
  if (!separator) return split_at_white_space(text, most);
  if (separator->empty()) throw DataError("splitting at an empty text is not possible");
  std::vector<std::string_view> parts;
  while (most-- != 0) {
    const std::size_t at = text.find(*separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator->size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string_view> rsplit_text(std::string_view text, const std::string& separator, std::int64_t most) {
  if (separator.empty()) throw DataError("splitting at an empty text is not possible");
  std::vector<std::string_view> parts;
  while (most-- != 0) {
    const std::size_t at = text.rfind(separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace braid
