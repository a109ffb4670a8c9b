// Distributed checkpoints for a test in another language.
//
//   ckpt_probe write TENSORS FOLDER --writers N   from a safetensors file: each tensor cut along its first dimension
//                                                 into N chunks, one per writer; with an object and a common state
//   ckpt_probe read FOLDER TENSORS                all tensors, whole, into a safetensors file
//   ckpt_probe object FOLDER KEY                  as text; the common state with KEY common.pt
#include <ATen/ATen.h>
#include "base/error.h"
#include "base/strings.h"
#include "ckpt/dist_checkpoint.h"
#include "ckpt/tensor_io.h"
#include "formats/atomic_file.h"
#include "formats/torch_archive.h"

namespace {

using namespace braid;

void complete(const std::string& folder, const std::deque<DistWriter>& writers) {
  DistMetadata metadata;
  Checksums sums;
  for (const DistWriter& writer : writers) {
    merge(metadata, writer.metadata());
    for (const auto& [file, of_file] : writer.checksums()) sums[file] = of_file;
  }
  const auto put = [&](const std::string& name, const std::string& bytes) {
    write_file(folder + "/" + name, bytes);
    sums[name] = checksums_of(bytes);
  };
  put("common.pt", write_archive(pickle_dict({{"iteration", pickle(7)}, {"checkpoint_version", pickle(3.0)}})));
  put(".metadata", write_metadata(metadata));
  put("metadata.json",
      R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})");
  write_file(folder + "/" + kChecksumFile, to_text(sums));
}

void write(const std::string& tensors, const std::string& folder, int writers) {
  std::filesystem::create_directories(folder);
  const SafetensorsReader source(tensors);
  std::deque<DistWriter> parts;
  for (int i = 0; i < writers; ++i) parts.emplace_back(folder, i);
  parts[0].add_object("rng_state/shard_0_1", pickle_list({pickle_dict({{"seed", pickle(1234)}})}));
  for (const StoredTensor& stored : source.tensors()) {
    const at::Tensor tensor = read_tensor(stored);
    std::vector<std::int64_t> begin(stored.shape.size(), 0);
    const std::int64_t rows = stored.shape.empty() ? 0 : stored.shape[0];
    if (rows < writers) {
      parts[0].add_tensor(stored.name, stored.shape, begin, tensor);
      continue;
    }
    for (int i = 0; i < writers; ++i) {
      begin[0] = rows * i / writers;
      const std::int64_t end = rows * (i + 1) / writers;
      parts[static_cast<std::size_t>(i)].add_tensor(stored.name, stored.shape, begin,
                                                    tensor.narrow(0, begin[0], end - begin[0]));
    }
  }
  for (DistWriter& writer : parts) writer.finish();
  complete(folder, parts);
}

void read(const std::string& folder, const std::string& tensors) {
  DistCheckpoint checkpoint(folder);
  std::vector<TensorInfo> infos;
  for (const auto& [key, tensor] : checkpoint.metadata().tensors) infos.push_back({key, tensor.dtype, tensor.shape});
  SafetensorsWriter writer = SafetensorsWriter::to_file(tensors, infos);
  for (const TensorInfo& info : infos) {
    const at::Tensor whole = at::empty(info.shape, scalar_type(info.dtype));
    checkpoint.read(info.name, std::vector<std::int64_t>(info.shape.size(), 0), whole);
    write_tensor(writer, info.name, whole);
  }
  checkpoint.check_rest();
  writer.finish();
}

void print_object(const std::string& folder, const std::string& key) {
  DistCheckpoint checkpoint(folder);
  fmt::print("{}\n", to_text(key == "common.pt" ? checkpoint.common() : checkpoint.read_object(key)));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    if (args.size() == 5 && args[0] == "write" && args[3] == "--writers")
      write(args[1], args[2], static_cast<int>(parse_int64(args[4]).value()));
    else if (args.size() == 3 && args[0] == "read")
      read(args[1], args[2]);
    else if (args.size() == 3 && args[0] == "object")
      print_object(args[1], args[2]);
    else
      return fmt::print(stderr, "usage: ckpt_probe write|read|object ...\n"), 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
