// Writes the "tag<tab>value<tab>step" lines of stdin as an event file in the folder argv[1], and prints the file's
// path.
#include <iostream>
#include "base/strings.h"
#include "log/log_files.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: event_probe FOLDER < LINES\n");
    return 2;
  }
  braid::EventFile events(argv[1]);
  for (std::string line; std::getline(std::cin, line);) {
    const std::vector<std::string> parts = braid::split(line, '\t');
    events.add_scalar(parts.at(0), std::strtod(parts.at(1).c_str(), nullptr), braid::parse_int64(parts.at(2)).value());
  }
  events.flush();
  fmt::print("{}\n", events.path());
}
