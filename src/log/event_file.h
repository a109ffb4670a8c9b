// Scalars for TensorBoard, in the event file format it reads: TFRecords (length and data, each with a masked CRC-32C)
// that hold tensorflow.Event messages. Only the few protobuf fields that scalars need are written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace braid {

class AppendOnlyFile;

class EventFile {
 public:
  // Starts a new events.out.tfevents.<seconds>.<host>.<pid>.<n> in a folder, created if missing. TensorBoard
  // reads all such files of a folder as one run, so a resumed run simply starts another.
  explicit EventFile(const std::string& folder);
  ~EventFile();  // flushes

  // The tag is UTF-8; values are kept as float32, NaN and infinities included.
  void add_scalar(std::string_view tag, double value, std::int64_t step);

  // Writes only whole records, so a reader sees every flushed record complete, also after a crash.
  void flush();

  const std::string& path() const;

 private:
  void add_event(std::string_view fields);

  std::unique_ptr<AppendOnlyFile> file_;
  std::string pending_;
};

}  // namespace braid
