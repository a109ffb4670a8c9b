#include "cluster/lines/log_source.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include "base/utf8.h"
#include "cluster/lines/prefixes.h"

namespace braid {

std::optional<Utf16Decoder> Utf16Decoder::for_text(std::string_view beginning) {
  const std::string_view head = beginning.substr(0, 64);
  std::size_t zeros[2] = {0, 0};
  for (std::size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == '\0';
  const auto only = [&](int at) {
    return head.size() >= 8 && zeros[at] * 2 * 10 >= head.size() * 9 && zeros[1 - at] == 0;
  };
  if (head.starts_with("\xff\xfe") || (only(1) && !head.starts_with("\xfe\xff"))) return Utf16Decoder{false};
  if (head.starts_with("\xfe\xff") || only(0)) return Utf16Decoder{true};
  return std::nullopt;
}

std::string Utf16Decoder::decode(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    const auto before = std::exchange(half_unit, half_unit ? std::nullopt : std::optional(byte));
    if (!before) continue;
    const std::uint32_t unit = big_endian ? *before << 8 | byte : byte << 8 | *before;
    const std::uint32_t first = std::exchange(high, 0);
    const bool is_low = unit >> 10 == 0x37;
    if (first != 0) append_utf8(text, is_low ? 0x10000 + ((first - 0xd800) << 10) + (unit - 0xdc00) : 0xfffd);
    if (unit >> 10 == 0x36)
      high = unit;
    else if (unit != 0xfeff && !(first != 0 && is_low))
      append_utf8(text, is_low ? 0xfffd : unit);
  }
  return text;
}

namespace {

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

std::size_t columns(std::string_view line) {
  return static_cast<std::size_t>(std::ranges::count_if(line, begins_character));
}

// Whether a line of a wrapped text is not the continuation of the line before.
bool begins_afresh(std::string_view line) {
  if (begins(trimmed(line), "Traceback (most|File \"|srun: |slurmstepd|=====|-----|raise |return ")) return true;
  if (begins(line, "\xe2\x94|\xe2\x95")) return true;  // boxes, as Rich draws them around tracebacks
  const LineMarks marks = marks_of(line.substr(0, 120));
  return line.empty() || marks.rank || marks.local_rank || marks.time || line.find("%|") != npos;
}

}  // namespace

std::string common_prefix(std::string_view text) {
  constexpr std::size_t kLongest = 80, kFewestLines = 8, kLinesPerException = 20;
  const std::string_view first = text.substr(0, std::min(text.find('\n'), kLongest));
  const std::size_t end = std::min({first.find("] "), first.find("| "), first.find(": ")});
  if (end == npos) return "";
  const std::string_view prefix = first.substr(0, end + 2);
  const LineMarks marks = marks_of(prefix);
  const bool is_name = prefix.find_first_of("0123456789") != npos && is_letter(prefix[prefix[0] == '[']);
  if (!is_name || marks.rank || marks.local_rank || marks.time || is_of_the_scheduler(prefix)) return "";
  std::size_t lines = 0, others = 0;
  for (; text.find('\n') != npos; ++lines) others += !take_until(text, "\n").starts_with(trimmed(prefix));
  return lines >= kFewestLines && others * kLinesPerException <= lines ? std::string(prefix) : "";
}

// In a wrapped text no line is wider than the width, several have the width, and more than three quarters of those
// continue in the next line. Lines that begin alike are a list. If only two lines have the width, at least one must be
// cut inside a word.
std::size_t width_of_wrapped(std::string_view text) {
  constexpr std::size_t kFewest = 3, kAlike = 5, kWidths[] = {78, 79, 80, 100, 120, 132};  // of terminals
  std::size_t widest = 0, full = 0, afresh = 0, inside_words = 0;
  std::string_view before;  // a line as wide as the widest
  while (!text.empty()) {
    const std::string_view line = take_until(text, "\n");
    const std::size_t width = columns(line);
    if (width > widest) widest = width, full = afresh = inside_words = 0, before = {};
    afresh += !before.empty() && (begins_afresh(line) || line.substr(0, kAlike) == before.substr(0, kAlike));
    inside_words += !before.empty() && !line.empty() && is_letter(before.back()) && is_letter(line[0]);
    before = width == widest && line.find("%|") == npos ? line : std::string_view();
    full += !before.empty();
  }
  const bool is_usual = std::ranges::find(kWidths, widest) != std::end(kWidths);
  const bool are_enough = full >= kFewest || (full == 2 && inside_words > 0);
  return is_usual && are_enough && afresh * 4 < full ? widest : 0;
}

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = 1 << 20;  // bytes read at once
constexpr std::size_t kSniffed = 1 << 16;

// Settings, metrics, traces and checkpoints, which programs write beside their logs; but torchrun's error.json has the
// exception of a rank.
bool is_no_log(const fs::path& path) {
  const std::string name = path.filename().string(), extension = path.extension().string() + ".";
  return name != "error.json" &&
         (begins(extension, ".yaml.|.yml.|.json.|.jsonl.|.html.|.pt.|.distcp.|.safetensors.") || has(name, "tfevents"));
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

// Text has hardly any control characters or broken ones; NULs come from file systems that lost a write, and are passed
// over.
bool is_binary(std::string_view text) {
  if (begins(text,
             "\x7f"
             "ELF|\x1f\x8b|PK\x03\x04|\x28\xb5\x2f\xfd|BZh9|\xfd"
             "7zXZ"))
    return true;
  std::size_t odd = 0, nuls = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_length(text.substr(i));
    nuls += byte == 0;
    odd += length == 0 || (byte < 0x20 && byte != 0 && !is_one_of("\n\r\t\x1b\b\f", text[i]));
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

// A log that was cut at its front (copytruncate) begins with NULs, and is judged by what follows them.
std::string_view from_first_text(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\0'), text.size()));
}

[[noreturn]] void refuse(const std::string& what, const char* fix) { throw ConfigError({what, "LOG", fix}); }

[[noreturn]] void refuse_unreadable(const std::string& name, const char* fix) {
  refuse(fmt::format("cannot read '{}': {}", name, std::strerror(errno)), fix);
}

}  // namespace

std::vector<LogFile> find_logs(const std::vector<std::string>& arguments) {
  std::vector<LogFile> logs;
  for (const std::string& argument : arguments) {
    std::error_code unknown;  // LineReader reports what keeps it from being read
    const bool is_folder = argument != "-" && fs::is_directory(argument, unknown);
    std::vector<std::string> files;
    if (is_folder) list_files(argument, files);
    if (is_folder && files.empty())
      refuse(fmt::format("there are no logs in '{}'", argument), "give a log, or a folder of logs");
    std::ranges::sort(files);
    if (!is_folder) files = {argument};
    for (const std::string& path : files)
      logs.push_back({path, path == "-" ? "stdin" : path, rank_of_path(path), is_folder});
  }
  // Names of files show ranks only if there are several: a single "rank3.log" may be about anything.
  if (logs.size() == 1) logs[0].rank.reset();
  return logs;
}

LineReader::LineReader(const LogFile& file) : name_(file.name) {
  fd_ = Fd(file.path == "-" ? dup(STDIN_FILENO) : open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd_) refuse_unreadable(file.path, "give the log of a job, a folder of logs, or - for standard input");
  if (is_endless(fd_.get()))
    refuse(fmt::format("'{}' is a device, not a log", file.path),
           "give the log of a job, a folder of logs, a pipe, or - for standard input");
  while (fill() && from_first_text(buffer_).empty()) buffer_.clear();
  const std::string_view text = from_first_text(buffer_).substr(0, kSniffed);
  binary_ = bytes_ > 0 && (text.empty() || is_binary(text));
  if (binary_) return;
  wrapped_at_ = width_of_wrapped(text);
  prefix_ = common_prefix(text);
}

bool LineReader::fill() {
  if (ended_) return false;
  if (begin_ > kHistory) buffer_.erase(0, std::exchange(begin_, kHistory) - kHistory);
  const std::size_t before = buffer_.size();
  buffer_.resize(before + kBlock);
  ssize_t size;
  do size = read(fd_.get(), buffer_.data() + before, kBlock);
  while (size < 0 && errno == EINTR);
  if (size < 0) refuse_unreadable(name_, "give a text file");
  buffer_.resize(before + static_cast<std::size_t>(size));
  if (bytes_ == 0) utf16_ = Utf16Decoder::for_text(buffer_);
  bytes_ += static_cast<std::uint64_t>(size);
  if (utf16_) buffer_.replace(before, npos, utf16_->decode(std::string_view(buffer_).substr(before)));
  ended_ = size == 0;
  return !ended_;
}

bool LineReader::next(Line& line) {
  if (!(wrapped_at_ == 0 ? next_piece(line) : next_joined(line))) return false;
  if (!prefix_.empty() && line.begins_line && !take(line.text, prefix_)) take(line.text, trimmed(prefix_));
  return true;
}

bool LineReader::next_joined(Line& line) {
  if (!next_piece(line)) return false;
  joined_ = line.text;
  std::size_t width = columns(joined_);
  for (Line piece; width == wrapped_at_ && joined_.size() < kLongestLine && next_piece(piece);) {
    if (begins_afresh(piece.text)) {  // to be read again
      begin_ -= piece_bytes_;
      number_ = piece.number;
      continues_ = !piece.begins_line;
      break;
    }
    joined_ += piece.text;
    width = columns(piece.text);
  }
  line.text = joined_;
  return true;
}

bool LineReader::next_piece(Line& line) {
  std::string_view rest;
  std::size_t length = npos;
  for (;; fill()) {  // which may move the text
    rest = std::string_view(buffer_).substr(begin_, kLongestLine);
    length = rest.find('\n');
    if (length != npos || rest.size() == kLongestLine || ended_) break;
  }
  if (rest.empty()) return false;
  const bool is_end = length != npos;
  line = {rest.substr(0, length), number_, !continues_};
  if (line.text.ends_with('\r')) line.text.remove_suffix(1);
  continues_ = !is_end;
  number_ += is_end;
  piece_bytes_ = is_end ? length + 1 : rest.size();
  begin_ += piece_bytes_;
  return true;
}

}  // namespace braid
