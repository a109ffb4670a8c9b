// Prints the index of a distributed checkpoint as JSON; with --rewrite OUT it is written again, to OUT.
#include <nlohmann/json.hpp>
#include "ckpt/dist_checkpoint.h"

namespace {

using Json = nlohmann::json;

Json to_json(const braid::FileRange& part) {
  return {{"file", part.file}, {"offset", part.offset}, {"length", part.length}};
}

Json to_json(const braid::DistTensor& tensor) {
  Json chunks = Json::array();
  for (const braid::StoredChunk& chunk : tensor.chunks) {
    chunks.push_back(to_json(chunk.part));
    chunks.back().update({{"begin", chunk.begin}, {"size", chunk.size}});
  }
  return {{"dtype", braid::name_of(tensor.dtype)}, {"shape", tensor.shape}, {"chunks", chunks}};
}

Json to_json(const braid::DistMetadata& metadata) {
  Json tensors = Json::object(), objects = Json::object(), problems = Json::array();
  for (const auto& [key, tensor] : metadata.tensors) tensors[key] = to_json(tensor);
  for (const auto& [key, part] : metadata.objects) objects[key] = to_json(part);
  for (const braid::Problem& problem : braid::coverage_problems(metadata)) problems.push_back(problem.what);
  return {{"tensors", tensors}, {"objects", objects}, {"problems", problems}};
}

}  // namespace

int main(int argc, char** argv) {
  const bool rewrite = argc == 4 && std::string(argv[2]) == "--rewrite";
  if (argc != 2 && !rewrite) {
    fmt::print(stderr, "usage: metadata_probe FILE [--rewrite OUT]\n");
    return 2;
  }
  try {
    std::ifstream in(argv[1], std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const braid::DistMetadata metadata = braid::read_metadata(bytes, argv[1]);
    if (rewrite) std::ofstream(argv[3], std::ios::binary) << braid::write_metadata(metadata);
    fmt::print("{}\n", to_json(metadata).dump());
  } catch (const braid::DataError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
