// A part of a checkpoint's file is a torch.save archive of its own, which must match its entry in the index.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/checked_file.h"
#include "ckpt/dist_metadata.h"
#include "formats/torch_archive.h"

namespace braid {

// `part` must lie inside the file, which must outlive the source.
ArchiveSource source_of(CheckedFile& file, const FileRange& part, const std::string& key);

// The offset of a chunk's elements in the source. DataError when the tensor differs from the index.
std::int64_t data_offset(const ArchiveSource& source, StoredDtype dtype, const std::vector<std::int64_t>& size);

// The element of a ShardedObject's list. DataError when there is no such list.
PickleValue object_in(const ArchiveSource& source, const std::string& key);

}  // namespace braid
