// Checks the record directory of a torch.save archive before libtorch's zip code, which trusts it, allocates memory for
// the records.
#pragma once

#include "ckpt/torch_archive.h"

namespace braid {

// DataError for an archive with a compressed record, with a large record of libtorch's own, or with a directory larger
// than any valid one. Files that are not zip archives are left to the zip code.
void check_directory(const ArchiveSource& source);

}  // namespace braid
