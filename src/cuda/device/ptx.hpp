// Instructions that CuTe has no name for, each a line of inline PTX. Contract: what the PTX ISA says of them.
#pragma once

#include <cstdint>

namespace attn::device {

// 2^x: ex2.approx.ftz.f32, error 2 ulp, ex2(-inf) = +0, ex2(NaN) = NaN (PTX ISA, ex2).
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1/x: rcp.approx.ftz.f32, error 1 ulp (PTX ISA, rcp).
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x): lg2.approx.ftz.f32, absolute error 2^-22 (PTX ISA, lg2).
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats to a packed pair, each rounded to nearest even; `low` lands in the lower half.
template <bool kBFloat16>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  std::uint32_t packed;
  if constexpr (kBFloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// sum + 0 · x of packed pairs: NaN from then on if x is Inf or NaN, else sum.
template <bool kBFloat16>
__device__ __forceinline__ std::uint32_t add_zero_times(std::uint32_t sum, std::uint32_t x) {
  if constexpr (kBFloat16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0u));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0u));
  }
  return sum;
}

// The address of something in shared memory, as instructions that read and write only there take it.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of 16-bit elements: word m of the lanes is matrix m, and lane l says where row l % 8 of
// matrix l / 8 goes.
__device__ __forceinline__ void store_matrices(std::uint32_t address, const std::uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Keeps the compiler from moving memory accesses across a barrier wait whose asm does not say "memory".
__device__ __forceinline__ void compiler_fence() {
  asm volatile("" ::: "memory");
}

// Waits until this thread's bulk stores have been written, not only read (CuTe's tma_store_wait is the
// latter).
__device__ __forceinline__ void bulk_stores_written() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Programmatic dependent launch (PTX ISA, griddepcontrol). The first: kernels behind this one that were
// launched so may start as soon as SMs become free. The second: waits until the kernels before this one have
// ended and what they wrote is seen.
__device__ __forceinline__ void let_later_grids_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_earlier_grids() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Whether some of the 128 threads that meet at a named barrier of the hardware say so.
__device__ __forceinline__ bool any_of_warpgroup(int barrier, bool own) {
  int any;
  asm volatile(
      "{.reg .pred p, q; setp.ne.s32 p, %1, 0; barrier.cta.red.or.aligned.pred q, %2, 128, p; selp.s32 %0, "
      "1, 0, q;}"
      : "=r"(any)
      : "r"(static_cast<int>(own)), "r"(barrier));
  return any != 0;
}

// A value that all lanes of the warp have, made of one vote a bit: a vote's result lies in a uniform
// register, so the addresses that depend on it are computed there. wgmma takes its descriptors from uniform
// registers only, and what lies elsewhere is moved there word by word, by each instruction anew.
__device__ __forceinline__ int uniform(int x) {
  return static_cast<int>(__ballot_sync(0xffffffffu, x >> threadIdx.x % 32 & 1));
}

// The same value, of which the compiler knows nothing: keeps address arithmetic that is needed once a tile
// from being hoisted out of the loop over tiles, where it would cost registers (and, at head_dim 256,
// spills).
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace attn::device
