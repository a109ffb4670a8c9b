// What a test and the library that it preloads into programs share: see file_operations.cpp.
#pragma once

#include <atomic>
#include <cstdint>

namespace braid::testing {

struct FileOperations {
  std::atomic<std::int64_t> count;    // operations on files below the folder so far, of all processes
  std::atomic<std::int64_t> kill_at;  // the process that comes to this one dies of SIGKILL before it; 0: nobody
  std::atomic<bool> overlay;          // folders named iter_... cannot be renamed, as if of a lower layer of an overlay
};

inline constexpr const char* kOperationsFile = "BRAID_TEST_OPERATIONS";  // a file with a FileOperations in it
inline constexpr const char* kOperationsFolder = "BRAID_TEST_OPERATIONS_FOLDER";

}  // namespace braid::testing
