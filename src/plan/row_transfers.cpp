#include "plan/row_transfers.h"

#include <algorithm>

namespace braid {

RowRange rows_of(const Module& module, int global_rank, std::int64_t rows) {
  const std::int64_t share = rows / module.dense.size_of("dp");
  const std::int64_t replica = module.dense.coord(global_rank, "dp");
  return {replica * share, (replica + 1) * share};
}

std::vector<RowTransfer> plan_row_transfers(const Module& encoder, const Module& language, std::int64_t rows) {
  const auto leaders = [](const Module& module) { return module.dense.groups({"dp"}).front(); };
  std::vector<RowTransfer> transfers;
  for (int from : leaders(encoder))
    for (int to : leaders(language)) {
      const RowRange have = rows_of(encoder, from, rows), need = rows_of(language, to, rows);
      const std::int64_t begin = std::max(have.begin, need.begin), end = std::min(have.end, need.end);
      if (begin < end) transfers.push_back({from, to, begin, end});
    }
  return transfers;
}

}  // namespace braid
