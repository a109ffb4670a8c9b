#include "comm/backend_factory.h"
#include <sched.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include "base/error.h"
#include "base/socket.h"
#include "base/strings.h"
#include "comm/store.h"

namespace braid {

void share_gpu_over_nccl(int rank, bool one_host) {
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), /*overwrite=*/0); };
  set("NCCL_HOSTID", fmt::format("{}-rank-{}", host_name(), rank));
  set("NCCL_MAX_NCHANNELS", "1");  // each channel holds a multiprocessor and buffers, and there are many communicators
  set("NCCL_IB_DISABLE", "1");
  if (one_host) set("NCCL_SOCKET_IFNAME", "lo");
}

std::vector<std::string> fitting_backends(const std::vector<std::string>& devices) {
  const std::set<std::string> different(devices.begin(), devices.end());
  if (different.count("")) return {"gloo"};
  if (different.size() < devices.size()) return {"gloo", "nccl-shared"};
  return {"nccl", "gloo", "nccl-shared"};
}

std::string group_key(const std::string& name, const std::vector<int>& ranks) {
  return fmt::format("{}/{}", name, joined(ranks, ","));
}

c10::intrusive_ptr<c10d::Store> store_of_group(const Store& store, const std::string& name,
                                               const std::vector<int>& ranks) {
  auto base = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&store.c10d_store());
  return c10::make_intrusive<c10d::PrefixStore>(group_key(name, ranks), base);
}

namespace {

using c10d::ProcessGroupGloo;
using Device = std::shared_ptr<gloo::transport::Device>;

// A thread that is started while it lives waits until a core is free when it wakes up. The thread of a Gloo device that
// reads from its connections would otherwise interrupt the one that holds the lock of a connection and spin on it: with
// as many ranks as cores, that took most of the time of collectives.
class PatientThreads {
 public:
  PatientThreads() : changed_(sched_getscheduler(0) == SCHED_OTHER && set(SCHED_BATCH)) {}
  ~PatientThreads() {
    if (changed_) set(SCHED_OTHER);
  }
  PatientThreads(const PatientThreads&) = delete;

 private:
  static bool set(int policy) {
    const sched_param no_priority{};
    return sched_setscheduler(0, policy, &no_priority) == 0;
  }
  const bool changed_;
};

Device device_of_address(const std::string& address) {
  const PatientThreads patient;
  try {
    return ProcessGroupGloo::createDeviceForHostname(address);
  } catch (const std::exception& e) {
    throw ConfigError({fmt::format("Gloo cannot listen on {} of host {}: {}", address, host_name(), words_of(e)), "",
                       "set GLOO_SOCKET_IFNAME to the network interface that connects the ranks"});
  }
}

}  // namespace

MakeBackend gloo_backends(std::shared_ptr<Store> store, const GlooSettings& settings) {
  return [store = std::move(store), settings, devices = vector_of<Device>(settings.addresses, device_of_address)](
             const std::string& name, const std::vector<int>& ranks, int group_rank) {
    auto options = ProcessGroupGloo::Options::create(settings.connect_timeout);
    options->devices = devices;
    try {
      auto backend = c10::make_intrusive<ProcessGroupGloo>(store_of_group(*store, name, ranks), group_rank,
                                                           static_cast<int>(ranks.size()), std::move(options));
      backend->setTimeout(settings.timeout);
      return backend;
    } catch (const std::exception& e) {
      throw CommError(
          fmt::format("{}; this rank listens on {}: if the others cannot reach it, set GLOO_SOCKET_IFNAME to "
                      "the network interface that connects the ranks",
                      words_of(e), joined(settings.addresses, " and ")));
    }
  };
}

bool tell_completion(c10d::Work& work, std::function<void()> done) {
  if (dynamic_cast<ProcessGroupGloo::AsyncWork*>(&work) == nullptr) return false;
  work.getFuture()->addCallback([done = std::move(done)](c10::ivalue::Future&) { done(); }, /*uses_future=*/false);
  return true;
}

}  // namespace braid
