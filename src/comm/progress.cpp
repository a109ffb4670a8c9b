#include "comm/progress.h"
#include "base/strings.h"

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

// --- what a rank does

Progress::Scope::Scope(Progress& progress, bool meeting)
    : progress_(progress), meeting_(meeting), exceptions_(std::uncaught_exceptions()) {}

Progress::Scope::~Scope() {
  if (meeting_ && progress_.meeting_watcher_) progress_.meeting_watcher_(false);
  std::lock_guard lock(progress_.mutex_);
  if (std::uncaught_exceptions() > exceptions_ && progress_.failed_op_.empty())
    progress_.failed_op_ = joined(progress_.ops_, " > ");
  progress_.ops_.pop_back();
  if (meeting_) progress_.status_.waits.clear();
  progress_.last_change_ = std::chrono::steady_clock::now();
}

Progress::Scope Progress::phase(std::string name) {
  std::lock_guard lock(mutex_);
  failed_op_.clear();
  ops_.push_back(std::move(name));
  last_change_ = std::chrono::steady_clock::now();
  return Scope(*this, false);
}

Progress::Scope Progress::meet(const std::string& op, std::vector<Meeting> meetings) {
  return wait_in(op, arrive(op, std::move(meetings)));
}

std::vector<Wait> Progress::arrive(const std::string& op, std::vector<Meeting> meetings) {
  std::lock_guard lock(mutex_);
  std::vector<Wait> waits;
  for (Meeting& meeting : meetings) {
    const std::int64_t arrival = ++status_.arrivals[meeting.name];
    status_.records[meeting_key(meeting.name, meeting.members)].add(meeting.content);
    Traffic& traffic = traffic_[{meeting.name, op}];
    ++traffic.operations;
    traffic.bytes += meeting.bytes;
    waits.push_back({std::move(meeting), arrival});
  }
  return waits;
}

Progress::Scope Progress::wait_in(const std::string& op, std::vector<Wait> waits) {
  if (meeting_watcher_) meeting_watcher_(true);
  std::lock_guard lock(mutex_);
  failed_op_.clear();
  status_.waits = std::move(waits);
  const Wait& first = status_.waits.front();
  ops_.push_back(fmt::format("{} #{} on {}", op, first.arrival, first.meeting.name));
  last_change_ = std::chrono::steady_clock::now();
  return Scope(*this, true);
}

void Progress::follow(const std::string& queue, const std::string& op, std::vector<Wait> waits,
                      std::function<DeviceState()> state) {
  std::string name = fmt::format("{} #{} on {}", op, waits.front().arrival, waits.front().meeting.name);
  std::lock_guard lock(mutex_);
  devices_[queue].push_back(
      std::make_shared<DeviceOperation>(DeviceOperation{std::move(name), std::move(waits), std::move(state)}));
}

void Progress::await_device(const std::string& queue, const std::vector<Wait>& waits, std::function<bool()> reached) {
  std::lock_guard lock(mutex_);
  const auto is_it = [&](const std::shared_ptr<DeviceOperation>& operation) {
    const Wait &own = operation->waits.front(), &awaited = waits.front();
    return own.arrival == awaited.arrival && own.meeting.name == awaited.meeting.name;
  };
  DeviceQueue& operations = devices_[queue];
  const auto operation = std::find_if(operations.rbegin(), operations.rend(), is_it);  // mostly among the newest
  if (operation != operations.rend()) (*operation)->reached = std::move(reached);
}

// The rank's own stream reaches its waits in their order.
void Progress::poll_waits(const std::string& queue) {
  std::vector<std::pair<std::shared_ptr<DeviceOperation>, std::function<bool()>>> waits;
  {
    std::lock_guard lock(mutex_);
    for (const auto& operation : devices_[queue])
      if (operation->reached && !operation->awaited) waits.emplace_back(operation, operation->reached);
  }
  for (const auto& [operation, reached] : waits) {
    if (!reached()) return;  // without the lock: it may block
    std::lock_guard lock(mutex_);
    operation->awaited = true;
  }
}

void Progress::poll_devices() {
  const auto oldest_of = [this](const std::string& queue) {
    std::lock_guard lock(mutex_);
    const DeviceQueue& operations = devices_[queue];
    return operations.empty() ? nullptr : operations.front();
  };
  std::vector<std::string> queues;
  {
    std::lock_guard lock(mutex_);
    for (const auto& entry : devices_) queues.push_back(entry.first);
  }
  for (const std::string& queue : queues) {
    while (const auto operation = oldest_of(queue)) {
      const DeviceState state = operation->state();  // without the lock: it may block
      std::lock_guard lock(mutex_);
      DeviceQueue& operations = devices_[queue];
      if (operations.empty() || operations.front() != operation) break;  // forgotten meanwhile
      if (state == DeviceState::Done) operations.pop_front();
      const bool starts = state == DeviceState::Started && !std::exchange(operation->started, true);
      if (state == DeviceState::Done || starts) last_change_ = std::chrono::steady_clock::now();
      if (state != DeviceState::Done) break;
    }
    poll_waits(queue);
  }
}

void Progress::forget_devices() {
  std::map<std::string, DeviceQueue> dropped;  // freed without the lock: the driver may block
  std::lock_guard lock(mutex_);
  dropped.swap(devices_);
}

// A rank waits in what its device has started if it has reached the wait for that or for a later operation of the
// queue. It has not arrived at what its device has not reached.
void Progress::add_devices(RankStatus& status) const {
  std::string waits_in, comes_to;
  for (const auto& [queue, operations] : devices_) {
    if (operations.empty()) continue;
    const DeviceOperation& oldest = *operations.front();
    const bool awaited = std::any_of(operations.begin(), operations.end(), [](const auto& o) { return o->awaited; });
    if (oldest.started && awaited) {
      status.waits.insert(status.waits.end(), oldest.waits.begin(), oldest.waits.end());
      if (waits_in.empty()) waits_in = oldest.name;
    } else if (!oldest.started && comes_to.empty()) {
      comes_to = oldest.name;
    }
    for (const auto& operation : operations)
      if (!operation->started)
        for (const Wait& wait : operation->waits) {
          std::int64_t& arrivals = status.arrivals[wait.meeting.name];
          arrivals = std::min(arrivals, wait.arrival - 1);
        }
  }
  const std::string device = !waits_in.empty()   ? "the GPU in " + waits_in
                             : !comes_to.empty() ? "the GPU before " + comes_to
                                                 : "";
  if (!device.empty()) status.op += (status.op.empty() ? "" : " > ") + device;
}

RankStatus Progress::snapshot(bool with_records) const {
  std::lock_guard lock(mutex_);
  RankStatus status = {.op = joined(ops_, " > "), .waits = status_.waits, .arrivals = status_.arrivals, .records = {}};
  if (with_records) status.records = status_.records;
  add_devices(status);
  status.idle_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - last_change_).count();
  return status;
}

TrafficTable Progress::traffic() const {
  std::lock_guard lock(mutex_);
  return traffic_;
}

void Progress::forgive(std::chrono::steady_clock::duration stopped) {
  std::lock_guard lock(mutex_);
  last_change_ = std::min(last_change_ + stopped, std::chrono::steady_clock::now());
}

std::string Progress::op_at_failure() const {
  std::lock_guard lock(mutex_);
  return failed_op_.empty() ? joined(ops_, " > ") : failed_op_;
}

// --- records

void MeetingRecord::add(const std::string& content) {
  const std::uint32_t mark = add_to_hash(marks[0].empty() ? kOffset : marks[0].back(), content);
  ++arrivals;
  for (std::size_t i = 0; i < kSteps.size(); ++i)
    if (arrivals % kSteps[i] == 0) keep_newest(marks[i], mark, kMarks[i]);
  keep_newest(contents, content, kMarks[0]);
}

bool MeetingRecord::agrees_with(const MeetingRecord& other) const {
  for (std::size_t i = 0; i < kSteps.size(); ++i) {
    const std::int64_t common = std::min(arrivals, other.arrivals) / kSteps[i];
    const std::int64_t age = arrivals / kSteps[i] - common, their_age = other.arrivals / kSteps[i] - common;
    if (age < std::ssize(marks[i]) && their_age < std::ssize(other.marks[i]))
      return marks[i].rbegin()[age] == other.marks[i].rbegin()[their_age];
  }
  return true;
}

std::map<std::int64_t, std::uint32_t> MeetingRecord::marks_by_arrival() const {
  std::map<std::int64_t, std::uint32_t> by_arrival;
  for (std::size_t i = 0; i < kSteps.size(); ++i) {
    std::int64_t arrival = arrivals / kSteps[i] * kSteps[i];
    for (auto mark = marks[i].rbegin(); mark != marks[i].rend(); ++mark, arrival -= kSteps[i])
      by_arrival[arrival] = *mark;
  }
  return by_arrival;
}

std::string MeetingRecord::content_of(std::int64_t arrival) const {
  const std::int64_t age = arrivals - arrival;
  return age < 0 || age >= std::ssize(contents) ? "" : contents.rbegin()[age];
}

MeetingKey meeting_key(const std::string& name, const std::vector<int>& members) {
  std::uint32_t hash = kOffset;
  for (const int member : members) hash = (hash ^ static_cast<std::uint32_t>(member)) * kPrime;
  return {name, hash};
}

}  // namespace braid
