#include "cluster/doctor/events/traceback.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

constexpr std::size_t kMostOpen = 4096;
constexpr int kMostLines = 3000, kLastWords = 20;
constexpr std::size_t kLongestText = 2000;

constexpr std::array kExperts = {"moe", "expert"};

bool is_name(char c) { return is_word(c) || c == '.'; }

template <std::size_t N>
bool has_any(const std::string& text, const std::array<const char*, N>& words) {
  return std::any_of(words.begin(), words.end(), [&](const char* w) { return text.find(w) != std::string::npos; });
}

// Folders above the last two are where somebody keeps things, and say nothing.
std::string_view near_end(std::string_view path) {
  std::size_t at = path.size();
  for (int i = 0; i < 3 && at != std::string_view::npos && at > 0; ++i) at = path.rfind('/', at - 1);
  return at == std::string_view::npos || at == 0 ? path : path.substr(at);
}

// .../data/x.py, but not /data/x.py: that is somebody's disk.
bool is_in_data_folder(std::string_view path) {
  const std::size_t file = path.rfind('/');
  if (file == std::string_view::npos || file == 0) return false;
  const std::size_t folder = path.rfind('/', file - 1);
  return folder != std::string_view::npos && folder > 0 && path.substr(folder, file - folder) == "/data";
}

void note_frame(std::string_view frame, Traceback& traceback) {
  const std::size_t open = frame.find('"'), close = frame.find('"', open + 1);
  if (close == std::string_view::npos) return;
  const std::string_view path = frame.substr(open + 1, close - open - 1);
  const std::size_t in = frame.rfind(", in ");
  const std::string file = in_small_letters(path.substr(path.rfind('/') + 1));
  const std::string place =
      in_small_letters(near_end(path)) + (in == std::string_view::npos ? "" : in_small_letters(frame.substr(in)));
  const std::string own = file + (in == std::string_view::npos ? "" : in_small_letters(frame.substr(in)));
  static constexpr std::array kData = {"energon",      "dataloader",    "data_loader",   "dataset",
                                       "task_encoder", "taskencoder",   "collate",       "webdataset",
                                       "utils/data/",  "data_iterator", "sample_loader", "encode_sample"};
  static constexpr std::array kLaunchers = {"torch/distributed/launcher/", "torch/distributed/launch.py",
                                            "accelerate/commands/launch.py", "horovod/runner/", "deepspeed/launcher/"};
  static constexpr std::array kSaving = {
      "save_hf_weights", "save_artifacts",  "save_hf_pretrained", "save_pretrained",     "export_ckpt",
      "save_hf",         "save_checkpoint", "save_state",         "_save_to_state_dict", "export"};
  traceback.in_data = traceback.in_data || has_any(place, kData) || file == "data.py" ||
                      own.find("merge") != std::string::npos || is_in_data_folder(path);
  traceback.in_experts = traceback.in_experts || has_any(own, kExperts);
  static constexpr std::array kRendezvous = {"distributed/rendezvous.py", "elastic/rendezvous",   "init_process_group",
                                             "static_tcp_rendezvous",     "_create_tcp_store",    "_create_c10d_store",
                                             "jax/_src/distributed.py",   "_assign_worker_ranks", "in _rendezvous"};
  traceback.in_rendezvous = traceback.in_rendezvous || has_any(std::string(frame), kRendezvous);
  traceback.in_saving = traceback.in_saving || has_any(own, kSaving);
  static constexpr std::array kClients = {"vllm", "sglang", "rollout", "reward"};
  traceback.in_client = traceback.in_client || has_any(own, kClients);
  traceback.in_launcher = traceback.in_launcher || has_any(std::string(path), kLaunchers) ||
                          (path.find("multiprocessing/spawn.py") != std::string_view::npos &&
                           in != std::string_view::npos && frame.substr(in) == ", in join");
}

// Ray's own exception quotes the frames and the exception of the task that failed.
bool quotes_another(std::string_view type) { return type.find("RayTaskError") != std::string_view::npos; }

}  // namespace

std::string_view exception_type(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && is_name(text[end])) ++end;
  const std::string_view type = text.substr(0, end);
  if (end < text.size() && text[end] == '(' && type.ends_with("RayTaskError"))  // of another exception: "(ValueError)"
    end = std::min(text.find(')', end), text.size() - 1) + 1;
  if (end == 0 || (end < text.size() && text[end] != ':')) return {};
  if (end + 1 < text.size() && text[end + 1] != ' ') return {};
  const std::string_view name = type.substr(type.rfind('.') + 1);
  if (name.size() < 4 || type[0] == '.' || is_digit(type[0])) return {};
  const bool capital = (name[0] >= 'A' && name[0] <= 'Z') || name[0] == '_';
  const bool shouts = std::none_of(name.begin(), name.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  return capital && !shouts ? type : std::string_view();
}

namespace {

// At the end of a traceback names of libraries' exceptions may be small, too: "socket.gaierror: [Errno -2] ...".
std::string_view exception_of_traceback(std::string_view text) {
  if (const std::string_view type = exception_type(text); !type.empty()) return type;
  std::size_t end = 0;
  while (end < text.size() && is_name(text[end])) ++end;
  const std::string_view name = text.substr(0, end);
  const bool has_message = text.substr(end).starts_with(": ") || end == text.size();
  const std::size_t dot = name.rfind('.');
  if (!has_message || dot == std::string_view::npos || dot == 0 || !is_letter(name[0])) return {};
  const std::string_view last = name.substr(dot + 1);
  for (const char* word : {"error", "Error", "timeout", "Exception", "exception"})
    if (last.ends_with(word)) return name;
  return {};
}

}  // namespace

void TracebackAssembler::begin(int writer, const Place& place) {
  if (open_.size() >= kMostOpen && !open_.count(writer)) return;
  open_[writer] = {};
  open_[writer].traceback.begin = place;
}

std::optional<int> TracebackAssembler::adopt(int writer, std::string_view body, std::uint64_t line) {
  constexpr std::uint64_t kLinesBetween = 2;
  if (open_.count(writer) || !trimmed(body).starts_with("File \"")) return std::nullopt;
  for (auto& [owner, open] : open_)
    if (open.traceback.frame_line == 0 && open.traceback.begin.line + kLinesBetween >= line) {
      const int before = owner;
      auto node = open_.extract(owner);
      node.key() = writer;
      open_.insert(std::move(node));
      return before;
    }
  return std::nullopt;
}

TracebackAssembler::Result TracebackAssembler::feed(int writer, std::string_view body, std::uint64_t line) {
  const auto found = open_.find(writer);
  if (found == open_.end()) return {};
  Open& open = found->second;
  if (++open.lines > kMostLines) {
    open_.erase(found);
    return {};
  }
  const int lines_of_others = std::exchange(open.lines_of_others, 0);
  const std::size_t indent = std::min(body.find_first_not_of(" \t"), body.size());
  const std::string_view text = body.substr(indent);
  if (text.starts_with("File \"")) {
    open.indent = indent;
    open.traceback.frame = text.substr(0, kLongestText);
    open.traceback.frame_line = line;
    note_frame(text, open.traceback);
    return {true};
  }
  const bool has_frames = open.traceback.frame_line != 0;  // torchrun's list of failures may quote only the last line
  const bool ends_without = !has_frames && !exception_of_traceback(text).empty();
  if (!ends_without && (text.empty() || (indent > 0 && indent >= open.indent))) {
    // The line of code that a frame shows.
    if (has_any(in_small_letters(text), kExperts)) open.traceback.in_experts = true;
    if (has_word(text, "_first(")) open.traceback.lets_first = true;
    if (text.find_first_not_of(" ^~") != std::string_view::npos)
      open.traceback.checks_finite = has_one_of(text, "isnan|isfinite|isinf|is_finite|all_finite|allfinite");
    return {true};
  }
  const bool in_place = indent < open.indent || open.indent == 0 || ends_without;
  const std::string_view type = in_place ? exception_of_traceback(text) : std::string_view();
  if (!type.empty() && quotes_another(type)) return {true};
  if (type.empty()) {
    open.lines_of_others = lines_of_others + 1;
    return {};
  }
  Traceback ended = std::move(open.traceback);
  ended.exception = text.substr(0, kLongestText);
  ended.exception_line = line;
  open_.erase(found);
  return {true, std::move(ended)};
}

std::map<int, Traceback> TracebackAssembler::unfinished() const {
  std::map<int, Traceback> all;
  for (const auto& [writer, open] : open_)
    if (open.lines_of_others <= kLastWords) all[writer] = open.traceback;
  return all;
}

}  // namespace braid
