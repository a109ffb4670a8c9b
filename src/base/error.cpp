#include "base/error.h"

#include <cerrno>
#include <system_error>

namespace braid {
namespace {

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

ConfigError::ConfigError(std::vector<Problem> problems)
    : std::runtime_error(describe(problems)), problems_(std::move(problems)) {}

void throw_check_failed(const char* file, int line, const std::string& message) {
  throw std::logic_error(fmt::format("internal error at {}:{}: {}", file, line, message));
}

void throw_errno(const std::string& message) { throw std::system_error(errno, std::generic_category(), message); }

}  // namespace braid
