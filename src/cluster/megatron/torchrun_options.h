// torchrun's command line, as torch 2.11 parses it: enough to find where its options end and its program begins.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct TorchrunOption {
  enum Kind {
    World,    // number of ranks and rendezvous: the launcher sets these
    Program,  // how the program is run: -m, --no-python
    Own,      // torchrun's other features: restarts, log files
  };
  const char* name;  // with dashes; underscores are the same
  bool takes_value;
  Kind kind;
  char letter = '\0';  // -m
};

const std::vector<TorchrunOption>& torchrun_options();

// The option for `name` (without leading dashes): the full name, with - or _, or a unique prefix. Null if there is none
// or several.
const TorchrunOption* find_torchrun_option(std::string_view name);
const TorchrunOption* find_torchrun_option(char letter);
const TorchrunOption* exact_torchrun_option(std::string_view name);  // full name only, no prefix

}  // namespace braid
