#include "comm/board_messages.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <type_traits>

#include "base/strings.h"

namespace braid {

using nlohmann::json;

// {"arrivals": 3, "marks": [[1589432], [], []], "texts": ["all_reduce of 8 Float", "barrier"], "contents": [0, 1, 0]}
// A content is the number of its text.
void to_json(json& j, const MeetingRecord& record) {
  std::vector<std::string> texts;
  std::vector<std::ptrdiff_t> contents;
  for (const std::string& content : record.contents()) {
    const auto known = std::find(texts.begin(), texts.end(), content);
    contents.push_back(known - texts.begin());
    if (known == texts.end()) texts.push_back(content);
  }
  j = {{"arrivals", record.arrivals()}, {"marks", record.marks()}, {"texts", texts}, {"contents", contents}};
}

void from_json(const json& j, MeetingRecord& record) {
  std::vector<std::string> contents;
  for (const std::size_t text : j.at("contents")) contents.push_back(j.at("texts").at(text));
  record = {j.at("arrivals"), j.at("marks").get<MeetingRecord::Marks>(), std::move(contents)};
}

// What messages consist of: their members, by name.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankIdentity, rank, host, coordinates)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MeetingKey, name, members)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Meeting, name, members)  // peers read no more of it
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Wait, meeting, arrival)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankStatus, op, waits, arrivals, records, idle_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hello, who, world_size, hang_limit_s, silence_limit_s, connect_timeout_s, nonce)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Beat, status)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Fail, op, message, consequence)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Welcome, server)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hosts, ranks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RootCause, rank, line)

namespace {

constexpr std::size_t kLongestLine = 1 << 20;

// The type of a message, in the order of the variant.
constexpr std::array<const char*, std::variant_size_v<BoardMessage>> kTypes = {
    "hello", "beat", "fail", "bye", "welcome", "hosts", "tick", "cause", "close"};

template <std::size_t kIndex = 0>
BoardMessage message_from(const json& j, const std::string& type) {
  if constexpr (kIndex == kTypes.size()) {
    throw std::invalid_argument("unknown message type");
  } else {
    using Message = std::variant_alternative_t<kIndex, BoardMessage>;
    if (type != kTypes[kIndex]) return message_from<kIndex + 1>(j, type);
    if constexpr (std::is_empty_v<Message>)
      return Message{};
    else
      return j.get<Message>();
  }
}

// A root cause must fit one log line, so line breaks in the error's text are replaced.
std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::string line;
  for (char c : text) {
    if (c == '\n')
      line += "; ";
    else if (static_cast<unsigned char>(c) >= 0x20)
      line += c;
  }
  return line;
}

}  // namespace

RootCause make_root_cause(const RankIdentity& who, const std::string& op, const std::string& message) {
  return {who.rank, fmt::format("rank {} (host {}, {}) failed in {}: {}", who.rank, who.host,
                                who.coordinates.empty() ? "module unknown" : who.coordinates,
                                op.empty() ? "code outside of any operation" : one_line(op), one_line(message))};
}

RootCause make_unreachable_cause(const HostRanks& hosts, const std::string& from_host, const std::string& message) {
  std::vector<std::string> names;
  for (const auto& [host, ranks] : hosts)
    names.push_back(fmt::format("{} (rank{} {})", host, ranks.size() > 1 ? "s" : "", fold_ranks(ranks)));
  return {hosts.begin()->second.front(),
          fmt::format("host{} {} cannot be reached from host {}: {}", names.size() > 1 ? "s" : "", joined(names, ", "),
                      from_host, one_line(message))};
}

std::string encode(const BoardMessage& message) {
  // Error texts may hold bytes that are not UTF-8; these are replaced rather than causing an exception.
  json j = std::visit(
      []<class Message>(const Message& m) -> json {
        if constexpr (std::is_empty_v<Message>)
          return json::object();
        else
          return m;
      },
      message);
  j["type"] = kTypes.at(message.index());
  return j.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::optional<BoardMessage> decode(const std::string& line) {
  try {
    const json j = json::parse(line);
    return message_from(j, j.at("type"));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool MessageSocket::receive(const std::function<void(const BoardMessage&)>& handle) {
  char buffer[16384];
  bool arrived = false;
  while (open_) {
    const ssize_t size = recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) break;
    arrived = true;
    if (size > 0) received_.append(buffer, static_cast<std::size_t>(size));
    for (std::size_t end = received_.find('\n'); end != std::string::npos; end = received_.find('\n')) {
      const std::optional<BoardMessage> message = decode(received_.substr(0, end));
      received_.erase(0, end + 1);
      if (message) handle(*message);
    }
    if (size <= 0 || received_.size() > kLongestLine) close();
  }
  return arrived;
}

void MessageSocket::send(const BoardMessage& message, std::chrono::milliseconds timeout) {
  unsent_ += encode(message);
  unsent_.erase(0, send_some(socket_, unsent_, timeout));
}

void MessageSocket::send_rest() { unsent_.erase(0, send_some(socket_, unsent_, std::chrono::milliseconds(0))); }

}  // namespace braid
