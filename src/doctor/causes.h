// The causes a diagnosis can name, with what they mean and what to do.
#pragma once

#include <string>

#include "doctor/signs.h"

namespace braid {

enum class Cause {
  GpuOom,
  HostOom,
  MoeOom,
  TimeLimit,
  Preempted,
  NodeFailure,
  Cancelled,
  PortInUse,
  ImportError,
  PythonError,
  Rank0BarrierTimeout,
  ArtifactSaveHang,
  DataRankCascade,
  NcclTimeout,
  Network,
  ContainerCacheNotShared,
  DiskFull,
  ShmBusError,
  Fp8RoundtripMismatch,
  NotLaunched,
  GpuSpecMissing,
  BadPartition,
  BadAccount,
  StepConfig,
  UvMissing,
  MegatronShadowed,
  WeightLoadMismatch,
  BraidFailure,
  Unknown,
};

struct CauseText {
  Cause cause;
  const char* slug;
  const char* meaning;  // a sentence
  const char* fix;
};

const CauseText& text_of(Cause cause);

Cause cause_of(Sign sign);  // Unknown where a line alone does not tell

}  // namespace braid
