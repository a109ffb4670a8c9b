#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "formats/pickle.h"

namespace braid {
namespace {

constexpr int kMaxDepth = 100;  // so that destructors and visitors of the value may recurse
constexpr std::size_t kMaxNameLength = 256;

// What the reader tracks about a value until it is complete.
struct Node : PickleNode {
  int depth = 1;
  bool hashable = true;
  bool frozen = false;    // was fetched from the memo: changing it now could create a cycle
  bool open_set = false;  // a set whose list is not shared
};
using NodePtr = std::shared_ptr<Node>;

template <class Kind>
NodePtr make_node(Kind value) {
  auto node = std::make_shared<Node>();
  node->value = std::move(value);
  return node;
}

template <class Kind>
Kind* as(const NodePtr& node) {
  return std::get_if<Kind>(&node->value);
}

// Its functions are called by the table of opcodes.
struct Reader {
  Reader(std::string_view bytes, const std::string& file, const PickleVocabulary& vocabulary)
      : bytes_(bytes), file_(file), vocabulary_(vocabulary) {}

  PickleValue read();
  [[noreturn]] void fail(const std::string& what) const;

  // --- the bytes

  void check_left(std::uint64_t count) const {
    if (count > bytes_.size() - offset_)
      fail(fmt::format("needs {} bytes, {} are left", count, bytes_.size() - offset_));
  }

  std::string_view take(std::uint64_t count) {
    check_left(count);
    const std::string_view taken = bytes_.substr(offset_, count);
    offset_ += count;
    return taken;
  }

  std::uint64_t little_endian(std::size_t count) {
    std::uint64_t value = 0;
    const std::string_view taken = take(count);
    for (std::size_t i = 0; i < count; ++i) value |= std::uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    return value;
  }

  std::string_view line() {
    const std::size_t end = bytes_.find('\n', offset_);
    if (end == std::string_view::npos) fail("has a line without an end");
    const std::string_view text = bytes_.substr(offset_, end - offset_);
    offset_ = end + 1;
    return text;
  }

  // --- the stack

  void push(NodePtr node) { stack_.push_back(std::move(node)); }

  template <class Kind>
  void push_value(Kind value) {
    push(make_node(std::move(value)));
  }

  std::size_t above_mark() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  const NodePtr& top() {
    if (above_mark() == 0) fail("finds nothing on the stack");
    return stack_.back();
  }

  NodePtr pop() {
    NodePtr node = top();
    stack_.pop_back();
    return node;
  }

  std::vector<NodePtr> pop_from(std::size_t begin) {
    std::vector<NodePtr> nodes(stack_.begin() + begin, stack_.end());
    stack_.resize(begin);
    return nodes;
  }

  std::vector<NodePtr> pop_to_mark() {
    if (marks_.empty()) fail("finds no MARK");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return pop_from(mark);
  }

  std::vector<NodePtr> pop_several(std::size_t count) {
    if (above_mark() < count) fail(fmt::format("needs {} values on the stack, there are {}", count, above_mark()));
    return pop_from(stack_.size() - count);
  }

  // --- the values

  // Call before `child` becomes a child of `parent`.
  void nest(Node& parent, const Node& child) const {
    parent.depth = std::max(parent.depth, child.depth + 1);
    if (parent.depth > kMaxDepth) fail(fmt::format("nests deeper than {} levels", kMaxDepth));
  }

  void nest(Node& parent, const std::vector<NodePtr>& children) const {
    for (const NodePtr& child : children) nest(parent, *child);
  }

  void check_open(const Node& node) const {
    if (node.frozen) fail("changes a value that is already used elsewhere");
  }

  template <class Kind>
  NodePtr sequence_of(const std::vector<NodePtr>& items) const {
    NodePtr sequence = make_node(Kind{{items.begin(), items.end()}});
    nest(*sequence, items);
    sequence->hashable = std::is_same_v<Kind, PickleTuple> &&
                         std::ranges::all_of(items, [](const NodePtr& item) { return item->hashable; });
    return sequence;
  }

  void append(const std::vector<NodePtr>& items) {
    const NodePtr& target = top();
    check_open(*target);
    PickleList* list = as<PickleList>(target);
    if (!list) fail("appends to a value that is not a list");
    nest(*target, items);
    list->items.insert(list->items.end(), items.begin(), items.end());
  }

  void push_dict(const std::vector<NodePtr>& keys_and_values) {
    push_value(PickleDict{});
    stack_.back()->hashable = false;
    set_items(keys_and_values);
  }

  void set_items(const std::vector<NodePtr>& keys_and_values) {
    const NodePtr& target = top();
    check_open(*target);
    PickleDict* dict = as<PickleDict>(target);
    if (PickleObject* object = as<PickleObject>(target)) dict = &object->items;
    if (!dict) fail("sets items of a value that has none");
    if (keys_and_values.size() % 2 != 0) fail("has a key without a value");
    nest(*target, keys_and_values);
    for (std::size_t i = 0; i < keys_and_values.size(); i += 2) {
      if (!keys_and_values[i]->hashable) fail("has a key that holds a list or a dictionary");
      dict->items.emplace_back(keys_and_values[i], keys_and_values[i + 1]);
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    if (module == "__builtin__") module = "builtins";  // Python 2's name, which protocols 0 to 2 use
    if (module == "copy_reg") module = "copyreg";
    if (module.size() > kMaxNameLength || name.size() > kMaxNameLength)
      fail(fmt::format("has a name of more than {} characters", kMaxNameLength));
    NodePtr& global = globals_[fmt::format("{}\n{}", module, name)];
    if (!global) {
      const std::string full = fmt::format("{}.{}", module, name);
      // A line break in it would be read back as the start of another opcode.
      const auto is_in_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
      if (!std::ranges::all_of(full, is_in_name) || !is_known(full))
        fail(fmt::format("has the name {}, which is not one that checkpoints use", in_quotes(full)));
      global = make_node(PickleGlobal{std::string(module), std::string(name)});
    }
    push(global);
  }

  bool is_known(std::string_view full) const {
    static const PickleVocabulary kPythons = {"_codecs.encode", "builtins.bytearray", "builtins.bytes",
                                              "builtins.frozenset", "builtins.set"};
    const auto fits = [&](std::string_view entry) {
      if (!entry.ends_with(".*")) return entry == full;
      entry.remove_suffix(1);
      return full.starts_with(entry);
    };
    return std::any_of(kPythons.begin(), kPythons.end(), fits) ||
           std::any_of(vocabulary_.begin(), vocabulary_.end(), fits);
  }

  // The type, its arguments and, of NEWOBJ_EX, keyword arguments.
  void push_object(const std::vector<NodePtr>& parts, bool by_new) {
    const NodePtr &type = parts[0], &arguments = parts[1];
    const PickleDict* keywords = parts.size() > 2 ? as<PickleDict>(parts[2]) : nullptr;
    if (parts.size() > 2 && (!keywords || !keywords->items.empty())) fail("calls with keyword arguments");
    if (!as<PickleGlobal>(type)) fail("calls a value that is not a name");
    const PickleTuple* tuple = as<PickleTuple>(arguments);
    if (!tuple) fail("calls with arguments that are not a tuple");
    if (std::optional<std::string> bytes = as_bytes(type, *tuple)) return push_value(PickleBytes{std::move(*bytes)});
    count_arguments(tuple->items.size());
    NodePtr object = make_node(PickleObject{.type = type, .args = tuple->items, .by_new = by_new});
    object->depth = arguments->depth;  // which it replaces
    push(object);
  }

  // Copies of tuples and strings from the memo, which may be large, are together limited to the file's size.
  void count_arguments(std::size_t count) {
    arguments_ += count;
    if (arguments_ > bytes_.size()) fail("has more arguments than the file has bytes");
  }

  // Protocols 0 to 2 write bytes as _codecs.encode("text", "latin1"), or as bytes() if empty.
  std::optional<std::string> as_bytes(const NodePtr& type, const PickleTuple& arguments) {
    const std::vector<PickleValue>& args = arguments.items;
    if (is_global(type, "builtins", "bytes") && args.empty()) return "";
    if (!is_global(type, "_codecs", "encode") || args.size() != 2) return std::nullopt;
    const std::string* text = braid::as<std::string>(args[0]);
    const std::string* code = braid::as<std::string>(args[1]);
    if (!text || !code || *code != "latin1") fail("encodes a value other than text as latin1");
    std::optional<std::string> bytes = utf8_to_latin1(*text);
    if (!bytes) fail("encodes text that is not latin1");
    count_arguments(bytes->size());
    return bytes;
  }

  void push_byte_array(std::string_view data) {
    const NodePtr bytes = make_node(PickleBytes{std::string(data)});
    NodePtr array = make_node(PickleObject{.type = make_node(PickleGlobal{"builtins", "bytearray"}), .args = {bytes}});
    nest(*array, *bytes);
    push(array);
  }

  void push_set(std::string name, const std::vector<NodePtr>& items) {
    const NodePtr list = sequence_of<PickleList>(items);
    const bool open_set = name == "set";
    NodePtr set = make_node(PickleObject{.type = make_node(PickleGlobal{"builtins", std::move(name)}), .args = {list}});
    nest(*set, *list);
    set->open_set = open_set;
    push(set);
  }

  void add_to_set(const std::vector<NodePtr>& items) {
    const NodePtr& target = top();
    check_open(*target);
    if (!target->open_set) fail("adds to a value that is not a set");
    const PickleValue& items_of_set = as<PickleObject>(target)->args[0];
    NodePtr list = std::static_pointer_cast<Node>(std::const_pointer_cast<PickleNode>(items_of_set));
    nest(*list, items);
    nest(*target, *list);
    std::vector<PickleValue>& known = as<PickleList>(list)->items;
    known.insert(known.end(), items.begin(), items.end());
  }

  void push_persistent(const NodePtr& id) {
    if (const std::string* text = as<std::string>(id); text && !is_utf8(*text)) fail("has text that is not UTF-8");
    NodePtr persistent = make_node(PicklePersistent{id});
    nest(*persistent, *id);
    push(persistent);
  }

  void build() {
    NodePtr state = pop();
    const NodePtr& target = top();
    check_open(*target);
    PickleObject* object = as<PickleObject>(target);
    if (!object || object->state) fail("sets the state of a value that takes none");
    nest(*target, *state);
    object->state = std::move(state);
  }

  // --- the memo

  void put(std::uint64_t index) {
    // Writers number the memo's entries from 0 up, at most one per opcode.
    if (index >= ops_) fail(fmt::format("has the memo index {}, too large for {} opcodes", index, ops_));
    if (index >= memo_.size()) memo_.resize(index + 1);
    memo_[index] = top();
  }

  void get(std::uint64_t index) {
    if (index >= memo_.size() || !memo_[index]) fail(fmt::format("reads memo index {}, which is empty", index));
    memo_[index]->frozen = true;
    push(memo_[index]);
  }

  // --- numbers and text

  void push_integer(std::size_t bytes) { push_value(static_cast<std::int64_t>(little_endian(bytes))); }

  std::uint64_t index_line() {
    const std::string_view text = line();
    const std::optional<std::int64_t> index = parse_int64(text);
    if (!index || *index < 0) fail(fmt::format("has the invalid memo index {}", in_quotes(text)));
    return static_cast<std::uint64_t>(*index);
  }

  void push_int_line(bool may_be_truth) {
    const std::string_view text = line();
    if (may_be_truth && (text == "00" || text == "01")) return push_value(text == "01");
    const std::string_view digits = text.ends_with('L') ? text.substr(0, text.size() - 1) : text;
    const std::optional<std::int64_t> value = parse_int64(digits);
    if (!value) fail(fmt::format("has {}, which is not a 64-bit integer", in_quotes(text)));
    push_value(*value);
  }

  // Two's complement, little endian.
  void push_long(std::string_view bytes) {
    std::uint64_t value = 0;
    const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
    for (std::size_t i = 0; i < std::max<std::size_t>(bytes.size(), 8); ++i) {
      const unsigned char byte = i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : negative ? 0xff : 0;
      if (i < 8) value |= std::uint64_t{byte} << (8 * i);
      if (i >= 8 && byte != (value >> 63 ? 0xff : 0)) fail("has an integer of more than 64 bits");
    }
    // A positive 64-bit number has a ninth byte 0, which the loop above rejects.
    push_value(static_cast<std::int64_t>(value));
  }

  void push_float_line() {
    const std::string_view text = line();
    const std::optional<double> value = parse_double(text);
    if (!value) fail(fmt::format("has {}, which is not a number", in_quotes(text)));
    push_value(*value);
  }

  void push_double() {
    std::uint64_t bits = 0;
    for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
    push_value(std::bit_cast<double>(bits));
  }

  std::string_view counted_bytes(std::size_t bytes_of_count) { return take(little_endian(bytes_of_count)); }
  void push_bytes(std::string_view bytes) { push_value(PickleBytes{std::string(bytes)}); }

  void push_text(std::string_view text) {
    if (!is_utf8(text)) fail("has text that is not UTF-8");
    push_value(std::string(text));
  }

  void push_escaped_text() {
    std::optional<std::string> text = from_raw_unicode_escape(line());
    if (!text) fail("has an invalid escape in its text");
    push_value(*std::move(text));
  }

  const std::string& text_of(const NodePtr& node) const {
    const std::string* text = as<std::string>(node);
    if (!text) fail("has a name that is not text");
    return *text;
  }

  // --- the whole

  PickleValue stop() {
    if (!marks_.empty()) fail("comes while a MARK is open");
    if (stack_.size() != 1) fail(fmt::format("finds {} values on the stack, not one", stack_.size()));
    if (offset_ != bytes_.size()) fail(fmt::format("is followed by {} more bytes", bytes_.size() - offset_));
    return stack_[0];
  }

  std::string_view bytes_;
  const std::string& file_;
  const PickleVocabulary& vocabulary_;
  std::size_t offset_ = 0, op_offset_ = 0, ops_ = 0, arguments_ = 0;
  unsigned char op_ = 0;
  std::vector<NodePtr> stack_;
  std::vector<std::size_t> marks_;
  std::vector<NodePtr> memo_;
  std::unordered_map<std::string, NodePtr> globals_;  // a name may be repeated many times at a few bytes each
};

constexpr char kStop = '.';

struct Opcode {
  char code;
  const char* name;                        // in Python's pickletools
  void (*step)(Reader& reader) = nullptr;  // null: checkpoints do not use it
};

const Opcode kOpcodes[] = {
    {'(', "MARK", [](Reader& r) { r.marks_.push_back(r.stack_.size()); }},
    {kStop, "STOP"},
    {'0', "POP"},
    {'1', "POP_MARK"},
    {'2', "DUP"},
    {'F', "FLOAT", [](Reader& r) { r.push_float_line(); }},
    {'I', "INT", [](Reader& r) { r.push_int_line(/*may_be_truth=*/true); }},
    {'J', "BININT", [](Reader& r) { r.push_value(std::int64_t{static_cast<std::int32_t>(r.little_endian(4))}); }},
    {'K', "BININT1", [](Reader& r) { r.push_integer(1); }},
    {'L', "LONG", [](Reader& r) { r.push_int_line(/*may_be_truth=*/false); }},
    {'M', "BININT2", [](Reader& r) { r.push_integer(2); }},
    {'N', "NONE", [](Reader& r) { r.push_value(PickleNone{}); }},
    {'P', "PERSID", [](Reader& r) { r.push_persistent(make_node(std::string(r.line()))); }},
    {'Q', "BINPERSID", [](Reader& r) { r.push_persistent(r.pop()); }},
    {'R', "REDUCE", [](Reader& r) { r.push_object(r.pop_several(2), /*by_new=*/false); }},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE", [](Reader& r) { r.push_escaped_text(); }},
    {'X', "BINUNICODE", [](Reader& r) { r.push_text(r.counted_bytes(4)); }},
    {'a', "APPEND", [](Reader& r) { r.append(r.pop_several(1)); }},
    {'b', "BUILD", [](Reader& r) { r.build(); }},
    {'c', "GLOBAL",
     [](Reader& r) {
       const std::string_view module = r.line();
       r.push_global(module, r.line());
     }},
    {'d', "DICT", [](Reader& r) { r.push_dict(r.pop_to_mark()); }},
    {'e', "APPENDS", [](Reader& r) { r.append(r.pop_to_mark()); }},
    {'g', "GET", [](Reader& r) { r.get(r.index_line()); }},
    {'h', "BINGET", [](Reader& r) { r.get(r.little_endian(1)); }},
    {'i', "INST"},
    {'j', "LONG_BINGET", [](Reader& r) { r.get(r.little_endian(4)); }},
    {'l', "LIST", [](Reader& r) { r.push(r.sequence_of<PickleList>(r.pop_to_mark())); }},
    {'o', "OBJ"},
    {'p', "PUT", [](Reader& r) { r.put(r.index_line()); }},
    {'q', "BINPUT", [](Reader& r) { r.put(r.little_endian(1)); }},
    {'r', "LONG_BINPUT", [](Reader& r) { r.put(r.little_endian(4)); }},
    {'s', "SETITEM", [](Reader& r) { r.set_items(r.pop_several(2)); }},
    {'t', "TUPLE", [](Reader& r) { r.push(r.sequence_of<PickleTuple>(r.pop_to_mark())); }},
    {'u', "SETITEMS", [](Reader& r) { r.set_items(r.pop_to_mark()); }},
    {'G', "BINFLOAT", [](Reader& r) { r.push_double(); }},
    {'B', "BINBYTES", [](Reader& r) { r.push_bytes(r.counted_bytes(4)); }},
    {'C', "SHORT_BINBYTES", [](Reader& r) { r.push_bytes(r.counted_bytes(1)); }},
    {')', "EMPTY_TUPLE", [](Reader& r) { r.push(r.sequence_of<PickleTuple>({})); }},
    {']', "EMPTY_LIST", [](Reader& r) { r.push(r.sequence_of<PickleList>({})); }},
    {'}', "EMPTY_DICT", [](Reader& r) { r.push_dict({}); }},
    {'\x80', "PROTO",
     [](Reader& r) {
       if (const std::uint64_t protocol = r.little_endian(1); protocol > 5) r.fail(fmt::format("says {}", protocol));
     }},
    {'\x81', "NEWOBJ", [](Reader& r) { r.push_object(r.pop_several(2), /*by_new=*/true); }},
    {'\x82', "EXT1"},
    {'\x83', "EXT2"},
    {'\x84', "EXT4"},
    {'\x85', "TUPLE1", [](Reader& r) { r.push(r.sequence_of<PickleTuple>(r.pop_several(1))); }},
    {'\x86', "TUPLE2", [](Reader& r) { r.push(r.sequence_of<PickleTuple>(r.pop_several(2))); }},
    {'\x87', "TUPLE3", [](Reader& r) { r.push(r.sequence_of<PickleTuple>(r.pop_several(3))); }},
    {'\x88', "NEWTRUE", [](Reader& r) { r.push_value(true); }},
    {'\x89', "NEWFALSE", [](Reader& r) { r.push_value(false); }},
    {'\x8a', "LONG1", [](Reader& r) { r.push_long(r.counted_bytes(1)); }},
    {'\x8b', "LONG4", [](Reader& r) { r.push_long(r.counted_bytes(4)); }},
    {'\x8c', "SHORT_BINUNICODE", [](Reader& r) { r.push_text(r.counted_bytes(1)); }},
    {'\x8d', "BINUNICODE8", [](Reader& r) { r.push_text(r.counted_bytes(8)); }},
    {'\x8e', "BINBYTES8", [](Reader& r) { r.push_bytes(r.counted_bytes(8)); }},
    {'\x8f', "EMPTY_SET", [](Reader& r) { r.push_set("set", {}); }},
    {'\x90', "ADDITEMS", [](Reader& r) { r.add_to_set(r.pop_to_mark()); }},
    {'\x91', "FROZENSET", [](Reader& r) { r.push_set("frozenset", r.pop_to_mark()); }},
    {'\x92', "NEWOBJ_EX", [](Reader& r) { r.push_object(r.pop_several(3), /*by_new=*/true); }},
    {'\x93', "STACK_GLOBAL",
     [](Reader& r) {
       const std::vector<NodePtr> names = r.pop_several(2);
       r.push_global(r.text_of(names[0]), r.text_of(names[1]));
     }},
    {'\x94', "MEMOIZE", [](Reader& r) { r.put(r.memo_.size()); }},
    {'\x95', "FRAME", [](Reader& r) { r.check_left(r.little_endian(8)); }},
    {'\x96', "BYTEARRAY8", [](Reader& r) { r.push_byte_array(r.counted_bytes(8)); }},
    {'\x97', "NEXT_BUFFER"},
    {'\x98', "READONLY_BUFFER"},
};

// Null for a byte that is no opcode.
const Opcode* find_opcode(unsigned char code) {
  static const auto by_code = [] {
    std::array<const Opcode*, 256> table{};
    for (const Opcode& opcode : kOpcodes) table[static_cast<unsigned char>(opcode.code)] = &opcode;
    return table;
  }();
  return by_code[code];
}

PickleValue Reader::read() {
  for (;;) {
    op_offset_ = offset_;
    if (offset_ == bytes_.size())
      throw DataError(fmt::format("{}: the pickle ends at offset {} without STOP", file_, offset_));
    op_ = static_cast<unsigned char>(bytes_[offset_++]);
    ++ops_;
    if (op_ == kStop) return stop();
    const Opcode* opcode = find_opcode(op_);
    if (!opcode || !opcode->step) fail("is not one that checkpoints use");
    opcode->step(*this);
  }
}

void Reader::fail(const std::string& what) const {
  const Opcode* opcode = find_opcode(op_);
  throw DataError(fmt::format("{}: opcode 0x{:02x} ({}) at offset {} {}", file_, op_, opcode ? opcode->name : "unknown",
                              op_offset_, what));
}

}  // namespace

PickleValue read_pickle(std::string_view bytes, const std::string& file, const PickleVocabulary& vocabulary) {
  return Reader(bytes, file, vocabulary).read();
}

}  // namespace braid
