#include "plan/timeline.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

// --- drawing

constexpr int kLaneHeight = 26, kLaneGap = 4, kMargin = 8, kChartWidth = 1200, kTop = 56, kMostLanes = 64;
constexpr double kLetterWidth = 7.5;  // upper bound of a label's average width

// Of a module's forwards and gathers, and of its backwards and reductions.
const char* colour_of(int module, bool forward) {
  constexpr const char* kPalette[][2] = {
      {"#2f6fb3", "#7fb3e6"}, {"#c06f14", "#f2b36b"}, {"#2f8f3f", "#8fd08f"}, {"#8a3fa0", "#d39be0"}};
  return kPalette[module % std::size(kPalette)][forward];
}

struct Lane {
  int rank;
  std::string label;
};

bool is_first_of_stage(const Module& module, int rank) {
  const Grid& grid = module.dense;
  return grid.coord(rank, "tp") == 0 && grid.coord(rank, "cp") == 0 && grid.coord(rank, "dp") == 0;
}

// "8 language stage 0 (64 ranks)" for a lane that shows all ranks of a stage; with interleaving "stages 0, 4".
std::string label_of_stages(const Topology& topology, int rank) {
  std::vector<std::string> stages;
  for (const Module* module : topology.modules_of(rank)) {
    if (!is_first_of_stage(*module, rank)) continue;
    const std::vector<int> own = stages_of(*module, rank);
    stages.push_back(fmt::format("{} {} {} ({})", module->name, own.size() > 1 ? "stages" : "stage", joined(own, ", "),
                                 counted(module->dense.size() / module->dense.size_of("pp"), "rank")));
  }
  return stages.empty() ? "" : fmt::format("{} {}", rank, joined(stages, " + "));
}

bool has_lane_for_each(const Topology& topology) { return topology.world_size() <= kMostLanes; }

std::vector<Lane> lanes_of(const Topology& topology) {
  std::vector<Lane> lanes;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    std::string label = has_lane_for_each(topology) ? fmt::format("{} {}", rank, topology.coordinates_of(rank))
                                                    : label_of_stages(topology, rank);
    if (!label.empty()) lanes.push_back({rank, std::move(label)});
  }
  return lanes;
}

int label_width(const std::vector<Lane>& lanes) {
  std::size_t letters = 0;
  for (const Lane& lane : lanes) letters = std::max(letters, lane.label.size());
  return 2 * kMargin + static_cast<int>(kLetterWidth * static_cast<double>(letters));
}

std::string words_of(const Op& op, const Topology& topology, const std::vector<StageCosts>& costs) {
  const int module = op.stage.module;
  const std::string& note = costs[module].backward_note;
  const bool forward = op.kind == Op::Forward;
  return fmt::format("{} {}{}", topology.modules()[module].name, forward ? "forward" : "backward",
                     forward || note.empty() ? "" : fmt::format(" ({})", note));
}

// Only colours that this schedule uses: a frozen module has no backward.
std::string legend(const Schedule& schedule, const Topology& topology, const std::vector<StageCosts>& costs, int x,
                   bool has_lines) {
  std::map<std::pair<int, Op::Kind>, std::string> labels;
  for (const auto& ops : schedule.ranks)
    for (const Op& op : ops)
      if (op.computes()) labels.try_emplace({op.stage.module, op.kind}, words_of(op, topology, costs));
  std::string out;
  for (const auto& [key, label] : labels) {
    out += fmt::format(
        "<rect x=\"{}\" y=\"18\" width=\"14\" height=\"14\" fill=\"{}\"/><text class=\"key\" x=\"{}\" "
        "y=\"30\">{}</text>\n",
        x, colour_of(key.first, key.second == Op::Forward), x + 20, label);
    x += 34 + static_cast<int>(kLetterWidth * static_cast<double>(label.size()));
  }
  std::vector<std::string> notes;
  if (!has_lane_for_each(topology))
    notes.push_back("each lane stands for all ranks of a stage, which do the same at the same time");
  if (has_lines) notes.push_back("a line under a lane shows when parameters may be gathered or gradients reduced");
  if (topology.interleaves()) notes.push_back("the later stages of a rank are drawn paler");
  if (!notes.empty())
    out += fmt::format("<text class=\"key\" x=\"{}\" y=\"48\">{}</text>\n", kMargin, joined(notes, "; "));
  return out;
}

// Draws the ops of a rank's lane at `y`: boxes, and below them lines.
struct LaneDrawing {
  const Schedule& schedule;
  const Topology& topology;
  const Play& timeline;
  const std::vector<StageCosts>& costs;
  double left;  // in pixels
  std::string boxes{}, lines{};

  void add(int rank, double y) {
    const std::vector<Op>& ops = schedule.ranks[rank];
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].computes()) add_box(rank, ops[i], timeline.ranks[rank][i], y);
      if (!ops[i].starts_collective()) continue;
      const auto end = std::ranges::find_if(ops, [&](const Op& op) { return op.ends(ops[i]); });
      add_line(rank, ops[i], timeline.ranks[rank][i].begin, timeline.ranks[rank][end - ops.begin()].end, y);
    }
  }

 private:
  double unit() const { return kChartWidth / timeline.end; }  // pixels per unit of time

  // Later stages of the same rank and module are paler.
  double opacity_of(const Stage& stage) const {
    const Module& module = topology.module(stage.module);
    return 1 - 0.5 * (stage.index / module.dense.size_of("pp")) / module.vpp;
  }

  void add_box(int rank, const Op& op, const OpSpan& span, double y) {
    const double x = left + span.begin * unit(), width = (span.end - span.begin) * unit();
    boxes += fmt::format(
        "<g><title>rank {}: {}, stage {}, microbatch {}, {:.1f} to {:.1f}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" "
        "width=\"{:.1f}\" height=\"{}\" fill=\"{}\" fill-opacity=\"{:.2f}\"/>",
        rank, words_of(op, topology, costs), op.stage.index, op.microbatch, span.begin, span.end, x, y,
        std::max(width - 0.8, 0.5), kLaneHeight, colour_of(op.stage.module, op.kind == Op::Forward),
        opacity_of(op.stage));
    if (width >= 9)
      boxes += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x + width / 2, y + kLaneHeight * 0.68,
                           op.microbatch);
    boxes += "</g>\n";
  }

  // While a gather or reduction may run: from its start to the op that awaits it.
  void add_line(int rank, const Op& start, double from, double to, double y) {
    if (to <= from) return;
    const bool gathers = start.kind == Op::StartGather;
    lines += fmt::format(
        "<rect class=\"beside\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"3\" fill=\"{}\"><title>rank {}: {} "
        "of {}, stage {}, between {:.1f} and {:.1f}</title></rect>\n",
        left + from * unit(), y + kLaneHeight, (to - from) * unit(), colour_of(start.stage.module, gathers), rank,
        gathers ? "gather of the parameters" : "reduction of the gradients", topology.module(start.stage.module).name,
        start.stage.index, from, to);
  }
};

}  // namespace

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
  const std::vector<Lane> lanes = lanes_of(topology);
  const int left = label_width(lanes), height = kTop + static_cast<int>(lanes.size()) * (kLaneHeight + kLaneGap) + 20;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<style>text{{font:11px sans-serif;text-anchor:middle;fill:#fff}} .lane,.key{{text-anchor:start;fill:#222}}"
      " .lane{{font-size:12px}}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fafafa\"/>\n",
      left + kChartWidth + 2 * kMargin, height);
  LaneDrawing drawing = {schedule, topology, timeline, costs, double(left)};
  double y = kTop;
  for (const Lane& lane : lanes) {
    drawing.boxes += fmt::format(
        "<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"#ececec\"/>\n"
        "<text class=\"lane\" x=\"{}\" y=\"{:.1f}\">{}</text>\n",
        left, y, kChartWidth, kLaneHeight, kMargin, y + kLaneHeight * 0.68, lane.label);
    drawing.add(lane.rank, y);
    y += kLaneHeight + kLaneGap;
  }
  return svg + legend(schedule, topology, costs, left, !drawing.lines.empty()) + drawing.boxes + drawing.lines +
         "</svg>\n";
}

}  // namespace braid
