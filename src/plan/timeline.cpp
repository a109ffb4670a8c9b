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

struct Colours {
  const char *forward, *backward;
};
constexpr Colours kPalette[] = {
    {"#7fb3e6", "#2f6fb3"}, {"#f2b36b", "#c06f14"}, {"#8fd08f", "#2f8f3f"}, {"#d39be0", "#8a3fa0"}};

const Colours& colours_of(std::size_t module) { return kPalette[module % std::size(kPalette)]; }

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
    const int pp = module->dense.size_of("pp");
    std::vector<int> own;
    for (int stage = module->dense.coord(rank, "pp"); stage < stage_count(*module); stage += pp) own.push_back(stage);
    stages.push_back(fmt::format("{} {} {} ({})", module->name, own.size() > 1 ? "stages" : "stage", joined(own, ", "),
                                 counted(module->dense.size() / pp, "rank")));
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

struct Fill {
  const char* colour;
  double opacity;
};

// Later stages of the same rank and module are paler.
double opacity_of(const Stage& stage, const Topology& topology) {
  const Module& module = topology.module(stage.module);
  return 1 - 0.5 * (stage.index / module.dense.size_of("pp")) / module.vpp;
}

std::string box(double x, double y, double width, const Fill& fill, int microbatch, const std::string& title) {
  std::string text;
  if (width >= 9)
    text = fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x + width / 2, y + kLaneHeight * 0.68, microbatch);
  return fmt::format(
      "<g><title>{}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\" "
      "fill-opacity=\"{:.2f}\"/>{}</g>\n",
      title, x, y, std::max(width - 0.8, 0.5), kLaneHeight, fill.colour, fill.opacity, text);
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
    const Colours& colours = colours_of(key.first);
    out += fmt::format(
        "<rect x=\"{}\" y=\"18\" width=\"14\" height=\"14\" fill=\"{}\"/><text class=\"key\" x=\"{}\" "
        "y=\"30\">{}</text>\n",
        x, key.second == Op::Forward ? colours.forward : colours.backward, x + 20, label);
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

// A line at the bottom of a lane, while a gather or reduction may run: from its start to the op that awaits it.
std::string line(double x, double y, double width, const char* colour, const std::string& title) {
  return fmt::format(
      "<rect class=\"beside\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"3\" "
      "fill=\"{}\"><title>{}</title></rect>\n",
      x, y + kLaneHeight, width, colour, title);
}

// The scale of a lane's boxes.
struct Chart {
  double left, unit;  // pixels, and pixels per unit of time
};

std::string boxes(const Schedule& schedule, const Topology& topology, const Play& timeline,
                  const std::vector<StageCosts>& costs, const Chart& chart, int rank, double y) {
  const auto& ops = schedule.ranks[rank];
  const auto& spans = timeline.ranks[rank];
  std::string out;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!ops[i].computes()) continue;
    const Colours& colours = colours_of(ops[i].stage.module);
    const std::string title =
        fmt::format("rank {}: {}, stage {}, microbatch {}, {:.1f} to {:.1f}", rank, words_of(ops[i], topology, costs),
                    ops[i].stage.index, ops[i].microbatch, spans[i].begin, spans[i].end);
    out += box(chart.left + spans[i].begin * chart.unit, y, (spans[i].end - spans[i].begin) * chart.unit,
               {ops[i].kind == Op::Forward ? colours.forward : colours.backward, opacity_of(ops[i].stage, topology)},
               ops[i].microbatch, title);
  }
  return out;
}

std::string lines(const Schedule& schedule, const Topology& topology, const Play& timeline, const Chart& chart,
                  int rank, double y) {
  const auto& ops = schedule.ranks[rank];
  const auto& spans = timeline.ranks[rank];
  std::string out;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!ops[i].starts_collective()) continue;
    const bool gathers = ops[i].kind == Op::StartGather;
    const auto is_end = [&](const Op& op) {
      return op.kind == (gathers ? Op::EndGather : Op::EndReduce) && op.stage == ops[i].stage;
    };
    const auto end = static_cast<std::size_t>(std::find_if(ops.begin(), ops.end(), is_end) - ops.begin());
    const double from = spans[i].begin, to = spans[end].end;
    if (to <= from) continue;
    const int module = ops[i].stage.module;
    out += line(chart.left + from * chart.unit, y, (to - from) * chart.unit,
                gathers ? colours_of(module).forward : colours_of(module).backward,
                fmt::format("rank {}: {} of {}, stage {}, between {:.1f} and {:.1f}", rank,
                            gathers ? "gather of the parameters" : "reduction of the gradients",
                            topology.modules()[module].name, ops[i].stage.index, from, to));
  }
  return out;
}

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
  std::string chart_svg, all_lines;
  double y = kTop;
  for (const Lane& lane : lanes) {
    chart_svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"#ececec\"/>\n", left, y,
                             kChartWidth, kLaneHeight);
    chart_svg += fmt::format("<text class=\"lane\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", kMargin, y + kLaneHeight * 0.68,
                             lane.label);
    const Chart chart = {static_cast<double>(left), kChartWidth / timeline.end};
    chart_svg += boxes(schedule, topology, timeline, costs, chart, lane.rank, y);
    all_lines += lines(schedule, topology, timeline, chart, lane.rank, y);
    y += kLaneHeight + kLaneGap;
  }
  return svg + legend(schedule, topology, costs, left, !all_lines.empty()) + chart_svg + all_lines + "</svg>\n";
}

}  // namespace braid
