#include "data/shards/document.h"
#include <yaml-cpp/yaml.h>
#include "base/files.h"
#include "base/strings.h"

namespace braid {
namespace {

constexpr std::size_t kMaxBytes = 256 << 20;      // a million shards take about 30 MB
constexpr std::size_t kMaxYamlNodes = 3'000'000;  // aliases can make a short file huge
constexpr int kMaxDepth = 64;

Json scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // in quotes
  std::string word = text;
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  if (word == "null" || word == "~") return nullptr;
  if (word == "true" || word == "yes") return true;
  if (word == "false" || word == "no") return false;
  if (text.find('.') != text.npos || word.find('e') != word.npos) {
    if (const auto value = parse_double(text); value && std::isfinite(*value)) return *value;
  } else if (const auto value = parse_int64(text)) {
    return *value;
  }
  return text;
}

struct YamlConverter {
  const std::string& name;
  std::size_t nodes = 0;

  [[noreturn]] void fail(const YAML::Node& node, const std::string& what) const {
    throw ConfigError({what, fmt::format("{}:{}", name, node.Mark().line + 1), "correct this line"});
  }

  Json convert(const YAML::Node& node, int depth) {
    if (depth > kMaxDepth) fail(node, fmt::format("the YAML is nested more than {} levels deep", kMaxDepth));
    if (++nodes > kMaxYamlNodes) fail(node, fmt::format("the YAML has more than {} values", kMaxYamlNodes));
    if (node.IsScalar()) return scalar(node);
    if (node.IsSequence()) {
      Json list = Json::array();
      for (const YAML::Node& item : node) list.push_back(convert(item, depth + 1));
      return list;
    }
    if (!node.IsMap()) return nullptr;
    Json map = Json::object();
    std::set<std::string> keys;  // the map itself would search linearly
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) fail(entry.first, "a key is not a word");
      const std::string& key = entry.first.Scalar();
      if (!keys.insert(key).second) fail(entry.first, fmt::format("the key {} appears twice", in_quotes(key)));
      map.get_ref<Json::object_t&>().emplace_back(key, convert(entry.second, depth + 1));
    }
    return map;
  }
};

Json parse_yaml(const std::string& text, const std::string& name) {
  try {
    return YamlConverter{name}.convert(YAML::Load(text), 0);
  } catch (const YAML::Exception& e) {
    throw ConfigError({"not valid YAML: " + e.msg, fmt::format("{}:{}", name, e.mark.line + 1),
                       "look for a mismatched bracket, quote or indent on this line or above it"});
  }
}

Json parse_json(const std::string& text, const std::string& name) {
  std::vector<std::set<std::string>> keys;  // of each level
  std::string problem;
  const auto check = [&](int, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) keys.emplace_back();
    if (event == Event::object_end || event == Event::array_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      problem = fmt::format("the key {} appears twice", in_quotes(value.get<std::string>()));
    if (keys.size() > kMaxDepth) problem = fmt::format("the JSON is nested more than {} levels deep", kMaxDepth);
    return problem.empty();
  };
  Json value;
  try {
    value = Json::parse(text, check);
  } catch (const Json::exception& e) {
    problem = fmt::format("not valid JSON: {}", json_error(e.what()));
  }
  if (!problem.empty()) throw ConfigError({problem, name, "correct the file"});
  return value;
}

std::string shown(const Json& value) {
  if (value.is_object()) return "a mapping";
  if (value.is_array()) return "a list";
  if (value.is_null()) return "nothing";
  return in_quotes(value.is_string() ? value.get<std::string>() : value.dump());
}

using Words = std::vector<std::string>;

class BraceExpander {
 public:
  BraceExpander(std::string_view whole, const std::string& where) : whole_(whole), where_(where) {}

  // Every string of the pattern; escapes stay until the end.
  Words pattern(std::string_view text, int depth = 0) const {
    constexpr int kMaxBraces = 32;
    if (depth > kMaxBraces) fail("its braces are nested too deep");
    Words results{""};
    while (true) {
      const std::size_t open = find(text, '{');
      results = product(results, {std::string(text.substr(0, open))});
      if (open == text.size()) return results;
      text.remove_prefix(open + 1);
      const std::size_t close = find(text, '}');
      if (close == text.size()) fail("a brace is not closed");
      results = product(results, group(text.substr(0, close), depth + 1));
      text.remove_prefix(close + 1);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw ConfigError({fmt::format("cannot expand {}: {}", in_quotes(whole_), why), where_,
                       "write a backslash before a brace that is part of a name"});
  }

  // The first unescaped `wanted` outside braces, or the end.
  std::size_t find(std::string_view text, char wanted) const {
    int depth = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (depth == 0 && text[at] == wanted) return at;
      if (text[at] == '\\')
        ++at;
      else if (text[at] == '{')
        ++depth;
      else if (text[at] == '}' && --depth < 0)
        fail("a brace is not opened");
    }
    if (depth != 0) fail("a brace is not closed");
    return text.size();
  }

  // Expands what is between two braces: a range, alternatives, or plain text that keeps its braces.
  Words group(std::string_view inside, int depth) const {
    if (auto words = range(inside)) return *std::move(words);
    Words alternatives;
    std::size_t comma = find(inside, ',');
    if (comma == inside.size()) {
      for (const std::string& word : pattern(inside, depth)) alternatives.push_back("{" + word + "}");
      return alternatives;
    }
    for (;; comma = find(inside, ',')) {
      for (std::string& word : pattern(inside.substr(0, comma), depth)) alternatives.push_back(std::move(word));
      check_size(alternatives.size());
      if (comma == inside.size()) return alternatives;
      inside.remove_prefix(comma + 1);
    }
  }

  // "1..5", "01..10..3" and "a..e"; nothing if the text is not a range.
  std::optional<Words> range(std::string_view text) const {
    const Words parts = split(text, '.');
    const bool has_step = parts.size() == 5;
    if ((parts.size() != 3 && !has_step) || !parts[1].empty() || (has_step && !parts[3].empty())) return std::nullopt;
    const std::string &first = parts[0], &last = parts[2];
    const auto step = parse_int64(has_step ? parts[4] : "1");
    if (!step) return std::nullopt;
    if (const auto begin = parse_int64(first), end = parse_int64(last); begin && end) {
      const auto is_padded = [](std::string_view number) {
        return number != "0" && number != "-0" && (number.starts_with("0") || number.starts_with("-0"));
      };
      const std::size_t width = is_padded(first) || is_padded(last) ? std::max(first.size(), last.size()) : 0;
      return sequence(*begin, *end, *step, [&](std::int64_t value) {
        return width > 0 ? fmt::format("{:0{}}", value, width) : std::to_string(value);
      });
    }
    constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const std::size_t begin = kLetters.find(first), end = kLetters.find(last);
    if (first.size() != 1 || last.size() != 1 || begin == kLetters.npos || end == kLetters.npos) return std::nullopt;
    return sequence(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end), *step,
                    [&](std::int64_t at) { return std::string(1, kLetters[at]); });
  }

  // The numbers from first to last; only the size of the step matters, not its sign.
  Words sequence(std::int64_t first, std::int64_t last, std::int64_t step, const auto& word_of) const {
    for (const std::int64_t number : {first, last, step})  // sums of such numbers cannot overflow
      if (number < -INT32_MAX || number > INT32_MAX) fail("a number is too large");
    const std::int64_t size = std::max<std::int64_t>(std::abs(step), 1), count = std::abs(last - first) / size + 1;
    check_size(static_cast<std::size_t>(count));
    Words words;
    for (std::int64_t i = 0; i < count; ++i)
      words.push_back(word_of(first < last ? first + i * size : first - i * size));
    return words;
  }

  Words product(const Words& left, const Words& right) const {
    check_size(left.size() * right.size());
    Words words;
    for (const std::string& l : left)
      for (const std::string& r : right) words.push_back(l + r);
    return words;
  }

  void check_size(std::size_t size) const {
    constexpr std::size_t kMaxResults = 1 << 20, kMaxResultBytes = 64 << 20;
    if (size > kMaxResults) fail(fmt::format("it stands for more than {} names", kMaxResults));
    if (size > 1 && size * whole_.size() > kMaxResultBytes) fail("it stands for too many long names");
  }

  std::string_view whole_;
  const std::string& where_;
};

}  // namespace

DocumentNode read_document(const std::string& path) {
  const auto text = find_small_file(path, kMaxBytes);
  if (!text)
    throw ConfigError({fmt::format("'{}' does not exist", path), "", "check the path, or run `braid data prepare`"});
  return {std::make_shared<const Json>(path.ends_with(".json") ? parse_json(*text, path) : parse_yaml(*text, path)),
          path};
}

void DocumentNode::expect_object() const {
  if (!json().is_object()) fail(fmt::format("expected a mapping of keys, not {}", shown(json())));
}

std::string DocumentNode::text() const {
  if (!json().is_string()) fail(fmt::format("expected text, not {}", shown(json())), "put the value in quotes");
  return json().get<std::string>();
}

std::int64_t DocumentNode::integer(std::int64_t least) const {
  const bool fits = json().is_number_integer() &&
                    !(json().is_number_unsigned() && json().get<std::uint64_t>() > std::uint64_t{INT64_MAX});
  if (!fits || json().get<std::int64_t>() < least)
    fail(fmt::format("expected an integer of at least {}, not {}", least, shown(json())));
  return json().get<std::int64_t>();
}

double DocumentNode::positive_number(double most) const {
  const double value = json().is_number() ? json().get<double>() : 0;
  if (!(value > 0 && value <= most))
    fail(fmt::format("expected a number above zero and at most {:g}, not {}", most, shown(json())));
  return value;
}

void DocumentNode::expect_keys(const std::vector<std::string>& known) const {
  expect_object();
  for (const auto& [key, value] : json().items()) {
    if (contains(known, key)) continue;
    const auto meant = nearest(key, known);
    fail(fmt::format("unknown key {}", in_quotes(key)),
         meant ? fmt::format("did you mean `{}`?", *meant) : fmt::format("known keys: {}", joined(known, ", ")));
  }
}

DocumentNode DocumentNode::at(std::string_view key) const {
  expect_object();
  const auto found = json().find(std::string(key));
  if (found == json().end()) fail(fmt::format("the key `{}` is missing", key));
  return member(key, *found);
}

std::optional<DocumentNode> DocumentNode::find(std::string_view key) const {
  expect_object();
  const auto found = json().find(std::string(key));
  return found == json().end() || found->is_null() ? std::nullopt : std::optional(member(key, *found));
}

std::vector<DocumentNode> DocumentNode::items() const {
  if (!json().is_array()) fail(fmt::format("expected a list, not {}", shown(json())));
  std::vector<DocumentNode> items;
  for (const Json& item : json()) items.push_back({{value_, &item}, file_, fmt::format("{}[{}]", path_, items.size())});
  return items;
}

std::vector<std::pair<std::string, DocumentNode>> DocumentNode::entries() const {
  expect_object();
  std::vector<std::pair<std::string, DocumentNode>> entries;
  for (const auto& [key, value] : json().items()) entries.emplace_back(key, member(key, value));
  return entries;
}

std::vector<std::string> expand_braces(std::string_view pattern, const std::string& where) {
  Words words = BraceExpander(pattern, where).pattern(pattern);
  for (std::string& word : words)
    for (std::size_t at = 0; (at = word.find('\\', at)) != word.npos && at + 1 < word.size(); ++at) word.erase(at, 1);
  return words;
}

}  // namespace braid
