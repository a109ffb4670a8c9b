#include "cluster/doctor/events/seen_line.h"

#include <algorithm>

#include "cluster/doctor/events/launcher_lines.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {

std::string_view kept_of(std::string_view text, std::size_t& focus) {
  constexpr std::size_t kMost = 4000, kBefore = 1000;
  std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  if (text.size() > kMost && focus > begin + kMost - kBefore) begin = focus - kBefore;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) ++begin;
  focus -= std::min(begin, focus);
  return trimmed(text.substr(begin, kMost));
}

Finding finding_in(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings) {
  if (sign == Sign::WeightsDiffer) findings.look_for_fp8(line.recent);
  Finding finding;
  finding.sign = sign;
  finding.place = line.place;
  finding.rank = marks.rank ? marks.rank : marks.local_rank;
  finding.host = host_in(marks.body);
  std::size_t focus = marks.body.size() < line.text.size() ? 0 : line.focus;
  finding.text = kept_of(marks.body, focus);
  finding.shown = line.shown;
  finding.focus = line.focus;
  finding.by_name = marks.by_name;
  finding.has_writer = marks.learned.has_value();
  finding.local = !marks.rank && marks.local_rank;
  finding.labelled = marks.labelled && finding.rank == marks.rank;
  if (finding.rank) findings.add_host(*finding.rank, finding.host);
  return finding;
}

}  // namespace braid
