// What kind of line it is that names an error or a format: not all that do mean it.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/doctor/events/signs.h"

namespace braid {

std::optional<Sign> sign_of_end_by_shell(std::string_view text);
std::optional<int> rank_before_list(std::string_view text);  // 5 of "5: [allreduce.x, ...]" and "5!: [..."
bool is_list_of_absent(std::string_view text);               // only names a rank that others waited for: JAX, Horovod
bool is_of_a_shell(std::string_view text);  // says what is wrong with its script, not how a process ended
std::optional<Sign> sign_of_refusal(std::string_view text);  // of a job, in words of a site's own
bool mentions_fp8(std::string_view text);                    // of many lines, too
bool is_warning(std::string_view text);
bool reports_dead_loader(std::string_view text);   // a worker of a rank's data loader, without which it stops
bool says_not_finite(std::string_view exception);  // of a loss or of gradients

bool is_named_error(std::string_view type);  // of an exception; "Error" alone is a word

// The text from its exception on ("worker-3 | RuntimeError: x" -> "RuntimeError: x"), where what stands before is a
// prefix; else the whole text.
std::string_view from_exception(std::string_view text);

// Whether what stands before an error's message in its line is prose, or an open quotation: then the line speaks of the
// error, and is none.
bool is_prose(std::string_view before);

}  // namespace braid
