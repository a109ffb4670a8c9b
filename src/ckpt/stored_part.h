// A part of a checkpoint's file is an archive of its own, which has to be what the index says of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/checked_file.h"
#include "ckpt/dist_metadata.h"
#include "ckpt/torch_archive.h"

namespace braid {

// `part` has been checked to lie inside the file, which outlives the source.
ArchiveSource source_of(CheckedFile& file, const FilePart& part, const std::string& key);

// Where in the source the elements of a chunk begin. DataError when it is another tensor than the index has.
std::int64_t data_offset(const ArchiveSource& source, StoredDtype dtype, const std::vector<std::int64_t>& size);

// Of a ShardedObject, what is in its list. DataError when there is no such list.
PickleValue object_in(const ArchiveSource& source, const std::string& key);

}  // namespace braid
