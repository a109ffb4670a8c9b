// What every rank communicates in a training step equals the count on paper: of every group and operation, the number
// of operations and the bytes. Only of the experts' rows the bytes are compared as a sum over the ranks that share the
// experts, because the routing decides who sends how many.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "comm/world.h"
#include "ops/cross_entropy.h"
#include "plan/schedule.h"
#include "run/step_sizes.h"
#include "support/ranks.h"
#include "train/training_run.h"

namespace braid {
namespace {

using testing::mixed_data;
using testing::small_llava;
using testing::small_omni;
using testing::topology_of;

using Layout = testing::TrainingLayout;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Steps of two microbatches.
struct Case {
  Layout layout;
  std::vector<std::string> recompute;
  std::function<void(TrainingConfig&)> change;

  Case(
      const Layout& layout, std::vector<std::string> recompute = {},
      std::function<void(TrainingConfig&)> change = [](TrainingConfig&) {})
      : layout(layout), recompute(std::move(recompute)), change(std::move(change)) {
    this->layout.global_batch = 2 * layout.micro_batch * layout.language.dp;
  }

  TrainingConfig config() const {
    TrainingConfig config = testing::config_of(layout);
    config.model.recompute = recompute_config(recompute);
    change(config);
    return config;
  }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.layout;
  for (const std::string& part : c.recompute) out << " recompute " << part;
  return out;
}

// Most samples have media.
testing::MakeData make_data() {
  MockDataConfig config = mixed_data();
  for (MockMediaConfig& media : config.media) media.share = 0.8;
  return testing::mock(config);
}

// --- the paper

StepSizes sizes_of_step(int step, const SampleSource& data, const Layout& layout, const Topology& topology) {
  const Grid& language = topology.language().dense;
  const int cp = language.size_of("cp"), replicas = language.size_of("dp"), samples = replicas * layout.micro_batch;
  StepSizes sizes;
  sizes.media.resize(topology.modules().size());
  sizes.value_bytes.assign(topology.modules().size(), sizeof(double));
  for (int first = step * layout.global_batch; first < (step + 1) * layout.global_batch; first += samples) {
    auto& texts = sizes.text.emplace_back();
    for (int replica = 0; replica < replicas; ++replica) {
      std::vector<at::Tensor> labels;
      for (int s = 0; s < layout.micro_batch; ++s)
        labels.push_back(data.tokens(first + replica * layout.micro_batch + s).labels);
      const at::Tensor all = at::cat(labels);
      StepSizes::Text& text = texts.emplace_back(StepSizes::Text{all.size(0), layout.micro_batch});
      for (const at::Tensor& share : all.chunk(cp))
        text.labels.push_back((share != kIgnoredLabel).sum().item<std::int64_t>());
    }
    for (std::size_t m = 0; m < topology.modules().size(); ++m) {
      auto& of_samples = sizes.media[m].emplace_back();
      for (int s = 0; s < samples; ++s) {
        StepSizes::Extents& extents = of_samples.emplace_back();
        for (const MediaItem& item : data.media(topology.modules()[m].name, first + s)) extents.push_back(item.extent);
      }
    }
  }
  return sizes;
}

ScheduleOptions schedule_options(const Case& c, const Topology& topology) {
  const TrainingConfig config = c.config();
  ScheduleOptions options = braid::schedule_options(
      topology, c.layout.frozen,
      microbatches_of({.micro_batch = c.layout.micro_batch, .global_batch = c.layout.global_batch}, topology),
      config.prefetch);
  options.overlap_reduce = config.optimizer.overlap_grad_reduce;
  options.overlap_gather = config.optimizer.overlap_param_gather;
  return options;
}

std::vector<TrafficTable> on_paper(int step, const Case& c, const Topology& topology) {
  const TrainingConfig config = c.config();
  const StepSetup setup = {.model = c.layout.provider(),
                           .optimizer = config.optimizer,
                           .frozen = c.layout.frozen,
                           .layers = {.element_bytes = static_cast<std::int64_t>(c10::elementSize(c.layout.dtype)),
                                      .sequence_parallel = c.layout.sp,
                                      .recompute = config.model.recompute,
                                      .overlap = config.model.overlap},
                           .micro_batch = c.layout.micro_batch};
  const auto data = make_data()(setup.model, topology);
  const StepSizes sizes = sizes_of_step(step, *data, c.layout, topology),
                  next = sizes_of_step(step + 1, *data, c.layout, topology);
  const StepPlan plan(topology, schedule_options(c, topology));
  std::vector<TrafficTable> tables;
  for (int rank = 0; rank < topology.world_size(); ++rank)
    tables.push_back(step_traffic(setup, topology, plan, sizes, next, rank));
  return tables;
}

// --- the run

TrafficTable difference(const TrafficTable& before, const TrafficTable& after) {
  TrafficTable result;
  for (const auto& [key, traffic] : after) {
    const auto old = before.find(key);
    const Traffic since = old == before.end()
                              ? traffic
                              : Traffic{traffic.operations - old->second.operations, traffic.bytes - old->second.bytes};
    if (since.operations > 0) result[key] = since;
  }
  return result;
}

// Of the second step: the first one also agrees on the sizes of its own batches, and gathers no parameters.
std::vector<TrafficTable> of_second_step(const Case& c, const Topology& topology) {
  std::vector<std::vector<TrafficTable>> seen(index(topology.world_size()));  // by rank: before each step
  const testing::TrainingOptions options = {.steps = 3,
                                            .data = make_data(),
                                            .change = [&](TrainingConfig& config) { config = c.config(); },
                                            .before_step =
                                                [&](Training& training) {
                                                  World& world = training.model().world();
                                                  seen[index(world.rank())].push_back(world.progress().traffic());
                                                }};
  testing::on_threads(
      topology.world_size(), [&](World& world) { testing::train_on(world, c.layout, topology, options); },
      ThreadSemantics::OneQueue);
  std::vector<TrafficTable> tables;
  for (const auto& of_rank : seen) tables.push_back(difference(of_rank[1], of_rank[2]));
  return tables;
}

// --- the comparison

bool carries_routed_rows(const TrafficTable::key_type& key) {
  return (key.first == "language.ep" || key.first == "language.expt_tp") && key.second == "all_to_all";
}

Traffic find(const TrafficTable& table, const TrafficTable::key_type& key) {
  const auto found = table.find(key);
  return found == table.end() ? Traffic{} : found->second;
}

std::int64_t sum_of_bytes(const std::vector<TrafficTable>& tables, const TrafficTable::key_type& key,
                          const std::vector<int>& ranks) {
  std::int64_t sum = 0;
  for (const int rank : ranks) sum += find(tables[index(rank)], key).bytes;
  return sum;
}

void expect_equal(const std::vector<TrafficTable>& run, const std::vector<TrafficTable>& paper,
                  const Topology& topology) {
  std::set<TrafficTable::key_type> keys;
  for (const auto* tables : {&run, &paper})
    for (const TrafficTable& table : *tables)
      for (const auto& entry : table) keys.insert(entry.first);
  EXPECT_FALSE(keys.empty() && topology.world_size() > 1);
  for (const auto& key : keys) {
    SCOPED_TRACE(key.second + " on " + key.first);
    for (std::size_t rank = 0; rank < run.size(); ++rank) {
      const Traffic in_run = find(run[rank], key), on_paper = find(paper[rank], key);
      EXPECT_EQ(in_run.operations, on_paper.operations) << "operations of rank " << rank;
      if (!carries_routed_rows(key)) EXPECT_EQ(in_run.bytes, on_paper.bytes) << "bytes of rank " << rank;
    }
    if (carries_routed_rows(key))
      for (const std::vector<int>& ranks : topology.language().expert.groups({"ep", "expt_tp"}))
        EXPECT_EQ(sum_of_bytes(run, key, ranks), sum_of_bytes(paper, key, ranks))
            << "bytes of the ranks from " << ranks[0] << " on";
  }
}

class StepTraffic : public ::testing::TestWithParam<Case> {};

TEST_P(StepTraffic, EqualsThePaper) {
  const Topology topology = topology_of(GetParam().layout);
  expect_equal(of_second_step(GetParam(), topology), on_paper(1, GetParam(), topology), topology);
}

Provider tied_llava() {
  Provider provider = small_llava();
  std::get<LlamaConfig>(provider.language).tie_embeddings = true;
  return provider;
}

Provider no_shared_expert() {
  Provider provider = testing::small_vlm();
  auto& language = std::get<HybridLmConfig>(provider.language);
  language.shared_ffn = 0;
  language.aux_loss_coeff = 0;
  return provider;
}

const std::vector<std::string> kImages = {"images.encoder", "images.projector"};

INSTANTIATE_TEST_SUITE_P(
    Threads, StepTraffic,
    ::testing::Values(
        // tensor, sequence and context parallel
        Case{{.language = {.tp = 2}}}, Case{{.language = {.tp = 2}, .sp = true}}, Case{{.language = {.cp = 2}}},
        Case{{.language = {.tp = 2, .cp = 2}, .sp = true, .dtype = at::kFloat}},
        Case{{.language = {.tp = 4, .cp = 4}, .sp = true}},  // ranks share kv heads and groups
        // experts
        Case{{.language = {.dp = 2, .ep = 2}, .micro_batch = 2}},
        Case{{.language = {.tp = 2, .dp = 2, .ep = 4}, .sp = true}},
        Case{{.language = {.tp = 2, .dp = 2, .ep = 2, .expt_tp = 2}}},
        Case{{.language = {.tp = 2, .dp = 2, .expt_tp = 2}, .sp = true}},
        Case{{.language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true, .provider = no_shared_expert}},
        // stages
        Case{{.language = {.pp = 4}}}, Case{{.language = {.tp = 2, .pp = 2}, .sp = true}},
        Case{{.language = {.dp = 2, .pp = 2, .vpp = 2}, .overlap = true, .gather_overlap = true}},
        Case{{.images = {.tp = 2, .dp = 2, .pp = 2}, .language = {.tp = 2, .dp = 2, .pp = 2}, .sp = true}},
        Case{{.images = {.dp = 2}, .language = {.dp = 2}}, {}, [](TrainingConfig& config) { config.prefetch = 2; }},
        // more and fewer encoder replicas; two encoders; all on the same ranks
        Case{{.images = {.dp = 4}, .language = {.tp = 2, .dp = 2}, .micro_batch = 2, .overlap = true}},
        Case{{.images = {.dp = 2}, .audio = {.tp = 2, .pp = 2}, .language = {.dp = 4}, .provider = small_omni}},
        Case{{.images = {.tp = 2, .dp = 2},
              .audio = {.dp = 2, .pp = 2},
              .language = {.cp = 2, .pp = 2},
              .colocated = true,
              .micro_batch = 4,
              .provider = small_omni}},
        Case{{.images = {.tp = 2}, .language = {.dp = 2}, .colocated = true}},
        Case{{.images = {.dp = 2}, .language = {.pp = 2, .vpp = 2}, .colocated = true, .micro_batch = 2}},
        // another family
        Case{{.images = {.tp = 2}, .language = {.tp = 2, .cp = 2}, .sp = true, .provider = small_llava}, {"full"}},
        Case{{.images = {.dp = 2},
              .language = {.tp = 2, .dp = 2},
              .sp = true,
              .micro_batch = 2,
              .provider = tied_llava}},
        // gradients and parameters
        Case{{.images = {.dp = 2}, .language = {.tp = 2, .dp = 2}, .zero = false}},
        Case{{.images = {.dp = 2}, .language = {.cp = 2, .dp = 2}, .overlap = true, .gather_overlap = true}},
        Case{{.images = {.dp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true, .dtype = at::kBFloat16},
             {},
             [](TrainingConfig& config) {
               config.optimizer.bucket_size = 3000;
               config.optimizer.pad_buckets = true;
             }},
        // frozen parts
        Case{{.images = {.tp = 2}, .language = {.tp = 2, .dp = 2}, .sp = true, .frozen = kImages}},
        Case{{.images = {.tp = 2, .pp = 2}, .language = {.tp = 2}, .frozen = {"images.encoder"}}, {"full"}},
        Case{{.images = {.tp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true, .frozen = {"language"}},
             {"norms", "experts"}},
        Case{{.images = {.dp = 2, .pp = 2},
              .audio = {.tp = 2, .dp = 2},
              .language = {.tp = 2, .pp = 2},
              .colocated = true,
              .micro_batch = 4,
              .frozen = {"images.encoder", "images.projector", "audio.projector"},
              .provider = small_omni}},
        // what backward computes again
        Case{{.language = {.tp = 2, .cp = 2, .dp = 2, .ep = 4}, .sp = true}, {"full"}},
        Case{{.language = {.tp = 2, .cp = 2, .ep = 2}, .sp = true}, {"norms", "activations", "mamba"}},
        Case{{.language = {.tp = 2, .dp = 2, .ep = 2, .expt_tp = 2}, .sp = true}, {"experts"}},
        Case{{.images = {.tp = 2}, .language = {.tp = 2, .ep = 2}}, {"vision"}},
        // in pieces
        Case{{.language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true, .pieces = {.tp_pieces = 3, .expert_pieces = 2}},
             {"norms", "experts"}},
        Case{{.language = {.tp = 2, .dp = 2, .ep = 2, .expt_tp = 2},
              .sp = true,
              .pieces = {.tp_pieces = 2, .expert_pieces = 2}},
             {"full"}}));

}  // namespace
}  // namespace braid
