#include "comm/suspicions.h"

#include <algorithm>
#include <tuple>

namespace braid {

void Suspicions::add(Suspicion suspicion) {
  const auto known = by_rank_.find(suspicion.rank);
  if (known == by_rank_.end() || (!known->second.consequence && suspicion.consequence))
    by_rank_[suspicion.rank] = std::move(suspicion);
}

std::optional<Suspicions::Clock::time_point> Suspicions::lost_at(int rank) const {
  const auto known = by_rank_.find(rank);
  if (known == by_rank_.end() || known->second.consequence) return std::nullopt;
  return known->second.since;
}

bool Suspicions::another_lost_before(int rank, Clock::time_point time) const {
  return std::any_of(by_rank_.begin(), by_rank_.end(), [&](const auto& entry) {
    return entry.first != rank && !entry.second.consequence && entry.second.since < time;
  });
}

std::optional<Suspicion> Suspicions::due(Clock::time_point now, bool final) const {
  const auto likeliest = std::min_element(by_rank_.begin(), by_rank_.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second.consequence, a.second.since) < std::tie(b.second.consequence, b.second.since);
  });
  if (likeliest == by_rank_.end()) return std::nullopt;
  const Suspicion& suspicion = likeliest->second;
  const auto wait = suspicion.consequence ? for_origin_ : for_verdict_;
  return final || now - suspicion.since >= wait ? std::optional(suspicion) : std::nullopt;
}

}  // namespace braid
