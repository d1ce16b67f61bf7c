// Device code of the kernel checks: inputs, a float64 reference by rows, comparisons. Written apart from the
// kernels under test (no CuTe, no shared headers), so that a mistake there is not repeated here.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace {

__device__ std::uint64_t mix(std::uint64_t x) {  // SplitMix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ float normal(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = mix(seed * 0x100000001B3ull + index);
  const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
  const float w = static_cast<float>(bits & 0xFFFFFF) * 0x1p-24f;
  return sqrtf(-2.0f * logf(u)) * cospif(2.0f * w);
}

template <class T>
__device__ T make(float x);
template <>
__device__ __nv_bfloat16 make(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __half make(float x) {
  return __float2half_rn(x);
}

struct View {
  void* data;
  long long batch, seqlen, heads;  // strides, elements
};

// value = scale · normal; column 0 of the row j becomes column0 + slope · floor(j / step) where step > 0.
template <class T>
__device__ void fill(View view, int rows, int heads, int batch, int dim, unsigned long long seed, float scale,
                     float column0, float slope, int step) {
  const long long count = 1ll * rows * heads * batch * dim;
  for (long long i = blockIdx.x * 1ll * blockDim.x + threadIdx.x; i < count;
       i += 1ll * gridDim.x * blockDim.x) {
    const int c = static_cast<int>(i % dim);
    const int h = static_cast<int>(i / dim % heads);
    const int j = static_cast<int>(i / dim / heads % rows);
    const int b = static_cast<int>(i / dim / heads / rows);
    float x = scale * normal(seed, i);
    if (step > 0 && c == 0) {
      x = column0 + slope * static_cast<float>(j / step);
    }
    static_cast<T*>(view.data)[b * view.batch + j * view.seqlen + h * view.heads + c] = make<T>(x);
  }
}

struct RowCase {
  View q, k, v, o;
  float* lse;
  long long lse_batch, lse_heads, lse_seqlen;
  int batch, heads_q, heads_kv, seqlen_q, seqlen_kv, dim_qk, dim_v;
  int lower, upper;  // row i sees keys j with i + lower <= j < i + upper
  int key_offset;
  float scale, softcap;
  const float* sinks;   // null, or heads_q
  const float* slopes;  // null, or heads_q
  int lse_with_sink;
  long long num_rows;  // of batch · heads_q · seqlen_q, checked: row r is r · row_step
  long long row_step;
  double* scores;  // gridDim.x · seqlen_kv
  float u;         // the contract's u of the element type
  float* ratio_o;  // gridDim.x: the worst |difference| / bound of the block's rows; NaN mismatch: 1e30
  float* ratio_lse;
};

__device__ double block_reduce(double x, bool max_not_sum) {
  __shared__ double slots[32];
  for (int d = 16; d > 0; d /= 2) {
    const double y = __shfl_xor_sync(0xffffffffu, x, d);
    x = max_not_sum ? fmax(x, y) : x + y;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
  __syncthreads();
  double all = slots[0];
  for (int w = 1; w < static_cast<int>(blockDim.x) / 32; ++w)
    all = max_not_sum ? fmax(all, slots[w]) : all + slots[w];
  return all;
}

// How far `got` is from `want` in units of `bound`; special values must be equal in kind.
__device__ float distance(double got, double want, double bound) {
  if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0.0f : 1e30f;
  if (isinf(want) || isinf(got)) return want == got ? 0.0f : 1e30f;
  return static_cast<float>(fabs(got - want) / bound);
}

template <class T>
__device__ void check_rows(RowCase c) {
  float worst_o = 0.0f;
  float worst_lse = 0.0f;
  double* scores = c.scores + 1ll * blockIdx.x * c.seqlen_kv;
  for (long long n = blockIdx.x; n < c.num_rows; n += gridDim.x) {
    const long long flat = n * c.row_step;
    const int i = static_cast<int>(flat % c.seqlen_q);
    const int h = static_cast<int>(flat / c.seqlen_q % c.heads_q);
    const int b = static_cast<int>(flat / c.seqlen_q / c.heads_q);
    const int hk = h / (c.heads_q / c.heads_kv);
    const int begin = max(0, i + c.lower);
    const int end = max(begin, min(c.seqlen_kv, i + c.upper));
    const T* q = static_cast<const T*>(c.q.data) + b * c.q.batch + i * c.q.seqlen + h * c.q.heads;
    const T* k = static_cast<const T*>(c.k.data) + b * c.k.batch + hk * c.k.heads;
    const T* v = static_cast<const T*>(c.v.data) + b * c.v.batch + hk * c.v.heads;
    double top = -INFINITY, nan_seen = 0, spread = 0, v_max = 0;
    for (int j = begin + threadIdx.x; j < end; j += blockDim.x) {
      double s = 0, absolute = 0;
      for (int e = 0; e < c.dim_qk; ++e) {
        const double x = static_cast<double>(static_cast<float>(q[e]));
        const double y = static_cast<double>(static_cast<float>(k[j * c.k.seqlen + e]));
        s += x * y;
        absolute += fabs(x * y);
      }
      for (int e = 0; e < c.dim_v; ++e) {
        v_max = fmax(v_max, fabs(static_cast<double>(static_cast<float>(v[j * c.v.seqlen + e]))));
      }
      s *= static_cast<double>(c.scale);
      if (c.softcap != 0) s = c.softcap * tanh(s / c.softcap);
      if (c.slopes != nullptr) s += static_cast<double>(c.slopes[h]) * (j - i - c.key_offset);
      scores[j] = s;
      if (isnan(s)) nan_seen = 1;
      top = fmax(top, s);
      spread = fmax(spread, fabs(static_cast<double>(c.scale)) * absolute);
    }
    top = block_reduce(top, true);
    nan_seen = block_reduce(nan_seen, true);
    spread = block_reduce(spread, true);
    v_max = block_reduce(v_max, true);
    const bool empty = top == -INFINITY && nan_seen == 0;
    double sum = 0;
    for (int j = begin + threadIdx.x; j < end; j += blockDim.x) {
      scores[j] = empty ? 0.0 : exp(scores[j] - top);
      sum += scores[j];
    }
    sum = block_reduce(sum, false);
    const double eps = 0x1p-22 * spread;
    const double keys_lse = empty ? -INFINITY : top + log(sum);
    double lse = keys_lse;
    if (c.sinks != nullptr) {  // one more logit in the denominator
      const double sink = c.sinks[h];
      const double high = fmax(keys_lse, sink);
      lse = isnan(keys_lse) || high == -INFINITY ? keys_lse
                                                 : high + log(exp(keys_lse - high) + exp(sink - high));
    }
    // Of the keys' own weights, what remains beside the sink.
    const double share = c.sinks == nullptr || empty ? 1.0 : exp(keys_lse - lse);
    for (int e = threadIdx.x; e < c.dim_v; e += blockDim.x) {
      double o = 0;
      for (int j = begin; j < end && !empty; ++j) {
        o += scores[j] * static_cast<double>(static_cast<float>(v[j * c.v.seqlen + e]));
      }
      const double want = empty ? 0.0 : o / sum * share;
      const T got = static_cast<const T*>(c.o.data)[b * c.o.batch + i * c.o.seqlen + h * c.o.heads + e];
      const double bound = (4.0 * c.u + 2.0 * eps) * v_max + 1e-300;
      worst_o = fmaxf(worst_o, distance(static_cast<float>(got), want, bound));
    }
    if (threadIdx.x == 0 && c.lse != nullptr) {
      const float got = c.lse[b * c.lse_batch + h * c.lse_heads + i * c.lse_seqlen];
      const double expected = c.lse_with_sink ? lse : keys_lse;
      worst_lse = fmaxf(worst_lse, distance(got, expected, 1e-3 + 2e-6 * fabs(expected) + eps));
    }
    __syncthreads();
  }
  const double all_o = block_reduce(worst_o, true);
  const double all_lse = block_reduce(worst_lse, true);
  if (threadIdx.x == 0) {
    c.ratio_o[blockIdx.x] = static_cast<float>(all_o);
    c.ratio_lse[blockIdx.x] = static_cast<float>(all_lse);
  }
}

}  // namespace

extern "C" __global__ void fill_bf16(View v, int rows, int heads, int batch, int dim, unsigned long long seed,
                                     float scale, float column0, float slope, int step) {
  fill<__nv_bfloat16>(v, rows, heads, batch, dim, seed, scale, column0, slope, step);
}
extern "C" __global__ void fill_fp16(View v, int rows, int heads, int batch, int dim, unsigned long long seed,
                                     float scale, float column0, float slope, int step) {
  fill<__half>(v, rows, heads, batch, dim, seed, scale, column0, slope, step);
}
// Row j of every head and batch becomes `bits`.
extern "C" __global__ void set_row(View v, int j, int heads, int batch, int dim, unsigned short bits) {
  const int count = heads * batch * dim;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const int c = i % dim, h = i / dim % heads, b = i / dim / heads;
    static_cast<unsigned short*>(v.data)[b * v.batch + j * v.seqlen + h * v.heads + c] = bits;
  }
}
// Column 0 of rows [begin, end) of every head and batch becomes x.
template <class T>
__device__ void set_column(View v, int begin, int end, int heads, int batch, float x) {
  const int count = (end - begin) * heads * batch;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const int h = i % heads, b = i / heads % batch, j = begin + i / heads / batch;
    static_cast<T*>(v.data)[b * v.batch + j * v.seqlen + h * v.heads] = make<T>(x);
  }
}
extern "C" __global__ void set_column_bf16(View v, int begin, int end, int heads, int batch, float x) {
  set_column<__nv_bfloat16>(v, begin, end, heads, batch, x);
}
extern "C" __global__ void set_column_fp16(View v, int begin, int end, int heads, int batch, float x) {
  set_column<__half>(v, begin, end, heads, batch, x);
}
extern "C" __global__ void check_rows_bf16(RowCase c) {
  check_rows<__nv_bfloat16>(c);
}
extern "C" __global__ void check_rows_fp16(RowCase c) {
  check_rows<__half>(c);
}
// counter[0] += words of a that differ from b.
extern "C" __global__ void count_different(const unsigned* a, const unsigned* b, long long words,
                                           unsigned long long* counter) {
  unsigned long long different = 0;
  for (long long i = blockIdx.x * 1ll * blockDim.x + threadIdx.x; i < words;
       i += 1ll * gridDim.x * blockDim.x) {
    different += a[i] != b[i];
  }
  if (different != 0) atomicAdd(counter, different);
}
// counter[0] += halfwords of the buffer outside the view's elements that are not `bits`;
// counter[1] += halfwords of the view that still are.
extern "C" __global__ void count_poison(View v, int rows, int heads, int batch, int dim,
                                        const unsigned short* all, long long halfwords, unsigned short bits,
                                        unsigned char* inside, unsigned long long* counter) {
  const long long count = 1ll * rows * heads * batch * dim;
  const long long base = static_cast<unsigned short*>(v.data) - all;
  const long long start = blockIdx.x * 1ll * blockDim.x + threadIdx.x, jump = 1ll * gridDim.x * blockDim.x;
  if (inside != nullptr) {  // first call: mark; second call (inside given, v.data null): look outside
    if (v.data != nullptr) {
      for (long long i = start; i < count; i += jump) {
        const int c = static_cast<int>(i % dim), h = static_cast<int>(i / dim % heads);
        const int j = static_cast<int>(i / dim / heads % rows), b = static_cast<int>(i / dim / heads / rows);
        const long long at = base + b * v.batch + j * v.seqlen + h * v.heads + c;
        inside[at] = 1;
        if (all[at] == bits) atomicAdd(counter + 1, 1ull);
      }
    } else {
      for (long long i = start; i < halfwords; i += jump) {
        if (!inside[i] && all[i] != bits) atomicAdd(counter, 1ull);
      }
    }
  }
}
