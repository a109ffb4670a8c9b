// The causes a diagnosis can name, with what they mean and what to do.
#pragma once

#include <string>

#include "cluster/doctor/events/launchers.h"
#include "cluster/doctor/events/signs.h"

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
  CudaError,
  HubUnreachable,
  NanLoss,
  Segfault,
  TooManyFiles,
  Hangup,
  UnusedParameters,
  DuplicateGpu,
  CollectiveMismatch,
  Rendezvous,
  Killed,
  BraidFailure,
  Success,
  Unknown,
};

struct CauseText {
  Cause cause;
  const char* slug;
  const char* meaning;  // a sentence
  const char* fix;
  const char* under_slurm = "";  // what to do besides, where the log is of a job of Slurm's
  const char* under_kubernetes = "";
};

const CauseText& text_of(Cause cause);

// What to do, for whoever used these launchers.
std::string fix_for(Cause cause, const Launchers& launchers);

// What a signal says about a process that nobody asked to end; Unknown for SIGTERM and the like.
Cause cause_of_signal(int signal);

Cause cause_of(Sign sign);  // Unknown where a line alone does not tell

}  // namespace braid
