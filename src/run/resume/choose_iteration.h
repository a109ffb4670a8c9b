// Chooses the iteration of a folder from which a run resumes, the same on all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace braid {

class World;

// The iteration that the tracker names. With `falls_back`, the newest complete one if the tracker cannot be read or
// names a missing iteration. Empty if there is no checkpoint. Collective.
std::optional<std::int64_t> chosen_iteration(const std::string& root, bool falls_back, World& world,
                                             const std::function<void(const std::string& text)>& say);

// The newest complete iteration before `end` that any rank sees; empty if there is none. Collective.
std::optional<std::int64_t> newest_before(std::int64_t end, const std::string& root, World& world);

}  // namespace braid
