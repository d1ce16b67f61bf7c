// ATTN_CPU_FILL(target, table): calls Fill(table) of the namespace of that target, among those this unit was
// compiled for. For the HWY_ONCE part of the kernel files.
#pragma once

#if HWY_TARGETS & HWY_AVX3
#define ATTN_CPU_FILL_AVX3(target, table) \
  if ((target) == HWY_AVX3) N_AVX3::Fill(table)
#else
#define ATTN_CPU_FILL_AVX3(target, table)
#endif
#if HWY_TARGETS & HWY_AVX2
#define ATTN_CPU_FILL_AVX2(target, table) \
  if ((target) == HWY_AVX2) N_AVX2::Fill(table)
#else
#define ATTN_CPU_FILL_AVX2(target, table)
#endif
#if HWY_TARGETS & HWY_SSE4
#define ATTN_CPU_FILL_SSE4(target, table) \
  if ((target) == HWY_SSE4) N_SSE4::Fill(table)
#else
#define ATTN_CPU_FILL_SSE4(target, table)
#endif
#if defined(HWY_SSE2) && (HWY_TARGETS & HWY_SSE2)
#define ATTN_CPU_FILL_SSE2(target, table) \
  if ((target) == HWY_SSE2) N_SSE2::Fill(table)
#else
#define ATTN_CPU_FILL_SSE2(target, table)
#endif
// NEON without AES where Highway (from 1.0.5 on) tells the two apart: no kernel uses AES.
#if defined(HWY_NEON_WITHOUT_AES) && (HWY_TARGETS & HWY_NEON_WITHOUT_AES)
#define ATTN_CPU_FILL_NEON(target, table) \
  if ((target) == HWY_NEON_WITHOUT_AES) N_NEON_WITHOUT_AES::Fill(table)
#elif HWY_TARGETS & HWY_NEON
#define ATTN_CPU_FILL_NEON(target, table) \
  if ((target) == HWY_NEON) N_NEON::Fill(table)
#else
#define ATTN_CPU_FILL_NEON(target, table)
#endif
#if HWY_TARGETS & HWY_SCALAR
#define ATTN_CPU_FILL_SCALAR(target, table) \
  if ((target) == HWY_SCALAR) N_SCALAR::Fill(table)
#else
#define ATTN_CPU_FILL_SCALAR(target, table)
#endif

#define ATTN_CPU_FILL(target, table) \
  ATTN_CPU_FILL_AVX3(target, table); \
  ATTN_CPU_FILL_AVX2(target, table); \
  ATTN_CPU_FILL_SSE4(target, table); \
  ATTN_CPU_FILL_SSE2(target, table); \
  ATTN_CPU_FILL_NEON(target, table); \
  ATTN_CPU_FILL_SCALAR(target, table)
