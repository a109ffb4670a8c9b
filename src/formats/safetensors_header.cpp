#include "formats/safetensors_header.h"

#include <nlohmann/json.hpp>

#include <limits>
#include <unordered_set>
#include <utility>

#include "base/strings.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDimensions = 64;

// Maps every event to one of a few; an event that a handler does not expect stops the parser.
class StrictSax : public nlohmann::json_sax<Json> {
 public:
  explicit StrictSax(const std::string& path, const char* what) : path_(path), what_(what) {}

  void parse(std::string_view json) {
    if (!Json::sax_parse(json.begin(), json.end(), this)) throw ConfigError(failure_);
  }

  bool null() override { return other_value("null"); }
  bool boolean(bool) override { return other_value("a boolean"); }
  bool number_integer(number_integer_t) override { return other_value("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override { return other_value(text); }
  bool binary(binary_t&) override { return other_value("binary"); }
  bool number_unsigned(number_unsigned_t) override { return other_value("a number"); }
  bool string(string_t&) override { return other_value("a string"); }
  bool start_array(std::size_t) override { return other_value("a list"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop(fmt::format("{} is not JSON, at byte {}", what_, position));
  }

 protected:
  virtual bool other_value(const std::string& kind) = 0;

  bool stop(std::string what) {
    failure_ = {std::move(what), path_, "the file is damaged, or its name is wrong: download it again"};
    return false;
  }

  const std::string& path_;

 private:
  const char* what_;
  Problem failure_;
};

class HeaderSax : public StrictSax {
 public:
  HeaderSax(const std::string& path, ProblemList& problems) : StrictSax(path, "the header"), problems_(problems) {}

  std::vector<HeaderEntry> take() { return std::move(entries_); }

  bool start_object(std::size_t) override {
    if (depth_ == 2 || list_) return other_value("an object");
    if (depth_ == 1 && !in_metadata_) entries_.push_back({.name = name_});
    ++depth_;
    return true;
  }

  bool end_object() override {
    --depth_;
    return true;
  }

  bool key(string_t& key) override {
    if (depth_ == 2) {
      field_ = key;
      return in_metadata_ || is_new_field(key) ||
             stop(fmt::format("tensor {} has {} twice, or it is not a field of a tensor", in_quotes(name_),
                              in_quotes(key)));
    }
    name_ = key;
    in_metadata_ = key == "__metadata__";
    if (!names_.insert(key).second)
      problems_.add(fmt::format("tensor {} is in the header twice", in_quotes(key)), path_, "write the file again");
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || field_ != "dtype" || list_) return other_value("a string");
    entries_.back().dtype = text;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype" || list_) return other_value("a list");
    list_.emplace();
    list_is_whole_ = true;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!list_) return other_value("a number");
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()))
      return other_value("a number");
    if (list_->size() == kMaxDimensions)
      return stop(fmt::format("tensor {} has more than {} dimensions", in_quotes(name_), kMaxDimensions));
    list_->push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool end_array() override {
    HeaderEntry& entry = entries_.back();
    if (list_is_whole_) (field_ == "shape" ? entry.shape : entry.offsets) = std::move(*list_);
    list_.reset();
    return true;
  }

 private:
  bool is_new_field(const std::string& key) const {
    const HeaderEntry& entry = entries_.back();
    return (key == "dtype" && !entry.dtype) || (key == "shape" && !entry.shape) ||
           (key == "data_offsets" && !entry.offsets);
  }

  // In a list of numbers, an invalid one affects only that tensor; elsewhere it invalidates the header.
  bool other_value(const std::string& kind) override {
    if (list_ && kind != "an object" && kind != "a list") {
      list_is_whole_ = false;
      return true;
    }
    if (depth_ == 0) return stop(fmt::format("the header is {}, not an object", kind));
    if (depth_ == 1) return stop(fmt::format("tensor {} is described by {}, not by an object", in_quotes(name_), kind));
    return stop(fmt::format("field {} of {} is {}", in_quotes(field_), in_quotes(name_), kind));
  }

  ProblemList& problems_;
  std::vector<HeaderEntry> entries_;
  std::unordered_set<std::string> names_;
  std::string name_, field_;
  std::optional<std::vector<std::int64_t>> list_;
  bool list_is_whole_ = true, in_metadata_ = false;
  int depth_ = 0;
};

// The index may have any other keys beside the weight map.
class IndexSax : public StrictSax {
 public:
  IndexSax(const std::string& path, ProblemList& problems) : StrictSax(path, "the index"), problems_(problems) {}

  std::map<std::string, std::string> take() {
    if (!found_) throw ConfigError({"the index has no weight_map", path_, "write the model again"});
    return std::move(shards_);
  }

  bool start_object(std::size_t) override {
    if (depth_ == 2 && in_map_) return other_value("an object");
    found_ |= depth_ == 1 && in_map_;
    ++depth_;
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override {
    if (in_map_ || depth_ == 0) return other_value("a list");
    ++depth_;
    return true;
  }
  bool end_array() override { return leave(); }

  bool key(string_t& key) override {
    if (depth_ == 1) in_map_ = key == "weight_map";
    name_ = key;
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ != 2 || !in_map_) return other_value("a string");
    if (!shards_.emplace(name_, text).second)
      problems_.add(fmt::format("tensor {} is in the index twice", in_quotes(name_)), path_, "write the model again");
    return true;
  }
  bool number_unsigned(number_unsigned_t) override { return other_value("a number"); }

 private:
  bool leave() {
    --depth_;
    return true;
  }
  bool other_value(const std::string& kind) override {
    if (depth_ == 0) return stop(fmt::format("the index is {}, not an object", kind));
    return !in_map_ || stop(fmt::format("the weight_map has {} at {}, not a file name", kind, in_quotes(name_)));
  }

  ProblemList& problems_;
  std::map<std::string, std::string> shards_;
  std::string name_;
  bool in_map_ = false, found_ = false;
  int depth_ = 0;
};

}  // namespace

std::vector<HeaderEntry> parse_header(std::string_view json, const std::string& path, ProblemList& problems) {
  HeaderSax sax(path, problems);
  sax.parse(json);
  return sax.take();
}

std::map<std::string, std::string> parse_index(std::string_view json, const std::string& path, ProblemList& problems) {
  IndexSax sax(path, problems);
  sax.parse(json);
  return sax.take();
}

}  // namespace braid
