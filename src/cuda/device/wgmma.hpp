// The wgmma instructions that the kernels use, by the number of columns N: C (64 x N, fp32, registers) = or
// += A (64 x 16) · B (16 x N), A from shared memory or registers, B from shared memory. CuTe has atoms for
// some N only, and its extended table doubles the compile time of every file; N = 80, 112 and 160 are head
// dims. Operands are as in the PTX ISA, wgmma.mma_async. Tested by every kernel test; the descriptors are
// CuTe's (tests/unit/cuda_layouts_test.cpp).
#pragma once

#include <cstdint>

namespace attn::device {

// A wgmma matrix descriptor (CuTe: GmmaDescriptor) in two words.
struct Descriptor {
  std::uint32_t low;   // address and leading offset
  std::uint32_t high;  // stride and swizzle
};

// scale_d 0 overwrites C. Both operands K-major.
template <bool kBFloat16, int kN>
struct WgmmaShared;
// A in registers (packed pairs), B MN-major ("transposed").
template <bool kBFloat16, int kN>
struct WgmmaRegisters;

#define ATTN_C8(b)                                                                            \
  "+f"(c[b]), "+f"(c[b + 1]), "+f"(c[b + 2]), "+f"(c[b + 3]), "+f"(c[b + 4]), "+f"(c[b + 5]), \
      "+f"(c[b + 6]), "+f"(c[b + 7])
#define ATTN_C16(b) ATTN_C8(b), ATTN_C8(b + 8)
#define ATTN_C32(b) ATTN_C16(b), ATTN_C16(b + 16)
#define ATTN_C64(b) ATTN_C32(b), ATTN_C32(b + 32)

// Operand numbers of an accumulator, each list the one before and some more.
#define ATTN_D16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define ATTN_D32 ATTN_D16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ATTN_D40 ATTN_D32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ATTN_D48 ATTN_D40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ATTN_D56 ATTN_D48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define ATTN_D64 ATTN_D56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define ATTN_D80 ATTN_D64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define ATTN_D96 ATTN_D80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define ATTN_D128                                                                                        \
  ATTN_D96                                                                                               \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// One N: the accumulator's operand list, its C expressions, and the numbers of the operands that follow. A
// descriptor comes as two words: the upper one is a constant, and the compiler then knows it.
#define ATTN_WGMMA_OF_TYPE(TYPE, BF16, N, D, C, O0, O1, O2, O3, O4, O5, O6)                                 \
  template <>                                                                                               \
  struct WgmmaShared<BF16, N> {                                                                             \
    __device__ __forceinline__ static void multiply(Descriptor a, Descriptor b, float* c, int scale_d) {    \
      asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, " O4                                      \
                   ", 0;\n"                                                                                 \
                   "mov.b64 a, {" O0 ", " O1 "}; mov.b64 b, {" O2 ", " O3                                   \
                   "};\n"                                                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D                   \
                   "}, a, b, p, 1, 1, 0, 0;}\n"                                                             \
                   : C()                                                                                    \
                   : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "r"(scale_d));                       \
    }                                                                                                       \
  };                                                                                                        \
  template <>                                                                                               \
  struct WgmmaRegisters<BF16, N> {                                                                          \
    __device__ __forceinline__ static void multiply(const std::uint32_t (&a)[4], Descriptor b, float* c,    \
                                                    int scale_d) {                                          \
      asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, " O6                                         \
                   ", 0;\n"                                                                                 \
                   "mov.b64 b, {" O4 ", " O5                                                                \
                   "};\n"                                                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D "}, {" O0 ", " O1 \
                   ", " O2 ", " O3 "}, b, p, 1, 1, 1;}\n"                                                   \
                   : C()                                                                                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high), "r"(scale_d));    \
    }                                                                                                       \
  };
#define ATTN_WGMMA(...)                         \
  ATTN_WGMMA_OF_TYPE("bf16", true, __VA_ARGS__) \
  ATTN_WGMMA_OF_TYPE("f16", false, __VA_ARGS__)

#define ATTN_ACC16() ATTN_C16(0)
#define ATTN_ACC32() ATTN_C32(0)
#define ATTN_ACC40() ATTN_C32(0), ATTN_C8(32)
#define ATTN_ACC48() ATTN_C32(0), ATTN_C16(32)
#define ATTN_ACC56() ATTN_C32(0), ATTN_C16(32), ATTN_C8(48)
#define ATTN_ACC64() ATTN_C64(0)
#define ATTN_ACC80() ATTN_C64(0), ATTN_C16(64)
#define ATTN_ACC96() ATTN_C64(0), ATTN_C32(64)
#define ATTN_ACC128() ATTN_C64(0), ATTN_C64(64)

ATTN_WGMMA(32, ATTN_D16, ATTN_ACC16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
ATTN_WGMMA(64, ATTN_D32, ATTN_ACC32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
ATTN_WGMMA(80, ATTN_D40, ATTN_ACC40, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
ATTN_WGMMA(96, ATTN_D48, ATTN_ACC48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
ATTN_WGMMA(112, ATTN_D56, ATTN_ACC56, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
ATTN_WGMMA(128, ATTN_D64, ATTN_ACC64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
ATTN_WGMMA(160, ATTN_D80, ATTN_ACC80, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
ATTN_WGMMA(192, ATTN_D96, ATTN_ACC96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
ATTN_WGMMA(256, ATTN_D128, ATTN_ACC128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")

#undef ATTN_WGMMA
#undef ATTN_WGMMA_OF_TYPE
#undef ATTN_ACC16
#undef ATTN_D16
#undef ATTN_ACC32
#undef ATTN_D32
#undef ATTN_ACC40
#undef ATTN_D40
#undef ATTN_ACC48
#undef ATTN_D48
#undef ATTN_ACC56
#undef ATTN_D56
#undef ATTN_ACC64
#undef ATTN_D64
#undef ATTN_ACC80
#undef ATTN_D80
#undef ATTN_ACC96
#undef ATTN_D96
#undef ATTN_ACC128
#undef ATTN_D128
#undef ATTN_C8
#undef ATTN_C16
#undef ATTN_C32
#undef ATTN_C64

}  // namespace attn::device
