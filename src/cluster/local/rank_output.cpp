#include "cluster/local/rank_output.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <ostream>

#include "base/error.h"
#include "base/terminal.h"

namespace braid {
namespace {

constexpr std::size_t kLongestLine = 1 << 16;
constexpr int kColours[] = {36, 33, 35, 32, 34, 96, 93, 95, 92, 94};

// Megatron's line and the phase tables are wider than most terminals: they are wrapped between their fields.
std::string fitting_terminal(const std::string& line) {
  constexpr std::string_view kIndent = "    ";
  const auto columns = static_cast<std::size_t>(columns_of(STDOUT_FILENO));
  return folded(line, std::max(columns, 2 * kIndent.size()) - kIndent.size(), kIndent, " | ");
}

bool is_rank_log(const std::filesystem::directory_entry& entry) {
  constexpr std::string_view kBegin = "rank_", kEnd = ".log";
  const std::string name = entry.path().filename().string();
  std::error_code ignored;
  return name.size() > kBegin.size() + kEnd.size() && name.starts_with(kBegin) && name.ends_with(kEnd) &&
         name.find_first_not_of("0123456789", kBegin.size()) == name.size() - kEnd.size() &&
         entry.is_regular_file(ignored) && entry.file_size(ignored) > 0;
}

}  // namespace

void mark_start_in_logs(const std::string& log_dir, int ranks) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(log_dir, ignored))
    if (is_rank_log(entry))
      std::ofstream(entry.path(), std::ios::app)  // begins with a newline: a kill may have cut the last line
          << fmt::format("\nbraid: restart, ranks: {} [{:%Y-%m-%d %H:%M:%S}]\n", ranks, local);
}

RankOutput::RankOutput(int rank, int ranks, const std::string& log_dir, OutputWriter& writer) : writer_(writer) {
  const auto width = std::to_string(ranks - 1).size();
  prefix_ = fmt::format("[{:>{}}] ", rank, width);
  coloured_prefix_ =
      fmt::format("\033[{}m{}\033[0m", kColours[static_cast<std::size_t>(rank) % std::size(kColours)], prefix_);
  if (log_dir.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(log_dir, ignored);
  log_path_ = fmt::format("{}/rank_{:0{}}.log", log_dir, rank, width);
  log_.open(log_path_, std::ios::app);
  if (!log_)
    throw ConfigError({fmt::format("cannot write '{}': {}", log_path_, std::strerror(errno)), "--log-dir",
                       "give a folder that you can write to"});
}

bool RankOutput::pump(const Fd& pipe, int stream) {
  std::string& pending = stream == STDOUT_FILENO ? pending_out_ : pending_err_;
  char buffer[65536];
  const ssize_t size = read(pipe.get(), buffer, sizeof buffer);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (size > 0) {
    pending.append(buffer, static_cast<std::size_t>(size));
    std::size_t start = 0;
    for (std::size_t end; (end = pending.find('\n', start)) != std::string::npos; start = end + 1)
      take_line(pending.substr(start, end - start), stream);
    pending.erase(0, start);
    if (pending.size() > kLongestLine) take_line(std::exchange(pending, {}), stream);
    return true;
  }
  if (!pending.empty()) take_line(std::exchange(pending, {}), stream);
  return false;
}

void RankOutput::take_line(const std::string& line, int stream) {
  if (stream == STDOUT_FILENO)
    if (const auto control = parse_control_line(line)) return obey(*control);
  writer_.write(stream, (shows_colour(stream) ? coloured_prefix_ : prefix_) + line + "\n");
  append_to_log(line);
}

void RankOutput::obey(const ControlLine& control) {
  if (const auto* progress = std::get_if<RunProgress>(&control)) return writer_.show(*progress);
  if (std::holds_alternative<LostOutput>(control)) {
    lost_output_ = true;
    return;
  }
  if (const auto* ended = std::get_if<EndedBySignal>(&control)) {
    ended_by_signal_ = ended->signal;
    return;
  }
  const std::string& text = std::get<PlainText>(control).text;
  writer_.write(STDOUT_FILENO, (isatty(STDOUT_FILENO) ? fitting_terminal(text) : text) + "\n");
  append_to_log(text);
}

void RankOutput::append_to_log(const std::string& line) {
  if (!log_.is_open()) return;
  log_ << line << std::endl;
  if (log_) return;
  writer_.write(STDERR_FILENO, fmt::format("braid: cannot write '{}' any more: {}\n", log_path_, std::strerror(errno)));
  log_.close();
  lost_output_ = true;
}

}  // namespace braid
