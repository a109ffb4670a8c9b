// Configuration as plain structs. Each struct names its fields once, in a function found by argument-dependent lookup,
// which drives reading from YAML, printing, and the list of keys in help and in error messages:
//
//   void describe(Fields& f, GridConfig& c) { f.field("tp", c.tp, "tensor parallel size"); ... }
#pragma once

#include "base/error.h"
#include "base/ranges.h"

namespace braid {

// An enum whose values users write as words, listed in the order of its values:
//   enum class Packing { Greedy, Even };
//   constexpr auto choice_names(Packing) { return std::array{"greedy", "even"}; }
template <class Enum>
concept Choice = std::is_enum_v<Enum> && requires(Enum value) {
  choice_names(value)[0];
};

template <Choice Enum>
const char* name_of(Enum value) {
  return choice_names(value)[static_cast<std::size_t>(value)];
}

// The position of `name`, which must be one of `names`.
std::ptrdiff_t place_of(std::string_view name, std::span<const char* const> names);

// The value with this name, which must be one of them.
template <Choice Enum>
Enum choice_named(std::string_view name) {
  return static_cast<Enum>(place_of(name, choice_names(Enum{})));
}

// What ranks compute on. Auto: a GPU if there is one.
enum class DeviceChoice { Auto, Cpu, Cuda };
constexpr auto choice_names(DeviceChoice) { return std::array{"auto", "cpu", "cuda"}; }

// Visits the named fields of a config struct. Keys and help texts must be string literals.
class Fields {
 public:
  virtual ~Fields() = default;
  template <class Value>
  void field(const char* key, Value& value, const char* help) {
    scalar(key, &value, help);
  }
  // A string that must be one of `choices`.
  virtual void choice(const char* key, std::string& value, const std::vector<std::string>& choices,
                      const char* help) = 0;
  // One of the values of an enum, or only of those in `allowed`.
  template <Choice Enum>
  void choice(const char* key, Enum& value, std::initializer_list<Enum> allowed, const char* help) {
    std::vector<std::string> names;
    for (const Enum each : allowed) names.push_back(name_of(each));
    choose(key, value, names, help);
  }
  template <Choice Enum>
  void choice(const char* key, Enum& value, const char* help) {
    const auto names = choice_names(value);
    choose(key, value, {names.begin(), names.end()}, help);
  }
  // Strings that must be among `choices`: a YAML list, or one string with commas between them.
  virtual void list(const char* key, std::vector<std::string>& values, const std::vector<std::string>& choices,
                    const char* help) = 0;

  template <class Config>
  void section(const char* key, Config& value) {
    if (!enter(key)) return;
    describe(*this, value);
    leave();
  }

  // A mapping from names, in the order written, to structs that have a `name`.
  template <class Config>
  void named(const char* key, std::vector<Config>& values) {
    if (!enter(key)) return;
    for (const std::string& name : entries(vector_of<std::string>(values, &Config::name))) {
      Config& value = entry(values, name);  // also for a bare `name:`, which means all defaults
      if (!enter(name)) continue;
      describe(*this, value);
      leave();
    }
    leave();
  }

 protected:
  using Scalar = std::variant<int*, std::optional<int>*, std::int64_t*, std::optional<std::int64_t>*, double*,
                              std::optional<double>*, bool*, std::string*>;
  virtual void scalar(const char* key, Scalar value, const char* help) = 0;
  virtual bool enter(const std::string& key) = 0;  // false: absent, skip it
  virtual void leave() = 0;
  // The names of the entries below the current key; `present` are those the value already has.
  virtual std::vector<std::string> entries(const std::vector<std::string>& present) = 0;

 private:
  template <Choice Enum>
  void choose(const char* key, Enum& value, const std::vector<std::string>& names, const char* help) {
    std::string name = name_of(value);
    choice(key, name, names, help);
    value = choice_named<Enum>(name);
  }
  template <class Config>
  static Config& entry(std::vector<Config>& values, const std::string& name) {
    for (Config& value : values)
      if (value.name == name) return value;
    values.emplace_back();
    values.back().name = name;
    return values.back();
  }
};

// `path` is a dotted key (train.lr), `value` a YAML scalar; overrides take precedence over the file.
struct ConfigOverride {
  std::string path, value;
  std::string flag{};  // as it was typed ("--lr"); empty: "--" and the path
};

// The text of a file named by the user. ConfigError when it cannot be read or is far too large; `fix` says what to do.
std::string read_config(const std::string& path,
                        const std::string& fix = "give the path of a recipe, e.g. recipes/tiny-vlm.yaml");

// Reads a YAML document into config structs: describe(reader, config), then finish(), which returns every mistake at
// once: unknown keys (with the nearest known one), duplicates, wrong types, each with its line.
class YamlReader : public Fields {
 public:
  // A file that is missing or is not YAML is a ConfigError.
  static YamlReader from_file(const std::string& path, const std::vector<ConfigOverride>& overrides = {});
  static YamlReader from_text(const std::string& text, const std::string& name,
                              const std::vector<ConfigOverride>& overrides = {});
  YamlReader(YamlReader&&) noexcept;
  ~YamlReader() override;

  void choice(const char* key, std::string& value, const std::vector<std::string>& choices, const char* help) override;
  void list(const char* key, std::vector<std::string>& values, const std::vector<std::string>& choices,
            const char* help) override;

  std::vector<Problem> finish();

  // "tiny-vlm.yaml:7, topology.modules": where the user finds this dotted key, or its nearest parent in the file.
  // "command line, --lr (train.lr)" where a flag set it.
  std::string where(const std::string& path) const;

 protected:
  void scalar(const char* key, Scalar value, const char* help) override;
  bool enter(const std::string& key) override;
  void leave() override;
  std::vector<std::string> entries(const std::vector<std::string>& present) override;

 private:
  struct State;
  explicit YamlReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The whole config as YAML, one key per line with its help as a comment; reading it back gives the same config.
class YamlWriter : public Fields {
 public:
  const std::string& text() const { return text_; }

  void choice(const char* key, std::string& value, const std::vector<std::string>& choices, const char* help) override;
  void list(const char* key, std::vector<std::string>& values, const std::vector<std::string>& choices,
            const char* help) override;

 protected:
  void scalar(const char* key, Scalar value, const char* help) override;
  bool enter(const std::string& key) override;
  void leave() override;
  std::vector<std::string> entries(const std::vector<std::string>& present) override { return present; }
  // One key, with its value as YAML or without one.
  virtual void line(const std::string& key, const std::string& value, const std::string& help);
  virtual void unset(const char* key, const char* help);

 private:
  std::string text_;
  int depth_ = 0;
};

// --- advice about keys that a config does not have, but another section of it does

inline constexpr const char* kUnknownKey = "unknown key";  // how YamlReader begins such a problem

// The dotted keys of the values that a YAML document sets; "" for a document that is one value.
std::vector<std::string> set_keys(const std::string& yaml);
// The same for the text of a YamlWriter, which also names keys without a value.
std::vector<std::string> dotted_keys(const std::string& yaml);

// The dotted key that has this name, with or without its section's: "log.interval" for "log_interval" and "interval".
// Nothing if several sections have it.
std::optional<std::string> key_named(const std::string& name, const std::vector<std::string>& all);

// Suggests such a key for each unknown one: "log.interval" for "train.log_interval"; or a longer name in its section,
// or a key that other programs call so. `all`: dotted keys.
void suggest_keys_elsewhere(std::vector<Problem>& problems, const std::vector<std::string>& all);

}  // namespace braid
