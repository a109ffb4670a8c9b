#include "data/text/pre_tokenizer.h"

#include <map>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/byte_level.h"
#include "data/text/pattern.h"

namespace braid {
namespace {

constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class SplitByPattern : public PieceStep {
 public:
  SplitByPattern(Regex pattern, SplitBehavior behavior, bool inverted)
      : pattern_(std::move(pattern)), behavior_(behavior), inverted_(inverted) {}

  void apply(Pieces& pieces) const override {
    std::vector<Piece> parts;
    parts.reserve(pieces.text.size() / 4 + 1);
    PieceSplitter splitter(behavior_, inverted_, parts);
    RegexScan scan(pattern_);
    for (const Piece& piece : pieces.list) {
      splitter.start(piece);
      scan.start(pieces.view(piece));
      while (const auto match = scan.next()) splitter.match(match->begin, match->end);
      splitter.finish();
    }
    pieces.list.swap(parts);
  }

 private:
  Regex pattern_;
  const SplitBehavior behavior_;
  const bool inverted_;
};

// Writes every piece anew.
class Rewrite : public PieceStep {
 public:
  void apply(Pieces& pieces) const override {
    std::string text;
    text.reserve(pieces.text.size() + pieces.text.size() / 2 + 16);
    for (Piece& piece : pieces.list) {
      const std::size_t begin = text.size();
      append(text, pieces.view(piece), piece.is_first);
      piece.begin = begin;
      piece.end = text.size();
    }
    pieces.text.swap(text);
  }

 private:
  virtual void append(std::string& out, std::string_view piece, bool is_first) const = 0;
};

class PrefixSpace : public Rewrite {
  void append(std::string& out, std::string_view piece, bool) const override {
    if (!piece.starts_with(' ')) out += ' ';
    out += piece;
  }
};

class ToByteLevel : public Rewrite {
  void append(std::string& out, std::string_view piece, bool) const override { append_byte_level(out, piece); }
};

enum class Prepend { Always, First, Never };

class Metaspace : public Rewrite {
 public:
  Metaspace(std::string replacement, Prepend prepend) : replacement_(std::move(replacement)), prepend_(prepend) {}

 private:
  void append(std::string& out, std::string_view piece, bool is_first) const override {
    const bool wanted = prepend_ == Prepend::Always || (prepend_ == Prepend::First && is_first);
    if (wanted && !piece.starts_with(' ') && !piece.starts_with(replacement_)) out += replacement_;
    for (const char c : piece)
      if (c == ' ')
        out += replacement_;
      else
        out += c;
  }

  const std::string replacement_;
  const Prepend prepend_;
};

SplitBehavior read_behavior(const JsonPlace& place) {
  static const std::map<std::string, SplitBehavior> behaviors = {
      {"Removed", SplitBehavior::Removed},
      {"Isolated", SplitBehavior::Isolated},
      {"MergedWithPrevious", SplitBehavior::MergedWithPrevious},
      {"MergedWithNext", SplitBehavior::MergedWithNext},
      {"Contiguous", SplitBehavior::Contiguous}};
  if (place.is_null()) return SplitBehavior::Isolated;
  const auto found = behaviors.find(place.string());
  if (found == behaviors.end()) place.expected("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  return found->second;
}

Prepend read_prepend(const JsonPlace& metaspace) {
  const JsonPlace place = metaspace["prepend_scheme"];
  const std::string scheme =
      place.string_or(metaspace["add_prefix_space"].boolean_or(true) ? "always" : "never");  // its older name
  if (scheme != "always" && scheme != "first" && scheme != "never") place.expected("always, first or never");
  return scheme == "always" ? Prepend::Always : scheme == "first" ? Prepend::First : Prepend::Never;
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonPlace& place) {
  if (!place.is_null()) add(place);
}

void PreTokenizer::add(const JsonPlace& place) {
  const auto step = [&]<class Step>(Step made) { steps_.push_back(std::make_unique<Step>(std::move(made))); };
  const auto split = [&](const char* pattern, SplitBehavior behavior, bool inverted = false) {
    step(SplitByPattern(Regex(pattern), behavior, inverted));
  };
  const std::string type = place.type();
  if (type == "Sequence") {
    for (const JsonPlace& part : place["pretokenizers"].elements()) add(part);
  } else if (type == "Split") {
    step(SplitByPattern(read_pattern(place["pattern"]), read_behavior(place["behavior"]),
                        place["invert"].boolean_or(false)));
  } else if (type == "ByteLevel") {
    if (place["add_prefix_space"].boolean_or(true)) step(PrefixSpace());
    if (place["use_regex"].boolean_or(true)) split(kGpt2Pattern, SplitBehavior::Isolated);
    step(ToByteLevel());
  } else if (type == "Digits") {
    split(R"(\p{@number})",
          place["individual_digits"].boolean_or(false) ? SplitBehavior::Isolated : SplitBehavior::Contiguous);
  } else if (type == "Whitespace") {
    split(R"([\p{@rustword}]+|[^\p{@rustword}\s]+)", SplitBehavior::Removed, /*inverted=*/true);
  } else if (type == "WhitespaceSplit") {
    split(R"(\s)", SplitBehavior::Removed);
  } else if (type == "Punctuation") {
    split(R"(\p{@punctuation})", read_behavior(place["behavior"]));
  } else if (type == "Metaspace") {
    const std::string replacement = place["replacement"].string_or("\u2581");
    if (replacement.empty()) place["replacement"].refuse("should not be empty");
    step(Metaspace(replacement, read_prepend(place)));
    if (place["split"].boolean_or(true))
      step(SplitByPattern(Regex::literal(replacement), SplitBehavior::MergedWithNext, /*inverted=*/false));
  } else {
    place.refuse(
        fmt::format("has type {}; known pre-tokenizers: Sequence, Split, ByteLevel, Digits, Whitespace, "
                    "WhitespaceSplit, Punctuation, Metaspace",
                    in_quotes(type)));
  }
}

void PreTokenizer::apply(Pieces& pieces) const {
  for (const auto& step : steps_) step->apply(pieces);
}

}  // namespace braid
