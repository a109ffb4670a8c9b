#pragma once

#include <string>

namespace braid {

// The path of the program that is running.
std::string own_executable();

// "SIGSEGV (Segmentation fault)"
std::string describe_signal(int signal);

}  // namespace braid
