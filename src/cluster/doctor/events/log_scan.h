// Reads logs once and keeps what matters. Ordinary lines cost one pass of AnchorScan and a look at their prefix.
#pragma once

#include <memory>

#include "cluster/doctor/events/findings.h"
#include "cluster/doctor/lines/log_source.h"

namespace braid {

class LogScan {
 public:
  LogScan();
  ~LogScan();

  // False when the file is not text.
  bool read(const LogFile& file);
  Findings findings() &&;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
