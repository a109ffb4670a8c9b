// Which iteration of a folder a run resumes from: all ranks choose the same one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace braid {

class World;

// The one that the tracker names. With `falls_back`, if the tracker cannot be read or names a missing iteration: the
// newest complete one. Empty if there is no checkpoint. Collective.
std::optional<std::int64_t> chosen_iteration(const std::string& root, bool falls_back, World& world,
                                             const std::function<void(const std::string& text)>& say);

// The newest complete iteration before `end` that any rank sees; empty if there is none. Collective.
std::optional<std::int64_t> newest_before(std::int64_t end, const std::string& root, World& world);

}  // namespace braid
