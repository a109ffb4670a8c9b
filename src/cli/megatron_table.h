// Helpers to write the rows of cli/megatron_flags.h, and the functions that list them; internal to these files.
#pragma once

#include <vector>

#include "cli/megatron_flag.h"

namespace braid {

void add_model_rows(std::vector<MegatronFlag>& rows);  // what is trained
void add_data_rows(std::vector<MegatronFlag>& rows);   // on which samples
void add_run_rows(std::vector<MegatronFlag>& rows);    // how it is trained, saved and logged

namespace megatron_rows {

using Row = MegatronFlag;
inline constexpr auto kNone = FlagValues::None, kOne = FlagValues::One, kMany = FlagValues::Many;
inline constexpr auto kLlama = ModelFamily::Llama, kHybrid = ModelFamily::Hybrid;

// Reasons that several files of rows use.
inline constexpr const char* kOneKernel = "each operator has only one implementation";

inline Row taken(const char* name, const char* key) { return {name, FlagVerdict::Taken, kOne, key}; }
inline Row taken_switch(const char* name, const char* key, const char* value) {
  return {name, FlagVerdict::Taken, kNone, key, value};
}
// A flag that takes several values in Megatron and only one in Braid.
inline Row one_of_many(const char* name, const char* key, const char* otherwise) {
  return {.name = name, .verdict = FlagVerdict::Taken, .values = kMany, .key = key, .otherwise = otherwise};
}
inline Row already(const char* name, FlagValues values, const char* why) {
  return {name, FlagVerdict::AlreadySo, values, "", "", why};
}
inline Row already_for(const char* only_for, const char* name, const char* why, const char* otherwise = "") {
  return {.name = name,
          .verdict = FlagVerdict::AlreadySo,
          .values = kOne,
          .why = why,
          .only_for = only_for,
          .otherwise = *otherwise ? otherwise : why};
}
inline Row rewritten(const char* name, const char* key, const char* why = "") {
  return {name, FlagVerdict::Rewritten, kOne, key, "", why};
}
inline Row rewritten_switch(const char* name, const char* key, const char* value, const char* why = "") {
  return {name, FlagVerdict::Rewritten, kNone, key, value, why};
}
inline Row no(const char* name, FlagValues values, const char* instead) {
  return {name, FlagVerdict::Unsupported, values, "", "", instead};
}
inline Row in_family(ModelFamily family, Row row, const char* otherwise, FlagVerdict other = FlagVerdict::Unsupported) {
  row.family = family;
  row.otherwise = otherwise;
  row.other_verdict = other;
  return row;
}
inline Row in_unit(double factor, Row row) {
  row.factor = factor;
  return row;
}

}  // namespace megatron_rows
}  // namespace braid
