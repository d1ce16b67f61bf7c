// attn::forward: dense attention in one call, with a small cache of plans. Tested in
// tests/unit/forward_test.cpp.
#include <pthread.h>

#include <attn/attn.hpp>
#include <cstdlib>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "core/env.hpp"
#include "core/limits.hpp"
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
  std::string env_level;
  std::string env_threads;

  friend bool operator==(const CacheKey&, const CacheKey&) = default;
};

// Few distinct shapes are alive at a time in one process; a linear look through so many is cheaper than a
// hash of the problem, and bounds what an endless variety of shapes can hold.
constexpr std::size_t kCachedPlans = 32;

// Guards the cache and its making. A child of fork has a copy of this mutex and not of the thread that may
// have held it: who forks takes it first.
std::mutex g_cache_mutex;
[[maybe_unused]] const int g_registered = pthread_atfork(
    [] { g_cache_mutex.lock(); }, [] { g_cache_mutex.unlock(); }, [] { g_cache_mutex.unlock(); });

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

struct FreeDeleter {
  void operator()(void* pointer) const noexcept { std::free(pointer); }
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

Status forward_impl(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o,
                    const ForwardOptions& options) {
  const CacheKey key{problem_of(q, k, v, options),
                     options.plan.backend,
                     options.plan.device,
                     options.plan.threads,
                     options.plan.cpu_level,
                     core::read_env(core::Env::kCpuLevel).value_or(""),
                     core::read_env(core::Env::kNumThreads).value_or("")};
  Plan plan;
  ATTN_RETURN_IF_ERROR(PlanCache::find_or_make(key, options.plan, &plan));

  Tensors tensors;
  tensors.q = q;
  tensors.k = k;
  tensors.v = v;
  tensors.o = o;
  tensors.lse = options.lse;
  tensors.sinks = options.sinks;
  tensors.alibi_slopes = options.alibi_slopes;

  std::size_t bytes = plan.workspace_bytes();
  std::unique_ptr<void, FreeDeleter> workspace;
  if (bytes > 0) {
    constexpr std::size_t kAlign = core::kWorkspaceAlignment;
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;  // aligned_alloc wants a multiple
    workspace.reset(std::aligned_alloc(kAlign, bytes));
    if (workspace == nullptr) {
      return {StatusCode::kOutOfMemory, "no memory for the workspace of " + std::to_string(bytes) + " bytes"};
    }
  }
  return run(plan, tensors, workspace.get(), bytes, options.stream);
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
