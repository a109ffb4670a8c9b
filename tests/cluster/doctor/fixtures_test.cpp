// Logs of jobs that died, and what `braid doctor` must say about them. Those of torchrun, Gloo and Braid are of real
// runs, shortened; those of NCCL, GPUs and most of Slurm follow documented formats. To add one: a file NAME.log (or a
// folder NAME) in fixtures/, and a line here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/utf8.h"
#include "cluster/doctor/report.h"
#include "cluster/lines/log_source.h"
#include "support/programs.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr int kNone = -1;  // the log does not say which rank

struct Expected {
  std::string cause;
  int first_rank = kNone;
  std::string host{};
  bool any_rank = false, any_host = false;  // not told by slurm_expected.json
};

const std::map<std::string, Expected> kOwn = {
    // Real: torchrun with Gloo
    {"caught_then_assert", {"python-error", 2, "a12"}},
    {"chained_direct", {"python-error", 1, "a12"}},
    {"chained_during", {"python-error", 1, "a12"}},
    {"collate_exception", {"data-rank-cascade", 3, "a12"}},
    {"dataloader_exception", {"data-rank-cascade", 1, "a12"}},
    {"dataloader_worker_bus_error", {"shm-bus-error", 1, "a12"}},
    {"dataloader_worker_killed", {"host-oom", 1, "a12"}},
    {"disk_full_torch_save", {"disk-full", 0, "a12"}},
    {"disk_full_write", {"disk-full", 0, "a12"}},
    {"gloo_timeout", {"nccl-timeout", 1, "a12"}},
    {"labelled_collate", {"data-rank-cascade", 3}},
    {"monitored_barrier", {"nccl-timeout", 1, "a12"}},
    {"none_is_no_iterator", {"container-cache-not-shared", 1, "a12"}},
    {"python_memory_error", {"host-oom", 1, "a12"}},
    {"rank_files", {"host-oom", 1}},
    {"rank_left_early", {"network", 1}},
    {"run_without_error", {"unknown"}},
    {"state_dict_missing_key", {"weight-load-mismatch", 1, "a12"}},
    {"state_dict_size_mismatch", {"weight-load-mismatch", 2, "a12"}},
    {"store_timeout", {"nccl-timeout", 2, "a12"}},
    {"torch_cpu_allocator", {"host-oom", 1, "a12"}},
    {"torchrun_bus_error", {"shm-bus-error", 1, "a12"}},
    {"torchrun_exception", {"nan-loss", 2, "a12"}},
    {"torchrun_exit_without_word", {"unknown", 2, "a12"}},
    {"torchrun_folders", {"weight-load-mismatch", 1}},
    {"torchrun_killed", {"killed", 1, "a12"}},
    {"torchrun_megatron_shadowed", {"megatron-shadowed", 0, "a12"}},
    {"torchrun_missing_module", {"import-error", 0, "a12"}},
    {"torchrun_port_in_use", {"port-in-use"}},
    {"torchrun_record", {"python-error", 1, "a12"}},
    {"torchrun_segfault", {"segfault", 3, "a12"}},
    {"torchrun_terminated", {"cancelled"}},
    {"torchrun_terminated_rank", {"unknown", 1, "a12"}},
    // Real: torchrun with NCCL on a GPU, and ranks that nobody ended (tests/cluster/doctor/provoke/gpu_deaths.py)
    {"nccl_assert", {"cuda-error", 1, "localhost"}},
    {"nccl_killed", {"killed", 3, "localhost"}},
    {"nccl_moe_oom", {"moe-oom", 2, "localhost"}},
    {"nccl_oom", {"gpu-oom", 1, "localhost"}},
    {"nccl_rank_files_data", {"data-rank-cascade", 0}},
    {"nccl_rank_files_killed", {"nccl-timeout", 3}},
    {"nccl_silent", {"nccl-timeout", 2, "localhost"}},
    {"nccl_unique_id", {"rank0-barrier-timeout", 0, "localhost"}},
    // Real: programs that were not launched, a shell
    {"env_rank_missing", {"not-launched"}},
    {"key_error_world_size", {"not-launched"}},
    {"must_use_torchrun", {"not-launched"}},
    {"uv_missing", {"uv-missing"}},
    // Real: Braid
    {"braid_exception", {"braid-failure", 2, "a12"}},
    {"braid_hang", {"braid-failure", 2, "a12"}},
    {"braid_killed", {"killed", 2, "a12"}},
    {"braid_lost_host", {"node-failure", 2, "nodeb"}},
    {"braid_left_early", {"braid-failure", 2, "a12"}},
    {"braid_no_such_program", {"not-launched"}},
    {"braid_run_ended_well", {"success"}},
    {"braid_segfault", {"segfault", 2, "a12"}},
    {"braid_stopped", {"braid-failure", 2, "a12"}},
    // By documented formats
    {"arguments_unknown", {"python-error"}},
    {"artifact_save_hang", {"artifact-save-hang", 0}},
    {"bad_account", {"bad-account"}},
    {"bad_partition", {"bad-partition"}},
    {"cancelled", {"cancelled"}},
    {"cgroup_oom", {"host-oom", 6, "a44"}},
    {"colours_and_progress_bar", {"python-error", 2}},
    {"container_disk_full", {"disk-full"}},
    {"container_does_not_start", {"not-launched", 0, "n1"}},
    {"disk_full_uv", {"disk-full", 0, "a09"}},
    {"empty", {"not-launched"}},
    {"execve_permission", {"not-launched"}},
    {"fp8_roundtrip", {"fp8-roundtrip-mismatch", 0, "a03"}},
    {"gpu_hardware", {"node-failure", 6, "b17"}},
    {"gpu_oom", {"gpu-oom", 3, "a07"}},
    {"gpu_oom_old_wording", {"gpu-oom", 9, "gpu-1-02"}},
    {"gpu_spec_missing", {"gpu-spec-missing"}},
    {"hang_then_time_limit", {"nccl-timeout", 2}},
    {"hetero_cascade", {"data-rank-cascade", 1}},
    {"import_error_rank0_barrier", {"import-error", 0}},
    {"loader_worker_gone", {"data-rank-cascade", 2, "node01"}},
    {"loader_worker_gone_old_torch", {"data-rank-cascade", 1, "gpu02"}},
    {"loader_worker_killed_chain", {"host-oom"}},
    {"loader_workers_gone_torchrun", {"python-error", 5}},
    {"moe_oom", {"moe-oom", 5, "a31"}},
    {"nccl_cuda_out_of_memory", {"gpu-oom", 1, "a01"}},
    {"nccl_heartbeat", {"nccl-timeout", 0}},
    {"nccl_timeout_rank_behind", {"nccl-timeout", 2}},
    {"nccl_timeout_silent_rank", {"nccl-timeout", 5, "a12"}},
    {"network_infiniband", {"network", 12, "a19"}},
    {"node_failure_braid", {"node-failure", 17, "n3"}},
    {"node_stepd_terminated", {"node-failure", kNone, "c7"}},
    {"node_task_launch_failed", {"node-failure", kNone, "c9"}},
    {"noise_ended_well", {"success"}},
    {"oom_then_time_limit", {"gpu-oom", 1}},
    {"preempted", {"preempted"}},
    {"prose_about_errors", {"cancelled"}},
    {"prose_then_segfault", {"segfault", 2, "a3"}},
    {"queued_only", {"not-launched"}},
    {"rank0_barrier_timeout", {"rank0-barrier-timeout", 0}},
    {"rank_files_data_py", {"data-rank-cascade", 2}},
    {"remote_process_exited", {"network"}},
    {"script_end_after_torchrun", {"unknown", 2, "n1"}},
    {"script_end_after_traceback", {"python-error", 3}},
    {"shell_error_then_exception", {"python-error", 1}},
    {"shell_exec_not_found", {"not-launched"}},
    {"shell_no_such_program", {"not-launched", 3, "a3"}},
    {"shell_syntax_error", {"not-launched"}},
    {"shell_unbound_variable", {"not-launched"}},
    {"shell_variable_not_set", {"not-launched"}},
    {"shm_too_small", {"shm-bus-error", 4}},
    {"slurm_job_over_before_step", {"unknown"}},
    {"slurm_refuses_qos", {"bad-account"}},
    {"slurm_refuses_time", {"unknown"}},
    {"srun_times_torchrun", {"port-in-use", 3, "n5"}},
    {"step_config", {"step-config"}},
    {"survived_between_sparse_lines", {"time-limit"}},
    {"tasks_ended_together", {"nan-loss", 9, "b12"}},
    {"time_limit", {"time-limit"}},
    {"uv_in_container", {"uv-missing", 0, "n4"}},
    {"weight_mismatch", {"weight-load-mismatch", 0}},
    {"windows_line_ends", {"python-error", 1}},
    // Further wordings and versions
    {"variant_aborted_comm", {"nccl-timeout", 3}},
    {"variant_bare_assert", {"python-error", 6, "q9"}},
    {"variant_batch_oom", {"host-oom"}},
    {"variant_bind", {"port-in-use"}},
    {"variant_braid_data", {"data-rank-cascade", 3, "n2"}},
    {"variant_braid_oom", {"gpu-oom", 5, "a12"}},
    {"variant_caught_time_limit", {"time-limit"}},
    {"variant_ctrl_c", {"cancelled"}},
    {"variant_dense_arg", {"gpu-oom", 1}},
    {"variant_fp8_name", {"fp8-roundtrip-mismatch", 0}},
    {"variant_glog_traceback", {"python-error"}},
    {"variant_gloo_connect", {"rendezvous", 2}},
    {"variant_hub", {"hub-unreachable", 0}},
    {"variant_ib_down", {"network", kNone, "n12"}},
    {"variant_killed_line", {"killed"}},
    {"variant_megatron_label", {"megatron-shadowed", 2}},
    {"variant_mixed", {"python-error"}},
    {"variant_moe_arg", {"moe-oom", 1}},
    {"variant_nemo_silent", {"nccl-timeout", 13}},
    {"variant_no_route", {"network", 8}},
    {"variant_node_late", {"node-failure", kNone, "a03"}},
    {"variant_old_oom", {"gpu-oom", 2}},
    {"variant_preempt_term", {"preempted"}},
    {"variant_quota", {"disk-full", 0}},
    {"variant_retry_ok", {"python-error", 3}},
    {"variant_salloc_acct", {"bad-account"}},
    {"variant_solib", {"import-error", 3}},
    {"variant_spawn", {"weight-load-mismatch", 1}},
    {"variant_srun_unlabelled", {"python-error", 11, "n7"}},
    {"variant_task_bus", {"shm-bus-error", 5, "n3"}},
    {"variant_all_import", {"import-error", 3}},
    {"variant_braid_config", {"braid-failure"}},
    {"variant_braid_disk", {"disk-full", 1, "q2"}},
    {"variant_braid_hang_node", {"node-failure", 6, "n4"}},
    {"variant_client_socket", {"rendezvous", 5}},
    {"variant_crlf_progress", {"python-error"}},
    {"variant_cublas", {"gpu-oom", 7}},
    {"variant_deepspeed", {"killed"}},
    {"variant_exit143", {"unknown", 3, "n3"}},
    {"variant_files_cascade", {"data-rank-cascade", 1}},
    {"variant_files_silent", {"nccl-timeout", 2}},
    {"variant_good_py", {"unknown"}},
    {"variant_heartbeat2", {"nccl-timeout", 0}},
    {"variant_later_exit_first", {"segfault", 9, "n2"}},
    {"variant_max_restarts", {"gpu-oom", 2}},
    {"variant_nothing_known", {"unknown", 0, "n1"}},
    {"variant_rank0_slow_import", {"gpu-oom", 0}},
    {"variant_salloc_node", {"step-config"}},
    {"variant_shm_write", {"shm-bus-error", 0}},
    {"variant_store_clients", {"rendezvous", 0}},
    {"variant_timestamps_disagree", {"python-error", 5}},
    {"variant_tr_folders", {"gpu-oom", 11}},
    {"variant_two_kinds", {"python-error", 4, "n3"}},
    {"variant_uv_exec", {"uv-missing", 0, "n1"}},
    {"variant_worker_oom_text", {"host-oom", 3}},
    {"variant_local_rank_of_second_node", {"import-error", 11, "a02"}},
    // After public reports on other frameworks, shortened
    {"other_caduceus_emfile_hydra", {"too-many-files"}},
    {"other_compose_worker3_valueerror", {"data-rank-cascade", 3}},
    {"other_composer_rank2_sigbus_exit7", {"shm-bus-error", 2}},
    {"other_easyr1_ray_host_oom", {"host-oom"}},
    {"other_fairseq_min_loss_scale", {"nan-loss", 0}},
    {"other_k8s_exit137_noword", {"killed"}},
    {"other_launch_died_sigsegv_local7", {"segfault"}},
    {"other_maxtext_hbm_exhausted", {"gpu-oom"}},
    {"other_mmdet_unused_params_launch", {"unused-parameters"}},
    {"other_ok_lightning_max_epochs", {"success"}},
    {"other_ok_nanogpt_slurm_completed", {"success"}},
    {"other_panfusion_pl_child_code9", {"killed", 1}},
    {"other_pl_mismatch_logdict", {"collective-mismatch", 1}},
    {"other_raytrain_keyerror_prefix", {"python-error"}},
    {"other_returnn_xid79_dmesg", {"node-failure", 1}},
    {"other_submitit_preempted_sighup", {"preempted"}},
    {"other_swift_sighup_nohup", {"hangup"}},
    {"other_t5x_jax_heartbeat_task37", {"node-failure", 37}},
    {"other_tf_multiworker_socket_closed", {"network"}},
    {"other_torchrun_rdzv_c10d_connfail", {"rendezvous"}},
    {"other_unk_torchrun_exit1_notrace", {"unknown", 0, "gpu-a17"}},
    {"other_utf16_k8s_hub_gated", {"hub-unreachable"}},
    {"other_verl_dup_gpu_ray_r9", {"duplicate-gpu", 9}},
    {"other_verl_ray_worker_eof", {"unknown"}},
};

const fs::path kFixtures = fs::path(BRAID_SOURCE_DIR) / "tests/cluster/doctor/fixtures";

// Logs that tests/cluster/slurm/ makes under a real Slurm come with their own table.
const std::map<std::string, Expected> kExpected = [] {
  std::map<std::string, Expected> all = kOwn;
  const auto table = nlohmann::json::parse(testing::read_file((kFixtures / "slurm_expected.json").string()));
  for (const auto& [file, value] : table.items()) {
    Expected& expected = all[fs::path(file).stem()];
    expected = {value.at("cause"),
                value.value("first_rank", nlohmann::json()).is_null() ? kNone : value["first_rank"].get<int>(),
                value.value("first_host", "")};
    expected.any_rank = !value.contains("first_rank");
    expected.any_host = !value.contains("first_host");
  }
  return all;
}();

std::string path_of(const std::string& name) {
  const fs::path folder = kFixtures / name;
  return fs::is_directory(folder) ? folder.string() : folder.string() + ".log";
}

Diagnosis diagnosis_of(const std::string& name) {
  std::vector<std::string> skipped;
  return examine_logs(find_logs({path_of(name)}), {}, skipped);
}

class Fixtures : public ::testing::TestWithParam<std::string> {};

TEST_P(Fixtures, AreUnderstood) {
  const Expected& expected = kExpected.at(GetParam());
  const Diagnosis diagnosis = diagnosis_of(GetParam());
  EXPECT_EQ(text_of(diagnosis.cause).slug, expected.cause) << to_text(diagnosis);
  if (!expected.any_rank) {
    EXPECT_EQ(diagnosis.first_rank.value_or(kNone), expected.first_rank) << to_text(diagnosis);
  }
  if (!expected.any_host) {
    EXPECT_EQ(diagnosis.first_host, expected.host) << to_text(diagnosis);
  }
}

TEST_P(Fixtures, GiveJsonOfTheSchema) {
  const auto json = nlohmann::json::parse(to_json(diagnosis_of(GetParam())));
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{"cause", "first_rank", "first_host", "exit_code", "evidence", "explanation",
                                         "fix"}));
  EXPECT_TRUE(json["first_rank"].is_null() || json["first_rank"].is_number_integer());
  EXPECT_TRUE(json["first_host"].is_null() || json["first_host"].is_string());
  EXPECT_TRUE(json["exit_code"].is_null() || json["exit_code"].is_number_integer());
  EXPECT_FALSE(json["explanation"].get<std::string>().empty());
  EXPECT_FALSE(json["fix"].get<std::string>().empty());
  for (const auto& evidence : json["evidence"]) {
    EXPECT_TRUE(evidence["file"].is_string());
    EXPECT_GE(evidence["line"].get<int>(), 1);
    EXPECT_TRUE(evidence["text"].is_string());
  }
}

INSTANTIATE_TEST_SUITE_P(Logs, Fixtures, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& [name, expected] : kExpected) names.push_back(name);
                           return names;
                         }()),
                         [](const auto& info) { return info.param; });

TEST(Doctor, EveryFixtureIsExpectedSomething) {
  for (const auto& entry : fs::directory_iterator(kFixtures))
    EXPECT_TRUE(kExpected.count(entry.path().stem().string()) || entry.path().extension() == ".json") << entry.path();
}

TEST(Doctor, SizesAreTold) {
  EXPECT_THAT(diagnosis_of("gpu_oom").explanation,
              ::testing::HasSubstr("tried to allocate 7.83 GiB on a GPU of 79.11 GiB with 2.45 GiB free"));
  EXPECT_THAT(diagnosis_of("gpu_oom_old_wording").explanation,
              ::testing::HasSubstr("1.22 GiB on a GPU of 39.43 GiB with 810.56 MiB free"));
  EXPECT_THAT(diagnosis_of("moe_oom").fix, ::testing::HasSubstr("EP 16 would give 16 experts/GPU"));
}

// "_queue.Empty" is what the rank met first; what it raised from that tells.
TEST(Doctor, ALostLoaderWorkerIsTold) {
  for (const char* name : {"loader_worker_gone", "loader_worker_gone_old_torch", "loader_workers_gone_torchrun"}) {
    EXPECT_THAT(diagnosis_of(name).explanation, ::testing::HasSubstr("DataLoader worker (pid(s)")) << name;
    EXPECT_THAT(diagnosis_of(name).fix, ::testing::StartsWith("A worker process of the data loader died.")) << name;
  }
}

TEST(Doctor, EvidencePointsAtTheLine) {
  const Diagnosis diagnosis = diagnosis_of("windows_line_ends");
  ASSERT_GE(diagnosis.evidence.size(), 2u);
  EXPECT_EQ(diagnosis.evidence[0].line, 4u);
  EXPECT_EQ(diagnosis.evidence[0].text, "[rank1]: ValueError: bad shape");
  EXPECT_EQ(diagnosis.evidence[1].line, 2u);
}

// Whoever looks up a line finds the text there.
TEST_P(Fixtures, EvidenceIsQuoted) {
  for (const Evidence& evidence : diagnosis_of(GetParam()).evidence) {
    LineReader reader({evidence.file, evidence.file, std::nullopt});
    LineReader::Line line;
    while (reader.next(line) && line.number != evidence.line) {
    }
    EXPECT_THAT(clean_text(line.text), ::testing::HasSubstr(evidence.text.substr(0, 500))) << evidence.line;
  }
}

TEST(Doctor, TheCascadeIsToldInASentence) {
  EXPECT_THAT(to_text(diagnosis_of("torchrun_killed")), ::testing::HasSubstr("The other 3 ranks"));
  EXPECT_THAT(to_text(diagnosis_of("torchrun_killed")), ::testing::HasSubstr("3 x SIGTERM"));
}

TEST(Doctor, AnExitCodeOfOurOwnIsExplained) {
  std::vector<std::string> skipped;
  const Diagnosis diagnosis = examine_logs(find_logs({path_of("run_without_error")}), 137, skipped);
  EXPECT_EQ(diagnosis.cause, Cause::Killed);
  EXPECT_THAT(diagnosis.explanation, ::testing::HasSubstr("SIGKILL"));
  EXPECT_EQ(examine_logs(find_logs({path_of("run_without_error")}), 0, skipped).cause, Cause::Success);
}

TEST(Doctor, AShellsErrorIsShown) {
  for (const char* name : {"execve_permission", "shell_exec_not_found", "shell_no_such_program", "shell_syntax_error",
                           "shell_variable_not_set"})
    EXPECT_EQ(diagnosis_of(name).evidence.at(0).line, 1u) << name;
}

TEST(Doctor, WhatSlurmRefusesForUnknownReasonsIsQuoted) {
  const Diagnosis diagnosis = diagnosis_of("slurm_refuses_time");
  EXPECT_EQ(verdict_code(diagnosis), 1);
  EXPECT_THAT(diagnosis.explanation, ::testing::HasSubstr("Requested time limit is invalid"));
  EXPECT_EQ(diagnosis.evidence.at(0).line, 1u);
}

TEST(Doctor, AnExitCodeThatSeveralTasksShareIsTold) {
  EXPECT_EQ(diagnosis_of("tasks_ended_together").exit_code, 1);
  EXPECT_THAT(diagnosis_of("tasks_ended_together").cascade, ::testing::StartsWith("Another rank ended"));
}

// A pipe's exit code is that of its last command.
TEST(Doctor, AScriptThatSaysItEndedWellIsNotBelievedAgainstAnException) {
  const Diagnosis diagnosis = diagnosis_of("script_end_after_traceback");
  EXPECT_THAT(diagnosis.explanation, ::testing::HasSubstr("labels do not fit logits"));
  EXPECT_THAT(diagnosis.explanation, ::testing::HasSubstr("set -o pipefail"));
  EXPECT_EQ(verdict_code(diagnosis_of("script_end_after_torchrun")), 1);
}

TEST(Doctor, ALogWithoutAnEndIsNotCalledGood) {
  const Diagnosis diagnosis = diagnosis_of("run_without_error");
  EXPECT_THAT(diagnosis.explanation, ::testing::HasSubstr("no end of the run"));
  EXPECT_THAT(diagnosis.explanation, ::testing::HasSubstr("iteration 53 of 100"));
  EXPECT_THAT(diagnosis.fix, ::testing::HasSubstr("--exit-code"));
  EXPECT_THAT(diagnosis.fix, ::testing::Not(::testing::HasSubstr("sacct")));  // nothing says that it ran under Slurm
}

}  // namespace
}  // namespace braid
