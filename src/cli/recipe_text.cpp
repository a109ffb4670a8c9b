#include "cli/recipe_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/strings.h"

namespace braid {
namespace {

constexpr const char* kSections[] = {"topology",   "model",      "data", "loader", "train", "optimizer",
                                     "loss_scale", "checkpoint", "log",  "stop",   "dist",  "cluster"};

std::size_t place_of(const std::string& path) {
  const std::string section = path.substr(0, path.find('.'));
  return static_cast<std::size_t>(std::find(std::begin(kSections), std::end(kSections), section) - kSections);
}

std::string scalar(const std::string& value) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_./+-").find(c) != std::string_view::npos;
  };
  const bool starts_plain = !value.empty() && value[0] != '-' && value[0] != '.';
  if (starts_plain && std::all_of(value.begin(), value.end(), is_plain)) return value;
  if (parse_double(value)) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + '"';
}

}  // namespace

void RecipeText::set(const std::string& path, const std::string& value, const std::string& from) {
  remove(path);
  entries_.push_back({path, value, from});
}

void RecipeText::remove(const std::string& path) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.path == path; });
}

std::string RecipeText::from(const std::string& path) const {
  for (const Entry& entry : entries_)
    if (entry.path == path) return entry.from;
  return "";
}

std::string RecipeText::text() const {
  std::vector<Entry> entries = entries_;
  // Keys of one section together, `kind` and `provider` before sizes; in the topology, encoders before the language
  // model.
  const auto order = [](const Entry& entry) {
    const std::string key = entry.path.substr(entry.path.rfind('.') + 1);
    const bool first = key == "kind" || key == "provider";
    return std::pair(place_of(entry.path), entry.path.substr(0, entry.path.size() - key.size()) + (first ? "" : key));
  };
  std::sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) { return order(a) < order(b); });
  std::string text;
  std::vector<std::string> open;
  for (const Entry& entry : entries) {
    const std::vector<std::string> parts = split(entry.path, '.');
    std::size_t shared = 0;
    while (shared < open.size() && shared + 1 < parts.size() && open[shared] == parts[shared]) ++shared;
    open.assign(parts.begin(), parts.end() - 1);
    for (std::size_t i = shared; i < open.size(); ++i) text += fmt::format("{:{}}{}:\n", "", 2 * i, open[i]);
    const std::string line = fmt::format("{:{}}{}: {}", "", 2 * open.size(), parts.back(), scalar(entry.value));
    text += entry.from.empty() ? line + "\n" : fmt::format("{:<36}  # {}\n", line, entry.from);
  }
  return text;
}

}  // namespace braid
