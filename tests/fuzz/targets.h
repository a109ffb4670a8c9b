// The fuzz targets, and the property that must hold for any bytes: a reader either refuses them with a DataError, or
// what it read can be written and read again unchanged. Any other exception and any sanitizer report is a bug.
#pragma once

#include "base/error.h"
#include "ckpt/checkpoint_files.h"
#include "ckpt/dist_checkpoint.h"
#include "ckpt/sealed_text.h"
#include "formats/pickle.h"

namespace braid::testing {

// Whether the bytes were a pickle.
inline bool fuzz_pickle(std::string_view bytes) {
  static const PickleVocabulary vocabulary = {"builtins.getattr", "collections.*", "torch.*"};
  PickleValue value;
  try {
    value = read_pickle(bytes, "input", vocabulary);
  } catch (const DataError&) {
    return false;
  }
  const std::string written = write_pickle(value);
  const PickleValue again = read_pickle(written, "written", vocabulary);
  BRAID_CHECK_EQ(to_text(again), to_text(value), "read again");
  BRAID_CHECK(write_pickle(again) == written, "written again");
  return true;
}

// Whether the bytes were an index.
inline bool fuzz_metadata(std::string_view bytes) {
  DistMetadata metadata;
  try {
    metadata = read_metadata(bytes, "input");
  } catch (const DataError&) {
    return false;
  }
  const DistMetadata again = read_metadata(write_metadata(metadata), "written");
  BRAID_CHECK(again == metadata, "{} tensors, {} objects", metadata.tensors.size(), metadata.objects.size());
  BRAID_CHECK_EQ(coverage_problems(again).size(), coverage_problems(metadata).size(), "of the same index");
  return true;
}

// Whether the bytes, with their own checksum corrected, were checksums of files.
inline bool fuzz_checksums(std::string_view bytes) {
  Checksums checksums;
  try {
    checksums = parse_checksums(sealed(bytes), "input");
  } catch (const DataError&) {
    return false;
  }
  BRAID_CHECK(parse_checksums(to_text(checksums), "written") == checksums, "{} files", checksums.size());
  return true;
}

}  // namespace braid::testing
