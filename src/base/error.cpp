#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

constexpr std::int64_t kKeptProblems = 50;

std::string describe(const Problem& problem, const std::string& indent) {
  std::string text = problem.what;
  if (!problem.where.empty()) text += "\n" + indent + "where: " + problem.where;
  if (!problem.fix.empty()) text += "\n" + indent + "fix:   " + problem.fix;
  return text;
}

std::string describe(const std::vector<Problem>& problems) {
  if (problems.size() == 1) return describe(problems[0], "  ");
  std::string text = fmt::format("{} problems", problems.size());
  for (std::size_t i = 0; i < problems.size(); ++i)
    text += fmt::format("\n {:2}. {}", i + 1, describe(problems[i], "     "));
  return text;
}

}  // namespace

ConfigError::ConfigError(Problem problem) : ConfigError(std::vector<Problem>{std::move(problem)}) {}
ConfigError::ConfigError(std::vector<Problem> problems)
    : std::runtime_error(describe(problems)), problems_(std::move(problems)) {}

void append(Problems& all, Problems more) { std::ranges::move(more, std::back_inserter(all)); }

void throw_if_any(Problems problems) {
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

void throw_check_failed(const char* file, int line, const std::string& message) {
  throw std::logic_error(fmt::format("internal error at {}:{}: {}", file, line, message));
}

void throw_errno(const std::string& message) {
  throw std::system_error(errno, std::generic_category(), message + (errno == EMFILE ? " (raise `ulimit -n`)" : ""));
}

void ProblemList::add(std::string what, std::string where, std::string fix) {
  if (++count_ <= kKeptProblems) problems_.push_back({std::move(what), std::move(where), std::move(fix)});
}

std::vector<Problem> ProblemList::take() {
  if (count_ > kKeptProblems) problems_.push_back({"and " + counted(count_ - kKeptProblems, "more problem"), "", ""});
  count_ = 0;
  return std::exchange(problems_, {});
}

void ProblemList::throw_if_any() {
  if (!empty()) throw ConfigError(take());
}

}  // namespace braid
