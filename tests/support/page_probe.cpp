// page_probe plan FILE: writes the page of example_plan(), for tests in a browser.

#include "predict/plan_page.h"
#include "support/plan_example.h"

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "plan") return 2;
  std::ofstream file(argv[2]);
  file << braid::plan_html(braid::testing::example_plan());
  return file.flush() ? 0 : 1;
}
