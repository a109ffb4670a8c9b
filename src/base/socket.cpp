#include "base/socket.h"
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/strings.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kOneAddress{3};  // a filtered address must not use up the next one's time
// A busy name service may fail for a moment. Where none answers, getaddrinfo() itself is slow.
constexpr std::chrono::seconds kNameService{2};

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  const auto deadline = Clock::now() + kNameService;
  while (true) {
    addrinfo* list = nullptr;
    const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (error == 0) return AddressList(list, freeaddrinfo);
    if (error != EAI_AGAIN || Clock::now() >= deadline)
      throw UnknownHost(
          fmt::format("cannot resolve host '{}' from host {}: {}", host, host_name(), gai_strerror(error)));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

int remaining_ms(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
}

bool wait_until(int fd, short events, Clock::time_point deadline) {
  pollfd entry{fd, events, 0};
  while (true) {
    const int ready = poll(&entry, 1, remaining_ms(deadline));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// One attempt at one address; an empty Fd and errno on failure.
Fd try_connect(const addrinfo& address, Clock::time_point deadline) {
  Fd socket(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
  if (!socket) return {};
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS) return {};
  if (!wait_until(socket.get(), POLLOUT, deadline)) {
    errno = ETIMEDOUT;
    return {};
  }
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  errno = error;
  return error == 0 ? std::move(socket) : Fd();
}

Endpoint end_of(const Fd& socket, int (*which)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  if (which(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) throw_errno("a socket has no address");
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port, sizeof port,
              NI_NUMERICHOST | NI_NUMERICSERV);
  return {host, parse_int(port).value_or(0)};
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Pipe::Pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_errno("cannot create a pipe");
  read = Fd(ends[0]);
  write = Fd(ends[1]);
}

Endpoint parse_endpoint(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const auto port = colon == std::string_view::npos ? std::nullopt : parse_int(text.substr(colon + 1));
  if (!port || *port < 1 || *port > 65535)
    throw ConfigError({fmt::format("'{}' is not host:port", text), "", "write it as 127.0.0.1:29500"});
  std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {std::string(host), *port};
}

std::string to_string(const Endpoint& endpoint) {
  const bool ipv6 = endpoint.host.find(':') != std::string::npos;
  return fmt::format("{}:{}", ipv6 ? "[" + endpoint.host + "]" : endpoint.host, endpoint.port);
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

Fd listen_tcp(const std::string& host, int port) {
  const AddressList addresses = resolve(host, port, AI_PASSIVE);
  const addrinfo& address = *addresses;
  Fd socket(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol));
  if (!socket) throw_errno("cannot make a socket");
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0 || listen(socket.get(), SOMAXCONN) != 0)
    throw_errno(fmt::format("cannot listen on {}", to_string(Endpoint{host.empty() ? "*" : host, port})));
  return socket;
}

int local_port(const Fd& socket) { return end_of(socket, getsockname).port; }
std::string local_address(const Fd& socket) { return end_of(socket, getsockname).host; }
std::string peer_address(const Fd& socket) { return end_of(socket, getpeername).host; }

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

void check_resolves(const std::string& host) { resolve(host, 0, 0); }

Fd connect_tcp(const Endpoint& endpoint, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const AddressList addresses = resolve(endpoint.host, endpoint.port, 0);
  std::string reason;
  do {
    for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
      if (Fd socket = try_connect(*address, std::min(deadline, Clock::now() + kOneAddress))) {
        const int on = 1;
        setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        return socket;
      }
      reason = std::generic_category().message(errno);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(100, remaining_ms(deadline))));
  } while (remaining_ms(deadline) > 0);
  throw CommError(
      fmt::format("no connection to {} within {:.1f} s ({})", to_string(endpoint), timeout.count() / 1e3, reason));
}

std::size_t send_some(const Fd& socket, std::string_view text, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t size = send(socket.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size > 0)
      sent += static_cast<std::size_t>(size);
    else if (errno != EAGAIN && errno != EINTR)
      return text.size();
    else if (!wait_until(socket.get(), POLLOUT, deadline))
      break;
  }
  return sent;
}

}  // namespace braid
