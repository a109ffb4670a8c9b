// torchrun's command line, as torch 2.11 parses it: enough to tell where its options end and its program begins.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct TorchrunOption {
  enum Kind {
    World,    // how many ranks there are and where they meet: whoever starts the ranks decides
    Program,  // how the program is run: -m, --no-python
    Own,      // what torchrun does beside starting ranks: restarts, log files
  };
  const char* name;  // with dashes; underscores are the same
  bool takes_value;
  Kind kind;
  char letter = '\0';  // -m
};

const std::vector<TorchrunOption>& torchrun_options();

// The option that `name` (without dashes in front) means: its name, with - or _, or the beginning of one option only.
// Null when there is none, or several.
const TorchrunOption* find_torchrun_option(std::string_view name);
const TorchrunOption* find_torchrun_option(char letter);
const TorchrunOption* exact_torchrun_option(std::string_view name);  // not by the beginning of its name

}  // namespace braid
