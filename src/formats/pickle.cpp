#include "formats/pickle.h"

#include <fmt/core.h>

#include <cmath>

#include "base/utf8.h"
#include "formats/pickle_opcodes.h"

namespace braid {
namespace {

template <class Kind>
PickleValue node_of(Kind value) {
  return std::make_shared<const PickleNode>(PickleNode{std::move(value)});
}

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

PickleValue pickle_none() { return node_of(PickleNone{}); }
PickleValue pickle(bool value) { return node_of(value); }
PickleValue pickle(int value) { return node_of(std::int64_t{value}); }
PickleValue pickle(std::int64_t value) { return node_of(value); }
PickleValue pickle(double value) { return node_of(value); }
PickleValue pickle(const char* value) { return node_of(std::string(value)); }
PickleValue pickle(std::string value) { return node_of(std::move(value)); }
PickleValue pickle_bytes(std::string data) { return node_of(PickleBytes{std::move(data)}); }
PickleValue pickle_tuple(std::vector<PickleValue> items) { return node_of(PickleTuple{std::move(items)}); }
PickleValue pickle_list(std::vector<PickleValue> items) { return node_of(PickleList{std::move(items)}); }
PickleValue pickle_global(std::string module, std::string name) {
  return node_of(PickleGlobal{std::move(module), std::move(name)});
}
PickleValue pickle_call(PickleValue type, std::vector<PickleValue> args) {
  return node_of(PickleObject{.type = std::move(type), .args = std::move(args)});
}

PickleValue pickle_dict(std::vector<std::pair<std::string, PickleValue>> items) {
  PickleDict dictionary;
  for (auto& [key, value] : items) dictionary.items.emplace_back(pickle(std::move(key)), std::move(value));
  return node_of(std::move(dictionary));
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

const char* name_of(PickleOp op) {
  switch (op) {
    case PickleOp::Mark:
      return "MARK";
    case PickleOp::Stop:
      return "STOP";
    case PickleOp::Pop:
      return "POP";
    case PickleOp::PopMark:
      return "POP_MARK";
    case PickleOp::Dup:
      return "DUP";
    case PickleOp::Float:
      return "FLOAT";
    case PickleOp::Int:
      return "INT";
    case PickleOp::BinInt:
      return "BININT";
    case PickleOp::BinInt1:
      return "BININT1";
    case PickleOp::Long:
      return "LONG";
    case PickleOp::BinInt2:
      return "BININT2";
    case PickleOp::None:
      return "NONE";
    case PickleOp::PersId:
      return "PERSID";
    case PickleOp::BinPersId:
      return "BINPERSID";
    case PickleOp::Reduce:
      return "REDUCE";
    case PickleOp::String:
      return "STRING";
    case PickleOp::BinString:
      return "BINSTRING";
    case PickleOp::ShortBinString:
      return "SHORT_BINSTRING";
    case PickleOp::Unicode:
      return "UNICODE";
    case PickleOp::BinUnicode:
      return "BINUNICODE";
    case PickleOp::Append:
      return "APPEND";
    case PickleOp::Build:
      return "BUILD";
    case PickleOp::Global:
      return "GLOBAL";
    case PickleOp::Dict:
      return "DICT";
    case PickleOp::Appends:
      return "APPENDS";
    case PickleOp::Get:
      return "GET";
    case PickleOp::BinGet:
      return "BINGET";
    case PickleOp::Inst:
      return "INST";
    case PickleOp::LongBinGet:
      return "LONG_BINGET";
    case PickleOp::List:
      return "LIST";
    case PickleOp::Obj:
      return "OBJ";
    case PickleOp::Put:
      return "PUT";
    case PickleOp::BinPut:
      return "BINPUT";
    case PickleOp::LongBinPut:
      return "LONG_BINPUT";
    case PickleOp::SetItem:
      return "SETITEM";
    case PickleOp::Tuple:
      return "TUPLE";
    case PickleOp::SetItems:
      return "SETITEMS";
    case PickleOp::BinFloat:
      return "BINFLOAT";
    case PickleOp::BinBytes:
      return "BINBYTES";
    case PickleOp::ShortBinBytes:
      return "SHORT_BINBYTES";
    case PickleOp::EmptyTuple:
      return "EMPTY_TUPLE";
    case PickleOp::EmptyList:
      return "EMPTY_LIST";
    case PickleOp::EmptyDict:
      return "EMPTY_DICT";
    case PickleOp::Proto:
      return "PROTO";
    case PickleOp::NewObj:
      return "NEWOBJ";
    case PickleOp::Ext1:
      return "EXT1";
    case PickleOp::Ext2:
      return "EXT2";
    case PickleOp::Ext4:
      return "EXT4";
    case PickleOp::Tuple1:
      return "TUPLE1";
    case PickleOp::Tuple2:
      return "TUPLE2";
    case PickleOp::Tuple3:
      return "TUPLE3";
    case PickleOp::NewTrue:
      return "NEWTRUE";
    case PickleOp::NewFalse:
      return "NEWFALSE";
    case PickleOp::Long1:
      return "LONG1";
    case PickleOp::Long4:
      return "LONG4";
    case PickleOp::ShortBinUnicode:
      return "SHORT_BINUNICODE";
    case PickleOp::BinUnicode8:
      return "BINUNICODE8";
    case PickleOp::BinBytes8:
      return "BINBYTES8";
    case PickleOp::EmptySet:
      return "EMPTY_SET";
    case PickleOp::AddItems:
      return "ADDITEMS";
    case PickleOp::FrozenSet:
      return "FROZENSET";
    case PickleOp::NewObjEx:
      return "NEWOBJ_EX";
    case PickleOp::StackGlobal:
      return "STACK_GLOBAL";
    case PickleOp::Memoize:
      return "MEMOIZE";
    case PickleOp::Frame:
      return "FRAME";
    case PickleOp::ByteArray8:
      return "BYTEARRAY8";
    case PickleOp::NextBuffer:
      return "NEXT_BUFFER";
    case PickleOp::ReadonlyBuffer:
      return "READONLY_BUFFER";
  }
  return "unknown";
}

}  // namespace braid
