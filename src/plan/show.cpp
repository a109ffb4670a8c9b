#include "plan/show.h"
#include <nlohmann/json.hpp>
#include "base/strings.h"
#include "plan/channels.h"

namespace braid {
namespace {

using Row = std::vector<std::string>;
using Json = nlohmann::ordered_json;  // keeps dims in order

constexpr int kRanksInFull = 32;  // a module with more ranks shows its first and last kRanksAtEnds
constexpr int kRanksAtEnds = 4;
constexpr std::size_t kGroupsShown = 4;  // of one name
constexpr std::size_t kRunsInFull =
    8;  // of consecutive ranks; a group with more shows the first kRunsAtFront and the last
constexpr std::size_t kRunsAtFront = 3;

std::string kind_of(const Module& module) { return module.is_encoder ? "encoder" : "language"; }

std::vector<int> sizes_of(const Grid& grid) { return vector_of<int>(grid.dims(), &Dim::size); }

// A row that shows a module's dense and expert views side by side, after `first` columns. pp is the same in both.
Row with_views(Row first, const std::vector<int>& dense, const std::vector<int>& expert) {
  for (const std::vector<int>* view : {&dense, &expert})
    for (const int number : *view) first.push_back(std::to_string(number));
  first.pop_back();
  return first;
}

Row header_of_views(Row first, const Module& module) {
  for (const Grid* view : {&module.dense, &module.expert})
    for (const Dim& dim : view->dims()) first.push_back(dim.name);
  first.pop_back();
  return first;
}

std::string table_of_modules(const Topology& topology) {
  std::vector<Row> rows = {header_of_views({"module", "kind", "ranks"}, topology.modules()[0])};
  for (const Module& module : topology.modules())
    rows.push_back(with_views({module.name, kind_of(module), module.dense.span()}, sizes_of(module.dense),
                              sizes_of(module.expert)));
  if (topology.interleaves()) {
    rows[0].push_back("vpp");
    for (std::size_t m = 1; m < rows.size(); ++m) rows[m].push_back(std::to_string(topology.modules()[m - 1].vpp));
  }
  return format_table(rows[0], {rows.begin() + 1, rows.end()});
}

std::string table_of_ranks(const Topology& topology) {
  std::vector<Row> rows;
  for (const Module& module : topology.modules()) {
    const int begin = module.dense.rank_offset(), end = module.dense.end();
    const bool shorten = end - begin > kRanksInFull;
    for (int rank = begin; rank < end; ++rank) {
      if (!shorten || rank < begin + kRanksAtEnds || rank >= end - kRanksAtEnds)
        rows.push_back(
            with_views({std::to_string(rank), module.name}, module.dense.coords(rank), module.expert.coords(rank)));
      else if (rank == begin + kRanksAtEnds)
        rows.push_back({"...", module.name});
    }
  }
  return format_table(header_of_views({"global rank", "module"}, topology.modules()[0]), rows);
}

std::string brief(const std::vector<int>& ranks) {
  std::vector<std::string> runs = split(fold_ranks(ranks), ',');
  if (runs.size() > kRunsInFull) {
    runs[kRunsAtFront] = "..";
    runs.erase(runs.begin() + kRunsAtFront + 1, runs.end() - 1);
  }
  return fmt::format("[{}]", joined(runs, ","));
}

std::string table_of_groups(const std::vector<GroupSpec>& groups) {
  std::vector<Row> rows;
  for (std::size_t first = 0, last = 0; first < groups.size(); first = last) {
    std::vector<std::string> members;
    for (; last < groups.size() && groups[last].name == groups[first].name; ++last)
      if (last - first < kGroupsShown) members.push_back(brief(groups[last].ranks));
    if (last - first > kGroupsShown) members.push_back("...");
    rows.push_back({groups[first].name, fmt::format("{}", last - first), fmt::format("{}", groups[first].ranks.size()),
                    joined(members, " ")});
  }
  return format_table({"group", "count", "size", "ranks"}, rows);
}

Json named_values(const Grid& grid, const std::vector<int>& values) {
  Json json;
  for (std::size_t i = 0; i < values.size(); ++i) json[grid.dims()[i].name] = values[i];
  return json;
}

Json json_of(const Module& module) {
  Json json = {{"name", module.name},
               {"kind", kind_of(module)},
               {"rank_offset", module.dense.rank_offset()},
               {"dense", named_values(module.dense, sizes_of(module.dense))},
               {"expert", named_values(module.expert, sizes_of(module.expert))},
               {"vpp", module.vpp}};
  for (int rank = module.dense.rank_offset(); rank < module.dense.end(); ++rank)
    json["ranks"].push_back({{"global_rank", rank},
                             {"dense", named_values(module.dense, module.dense.coords(rank))},
                             {"expert", named_values(module.expert, module.expert.coords(rank))}});
  return json;
}

Json json_of(const GroupSpec& group) {
  const std::size_t dot = group.name.find('.');
  return {{"module", group.name.substr(0, dot)}, {"key", group.name.substr(dot + 1)}, {"ranks", group.ranks}};
}

// --- the drawing of a schedule

constexpr int kRowHeight = 26, kRowGap = 4, kMargin = 8, kChartWidth = 1200, kTop = 56, kMostRows = 64;
constexpr double kLetterWidth = 7.5;  // upper bound of a label's average width

// Of a module's forwards and gathers, and of its backwards and reductions.
const char* colour_of(int module, bool forward) {
  constexpr const char* kPalette[][2] = {
      {"#2f6fb3", "#7fb3e6"}, {"#c06f14", "#f2b36b"}, {"#2f8f3f", "#8fd08f"}, {"#8a3fa0", "#d39be0"}};
  return kPalette[module % std::size(kPalette)][forward];
}

class Drawing {
 public:
  Drawing(const Schedule& schedule, const Topology& topology, const Play& timeline,
          const std::vector<StageCosts>& costs)
      : schedule_(schedule), topology_(topology), timeline_(timeline), costs_(costs) {
    for (int rank = 0; rank < topology.world_size(); ++rank)
      if (std::string label = label_of(rank); !label.empty()) rows_.emplace_back(rank, std::move(label));
    std::size_t letters = 0;
    for (const auto& [rank, label] : rows_) letters = std::max(letters, label.size());
    left_ = 2 * kMargin + static_cast<int>(kLetterWidth * static_cast<double>(letters));
  }

  std::string svg() {
    const int height = kTop + static_cast<int>(rows_.size()) * (kRowHeight + kRowGap) + 20;
    const std::string head = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
        "<style>text{{font:11px sans-serif;text-anchor:middle;fill:#fff}} .lane,.key{{text-anchor:start;fill:#222}}"
        " .lane{{font-size:12px}}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fafafa\"/>\n",
        left_ + kChartWidth + 2 * kMargin, height);
    double y = kTop;
    for (const auto& [rank, label] : rows_) {
      boxes_ += fmt::format(
          "<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"#ececec\"/>\n"
          "<text class=\"lane\" x=\"{}\" y=\"{:.1f}\">{}</text>\n",
          left_, y, kChartWidth, kRowHeight, kMargin, y + kRowHeight * 0.68, label);
      add_row(rank, y);
      y += kRowHeight + kRowGap;
    }
    return head + legend() + boxes_ + lines_ + "</svg>\n";
  }

 private:
  bool has_row_for_each() const { return topology_.world_size() <= kMostRows; }

  // Empty for a rank without a row. "8 language stages 0, 4 (64 ranks)" for a row that stands for all of a stage.
  std::string label_of(int rank) const {
    if (has_row_for_each()) return fmt::format("{} {}", rank, topology_.coordinates_of(rank));
    std::vector<std::string> stages;
    for (const Module* module : topology_.modules_of(rank)) {
      const Grid& grid = module->dense;
      if (grid.coord(rank, "tp") + grid.coord(rank, "cp") + grid.coord(rank, "dp") > 0) continue;
      const std::vector<int> own = stages_of(*module, rank);
      stages.push_back(fmt::format("{} {} {} ({})", module->name, own.size() > 1 ? "stages" : "stage",
                                   joined(own, ", "), counted(grid.size() / grid.size_of("pp"), "rank")));
    }
    return stages.empty() ? "" : fmt::format("{} {}", rank, joined(stages, " + "));
  }

  std::string words_of(const Op& op) const {
    const std::string& note = costs_[op.stage.module].backward_note;
    const bool forward = op.kind == Op::Forward;
    return fmt::format("{} {}{}", topology_.module(op.stage.module).name, forward ? "forward" : "backward",
                       forward || note.empty() ? "" : fmt::format(" ({})", note));
  }

  // Only colours that this schedule uses: a frozen module has no backward.
  std::string legend() const {
    std::map<std::pair<int, Op::Kind>, std::string> labels;
    for (const auto& ops : schedule_.ranks)
      for (const Op& op : ops)
        if (op.computes()) labels.try_emplace({op.stage.module, op.kind}, words_of(op));
    std::string out;
    int x = left_;
    for (const auto& [key, label] : labels) {
      out += fmt::format(
          "<rect x=\"{}\" y=\"18\" width=\"14\" height=\"14\" fill=\"{}\"/><text class=\"key\" x=\"{}\" "
          "y=\"30\">{}</text>\n",
          x, colour_of(key.first, key.second == Op::Forward), x + 20, label);
      x += 34 + static_cast<int>(kLetterWidth * static_cast<double>(label.size()));
    }
    std::vector<std::string> notes;
    if (!has_row_for_each())
      notes.push_back("each lane stands for all ranks of a stage, which do the same at the same time");
    if (!lines_.empty())
      notes.push_back("a line under a lane shows when parameters may be gathered or gradients reduced");
    if (topology_.interleaves()) notes.push_back("the later stages of a rank are drawn paler");
    if (!notes.empty())
      out += fmt::format("<text class=\"key\" x=\"{}\" y=\"48\">{}</text>\n", kMargin, joined(notes, "; "));
    return out;
  }

  // Boxes at `y`, and lines below them.
  void add_row(int rank, double y) {
    const std::vector<Op>& ops = schedule_.ranks[rank];
    const std::vector<OpSpan>& spans = timeline_.ranks[rank];
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].computes()) add_box(rank, ops[i], spans[i], y);
      if (!ops[i].starts_collective()) continue;
      const auto end = std::ranges::find_if(ops, [&](const Op& op) { return op.ends(ops[i]); });
      add_line(rank, ops[i], spans[i].begin, spans[end - ops.begin()].end, y);
    }
  }

  double pixels(double time) const { return time * (kChartWidth / timeline_.end); }

  void add_box(int rank, const Op& op, const OpSpan& span, double y) {
    const Module& module = topology_.module(op.stage.module);
    const double x = left_ + pixels(span.begin), width = pixels(span.end - span.begin);
    // Later stages of the same rank and module are paler.
    const double opacity = 1 - 0.5 * (op.stage.index / module.dense.size_of("pp")) / module.vpp;
    boxes_ += fmt::format(
        "<g><title>rank {}: {}, stage {}, microbatch {}, {:.1f} to {:.1f}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" "
        "width=\"{:.1f}\" height=\"{}\" fill=\"{}\" fill-opacity=\"{:.2f}\"/>",
        rank, words_of(op), op.stage.index, op.microbatch, span.begin, span.end, x, y, std::max(width - 0.8, 0.5),
        kRowHeight, colour_of(op.stage.module, op.kind == Op::Forward), opacity);
    if (width >= 9)
      boxes_ +=
          fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x + width / 2, y + kRowHeight * 0.68, op.microbatch);
    boxes_ += "</g>\n";
  }

  // While a gather or reduction may run: from its start to the op that awaits it.
  void add_line(int rank, const Op& start, double from, double to, double y) {
    if (to <= from) return;
    const bool gathers = start.kind == Op::StartGather;
    lines_ += fmt::format(
        "<rect class=\"beside\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"3\" fill=\"{}\"><title>rank {}: {} "
        "of {}, stage {}, between {:.1f} and {:.1f}</title></rect>\n",
        left_ + pixels(from), y + kRowHeight, pixels(to - from), colour_of(start.stage.module, gathers), rank,
        gathers ? "gather of the parameters" : "reduction of the gradients", topology_.module(start.stage.module).name,
        start.stage.index, from, to);
  }

  const Schedule& schedule_;
  const Topology& topology_;
  const Play& timeline_;
  const std::vector<StageCosts>& costs_;
  std::vector<std::pair<int, std::string>> rows_;  // each with its rank and label
  int left_ = 0;                                   // of the boxes, in pixels
  std::string boxes_, lines_;
};

}  // namespace

std::string topology_line(const Topology& topology) {
  std::vector<std::string> modules;
  for (const Module& module : topology.modules()) {
    std::vector<std::string> sizes;
    for (const Dim& dim : module.dense.dims())
      if (dim.size > 1) sizes.push_back(fmt::format("{} {}", dim.name, dim.size));
    if (module.vpp > 1) sizes.push_back(fmt::format("vpp {}", module.vpp));
    modules.push_back(fmt::format("{} on {} ({})", module.name, module.dense.span(),
                                  sizes.empty() ? "not split" : joined(sizes, ", ")));
  }
  return joined(modules, ", ");
}

std::string show_topology(const Topology& topology) {
  std::string text =
      fmt::format("world of {}, {}{}\n\n{}\n{}\ngroups in creation order\n{}", counted(topology.world_size(), "rank"),
                  counted(std::ssize(topology.modules()), "module"), topology.colocated() ? ", colocated" : "",
                  table_of_modules(topology), table_of_ranks(topology), table_of_groups(topology.groups()));
  const std::vector<GroupSpec> channels = make_channel_groups(topology);
  if (channels.empty()) return text;
  return text + "\nchannels from stage to stage, created after them\n" + table_of_groups(channels);
}

void check_rank(const Topology& topology, int global_rank) {
  if (global_rank < 0 || global_rank >= topology.world_size())
    throw ConfigError({fmt::format("rank {} is out of range: the world has {} (0-{})", global_rank,
                                   counted(topology.world_size(), "rank"), topology.world_size() - 1),
                       "", fmt::format("give a rank from 0 to {}", topology.world_size() - 1)});
}

std::string show_rank(const Topology& topology, int global_rank) {
  check_rank(topology, global_rank);
  std::vector<Row> coordinates, groups;
  for (const Module* module : topology.modules_of(global_rank)) {
    coordinates.push_back({module->name, "dense", module->dense.coordinates_of(global_rank)});
    coordinates.push_back({module->name, "expert", module->expert.coordinates_of(global_rank)});
  }
  std::vector<GroupSpec> specs = topology.groups();
  for (GroupSpec& channel : make_channel_groups(topology)) specs.push_back(std::move(channel));
  for (const auto& [name, ranks, on_host, connected] : specs) {
    const auto self = std::lower_bound(ranks.begin(), ranks.end(), global_rank);
    if (self == ranks.end() || *self != global_rank) continue;
    groups.push_back(
        {name, fmt::format("{}", self - ranks.begin()), fmt::format("{}", ranks.size()), fold_ranks(ranks)});
  }
  return fmt::format("global rank {} of {}\n\n{}\n{}", global_rank, topology.world_size(),
                     format_table({"module", "view", "coordinates"}, coordinates),
                     format_table({"group", "index", "size", "ranks"}, groups));
}

std::string topology_json(const Topology& topology) {
  Json json = {{"world_size", topology.world_size()}, {"colocated", topology.colocated()}};
  for (const Module& module : topology.modules()) json["modules"].push_back(json_of(module));
  for (const GroupSpec& group : topology.groups()) json["groups"].push_back(json_of(group));
  json["channels"] = vector_of<Json>(make_channel_groups(topology), [](const auto& group) { return json_of(group); });
  return json.dump();
}

std::vector<StageCosts> stage_costs(const Topology& topology, const std::vector<std::string>& frozen) {
  std::vector<StageCosts> costs;
  for (const Module& module : topology.modules()) {
    StageCosts& cost = costs.emplace_back();
    if (module.is_encoder && contains(frozen, module.name + ".encoder"))
      cost = {.backward = 0.25, .backward_note = "projector only"};
    else if (!module.is_encoder && contains(frozen, module.name))
      cost = {.backward = 1, .backward_note = "inputs only"};
  }
  return costs;
}

Play make_timeline(const Schedule& schedule, const Topology& topology, const std::vector<StageCosts>& costs) {
  BRAID_CHECK_EQ(costs.size(), topology.modules().size(), "costs of every module");
  const auto duration = [&](int, const Op& op) {
    if (!op.computes()) return 0.0;
    const int module = op.stage.module;
    return (op.kind == Op::Forward ? costs[module].forward : costs[module].backward) / topology.modules()[module].vpp;
  };
  Play timeline = play(schedule, topology, {.duration = duration});
  BRAID_CHECK(timeline.stuck.empty(), "{}", joined(timeline.stuck, "; "));
  return timeline;
}

std::string draw_svg(const Schedule& schedule, const Topology& topology, const Play& timeline,
                     const std::vector<StageCosts>& costs) {
  return Drawing(schedule, topology, timeline, costs).svg();
}

}  // namespace braid
