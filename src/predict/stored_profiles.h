// The profiles of hardware/, embedded in the program as text. The source file is written by cmake/StoredProfiles.cmake.
#pragma once

#include <string_view>
#include <vector>

namespace braid {

struct StoredProfile {
  std::string_view name, yaml;
};

const std::vector<StoredProfile>& stored_profiles();

}  // namespace braid
