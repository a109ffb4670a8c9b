#include "formats/pickle.h"
#include "base/error.h"
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
  void put(const PickleBytes& value) { put_quoted(value.data, "b'"); }
  void put(const PickleTuple& value) { put_items("(", value.items, value.items.size() == 1 ? ",)" : ")"); }
  void put(const PickleList& value) { put_items("[", value.items, "]"); }
  void put(const PickleDict& value) { put_items("{", value.items, "}"); }
  void put(const std::pair<PickleValue, PickleValue>& item) {
    put(item.first);
    text_ += ": ";
    put(item.second);
  }
  void put(const PickleGlobal& value) { text_ += value.module + "." + value.name; }
  void put(const PicklePersistent& value) { put_items("persistent(", std::array{value.id}, ")"); }
  void put(const PickleObject& value) {
    put(value.type);
    put_items("(", value.args, "");
    if (value.state) put_items(value.args.empty() ? "state=" : ", state=", std::array{value.state}, "");
    if (!value.items.items.empty()) {
      text_ += value.args.empty() && !value.state ? "items=" : ", items=";
      put(value.items);
    }
    text_ += ')';
  }

  void put_items(const char* open, const auto& items, const char* close) {
    text_ += open;
    for (std::size_t i = 0; i < items.size() && text_.size() <= most_; ++i) {
      if (i > 0) text_ += ", ";
      put(items[i]);
    }
    text_ += close;
  }

  void put_quoted(std::string_view value, const char* open = "'") {
    text_ += open;
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

// Opcodes, with their names in Python's pickletools.
constexpr char kMark = '(', kStop = '.', kBinInt = 'J', kBinInt1 = 'K', kBinInt2 = 'M', kNone = 'N', kBinPersId = 'Q',
               kReduce = 'R', kBinUnicode = 'X', kBuild = 'b', kGlobal = 'c', kAppends = 'e', kBinGet = 'h',
               kLongBinGet = 'j', kBinPut = 'q', kLongBinPut = 'r', kTuple = 't', kSetItems = 'u', kBinFloat = 'G',
               kEmptyTuple = ')', kEmptyList = ']', kEmptyDict = '}', kProto = '\x80', kNewObj = '\x81',
               kTuple1 = '\x85', kTuple2 = '\x86', kTuple3 = '\x87', kNewTrue = '\x88', kNewFalse = '\x89',
               kLong1 = '\x8a';

class Writer {
 public:
  std::string write(const PickleValue& value) {
    put_number(kProto, 2, 1);
    put(value);
    put_op(kStop);
    return std::move(out_);
  }

 private:
  void put_op(char op) { out_ += op; }

  // The number in little-endian bytes.
  void put_number(char op, std::uint64_t value, int bytes) {
    put_op(op);
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  void put(const PickleValue& value) {
    if (const auto known = nodes_.find(value.get()); known != nodes_.end()) return put_get(known->second);
    std::visit([this](const auto& kind) { put(kind); }, value->value);
    // A value with one owner occurs only once, so it needs no memo entry.
    if (value.use_count() > 1 && !is_short(value)) nodes_.emplace(value.get(), put_put());
  }

  // Too small for a memo entry, or memoised by content.
  static bool is_short(const PickleValue& value) {
    return as<PickleNone>(value) || as<bool>(value) || as<std::int64_t>(value) || as<double>(value) ||
           as<std::string>(value) || as<PickleGlobal>(value);
  }

  void put(const PickleNone&) { put_op(kNone); }
  void put(bool value) { put_op(value ? kNewTrue : kNewFalse); }

  void put(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (bits <= 0xff) return put_number(kBinInt1, bits, 1);
    if (bits <= 0xffff) return put_number(kBinInt2, bits, 2);
    if (value == static_cast<std::int32_t>(value)) return put_number(kBinInt, bits, 4);
    put_op(kLong1);
    put_number('\x08', bits, 8);
  }

  void put(double value) {
    put_op(kBinFloat);
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift & 0xff);
  }

  void put(const std::string& value) {
    if (const auto known = strings_.find(value); known != strings_.end()) return put_get(known->second);
    put_text(value);
    strings_.emplace(value, put_put());
  }

  void put_text(const std::string& value) {
    BRAID_CHECK(value.size() <= std::numeric_limits<std::uint32_t>::max(), "a string of {} bytes", value.size());
    put_number(kBinUnicode, value.size(), 4);
    out_ += value;
  }

  // Protocol 2 has no opcode for bytes. Python writes them as a string of the same code points, to be encoded. Equal
  // strings are not shared here: a reader could not distinguish that from a small file that expands to a large value.
  void put(const PickleBytes& value) {
    put(PickleGlobal{"_codecs", "encode"});
    put_text(latin1_to_utf8(value.data));
    put(std::string("latin1"));
    put_op(kTuple2);
    put_op(kReduce);
  }

  void put(const PickleTuple& value) { put_tuple(value.items); }

  void put_tuple(const std::vector<PickleValue>& items) {
    constexpr std::array kShort = {kEmptyTuple, kTuple1, kTuple2, kTuple3};
    if (items.size() >= kShort.size()) put_op(kMark);
    for (const PickleValue& item : items) put(item);
    put_op(items.size() < kShort.size() ? kShort[items.size()] : kTuple);
  }

  void put(const PickleList& value) {
    put_op(kEmptyList);
    put_items(value.items, kAppends);
  }

  void put(const PickleDict& value) {
    put_op(kEmptyDict);
    put_items(value.items, kSetItems);
  }

  void put(const std::pair<PickleValue, PickleValue>& item) {
    put(item.first);
    put(item.second);
  }

  void put_items(const auto& items, char op) {
    if (items.empty()) return;
    put_op(kMark);
    for (const auto& item : items) put(item);
    put_op(op);
  }

  void put(const PickleGlobal& value) {
    BRAID_CHECK((value.module + value.name).find('\n') == std::string::npos, "the name {}", value.name);
    const std::string lines = value.module + "\n" + value.name + "\n";
    if (const auto known = globals_.find(lines); known != globals_.end()) return put_get(known->second);
    put_op(kGlobal);
    out_ += lines;
    globals_.emplace(lines, put_put());
  }

  void put(const PicklePersistent& value) {
    put(value.id);
    put_op(kBinPersId);
  }

  void put(const PickleObject& value) {
    put(value.type);
    put_tuple(value.args);
    put_op(value.by_new ? kNewObj : kReduce);
    put_items(value.items.items, kSetItems);
    if (!value.state) return;
    put(value.state);
    put_op(kBuild);
  }

  void put_get(std::uint32_t index) {
    index <= 0xff ? put_number(kBinGet, index, 1) : put_number(kLongBinGet, index, 4);
  }

  std::uint32_t put_put() {
    next_ <= 0xff ? put_number(kBinPut, next_, 1) : put_number(kLongBinPut, next_, 4);
    return next_++;
  }

  std::string out_;
  std::uint32_t next_ = 0;
  std::unordered_map<const PickleNode*, std::uint32_t> nodes_;
  std::unordered_map<std::string, std::uint32_t> strings_, globals_;
};

}  // namespace

PickleValue pickle(decltype(PickleNode::value) value) {
  return std::make_shared<const PickleNode>(PickleNode{std::move(value)});
}
PickleValue pickle_none() { return pickle(PickleNone{}); }
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
  const PickleDict* state = as<PickleDict>(object->state);
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

std::string write_pickle(const PickleValue& value) { return Writer().write(value); }

}  // namespace braid
