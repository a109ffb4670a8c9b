// The shards of a module's parameters that one rank holds, by name.
#pragma once

#include <ATen/core/Tensor.h>
#include "plan/param_spec.h"
#include "tensor/weight.h"

namespace braid {

class Parameters {
 public:
  // The optimizer gathers updated values while the next step begins, and sets this to wait for one of them.
  struct Arrival {
    std::function<void()> await{};
  };
  struct Entry {
    ParamSpec spec;
    at::Tensor value;
    std::shared_ptr<GradientSum> gradient = std::make_shared<GradientSum>();
    std::shared_ptr<Fp8Copies> fp8{};
    std::shared_ptr<Arrival> arrival = std::make_shared<Arrival>();
  };

  // Allocates, without initialising, the shards of those `specs` that belong to these stages.
  Parameters(const std::vector<ParamSpec>& specs, const std::vector<int>& stages, const ShardCoordinates& coordinates,
             at::ScalarType dtype, const at::Device& device);
  Parameters(const std::vector<ParamSpec>& specs, int stage, const ShardCoordinates& coordinates, at::ScalarType dtype,
             const at::Device& device)
      : Parameters(specs, std::vector<int>{stage}, coordinates, dtype, device) {}

  // Sets every value by seed, name and global index, so that it does not depend on the layout. `done` counts elements
  // meanwhile, for a progress display on another thread.
  void initialize(std::uint64_t seed, std::atomic<std::int64_t>* done = nullptr);

  const at::Tensor& get(const std::string& name) const;
  Weight weight(const std::string& name) const;
  const ParamSpec& spec(const std::string& name) const;
  at::Tensor get_if_declared(const std::string& name) const;  // undefined when the model has no such parameter

  // Returns once the values of all parameters whose names begin with `prefix`, at least one, may be read on the current
  // stream. Whatever reads parameters in a forward calls this before; other readers call
  // ModuleOptimizer::finish_parameters().
  void await(std::string_view prefix) const;

  const std::vector<Entry>& entries() const { return entries_; }
  const ShardCoordinates& coordinates() const { return coordinates_; }
  std::int64_t bytes() const;
  std::int64_t elements() const;
  bool trains() const;  // whether any of them requires a gradient

 private:
  ShardCoordinates coordinates_;
  const Entry& entry(const std::string& name) const;

  std::vector<Entry> entries_;  // in declaration order
  std::map<std::string, std::size_t, std::less<>> index_;
};

// A view of the box of `size` that begins at `begin`.
at::Tensor box_of(at::Tensor tensor, const std::vector<std::int64_t>& begin, const std::vector<std::int64_t>& size);

}  // namespace braid
