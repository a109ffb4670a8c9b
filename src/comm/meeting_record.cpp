#include "comm/meeting_record.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace braid {
namespace {

// FNV-1a.
constexpr std::uint32_t kOffset = 2166136261u, kPrime = 16777619u;

std::uint32_t add_to_hash(std::uint32_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  return (hash ^ 0xff) * kPrime;  // ends the text: no text contains this byte
}

template <class T>
void keep_newest(std::vector<T>& values, const T& value, std::size_t most) {
  if (values.size() == most) values.erase(values.begin());
  values.push_back(value);
}

}  // namespace

MeetingRecord::MeetingRecord(std::int64_t arrivals, Marks marks, std::vector<std::string> contents)
    : arrivals_(arrivals), marks_(std::move(marks)), contents_(std::move(contents)) {}

void MeetingRecord::add(const std::string& content) {
  const std::uint32_t mark = add_to_hash(marks_[0].empty() ? kOffset : marks_[0].back(), content);
  ++arrivals_;
  for (std::size_t i = 0; i < kSteps.size(); ++i)
    if (arrivals_ % kSteps[i] == 0) keep_newest(marks_[i], mark, kMarks[i]);
  keep_newest(contents_, content, kMarks[0]);
}

std::optional<std::uint32_t> MeetingRecord::mark_at(std::int64_t arrival, std::size_t step) const {
  const std::int64_t age = arrivals_ / kSteps[step] - arrival / kSteps[step];
  if (age < 0 || age >= static_cast<std::int64_t>(marks_[step].size())) return std::nullopt;
  return marks_[step].rbegin()[age];
}

bool MeetingRecord::agrees_with(const MeetingRecord& other) const {
  for (std::size_t i = 0; i < kSteps.size(); ++i) {
    const std::int64_t common = std::min(arrivals_, other.arrivals_) / kSteps[i] * kSteps[i];
    const auto own = mark_at(common, i), theirs = other.mark_at(common, i);
    if (own && theirs) return own == theirs;
  }
  return true;
}

std::map<std::int64_t, std::uint32_t> MeetingRecord::marks_by_arrival() const {
  std::map<std::int64_t, std::uint32_t> by_arrival;
  for (std::size_t i = 0; i < kSteps.size(); ++i) {
    std::int64_t arrival = arrivals_ / kSteps[i] * kSteps[i];
    for (auto mark = marks_[i].rbegin(); mark != marks_[i].rend(); ++mark, arrival -= kSteps[i])
      by_arrival[arrival] = *mark;
  }
  return by_arrival;
}

std::string MeetingRecord::content_of(std::int64_t arrival) const {
  const std::int64_t age = arrivals_ - arrival;
  return age < 0 || age >= static_cast<std::int64_t>(contents_.size()) ? "" : contents_.rbegin()[age];
}

MeetingKey meeting_key(const std::string& name, const std::vector<int>& members) {
  std::uint32_t hash = kOffset;
  for (const int member : members) hash = (hash ^ static_cast<std::uint32_t>(member)) * kPrime;
  return {name, hash};
}

}  // namespace braid
