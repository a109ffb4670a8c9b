// What a single line or message means.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/doctor/line_marks.h"
#include "cluster/doctor/rules.h"

namespace braid {

std::optional<Sign> sign_of_end_by_shell(std::string_view text);
std::optional<int> rank_before_list(std::string_view text);  // 5 of "5: [allreduce.x, ...]" and "5!: [..."
bool is_list_of_absent(std::string_view text);  // the line only names ranks that others waited for (JAX, Horovod)
bool is_of_a_shell(std::string_view text);  // a shell reports what is wrong with its script, not how a process ended
std::optional<Sign> sign_of_refusal(std::string_view text);  // Slurm refuses a job in words of the site
bool mentions_fp8(std::string_view text);                    // of many lines, too
bool is_warning(std::string_view text);
bool reports_dead_loader(std::string_view text);   // a worker of a rank's data loader, without which it stops
bool says_not_finite(std::string_view exception);  // of a loss or of gradients

// "torch.OutOfMemoryError: CUDA out of memory": the type before the colon; empty for other lines.
std::string_view exception_type(std::string_view text);
bool is_named_error(std::string_view type);  // of an exception; "Error" alone is a word

// The text from its exception on ("worker-3 | RuntimeError: x" -> "RuntimeError: x"), where what stands before is a
// prefix; else the whole text.
std::string_view from_exception(std::string_view text);

// Whether what stands before an error's message in its line is prose, or an open quotation: then the line speaks of the
// error, and is none.
bool is_prose(std::string_view before);

// Whether a logger marks it as information or, by a letter, as a warning.
bool is_information(const LineMarks& marks);

// A warning, a frame, something that is tried again, prose about the error.
bool is_noise(Sign sign, const LineMarks& marks);

Sign sign_of_exception(std::string_view exception);  // PythonError where nothing tells more

// The same for an exception that no format fits.
Sign sign_of_unusual(std::string_view exception);

// By the words of a message alone.
std::optional<Sign> sign_of_words(std::string_view message);

// The exception of another process or thread, which follows: "Caught ValueError in DataLoader worker process 0."
bool is_quoted_from_elsewhere(std::string_view exception);

// The reason of a line about a whole host.
inline constexpr std::string_view kHostCannotBeReached = "its host cannot be reached";

// It only says that another rank is gone.
bool is_loss_of_peer(std::string_view reason);

Cause cause_in_reason(std::string_view reason);

// As `braid run` and `braid train` end: "killed by SIGKILL (Killed)", "SIGSEGV (Segmentation fault)", "exited with code
// 3".
std::optional<int> exit_code_in(std::string_view reason);

}  // namespace braid
