// The current operation of a rank, which peers see when something goes wrong. Collectives and long phases open a scope;
// the failure monitor takes snapshots from its own thread.
#pragma once

namespace braid {

// A short record of what a rank has communicated in a meeting, which the failure board compares with its peers': NCCL
// may carry out operations that do not fit without a rank that waits.
//
// A mark is a hash of all contents up to an arrival, so that one difference shows in all later marks. They are kept of
// the latest arrivals and of the latest multiples of 16 and 256: ranks have marks in common even if one is thousands of
// operations ahead.
struct MeetingRecord {
  static constexpr std::array<std::int64_t, 3> kSteps = {1, 16, 256};
  static constexpr std::array<std::size_t, 3> kMarks = {64, 16, 16};  // kept of each step

  std::int64_t arrivals = 0;
  std::array<std::vector<std::uint32_t>, kSteps.size()> marks{};  // by step, the newest last
  std::vector<std::string> contents{};                            // of the marks of step 1

  void add(const std::string& content);
  // Whether both had communicated the same at the last arrival of which both have a mark; true if there is none.
  bool agrees_with(const MeetingRecord& other) const;

  std::map<std::int64_t, std::uint32_t> marks_by_arrival() const;
  std::string content_of(std::int64_t arrival) const;  // empty if it is not known any more
};

// Groups of one name with other members have meetings of their own.
struct MeetingKey {
  std::string name;
  std::uint32_t members = 0;  // a hash of their ranks
  friend auto operator<=>(const MeetingKey&, const MeetingKey&) = default;
};
MeetingKey meeting_key(const std::string& name, const std::vector<int>& members);

using MeetingRecords = std::map<MeetingKey, MeetingRecord>;

// A point where ranks synchronise: a group's collectives, or one direction of a pair's sends. The n-th arrivals of all
// members match.
struct Meeting {
  std::string name;          // e.g. "language.dp-cp", "language.pp 3>4"
  std::vector<int> members;  // global ranks, ascending
  std::string content{};     // what they communicate, the same for all members: "all_reduce of 1000 float"
  // What this rank's part of the operation carries: the tensor of an all-reduce, broadcast or transfer, the whole of an
  // all-gather or reduce-scatter, the rows that it sends in an all-to-all.
  std::int64_t bytes = 0;
  int sender = -1;  // of a transfer
};

struct Traffic {
  std::int64_t operations = 0, bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};
// By meeting and operation: {"language.tp", "all_gather"}.
using TrafficTable = std::map<std::pair<std::string, std::string>, Traffic>;

struct Wait {
  Meeting meeting;
  std::int64_t arrival = 0;  // this rank's count of arrivals there, from 1
};

// Where a device is with an operation that its host has queued.
enum class DeviceState { Queued, Started, Done };

struct RankStatus {
  std::string op;           // scopes in progress, outermost first, joined by " > "; empty between them
  std::vector<Wait> waits;  // the meetings it waits in, as a host or with its device
  std::map<std::string, std::int64_t> arrivals;  // how often this rank arrived at each meeting, its device included
  MeetingRecords records;                        // of its host's arrivals
  double idle_s = 0;  // since a scope was opened or closed, or its device started or completed an operation
};

class Progress {
 public:
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    friend class Progress;
    Scope(Progress& progress, bool meeting);
    Progress& progress_;
    bool meeting_;
    int exceptions_;
  };

  // "iteration 12"
  [[nodiscard]] Scope phase(std::string name);
  // "all_reduce" -> "all_reduce #3 on language.tp"; an exchange has several meetings and is named after the first.
  [[nodiscard]] Scope meet(const std::string& op, std::vector<Meeting> meetings);
  // The same in two calls, for an asynchronous operation: this rank has arrived at the meetings, and waits in them
  // while a scope is open.
  std::vector<Wait> arrive(const std::string& op, std::vector<Meeting> meetings);
  [[nodiscard]] Scope wait_in(const std::string& op, std::vector<Wait> waits);

  // The device carries out this operation while the host continues; poll_devices() calls `state` until it is done.
  // Operations of one queue run in order.
  void follow(const std::string& queue, const std::string& op, std::vector<Wait> waits,
              std::function<DeviceState()> state);
  // Once `reached` is true, the device does nothing more of this rank's work before this followed operation is done.
  void await_device(const std::string& queue, const std::vector<Wait>& waits, std::function<bool()> reached);
  // Asks the devices how far they are. It may block as long as a device's driver does: call it on a thread of its own.
  void poll_devices();
  void forget_devices();

  // Called on this rank's thread when a meeting begins and ends.
  void watch_meetings(std::function<void(bool begins)> watcher) { meeting_watcher_ = std::move(watcher); }

  RankStatus snapshot(bool with_records = true) const;
  TrafficTable traffic() const;  // since the start

  // Time in which the process was suspended; it does not count as time without progress.
  void forgive(std::chrono::steady_clock::duration stopped);

  // The scopes that were open when an exception was thrown, and that it has closed since.
  std::string op_at_failure() const;

 private:
  struct DeviceOperation {
    std::string name;
    std::vector<Wait> waits;
    std::function<DeviceState()> state;
    std::function<bool()> reached{};  // the wait for it
    bool started = false, awaited = false;
  };
  using DeviceQueue = std::deque<std::shared_ptr<DeviceOperation>>;

  void poll_waits(const std::string& queue);
  void add_devices(RankStatus& status) const;

  std::function<void(bool begins)> meeting_watcher_;
  mutable std::mutex mutex_;
  std::vector<std::string> ops_;
  std::string failed_op_;
  RankStatus status_;
  TrafficTable traffic_;
  std::map<std::string, DeviceQueue> devices_;
  std::chrono::steady_clock::time_point last_change_ = std::chrono::steady_clock::now();
};

}  // namespace braid
