// Plan and run: the life of a call. A Plan is a pure host decision (backend, kernel, tiles, splits,
// workspace bytes); run carries it out and allocates nothing, compiles nothing, synchronises nothing on a
// device. Tested in tests/unit/plan_test.cpp and by every conformance test.
#pragma once

#include <attn/export.hpp>
#include <attn/problem.hpp>
#include <attn/status.hpp>
#include <attn/tensor.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace attn::inline v1 {

enum class Backend : std::int32_t {
  kAuto =
      0,  // the GPU where one is usable and can do the problem, else the CPU; explain() says which and why
  kCpu = 1,
  kCuda = 2,
};

ATTN_API const char* to_string(Backend backend) noexcept;  // "auto", "cpu", "cuda"

struct PlanOptions {
  Backend backend = Backend::kAuto;
  int device = 0;   // CUDA device ordinal
  int threads = 0;  // CPU: at most so many threads; 0: as many as CPU affinity and container quota allow
  // CPU: a SIMD level of cpu_levels(); empty: environment ATTN_CPU_LEVEL, else the best. The braces keep
  // {.backend = …} free of -Wmissing-field-initializers.
  std::string cpu_level{};
  // A kernel by its name, as Plan::kernel and `attn list` give it; empty: chosen, by a file that `attn tune`
  // wrote (environment ATTN_TUNE_FILE) or by the backend's own rules. One that does not compute the problem
  // is refused.
  std::string kernel{};
};

// What one run reads and writes, checked before anything is written. Written tensors share no memory with
// others (docs/contract.md, rule 8). Every pointer is host memory for the CPU backend, device memory for the
// CUDA one, which asks the driver where each lies, unless all are those of the plan's last run.
struct Tensors {
  TensorView q{};  // (batch, seqlen_q, heads_q, head_dim_qk), or (1, total_q, …) with varlen_q
  TensorView k{};  // (batch, seqlen_kv, heads_kv, head_dim_qk), (1, total_kv, …) or (num_pages, page_size, …)
  TensorView v{};    // as k, with head_dim_v
  TensorView o{};    // as q, with head_dim_v; written
  TensorView lse{};  // fp32 (batch, heads_q, seqlen_q, 1), or (1, heads_q, total_q, 1) with varlen_q; written

  const std::int32_t* cu_seqlens_q = nullptr;   // batch + 1 ascending row offsets, the first 0
  const std::int32_t* cu_seqlens_kv = nullptr;  // batch + 1
  const std::int32_t* seqused_kv = nullptr;     // batch
  const std::int32_t* page_table = nullptr;     // (batch, page_table_stride): page of each page_size keys
  std::int64_t page_table_stride = 0;           // entries from one sequence's row to the next

  TensorView k_new{};       // (batch, seqlen_new, heads_kv, head_dim_qk)
  TensorView v_new{};       // (batch, seqlen_new, heads_kv, head_dim_v)
  TensorView rotary_cos{};  // fp32 (1, positions, 1, rotary_dim / 2)
  TensorView rotary_sin{};  // as rotary_cos

  const float* sinks = nullptr;         // heads_q
  const float* alibi_slopes = nullptr;  // heads_q, or (batch, heads_q) with alibi_batch_stride = heads_q
  std::int64_t alibi_batch_stride = 0;  // elements from one batch entry's slopes to the next; 0: shared
};

// One sentence on one backend.
struct BackendSupport {
  Backend backend = Backend::kCpu;
  bool supported = false;
  std::string reason;  // why not; empty when supported
};

struct PlanImpl;

class Plan {
 public:
  ATTN_API Plan() noexcept;  // empty: run refuses it
  ATTN_API ~Plan();
  ATTN_API Plan(const Plan&) noexcept;  // plans are immutable and shared
  ATTN_API Plan(Plan&&) noexcept;
  ATTN_API Plan& operator=(const Plan&) noexcept;
  ATTN_API Plan& operator=(Plan&&) noexcept;

  [[nodiscard]] ATTN_API bool valid() const noexcept;
  [[nodiscard]] ATTN_API const Problem& problem() const noexcept;
  [[nodiscard]] ATTN_API Backend backend() const noexcept;
  // Bytes of scratch that run needs, at an address that is a multiple of 64 (256 on a GPU).
  [[nodiscard]] ATTN_API std::size_t workspace_bytes() const noexcept;
  [[nodiscard]] ATTN_API int num_splits() const noexcept;
  // The kernel's name, such as "cpu:avx3" or "sm90:fwd_d128_bf16_band".
  [[nodiscard]] ATTN_API const std::string& kernel() const noexcept;
  // Several lines: backend, kernel, tiles, splits, threads, workspace, and a sentence for each backend that
  // was not taken.
  [[nodiscard]] ATTN_API std::string explain() const;

  [[nodiscard]] const PlanImpl* impl() const noexcept { return impl_.get(); }
  explicit Plan(std::shared_ptr<const PlanImpl> impl) noexcept;

 private:
  std::shared_ptr<const PlanImpl> impl_;
};

// Whether the problem is well formed, whatever the backend.
ATTN_API Status validate(const Problem& problem);
// Whether the tensors fit the problem: shapes, strides, dtypes, missing and superfluous arguments. Lengths
// and page tables are read (and checked) only if `metadata_on_host`.
ATTN_API Status validate(const Problem& problem, const Tensors& tensors, bool metadata_on_host);

// Every backend of this build, with a sentence for each that cannot.
[[nodiscard]] ATTN_API std::vector<BackendSupport> support(const Problem& problem,
                                                           const PlanOptions& options = {});

ATTN_API Status make_plan(const Problem& problem, const PlanOptions& options, Plan* plan);

// stream: a cudaStream_t/CUstream for CUDA plans (null: the default stream); must be null for CPU plans,
// which return when the work is done.
ATTN_API Status run(const Plan& plan, const Tensors& tensors, void* workspace, std::size_t workspace_bytes,
                    void* stream = nullptr);

// The SIMD levels that this build has, best first, and whether this CPU can run each.
struct CpuLevel {
  std::string name;  // "avx3", "avx2", "sse4", "sse2", "neon", …
  bool runnable = false;
};
[[nodiscard]] ATTN_API std::vector<CpuLevel> cpu_levels();

}  // namespace attn::inline v1
