#include "plan/topology.h"
#include "base/strings.h"

namespace braid {
namespace {

Module make_module(const ModuleConfig& config, const RankSpan& span) {
  const int offset = static_cast<int>(span.begin);
  const int expt_dp = static_cast<int>(span.size()) / (config.expt_tp * config.ep * config.pp);
  return {
      .name = config.name,
      .is_encoder = config.kind == ModuleKind::Encoder,
      .dense = Grid(offset, {{"tp", config.tp}, {"cp", config.cp}, {"dp", config.dp}, {"pp", config.pp}}),
      .expert = Grid(offset, {{"expt_tp", config.expt_tp}, {"ep", config.ep}, {"expt_dp", expt_dp}, {"pp", config.pp}}),
      .vpp = config.vpp};
}

// The order is Megatron's. All ranks must agree on it, since creating a group is a collective operation.
void append_groups(const Module& module, std::vector<GroupSpec>& groups) {
  struct Kind {
    const Grid& view;
    std::vector<std::string> dims;
    bool on_host = false, connected = true;
  };
  const Kind kinds[] = {
      {.view = module.dense, .dims = {"tp"}},
      {.view = module.dense, .dims = {"cp"}},
      {.view = module.dense, .dims = {"pp"}, .connected = false},
      {.view = module.dense, .dims = {"dp"}, .connected = false},
      {.view = module.dense, .dims = {"dp", "cp"}},
      {.view = module.dense, .dims = {"tp", "cp"}},
      {.view = module.expert, .dims = {"ep"}},
      {.view = module.expert, .dims = {"expt_tp"}},
      {.view = module.expert, .dims = {"expt_dp"}},
      {.view = module.dense, .dims = {"tp", "pp"}, .connected = false},
      {.view = module.dense, .dims = {"tp", "cp", "dp"}},
      {.view = module.dense, .dims = {"tp", "cp", "pp", "dp"}, .connected = false},
      {.view = module.expert, .dims = {"expt_tp", "ep"}, .connected = false},
      {.view = module.expert, .dims = {"expt_tp", "ep", "pp"}, .connected = false},
      {.view = module.dense,
       .dims = {"tp", "cp", "pp"},
       .on_host = true},  // a replica, which shares a batch; the others are Megatron's
  };
  for (const auto& [view, dims, on_host, connected] : kinds) {
    const std::string name = module.name + "." + view.key(dims);
    for (std::vector<int>& ranks : view.groups(dims)) groups.push_back({name, std::move(ranks), on_host, connected});
  }
}

}  // namespace

std::vector<Module> make_modules(const TopologyConfig& config, const Workload& workload) {
  throw_if_any(validate(config, workload));
  const std::vector<RankSpan> spans = module_spans(config);
  std::vector<Module> modules;
  for (std::size_t i = 0; i < spans.size(); ++i) modules.push_back(make_module(config.modules[i], spans[i]));
  return modules;
}

Topology::Topology(const TopologyConfig& config, const Workload& workload)
    : colocated_(config.colocated), modules_(make_modules(config, workload)) {
  world_size_ = static_cast<int>(world_size_of(config));
  for (const Module& module : modules_) append_groups(module, groups_);
}

const Module& Topology::module(const std::string& name) const {
  auto found = std::find_if(modules_.begin(), modules_.end(), [&](const Module& m) { return m.name == name; });
  BRAID_CHECK(found != modules_.end(), "the topology has no module '{}'", name);
  return *found;
}

const Module& Topology::language() const {
  return *std::find_if(modules_.begin(), modules_.end(), [](const Module& m) { return !m.is_encoder; });
}

std::vector<const Module*> Topology::modules_of(int global_rank) const {
  std::vector<const Module*> present;
  for (const Module& module : modules_)
    if (module.dense.contains(global_rank)) present.push_back(&module);
  return present;
}

std::vector<std::string> Topology::all_coordinates() const {
  std::vector<std::string> all;
  for (int rank = 0; rank < world_size_; ++rank) all.push_back(coordinates_of(rank));
  return all;
}

std::string Topology::coordinates_of(int global_rank) const {
  std::vector<std::string> all;
  for (const Module* module : modules_of(global_rank))
    all.push_back(fmt::format("{}[{}]", module->name, module->dense.coordinates_of(global_rank)));
  return joined(all, " + ");
}

namespace {

// The offsets that the marked dims add to a rank; ascending, as a stride exceeds the sum of all faster offsets.
std::vector<int> offsets(const std::vector<Dim>& dims, const std::vector<bool>& marked) {
  std::vector<int> offsets = {0};
  int stride = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::size_t faster = offsets.size();
    for (int coord = 1; marked[i] && coord < dims[i].size; ++coord)
      for (std::size_t j = 0; j < faster; ++j) offsets.push_back(coord * stride + offsets[j]);
    stride *= dims[i].size;
  }
  return offsets;
}

}  // namespace

Grid::Grid(int rank_offset, std::vector<Dim> dims) : rank_offset_(rank_offset), size_(1), dims_(std::move(dims)) {
  BRAID_CHECK(rank_offset >= 0, "a grid cannot begin at rank {}", rank_offset);
  for (const Dim& dim : dims_) {
    BRAID_CHECK(dim.size >= 1, "dimension {} has size {}", dim.name, dim.size);
    BRAID_CHECK(dim.size <= (std::numeric_limits<int>::max() - rank_offset) / size_, "{} ranks times {}={} is too many",
                size_, dim.name, dim.size);
    size_ *= dim.size;
  }
}

int Grid::index_in(int global_rank) const {
  BRAID_CHECK(contains(global_rank), "rank {} is outside of the grid's ranks {}-{}", global_rank, rank_offset_,
              end() - 1);
  return global_rank - rank_offset_;
}

std::vector<int> Grid::coords(int global_rank) const {
  std::vector<int> coords;
  coords.reserve(dims_.size());
  int rest = index_in(global_rank);
  for (const Dim& dim : dims_) {
    coords.push_back(rest % dim.size);
    rest /= dim.size;
  }
  return coords;
}

std::string Grid::span() const {
  return size_ == 1 ? fmt::format("{}", rank_offset_) : fmt::format("{}-{}", rank_offset_, end() - 1);
}

int Grid::size_of(const std::string& dim) const { return dims_[index_of(dim)].size; }

int Grid::coord(int global_rank, const std::string& dim) const {
  const std::size_t wanted = index_of(dim);
  int stride = 1;
  for (std::size_t i = 0; i < wanted; ++i) stride *= dims_[i].size;
  return index_in(global_rank) / stride % dims_[wanted].size;
}

int Grid::rank_at(const std::vector<int>& coords) const {
  BRAID_CHECK_EQ(coords.size(), dims_.size(), "one coordinate per dimension");
  int rank = rank_offset_, stride = 1;
  for (std::size_t i = 0; i < dims_.size(); ++i) {
    BRAID_CHECK(coords[i] >= 0 && coords[i] < dims_[i].size, "coordinate {} of dimension {} with size {}", coords[i],
                dims_[i].name, dims_[i].size);
    rank += coords[i] * stride;
    stride *= dims_[i].size;
  }
  return rank;
}

std::string Grid::coordinates_of(int global_rank) const {
  const std::vector<int> at = coords(global_rank);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < dims_.size(); ++i) parts.push_back(fmt::format("{}={}", dims_[i].name, at[i]));
  return joined(parts, " ");
}

std::vector<std::vector<int>> Grid::groups(const std::vector<std::string>& dims) const {
  const std::vector<bool> inside = mark(dims);
  std::vector<bool> outside = inside;
  outside.flip();
  const std::vector<int> members = offsets(dims_, inside);
  std::vector<std::vector<int>> groups;
  for (int first : offsets(dims_, outside)) {
    std::vector<int>& group = groups.emplace_back(members);
    for (int& rank : group) rank += rank_offset_ + first;
  }
  return groups;
}

std::string Grid::key(const std::vector<std::string>& dims) const {
  const std::vector<bool> inside = mark(dims);
  std::string key;
  for (std::size_t i = dims_.size(); i-- > 0;) {
    if (!inside[i]) continue;
    if (!key.empty()) key += '-';
    key += dims_[i].name;
  }
  return key;
}

std::size_t Grid::index_of(const std::string& dim) const {
  std::size_t i = 0;
  while (i < dims_.size() && dims_[i].name != dim) ++i;
  BRAID_CHECK(i < dims_.size(), "the grid has no dimension '{}'", dim);
  return i;
}

std::vector<bool> Grid::mark(const std::vector<std::string>& dims) const {
  std::vector<bool> marked(dims_.size(), false);
  for (const std::string& dim : dims) marked[index_of(dim)] = true;
  return marked;
}

int group_size(const Module& module, const std::string& key) {
  const auto& dense = module.dense.dims();
  int size = 1;
  for (const std::string& dim : split(key, '-')) {
    const bool is_dense = std::any_of(dense.begin(), dense.end(), [&](const Dim& d) { return d.name == dim; });
    size *= (is_dense ? module.dense : module.expert).size_of(dim);
  }
  return size;
}

}  // namespace braid
