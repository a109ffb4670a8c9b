// Rows of one matrix in places of another. The oracle is a loop over the places, a slice at a time.
#include "ops/gradients.h"
#include "ops/rows.h"

namespace braid {
namespace {

using namespace testing;

constexpr Roundings kNoRounding = {0, /*stored=*/0};

struct Case {
  std::string name;
  std::vector<std::int64_t> row_of;  // by place
  std::int64_t rows;
};

const std::vector<Case> kCases = {{"some, in another order, with an unused row", {-1, 2, -1, 0, 3, -1}, 5},
                                  {"every place", {1, 0, 2}, 3},
                                  {"no row used", {-1, -1, -1}, 2},
                                  {"no rows", {-1, -1}, 0},
                                  {"one place, one row", {0}, 1},
                                  {"one place", {-1}, 1},
                                  {"no places", {}, 3}};

at::Tensor integers(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong).to(test_device()); }

RowPlaces places_of(const Case& c) {
  std::vector<std::int64_t> place_of(static_cast<std::size_t>(c.rows), -1);
  for (std::size_t place = 0; place < c.row_of.size(); ++place)
    if (c.row_of[place] >= 0) place_of[static_cast<std::size_t>(c.row_of[place])] = static_cast<std::int64_t>(place);
  return {integers(c.row_of), integers(place_of)};
}

Tensors inputs_of(const Case& c, std::int64_t width) {
  return {random_tensor({std::ssize(c.row_of), width}, 1), random_tensor({c.rows, width}, 2)};
}

Operator put(const Case& c) {
  return [places = places_of(c)](const Tensors& in) { return put_rows(in[0], in[1], places); };
}

Operator naive(const Case& c) {
  return [row_of = c.row_of](const Tensors& in) {
    Tensors rows = {in[0].narrow(0, 0, 0), in[1].narrow(0, 0, 0)};  // both inputs take part, even if none is used
    for (std::size_t place = 0; place < row_of.size(); ++place)
      rows.push_back(row_of[place] < 0 ? in[0].narrow(0, static_cast<std::int64_t>(place), 1)
                                       : in[1].narrow(0, row_of[place], 1));
    return at::cat(rows);
  };
}

TEST(PutRows, IsTheLoopForwardAndBackward) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    check_gradients(put(c), naive(c), inputs_of(c, 3));
    check_partial_gradients(put(c), inputs_of(c, 3));
  }
}

// Rows of any width are copied as they are: narrow ones, whole vectors of a kernel, more than a warp moves at once.
TEST(PutRows, ChangesNoBit) {
  for (const Case& c : kCases)
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const std::int64_t width : {3, 8, 264}) {
        SCOPED_TRACE(c.name);
        check_precision(put(c), inputs_of(c, width), dtype, kNoRounding);
      }
}

// Columns of a wider matrix, which are not aligned.
TEST(PutRows, TakesViews) {
  const Case& c = kCases[0];
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Tensors views;
    for (const at::Tensor& x : inputs_of(c, 17)) views.push_back(x.to(dtype).narrow(1, 1, 16));
    EXPECT_TRUE(at::equal(put(c)(views), naive(c)(views)));
    for (at::Tensor& view : views) view = view.t().contiguous().t();
    EXPECT_TRUE(at::equal(put(c)(views), naive(c)(views)));
  }
}

}  // namespace
}  // namespace braid
