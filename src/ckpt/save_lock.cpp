#include "ckpt/save_lock.h"
#include <fcntl.h>
#include <fmt/chrono.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/files.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/strings.h"
#include "ckpt/checkpoint_files.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kLock = ".braid_lock";
constexpr std::int64_t kLongestLock = 64 << 10;

// Identifies where pids are comparable: this boot of this machine, and this pid namespace of it. Containers that share
// a host name may have their own. Empty if the system does not tell.
std::string own_pid_space() {
  std::error_code error;
  const fs::path space = fs::read_symlink("/proc/self/ns/pid", error);
  const std::string boot = first_line("/proc/sys/kernel/random/boot_id");
  return error || boot.empty() ? "" : boot + " " + space.string();
}

struct ProcessState {
  char state = '?';
  std::int64_t start_time = 0;  // in clock ticks since boot
};

// Reads /proc/PID/stat: "PID (NAME) S ...", where NAME may contain any character.
std::optional<ProcessState> state_of(std::int64_t pid) {
  const std::string line = first_line(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = line.rfind(") ");
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields = split(line.substr(name_end + 2), ' ');  // from the third one on
  const auto start_time = parse_int64(fields.size() > 19 ? fields[19] : "");
  return start_time ? std::optional(ProcessState{fields[0][0], *start_time}) : std::nullopt;
}

struct Holder {
  std::string host{};
  std::int64_t pid = 0, start_time = 0;
  std::string pid_space{}, since{}, slurm_job{};
  std::int64_t slurm_restarts = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Holder, host, pid, start_time, pid_space, since, slurm_job, slurm_restarts)

std::string text_of(const JobIdentity& job) {
  const auto state = state_of(::getpid());
  Json json = Holder{.host = host_name(),
                     .pid = ::getpid(),
                     .start_time = state ? state->start_time : 0,
                     .pid_space = own_pid_space(),
                     .since = fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr))),
                     .slurm_job = job.id,
                     .slurm_restarts = job.restarts};
  json["nonce"] = make_nonce();
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Nothing for a text that this version of Braid did not write.
std::optional<Holder> holder_in(const std::string& text) try {
  return Json::parse(text).get<Holder>();
} catch (const Json::exception&) {
  return std::nullopt;
}

bool process_is_gone(const Holder& holder) {
  if (::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH) return true;
  const auto state = state_of(holder.pid);  // nothing: another user's process, on a system that hides those
  return state && (state->start_time != holder.start_time || state->state == 'Z' || state->state == 'X');
}

// The lock's text and time stamp; nothing if there is no lock.
struct Look {
  std::string text;
  std::int64_t seconds = 0, nanoseconds = 0;
  bool operator==(const Look&) const = default;
};

// Opened anew each time, because network file systems then ask the server.
std::optional<Look> look_at(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 && errno == ENOENT) return std::nullopt;
  try {
    std::string text = read_whole(path, std::nullopt, kLongestLock);
    if (::stat(path.c_str(), &info) != 0) return std::nullopt;
    return Look{std::move(text), info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
  } catch (const DataError& e) {
    if (!fs::exists(fs::symlink_status(path))) return std::nullopt;
    throw ConfigError({fmt::format("'{}' is not a lock file: {}", path, e.what()), "checkpoint.save", "remove it"});
  }
}

}  // namespace

bool is_save_lock(std::string_view name) { return name == kLock; }

bool is_unfinished_save_lock(std::string_view name) {
  if (!name.starts_with('.') || !name.ends_with(".tmp")) return false;
  name.remove_prefix(std::min(name.find_first_not_of('.'), name.size()));
  return name.starts_with(fmt::format("{}.", kLock.substr(1)));
}

SaveLock::SaveLock(std::string root, Options options)
    : root_(std::move(root)), path_(fmt::format("{}/{}", root_, kLock)), options_(std::move(options)),
      own_(options_.held.empty() ? text_of(options_.job) : options_.held) {
  if (options_.held.empty()) acquire();
  const NoSignals in_thread;
  renewal_ = std::thread([this] { keep_renewing(); });
}

SaveLock::~SaveLock() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ended_.notify_all();
  renewal_.join();
  if (!options_.held.empty()) return;
  try {
    if (const auto look = look_at(path_); look && look->text == own_) ::unlink(path_.c_str());
  } catch (const std::exception&) {  // the next run breaks the lock, since its holder is gone
  }
}

void SaveLock::check() {
  auto look = look_at(path_);
  if (!look && create()) return;  // another process removed it
  if (!look) look = look_at(path_);
  if (look && look->text == own_) return;
  const auto holder = look ? holder_in(look->text) : std::nullopt;
  throw std::runtime_error(
      fmt::format("another run saves to '{}' now{}: {} of this run was removed, or was not renewed for {} s and this "
                  "run was considered dead",
                  root_, holder ? fmt::format(" (pid {} on {})", holder->pid, in_quotes(holder->host)) : "", path_,
                  options_.silent_beats * options_.beat.count() / 1000));
}

void SaveLock::acquire() {
  constexpr int kTries = 20;  // other runs may take and release it meanwhile
  constexpr std::chrono::milliseconds kPause(10);
  for (int i = 0; i < kTries; ++i) {
    if (create()) return;
    const auto look = look_at(path_);
    if (look && is_gone(look->text))
      take_away(look->text);
    else if (const auto now = look_at(path_); look && now && now->text == look->text)
      refuse(look->text);
    else
      std::this_thread::sleep_for(kPause);
  }
  throw ConfigError({fmt::format("the lock of '{}' could not be acquired in {} attempts: other runs acquire and "
                                 "release it, or another process removes the files written there",
                                 root_, kTries),
                     "checkpoint.save", "save to another folder, or try again"});
}

// Creates the lock by a hard link, so that it appears with its text or not at all.
bool SaveLock::create() {
  const std::string temporary = fmt::format("{}/{}.{:016x}.tmp", root_, kLock, std::hash<std::string>()(own_));
  try {
    fs::create_directories(root_);
    write_file(temporary, own_);
  } catch (const std::system_error& e) {
    // Another run has removed the file as a leftover of a killed run, or the folder because its own attempt failed.
    std::error_code ignored;
    const bool is_dangling_link = fs::is_symlink(fs::symlink_status(root_, ignored)) && !is_there(root_);
    if (e.code() == std::errc::no_such_file_or_directory && !is_dangling_link) return false;
    throw ConfigError({fmt::format("cannot save to '{}': {}", root_, e.what()), "checkpoint.save",
                       "give a folder that you can write to"});
  }
  const bool linked = ::link(temporary.c_str(), path_.c_str()) == 0;
  const int error = errno;
  ::unlink(temporary.c_str());
  if (linked || error == EEXIST || error == ENOENT) return linked;
  // The file system has no hard links.
  const Fd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd && errno == EEXIST) return false;
  if (fd && ::write(fd.get(), own_.data(), own_.size()) == std::ssize(own_)) return true;
  const int reason = errno;
  if (fd) ::unlink(path_.c_str());  // an incomplete lock would delay the next run by a minute
  errno = reason;
  throw_errno(fmt::format("cannot write '{}'", path_));
}

bool SaveLock::is_gone(const std::string& text) const {
  const auto holder = holder_in(text);
  if (holder && !holder->slurm_job.empty() && holder->slurm_job == options_.job.id &&
      holder->slurm_restarts < options_.job.restarts)
    return true;
  if (holder && !holder->pid_space.empty() && holder->pid_space == own_pid_space()) return process_is_gone(*holder);
  return is_silent(text);
}

// Counts polls, not seconds: while a file server does not answer, the holder cannot renew its lock either.
bool SaveLock::is_silent(const std::string& text) const {
  const auto first = look_at(path_);
  if (!first || first->text != text) return false;
  say(fmt::format("{} {}: checking for up to {} s whether it is renewed", path_,
                  holder_in(text) ? "belongs to a run on another host" : "does not name its run",
                  options_.silent_beats * options_.beat.count() / 1000));
  for (int i = 0; i < options_.silent_beats; ++i) {
    std::this_thread::sleep_for(options_.beat);
    if (look_at(path_) != first) return false;
  }
  return true;
}

// Another run may have been faster and already hold a new lock: that one is restored.
void SaveLock::take_away(const std::string& text) const {
  const std::string aside = fmt::format("{}/{}.{:016x}.gone.tmp", root_, kLock, std::hash<std::string>()(own_));
  if (::rename(path_.c_str(), aside.c_str()) != 0) return;
  const auto taken = look_at(aside);
  if (taken && taken->text != text)
    ::link(aside.c_str(), path_.c_str());
  else if (const auto holder = holder_in(text))
    say(fmt::format("the run that saved to {} before (pid {} on {}) is gone: its lock is removed", root_, holder->pid,
                    in_quotes(holder->host)));
  else
    say(fmt::format("no run renews {}: it is removed", path_));
  ::unlink(aside.c_str());
}

void SaveLock::refuse(const std::string& text) const {
  const auto holder = holder_in(text);
  const std::string job = holder && !holder->slurm_job.empty() ? ", Slurm job " + holder->slurm_job : "";
  const std::string who = holder ? fmt::format(": pid {} on {}{}, since {}", holder->pid, in_quotes(holder->host), job,
                                               in_quotes(holder->since))
                                 : ", and its lock does not name it";
  throw ConfigError(
      {fmt::format("another run saves to '{}'{}", root_, who), "checkpoint.save",
       fmt::format("wait for it or stop it, or save to another folder (if you know that it is dead: rm {})", path_)});
}

void SaveLock::keep_renewing() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, options_.beat, [this] { return ends_; })) {
    try {
      if (const auto look = look_at(path_); look && look->text == own_)
        ::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
    } catch (const std::exception&) {  // check() reports it
    }
  }
}

}  // namespace braid
