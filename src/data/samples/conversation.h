// The contents of a stored sample: turns of a conversation, and the pictures in it.
//
// Typed data sets (dataset.yaml with sample_type and field_map) are read by their type. Others are read by the recipe's
// `data.fields` or, without those, by the usual names in a part `json`: conversations, question and answer, caption,
// text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/samples/data_config.h"
#include "data/shards/metadataset.h"
#include "data/shards/shard.h"
#include "data/text/chat.h"

namespace braid {

inline constexpr std::string_view kPictureTag = "<image>";  // marks the place of a picture in a text

struct Picture {
  std::string name;          // of the part, for messages
  std::string_view bytes;    // the file; valid as long as the sample
  std::uint64_t offset = 0;  // of these bytes in the shard

  std::span<const std::uint8_t> file() const {
    return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
  }
};

struct Conversation {
  std::vector<ChatTurn> turns{};
  std::vector<Picture> pictures{};    // in the order of their tags
  TemplateInput tools{};              // a list of what the assistant may call
  std::vector<std::string> unused{};  // names of the sample's keys and parts that nothing here reads
};

// The fields that the recipe maps, by key.
std::vector<std::pair<const char*, std::string>> mapped_fields(const SampleFields& fields);

// Data sets of a blend whose samples cannot be read, as problems: they need Python, or have an unknown type, or the
// recipe maps no text or several.
std::vector<Problem> unreadable_leaves(const Blend& blend, const SampleFields& fields);

// For each data set of a blend, the name and value of how it maps parts to fields: see LaneIdentity.
std::vector<std::pair<std::string, std::string>> mappings_of(const Blend& blend, const SampleFields& fields);

// DataError, without the sample's name, if the sample lacks a field, or if texts and pictures do not match.
Conversation read_conversation(const Sample& sample, const SampleSpec& spec, const SampleFields& fields);

}  // namespace braid
