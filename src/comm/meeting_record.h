// A short record of what a rank has communicated in a meeting, which the failure board compares with its peers'. NCCL
// may carry out operations that do not fit, so that no rank waits and nothing else shows the mistake.
//
// A mark is a hash of all contents up to an arrival, so that one difference shows in all later marks. Marks are kept of
// the latest arrivals, of the latest multiples of 16, and of the latest multiples of 256: ranks have marks in common
// even if one is thousands of operations ahead.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace braid {

class MeetingRecord {
 public:
  static constexpr std::array<std::int64_t, 3> kSteps = {1, 16, 256};
  static constexpr std::array<std::size_t, 3> kMarks = {64, 16, 16};  // kept of each step

  using Marks = std::array<std::vector<std::uint32_t>, kSteps.size()>;  // by step, the newest last

  MeetingRecord() = default;
  MeetingRecord(std::int64_t arrivals, Marks marks, std::vector<std::string> contents);

  void add(const std::string& content);

  std::int64_t arrivals() const { return arrivals_; }
  const Marks& marks() const { return marks_; }
  const std::vector<std::string>& contents() const { return contents_; }  // of the marks of step 1

  // Whether both had communicated the same at the last arrival of which both have a mark; true if there is none.
  bool agrees_with(const MeetingRecord& other) const;

  std::map<std::int64_t, std::uint32_t> marks_by_arrival() const;
  std::string content_of(std::int64_t arrival) const;  // empty if it is not known any more

 private:
  std::optional<std::uint32_t> mark_at(std::int64_t arrival, std::size_t step) const;

  std::int64_t arrivals_ = 0;
  Marks marks_;
  std::vector<std::string> contents_;
};

// Groups of one name with other members have meetings of their own.
struct MeetingKey {
  std::string name;
  std::uint32_t members = 0;  // a hash of their ranks
  friend auto operator<=>(const MeetingKey&, const MeetingKey&) = default;
};
MeetingKey meeting_key(const std::string& name, const std::vector<int>& members);

using MeetingRecords = std::map<MeetingKey, MeetingRecord>;

}  // namespace braid
