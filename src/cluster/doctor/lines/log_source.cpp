#include "cluster/doctor/lines/log_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "cluster/doctor/lines/line_marks.h"
#include "cluster/doctor/lines/rank_names.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = 1 << 20;
constexpr std::size_t kSniffed = 1 << 16;

LogFile log_file(const std::string& path, bool in_folder) {
  return {path, path == "-" ? "stdin" : path, rank_of_path(path), in_folder};
}

// Settings, metrics, traces and checkpoints, which programs write beside their logs.
bool is_no_log(const fs::path& path) {
  if (path.filename() == "error.json") return false;  // torchrun's: the exception of a rank
  constexpr std::array kOthers = {".yaml", ".yml", ".json", ".jsonl", ".html", ".pt", ".distcp", ".safetensors"};
  return std::find(kOthers.begin(), kOthers.end(), path.extension()) != kOthers.end() ||
         has_word(path.filename().string(), "tfevents");
}

// A folder that cannot be listed stays in the list, for its reader to fail at.
void list_files(const fs::path& folder, std::vector<std::string>& files) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_directory(unknown) && !entry->is_symlink(unknown))
      list_files(entry->path(), files);
    else if (entry->is_regular_file(unknown) && !is_no_log(entry->path()))
      files.push_back(entry->path().string());
  }
  if (error) files.push_back(folder.string());
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  list_files(folder, files);
  std::sort(files.begin(), files.end());
  return files;
}

bool begins_like_a_binary(std::string_view text) {
  for (const std::string_view magic : {"\x7f"
                                       "ELF",
                                       "\x1f\x8b", "PK\x03\x04", "\x28\xb5\x2f\xfd", "BZh9",
                                       "\xfd"
                                       "7zXZ"})
    if (text.starts_with(magic)) return true;
  return false;
}

// Text has hardly any control characters or broken ones; NULs come from file systems that lost a write, and are passed
// over.
bool is_binary(std::string_view text) {
  if (begins_like_a_binary(text)) return true;
  std::size_t odd = 0, nuls = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_length(text.substr(i));
    nuls += byte == 0;
    odd += length == 0 ||
           (byte < 0x20 && byte != 0 && std::string_view("\n\r\t\x1b\b\f").find(text[i]) == std::string_view::npos);
    i += std::max<std::size_t>(length, 1);
  }
  return !text.empty() && odd * 10 >= text.size() - nuls;
}

// Of devices only a terminal and /dev/null come to an end.
bool is_endless(int fd) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return false;
  const bool is_null = S_ISCHR(about.st_mode) && major(about.st_rdev) == 1 && minor(about.st_rdev) == 3;
  return (S_ISCHR(about.st_mode) || S_ISBLK(about.st_mode)) && !is_null && !isatty(fd);
}

bool is_all_nuls(std::string_view text) { return text.find_first_not_of('\0') == std::string_view::npos; }

// A log that was cut at its front (copytruncate) begins with NULs, and is judged by what follows them.
std::string_view from_first_text(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\0'), text.size()));
}

}  // namespace

std::vector<LogFile> find_logs(const std::vector<std::string>& arguments) {
  std::vector<LogFile> logs;
  for (const std::string& argument : arguments) {
    if (argument != "-" && fs::is_directory(argument)) {
      const std::vector<std::string> files = files_below(argument);
      if (files.empty())
        throw ConfigError(
            {fmt::format("there are no logs in '{}'", argument), "LOG", "give a log, or a folder of logs"});
      for (const std::string& file : files) logs.push_back(log_file(file, true));
    } else {
      logs.push_back(log_file(argument, false));
    }
  }
  // Names tell ranks only where they tell them apart: a single "rank3.log" may be about anything.
  if (logs.size() == 1) logs[0].rank.reset();
  return logs;
}

LineReader::LineReader(const LogFile& file) : name_(file.name), buffer_(kHistory + kBlock + kLongestLine) {
  fd_ = Fd(file.path == "-" ? dup(STDIN_FILENO) : open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd_)
    throw ConfigError({fmt::format("cannot read '{}': {}", file.path, std::strerror(errno)), "LOG",
                       "give the log of a job, a folder of logs, or - for standard input"});
  if (is_endless(fd_.get()))
    throw ConfigError({fmt::format("'{}' is a device, not a log", file.path), "LOG",
                       "give the log of a job, a folder of logs, a pipe, or - for standard input"});
  while (fill() && is_all_nuls({buffer_.data(), end_})) end_ = 0;
  const std::string_view text = from_first_text({buffer_.data(), end_});
  binary_ = bytes_ > 0 && (text.empty() || is_binary(text.substr(0, kSniffed)));
  if (binary_) return;
  wrapped_at_ = width_of_wrapped(text.substr(0, kSniffed));
  prefix_ = common_prefix(text.substr(0, kSniffed));
}

std::size_t LineReader::read_some(char* into, std::size_t most) {
  for (;;) {
    const ssize_t size = read(fd_.get(), into, most);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0)
      throw ConfigError({fmt::format("cannot read '{}': {}", name_, std::strerror(errno)), "LOG", "give a text file"});
    ended_ = size == 0;
    bytes_ += static_cast<std::uint64_t>(size);
    return static_cast<std::size_t>(size);
  }
}

bool LineReader::fill() {
  if (ended_) return false;
  if (begin_ > kHistory) {
    const std::size_t gone = begin_ - kHistory;
    std::memmove(buffer_.data(), buffer_.data() + gone, end_ - gone);
    begin_ -= gone;
    end_ -= gone;
  }
  const std::size_t room = buffer_.size() - end_;
  if (utf16_) {
    std::vector<char> raw(room / 2);  // two bytes become three at most
    decode({raw.data(), read_some(raw.data(), raw.size())});
    return !ended_;
  }
  const bool is_first = bytes_ == 0;
  const std::size_t size = read_some(buffer_.data() + end_, is_first ? room / 2 : room);
  if (is_first && (utf16_ = Utf16Decoder::for_text({buffer_.data(), size}))) {
    const std::string raw(buffer_.data(), size);
    decode(raw);
  } else {
    end_ += size;
  }
  return !ended_;
}

void LineReader::decode(std::string_view raw) {
  const std::string text = utf16_->decode(raw);
  std::memcpy(buffer_.data() + end_, text.data(), text.size());
  end_ += text.size();
}

std::string_view LineReader::recent() const { return {buffer_.data(), begin_}; }

bool LineReader::next(Line& line) {
  if (!(wrapped_at_ == 0 ? next_piece(line) : next_joined(line))) return false;
  if (!prefix_.empty() && line.whole && !take(line.text, prefix_)) take(line.text, trimmed(prefix_));
  return true;
}

bool LineReader::next_joined(Line& line) {
  Line piece;
  if (held_number_ == 0) {
    if (!next_piece(piece)) return false;
    held_ = piece.text;
    held_number_ = piece.number;
  }
  joined_ = std::exchange(held_, {});
  const std::uint64_t number = std::exchange(held_number_, 0);
  for (std::size_t width = columns(joined_); width == wrapped_at_ && joined_.size() < kLongestLine && next_piece(piece);
       width = columns(piece.text)) {
    if (begins_afresh(piece.text)) {
      held_ = piece.text;
      held_number_ = piece.number;
      break;
    }
    joined_ += piece.text;
  }
  line = {joined_, number, true};
  return true;
}

bool LineReader::next_piece(Line& line) {
  std::size_t searched = 0;
  for (;;) {
    const char* const begin = buffer_.data() + begin_;
    const std::size_t size = std::min(end_ - begin_, kLongestLine);
    const void* newline = size > searched ? std::memchr(begin + searched, '\n', size - searched) : nullptr;
    if (!newline && size < kLongestLine && fill()) {
      searched = size;
      continue;
    }
    if (!newline && end_ == begin_) return false;
    const char* const data = buffer_.data() + begin_;
    const std::size_t length = newline ? static_cast<std::size_t>(static_cast<const char*>(newline) - data)
                                       : std::min(end_ - begin_, kLongestLine);
    line = {{data, length}, number_, !continues_};
    if (line.text.ends_with('\r')) line.text.remove_suffix(1);
    continues_ = !newline;
    number_ += newline != nullptr;
    begin_ += length + (newline != nullptr);
    return true;
  }
}

}  // namespace braid
