// Data sets and metadatasets on disk: what is read, and that every mistake names its file.
#include "data/shards/data_set.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "data/shards/document.h"
#include "data/shards/lane.h"
#include "data/shards/tar_files.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::prepared;
using testing::read_text;
using testing::tar_end;
using testing::tar_member;
using testing::write_text;

class DataSets : public ::testing::Test {
 protected:
  fs::path root() const { return folder_.path(); }
  fs::path meta(const std::string& file) const { return root() / "a/.nv-meta" / file; }
  void edit(const fs::path& path, const std::string& from, const std::string& to) const {
    std::string text = read_text(path);
    ASSERT_NE(text.find(from), text.npos) << text;
    write_text(path, text.replace(text.find(from), from.size(), to));
  }
  // Every sample of the data set, or what is wrong.
  std::string problem(const std::string& path = "a") const {
    try {
      const auto blend = open_blend(root() / path, "train");
      SampleReader reader(blend, 2);
      Lane lane(blend, {.is_training = false}, 0);
      while (const auto ref = lane.next()) reader.read(*ref);
      return "";
    } catch (const ConfigError& e) {
      return e.what();
    } catch (const DataError& e) {
      return e.what();
    }
  }
  std::string metadataset(const std::string& text) const {
    write_text(root() / "m.yaml", text);
    return problem("m.yaml");
  }

  testing::TemporaryFolder folder_;
  const std::string a_ = prepared(root() / "a", {3, 2}, "a");
};

TEST(BraceExpansion, IsThatOfBash) {
  const auto expand = [](const char* pattern) { return expand_braces(pattern, "here"); };
  EXPECT_THAT(expand("a.tar"), ElementsAre("a.tar"));
  EXPECT_THAT(expand("a{1..3}"), ElementsAre("a1", "a2", "a3"));
  EXPECT_THAT(expand("{08..11}"), ElementsAre("08", "09", "10", "11"));
  EXPECT_THAT(expand("{3..-1..2}"), ElementsAre("3", "1", "-1"));
  EXPECT_THAT(expand("{a,b{1,2}}x"), ElementsAre("ax", "b1x", "b2x"));
  EXPECT_THAT(expand("{,-x}"), ElementsAre("", "-x"));
  EXPECT_THAT(expand("{c..a}"), ElementsAre("c", "b", "a"));
  EXPECT_THAT(expand("x{one}"), ElementsAre("x{one}"));
  EXPECT_THAT(expand("\\{1,2\\}"), ElementsAre("{1,2}"));
  EXPECT_THAT(expand("{a,b}{1,2}"), ElementsAre("a1", "a2", "b1", "b2"));
  const auto error = [&](const std::string& pattern) {
    return error_of<ConfigError>([&] { expand_braces(pattern, "here"); });
  };
  EXPECT_THAT(error("a{1..2"), AllOf(HasSubstr("not closed"), HasSubstr("here")));
  EXPECT_THAT(error("a}"), HasSubstr("not opened"));
  EXPECT_THAT(error("{1..9999999999}"), HasSubstr("too large"));
  EXPECT_THAT(error("{-9223372036854775808..1}"), HasSubstr("too large"));
  EXPECT_THAT(error("{B..C..9223372036854775807}"), HasSubstr("too large"));
  EXPECT_THAT(error("{1..2..-9223372036854775808}"), HasSubstr("too large"));
  EXPECT_THAT(expand("{A..C..-2}"), ElementsAre("A", "C"));
  EXPECT_THAT(expand("{1..2..2147483647}"), ElementsAre("1"));
  EXPECT_THAT(error("{1..99999}{1..99999}"), HasSubstr("more than"));
  EXPECT_THAT(error(std::string(1000, '{') + std::string(1000, '}')), HasSubstr("nested too deep"));
}

// As after `tar -r`. Energon gives a dict, in which the last part of a name is in the place of the first.
TEST_F(DataSets, OfTwoPartsWithTheSameNameTheLastCounts) {
  const fs::path folder = fs::path(a_) / "twice";
  write_text(folder / "s.tar", tar_member("k.json", "old") + tar_member("k.png", "P") + tar_member("k.PNG", "Q") +
                                   tar_member("k.json", "new") + tar_end());
  prepare_data_set({.path = folder});
  const Sample sample = OpenShard({"s.tar", folder / "s.tar", 1}).read(0);
  std::vector<std::string> parts;
  for (const SamplePart& part : sample.parts) parts.push_back(fmt::format("{}={}", part.name, part.bytes));
  EXPECT_THAT(parts, ElementsAre("json=new", "png=P", "PNG=Q"));
  EXPECT_THAT(sample.replaced, ElementsAre("json"));
}

TEST_F(DataSets, AreReadAtRandomFromManyThreads) {
  const auto blend = open_blend(a_, "train");
  SampleReader reader(blend, 1);
  const Sample sample = reader.read({.shard = 1, .index = 1});
  EXPECT_EQ(sample.key, "a4");
  EXPECT_EQ(sample.shard, "a_1.tar");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (std::uint32_t i = 0; i < 200; ++i)
        EXPECT_EQ(reader.key({.shard = i % 2, .index = i % 2}), i % 2 ? "a4" : "a0");
    });
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(sample.find("txt"));  // its shard has left the cache
  EXPECT_EQ(sample.find("txt")->bytes, "text 4");
  EXPECT_FALSE(sample.find("jpg"));
}

TEST_F(DataSets, FieldsAreFoundInParts) {
  const Sample sample = SampleReader(open_blend(a_, "train")).read({});
  const auto text = [&](const char* source) {
    return std::get<const SamplePart*>(field_value(sample, parse_field_source(source, "")))->bytes;
  };
  const auto value = [&](const char* source) {
    return std::get<nlohmann::ordered_json>(field_value(sample, parse_field_source(source, "")));
  };
  EXPECT_EQ(text("txt"), "text 0");
  EXPECT_EQ(text("jpg,txt"), "text 0");
  EXPECT_EQ(value("json[n][0]"), 0);
  EXPECT_EQ(value("json[n][-1]"), 0);
  EXPECT_EQ(value("json[missing],json[n]"), nlohmann::ordered_json::array({0}));
  EXPECT_EQ(find_field(sample, parse_field_source("jpg,json[missing]", "")), std::nullopt);
  const auto error = [&](const char* source) { return error_of<DataError>([&] { value(source); }); };
  EXPECT_THAT(error("json[n][1]"), "it has no 'json[n][1]'");
  EXPECT_THAT(error("txt[a]"), HasSubstr("not valid JSON"));
  for (const char* bad : {"", "[a]", "a[", "a[]", "a[b", "a]b", "a[b]c", "a,,b"})
    EXPECT_THAT(error_of<ConfigError>([&] { parse_field_source(bad, "dataset.yaml"); }),
                HasSubstr("does not name a part"))
        << bad;
}

TEST_F(DataSets, DamagedShardsAreNamed) {
  const fs::path shard = root() / "a/a_1.tar", index = root() / "a/a_1.tar.idx";
  const std::string bytes = read_text(shard), entries = read_text(index);
  EXPECT_EQ(problem(), "");
  for (std::size_t size = 0; size < bytes.size() - 1024; size += 100) {
    write_text(shard, bytes.substr(0, size));
    EXPECT_THAT(problem(), HasSubstr("a_1.tar")) << size;
  }
  for (std::size_t i = 0; i < 512; ++i) {
    std::string damaged = bytes;
    damaged[2048 + i] = static_cast<char>(damaged[2048 + i] ^ 1);
    write_text(shard, damaged);
    if (i != 155) EXPECT_THAT(problem(), HasSubstr("a_1.tar")) << i;
  }
  write_text(shard, bytes);
  for (std::size_t size = 0; size < entries.size(); ++size) {
    write_text(index, entries.substr(0, size));
    EXPECT_THAT(problem(), HasSubstr("a_1.tar.idx")) << size;
  }
  for (std::size_t i = 8; i < entries.size(); ++i) {
    std::string damaged = entries;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x22);
    write_text(index, damaged);
    EXPECT_THAT(problem(), HasSubstr("a_1.tar")) << i;
  }
  fs::remove(index);
  EXPECT_THAT(problem(), HasSubstr("a_1.tar.idx"));
  write_text(index, entries);
  fs::remove(shard);
  EXPECT_THAT(problem(), HasSubstr("a_1.tar"));
}

TEST_F(DataSets, WrongCountsAndSplitsAreNamed) {
  edit(meta(".info.json"), "\"a_1.tar\": 2", "\"a_1.tar\": 3");
  EXPECT_THAT(problem(), AllOf(HasSubstr("a_1.tar.idx"), HasSubstr("2 samples"), HasSubstr(".info.json counts 3")));
  edit(meta(".info.json"), "\"a_1.tar\": 3", "\"a_1.tar\": -1");
  EXPECT_THAT(problem(), AllOf(HasSubstr(".info.json, shard_counts.a_1.tar"), HasSubstr("-1")));
  edit(meta(".info.json"), "\"a_1.tar\": -1", "\"a_1.tar\": \"two\"");
  EXPECT_THAT(problem(), HasSubstr("expected an integer"));
  edit(meta(".info.json"), "\"a_1.tar\": \"two\"", "\"other.tar\": 2");
  EXPECT_THAT(problem(), AllOf(HasSubstr("split.yaml"), HasSubstr("'a_1.tar'")));
  const std::string counts = "{\"shard_counts\": {\"a_0.tar\": 9223372036854775807, \"a_1.tar\": 9223372036854775807}}";
  write_text(meta(".info.json"), counts);
  EXPECT_THAT(problem(), HasSubstr("add up to an impossible number"));
  write_text(meta(".info.json"), "{\"shard_counts\": {\"a_0.tar\": 3, \"a_0.tar\": 3}}");
  EXPECT_THAT(problem(), AllOf(HasSubstr(".info.json"), HasSubstr("appears twice")));
  write_text(meta(".info.json"), "{\"shard_counts\": ");
  EXPECT_THAT(problem(), AllOf(HasSubstr(".info.json"), HasSubstr("not valid JSON")));
}

TEST_F(DataSets, MistakesInSplitsAreNamed) {
  EXPECT_THAT(error_of<ConfigError>([&] { open_data_set(a_, "test"); }),
              AllOf(HasSubstr("no split 'test'"), HasSubstr("train")));
  const auto with = [&](const char* text) {
    write_text(meta("split.yaml"), text);
    return problem();
  };
  EXPECT_THAT(with("split_parts: {train: []}"), HasSubstr("has no shards"));
  EXPECT_THAT(with("split_parts: {train: a_0.tar}"), HasSubstr("expected a list"));
  EXPECT_THAT(with("split_parts: {train: [1]}"), HasSubstr("split_parts.train[0]"));
  EXPECT_THAT(with("split_part: {train: [a_0.tar]}"), HasSubstr("did you mean `split_parts`"));
  EXPECT_THAT(with("split_parts: {train: [a_0.tar]}\nexclude: 3"), HasSubstr("split.yaml, exclude"));
  EXPECT_THAT(with("split_parts: [\n"), AllOf(HasSubstr("split.yaml:"), HasSubstr("not valid YAML")));
  EXPECT_THAT(with("split_parts: {train: [a_0.tar], train: []}"), HasSubstr("appears twice"));
  EXPECT_EQ(with("split_parts: {train: ['a_{0..1}.tar']}\nexclude: [a_0.tar/a1, a_0.tar/none]"), "");
  EXPECT_EQ(open_data_set(a_, "train").excluded.size(), 1u);
}

// Energon ignores them in silence.
TEST_F(DataSets, ExcludeEntriesWithoutAShardOrSampleAreFound) {
  write_text(meta("split.yaml"),
             "split_parts: {train: [a_0.tar], val: [a_1.tar]}\n"
             "exclude: [a_0.tar/a1, a_0.tar/none, 'b_{0..1}.tar', a_1.tar/none, a1, ./a_1.tar]\n");
  const DataSet train = open_data_set(a_, "train");
  EXPECT_THAT(train.unknown_excludes, ElementsAre("./a_1.tar", "a1", "a_0.tar/none", "b_0.tar", "b_1.tar"));
  EXPECT_THAT(open_data_set(a_, "val").unknown_excludes,
              ElementsAre("./a_1.tar", "a1", "a_1.tar/none", "b_0.tar", "b_1.tar"));
  EXPECT_THAT(exclude_warnings("set", train.unknown_excludes),
              ElementsAre(HasSubstr(
                  "of 'set' has entries that match no shard and no sample: './a_1.tar', 'a1', 'a_0.tar/none'")));
  EXPECT_THAT(exclude_warnings("set", {}), ::testing::IsEmpty());
}

TEST_F(DataSets, WhatNeedsPythonIsRefusedWithAnAnswer) {
  const auto with = [&](const char* text) {
    write_text(meta("dataset.yaml"), text);
    return error_of<ConfigError>([&] {
      if (const auto problem = open_blend(a_, "train")->leaves[0].spec.needs_python) throw ConfigError(*problem);
    });
  };
  EXPECT_THAT(with("sample_type: {__module__: megatron.energon, __class__: VQASample}\nsample_loader: "
                   "sample_loader.py:fn\npart_filter: sample_loader.py:parts"),
              AllOf(HasSubstr("dataset.yaml, sample_loader"), HasSubstr("field_map")));
  EXPECT_THAT(with("__module__: my.module\n__class__: Mine"), AllOf(HasSubstr("'my.module'"), HasSubstr("field_map")));
  EXPECT_THAT(with("__module__: megatron.energon\n__class__: CrudeWebdataset\npart_filter: f.py:fn"),
              HasSubstr("part_filter: [jpg, json]"));
  EXPECT_THAT(with("sample_type: {__module__: megatron.energon, __class__: VQASample}"), HasSubstr("field_map"));
  EXPECT_THAT(with("__module__: megatron.energon\n__class__: CrudeWebdataset\nshufle: 1"),
              HasSubstr("unknown key 'shufle'"));
  EXPECT_EQ(
      with(
          "__module__: megatron.energon\n__class__: VQAWebdataset\nfield_map: {image: jpg, context: 'json[0][value]'}"),
      "no error");
  EXPECT_EQ(open_blend(a_, "train")->leaves[0].spec.sample_type, "VQASample");
  EXPECT_EQ(with("__module__: megatron.energon\n__class__: CrudeWebdataset\npart_filter: [jpg]\nsubflavors: {k: 1}"),
            "no error");
  EXPECT_THAT(
      with("__module__: megatron.energon\n__class__: VQAWebdataset\nfield_map: {image: jpg}\npart_filter: [jpg]"),
      HasSubstr("exclude each other"));
}

TEST_F(DataSets, OnlyHaveThePartsOfTheirFilter) {
  write_text(meta("dataset.yaml"), "__module__: megatron.energon\n__class__: CrudeWebdataset\npart_filter: [txt, jpg]");
  const Sample sample = SampleReader(open_blend(a_, "train")).read({});
  EXPECT_TRUE(sample.find("txt"));
  EXPECT_FALSE(sample.find("json"));
}

constexpr const char* kV2 = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n";

TEST_F(DataSets, SubflavorsAreIgnored) {
  write_text(root() / "inner.yaml", "splits: {train: {datasets: [{path: a, subflavor: old, subflavors: {y: 2}}]}}");
  EXPECT_EQ(metadataset(std::string(kV2) + "    {path: inner.yaml, subflavors: {z: 3}}"), "");
}

TEST_F(DataSets, ImpossibleWeightsAndTotalsAreRefused) {
  const auto v2 = [&](const std::string& text) { return metadataset(kV2 + ("    " + text)); };
  EXPECT_THAT(v2("{blend: [{path: a, weight: 1e300}]}"), HasSubstr("blend[0].weight"));
  EXPECT_THAT(v2("{blend: [{path: a, weight: 1e-60}, {path: a}]}"), HasSubstr("is too small"));
  EXPECT_THAT(v2("{blend_epochized: [{path: a, repetitions: 1e300}]}"), HasSubstr("blend_epochized[0].repetitions"));
  EXPECT_EQ(v2("{blend_epochized: [{path: a, repetitions: 1e9}]}"), "");
  write_text(root() / "inner.yaml", kV2 + std::string("    blend_epochized: [{path: a, repetitions: 1e9}]"));
  EXPECT_THAT(v2("{blend_epochized: [{path: inner.yaml, repetitions: 1e9}]}"), HasSubstr("an epoch has 5e+18 samples"));
  edit(meta(".info.json"), "\"a_1.tar\": 2", "\"a_1.tar\": 1000000000000000");
  EXPECT_THAT(v2("{blend: [{path: a}, {path: a}]}"), HasSubstr("an epoch has 2e+15 samples"));
}

TEST_F(DataSets, MistakesInMetadatasetsAreNamed) {
  const auto v2 = [&](const std::string& text) { return metadataset(kV2 + ("    " + text)); };
  EXPECT_EQ(v2("{blend: [{path: a, weight: 2}, {path: ./a}]}"), "");
  EXPECT_THAT(v2("{blend: []}"), AllOf(HasSubstr("m.yaml, splits.train.blend"), HasSubstr("empty")));
  EXPECT_THAT(v2("{blend: [{path: a, weight: 0}]}"), HasSubstr("m.yaml, splits.train.blend[0].weight"));
  EXPECT_THAT(v2("{blend: [{path: a, weight: x}]}"), HasSubstr("above zero"));
  EXPECT_THAT(v2("{blend: [{path: a, repetitions: 2}]}"), HasSubstr("unknown key 'repetitions'"));
  EXPECT_THAT(v2("{blend: [{weight: 1}]}"), HasSubstr("`path` is missing"));
  EXPECT_THAT(v2("{blend: [{path: missing}]}"), HasSubstr("does not exist"));
  EXPECT_THAT(v2("{blend: [{path: 's3://a'}]}"), HasSubstr("remote"));
  EXPECT_THAT(v2("{blend: [{path: a, aux: {m: b}}]}"),
              AllOf(HasSubstr("auxiliary"), HasSubstr("splits.train.blend[0].aux")));
  EXPECT_THAT(v2("{join: [{path: a}], joiner: x}"), HasSubstr("joined"));
  EXPECT_THAT(v2("{path: a, subset: {range: [1, 9]}}"), HasSubstr("not within the 5 samples"));
  EXPECT_THAT(v2("{path: a, subset: {range: [60%, 40%]}}"), HasSubstr("do not make a range"));
  EXPECT_THAT(v2("{path: a, subset: {range: [1]}}"), HasSubstr("two bounds"));
  EXPECT_THAT(v2("{path: a, subset: {range: [1, 50%]}}"), HasSubstr("do not make a range"));
  EXPECT_THAT(v2("{path: a, shuffle_over_epochs_multiplier: 0}"), HasSubstr("not a number of epochs"));
  EXPECT_THAT(v2("{path: a, split_part: test}"), AllOf(HasSubstr("no split 'test'"), HasSubstr("split.yaml")));
  EXPECT_THAT(v2("{path: m.yaml}"), HasSubstr("a file that contains itself"));
  EXPECT_THAT(v2("{path: a, dataset_config: 7}"), HasSubstr("expected text"));
  EXPECT_THAT(metadataset("splits: {val: {datasets: [{path: a}]}}"), HasSubstr("no split 'train'"));
  EXPECT_THAT(metadataset("splits: 3"), HasSubstr("expected a mapping"));
  EXPECT_THAT(metadataset("[1, 2]"), HasSubstr("expected a mapping"));
  write_text(root() / "e.yaml", kV2 + std::string("    blend_epochized: [{path: a}]"));
  EXPECT_THAT(v2("{blend: [{path: e.yaml}]}"), HasSubstr("cannot contain each other"));
  std::string deep(100, '[');
  EXPECT_NE(metadataset(deep), "");
  EXPECT_THAT(metadataset("a: &a [1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d "
                          "[*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
                          "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g "
                          "[*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]"),
              HasSubstr("more than 3000000 values"));
}

TEST_F(DataSets, WeightsAreProductsAlongTheWay) {
  write_text(root() / "inner.yaml", "splits: {train: {datasets: [{path: a, weight: 1}, {path: a, weight: 3}]}}");
  EXPECT_EQ(metadataset(std::string(kV2) + "    blend: [{path: inner.yaml, weight: 2}, {path: a, weight: 6}]"), "");
  const auto blend = open_blend(root() / "m.yaml", "train");
  std::vector<double> weights;
  for (const Leaf& leaf : blend->leaves) weights.push_back(leaf.weight);
  EXPECT_THAT(weights, ElementsAre(0.0625, 0.1875, 0.75));
}

TEST_F(DataSets, SubsetsOfSubsetsAreShares) {
  EXPECT_EQ(Subset({.share = {0.2, 0.9}}).range(25, ""), std::pair(std::int64_t{5}, std::int64_t{22}));
  write_text(root() / "inner.yaml", kV2 + std::string("    {path: a, subset: {range: [25%, 75%]}}"));
  EXPECT_EQ(metadataset(std::string(kV2) + "    {path: inner.yaml, subset: {range: [0%, 50%]}}"), "");
  EXPECT_EQ(open_blend(root() / "m.yaml", "train")->leaves[0].subset.share, std::pair(0.25, 0.5));
}

TEST_F(DataSets, LinesAreSamples) {
  const fs::path lines = root() / "l.jsonl";
  write_text(lines, "{\"a\": 1}\n\n{\"a\": 2}\n");
  EXPECT_THAT(problem("l.jsonl"), HasSubstr("braid data prepare"));
  prepare_data_set({.path = lines});
  EXPECT_EQ(problem("l.jsonl"), "");
  const auto blend = open_blend(lines, "train");
  const Sample second = SampleReader(blend).read({.index = 1});
  EXPECT_EQ(second.key, "1");
  EXPECT_EQ(std::get<nlohmann::ordered_json>(field_value(second, parse_field_source("json[a]", ""))), 2);
  write_text(lines, "{\"a\": 1}\n{\"a\": 22222}\n");
  EXPECT_THAT(problem("l.jsonl"), HasSubstr("covers"));
}

}  // namespace
}  // namespace braid
