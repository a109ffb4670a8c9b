#include "plan/shared_rank_program.h"

namespace braid {

SharedRankProgram::SharedRankProgram(const Topology& topology, const ScheduleOptions& options,
                                     const std::vector<Edge>& edges, int rank, const std::vector<Round>& language)
    : topology_(topology),
      options_(options),
      language_(language),
      first_{static_cast<int>(&topology.language() - topology.modules().data()), 0},
      program_(topology, options, edges, rank) {
  for (const Stage& stage : stages_of(topology, rank))
    if (stage.module != first_.module) encoders_.push_back(stage);
}

std::vector<Op> SharedRankProgram::write() {
  is_pipelined(topology_) ? write_by_module() : write_by_microbatch();
  return program_.take();
}

void SharedRankProgram::write_by_microbatch() {
  for (int mb = 0; mb < options_.microbatches; ++mb) {
    encode(mb);
    cross(mb);
    program_.run({{first_forward(mb)}}, RankProgram::InsideModules);
    if (options_.forward_only) continue;
    program_.run({{last_backward(mb)}}, RankProgram::InsideModules);
    cross_back(mb);
    program_.reduce_finished({last_backward(mb)});
    encode_back(mb);
  }
}

void SharedRankProgram::write_by_module() {
  for (int mb = 0; mb < options_.microbatches; ++mb) encode(mb);
  for (int mb = 0; mb < options_.microbatches; ++mb) cross(mb);
  program_.run(language_, RankProgram::InsideModules);
  for (int mb = 0; mb < options_.microbatches; ++mb) cross_back(mb);
  for (const Round& round : language_) program_.reduce_finished(round);
  for (int mb = 0; mb < options_.microbatches; ++mb) encode_back(mb);
}

void SharedRankProgram::encode(int microbatch) {
  for (const Stage& stage : encoders_) program_.run({{{Op::Forward, stage, microbatch}}}, RankProgram::InsideModules);
}

void SharedRankProgram::encode_back(int microbatch) {
  for (const Stage& stage : encoders_) {
    if (!is_trained(topology_, options_, stage)) continue;
    program_.run({{{Op::Backward, stage, microbatch}}}, RankProgram::InsideModules);
    program_.reduce_finished({{Op::Backward, stage, microbatch}});
  }
}

void SharedRankProgram::cross(int microbatch) {
  std::vector<Transfer> all = program_.inputs_of({first_forward(microbatch)}, RankProgram::BetweenModules);
  for (const Stage& stage : encoders_)
    for (const Transfer& t : program_.outputs_of({{Op::Forward, stage, microbatch}}, RankProgram::BetweenModules))
      all.push_back(t);
  program_.exchange(all);
}

void SharedRankProgram::cross_back(int microbatch) {
  std::vector<Transfer> all = program_.outputs_of({last_backward(microbatch)}, RankProgram::BetweenModules);
  for (const Stage& stage : encoders_)
    for (const Transfer& t : program_.inputs_of({{Op::Backward, stage, microbatch}}, RankProgram::BetweenModules))
      all.push_back(t);
  program_.exchange(all);
}

}  // namespace braid
