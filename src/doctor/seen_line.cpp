#include "doctor/seen_line.h"

#include "doctor/launcher_lines.h"
#include "doctor/text_parts.h"

namespace braid {

std::string_view kept_of(std::string_view text) { return trimmed(text).substr(0, 4000); }

Finding finding_in(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings) {
  if (sign == Sign::WeightsDiffer) findings.look_for_fp8(line.recent);
  Finding finding;
  finding.sign = sign;
  finding.place = line.place;
  finding.rank = marks.rank ? marks.rank : marks.local_rank;
  finding.host = host_in(marks.body);
  finding.text = kept_of(marks.body);
  finding.shown = line.shown;
  finding.local = !marks.rank && marks.local_rank;
  finding.labelled = marks.labelled && finding.rank == marks.rank;
  if (finding.rank) findings.add_host(*finding.rank, finding.host);
  return finding;
}

}  // namespace braid
