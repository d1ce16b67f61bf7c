// attn::forward: dense attention in one call, with a small cache of plans. Tested in
// tests/unit/forward_test.cpp.
#include <attn/attn.hpp>
#include <cstdlib>
#include <list>
#include <mutex>
#include <new>
#include <string>

#include "core/env.hpp"
#include "core/fork.hpp"
#include "core/limits.hpp"
#include "core/plan_impl.hpp"
#include "core/refusal.hpp"

namespace attn::inline v1 {
namespace {

// What a plan depends on: the problem, the options and the environment that the options defer to.
struct CacheKey {
  Problem problem;
  Backend backend;
  int device;
  int threads;
  std::string cpu_level;
  std::string kernel;
  std::string env_level;
  std::string env_threads;
  std::string env_tune;

  friend bool operator==(const CacheKey&, const CacheKey&) = default;
};

// Few distinct shapes are alive at a time in one process; a linear look through so many is cheaper than a
// hash of the problem, and bounds what an endless variety of shapes can hold.
constexpr std::size_t kCachedPlans = 32;

std::mutex g_cache_mutex;  // guards the cache and its making
[[maybe_unused]] const int g_registered = core::held_over_fork<g_cache_mutex>();

class PlanCache {
 public:
  static Status find_or_make(const CacheKey& key, const PlanOptions& options, Plan* plan) {
    {
      const std::lock_guard lock(g_cache_mutex);
      std::list<Entry>& entries = cached();
      for (auto it = entries.begin(); it != entries.end(); ++it) {
        if (it->key == key) {
          entries.splice(entries.begin(), entries, it);
          *plan = it->plan;
          return {};
        }
      }
    }
    ATTN_RETURN_IF_ERROR(make_plan(key.problem, options, plan));
    const std::lock_guard lock(g_cache_mutex);
    std::list<Entry>& entries = cached();
    entries.push_front({key, *plan});
    if (entries.size() > kCachedPlans) {
      entries.pop_back();
    }
    return {};
  }

 private:
  struct Entry {
    CacheKey key;
    Plan plan;
  };
  // Never destroyed: calls from other static destructors stay valid.
  static std::list<Entry>& cached() {
    static auto* entries = new std::list<Entry>;
    return *entries;
  }
};

Problem problem_of(const TensorView& q, const TensorView& k, const TensorView& v,
                   const ForwardOptions& options) {
  Problem p;
  p.dtype = q.dtype;
  p.batch = q.shape[0];
  p.seqlen_q = q.shape[1];
  p.heads_q = q.shape[2];
  p.head_dim_qk = q.shape[3];
  p.seqlen_kv = k.shape[1];
  p.heads_kv = k.shape[2];
  p.head_dim_v = v.shape[3];
  p.softmax_scale = options.softmax_scale;
  p.causal = options.causal;
  p.alignment = options.alignment;
  p.window_left = options.window_left;
  p.window_right = options.window_right;
  p.softcap = options.softcap;
  p.sinks = options.sinks != nullptr;
  p.lse_with_sink = options.lse_with_sink;
  p.alibi = options.alibi_slopes != nullptr;
  p.want_lse = options.lse.present();
  p.batch_invariant = options.batch_invariant;
  return p;
}

// Backend::kAuto follows the data: a plan knows no pointers, this call does. Data on a device that the
// problem is too much for is refused by that device's backend, never moved.
PlanOptions resolve(PlanOptions options, const TensorView& q) {
  if (options.backend == Backend::kAuto) {
    options.backend = Backend::kCpu;
    for (const core::BackendEntry& entry : core::backends()) {
      const int device = entry.device_of != nullptr ? entry.device_of(q.data) : -1;
      if (device >= 0) {
        options.backend = entry.backend;
        options.device = device;
      }
    }
  }
  return options;
}

// Scratch of one call, from the host or from the plan's device.
class Scratch {
 public:
  Scratch(const Plan& plan, void* stream)
      : plan_(*plan.impl()), stream_(stream), entry_(core::find_backend(plan.backend())) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (memory_ != nullptr && on_device()) {
      entry_->release(plan_, memory_, stream_);
    } else {
      std::free(memory_);
    }
  }

  Status allocate(std::size_t bytes) {
    if (bytes == 0) {
      return {};
    }
    if (on_device()) {
      return entry_->allocate(plan_, bytes, stream_, &memory_);
    }
    constexpr std::size_t kAlign = core::kWorkspaceAlignment;
    memory_ = std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);  // it wants a multiple
    if (memory_ == nullptr) {
      return {StatusCode::kOutOfMemory, "no memory for the workspace of " + std::to_string(bytes) + " bytes"};
    }
    return {};
  }
  [[nodiscard]] void* data() const noexcept { return memory_; }

 private:
  [[nodiscard]] bool on_device() const noexcept { return entry_ != nullptr && entry_->allocate != nullptr; }

  const PlanImpl& plan_;
  void* stream_;
  const core::BackendEntry* entry_;
  void* memory_ = nullptr;
};

Status forward_impl(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o,
                    const ForwardOptions& options) {
  const PlanOptions plan_options = resolve(options.plan, q);
  const CacheKey key{problem_of(q, k, v, options),
                     plan_options.backend,
                     plan_options.device,
                     plan_options.threads,
                     plan_options.cpu_level,
                     plan_options.kernel,
                     core::read_env(core::Env::kCpuLevel).value_or(""),
                     core::read_env(core::Env::kNumThreads).value_or(""),
                     core::read_env(core::Env::kTuneFile).value_or("")};
  Plan plan;
  ATTN_RETURN_IF_ERROR(PlanCache::find_or_make(key, plan_options, &plan));

  Tensors tensors;
  tensors.q = q;
  tensors.k = k;
  tensors.v = v;
  tensors.o = o;
  tensors.lse = options.lse;
  tensors.sinks = options.sinks;
  tensors.alibi_slopes = options.alibi_slopes;

  Scratch scratch(plan, options.stream);
  ATTN_RETURN_IF_ERROR(scratch.allocate(plan.workspace_bytes()));
  return run(plan, tensors, scratch.data(), plan.workspace_bytes(), options.stream);
}

}  // namespace

Status forward(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o,
               const ForwardOptions& options) {
  try {
    return forward_impl(q, k, v, o, options);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for the call"};
  }
}

}  // namespace attn::inline v1
