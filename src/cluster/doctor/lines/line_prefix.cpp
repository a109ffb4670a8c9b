#include "cluster/doctor/lines/line_prefix.h"

#include <algorithm>

#include "cluster/doctor/lines/rank_names.h"
#include "cluster/doctor/lines/rank_prefix.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

// "E1115 09:40:29.123456 4242 file.py:12] text", "E321 02:07:08.4 File.cpp:607] text"
std::optional<LogTime> glog_time(std::string_view text) {
  if (text.size() < 13 || std::string_view("IWEF").find(text[0]) == std::string_view::npos) return std::nullopt;
  const std::size_t blank = text.find(' ');
  if (blank != 4 && blank != 5) return std::nullopt;
  return time_at(text.substr(1));
}

std::string_view without_indent(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text;
}

// torchrun tees its workers' lines behind their role and local rank: "[default3]:", "[trainer0]:".
bool take_role(std::string_view& rest, LineMarks& marks) {
  std::size_t end = 1;
  while (end < rest.size() && (is_letter(rest[end]) || rest[end] == '_')) ++end;
  if (end == 1) return false;
  std::string_view inner = rest.substr(end);
  const auto rank = take_rank(inner);
  if (!rank || !inner.starts_with("]:")) return false;
  marks.local_rank = rank;
  inner.remove_prefix(1);
  rest = inner;
  return true;
}

// "[1]  + 4242 killed     python train.py": what follows the number tells of a job of a shell.
bool is_job_of_shell(std::string_view rest) {
  if (!rest.starts_with("]  ")) return false;
  rest.remove_prefix(std::min(rest.find_first_not_of("] +-"), rest.size()));
  return take_number(rest) && rest.size() > 1 && rest[0] == ' ' && is_letter(rest[1]);
}

// One prefix in brackets off the front of `rest`; false when there is none.
bool take_bracket(std::string_view& rest, LineMarks& marks, bool first) {
  std::string_view inner = rest.substr(1);
  std::optional<int> rank;
  if (std::string_view usual = inner; take(usual, "rank") && (rank = take_rank(usual)) && take(usual, "]")) {
    marks.rank = rank;
    marks.labelled = false;
    inner = usual;
  } else if (const auto time = time_at(inner)) {
    const std::size_t end = inner.find(']');
    if (end == std::string_view::npos || end > 60) return false;
    marks.time = time;
    std::size_t name = end - 1;
    while (name > 0 && is_digit(inner[name])) --name;
    if (is_letter(inner[name]) || inner[name] == '=' || inner[name] == ' ')
      if (const auto named = rank_named_in(rest.substr(0, end + 2))) marks.rank = named;  // "[10:00:00 rank3]"
    inner.remove_prefix(end + 1);
  } else if (const auto glog = glog_time(inner)) {
    const std::size_t end = inner.find(']');
    marks.time = glog;
    marks.level = inner[0];
    inner.remove_prefix(end == std::string_view::npos ? std::min<std::size_t>(20, inner.size()) : end + 1);
  } else if (std::string_view label = inner;
             first && (rank = take_rank(label)) &&
             ((label.starts_with("] ") && !is_job_of_shell(label)) || label.starts_with("]: "))) {
    marks.rank = rank;
    marks.labelled = true;
    inner = label.substr(1);
  } else {
    inner = rest;
    if (!take_rank_in_brackets(inner, marks, first) && !take_role(inner, marks)) return false;
  }
  take(inner, ":");
  take(inner, " ");
  rest = inner;
  return true;
}

// Of the one that the text begins with: "(Worker(actor-1) pid=4242)".
std::size_t closing_parenthesis(std::string_view text) {
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    depth += (text[at] == '(') - (text[at] == ')');
    if (depth == 0) return at;
  }
  return std::string_view::npos;
}

// "(RayTrainWorker pid=4242, ip=10.0.0.2) ", "(VllmWorker rank=3 pid=4242)", "(raylet)"
bool take_parentheses(std::string_view& rest, LineMarks& marks) {
  if (!take_rank_in_parentheses(rest, marks)) {
    const std::size_t end = closing_parenthesis(rest.substr(0, 120));
    if (end == std::string_view::npos) return false;
    const std::string_view inside = rest.substr(1, end - 1);
    if (!has_word(inside, "pid=") && !has_word(inside, "rank=") && !inside.starts_with("raylet")) return false;
    if (const auto rank = rank_named_in(inside)) marks.rank = rank, marks.labelled = true;
    rest.remove_prefix(end + 1);
  }
  take(rest, ":");
  take(rest, " ");
  return true;
}

bool take_digits(std::string_view& rest, LineMarks& marks, bool first) {
  std::string_view label = rest;
  if (const auto time = take_time(rest)) {
    marks.time = time;
    rest.remove_prefix(std::min(rest.find_first_not_of(".,Z"), rest.size()));
    if (rest.starts_with(" std") && (rest.substr(7, 3) == " F " || rest.substr(7, 3) == " P "))
      rest.remove_prefix(10);  // as containerd keeps lines: "<time> stderr F text"
    if (rest.starts_with(": [") || rest.starts_with(": (")) rest.remove_prefix(2);  // other prefixes follow
    return true;
  }
  const auto rank = take_rank(label);
  if (!first || !rank || !take(label, ": ")) return false;
  marks.rank = rank;
  marks.labelled = true;
  rest = label;
  return true;
}

// "Nov 15 10:00:00 gpu-a17 train[4242]: " of journalctl. Its time has no year, and is not kept.
bool take_syslog(std::string_view& rest) {
  constexpr std::size_t kTime = 16, kLongest = 120;
  if (rest.size() <= kTime || rest[3] != ' ' || rest[6] != ' ' || rest[9] != ':' || rest[12] != ':' || rest[15] != ' ')
    return false;
  const std::size_t end = rest.substr(0, kLongest).find("]: ", kTime);
  if (end == std::string_view::npos || !is_digit(rest[end - 1])) return false;
  rest.remove_prefix(end + 3);
  return true;
}

bool take_word_prefix(std::string_view& rest, LineMarks& marks, bool first) {
  if (const auto time = glog_time(rest)) {
    const std::size_t end = rest.find("] ");
    marks.time = time;
    marks.level = rest[0];
    rest.remove_prefix(end == std::string_view::npos ? std::min<std::size_t>(20, rest.size()) : end + 2);
    return true;
  }
  if (std::string_view("rRgGmMwW").find(rest[0]) != std::string_view::npos && take_bare_rank(rest, marks)) {
    take(rest, " ");
    return true;
  }
  if (!first) return false;
  if (take_syslog(rest)) return true;
  constexpr std::size_t kCtime = 24;  // "Fri Sep 11 07:07:20 2026[3]<stderr>:" of `horovodrun --prefix-timestamp`
  if (rest.size() > kCtime && rest[kCtime] == '[' && rest[13] == ':' && rest[16] == ':') {
    std::string_view label = rest.substr(kCtime);
    if (take_rank_in_brackets(label, marks, first)) {
      take(label, ":");
      rest = label;
      return true;
    }
  }
  // A job's name and replica before torchrun's prefix: "train-x/0 [default1]:"
  const std::size_t blank = rest.substr(0, 80).find(' ');
  if (blank == std::string_view::npos || !rest.substr(blank + 1).starts_with("[default")) return false;
  rest.remove_prefix(blank + 1);
  return true;
}

bool take_prefix(std::string_view& line, LineMarks& marks, bool first) {
  std::string_view rest = without_indent(line);
  if (rest.empty()) return false;
  const char c = rest[0];
  const bool taken = c == '['      ? take_bracket(rest, marks, first)
                     : is_digit(c) ? take_digits(rest, marks, first)
                     : c == '('    ? take_parentheses(rest, marks)
                     : is_word(c)  ? take_word_prefix(rest, marks, first)
                                   : false;
  if (taken) line = rest;
  return taken;
}

}  // namespace

LineMarks marks_of(std::string_view line) {
  LineMarks marks;
  bool first = true;  // a time may stand before the labels of launchers
  for (int layer = 0; layer < 6 && take_prefix(line, marks, first); ++layer)
    first = first && layer == 0 && marks.time && !marks.rank && !marks.local_rank && marks.level == 0;
  marks.body = line;
  if (marks.time && line.size() > 4 && line.starts_with(": ") && line[3] == ' ') marks.level = line[2];  // TensorFlow
  if (marks.time && !marks.rank && !marks.local_rank) marks.rank = rank_named_in(line.substr(0, 80));
  return marks;
}

bool is_of_the_scheduler(std::string_view text) {
  for (const char* word : {"srun: ", "sbatch: ", "salloc: ", "slurmstepd", "Submitted batch job", "pyxis: ", "+ "})
    if (text.starts_with(word)) return true;
  return false;
}

}  // namespace braid
