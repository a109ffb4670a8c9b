// The kinds of failure and how they read. Library code throws these; only main turns them into exit codes.
//
//   ConfigError   the user can fix it in a recipe, a flag or the environment; raised before any group exists
//   CommError     a peer or the network failed; names group, operation and peer
//   DataError     a file or a batch has invalid content; raised while a run reads it
//   BRAID_CHECK   our own invariants
#pragma once

#include <stdexcept>

namespace braid {

struct Problem {
  std::string what;   // a sentence with the offending value
  std::string where;  // file:line and key, or a variable's name; may be empty
  std::string fix;    // what to do about it; may be empty
};

class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(Problem problem);
  explicit ConfigError(std::vector<Problem> problems);
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

using Problems = std::vector<Problem>;
void append(Problems& all, Problems more);
void throw_if_any(Problems problems);

struct CommError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void throw_check_failed(const char* file, int line, const std::string& message);

// A system call failed: message, then errno in words.
[[noreturn]] void throw_errno(const std::string& message);

// Collects problems to report together. A file may have millions; the first ones are kept, the rest are counted.
class ProblemList {
 public:
  void add(std::string what, std::string where, std::string fix);
  bool empty() const { return count_ == 0; }
  std::vector<Problem> take();
  void throw_if_any();

 private:
  std::vector<Problem> problems_;
  std::int64_t count_ = 0;
};

}  // namespace braid

// The empty branch keeps a following `else` from attaching itself to the check.
#define BRAID_CHECK(condition, ...) \
  if (condition) {                  \
  } else                            \
    ::braid::throw_check_failed(__FILE__, __LINE__, "expected " #condition ": " + fmt::format(__VA_ARGS__))

#define BRAID_CHECK_EQ(a, b, ...) \
  if ((a) == (b)) {               \
  } else                          \
    ::braid::throw_check_failed(  \
        __FILE__, __LINE__,       \
        fmt::format("expected " #a " == " #b ", got {} and {}: ", (a), (b)) + fmt::format(__VA_ARGS__))
