#include "comm/control_line.h"
#include "base/strings.h"

namespace braid {
namespace {

// ASCII's record separator: it does not occur in text and starts no terminal escape sequence.
constexpr std::string_view kProgressMark = "\036braid progress ", kTextMark = "\036braid text ",
                           kLostMark = "\036braid lost output", kSignalMark = "\036braid ended by signal ";
constexpr std::string_view kNoLoss = "-", kEvaluates = "evaluates";

std::optional<RunProgress> parse_progress(std::string_view text) {
  const std::vector<std::string> words = split(text, ' ');
  const bool evaluates = words.size() == 6 && words[5] == kEvaluates;
  if (words.size() != 5 && !evaluates) return std::nullopt;
  const auto iteration = parse_int64(words[0]), iterations = parse_int64(words[1]);
  const auto lm_loss = parse_double(words[2]), tokens_per_s = parse_double(words[3]), left = parse_double(words[4]);
  if (!iteration || !iterations || (!lm_loss && words[2] != kNoLoss) || !tokens_per_s || !left) return std::nullopt;
  return RunProgress{*iteration, *iterations, lm_loss, *tokens_per_s, *left, evaluates};
}

}  // namespace

std::string to_control_line(const RunProgress& progress) {
  return fmt::format("{}{} {} {} {} {}{}{}\n", kProgressMark, progress.iteration, progress.iterations,
                     progress.lm_loss ? fmt::format("{}", *progress.lm_loss) : kNoLoss, progress.tokens_per_s,
                     progress.seconds_left, progress.evaluates ? " " : "", progress.evaluates ? kEvaluates : "");
}

std::string to_control_line(LostOutput) { return fmt::format("{}\n", kLostMark); }

std::string to_control_line(EndedBySignal ended) { return fmt::format("{}{}\n", kSignalMark, ended.signal); }

std::string to_control_lines(const PlainText& text) {
  std::vector<std::string> lines = split(text.text, '\n');
  if (lines.size() > 1 && lines.back().empty()) lines.pop_back();
  std::string marked;
  for (const std::string& line : lines) marked.append(kTextMark).append(line).append("\n");
  return marked;
}

std::optional<ControlLine> parse_control_line(std::string_view line) {
  if (line.starts_with(kTextMark)) return PlainText{std::string(line.substr(kTextMark.size()))};
  if (line == kLostMark) return LostOutput{};
  if (line.starts_with(kSignalMark)) {
    const auto signal = parse_int(line.substr(kSignalMark.size()));
    return signal && *signal > 0 && *signal < 128 ? std::optional<ControlLine>(EndedBySignal{*signal}) : std::nullopt;
  }
  if (!line.starts_with(kProgressMark)) return std::nullopt;
  const auto progress = parse_progress(line.substr(kProgressMark.size()));
  return progress ? std::optional<ControlLine>(*progress) : std::nullopt;
}

}  // namespace braid
