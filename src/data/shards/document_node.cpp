// DocumentNode: typed reading of a document, with messages that name the place.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/document.h"

namespace braid {
namespace {

std::string shown(const Json& value) {
  if (value.is_object()) return "a mapping";
  if (value.is_array()) return "a list";
  if (value.is_null()) return "nothing";
  return in_quotes(value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

DocumentNode::DocumentNode(const Json& value, std::string file, std::string path)
    : value_(value), file_(std::move(file)), path_(std::move(path)) {}

std::string DocumentNode::where() const { return path_.empty() ? file_ : fmt::format("{}, {}", file_, path_); }

void DocumentNode::fail(const std::string& what, const std::string& fix) const {
  throw ConfigError({what, where(), fix});
}

void DocumentNode::expect_object() const {
  if (!value_.is_object()) fail(fmt::format("expected a mapping of keys, not {}", shown(value_)));
}

std::string DocumentNode::text() const {
  if (!value_.is_string()) fail(fmt::format("expected text, not {}", shown(value_)), "put the value in quotes");
  return value_.get<std::string>();
}

std::int64_t DocumentNode::integer(std::int64_t least) const {
  const bool fits = value_.is_number_integer() &&
                    !(value_.is_number_unsigned() && value_.get<std::uint64_t>() > std::uint64_t{INT64_MAX});
  if (!fits || value_.get<std::int64_t>() < least)
    fail(fmt::format("expected an integer of at least {}, not {}", least, shown(value_)));
  return value_.get<std::int64_t>();
}

double DocumentNode::positive_number(double most) const {
  const double value = value_.is_number() ? value_.get<double>() : 0;
  if (!(value > 0 && value <= most))
    fail(fmt::format("expected a number above zero and at most {:g}, not {}", most, shown(value_)));
  return value;
}

void DocumentNode::expect_keys(std::initializer_list<std::string_view> known) const {
  expect_object();
  for (const auto& [key, value] : value_.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    const auto meant = nearest(key, names);
    fail(fmt::format("unknown key {}", in_quotes(key)),
         meant ? fmt::format("did you mean `{}`?", *meant) : fmt::format("known keys: {}", fmt::join(names, ", ")));
  }
}

bool DocumentNode::has(std::string_view key) const {
  expect_object();
  const auto found = value_.find(std::string(key));
  return found != value_.end() && !found->is_null();
}

DocumentNode DocumentNode::at(std::string_view key) const {
  expect_object();
  const auto found = value_.find(std::string(key));
  if (found == value_.end()) fail(fmt::format("the key `{}` is missing", key));
  return {*found, file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
}

std::vector<DocumentNode> DocumentNode::items() const {
  if (!value_.is_array()) fail(fmt::format("expected a list, not {}", shown(value_)));
  std::vector<DocumentNode> items;
  for (std::size_t i = 0; i < value_.size(); ++i) items.emplace_back(value_[i], file_, fmt::format("{}[{}]", path_, i));
  return items;
}

std::vector<std::pair<std::string, DocumentNode>> DocumentNode::entries() const {
  expect_object();
  std::vector<std::pair<std::string, DocumentNode>> entries;
  for (const auto& [key, value] : value_.items())
    entries.emplace_back(key, DocumentNode{value, file_, path_.empty() ? key : fmt::format("{}.{}", path_, key)});
  return entries;
}

std::optional<std::string> DocumentNode::optional_text(std::string_view key) const {
  return has(key) ? std::optional(at(key).text()) : std::nullopt;
}

}  // namespace braid
