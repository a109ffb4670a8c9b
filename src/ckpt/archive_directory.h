// What an archive of torch.save says of its records, checked before libtorch's zip code, which trusts it, takes memory
// for them.
#pragma once

#include "ckpt/torch_archive.h"

namespace braid {

// DataError for an archive with a compressed record, with one of libtorch's own that is not small, or with a directory
// that is larger than any. Files that are not zip archives are left to the zip code.
void check_directory(const ArchiveSource& source);

}  // namespace braid
