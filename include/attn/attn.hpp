// libattn: exact fused attention, softmax(scale · Q·Kᵀ)·V, for C++20. This header brings everything:
// Problem → validate → support → make_plan → run, and the one-call helper forward.
// Tested in tests/unit and tests/consumer.
#pragma once

#include <attn/plan.hpp>
#include <attn/problem.hpp>
#include <attn/status.hpp>
#include <attn/tensor.hpp>
#include <attn/version.hpp>
#include <cstdint>
#include <span>

namespace attn::inline v1 {

// Options of the one-call helper; each means what the field of Problem of the same name means.
struct ForwardOptions {
  std::optional<float> softmax_scale{};
  bool causal = false;
  Alignment alignment = Alignment::kUnset;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  float softcap = 0.0F;
  const float* sinks = nullptr;  // heads_q logits
  bool lse_with_sink = true;
  const float* alibi_slopes = nullptr;  // heads_q slopes
  TensorView lse{};                     // absent: not computed
  bool batch_invariant = false;
  PlanOptions plan{};
  void* stream = nullptr;
};

// Dense attention in one call: the Problem is read off the views. Backend::kAuto is the device that q lies
// on. Plans are cached (thread-safe); the workspace is allocated for the call where the plan needs one. For
// variable lengths, paged K/V, appends or calls that must not allocate, use make_plan and run.
ATTN_API Status forward(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o,
                        const ForwardOptions& options = {});

// A partial result over some of the keys: O normalised by its own sum, and its natural-log LSE.
struct Partial {
  TensorView o;    // (batch, seqlen_q, heads_q, head_dim_v), fp32, fp16 or bf16
  TensorView lse;  // fp32 (batch, heads_q, seqlen_q, 1)
};

// Merges partial results over disjoint sets of keys (ring attention, splits, shared prefixes), by
// log-sum-exp in fp32. A row that is empty in all partials gives O = 0, LSE = −inf; merging any number of
// empty rows with one other gives that other bit for bit. o may be of another dtype than the partials and
// may be one of them, as may lse; lse may be absent. Host memory.
ATTN_API Status merge_partials(std::span<const Partial> partials, const TensorView& o, const TensorView& lse);

}  // namespace attn::inline v1
