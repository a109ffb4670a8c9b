#include "comm/store.h"
#include <future>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include "comm/world_spec.h"

namespace braid {

std::string words_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

namespace {

using StorePtr = c10::intrusive_ptr<c10d::TCPStore>;

// The same object in a pointer that needs no complete type.
template <class T>
std::shared_ptr<T> shared(c10::intrusive_ptr<T> object) {
  T* const raw = object.get();
  return {raw, [kept = std::move(object)](T*) {}};
}

}  // namespace

// TCPStore by itself would listen on every interface.
StoreServer::StoreServer(Fd listener) : port_(local_port(listener)) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port_);
  options.isServer = true;
  options.waitWorkers = false;
  const std::string address = local_address(listener);
  options.masterListenFd = listener.release();
  server_ = shared(c10::make_intrusive<c10d::TCPStore>(address, options));
}

namespace {

// A TCPStore client waits indefinitely for a server that accepts and sends nothing, so it is created on a thread that
// can be abandoned.
StorePtr connect_client(const Endpoint& endpoint, std::chrono::milliseconds timeout) {
  std::packaged_task<StorePtr()> connect([endpoint, timeout] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(endpoint.port);
    options.waitWorkers = false;
    options.timeout = timeout;
    return c10::make_intrusive<c10d::TCPStore>(endpoint.host, options);
  });
  std::future<StorePtr> client = connect.get_future();
  std::thread(std::move(connect)).detach();
  if (client.wait_for(timeout) != std::future_status::ready)
    throw CommError("something accepts connections there, but it is not a store");
  return client.get();
}

}  // namespace

Store::Store(const Endpoint& endpoint, std::chrono::milliseconds timeout, const std::string& prefix,
             std::optional<std::chrono::milliseconds> to_connect)
    : endpoint_(endpoint), timeout_(timeout) {
  try {
    // First, because libtorch's own retries end in a message without host and port.
    const Fd connection = connect_tcp(endpoint, to_connect.value_or(timeout));
    route_ = {local_address(connection), peer_address(connection)};
    store_ = shared(c10::make_intrusive<c10d::PrefixStore>(prefix, connect_client(endpoint, timeout)));
  } catch (const UnknownHost& e) {
    refuse_store_host(e.what());
  } catch (const std::exception& e) {
    throw CommError(fmt::format("the store at {} does not answer within {:.1f} s: {}", to_string(endpoint),
                                to_connect.value_or(timeout).count() / 1e3, words_of(e)));
  }
}

void Store::set(const std::string& key, const std::string& value) {
  store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

std::string Store::get(const std::string& key) {
  try {
    const std::vector<std::uint8_t> value = store_->get(key);
    return {value.begin(), value.end()};
  } catch (const std::exception& e) {
    throw CommError(fmt::format("key '{}' did not appear in the store at {} within {:.1f} s", key, to_string(endpoint_),
                                timeout_.count() / 1e3));
  }
}

}  // namespace braid
