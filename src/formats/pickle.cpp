#include "formats/pickle.h"

#include <fmt/core.h>

#include <cmath>

#include "base/utf8.h"

namespace braid {
namespace {

// Stops once the text is long enough: a value with shared parts may be far longer than its pickle.
class TextWriter {
 public:
  explicit TextWriter(std::size_t most) : most_(most) {}

  std::string take() {
    if (text_.size() > most_) text_.replace(most_, std::string::npos, "...");
    return std::move(text_);
  }

  void put(const PickleValue& value) {
    if (text_.size() > most_) return;
    std::visit([this](const auto& kind) { put(kind); }, value->value);
  }

 private:
  void put(const PickleNone&) { text_ += "None"; }
  void put(bool value) { text_ += value ? "True" : "False"; }
  void put(std::int64_t value) { text_ += fmt::format("{}", value); }
  void put(double value) {
    const std::string digits = fmt::format("{}", value);
    text_ += digits;
    if (std::isfinite(value) && digits.find_first_of(".e") == std::string::npos) text_ += ".0";
  }
  void put(const std::string& value) { put_quoted(value); }
  void put(const PickleBytes& value) {
    text_ += 'b';
    put_quoted(value.data);
  }
  void put(const PickleTuple& value) { put_items("(", value.items, value.items.size() == 1 ? ",)" : ")"); }
  void put(const PickleList& value) { put_items("[", value.items, "]"); }
  void put(const PickleDict& value) {
    text_ += '{';
    for (std::size_t i = 0; i < value.items.size() && text_.size() <= most_; ++i) {
      if (i > 0) text_ += ", ";
      put(value.items[i].first);
      text_ += ": ";
      put(value.items[i].second);
    }
    text_ += '}';
  }
  void put(const PickleGlobal& value) { text_ += value.module + "." + value.name; }
  void put(const PicklePersistent& value) {
    text_ += "persistent(";
    put(value.id);
    text_ += ')';
  }
  void put(const PickleObject& value) {
    put(value.type);
    put_items("(", value.args, "");
    if (value.state) {
      text_ += value.args.empty() ? "state=" : ", state=";
      put(value.state);
    }
    if (!value.items.items.empty()) {
      text_ += value.args.empty() && !value.state ? "items=" : ", items=";
      put(value.items);
    }
    text_ += ')';
  }

  void put_items(const char* open, const std::vector<PickleValue>& items, const char* close) {
    text_ += open;
    for (std::size_t i = 0; i < items.size() && text_.size() <= most_; ++i) {
      if (i > 0) text_ += ", ";
      put(items[i]);
    }
    text_ += close;
  }

  void put_quoted(std::string_view value) {
    text_ += '\'';
    std::string quoted;
    for (const char c : value.substr(0, most_)) {
      if (c == '\'' || c == '\\')
        quoted += {'\\', c};
      else if (c == '\n' || c == '\t')
        quoted += fmt::format("\\x{:02x}", c);
      else
        quoted += c;
    }
    text_ += visible_text(quoted, std::string::npos);
    text_ += '\'';
  }

  std::size_t most_;
  std::string text_;
};

// The last one counts, as in Python, where setting a key again overwrites it.
PickleValue find_in(const PickleDict& dictionary, std::string_view key) {
  for (auto item = dictionary.items.rbegin(); item != dictionary.items.rend(); ++item) {
    const std::string* text = as<std::string>(item->first);
    if (text && *text == key) return item->second;
  }
  return nullptr;
}

}  // namespace

PickleValue pickle(decltype(PickleNode::value) value) {
  return std::make_shared<const PickleNode>(PickleNode{std::move(value)});
}
PickleValue pickle_none() { return pickle(PickleNone{}); }
PickleValue pickle_bytes(std::string data) { return pickle(PickleBytes{std::move(data)}); }
PickleValue pickle_tuple(std::vector<PickleValue> items) { return pickle(PickleTuple{std::move(items)}); }
PickleValue pickle_list(std::vector<PickleValue> items) { return pickle(PickleList{std::move(items)}); }
PickleValue pickle_global(std::string module, std::string name) {
  return pickle(PickleGlobal{std::move(module), std::move(name)});
}
PickleValue pickle_call(PickleValue type, std::vector<PickleValue> args) {
  return pickle(PickleObject{.type = std::move(type), .args = std::move(args)});
}

PickleValue pickle_dict(std::vector<std::pair<std::string, PickleValue>> items) {
  PickleDict dictionary;
  for (auto& [key, value] : items) dictionary.items.emplace_back(pickle(std::move(key)), std::move(value));
  return pickle(std::move(dictionary));
}

PickleValue find(const PickleValue& dictionary, std::string_view key) {
  if (const PickleDict* items = as<PickleDict>(dictionary)) return find_in(*items, key);
  const PickleObject* object = as<PickleObject>(dictionary);
  if (!object) return nullptr;
  const PickleDict* state = object->state ? as<PickleDict>(object->state) : nullptr;
  const PickleValue in_state = state ? find_in(*state, key) : nullptr;
  return in_state ? in_state : find_in(object->items, key);
}

bool is_global(const PickleValue& value, std::string_view module, std::string_view name) {
  const PickleGlobal* global = as<PickleGlobal>(value);
  return global && global->module == module && global->name == name;
}

std::string to_text(const PickleValue& value, std::size_t most) {
  TextWriter writer(most);
  writer.put(value);
  return writer.take();
}

}  // namespace braid
