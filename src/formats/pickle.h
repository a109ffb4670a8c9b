// Python pickles as inert data. Reading one executes and imports nothing: classes and functions are names, and an
// object is the name of its type with the arguments of its constructor. Opcodes and names outside a fixed vocabulary
// are errors.
#pragma once

namespace braid {

struct PickleNode;
using PickleValue = std::shared_ptr<const PickleNode>;  // values may be shared; there are no cycles

struct PickleNone {};
struct PickleBytes {
  std::string data;
};
struct PickleTuple {
  std::vector<PickleValue> items;
};
struct PickleList {
  std::vector<PickleValue> items;
};
struct PickleDict {
  std::vector<std::pair<PickleValue, PickleValue>> items;  // in order
};
struct PickleGlobal {  // a class, a function or a constant of a module
  std::string module, name;
};
struct PicklePersistent {  // an object stored outside the pickle; for torch, a tensor's storage
  PickleValue id;
};
struct PickleObject {               // sets and bytearrays too: builtins.set of a list, builtins.bytearray of bytes
  PickleValue type{};               // a PickleGlobal that is called with `args`
  std::vector<PickleValue> args{};  // of the call
  PickleValue state{};              // the argument of __setstate__, or the __dict__; null: none
  PickleDict items{};               // of a dictionary
  bool by_new = false;              // created by type.__new__(type, *args) rather than by a call
};

struct PickleNode {
  std::variant<PickleNone, bool, std::int64_t, double, std::string, PickleBytes, PickleTuple, PickleList, PickleDict,
               PickleGlobal, PicklePersistent, PickleObject>
      value;
};

// Constructors.
PickleValue pickle(decltype(PickleNode::value) value);
PickleValue pickle_none();
PickleValue pickle_tuple(std::vector<PickleValue> items);
PickleValue pickle_list(std::vector<PickleValue> items);
PickleValue pickle_global(std::string module, std::string name);
PickleValue pickle_call(PickleValue type, std::vector<PickleValue> args);
PickleValue pickle_dict(std::vector<std::pair<std::string, PickleValue>> items);

// Accessors. `as` is null for a value of another kind, and for none.
template <class Kind>
const Kind* as(const PickleValue& value) {
  return value ? std::get_if<Kind>(&value->value) : nullptr;
}
template <class Kind>
std::optional<Kind> value_of(const PickleValue& value) {
  const Kind* found = as<Kind>(value);
  return found ? std::optional(*found) : std::nullopt;
}
// The last value of a string key in a dictionary, or in an object's state or items; null if there is none.
PickleValue find(const PickleValue& dictionary, std::string_view key);
bool is_global(const PickleValue& value, std::string_view module, std::string_view name);
// For display: in Python's syntax, cut off after `most` characters.
std::string to_text(const PickleValue& value, std::size_t most = 2000);

// The names that a pickle may contain: "torch.Size", or with "megatron.core.*" everything below a module. Python's own
// sets, bytes and bytearrays are always allowed; modules have their Python 3 names for every protocol.
using PickleVocabulary = std::vector<std::string>;

// All of `bytes` must be one pickle of protocol 0 to 5; otherwise DataError with `file`, opcode and offset. Memory
// stays proportional to the size of `bytes`, and nesting is limited.
PickleValue read_pickle(std::string_view bytes, const std::string& file, const PickleVocabulary& vocabulary);

// Protocol 2, as torch.save writes. Shared values, and equal strings and names, are written once.
std::string write_pickle(const PickleValue& value);

}  // namespace braid
