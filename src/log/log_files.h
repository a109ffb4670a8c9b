// The settings of a run's log, and two kinds of files that it writes: append-only text and TensorBoard events.
#pragma once

#include "base/config.h"
#include "base/socket.h"

namespace braid {

// Which iterations libtorch's profiler records. As in Megatron, these are `step_start` + 1 to `step_end`.
struct ProfileConfig {
  bool enabled = false;
  std::int64_t step_start = 10, step_end = 12;
  std::string ranks = "0";  // global, with commas between them
  std::string dir = "profiles";

  std::vector<int> rank_list() const;
  bool profiles(int global_rank) const;
};

struct LogConfig {
  int log_interval = 10;          // iterations between lines
  std::string tensorboard_dir{};  // these five: empty means not written
  std::string metrics_file{};
  std::string trace_dir{};
  std::string sample_trace_dir{};
  std::string activation_dir{};
  int activation_steps = 1;
  bool log_num_zeros = false;
  bool progress = true;
  ProfileConfig profile{};
};

void describe(Fields& fields, ProfileConfig& config);
void describe(Fields& fields, LogConfig& config);
// Keys as in a recipe's section "log".
std::vector<Problem> validate(const LogConfig& config);
// Checks that the run has the profiled iterations and ranks. The config must be valid.
std::vector<Problem> profile_problems(const ProfileConfig& config, std::int64_t iterations, std::int64_t ranks);

// --- An append-only file, for logs that must survive a crash of their process: when append() returns, the operating
// system has the text.

class AppendOnlyFile {
 public:
  enum class Start { Empty, AtEnd, New };  // truncate, append, or fail if the file exists

  AppendOnlyFile(std::string path, Start start);

  // `ending` stays at the end of the file until the next append, which overwrites it and must not be shorter. If the
  // disk is full, the file stays unchanged.
  void append(std::string_view text, std::string_view ending = {});

  std::int64_t size() const { return size_; }  // without the ending
  char last_char() const;                      // of a file that is not empty
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void take_back(std::string_view ending);

  std::string path_;
  Fd fd_;
  std::int64_t size_ = 0;
};

// --- Scalars for TensorBoard, in the event file format it reads: TFRecords (length and data, each with a masked
// CRC-32C) that hold tensorflow.Event messages. Only the few protobuf fields that scalars need are written; those of
// other trainers are read too.

class EventFile {
 public:
  // Starts a new events.out.tfevents.<seconds>.<host>.<pid>.<n> in a folder, created if missing. TensorBoard
  // reads all such files of a folder as one run, so a resumed run simply starts another.
  explicit EventFile(const std::string& folder);
  ~EventFile();  // flushes

  // The tag is UTF-8; values are kept as float32, NaN and infinities included.
  void add_scalar(std::string_view tag, double value, std::int64_t step);

  // Writes only whole records, so a reader sees every flushed record complete, also after a crash.
  void flush();

  const std::string& path() const { return file_.path(); }

 private:
  void add_event(std::string_view fields);

  AppendOnlyFile file_;
  std::string pending_;
};

struct ScalarEvent {
  std::string tag;
  std::int64_t step = 0;
  double wall_time = 0;  // seconds since 1970
  double value = 0;
};

struct EventFileContents {
  std::vector<ScalarEvent> scalars{};
  bool cut = false;  // the rest is missing or damaged, as after a kill
};

EventFileContents parse_events(std::string_view bytes);
EventFileContents read_events(const std::string& path);  // DataError when it cannot be read

}  // namespace braid
