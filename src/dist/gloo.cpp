#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/error.h"
#include "dist/backend_factory.h"
#include "dist/store.h"

namespace braid {
namespace {

class GlooFactory : public BackendFactory {
 public:
  GlooFactory(std::shared_ptr<Store> store, bool loopback, std::chrono::milliseconds timeout)
      : store_(std::move(store)), options_(c10d::ProcessGroupGloo::Options::create(timeout)) {
    options_->devices.push_back(loopback ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                         : c10d::ProcessGroupGloo::createDefaultDevice());
  }

  c10::intrusive_ptr<c10d::Backend> make(const std::string& name, const std::vector<int>& ranks,
                                         int group_rank) override {
    auto base = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&store_->c10d_store());
    auto store = c10::make_intrusive<c10d::PrefixStore>(group_key(name, ranks), base);
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, group_rank, static_cast<int>(ranks.size()), options_);
  }

 private:
  std::shared_ptr<Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> options_;
};

}  // namespace

std::unique_ptr<BackendFactory> make_gloo_factory(std::shared_ptr<Store> store, bool loopback,
                                                  std::chrono::milliseconds timeout) {
  return std::make_unique<GlooFactory>(std::move(store), loopback, timeout);
}

}  // namespace braid
