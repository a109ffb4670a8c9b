#include <array>
#include <bit>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "base/utf8.h"
#include "formats/pickle.h"
#include "formats/pickle_opcodes.h"

namespace braid {
namespace {

class Writer {
 public:
  std::string write(const PickleValue& value) {
    put(PickleOp::Proto);
    out_ += '\x02';
    put(value);
    put(PickleOp::Stop);
    return std::move(out_);
  }

 private:
  void put(PickleOp op) { out_ += static_cast<char>(op); }

  template <class Unsigned>
  void put_little_endian(Unsigned value, std::size_t bytes = sizeof(Unsigned)) {
    for (std::size_t i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
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

  void put(const PickleNone&) { put(PickleOp::None); }
  void put(bool value) { put(value ? PickleOp::NewTrue : PickleOp::NewFalse); }

  void put(std::int64_t value) {
    if (value >= 0 && value <= 0xff) {
      put(PickleOp::BinInt1);
      put_little_endian(static_cast<std::uint8_t>(value));
    } else if (value >= 0 && value <= 0xffff) {
      put(PickleOp::BinInt2);
      put_little_endian(static_cast<std::uint16_t>(value));
    } else if (value == static_cast<std::int32_t>(value)) {
      put(PickleOp::BinInt);
      put_little_endian(static_cast<std::uint32_t>(value));
    } else {
      put(PickleOp::Long1);
      out_ += '\x08';
      put_little_endian(static_cast<std::uint64_t>(value));
    }
  }

  void put(double value) {
    put(PickleOp::BinFloat);
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
    put(PickleOp::BinUnicode);
    put_little_endian(static_cast<std::uint32_t>(value.size()));
    out_ += value;
  }

  // Protocol 2 has no opcode for bytes. Python writes them as a string of the same code points, to be encoded. Equal
  // strings are not shared here: a reader could not distinguish that from a small file that expands to a large value.
  void put(const PickleBytes& value) {
    put(PickleGlobal{"_codecs", "encode"});
    put_text(latin1_to_utf8(value.data));
    put(std::string("latin1"));
    put(PickleOp::Tuple2);
    put(PickleOp::Reduce);
  }

  void put(const PickleTuple& value) { put_tuple(value.items); }

  void put_tuple(const std::vector<PickleValue>& items) {
    constexpr std::array kShort = {PickleOp::EmptyTuple, PickleOp::Tuple1, PickleOp::Tuple2, PickleOp::Tuple3};
    if (items.size() >= kShort.size()) put(PickleOp::Mark);
    for (const PickleValue& item : items) put(item);
    put(items.size() < kShort.size() ? kShort[items.size()] : PickleOp::Tuple);
  }

  void put(const PickleList& value) {
    put(PickleOp::EmptyList);
    if (value.items.empty()) return;
    put(PickleOp::Mark);
    for (const PickleValue& item : value.items) put(item);
    put(PickleOp::Appends);
  }

  void put(const PickleDict& value) {
    put(PickleOp::EmptyDict);
    put_items(value);
  }

  void put_items(const PickleDict& value) {
    if (value.items.empty()) return;
    put(PickleOp::Mark);
    for (const auto& [key, item] : value.items) {
      put(key);
      put(item);
    }
    put(PickleOp::SetItems);
  }

  void put(const PickleGlobal& value) {
    BRAID_CHECK((value.module + value.name).find('\n') == std::string::npos, "the name {}", value.name);
    const std::string lines = value.module + "\n" + value.name + "\n";
    if (const auto known = globals_.find(lines); known != globals_.end()) return put_get(known->second);
    put(PickleOp::Global);
    out_ += lines;
    globals_.emplace(lines, put_put());
  }

  void put(const PicklePersistent& value) {
    put(value.id);
    put(PickleOp::BinPersId);
  }

  void put(const PickleObject& value) {
    put(value.type);
    put_tuple(value.args);
    put(value.by_new ? PickleOp::NewObj : PickleOp::Reduce);
    put_items(value.items);
    if (!value.state) return;
    put(value.state);
    put(PickleOp::Build);
  }

  void put_get(std::uint32_t index) {
    put(index <= 0xff ? PickleOp::BinGet : PickleOp::LongBinGet);
    put_little_endian(index, index <= 0xff ? 1 : 4);
  }

  std::uint32_t put_put() {
    put(next_ <= 0xff ? PickleOp::BinPut : PickleOp::LongBinPut);
    put_little_endian(next_, next_ <= 0xff ? 1 : 4);
    return next_++;
  }

  std::string out_;
  std::uint32_t next_ = 0;
  std::unordered_map<const PickleNode*, std::uint32_t> nodes_;
  std::unordered_map<std::string, std::uint32_t> strings_, globals_;
};

}  // namespace

std::string write_pickle(const PickleValue& value) { return Writer().write(value); }

}  // namespace braid
