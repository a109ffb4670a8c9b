// The writing thread against the threads that write: for the thread sanitizer, too.
#include <gmock/gmock.h>
#include <unistd.h>
#include "cluster/local/rank_process.h"
#include "support/pseudo_terminal.h"

namespace braid {
namespace {

constexpr int kWriters = 4, kLines = 500;

std::string read_to_end(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t size; (size = ::read(fd, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(size));
  return text;
}

TEST(OutputWriter, LinesOfSeveralThreadsStayWholeAndInOrder) {
  std::array<int, 2> ends;
  ASSERT_EQ(::pipe(ends.data()), 0);
  const testing::PseudoTerminal terminal;
  std::string text;
  std::thread reader([&] { text = read_to_end(ends[0]); });
  {
    OutputWriter output(terminal.fd(), std::chrono::minutes(1));
    std::vector<std::thread> writers;
    for (int writer = 0; writer < kWriters; ++writer)
      writers.emplace_back([&, writer] {
        for (int line = 0; line < kLines; ++line) {
          output.write(ends[1], fmt::format("{} {}\n", writer, line));
          output.show({.iteration = line, .iterations = kLines});
          EXPECT_TRUE(output.last_shown());
          EXPECT_FALSE(output.full());
        }
      });
    for (std::thread& writer : writers) writer.join();
    EXPECT_TRUE(output.finish());
  }
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  std::map<int, std::string> of_writer;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    of_writer[text[at] - '0'] += text.substr(at, text.find('\n', at) + 1 - at);
  std::map<int, std::string> expected;
  for (int writer = 0; writer < kWriters; ++writer)
    for (int line = 0; line < kLines; ++line) expected[writer] += fmt::format("{} {}\n", writer, line);
  EXPECT_EQ(of_writer, expected);
}

}  // namespace
}  // namespace braid
