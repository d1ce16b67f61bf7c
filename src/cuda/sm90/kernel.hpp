// One forward kernel: barriers are set up, registers are handed from the producer warpgroup to the consumers,
// and each warp takes its role. Persistent: a block works through tiles until the producer says there are
// none. Tested by tests/kernels; what the compiler makes of it, by tests/kernels/resources.py.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/sm90/load.hpp"
#include "cuda/sm90/mainloop.hpp"
#include "cuda/sm90/store.hpp"

namespace attn::sm90 {

template <class Traits>
__device__ __forceinline__ void init_barriers(const cuda::ForwardParams& params,
                                              typename Traits::SharedStorage& shared) {
  constexpr KernelConfig kConfig = Traits::kConfig;
  const int loaders = params.plain == 0 ? 1 : Traits::kPlainLoaders;
  const int storers = params.plain == 0 ? 1 : 32;
  for (int i = 0; i < kConfig.q_slots; ++i) {
    shared.q_full[i].init(loaders);
    shared.q_empty[i].init(Traits::kConsumerThreads + storers);
  }
  for (int i = 0; i < Traits::kInfoSlots; ++i) {
    shared.o_full[i].init(Traits::kConsumerThreads);
    shared.redo_flag[i] = 0;
  }
  for (int i = 0; i < kConfig.k_stages; ++i) {
    shared.k_full[i].init(loaders);
    shared.k_empty[i].init(Traits::kConsumerWarps);
  }
  for (int i = 0; i < kConfig.v_stages; ++i) {
    shared.v_full[i].init(loaders);
    shared.v_empty[i].init(Traits::kConsumerWarps);
  }
  shared.counter_open.init(1);
  shared.cleaned.init(Traits::kConsumerThreads);
  shared.redo_count = 0;
  for (int i = 0; i < kConfig.warpgroups; ++i) {
    shared.redos[i][0] = shared.redos[i][1] = 0;
  }
  cutlass::arch::fence_barrier_init();
}

template <KernelKey kKey, KernelConfig kConfig>
__device__ __forceinline__ void forward(const cuda::ForwardParams& params) {
  using Traits = sm90::Traits<kKey, kConfig>;
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  auto& shared = *reinterpret_cast<typename Traits::SharedStorage*>(dynamic_shared);

  // Broadcast from lane 0, so that the compiler knows them to be the same in a warp.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int warpgroup = warp / 4;
  if (threadIdx.x == 0) {
    init_barriers<Traits>(params, shared);
  }
  __syncthreads();
  if constexpr (kKey.mask ==
                Mask::kBand) {  // without a mask it cost 1 to 2 % at head_dim 256, and gained nothing
    device::let_later_grids_start();
  }

  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<kConfig.producer_registers>();
    if (params.plain == 0) {
      if (warp == 0 && cute::elect_one_sync()) {
        Loader<Traits, false>{params, shared, 0}.run();
      } else if (warp == 1 && cute::elect_one_sync()) {
        Storer<Traits, false>{params, shared, 0}.run();
      }
    } else if (warp == 1) {
      Storer<Traits, true>{params, shared, static_cast<int>(threadIdx.x) % 32}.run();
    } else {  // warps 0, 2 and 3
      const int thread = static_cast<int>(threadIdx.x);
      Loader<Traits, true>{params, shared, thread < 32 ? thread : thread - 32}.run();
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConfig.consumer_registers>();
    device::wait_for_earlier_grids();
    Consumer<Traits> consumer{params, shared, warpgroup - 1, static_cast<int>(threadIdx.x) % 128};
    consumer.run();
  }
}

}  // namespace attn::sm90

// Defines the kernel `name`; expanded once in each file that CMake makes from instances/manifest.json.
#define ATTN_SM90_FORWARD(name, key, config)                           \
  extern "C" __global__ void __launch_bounds__((config).threads(), 1)  \
      name(const __grid_constant__ attn::cuda::ForwardParams params) { \
    attn::sm90::forward<(key), (config)>(params);                      \
  }
