#include "comm/board_messages.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/strings.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestLine = 1 << 20;

json to_json(const RankIdentity& who) {
  return {{"rank", who.rank}, {"host", who.host}, {"coordinates", who.coordinates}};
}

RankIdentity identity_from(const json& j) { return {j.at("rank"), j.at("host"), j.at("coordinates")}; }

// {"meeting": "language.tp", "members": 7, "arrivals": 3, "marks": ["5e1f...", "", ""],
//  "texts": ["all_reduce of 8 Float", "barrier"], "contents": [0, 1, 0]}
// A mark has eight hexadecimal digits; a content is the number of its text.
json to_json(const MeetingKey& key, const MeetingRecord& record) {
  std::vector<std::string> texts;
  std::vector<std::size_t> contents;
  for (const std::string& content : record.contents()) {
    const auto known = std::find(texts.begin(), texts.end(), content);
    contents.push_back(static_cast<std::size_t>(known - texts.begin()));
    if (known == texts.end()) texts.push_back(content);
  }
  json marks = json::array();
  for (const auto& of_step : record.marks()) marks.push_back(fmt::format("{:08x}", fmt::join(of_step, "")));
  return {{"meeting", key.name},       {"members", key.members},    {"arrivals", record.arrivals()},
          {"marks", std::move(marks)}, {"texts", std::move(texts)}, {"contents", std::move(contents)}};
}

MeetingRecord record_from(const json& j) {
  MeetingRecord::Marks marks;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const auto digits = j.at("marks").at(i).get<std::string>();
    for (std::size_t begin = 0; begin < digits.size(); begin += 8)
      marks[i].push_back(static_cast<std::uint32_t>(std::stoul(digits.substr(begin, 8), nullptr, 16)));
  }
  std::vector<std::string> contents;
  for (const std::size_t text : j.at("contents")) contents.push_back(j.at("texts").at(text));
  return {j.at("arrivals"), std::move(marks), std::move(contents)};
}

json to_json(const RankStatus& s) {
  json j = {{"op", s.op}, {"arrivals", s.arrivals}, {"idle_s", s.idle_s}};
  for (const Wait& wait : s.waits)
    j["waits"].push_back(
        {{"meeting", wait.meeting.name}, {"members", wait.meeting.members}, {"arrival", wait.arrival}});
  for (const auto& [key, record] : s.records) j["records"].push_back(to_json(key, record));
  return j;
}

RankStatus status_from(const json& j) {
  RankStatus s;
  s.op = j.at("op");
  s.arrivals = j.at("arrivals").get<std::map<std::string, std::int64_t>>();
  s.idle_s = j.at("idle_s");
  if (auto waits = j.find("waits"); waits != j.end())
    for (const json& wait : *waits)
      s.waits.push_back({{wait.at("meeting"), wait.at("members").get<std::vector<int>>()}, wait.at("arrival")});
  if (auto records = j.find("records"); records != j.end())
    for (const json& record : *records) s.records[{record.at("meeting"), record.at("members")}] = record_from(record);
  return s;
}

struct Encoder {
  json operator()(const Hello& m) const {
    return {{"type", "hello"},
            {"who", to_json(m.who)},
            {"world_size", m.world_size},
            {"hang_limit_s", m.hang_limit_s},
            {"silence_limit_s", m.silence_limit_s},
            {"connect_timeout_s", m.connect_timeout_s},
            {"nonce", m.nonce}};
  }
  json operator()(const Beat& m) const { return {{"type", "beat"}, {"status", to_json(m.status)}}; }
  json operator()(const Fail& m) const {
    return {{"type", "fail"}, {"op", m.op}, {"message", m.message}, {"consequence", m.consequence}};
  }
  json operator()(const Bye&) const { return {{"type", "bye"}}; }
  json operator()(const Welcome& m) const { return {{"type", "welcome"}, {"server", to_json(m.server)}}; }
  json operator()(const Hosts& m) const { return {{"type", "hosts"}, {"ranks", m.ranks}}; }
  json operator()(const Tick&) const { return {{"type", "tick"}}; }
  json operator()(const RootCause& m) const { return {{"type", "cause"}, {"rank", m.rank}, {"line", m.line}}; }
  json operator()(const Close&) const { return {{"type", "close"}}; }
};

BoardMessage message_from(const json& j) {
  const std::string type = j.at("type");
  if (type == "hello")
    return Hello{identity_from(j.at("who")), j.at("world_size"),        j.at("hang_limit_s"),
                 j.at("silence_limit_s"),    j.at("connect_timeout_s"), j.at("nonce")};
  if (type == "beat") return Beat{status_from(j.at("status"))};
  if (type == "fail") return Fail{j.at("op"), j.at("message"), j.at("consequence")};
  if (type == "bye") return Bye{};
  if (type == "welcome") return Welcome{identity_from(j.at("server"))};
  if (type == "hosts") return Hosts{j.at("ranks").get<HostRanks>()};
  if (type == "tick") return Tick{};
  if (type == "cause") return RootCause{j.at("rank"), j.at("line")};
  if (type == "close") return Close{};
  throw std::invalid_argument("unknown message type");
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
  return std::visit(Encoder{}, message).dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::optional<BoardMessage> decode(const std::string& line) {
  try {
    return message_from(json::parse(line));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void LineSender::send(const Fd& socket, const std::string& line, std::chrono::milliseconds timeout) {
  pending_ += line;
  pending_.erase(0, send_some(socket, pending_, timeout));
}

bool LineBuffer::append(const char* data, std::size_t size) {
  pending_.append(data, size);
  return pending_.size() <= kLongestLine || pending_.find('\n') != std::string::npos;
}

std::optional<std::string> LineBuffer::next() {
  const std::size_t end = pending_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = pending_.substr(0, end);
  pending_.erase(0, end + 1);
  return line;
}

}  // namespace braid
