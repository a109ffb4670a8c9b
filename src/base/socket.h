// TCP sockets as values: descriptors that close themselves, host:port pairs, listen and connect with clear errors.
#pragma once

#include "base/error.h"

namespace braid {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Both ends close when another program replaces this one.
struct Pipe {
  Fd read, write;
  Pipe();
};

struct Endpoint {
  std::string host;
  int port = 0;
};

// "127.0.0.1:29500"; an IPv6 host in brackets. Throws ConfigError when it is not host:port.
Endpoint parse_endpoint(std::string_view text);
std::string to_string(const Endpoint& endpoint);

std::string host_name();

// Listens on `host` ("" = every interface); port 0 lets the system choose. Throws std::system_error, EADDRINUSE when
// the port is taken.
Fd listen_tcp(const std::string& host, int port);
int local_port(const Fd& socket);

// The two ends of a connection as numeric addresses: "10.0.0.7", "fe80::1".
std::string local_address(const Fd& socket);
std::string peer_address(const Fd& socket);
bool is_loopback(const std::string& address);

// Throws UnknownHost when the name does not resolve now.
void check_resolves(const std::string& host);

struct UnknownHost : CommError {
  using CommError::CommError;
};

// Retries until the deadline, since the other side may still be starting. Throws CommError naming host and port. Throws
// UnknownHost immediately; call wait_for_name() (comm/) first where the name may not exist yet.
Fd connect_tcp(const Endpoint& endpoint, std::chrono::milliseconds timeout);

// Sends as much as the peer accepts within the timeout and returns the number of bytes; a closed peer counts as
// accepting all.
std::size_t send_some(const Fd& socket, std::string_view text, std::chrono::milliseconds timeout);

}  // namespace braid
