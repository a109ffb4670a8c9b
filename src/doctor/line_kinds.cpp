#include "doctor/line_kinds.h"

#include <algorithm>

namespace braid {

bool has_word(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(begin);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// As shells tell of a process that was killed: "Killed", "run.sh: line 3:  4242 Killed   python train.py".
bool is_kill_by_shell(std::string_view text) {
  if (text == "Killed") return true;
  const std::size_t at = text.find(" Killed"), line = text.find(": line ");
  return at != std::string_view::npos && line < at && text[at - 1] >= '0' && text[at - 1] <= '9';
}

// Lines of Slurm's own tools and of `bash -x`: they say nothing about whether the program ever spoke.
bool is_of_the_scheduler(std::string_view text) {
  for (const char* word : {"srun: ", "sbatch: ", "salloc: ", "slurmstepd", "Submitted batch job", "pyxis: ", "+ "})
    if (text.starts_with(word)) return true;
  return false;
}

// As a format that is in use: arguments that are off say None or False.
bool mentions_fp8(std::string_view text) {
  for (const char* word : {"fp8", "FP8", "float8"})
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
      const std::size_t begin = text.rfind('\n', at) + 1, end = text.find('\n', at);
      const std::string_view line = text.substr(begin, end == std::string_view::npos ? end : end - begin);
      if (!has_word(line, "None") && !has_word(line, "False")) return true;
    }
  return false;
}

// A warning names a kind of error, and goes on.
bool is_warning(std::string_view text) {
  return has_word(text, "Warning: ") || has_word(text, "WARNING") || has_word(text, "[W") ||
         has_word(text, "warnings.warn");
}

}  // namespace braid
