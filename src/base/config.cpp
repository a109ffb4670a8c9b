#include "base/config.h"
#include <unistd.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/yaml.h>
#include "base/files.h"
#include "base/strings.h"

namespace braid {
namespace {

// A mapping that is being read, and the keys of it that the config knows.
struct Frame {
  YAML::Node node;
  std::string path;
  std::vector<std::string> known;
};

std::string join_path(const std::string& parent, const std::string& key) {
  return parent.empty() ? key : parent + "." + key;
}

// The scalar that is a key, else nothing.
std::string key_of(const YAML::Node& key) { return key.IsScalar() ? key.Scalar() : ""; }

std::string kind_of(const YAML::Node& node) {
  if (node.IsMap()) return "a mapping";
  if (node.IsSequence()) return "a list";
  if (node.IsNull()) return "nothing";
  return in_quotes(node.Scalar());
}

// A YAML list of words or one string with commas between them; or, if it is neither, what it is.
std::pair<std::optional<std::vector<std::string>>, std::string> list_of_words(const YAML::Node& node) {
  if (node.IsScalar()) {
    std::vector<std::string> words = split(node.Scalar(), ',');
    for (std::string& word : words) {
      word.erase(0, word.find_first_not_of(' '));
      word.erase(word.find_last_not_of(' ') + 1);
    }
    return {std::move(words), ""};
  }
  if (!node.IsSequence()) return {std::nullopt, kind_of(node)};
  std::vector<std::string> words;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) return {std::nullopt, "a list with " + kind_of(item)};
    words.push_back(item.Scalar());
  }
  return {std::move(words), ""};
}

// The line and column of the first tab that indents a line, from 1; YAML allows only spaces there.
std::optional<std::pair<std::size_t, std::size_t>> indenting_tab(const std::string& text) {
  const std::vector<std::string> lines = split(text, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t end = lines[i].find_first_not_of(" \t\r"), tab = lines[i].find('\t');
    if (end != std::string::npos && tab < end && lines[i][end] != '#') return std::pair(i + 1, tab + 1);
  }
  return std::nullopt;
}

// The result of reading a scalar: the value, or why there is none. "{key} {why}" forms a sentence.
template <class T>
struct Parsed {
  std::optional<T> value{};
  std::string why{}, fix{};
  bool is_too_far = false;  // the type cannot hold it; the message then names the default
};

template <class T>
Parsed<T> not_a(const char* expected, const std::string& text) {
  return {.why = fmt::format("should be {}, not {}", expected, in_quotes(text))};
}

template <class T>
Parsed<T> too_far(const std::string& text) {
  const bool negative = text.starts_with('-');
  return {.why = fmt::format("is too {}: {}", negative ? "small" : "large", in_quotes(text)),
          .fix = fmt::format("give a {} number", negative ? "larger" : "smaller"),
          .is_too_far = true};
}

// The nearest double to a number that no double can hold: infinity for "1e999", 0 for "1e-999". Nothing for other
// texts.
std::optional<double> beyond_doubles(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc::result_out_of_range || end != text.data() + text.size()) return std::nullopt;
  return std::strtod(text.c_str(), nullptr);
}

Parsed<double> parse_real(const std::string& text) {
  const auto value = parse_double(text);
  if (value && std::isfinite(*value)) return {.value = value};
  const auto nearest = beyond_doubles(text);
  if (!nearest) return not_a<double>("a number", text);
  if (std::isinf(*nearest)) return too_far<double>(text);
  return {.why = fmt::format("is too close to 0: {}", in_quotes(text)), .fix = "write 0 if you mean 0"};
}

template <class T>
std::string default_words(const T& value) {
  return fmt::format("; the default is {}", value);
}
template <class T>
std::string default_words(const std::optional<T>& value) {
  return value ? default_words(*value) : "";
}

// "3e6" is refused with the digits to write, since elsewhere it would be read as a fraction.
template <class Integer>
Parsed<Integer> parse_integer(const std::string& text) {
  const auto exact = parse_int64(text);
  if (exact && *exact >= std::numeric_limits<Integer>::lowest() && *exact <= std::numeric_limits<Integer>::max())
    return {.value = static_cast<Integer>(*exact)};
  const auto about = parse_double(text);
  const bool whole = about && std::isfinite(*about) && std::trunc(*about) == *about;
  const double beyond = static_cast<double>(std::numeric_limits<Integer>::max()) + 1;
  const bool infinite = std::isinf(beyond_doubles(text).value_or(0));
  if (exact || infinite || (whole && std::abs(*about) >= beyond)) return too_far<Integer>(text);
  Parsed<Integer> refused = not_a<Integer>("an integer", text);
  if (whole) refused.fix = fmt::format("write {:.0f}", *about);
  return refused;
}

constexpr const char* kTrueOrFalse = "true or false";

Parsed<bool> parse_bool(const std::string& text) {
  if (text == "true" || text == "false") return {.value = text == "true"};
  Parsed<bool> refused = not_a<bool>(kTrueOrFalse, text);
  if (contains({"True", "TRUE", "yes", "on", "1"}, text)) refused.fix = "write true";
  if (contains({"False", "FALSE", "no", "off", "0"}, text)) refused.fix = "write false";
  return refused;
}

template <class Number>
std::string as_yaml(Number value) {
  return fmt::format("{}", value);
}
std::string as_yaml(const std::string& text) {
  YAML::Emitter quoted;
  quoted << YAML::DoubleQuoted << text;
  return quoted.c_str();
}

}  // namespace

std::ptrdiff_t place_of(std::string_view name, std::span<const char* const> names) {
  const auto found = std::find(names.begin(), names.end(), name);
  BRAID_CHECK(found != names.end(), "'{}' is not a value of this setting", name);
  return found - names.begin();
}

struct YamlReader::State {
  std::string name;
  YAML::Node root;
  std::map<std::string, std::string> overridden;  // the flag as it was typed, by the key it changed
  std::vector<Frame> frames;
  ProblemList problems;

  // The flag that wrote this key or a section around it. A key that is not in the file comes from a flag below it.
  std::optional<std::string> flag(const std::string& path, bool in_file) const {
    for (const auto& [changed, typed] : overridden) {
      if (path == changed || (!in_file && changed.starts_with(path + "."))) return on_command_line(typed, changed);
      if (path.starts_with(changed + ".")) return on_command_line(typed, path);
    }
    return std::nullopt;
  }

  static std::string on_command_line(const std::string& typed, const std::string& path) {
    return "--" + path == typed ? "command line, " + typed : fmt::format("command line, {} ({})", typed, path);
  }

  std::string where(const YAML::Node& node, const std::string& path) const {
    if (auto from_flag = flag(path, !node.Mark().is_null())) return *from_flag;
    if (node.Mark().is_null()) return fmt::format("{}, {}", name, path);
    return fmt::format("{}:{}, {}", name, node.Mark().line + 1, path);
  }

  void complain(const YAML::Node& node, const std::string& path, std::string what, std::string fix = "") {
    problems.add(std::move(what), where(node, path), std::move(fix));
  }

  // The node below `key` of the current mapping; undefined where the document has none. Marks the key as known.
  YAML::Node find(const std::string& key) {
    frames.back().known.push_back(key);
    return std::as_const(frames.back().node)[key];
  }

  template <class T, class Parse>
  void scalar(const char* key, T& value, const char* expected, Parse parse, const std::string& fix = "") {
    YAML::Node node = find(key);
    if (!node.IsDefined()) return;
    const std::string path = join_path(frames.back().path, key);
    if (!node.IsScalar())
      return complain(node, path, fmt::format("{} should be {}, not {}", key, expected, kind_of(node)), fix);
    const auto parsed = parse(node.Scalar());
    if (parsed.value)
      value = *parsed.value;
    else
      complain(node, path, fmt::format("{} {}", key, parsed.why),
               parsed.fix + (parsed.is_too_far ? default_words(value) : ""));
  }

  void open(const YAML::Node& mapping, const std::string& path) {
    frames.push_back({mapping, path, {}});
    std::set<std::string> seen;
    for (const auto& item : mapping) {
      const std::string key = key_of(item.first);
      if (!seen.insert(key).second)
        complain(item.first, join_path(path, key), fmt::format("key {} is given twice", in_quotes(key)),
                 "keep one of them");
    }
  }

  void close() {
    Frame frame = frames.back();
    frames.pop_back();
    const std::set<std::string> known(frame.known.begin(), frame.known.end());
    for (const auto& item : frame.node) {
      const std::string key = key_of(item.first);
      if (known.count(key)) continue;
      auto guess = nearest(key, frame.known);
      complain(item.first, join_path(frame.path, key), fmt::format("{} {}", kUnknownKey, in_quotes(key)),
               guess ? fmt::format("did you mean '{}'?", *guess)
                     : fmt::format("known keys here: {}", joined(frame.known, ", ")));
    }
  }

  void apply(const ConfigOverride& change) {
    const std::string typed = change.flag.empty() ? "--" + change.path : change.flag;
    const std::string where = on_command_line(typed, change.path);
    YAML::Node node = root;
    std::string path;
    for (const std::string& part : split(change.path, '.')) {
      if (node.IsDefined() && !node.IsMap() && !node.IsNull())
        throw ConfigError({fmt::format("'{}' cannot have a key '{}' below it", path, part), where, ""});
      path = join_path(path, part);
      node.reset(node[part]);
    }
    try {
      node = YAML::Load(change.value);
    } catch (const YAML::Exception& e) {
      throw ConfigError({fmt::format("'{}' is not valid YAML: {}", change.value, e.msg), where,
                         fmt::format("quote it as YAML: {} '\"...\"'", typed)});
    }
    overridden[change.path] = typed;
  }
};

YamlReader::YamlReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
YamlReader::YamlReader(YamlReader&&) noexcept = default;
YamlReader::~YamlReader() = default;

std::string read_config(const std::string& path, const std::string& fix) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError({fmt::format("cannot read '{}': {}", path, why), "", fix});
  };
  constexpr std::size_t kLongest = 4 << 20;
  if (path != "-" && !is_own_descriptor(path)) return read_small_file(path, kLongest, fix);
  // Standard input may be a socket, which cannot be opened by its name.
  const bool is_input = path == "-" || path == "/dev/stdin";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      is_input ? fdopen(dup(STDIN_FILENO), "rb") : std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) refuse(std::strerror(errno));
  std::string text;
  char part[65536];
  while (const std::size_t size = std::fread(part, 1, sizeof part, file.get())) {
    text.append(part, size);
    if (text.size() > kLongest) refuse("it is larger than 4 MiB");
  }
  if (std::ferror(file.get())) refuse(std::strerror(errno));  // e.g. a folder
  return text;
}

YamlReader YamlReader::from_file(const std::string& path, const std::vector<ConfigOverride>& overrides) {
  return from_text(read_config(path), path, overrides);
}

YamlReader YamlReader::from_text(const std::string& text, const std::string& name,
                                 const std::vector<ConfigOverride>& overrides) {
  auto state = std::make_unique<State>();
  state->name = name;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1)
      throw ConfigError({fmt::format("{} YAML documents where one is expected", documents.size()), name,
                         "keep one of the documents between `---` lines"});
    state->root = documents.empty() ? YAML::Node(YAML::NodeType::Null) : documents[0];
  } catch (const YAML::DeepRecursion& e) {
    throw ConfigError({fmt::format("the YAML is nested {} levels deep", e.depth()),
                       fmt::format("{}:{}", name, e.mark.line + 1),
                       "close the brackets; at most five levels are needed"});
  } catch (const YAML::Exception& e) {
    if (const auto tab = indenting_tab(text))
      throw ConfigError({"a tab indents this line, and YAML allows only spaces",
                         fmt::format("{}:{}, column {}", name, tab->first, tab->second),
                         "write spaces in place of tabs; expand -t 2 FILE does so"});
    throw ConfigError({"not valid YAML: " + e.msg, fmt::format("{}:{}", name, e.mark.line + 1),
                       "look for a mismatched bracket, quote or indent on this line or above it"});
  }
  if (!state->root.IsMap() && !state->root.IsNull())
    throw ConfigError({fmt::format("the file must be a mapping of keys, not {}", kind_of(state->root)), name, ""});
  for (const ConfigOverride& change : overrides) state->apply(change);
  state->open(state->root, "");
  return YamlReader(std::move(state));
}

void YamlReader::scalar(const char* key, Scalar value, const char*) {
  const auto read = [&]<class Value>(Value* into) {
    if constexpr (std::is_same_v<Value, std::string>)
      state_->scalar(key, *into, "a string", [](const std::string& text) { return Parsed<Value>{.value = text}; });
    else if constexpr (std::is_same_v<Value, bool>)
      state_->scalar(key, *into, kTrueOrFalse, parse_bool);
    else if constexpr (std::is_same_v<Value, double> || std::is_same_v<Value, std::optional<double>>)
      state_->scalar(key, *into, "a number", parse_real);
    else if constexpr (std::is_same_v<Value, int> || std::is_same_v<Value, std::optional<int>>)
      state_->scalar(key, *into, "an integer", parse_integer<int>);
    else
      state_->scalar(key, *into, "an integer", parse_integer<std::int64_t>);
  };
  std::visit(read, value);
}

void YamlReader::choice(const char* key, std::string& value, const std::vector<std::string>& choices, const char*) {
  const std::string expected = "one of " + joined(choices, ", ");
  const auto parse = [&](const std::string& s) {
    if (contains(choices, s)) return Parsed<std::string>{.value = s};
    Parsed<std::string> refused = not_a<std::string>(expected.c_str(), s);
    refused.fix = choice_advice(s, choices);
    return refused;
  };
  state_->scalar(key, value, expected.c_str(), parse, "use " + joined_by_or(choices));
}

void YamlReader::list(const char* key, std::vector<std::string>& values, const std::vector<std::string>& choices,
                      const char*) {
  const YAML::Node node = state_->find(key);
  if (!node.IsDefined()) return;
  const auto refuse = [&](const std::string& why, const std::string& fix) {
    state_->complain(node, join_path(state_->frames.back().path, key), fmt::format("{} {}", key, why), fix);
  };
  const std::string expected = fmt::format("should be a list of some of {}, not ", joined(choices, ", "));
  auto [words, what_it_is] = list_of_words(node);
  if (!words) return refuse(expected + what_it_is, fmt::format("write a list, for example [{}]", choices.at(0)));
  for (auto word = words->begin(); word != words->end(); ++word) {
    if (!contains(choices, *word)) return refuse(expected + in_quotes(*word), choice_advice(*word, choices));
    if (std::find(words->begin(), word, *word) != word)
      return refuse(fmt::format("names {} twice", in_quotes(*word)), "keep one of them");
  }
  values = std::move(*words);
}

bool YamlReader::enter(const std::string& key) {
  YAML::Node node = state_->find(key);
  if (!node.IsDefined() || node.IsNull()) return false;
  const std::string path = join_path(state_->frames.back().path, key);
  if (!node.IsMap()) {
    state_->complain(node, path, fmt::format("{} should be a mapping of keys, not {}", key, kind_of(node)));
    return false;
  }
  state_->open(node, path);
  return true;
}

void YamlReader::leave() { state_->close(); }

std::vector<std::string> YamlReader::entries(const std::vector<std::string>&) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const auto& item : state_->frames.back().node)
    if (item.first.IsScalar() && seen.insert(item.first.Scalar()).second) names.push_back(item.first.Scalar());
  return names;
}

std::vector<Problem> YamlReader::finish() {
  while (!state_->frames.empty()) state_->close();
  return state_->problems.take();
}

std::string YamlReader::where(const std::string& path) const {
  if (auto from_flag = state_->flag(path, /*in_file=*/true)) return *from_flag;
  YAML::Node node = state_->root;
  YAML::Mark mark = YAML::Mark::null_mark();
  for (const std::string& part : split(path, '.')) {
    const YAML::Node next = node.IsMap() ? std::as_const(node)[part] : YAML::Node(YAML::NodeType::Undefined);
    if (!next.IsDefined()) break;
    node.reset(next);
    if (!node.Mark().is_null()) mark = node.Mark();
  }
  return mark.is_null() ? fmt::format("{}, {}", state_->name, path)
                        : fmt::format("{}:{}, {}", state_->name, mark.line + 1, path);
}

void YamlWriter::line(const std::string& key, const std::string& value, const std::string& help) {
  const std::string text = fmt::format("{:{}}{}: {}", "", 2 * depth_, key, value);
  text_ += help.empty() ? text : fmt::format("{:<36}  # {}", text, help);
  text_ += '\n';
}

// A key without a value is printed as a comment.
void YamlWriter::unset(const char* key, const char* help) {
  text_ += fmt::format("{:<36}  # {}\n", fmt::format("{:{}}# {}:", "", 2 * depth_, key), help);
}

void YamlWriter::scalar(const char* key, Scalar value, const char* help) {
  const auto write = [&](const auto* each) {
    if constexpr (requires { each->has_value(); })
      *each ? line(key, as_yaml(**each), help) : unset(key, help);
    else
      line(key, as_yaml(*each), help);
  };
  std::visit(write, value);
}

void YamlWriter::choice(const char* key, std::string& value, const std::vector<std::string>& choices,
                        const char* help) {
  line(key, value, fmt::format("{} ({})", help, joined(choices, " | ")));
}

void YamlWriter::list(const char* key, std::vector<std::string>& values, const std::vector<std::string>& choices,
                      const char* help) {
  line(key, fmt::format("[{}]", joined(values, ", ")), fmt::format("{} ({})", help, joined(choices, " | ")));
}

bool YamlWriter::enter(const std::string& key) {
  text_ += fmt::format("{:{}}{}:\n", "", 2 * depth_, key);
  ++depth_;
  return true;
}

void YamlWriter::leave() { --depth_; }

// --- advice about keys

namespace {

void add_keys(const YAML::Node& node, const std::string& path, std::vector<std::string>& keys) {
  if (!node.IsMap()) return keys.push_back(path);
  for (const auto& entry : node) add_keys(entry.second, (path.empty() ? "" : path + ".") + entry.first.Scalar(), keys);
}

// Names that other programs use for keys of a recipe. Where a name has several keys, the one that the model has counts.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"learning_rate", "train.lr"},
    {"batch_size", "train.global_batch"},
    {"global_batch_size", "train.global_batch"},
    {"micro_batch_size", "train.micro_batch"},
    {"max_steps", "train.iterations"},
    {"train_iters", "train.iterations"},
    {"steps", "train.iterations"},
    {"seq_length", "data.sequence_length"},
    {"max_seq_len", "data.sequence_length"},
    {"num_layers", "model.language.layers"},
    {"num_layers", "model.language.pattern"},
    {"num_hidden_layers", "model.language.layers"},
    {"num_hidden_layers", "model.language.pattern"},
    {"hidden_size", "model.language.hidden"},
    {"intermediate_size", "model.language.ffn"},
    {"ffn_hidden_size", "model.language.ffn"},
    {"vocab_size", "model.language.vocab"},
    {"num_attention_heads", "model.language.heads"},
    {"num_heads", "model.language.heads"},
    {"num_key_value_heads", "model.language.kv_heads"},
    {"num_experts", "model.language.experts"},
    {"rope_base", "model.language.rope_theta"}};

// The only key of the section whose last part is this name: "save_interval" for "interval".
std::optional<std::string> longer_name(const std::string& section, const std::string& name,
                                       const std::vector<std::string>& all) {
  std::vector<std::string> found;
  for (const std::string& key : all)
    if (key.starts_with(section) && key.find('.', section.size()) == key.npos && key.ends_with("_" + name))
      found.push_back(key.substr(section.size()));
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

std::optional<std::string> guess_for(const std::string& path, const std::vector<std::string>& all) {
  const std::string section = path.substr(0, path.rfind('.') + 1), name = path.substr(section.size());
  if (const auto longer = longer_name(section, name, all)) return longer;
  if (const auto other = key_named(name, all)) return other;
  for (const auto& [other_name, key] : kOtherNames)
    if (other_name == name && contains(all, key)) return std::string(key);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> key_named(const std::string& name, const std::vector<std::string>& all) {
  std::vector<std::string> found;
  for (const std::string& candidate : all) {
    if (std::ranges::equal(candidate, name, {}, [](char c) { return c == '.' ? '_' : c; })) return candidate;
    if (candidate.ends_with("." + name)) found.push_back(candidate);
  }
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

std::vector<std::string> set_keys(const std::string& yaml) {
  std::vector<std::string> keys;
  add_keys(YAML::Load(yaml), "", keys);
  return keys;
}

std::vector<std::string> dotted_keys(const std::string& yaml) {
  std::string all_set;
  for (const std::string& line : split(yaml, '\n')) {
    const std::size_t mark = line.find_first_not_of(' ');  // keys without a value are written as comments: "  # key:"
    const bool is_comment = mark != line.npos && line.compare(mark, 2, "# ") == 0;
    const std::size_t end = is_comment ? line.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", mark + 2) : line.npos;
    const bool is_unset = end != line.npos && end > mark + 2 && line[end] == ':';
    all_set += (is_unset ? line.substr(0, mark) + line.substr(mark + 2) : line) + '\n';
  }
  return set_keys(all_set);
}

void suggest_keys_elsewhere(std::vector<Problem>& problems, const std::vector<std::string>& all) {
  for (Problem& problem : problems) {
    if (!problem.what.starts_with(kUnknownKey)) continue;
    std::string path = problem.where.substr(problem.where.find_last_of(" ") + 1);
    path.erase(0, path.find_first_not_of("(-"));
    if (path.ends_with(')')) path.pop_back();  // "command line, --train (train.log_interval)"
    if (const auto guess = guess_for(path, all)) problem.fix = fmt::format("did you mean '{}'?", *guess);
  }
}

}  // namespace braid
