#include "cluster/doctor/log_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "cluster/doctor/line_marks.h"
#include "cluster/doctor/text.h"

namespace braid {

namespace {

// Widths of terminals.
constexpr std::array<std::size_t, 6> kWidths = {78, 79, 80, 100, 120, 132};

}  // namespace

std::optional<Utf16Decoder> Utf16Decoder::for_text(std::string_view beginning) {
  if (beginning.starts_with("\xff\xfe")) return Utf16Decoder(false);
  if (beginning.starts_with("\xfe\xff")) return Utf16Decoder(true);
  const std::string_view head = beginning.substr(0, 64);
  if (head.size() < 8) return std::nullopt;
  std::size_t zeros[2] = {0, 0};
  for (std::size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == '\0';
  const auto only = [&](std::size_t at) { return zeros[at] * 2 * 10 >= head.size() * 9 && zeros[1 - at] == 0; };
  if (only(1)) return Utf16Decoder(false);
  if (only(0)) return Utf16Decoder(true);
  return std::nullopt;
}

std::string Utf16Decoder::decode(std::string_view bytes) {
  rest_ += bytes;
  std::string text;
  std::size_t at = 0;
  const auto unit = [&](std::size_t i) {
    const auto a = static_cast<unsigned char>(rest_[i]), b = static_cast<unsigned char>(rest_[i + 1]);
    return static_cast<std::uint32_t>(big_endian_ ? a << 8 | b : b << 8 | a);
  };
  const auto is_high = [](std::uint32_t u) { return u >= 0xd800 && u < 0xdc00; };
  const auto is_low = [](std::uint32_t u) { return u >= 0xdc00 && u < 0xe000; };
  while (at + 2 <= rest_.size()) {
    std::uint32_t c = unit(at);
    if (is_high(c) && at + 4 > rest_.size()) break;
    at += 2;
    if (is_high(c) && is_low(unit(at))) {
      c = 0x10000 + ((c - 0xd800) << 10) + (unit(at) - 0xdc00);
      at += 2;
    } else if (is_high(c) || is_low(c)) {
      c = 0xfffd;
    }
    if (c != 0xfeff) append_utf8(text, c);
  }
  rest_.erase(0, at);
  return text;
}

std::size_t columns(std::string_view line) {
  return static_cast<std::size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

bool begins_afresh(std::string_view line) {
  const std::string_view text = trimmed(line);
  if (starts_with_one_of(text, "Traceback (most|File \"|srun: |slurmstepd|=====|-----|raise |return ")) return true;
  if (starts_with_one_of(line, "\xe2\x94|\xe2\x95")) return true;  // boxes, as Rich draws them around tracebacks
  const LineMarks marks = marks_of(line.substr(0, 120));
  return line.empty() || marks.rank || marks.local_rank || marks.time || has_word(line, "%|");
}

std::string common_prefix(std::string_view text) {
  constexpr std::size_t kLongest = 80, kFewestLines = 8, kLeast = 20;  // all but one in so many lines
  const std::string_view first = text.substr(0, std::min(text.find('\n'), kLongest));
  std::size_t end = first.size();
  for (const char* divider : {"] ", "| ", ": "}) end = std::min(end, first.find(divider));
  if (end + 2 > first.size()) return "";
  const std::string_view prefix = first.substr(0, end + 2);
  const LineMarks marks = marks_of(prefix);
  const bool is_name = prefix.find_first_of("0123456789") != npos && is_letter(prefix[prefix[0] == '[']);
  if (!is_name || marks.rank || marks.local_rank || marks.time || is_of_the_scheduler(prefix)) return "";
  std::size_t lines = 0, others = 0;
  for (std::string_view rest = text; rest.find('\n') != npos; ++lines) {
    others += !rest.starts_with(trimmed(prefix));
    rest.remove_prefix(rest.find('\n') + 1);
  }
  return lines >= kFewestLines && others * kLeast <= lines ? std::string(prefix) : "";
}

// In a wrapped text no line is wider than the width, several have the width, and nearly all of those continue in the
// next line. Lines that begin alike are a list. If only two lines have the width, they must be cut inside a word.
std::size_t width_of_wrapped(std::string_view text) {
  constexpr std::size_t kFewest = 3, kAlike = 5;
  std::size_t widest = 0, full = 0, afresh = 0, inside_words = 0;
  std::string_view before;  // a line as wide as the widest
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t width = columns(line);
    if (width > kWidths.back()) return 0;
    if (width > widest) widest = width, full = afresh = inside_words = 0, before = {};
    afresh += !before.empty() && (begins_afresh(line) || line.substr(0, kAlike) == before.substr(0, kAlike));
    inside_words += !before.empty() && !line.empty() && is_letter(before.back()) && is_letter(line[0]);
    before = width == widest && !has_word(line, "%|") ? line : std::string_view();
    full += !before.empty();
  }
  const bool is_usual = std::find(kWidths.begin(), kWidths.end(), widest) != kWidths.end();
  const bool are_enough = full >= kFewest || (full == 2 && inside_words > 0);
  return is_usual && are_enough && afresh * 4 < full ? widest : 0;
}

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

// A folder that cannot be listed is kept, so that reading it reports the error.
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
  return starts_with_one_of(text,
                            "\x7f"
                            "ELF|\x1f\x8b|PK\x03\x04|\x28\xb5\x2f\xfd|BZh9|\xfd"
                            "7zXZ");
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
    odd += length == 0 || (byte < 0x20 && byte != 0 && std::string_view("\n\r\t\x1b\b\f").find(text[i]) == npos);
    i += std::max<std::size_t>(length, 1);
  }
  return !text.empty() && odd * 10 >= text.size() - nuls;
}

// Terminals and /dev/null are the only devices that end.
bool is_endless(int fd) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return false;
  const bool is_null = S_ISCHR(about.st_mode) && major(about.st_rdev) == 1 && minor(about.st_rdev) == 3;
  return (S_ISCHR(about.st_mode) || S_ISBLK(about.st_mode)) && !is_null && !isatty(fd);
}

bool is_all_nuls(std::string_view text) { return text.find_first_not_of('\0') == npos; }

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
  // Names of files show ranks only if there are several: a single "rank3.log" may be about anything.
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
