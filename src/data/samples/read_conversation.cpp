// The conversation of a sample, from the values that say something about it.
#include "data/samples/conversation_builder.h"

namespace braid {
namespace {

std::string text_in(const FieldValue& value, const char* what) {
  if (const auto* part = std::get_if<const SamplePart*>(&value)) return std::string((*part)->bytes);
  return text_of(std::get<json>(value), what);
}

std::string answer_in(const FieldValue& value, ConversationBuilder& builder) {
  if (const auto* part = std::get_if<const SamplePart*>(&value)) return std::string((*part)->bytes);
  return builder.first_answer(std::get<json>(value));
}

bool add_pictures(const FieldValue& value, ConversationBuilder& builder) {
  return std::visit([&](const auto& pictures) { return builder.add_pictures(pictures); }, value);
}

json json_in(FieldValue value, const char* what) {
  if (auto* parsed = std::get_if<json>(&value)) return std::move(*parsed);
  json parsed = json::parse(std::get<const SamplePart*>(value)->bytes, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) throw DataError(fmt::format("{} is not valid JSON", what));
  return parsed;
}

// Leaves out the parts, and the keys of JSON parts, that none of these sources names.
void leave_out_unmapped(const Sample& sample, const std::vector<FieldSource>& sources, ConversationBuilder& builder) {
  std::map<std::string, std::set<std::string>> keys;  // by part; no keys: the whole part
  for (const FieldSource& source : sources)
    for (const auto& path : source.alternatives) {
      builder.use_part(path[0]);
      const auto [part, is_new] = keys.try_emplace(path[0]);
      if (path.size() == 1) part->second.clear();
      if (path.size() > 1 && (is_new || !part->second.empty())) part->second.insert(path[1]);
    }
  for (const auto& [name, used] : keys) {
    const SamplePart* part = used.empty() ? nullptr : sample.find(name);
    const json root = part ? json_in(part, "a part") : json();
    if (!root.is_object()) continue;
    for (const auto& [key, value] : root.items())
      if (!used.contains(key)) builder.leave_out_key(key, value);
  }
}

// Leaves out what the sample's type does not need, or what is `overruled`.
void leave_out_other_fields(const Sample& sample, const SampleSpec& spec, const std::set<const FieldSource*>& overruled,
                            ConversationBuilder& builder) {
  std::vector<std::string> used = find_sample_type(spec.sample_type)->fields;
  used.insert(used.end(), {"image", "images", "correct_choice_idx"});
  std::vector<FieldSource> sources;
  for (const auto& [field, source] : spec.field_map) {
    if (!overruled.contains(&source)) sources.push_back(source);
    const std::optional<FieldValue> value = contains(used, field) ? std::nullopt : find_field(sample, source);
    if (!value) continue;
    static const json kAPart = true;
    const json* parsed = std::get_if<json>(&*value);
    refuse_sound_or_video(field, parsed ? *parsed : kAPart);
    builder.leave_out_key(field, parsed ? *parsed : kAPart);
  }
  leave_out_unmapped(sample, sources, builder);
}

// Fields have Energon's names.
Conversation read_typed(const Sample& sample, const SampleSpec& spec) {
  ConversationBuilder builder(sample);
  const auto source_of = [&](std::string_view name) {
    const auto found = std::ranges::find(spec.field_map, name, [](const auto& field) { return field.first; });
    return found == spec.field_map.end() ? nullptr : &found->second;
  };
  const auto value = [&](const char* name) {
    if (const FieldSource* source = source_of(name)) return field_value(sample, *source);
    throw DataError(fmt::format("the field_map does not name {}", in_quotes(name)));
  };
  const auto text = [&](const char* name) { return text_in(value(name), name); };
  const std::string& type = spec.sample_type;
  if (type == "CaptioningSample") {
    builder.add_caption(text("caption"));
  } else if (type == "OCRSample") {
    builder.add_answer("", text("text"));
  } else if (type == "VQASample") {
    builder.add_answer(text("context"), answer_in(value("answers"), builder));
  } else if (type == "MultiChoiceVQASample") {
    const json right = source_of("correct_choice_idx") ? json_in(value("correct_choice_idx"), "the choice") : json(0);
    builder.add_choices(text("context"), json_in(value("choices"), "the list of choices"),
                        right.is_number_integer() ? right.get<std::int64_t>() : -1);
  } else if (type == "TextSample") {
    builder.say("", text("text"));
  } else if (type == "InterleavedSample") {
    builder.add_sequence(json_in(value("sequence"), "the sequence"));
  } else {  // SimilarityInterleavedSample
    builder.add_turns(json_in(value("texts"), "the list of texts"));
  }
  std::set<const FieldSource*> overruled;
  for (const char* name : {"image", "images"})
    if (const FieldSource* source = source_of(name)) {
      const auto pictures =
          builder.turns_name_pictures() ? find_field(sample, *source) : std::optional(field_value(sample, *source));
      if (pictures && !add_pictures(*pictures, builder)) overruled.insert(source);
    }
  leave_out_other_fields(sample, spec, overruled, builder);
  return builder.finish();
}

Conversation read_by_recipe(const Sample& sample, const SampleFields& fields) {
  ConversationBuilder builder(sample);
  builder.refuse_sound_and_video_parts();
  const auto value = [&](const std::string& field) {
    return field_value(sample, parse_field_source(field, "data.fields"));
  };
  if (!fields.tools.empty())
    if (auto tools = find_field(sample, parse_field_source(fields.tools, "data.fields.tools")))
      builder.add_tools(json_in(*std::move(tools), "the list of tools"));
  if (!fields.conversation.empty()) {
    builder.add_turns(json_in(value(fields.conversation), "the conversation"));
  } else if (!fields.question.empty()) {
    builder.add_answer(text_in(value(fields.question), "the question"), answer_in(value(fields.answer), builder));
  } else if (!fields.caption.empty()) {
    builder.add_caption(answer_in(value(fields.caption), builder));
  } else {
    builder.say("", text_in(value(fields.text), "the text"));
  }
  std::vector<FieldSource> sources;
  for (const auto& [key, field] : mapped_fields(fields)) {
    sources.push_back(parse_field_source(field, fmt::format("data.fields.{}", key)));
    // A data set may have samples without pictures among others.
    const auto pictures = field == fields.images ? find_field(sample, sources.back()) : std::nullopt;
    if (pictures && !add_pictures(*pictures, builder)) sources.pop_back();
  }
  leave_out_unmapped(sample, sources, builder);
  Conversation conversation = builder.finish();
  if (!fields.conversation.empty() && contains(conversation.unused, "tools"))
    throw DataError("it has tools, which the recipe does not map; set data.fields.tools=json[tools]");
  return conversation;
}

// The usual names. A sample without a part `json` is a picture with its caption in `txt`, or plain text.
Conversation read_by_usual_names(const Sample& sample) {
  ConversationBuilder builder(sample);
  builder.refuse_sound_and_video_parts();
  builder.use_part("json");
  const SamplePart* part = sample.find("json");
  const json root = part ? json_in(part, "its part 'json'") : json::object();
  std::set<const json*> used;
  const auto find = [&](std::initializer_list<const char*> keys) {
    return root.is_object() ? find_any(root, keys) : nullptr;
  };
  const auto use = [&](std::initializer_list<const char*> keys) { return *used.insert(find(keys)).first; };
  const json* turns = root.is_array() ? &root : use({"conversations", "conversation", "messages", "texts"});
  if (turns) builder.add_turns(*turns);
  const json* pictures = root.is_object() ? find_picture_list(root) : nullptr;
  if (!pictures) builder.add_all_pictures();
  if (pictures && builder.add_pictures(*pictures)) used.insert(pictures);
  if (const json* tools = use({"tools"})) builder.add_tools(*tools);
  if (!turns) {
    if (find({"question"}) && find({"answer"})) {
      builder.add_answer(text_of(*use({"question"}), "the question"), builder.first_answer(*use({"answer"})));
    } else if (const json* caption = use({"caption"})) {
      builder.add_caption(builder.first_answer(*caption));
    } else if (const json* plain = use({"text"})) {
      builder.say("", text_of(*plain, "the text"));
    } else if (const SamplePart* text = sample.find("txt")) {
      builder.use_part("txt");
      builder.has_pictures() ? builder.add_caption(std::string(text->bytes))
                             : builder.say("", std::string(text->bytes));
    }
  }
  if (root.is_object())
    for (const auto& [key, value] : root.items()) {
      if (used.contains(&value)) continue;
      refuse_sound_or_video(key, value);
      builder.leave_out_key(key, value);
    }
  return builder.finish();
}

// The tokens of a document, all of which are learned.
Conversation stored_ids(const Sample& sample) {
  const std::string_view bytes = sample.find("ids")->bytes;
  Conversation conversation = {.turns = {{"", ""}}, .ids = std::vector<int>(bytes.size() / sizeof(int))};
  std::memcpy(conversation.ids->data(), bytes.data(), bytes.size());
  return conversation;
}

bool maps_texts(const SampleFields& fields) {
  return !(fields.conversation + fields.question + fields.caption + fields.text).empty();
}

// A sample has one kind of text.
std::vector<Problem> problems_of(const SampleFields& fields) {
  const auto mapped = mapped_fields(fields);
  std::vector<std::string> texts;
  for (const auto& [key, field] : mapped)
    if (contains({"conversation", "question", "caption", "text"}, key))
      texts.push_back(fmt::format("data.fields.{}", key));
  if (texts.size() > 1)
    return {{fmt::format("the recipe maps {} kinds of text, but a sample has one", texts.size()), joined(texts, " "),
             "keep one of them"}};
  if (maps_texts(fields) || mapped.empty()) return {};
  return {{fmt::format("the recipe maps {}, but no text", mapped.front().first),
           fmt::format("data.fields.{}", mapped.front().first),
           "also map the text: data.fields.conversation, question and answer, caption or text"}};
}

}  // namespace

bool is_metadata_key(std::string_view key) {
  return key.starts_with("__") ||
         is_one_of(key, {"id",      "_id",    "uid",      "uuid",        "key",          "sample_id", "image_id",
                         "index",   "idx",    "turn_id",  "message_id",  "url",          "urls",      "source",
                         "src",     "origin", "dataset",  "data_source", "dataset_name", "license",   "split",
                         "subset",  "task",   "category", "tags",        "language",     "lang",      "model",
                         "version", "date",   "created",  "created_at",  "timestamp",    "metadata",  "meta",
                         "width",   "height", "size",     "sha256",      "md5",          "hash"});
}

std::vector<std::pair<const char*, std::string>> mapped_fields(const SampleFields& fields) {
  std::vector<std::pair<const char*, std::string>> mapped = {
      {"images", fields.images}, {"conversation", fields.conversation}, {"question", fields.question},
      {"answer", fields.answer}, {"caption", fields.caption},           {"text", fields.text},
      {"tools", fields.tools}};
  std::erase_if(mapped, [](const auto& field) { return field.second.empty(); });
  return mapped;
}

std::vector<Problem> unreadable_leaves(const Blend& blend, const SampleFields& fields) {
  std::vector<Problem> problems = problems_of(fields);
  if (maps_texts(fields)) return problems;
  for (const Leaf& leaf : blend.leaves) {
    if (leaf.spec.needs_python) problems.push_back(*leaf.spec.needs_python);
    if (!leaf.spec.needs_python && !leaf.spec.field_map.empty() && !find_sample_type(leaf.spec.sample_type))
      problems.push_back({fmt::format("{} has samples of type {}", leaf.data.path, leaf.spec.sample_type), "data.path",
                          fmt::format("known types are {}", sample_type_names())});
  }
  return problems;
}

std::vector<std::pair<std::string, std::string>> mappings_of(const Blend& blend, const SampleFields& fields) {
  std::vector<std::pair<std::string, std::string>> mappings;
  for (const Leaf& leaf : blend.leaves) {
    const auto& parts = leaf.spec.part_filter;
    mappings.emplace_back(fmt::format("the mapping in {}", in_quotes(leaf.spec.file)),
                          (leaf.spec.has_ids    ? "token ids"
                           : maps_texts(fields) ? "that of data.fields"
                                                : mapping_text(leaf.spec)) +
                              (parts ? fmt::format(", only the parts {}", joined(*parts, ", ")) : ""));
  }
  return mappings;
}

Conversation read_conversation(const Sample& sample, const SampleSpec& spec, const SampleFields& fields) {
  if (spec.has_ids) return stored_ids(sample);
  if (maps_texts(fields)) return read_by_recipe(sample, fields);
  return spec.field_map.empty() ? read_by_usual_names(sample) : read_typed(sample, spec);
}

}  // namespace braid
