// Shared by a test and the library that it preloads into programs: see file_operations.cpp.
#pragma once

#include <atomic>
#include <cstdint>

namespace braid::testing {

struct FileOperations {
  std::atomic<std::int64_t> count;    // operations on files below the folder so far, over all processes
  std::atomic<std::int64_t> kill_at;  // the process that reaches this one is killed by SIGKILL before it; 0: none
  std::atomic<bool> overlay;          // folders named iter_... cannot be renamed, as in a lower layer of an overlay
};

inline constexpr const char* kOperationsFile = "BRAID_TEST_OPERATIONS";  // a file with a FileOperations in it
inline constexpr const char* kOperationsFolder = "BRAID_TEST_OPERATIONS_FOLDER";

}  // namespace braid::testing
