// The test's side of the preloaded library that counts file operations: see file_operations.cpp.
#pragma once

#include <fcntl.h>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>
#include "support/file_operations.h"
#include "support/programs.h"

namespace braid::testing {

// Maps the counter at `path`, which is created if missing.
class OperationCounter {
 public:
  explicit OperationCounter(std::string path) : path_(std::move(path)) {
    const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(FileOperations)) != 0) throw std::runtime_error("cannot make " + path_);
    memory_ = ::mmap(nullptr, sizeof(FileOperations), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (memory_ == MAP_FAILED) throw std::runtime_error("cannot map " + path_);
  }
  ~OperationCounter() { ::munmap(memory_, sizeof(FileOperations)); }
  OperationCounter(const OperationCounter&) = delete;
  OperationCounter& operator=(const OperationCounter&) = delete;

  FileOperations& operator*() { return *static_cast<FileOperations*>(memory_); }
  FileOperations* operator->() { return static_cast<FileOperations*>(memory_); }

  // Counted from the next operation on.
  void kill_at(std::int64_t operation) {
    (*this)->count = 0;
    (*this)->kill_at = operation;
  }

  // The environment of a program whose operations below `folder` are counted.
  std::map<std::string, std::string> environment(const std::string& folder) const {
    return {
        {"LD_PRELOAD", built_program("libfile_operations.so")}, {kOperationsFile, path_}, {kOperationsFolder, folder}};
  }

 private:
  std::string path_;
  void* memory_ = nullptr;
};

}  // namespace braid::testing
