// A CUDA plan run on host tensors, for the command and the checks: device copies of whole host ranges, views
// rebased onto them, results copied back. Contract: a range's copy has its host address modulo 256, so that
// alignment is what the caller made it; a fetch writes every byte of the ranges named as written, gaps and
// guards included, so that a stray write of the kernel shows. Not used by the library's own run. Tested by
// `attn selftest --backend cuda` and the conformance shapes on a GPU.
#pragma once

#include <attn/plan.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace attn::cuda {

class Staging {
 public:
  // Device, stream and workspace (filled with `workspace_fill`) of a CUDA plan.
  static Status open(const Plan& plan, std::uint8_t workspace_fill, std::unique_ptr<Staging>* staging);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Copies a host range to the device. Ranges come before the tensors that lie in them.
  Status add_range(void* host, std::size_t bytes, bool written);
  // Takes the run's tensors. Views that lie in no range added before get one of their own extent.
  Status set_tensors(const Tensors& host);

  Status run();          // enqueues
  Status synchronize();  // waits; reports what the run itself did wrong
  Status fetch();        // synchronizes and copies written ranges back
  // Mean seconds of `count` runs back to back, between two events.
  Status time_runs(std::int64_t count, double* seconds);

 private:
  struct Impl;
  explicit Staging(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attn::cuda
