#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "formats/pickle.h"
#include "formats/pickle_opcodes.h"

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

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& file, const PickleVocabulary& vocabulary)
      : bytes_(bytes), file_(file), vocabulary_(vocabulary) {}

  PickleValue read() {
    for (;;) {
      op_offset_ = offset_;
      if (offset_ == bytes_.size())
        throw DataError(fmt::format("{}: the pickle ends at offset {} without STOP", file_, offset_));
      op_ = static_cast<PickleOp>(bytes_[offset_++]);
      ++ops_;
      if (op_ == PickleOp::Stop) return stop();
      step();
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: opcode 0x{:02x} ({}) at offset {} {}", file_, static_cast<unsigned>(op_),
                                name_of(op_), op_offset_, what));
  }

  // --- the bytes

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - offset_)
      fail(fmt::format("needs {} bytes, {} are left", count, bytes_.size() - offset_));
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

  std::vector<NodePtr> pop_to_mark() {
    if (marks_.empty()) fail("finds no MARK");
    std::vector<NodePtr> nodes(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return nodes;
  }

  std::vector<NodePtr> pop_several(std::size_t count) {
    if (above_mark() < count) fail(fmt::format("needs {} values on the stack, there are {}", count, above_mark()));
    std::vector<NodePtr> nodes(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return nodes;
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

  void push_tuple(const std::vector<NodePtr>& items) {
    NodePtr tuple = make_node(PickleTuple{{items.begin(), items.end()}});
    nest(*tuple, items);
    tuple->hashable = std::all_of(items.begin(), items.end(), [](const NodePtr& item) { return item->hashable; });
    push(tuple);
  }

  void push_list(const std::vector<NodePtr>& items) {
    NodePtr list = make_node(PickleList{{items.begin(), items.end()}});
    nest(*list, items);
    list->hashable = false;
    push(list);
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
      if (!std::all_of(full.begin(), full.end(), is_name_character) || !is_known(full))
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

  void push_object(const NodePtr& type, const NodePtr& arguments, bool by_new) {
    if (!as<PickleGlobal>(type)) fail("calls a value that is not a name");
    const PickleTuple* tuple = as<PickleTuple>(arguments);
    if (!tuple) fail("calls with arguments that are not a tuple");
    if (std::optional<std::string> bytes = as_bytes(type, *tuple)) return push_value(PickleBytes{std::move(*bytes)});
    count_arguments(tuple->items.size());
    NodePtr object = make_node(PickleObject{.type = type, .args = tuple->items, .by_new = by_new});
    object->depth = arguments->depth;  // which it replaces
    push(object);
  }

  // Tuples and strings from the memo may be large and are copied, so all copies together are limited to the file's
  // size.
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

  void push_set(const char* name, const std::vector<NodePtr>& items) {
    NodePtr list = make_node(PickleList{{items.begin(), items.end()}});
    nest(*list, items);
    NodePtr set = make_node(PickleObject{.type = make_node(PickleGlobal{"builtins", name}), .args = {list}});
    nest(*set, *list);
    set->open_set = op_ == PickleOp::EmptySet;
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

  std::uint64_t index_line() {
    const std::string_view text = line();
    const std::optional<std::int64_t> index = parse_int64(text);
    if (!index || *index < 0) fail(fmt::format("has the invalid memo index {}", in_quotes(text)));
    return static_cast<std::uint64_t>(*index);
  }

  void push_int_line() {
    const std::string_view text = line();
    if (op_ == PickleOp::Int && (text == "00" || text == "01")) return push_value(text == "01");
    const std::string_view digits = text.ends_with('L') ? text.substr(0, text.size() - 1) : text;
    const std::optional<std::int64_t> value = parse_int64(digits);
    if (!value) fail(fmt::format("has {}, which is not a 64-bit integer", in_quotes(text)));
    push_value(*value);
  }

  // Two's complement, little endian.
  void push_long(std::uint64_t count) {
    const std::string_view taken = take(count);
    std::uint64_t value = 0;
    const bool negative = !taken.empty() && (taken.back() & 0x80) != 0;
    for (std::size_t i = 0; i < std::max<std::size_t>(count, 8); ++i) {
      const unsigned char byte = i < count ? static_cast<unsigned char>(taken[i]) : negative ? 0xff : 0;
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

  void push_text(std::string_view text) {
    if (!is_utf8(text)) fail("has text that is not UTF-8");
    push_value(std::string(text));
  }

  void push_escaped_text() {
    std::optional<std::string> text = from_raw_unicode_escape(line());
    if (!text) fail("has an invalid escape in its text");
    push_value(std::move(*text));
  }

  const std::string& text_of(const NodePtr& node) const {
    const std::string* text = as<std::string>(node);
    if (!text) fail("has a name that is not text");
    return *text;
  }

  // --- the opcodes

  PickleValue stop() {
    if (!marks_.empty()) fail("comes while a MARK is open");
    if (stack_.size() != 1) fail(fmt::format("finds {} values on the stack, not one", stack_.size()));
    if (offset_ != bytes_.size()) fail(fmt::format("is followed by {} more bytes", bytes_.size() - offset_));
    return stack_[0];
  }

  void step() {
    if (!step_value() && !step_container() && !step_memo()) fail("is not one that checkpoints use");
  }

  bool step_value() {
    switch (op_) {
      case PickleOp::None:
        push_value(PickleNone{});
        return true;
      case PickleOp::NewTrue:
      case PickleOp::NewFalse:
        push_value(op_ == PickleOp::NewTrue);
        return true;
      case PickleOp::Int:
      case PickleOp::Long:
        push_int_line();
        return true;
      case PickleOp::BinInt:
        push_value(std::int64_t{static_cast<std::int32_t>(little_endian(4))});
        return true;
      case PickleOp::BinInt1:
        push_value(static_cast<std::int64_t>(little_endian(1)));
        return true;
      case PickleOp::BinInt2:
        push_value(static_cast<std::int64_t>(little_endian(2)));
        return true;
      case PickleOp::Long1:
        push_long(little_endian(1));
        return true;
      case PickleOp::Long4:
        push_long(little_endian(4));
        return true;
      case PickleOp::Float:
        push_float_line();
        return true;
      case PickleOp::BinFloat:
        push_double();
        return true;
      case PickleOp::Unicode:
        push_escaped_text();
        return true;
      case PickleOp::ShortBinUnicode:
        push_text(take(little_endian(1)));
        return true;
      case PickleOp::BinUnicode:
        push_text(take(little_endian(4)));
        return true;
      case PickleOp::BinUnicode8:
        push_text(take(little_endian(8)));
        return true;
      case PickleOp::ShortBinBytes:
        push_value(PickleBytes{std::string(take(little_endian(1)))});
        return true;
      case PickleOp::BinBytes:
        push_value(PickleBytes{std::string(take(little_endian(4)))});
        return true;
      case PickleOp::BinBytes8:
        push_value(PickleBytes{std::string(take(little_endian(8)))});
        return true;
      case PickleOp::ByteArray8:
        push_byte_array(take(little_endian(8)));
        return true;
      default:
        return false;
    }
  }

  bool step_container() {
    switch (op_) {
      case PickleOp::Mark:
        marks_.push_back(stack_.size());
        return true;
      case PickleOp::EmptyTuple:
        push_tuple({});
        return true;
      case PickleOp::Tuple1:
        push_tuple(pop_several(1));
        return true;
      case PickleOp::Tuple2:
        push_tuple(pop_several(2));
        return true;
      case PickleOp::Tuple3:
        push_tuple(pop_several(3));
        return true;
      case PickleOp::Tuple:
        push_tuple(pop_to_mark());
        return true;
      case PickleOp::EmptyList:
        push_list({});
        return true;
      case PickleOp::List:
        push_list(pop_to_mark());
        return true;
      case PickleOp::Append:
        append(pop_several(1));
        return true;
      case PickleOp::Appends:
        append(pop_to_mark());
        return true;
      case PickleOp::EmptyDict:
        push_dict({});
        return true;
      case PickleOp::Dict:
        push_dict(pop_to_mark());
        return true;
      case PickleOp::SetItem:
        set_items(pop_several(2));
        return true;
      case PickleOp::SetItems:
        set_items(pop_to_mark());
        return true;
      case PickleOp::EmptySet:
        push_set("set", {});
        return true;
      case PickleOp::AddItems:
        add_to_set(pop_to_mark());
        return true;
      case PickleOp::FrozenSet:
        push_set("frozenset", pop_to_mark());
        return true;
      default:
        return step_object();
    }
  }

  bool step_object() {
    switch (op_) {
      case PickleOp::Global: {
        const std::string_view module = line();
        push_global(module, line());
        return true;
      }
      case PickleOp::StackGlobal: {
        const std::vector<NodePtr> names = pop_several(2);
        push_global(text_of(names[0]), text_of(names[1]));
        return true;
      }
      case PickleOp::Reduce:
      case PickleOp::NewObj: {
        const std::vector<NodePtr> parts = pop_several(2);
        push_object(parts[0], parts[1], op_ == PickleOp::NewObj);
        return true;
      }
      case PickleOp::NewObjEx: {
        const std::vector<NodePtr> parts = pop_several(3);
        const PickleDict* keywords = as<PickleDict>(parts[2]);
        if (!keywords || !keywords->items.empty()) fail("calls with keyword arguments");
        push_object(parts[0], parts[1], true);
        return true;
      }
      case PickleOp::Build:
        build();
        return true;
      case PickleOp::PersId:
        push_persistent(make_node(std::string(line())));
        return true;
      case PickleOp::BinPersId:
        push_persistent(pop());
        return true;
      default:
        return false;
    }
  }

  void push_persistent(const NodePtr& id) {
    if (const std::string* text = as<std::string>(id); text && !is_utf8(*text)) fail("has text that is not UTF-8");
    NodePtr persistent = make_node(PicklePersistent{id});
    nest(*persistent, *id);
    push(persistent);
  }

  bool step_memo() {
    switch (op_) {
      case PickleOp::Put:
        put(index_line());
        return true;
      case PickleOp::BinPut:
        put(little_endian(1));
        return true;
      case PickleOp::LongBinPut:
        put(little_endian(4));
        return true;
      case PickleOp::Memoize:
        put(memo_.size());
        return true;
      case PickleOp::Get:
        get(index_line());
        return true;
      case PickleOp::BinGet:
        get(little_endian(1));
        return true;
      case PickleOp::LongBinGet:
        get(little_endian(4));
        return true;
      case PickleOp::Proto:
        if (const std::uint64_t protocol = little_endian(1); protocol > 5) fail(fmt::format("says {}", protocol));
        return true;
      case PickleOp::Frame:
        if (const std::uint64_t length = little_endian(8); length > bytes_.size() - offset_)
          fail(fmt::format("needs {} bytes, {} are left", length, bytes_.size() - offset_));
        return true;
      default:
        return false;
    }
  }

  std::string_view bytes_;
  const std::string& file_;
  const PickleVocabulary& vocabulary_;
  std::size_t offset_ = 0, op_offset_ = 0, ops_ = 0, arguments_ = 0;
  PickleOp op_{};
  std::vector<NodePtr> stack_;
  std::vector<std::size_t> marks_;
  std::vector<NodePtr> memo_;
  std::unordered_map<std::string, NodePtr> globals_;  // a name may be repeated many times at a few bytes each
};

}  // namespace

PickleValue read_pickle(std::string_view bytes, const std::string& file, const PickleVocabulary& vocabulary) {
  return Reader(bytes, file, vocabulary).read();
}

}  // namespace braid
