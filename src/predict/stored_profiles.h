// The profiles of hardware/, as texts in the program. The source file is written by cmake/StoredProfiles.cmake.
#pragma once

#include <string_view>
#include <vector>

namespace braid {

struct StoredProfile {
  std::string_view name, yaml;
};

const std::vector<StoredProfile>& stored_profiles();

}  // namespace braid
