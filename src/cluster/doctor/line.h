// What a single line means: the host that it names, and what kind of message or exception it is.
#pragma once

#include "cluster/doctor/rules.h"
#include "cluster/lines/prefixes.h"

namespace braid {

// "host a12" out of "*** JOB 7 ON a12 CANCELLED AT", "Node failure on a12", "a12:4242:4300 [3] NCCL WARN"; else empty.
std::string host_in(std::string_view body);

bool has_whole(std::string_view text, std::string_view words);  // not within longer words
bool mentions_fp8(std::string_view text);                       // whether any of its lines enables fp8
inline bool is_warning(std::string_view text) { return has(text, "Warning: |WARNING|[W|warnings.warn"); }

// A worker of a data loader died, which stops its rank.
inline bool reports_dead_loader(std::string_view text) { return has(text, "DataLoader worker (pid"); }

// "torch.OutOfMemoryError: CUDA out of memory": the type before the colon; empty for other lines.
std::string_view exception_type(std::string_view text);
bool is_named_error(std::string_view type);  // of an exception; "Error" alone is a word

// The text from its exception on ("worker-3 | RuntimeError: x" -> "RuntimeError: x"), where what stands before is a
// prefix; else the whole text.
std::string_view from_exception(std::string_view text);

// Whether a logger marks it as information or, by a letter, as a warning.
bool is_information(const LineMarks& marks);

// Whether the line is a warning, a stack frame, a retry or prose about an error.
bool is_noise(Sign sign, const LineMarks& marks);

// The kind of an exception; PythonError if nothing is known about it.
Sign sign_of_exception(std::string_view exception);
Sign sign_of_unusual(std::string_view exception);             // the same, without the rows of [lines]
std::optional<Sign> sign_of_words(std::string_view message);  // by the words of the message alone

}  // namespace braid
