// The filters, tests, methods and functions that chat templates may use.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "data/text/template_value.h"

namespace braid {

// Bounds what a template may do: a hostile one ends with a DataError.
class TemplateBudget {
 public:
  explicit TemplateBudget(std::int64_t steps) : steps_(steps) {}
  std::int64_t steps_left() const { return steps_; }
  void step() {
    if (--steps_ < 0) throw_exhausted("too many steps");
  }
  void bytes(std::size_t count) {
    if (count > bytes_) throw_exhausted("too much memory");
    bytes_ -= count;
  }

 private:
  [[noreturn]] static void throw_exhausted(const char* what);
  std::int64_t steps_;
  std::size_t bytes_ = 128 << 20;
};

// Each throws a DataError for unknown names and unsuitable values.
class TemplateBuiltins {
 public:
  // `now` is the time of strftime_now.
  TemplateBuiltins(TemplateHeap& heap, TemplateBudget& budget, const std::tm& now)
      : heap_(heap), budget_(budget), now_(now) {}

  TemplateValue filter(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments);
  bool test(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue method(const TemplateValue& self, const std::string& name, const TemplateArguments& arguments);
  TemplateValue function(const std::string& name, const TemplateArguments& arguments);

  static bool is_function(const std::string& name);
  static bool is_method(const TemplateValue& self, const std::string& name);

  // The values that a loop visits: items of a list, keys of a mapping, characters of a string.
  TemplateList items_of(const TemplateValue& value);
  TemplateList items_if_any(const TemplateValue& value);
  TemplateValue attribute(const TemplateValue& value, const std::string& name) const;
  TemplateValue slice(const TemplateValue& value, const TemplateValue* begin, const TemplateValue* end,
                      const TemplateValue* step);
  TemplateValue item(const TemplateValue& value, const TemplateValue& index);

 private:
  TemplateValue keep(TemplateText text);
  TemplateValue keep(TemplateList list);
  TemplateValue sorted(TemplateList items, const TemplateArguments& arguments);
  TemplateValue dict_sorted(const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue select(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue map(const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue text_filter(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue list_filter(const std::string& name, const TemplateValue& value, const TemplateArguments& arguments);
  TemplateValue text_method(const TemplateText& self, const std::string& name, const TemplateArguments& arguments);
  TemplateValue map_method(const TemplateMap& self, const std::string& name, const TemplateArguments& arguments);

  TemplateHeap& heap_;
  TemplateBudget& budget_;
  const std::tm now_;
};

}  // namespace braid
