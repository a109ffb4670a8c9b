// The key-value store of the rendezvous (c10d's TCPStore).
#pragma once

#include "base/socket.h"

namespace c10d {
class Store;
}

namespace braid {

std::string words_of(const std::exception& error);  // without the stack that libtorch's errors carry

// Serves a store on a listening socket until destroyed.
class StoreServer {
 public:
  explicit StoreServer(Fd listener);
  int port() const { return port_; }

 private:
  int port_ = 0;
  std::shared_ptr<void> server_;
};

// A client of a store. Keys under different prefixes are separate.
class Store {
 public:
  // CommError naming host and port when nothing answers in time; ConfigError, at once, when the host does not exist.
  // `to_connect`: the time-out for connecting, where it is shorter than the one for waiting for keys.
  Store(const Endpoint& endpoint, std::chrono::milliseconds timeout, const std::string& prefix = "",
        std::optional<std::chrono::milliseconds> to_connect = {});

  void set(const std::string& key, const std::string& value);
  // Waits until the key exists; CommError naming key, host and port when the time runs out.
  std::string get(const std::string& key);

  // The addresses of this host and of the store's host on the connection between them.
  struct Route {
    std::string local, peer;
  };
  const Route& route() const { return route_; }

  c10d::Store& c10d_store() const { return *store_; }  // for process groups

 private:
  Endpoint endpoint_;
  Route route_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<c10d::Store> store_;
};

}  // namespace braid
