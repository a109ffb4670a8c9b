// Logs written down in a test, and what is found in them.
#pragma once

#include "cluster/doctor/report.h"
#include "support/programs.h"

namespace braid::testing {

constexpr int kNone = -1;

inline Diagnosis diagnosis_of_text(const std::string& text) {
  const TemporaryFolder folder;
  std::vector<std::string> skipped;
  return examine_logs(find_logs({folder.write("job.log", text)}), {}, skipped);
}

inline std::string slug_of(const Diagnosis& diagnosis) { return text_of(diagnosis.cause).slug; }

inline std::string with_prefix(const std::string& prefix, const std::string& text) {
  std::string all;
  for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    all += prefix + text.substr(at, end - at) + "\n";
  }
  return all;
}

inline const std::string kTraceback =
    "Traceback (most recent call last):\n  File \"/w/train.py\", line 10, in <module>\n    main()\n"
    "  File \"/w/train.py\", line 7, in main\n    raise ValueError(\"bad\")\nValueError: bad\n";

}  // namespace braid::testing
