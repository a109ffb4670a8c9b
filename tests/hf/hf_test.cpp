// Hugging Face's configurations and tensor names, as far as they can be checked without transformers; the live
// comparison is tests/oracles/hf_roundtrip_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "forward/forward_files.h"
#include "hf/model.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;
using Json = nlohmann::json;

std::string nemotron_error(const Json& json) {
  return error_of([&] { nemotron_h_config(json, "config.json"); });
}

template <class Config>
std::string text_of(Config config) {
  YamlWriter writer;
  describe(writer, config);
  return writer.text();
}

// A source with these tensors, all zeros.
SafetensorsReader source_with(const TemporaryFolder& folder, const std::vector<TensorInfo>& infos) {
  SafetensorsWriter writer(folder.path(), infos);
  for (const TensorInfo& info : infos)
    writer.write(info.name, std::vector<std::byte>(static_cast<std::size_t>(bytes_of(info))));
  writer.finish();
  return SafetensorsReader(folder.path());
}

SafetensorsReader source_of(const TemporaryFolder& folder, const std::vector<ForeignTensor>& tensors) {
  std::vector<TensorInfo> infos;
  for (const ForeignTensor& tensor : tensors) infos.push_back({tensor.name, StoredDtype::F32, tensor.shape});
  return source_with(folder, infos);
}

// --- config.json --------------------------------------------------------------------------------------------------

TEST(HfJson, BareInfinityIsRead) {
  const Json json = parse_hf_json(R"({"limit": [0.0, Infinity, -Infinity, NaN], "text": "Infinity \" NaN"})", "x");
  EXPECT_EQ(json["limit"][1]["__float__"], "Infinity");
  EXPECT_EQ(json["limit"][2]["__float__"], "-Infinity");
  EXPECT_EQ(json["limit"][3]["__float__"], "NaN");
  EXPECT_EQ(json["text"], "Infinity \" NaN");
  for (const char* text : {"", "[1]", "{", "{\"a\": Infinit}", "\"a\\"})
    EXPECT_THAT(error_of([&] { parse_hf_json(text, "c.json"); }), HasSubstr("c.json")) << text;
}

// nlohmann parses without recursion, but copies and prints with it.
TEST(HfJson, DeepNestingIsRefused) {
  const auto nested = [](std::size_t depth) {
    return R"({"a": )" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_EQ(parse_hf_json(nested(32), "c.json").size(), 1u);
  EXPECT_THAT(error_of([&] { parse_hf_json(nested(33), "c.json"); }), HasSubstr("nested more than 32 deep"));
  EXPECT_THAT(error_of([&] { parse_hf_json(nested(150000), "c.json"); }), HasSubstr("where: c.json"));
  std::string objects = "{";
  for (int i = 0; i < 150000; ++i) objects += R"("a": {)";
  EXPECT_THAT(error_of([&] { parse_hf_json(objects, "c.json"); }), HasSubstr("nested more than 32 deep"));
}

// A message stays readable whatever a file contains.
TEST(HfJson, LongValuesAreCutInMessages) {
  EXPECT_LT(nemotron_error({{"hidden_size", std::string(1 << 20, 'x')}}).size(), 500u);
  EXPECT_LT(nemotron_error({{"model_type", 1}, {"mlp_hidden_act", std::string(1 << 20, 'x')}}).size(), 500u);
  EXPECT_LT(error_of([&] { parse_hf_json('"' + std::string(1 << 20, 'x'), "c.json"); }).size(), 500u);
}

TEST(HfNemotronH, AnEmptyConfigHasTransformersDefaults) {
  const HybridLmConfig config = nemotron_h_config(Json::object(), "config.json");
  EXPECT_EQ(config.pattern, "ME*-");
  EXPECT_EQ(config.hidden, 4096);
  EXPECT_EQ(config.mamba_heads, 128);
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.mamba_dt_min, 0.001);
  EXPECT_EQ(config.mamba_dt_max, 0);
  EXPECT_EQ(config.shared_ffn, 7688);
}

TEST(HfNemotronH, OlderSpellingsAreRead) {
  const HybridLmConfig config =
      nemotron_h_config(parse_hf_json(R"({"hybrid_override_pattern": "MEM*-", "mamba_n_groups": 4, "n_groups": 2,
        "mamba_d_conv": 3, "mamba_chunk_size": 64, "mamba_conv_bias": false, "mamba_dt_min": 0.01,
        "num_key_value_heads": null, "time_step_limit": [0.0, Infinity]})",
                                      "config.json"),
                        "config.json");
  EXPECT_EQ(config.pattern, "MEM*-");
  EXPECT_EQ(config.mamba_groups, 4);
  EXPECT_EQ(config.mamba_conv, 3);
  EXPECT_EQ(config.mamba_chunk, 64);
  EXPECT_FALSE(config.mamba_conv_bias);
  EXPECT_EQ(config.mamba_dt_min, 0.01);
  EXPECT_EQ(config.kv_heads, config.heads);
  const Json list = {{"layers_block_type", {"mamba", "attention", "moe", "mlp", "linear_attention", "full_attention"}}};
  EXPECT_EQ(nemotron_h_config(list, "").pattern, "M*E-M*");
}

TEST(HfNemotronH, AnUnknownLetterIsPointedAt) {
  EXPECT_THAT(nemotron_error({{"hybrid_override_pattern", "MEMX*"}}),
              AllOf(HasSubstr("'X' at position 4"), HasSubstr("\n    MEMX*\n       ^\n"),
                    HasSubstr("where: config.json, hybrid_override_pattern")));
  EXPECT_THAT(nemotron_error({{"layers_block_type", {"moe", "rnn"}}}), HasSubstr("layer 1 is \"rnn\""));
  EXPECT_THAT(nemotron_error({{"hybrid_override_pattern", "M|M"}}), HasSubstr("'|' at position 2"));
}

// One of many wrong letters is named, and only the surroundings of it in a long pattern are shown.
TEST(HfNemotronH, ALongPatternIsCutAroundTheWrongLetter) {
  const std::string m50(50, 'M');
  EXPECT_THAT(nemotron_error({{"hybrid_override_pattern", m50 + "XXXX" + std::string(1000, 'M')}}),
              AllOf(HasSubstr("'X' at position 51"),
                    HasSubstr(fmt::format("\n    {}XXXX{}...\n    {:>51}\n", m50, std::string(46, 'M'), '^')),
                    Not(HasSubstr("position 52"))));
  EXPECT_THAT(nemotron_error({{"hybrid_override_pattern", std::string(1000, 'M') + "X"}}),
              HasSubstr(fmt::format("\n    ...{}X\n    {:>54}\n", m50, '^')));
  EXPECT_THAT(nemotron_error({{"hybrid_override_pattern", "M\x1b"}}), HasSubstr("\n    M?\n     ^\n"));
  EXPECT_THAT(nemotron_error({{"hybrid_override_pattern", std::string(1 << 20, 'X')}}),
              HasSubstr("1048576 letters are too many"));
  EXPECT_THAT(nemotron_error({{"layers_block_type", Json(1000, "rnn")}}), HasSubstr("and 950 more problems"));
}

TEST(HfNemotronH, EverythingUnsupportedIsNamedAtOnce) {
  const Json unsupported = {{"attention_bias", true},
                            {"mlp_bias", true},
                            {"use_bias", true},
                            {"mamba_proj_bias", true},
                            {"tie_word_embeddings", true},
                            {"mlp_hidden_act", "silu"},
                            {"mamba_hidden_act", "gelu"},
                            {"moe_latent_size", 64},
                            {"n_group", 2},
                            {"topk_group", 2},
                            {"sliding_window", 4096},
                            {"num_nextn_predict_layers", 1},
                            {"hidden_dropout", 0.1},
                            {"attention_dropout", 0.1},
                            {"n_shared_experts", 2},
                            {"residual_in_fp32", true},
                            {"time_step_limit", {0.0, 0.5}}};
  const std::string all = nemotron_error(unsupported);
  EXPECT_THAT(all, HasSubstr(fmt::format("{} problems", unsupported.size())));
  for (const auto& [key, value] : unsupported.items()) {
    EXPECT_THAT(all, HasSubstr(fmt::format("{}={} is not supported", key, value.dump())));
    EXPECT_THAT(nemotron_error({{key, value}}), HasSubstr("where: config.json, " + key));
  }
}

TEST(HfNemotronH, ValuesThatCannotBeAreNamed) {
  EXPECT_THAT(nemotron_error({{"hidden_size", "64"}}), HasSubstr("hidden_size should be an integer from 0 to"));
  EXPECT_THAT(nemotron_error({{"hidden_size", 64.5}}), HasSubstr("hidden_size should be an integer"));
  EXPECT_THAT(nemotron_error({{"hidden_size", -1}}), HasSubstr("hidden_size should be an integer"));
  EXPECT_THAT(nemotron_error({{"hidden_size", 1e30}}), HasSubstr("hidden_size should be an integer"));
  EXPECT_THAT(nemotron_error({{"hidden_size", nullptr}}), HasSubstr("hidden_size should be an integer"));
  EXPECT_THAT(nemotron_error({{"norm_topk_prob", 1}}), HasSubstr("norm_topk_prob should be true or false, not 1"));
  EXPECT_THAT(nemotron_error({{"layer_norm_epsilon", {{"__float__", "NaN"}}}}), HasSubstr("a finite number"));
  EXPECT_THAT(nemotron_error({{"hidden_size", 0}}), HasSubstr("hidden"));
  EXPECT_THAT(nemotron_error({{"num_attention_heads", 6}, {"num_key_value_heads", 4}}), HasSubstr("heads"));
  EXPECT_THAT(nemotron_error({{"layers_block_type", "M"}}), HasSubstr("should be a list"));
  EXPECT_THAT(nemotron_error({{"hybrid_override_pattern", 7}}), HasSubstr("should be a string"));
  EXPECT_THAT(nemotron_error({{"hybrid_override_pattern", std::string(100, 'E')}, {"n_routed_experts", 1 << 20}}),
              HasSubstr("1048576 experts in each layer are too many"));
  EXPECT_THAT(nemotron_error({{"hybrid_override_pattern", std::string(1 << 15, 'M')}}), HasSubstr("too many"));
}

const HybridLmConfig kLanguage = {.pattern = "M*E-M",
                                  .hidden = 24,
                                  .vocab = 40,
                                  .heads = 6,
                                  .kv_heads = 2,
                                  .head_dim = 4,
                                  .mamba_heads = 4,
                                  .mamba_head_dim = 8,
                                  .mamba_groups = 2,
                                  .mamba_state = 4,
                                  .mamba_dt_min = 0.25,
                                  .ffn = 20,
                                  .experts = 3,
                                  .top_k = 2,
                                  .expert_ffn = 12,
                                  .shared_ffn = 28,
                                  .router_scaling = 1.5,
                                  .router_normalize = false};

TEST(HfNemotronH, AConfigComesBackFromItsJson) {
  const Json json = nemotron_h_json(kLanguage, Json::object(), "model.yaml");
  EXPECT_EQ(text_of(nemotron_h_config(json, "")), text_of(kLanguage));
  const Json original = {
      {"hybrid_override_pattern", "X"}, {"auto_map", 1}, {"bos_token_id", 7}, {"mamba_n_groups", 99}};
  const Json merged = nemotron_h_json(kLanguage, original, "model.yaml");
  EXPECT_EQ(text_of(nemotron_h_config(merged, "")), text_of(kLanguage));
  EXPECT_EQ(merged["bos_token_id"], 7);
  EXPECT_FALSE(merged.contains("auto_map"));
}

TEST(HfNemotronH, WhatTransformersCannotDoIsNotExported) {
  HybridLmConfig config = kLanguage;
  config.mamba_dt_max = 0.5;
  config.shared_ffn = 0;
  EXPECT_THAT(error_of([&] { nemotron_h_json(config, Json::object(), "model.yaml"); }),
              AllOf(HasSubstr("model.yaml, mamba_dt_max"), HasSubstr("model.yaml, shared_ffn")));
}

// --- tensors ------------------------------------------------------------------------------------------------------

TEST(HfNemotronH, EverySpellingCoversTheModelAndIsRecognised) {
  for (const char* prefix : {"backbone.", "model."})
    for (const bool stacked : {false, true}) {
      const std::vector<ForeignTensor> tensors =
          nemotron_h_tensors(kLanguage, {.prefix = prefix, .stacked_experts = stacked});
      check_cover(tensors, declare_parameters(kLanguage));
      const TemporaryFolder folder;
      const NemotronHSpelling found = nemotron_h_spelling(source_of(folder, tensors));
      EXPECT_EQ(found.prefix, prefix);
      EXPECT_EQ(found.stacked_experts, stacked);
    }
}

TEST(HfNemotronH, AttentionRowsAreGroupedByKeyValueHead) {
  for (const ForeignTensor& tensor : nemotron_h_tensors(kLanguage, {})) {
    if (tensor.name != "backbone.layers.1.mixer.k_proj.weight") continue;
    // A group is 3 query heads, keys and values of 4 rows each; the second group's keys follow its queries.
    ASSERT_EQ(tensor.rows.size(), 2u);
    EXPECT_EQ(tensor.rows[1].foreign_row, 4);
    EXPECT_EQ(tensor.rows[1].param_row, 20 + 12);
    EXPECT_EQ(tensor.rows[1].rows, 4);
    return;
  }
  FAIL() << "there is no such tensor";
}

const RadioConfig kVision = {.hidden = 24,
                             .layers = 2,
                             .heads = 3,
                             .ffn = 50,
                             .patch = 4,
                             .position_side = 5,
                             .class_tokens = 4,
                             .layer_scale = true,
                             .normalize_pixels = true};

TEST(HfRadio, EverySpellingCoversTheModelAndIsRecognised) {
  for (const bool modules : {false, true})
    for (const bool layer_scale : {false, true})
      for (const bool qkv_bias : {false, true}) {
        RadioConfig config = kVision;
        config.layer_scale = layer_scale;
        config.qkv_bias = qkv_bias;
        const std::vector<ForeignTensor> tensors = radio_tensors(config, {.modules = modules});
        check_cover(tensors, declare_parameters(config));
        const TemporaryFolder folder;
        const SafetensorsReader source = source_of(folder, tensors);
        EXPECT_EQ(radio_spelling(source).modules, modules);
        const Json json = radio_json(config, Json::object(), "model.yaml");
        EXPECT_EQ(text_of(radio_config(json, source, "config.json")), text_of(config));
      }
}

TEST(HfRadio, EverythingUnsupportedIsNamedAtOnce) {
  const TemporaryFolder folder;
  const SafetensorsReader source = source_with(folder, {});
  const Json unsupported = {{"use_swiglu_ffn", true},     {"drop_path_rate", 0.1},
                            {"hidden_dropout_prob", 0.1}, {"attention_probs_dropout_prob", 0.1},
                            {"hidden_act", "relu"},       {"layerscale_value", 0.5}};
  const std::string all = error_of([&] { radio_config(unsupported, source, "config.json"); });
  EXPECT_THAT(all, HasSubstr(fmt::format("{} problems", unsupported.size())));
  for (const auto& [key, value] : unsupported.items())
    EXPECT_THAT(all, HasSubstr(fmt::format("{}={} is not supported", key, value.dump())));
  EXPECT_THAT(error_of([&] { radio_config({{"patch_size", 0}}, source, ""); }), HasSubstr("patch"));
  EXPECT_THAT(error_of([&] {
                radio_config({{"num_hidden_layers", 2000000000}}, source, "");
              }),
              HasSubstr("an integer from 0 to"));
  EXPECT_THAT(error_of([&] {
                radio_config({{"num_hidden_layers", 20000}}, source, "");
              }),
              HasSubstr("layers=20000 is too large"));
}

TEST(HfRadio, WhatTransformersCannotDoIsNotExported) {
  RadioConfig config = kVision;
  config.final_norm = true;
  config.normalize_pixels = false;
  EXPECT_THAT(error_of([&] { radio_json(config, Json::object(), "model.yaml"); }),
              AllOf(HasSubstr("model.yaml, final_norm"), HasSubstr("model.yaml, normalize_pixels")));
}

// --- folders ------------------------------------------------------------------------------------------------------

TEST(HfModel, AFolderThatDoesNotFitItsConfigIsRefusedBeforeAnythingIsWritten) {
  const TemporaryFolder folder, output;
  std::vector<ForeignTensor> tensors = nemotron_h_tensors(kLanguage, {});
  tensors.erase(tensors.begin());
  tensors.push_back(whole_parameter("mtp.layers.0.norm.weight", {24}, ""));
  tensors.push_back(whole_parameter("backbone.layers.9.norm.weight", {24}, ""));
  source_of(folder, tensors);
  folder.write("config.json", nemotron_h_json(kLanguage, Json::object(), "").dump());
  const std::string target = output.path() + "/braid";
  EXPECT_THAT(
      error_of([&] { import_hf(folder.path(), target); }),
      AllOf(HasSubstr("2 problems"), HasSubstr("'backbone.embeddings.weight' is missing, of shape [40, 24]"),
            HasSubstr("'backbone.layers.9.norm.weight' of shape [24] is not in the model"), Not(HasSubstr("mtp"))));
  folder.write("config.json", R"({"model_type": "llama"})");
  EXPECT_THAT(error_of([&] { import_hf(folder.path(), target); }), HasSubstr("model_type is \"llama\""));
  folder.write("config.json", "{}");
  EXPECT_THAT(error_of([&] { import_hf(folder.path(), target); }), HasSubstr("model_type is null"));
}

TEST(HfModel, AHostileConfigIsRefused) {
  const TemporaryFolder folder, output;
  const auto error_with = [&](const std::string& config) {
    folder.write("config.json", config);
    return error_of([&] { import_hf(folder.path(), output.path() + "/braid"); });
  };
  const std::string deep = std::string(150000, '[') + std::string(150000, ']');
  EXPECT_THAT(error_with(R"({"model_type":"nemotron_h","hidden_size":)" + deep + "}"), HasSubstr("32 deep"));
  EXPECT_THAT(error_with(std::string(17 << 20, ' ')), HasSubstr("more than the 16.00 MiB allowed"));
  EXPECT_THAT(error_with(R"({"model_type": ")" + std::string(1000, 'x') + R"("})"), HasSubstr("characters)"));
}

// --- inputs of braid forward ----------------------------------------------------------------------------------------

std::string forward_error(const TemporaryFolder& model, const std::vector<TensorInfo>& inputs) {
  const TemporaryFolder files;
  const std::string path = files.path() + "/inputs.safetensors";
  SafetensorsWriter writer = SafetensorsWriter::to_file(path, inputs);
  for (const TensorInfo& info : inputs)
    writer.write(info.name, std::vector<std::byte>(static_cast<std::size_t>(bytes_of(info))));
  writer.finish();
  return error_of([&] {
    check_forward({.model = model.path(), .inputs = path, .outputs = files.path() + "/outputs.safetensors"});
  });
}

TEST(ForwardInputs, NamesAndNumbersOfAFileAreCutInMessages) {
  const TemporaryFolder folder;
  source_of(folder, nemotron_h_tensors(kLanguage, {}));
  folder.write("config.json", nemotron_h_json(kLanguage, Json::object(), "").dump());
  std::vector<TensorInfo> inputs;
  for (int i = 10; i < 40; ++i) inputs.push_back({fmt::format("{}\x1b[2J", i), StoredDtype::U8, {1}});
  EXPECT_THAT(forward_error(folder, inputs),
              AllOf(HasSubstr(R"(the inputs have unknown tensors: '10\x1b[2J', '11\x1b[2J')"),
                    HasSubstr(R"('29\x1b[2J', ... (30 in all))"), Not(HasSubstr("'30"))));
  EXPECT_THAT(forward_error(folder, {{"input_ids", StoredDtype::I64, {4}}, {"cu_seqlens", StoredDtype::I64, {30}}}),
              AllOf(HasSubstr("cu_seqlens [0, 0,"), HasSubstr("0, ... (30 in all)] do not match 4 tokens")));
}

TEST(HfModel, AModelFileWithMistakesIsRefused) {
  const TemporaryFolder folder, output;
  const std::string target = output.path() + "/hf";
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "lacks the kind of model"},
           {"kind: llama", "should be one of nemotron_h, radio"},
           {"kind: radio\nradio: {hiden: 3}", "did you mean 'hidden'?"},
           {"kind: radio\nradio: {hidden: 0}", "hidden"},
           {"kind: nemotron_h\nnemotron_h: {pattern: MX}", "'X' at position 2"},
           {"kind: nemotron_h\nnemotron_h: {pattern: " + std::string(20000, 'M') + "}", "20000 letters are too many"},
           {"kind: nemotron_h\nnemotron_h: {pattern: EE, experts: 4000000}", "experts=4000000 is too large"},
           {"kind: nemotron_h\nnemotron_h: {pattern: EEEEE, experts: 1000000}", "1000000 experts in each layer"},
           {"kind: nemotron_h\nnemotron_h: {shared_ffn: -2}", "shared_ffn=-2 must be at least 1"},
           {"kind: radio\nradio: {layers: 2000000}", "layers=2000000 is too large"},
           {"kind: radio\nradio: {patch: 100000, channels: 100000, position_side: 100000}", "3 problems"},
           {"kind: radio\nradio: " + std::string(150000, '['), "is nested 500 levels deep"},
           {"kind: " + std::string(20 << 20, 'x'), "more than the 16.00 MiB allowed"},
           {"kind: radio", "neither model.safetensors nor"}}) {
    folder.write("model.yaml", text);
    EXPECT_THAT(error_of([&] { export_hf(folder.path(), target); }), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace braid
