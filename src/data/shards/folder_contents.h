// What a folder that is no data set holds, and how it becomes one.
#pragma once

#include <string>

#include "base/error.h"

namespace braid {

// Compressed ones count. Also looks into folders below, up to a limited number of files.
bool has_tar_files(const std::string& folder);

Problem without_tar_files(const std::string& folder);

}  // namespace braid
