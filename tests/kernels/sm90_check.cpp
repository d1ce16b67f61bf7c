// Stand-alone conformance of the sm90 kernels on a GPU: every kernel of the table against a float64 reference
// on fresh random inputs, over tile edges, head ratios, data that is hard for an online softmax, poison and
// guards.
//   sm90_check [--seed N] [--only TEXT] [--quick | --tiny] [--json FILE]
// --tiny: a few small shapes, for compute-sanitizer.
// Exit code 0 only if every case held; 77 where there is no Hopper GPU. Each failing case prints one line
// that says how to repeat it.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/launch.hpp"
#include "gpu.hpp"

extern "C" const unsigned char attn_check_cubin[];

namespace attn::check {
namespace {

struct View {
  void* data;
  long long batch, seqlen, heads;
};
struct RowCase {  // as in check_kernels.cu
  View q, k, v, o;
  float* lse;
  long long lse_batch, lse_heads, lse_seqlen;
  int batch, heads_q, heads_kv, seqlen_q, seqlen_kv, dim_qk, dim_v;
  int lower, upper;
  int key_offset;
  float scale, softcap;
  const float* sinks;
  const float* slopes;
  int lse_with_sink;
  long long num_rows;
  long long row_step;
  double* scores;
  float u;
  float* ratio_o;
  float* ratio_lse;
};

// One problem. Logits beyond noise come from column 0: q[0] · k[0] with k[0] = key_start +
// key_slope·(j/step).
struct Level {  // keys [begin, end) have k[0] = value
  int begin, end;
  float value;
};
struct Case {
  int batch = 1, sq = 1, sk = 1, hq = 1, hk = 1;
  bool bottom_right = true;
  float scale = 0;  // 0 here: the default; use `zero_scale` for a real zero
  bool zero_scale = false;
  float q_scale = 1, v_exponent = 0;
  float column_q = 0, key_start = 0, key_slope = 0;
  int key_step = 0;
  std::vector<Level> levels;
  int dim_qk = 0, dim_v = 0;  // 0: the kernel's tile
  bool causal = false;        // band kernels: these three, softcap and slopes too
  int left = -1, right = -1;  // -1: unbounded
  float softcap = 0;          // 0: none
  float slope = 0;            // ALiBi: heads have slope · 2^-h; 0: none
  bool sinks = false, lse_with_sink = true;
  int plain = 0;  // rows off 16 bytes: 1 all tensors, 2 Q, 3 K and V, 4 O; 5: negative seqlen strides
  bool heads_first = false;      // memory order b, h, s, d
  bool broadcast_batch = false;  // K and V with batch stride 0
  int poison_key = -1;           // this key's K and V are NaN (seen only by rows that see it)
  unsigned short poison_bits = 0x7FFF;
  int force_static = 0;
  std::string label;
  std::string text() const {
    return label + " b" + std::to_string(batch) + " hq" + std::to_string(hq) + " hk" + std::to_string(hk) +
           " sq" + std::to_string(sq) + " sk" + std::to_string(sk) + (bottom_right ? " br" : " tl") +
           (dim_qk != 0 ? " d" + std::to_string(dim_qk) + "," + std::to_string(dim_v) : "") +
           (causal ? " causal" : "") +
           (left >= 0 || right >= 0 ? " window=" + std::to_string(left) + "," + std::to_string(right) : "") +
           (softcap != 0 ? " softcap=" + std::to_string(softcap) : "") +
           (slope != 0 ? " alibi=" + std::to_string(slope) : "") +
           (sinks ? (lse_with_sink ? " sinks" : " sinks, lse without") : "") +
           (plain != 0 ? " plain=" + std::to_string(plain) : "") + (heads_first ? " bhsd" : "") +
           (scale != 0 ? " scale=" + std::to_string(scale) : "") + (zero_scale ? " scale=0" : "") +
           (force_static ? " static" : "");
  }
};

constexpr int kCheckBlocks = 264;
constexpr std::size_t kMaxHeads = 4096;
constexpr unsigned short kPoison = 0x7FA5;  // NaN in bf16 and in fp16

struct Bench {
  Gpu gpu;
  std::size_t capacity = 1ull << 29;  // bytes of each tensor's arena
  std::size_t score_bytes = 1ull << 26;
  char *q, *k, *v, *o, *o_again, *workspace;
  unsigned char* inside;
  float *lse, *lse_again, *ratios, *sinks, *slopes;
  double* scores;
  unsigned long long* counter;
  unsigned long long seed = 1;

  void open(bool tiny) {
    if (tiny) capacity = 1ull << 26;  // initcheck and memcheck follow every byte
    gpu.open(attn_check_cubin);
    for (char** p : {&q, &k, &v, &o, &o_again}) *p = static_cast<char*>(gpu.allocate(capacity));
    inside = static_cast<unsigned char*>(gpu.allocate(capacity / 2));
    lse = static_cast<float*>(gpu.allocate(1 << 26));
    lse_again = static_cast<float*>(gpu.allocate(1 << 26));
    workspace = static_cast<char*>(gpu.allocate(256));
    scores = static_cast<double*>(gpu.allocate(score_bytes));
    ratios = static_cast<float*>(gpu.allocate(2 * kCheckBlocks * sizeof(float)));
    counter = static_cast<unsigned long long*>(gpu.allocate(16));
    sinks = static_cast<float*>(gpu.allocate(kMaxHeads * sizeof(float)));
    slopes = static_cast<float*>(gpu.allocate(kMaxHeads * sizeof(float)));
    gpu.set16(q, kPoison, capacity / 2);
    gpu.set(workspace, 0xA5, cuda::kCounterBytes);  // its contents do not matter, but initcheck looks
  }
};

struct Prepared {
  View q, k, v, o;
  cuda::DenseShape shape;
  cuda::DenseTensors tensors;
  std::size_t o_halfwords = 0;
  std::size_t lse_count = 0;
};

// Rows are padded by 8 elements (plain: by 7, from an odd base) and each batch entry (or head) by pad_rows
// rows, so that there are gaps. Returns the extent in elements as well, guards apart.
// NOLINTNEXTLINE(readability-non-const-parameter): the view is of an array that kernels write
View view_of(char* base, int rows, int heads, int dim, int batch, bool heads_first, int pad_rows, bool odd,
             bool backwards, std::size_t* extent) {
  const long long row = dim + (odd ? 7 : 8);
  View view{base + (odd ? 2 : 0), 0, 0, 0};
  if (heads_first) {
    view.batch = heads * (rows + pad_rows) * row;
    view.seqlen = row;
    view.heads = (rows + pad_rows) * row;
  } else {
    view.batch = (rows + pad_rows) * heads * row;
    view.seqlen = heads * row;
    view.heads = row;
  }
  *extent = static_cast<std::size_t>(view.batch) * static_cast<std::size_t>(batch) + 1;
  if (backwards && rows > 0) {
    view.data = static_cast<char*>(view.data) + view.seqlen * (rows - 1) * 2;
    view.seqlen = -view.seqlen;
  }
  return view;
}

Prepared prepare(Bench& b, const cuda::KernelEntry& entry, const Case& c) {
  const int dim_qk = c.dim_qk != 0 ? c.dim_qk : entry.key.head_dim_qk;
  const int dim_v = c.dim_v != 0 ? c.dim_v : entry.key.head_dim_v;
  const bool bf16 = entry.key.element == sm90::Element::kBFloat16;
  const char* fill = bf16 ? "fill_bf16" : "fill_fp16";
  Prepared p;
  // A guard of 64 rows' worth before each tensor, NaN everywhere that is not input.
  const std::size_t guard = 64 * (static_cast<std::size_t>(std::max(dim_qk, dim_v)) + 8) * 2;
  const int kv_batch = c.broadcast_batch ? 1 : c.batch;
  const bool all = c.plain == 1;
  const bool back = c.plain == 5;
  std::size_t extents[4];
  p.q = view_of(b.q + guard, c.sq, c.hq, dim_qk, c.batch, c.heads_first, 1, all || c.plain == 2, back,
                &extents[0]);
  p.k = view_of(b.k + guard, c.sk, c.hk, dim_qk, kv_batch, c.heads_first, 3, all || c.plain == 3, back,
                &extents[1]);
  p.v = view_of(b.v + guard, c.sk, c.hk, dim_v, kv_batch, c.heads_first, 3, all || c.plain == 3, back,
                &extents[2]);
  p.o = view_of(b.o + guard, c.sq, c.hq, dim_v, c.batch, c.heads_first, 2, all || c.plain == 4, back,
                &extents[3]);
  char* const bases[] = {b.q, b.k, b.v, b.o};
  for (int i = 0; i < 4; ++i) {
    b.gpu.set16(bases[i], kPoison, extents[i] + guard);
  }
  p.o_halfwords = extents[3] + guard;
  const unsigned long long seed = b.seed++;
  b.gpu.launch(fill, 264, 256, p.q, c.sq, c.hq, c.batch, dim_qk, seed * 3, c.q_scale, c.column_q, 0.0f,
               c.key_step > 0 ? 1 : 0);
  if (c.sk > 0) {
    b.gpu.launch(fill, 264, 256, p.k, c.sk, c.hk, kv_batch, dim_qk, seed * 3 + 1, 1.0f, c.key_start,
                 c.key_slope, c.key_step);
    b.gpu.launch(fill, 264, 256, p.v, c.sk, c.hk, kv_batch, dim_v, seed * 3 + 2, std::exp2(c.v_exponent),
                 0.0f, 0.0f, 0);
    for (const Level& level : c.levels) {
      b.gpu.launch(bf16 ? "set_column_bf16" : "set_column_fp16", 16, 256, p.k, level.begin, level.end, c.hk,
                   kv_batch, level.value);
    }
  }
  if (c.poison_key >= 0) {
    b.gpu.launch("set_row", 16, 256, p.k, c.poison_key, c.hk, kv_batch, dim_qk, c.poison_bits);
    b.gpu.launch("set_row", 16, 256, p.v, c.poison_key, c.hk, kv_batch, dim_v, c.poison_bits);
  }
  if (c.broadcast_batch) {
    p.k.batch = p.v.batch = 0;
  }
  cuda::DenseShape& shape = p.shape;
  shape.batch = c.batch;
  shape.seqlen_q = c.sq;
  shape.seqlen_kv = c.sk;
  shape.heads_q = c.hq;
  shape.heads_kv = c.hk;
  shape.head_dim_qk = dim_qk;
  shape.head_dim_v = dim_v;
  shape.scale = c.zero_scale ? 0.0F : c.scale != 0 ? c.scale : 1.0F / std::sqrt(static_cast<float>(dim_qk));
  shape.softcap = c.softcap;
  shape.lse_has_sink = c.lse_with_sink;
  const int off = c.bottom_right ? c.sk - c.sq : 0;
  shape.key_offset = off;
  const int right = c.causal ? 0 : c.right;
  shape.band_lower = c.left >= 0 ? std::clamp(off - c.left, -c.sq, c.sk) : -c.sq;
  shape.band_upper = right >= 0 ? std::clamp(off + right + 1, -c.sq, c.sk) : c.sk;
  const auto tensor = [](const View& v) { return cuda::DenseTensor{v.data, {v.batch, v.seqlen, v.heads}}; };
  p.tensors = {tensor(p.q), tensor(p.k), tensor(p.v), tensor(p.o), b.lse, {1LL * c.hq * c.sq, 1, c.sq}};
  if (c.sinks) {
    std::vector<float> sinks;
    for (int h = 0; h < c.hq; ++h) {
      sinks.push_back(h % 4 == 3 ? 40.0F : h % 4 == 2 ? -INFINITY : 0.5F * static_cast<float>(h % 7) - 1.0F);
    }
    b.gpu.write(b.sinks, sinks.data(), sinks.size() * sizeof(float));
    p.tensors.sinks = b.sinks;
  }
  if (c.slope != 0) {
    std::vector<float> slopes;
    for (int h = 0; h < c.hq; ++h) {
      slopes.push_back(c.slope * std::exp2(static_cast<float>(-(h % 8))));
    }
    b.gpu.write(b.slopes, slopes.data(), slopes.size() * sizeof(float));
    p.tensors.alibi_slopes = b.slopes;
  }
  p.lse_count = static_cast<std::size_t>(c.batch) * c.hq * c.sq;
  return p;
}

void run(Bench& b, const cuda::KernelEntry& entry, const Prepared& p, int force_static) {
  cuda::TileOrder order = cuda::order_tiles(entry, p.shape, b.gpu.device->size());
  if (force_static) order.dynamic = false;
  cuda::ForwardParams params;
  must(cuda::make_params(*b.gpu.device, entry, p.shape, p.tensors, order, &params), "make_params");
  must(cuda::launch(*b.gpu.device, entry, params, order, b.workspace, b.gpu.stream), "launch");
}

struct Result {
  float o = 0, lse = 0;  // worst ratios to the contract's bounds
  unsigned long long outside = 0, unwritten = 0;
  bool ok() const { return o <= 1 && lse <= 1 && outside == 0 && unwritten == 0; }
};

Result judge(Bench& b, const cuda::KernelEntry& entry, const Case& c, const Prepared& p) {
  const bool bf16 = entry.key.element == sm90::Element::kBFloat16;
  RowCase rows{p.q,
               p.k,
               p.v,
               p.o,
               b.lse,
               p.tensors.lse_strides.batch,
               p.tensors.lse_strides.heads,
               1,
               c.batch,
               c.hq,
               c.hk,
               c.sq,
               c.sk,
               static_cast<int>(p.shape.head_dim_qk),
               static_cast<int>(p.shape.head_dim_v),
               static_cast<int>(p.shape.band_lower),
               static_cast<int>(p.shape.band_upper),
               static_cast<int>(p.shape.key_offset),
               p.shape.scale,
               p.shape.softcap,
               p.tensors.sinks,
               p.tensors.alibi_slopes,
               p.shape.lse_has_sink ? 1 : 0,
               0,
               1,
               b.scores,
               bf16 ? 0x1p-9f : 0x1p-12f,
               b.ratios,
               b.ratios + kCheckBlocks};
  const long long all = 1LL * c.batch * c.hq * c.sq;
  // Contract, judging large problems: above 2^24 scores by chosen rows; an odd step meets all places in a
  // tile.
  rows.row_step = all * c.sk > (1LL << 26) ? std::max<long long>(1, all * c.sk >> 26) | 1 : 1;
  rows.num_rows = (all + rows.row_step - 1) / rows.row_step;
  b.gpu.set(b.ratios, 0, 2 * kCheckBlocks * sizeof(float));
  b.gpu.launch(bf16 ? "check_rows_bf16" : "check_rows_fp16", kCheckBlocks, 128, rows);
  unsigned long long counts[2] = {0, 0};
  b.gpu.set(b.counter, 0, 16);
  b.gpu.set(b.inside, 0, p.o_halfwords);
  const int dim = static_cast<int>(p.shape.head_dim_v);
  const auto* all_o = reinterpret_cast<const unsigned short*>(b.o);
  const long long halfwords = static_cast<long long>(p.o_halfwords);
  b.gpu.launch("count_poison", 264, 256, p.o, c.sq, c.hq, c.batch, dim, all_o, halfwords, kPoison, b.inside,
               b.counter);
  View none = p.o;
  none.data = nullptr;
  b.gpu.launch("count_poison", 264, 256, none, c.sq, c.hq, c.batch, dim, all_o, halfwords, kPoison, b.inside,
               b.counter);
  std::vector<float> ratios(2 * kCheckBlocks);
  b.gpu.read(ratios.data(), b.ratios, ratios.size() * sizeof(float));
  b.gpu.read(counts, b.counter, sizeof(counts));
  Result r;
  for (int i = 0; i < kCheckBlocks; ++i) {
    r.o = std::max(r.o, std::isnan(ratios[i]) ? 1e30f : ratios[i]);
    r.lse = std::max(r.lse, std::isnan(ratios[kCheckBlocks + i]) ? 1e30f : ratios[kCheckBlocks + i]);
  }
  r.outside = counts[0];
  r.unwritten = counts[1];
  return r;
}

unsigned long long different(Bench& b, const void* x, const void* y, std::size_t bytes) {
  b.gpu.set(b.counter, 0, 16);
  b.gpu.launch("count_different", 264, 256, static_cast<const unsigned*>(x), static_cast<const unsigned*>(y),
               static_cast<long long>(bytes / 4), b.counter);
  unsigned long long count = 0;
  b.gpu.read(&count, b.counter, sizeof(count));
  return count;
}

struct Tally {
  int cases = 0, failed = 0, shown = 0;
  float o = 0, lse = 0;
  void add(const cuda::KernelEntry& entry, const Case& c, const Result& r) {
    ++cases;
    if (r.o < 1e29f) o = std::max(o, r.o);
    if (r.lse < 1e29f) lse = std::max(lse, r.lse);
    if (!r.ok()) {
      ++failed;
      if (++shown <= 12) {
        std::printf("FAIL %s: %s: O %.3g LSE %.3g of the bound, %llu written outside, %llu unwritten\n",
                    entry.name, c.text().c_str(), r.o, r.lse, r.outside, r.unwritten);
        std::fflush(stdout);
      }
    }
  }
  void fail(const cuda::KernelEntry& entry, const char* what, unsigned long long count) {
    ++cases;
    if (count != 0) {
      ++failed;
      std::printf("FAIL %s: %s: %llu words differ\n", entry.name, what, count);
      std::fflush(stdout);
    }
  }
};

std::vector<Case> tiny_cases(const cuda::KernelEntry& entry) {
  std::vector<Case> cases;
  const float root = std::sqrt(static_cast<float>(entry.key.head_dim_qk));
  for (const auto& [sq, sk] : {std::pair{1, 1}, std::pair{200, 333}, std::pair{260, 70}, std::pair{50, 0}}) {
    Case c;
    c.sq = sq;
    c.sk = sk;
    c.batch = 2;
    c.hq = 2;
    c.label = "tiny";
    cases.push_back(c);
  }
  cases.push_back(cases[1]);  // steps that make the speculative softmax redo
  cases.back().column_q = root;
  cases.back().key_slope = -30;
  cases.back().key_step = 64;
  cases.push_back(cases[1]);  // NaN that some rows see and some do not
  cases.back().poison_key = 150;
  if (entry.key.mask == sm90::Mask::kBand) {
    for (Case& c : cases) c.causal = true;
    const bool changed = entry.key.logits == sm90::Logits::kChanged;
    for (int i = 0; i < 3; ++i) {
      cases.push_back(cases[1]);
      cases.back().causal = false;
      cases.back().left = i == 1 ? 70 : -1;
      cases.back().right = i == 1 ? 30 : -1;
      cases.back().softcap = changed && i == 0 ? 5.0F : 0.0F;
      cases.back().slope = changed && i == 2 ? 0.1F : 0.0F;
      cases.back().sinks = true;
    }
  }
  cases.push_back(cases[1]);
  cases.back().dim_qk = cases.back().dim_v = 8;
  for (const int plain : {1, 5}) {
    cases.push_back(cases[1]);
    cases.back().plain = plain;
  }
  cases.push_back(cases[1]);
  cases.back().hq = 80;  // more tiles than SMs
  return cases;
}

// Head dims below the tile's, rows that TMA does not take, sinks; of band kernels also windows, softcap and
// ALiBi.
template <class Shape, class Pick>
void add_variants(const cuda::KernelEntry& entry, Shape const& shape, Pick const& pick, bool quick,
                  std::vector<Case>& cases) {
  const int most_qk = entry.key.head_dim_qk;
  const int most_v = entry.key.head_dim_v;
  const auto size = [&] { return pick({1, 5, 64, 127, 128, 129, 192, 200, 256, 333, 511, 700, 1025}); };
  for (int d = 8; d <= most_qk; d += quick ? 40 : 8) {
    Case c = shape(size(), size());
    c.label = "head dim";
    c.dim_qk = d;
    c.dim_v = pick({std::min(8, most_v), std::min(d, most_v), most_v, std::max(8, most_v / 16 * 8)});
    cases.push_back(c);
  }
  for (int plain = 1; plain <= 5; ++plain) {
    for (int i = 0; i < (quick ? 1 : 3); ++i) {
      Case c = shape(size(), size());
      c.label = "plain";
      c.plain = plain;
      if (i == 1) {
        c.dim_qk = most_qk - 8;
        c.dim_v = std::max(8, most_v - 16);
      }
      cases.push_back(c);
    }
  }
  for (int i = 0; i < (quick ? 2 : 8); ++i) {
    Case c = shape(size(), i % 4 == 3 ? 0 : size());
    c.label = "sinks";
    c.sinks = true;
    c.lse_with_sink = i % 2 == 0;
    c.v_exponent = i == 4 ? -60.0F / (entry.key.element == sm90::Element::kBFloat16 ? 1 : 10) : 0.0F;
    cases.push_back(c);
  }
  if (entry.key.mask != sm90::Mask::kBand) {
    return;
  }
  for (int i = 0; i < (quick ? 10 : 80); ++i) {
    Case c = shape(size(), size());
    c.label = "window";
    c.left = pick({-1, 0, 1, 5, 63, 64, 100, 127, 128, 200, 400});
    c.right = pick({-1, -1, 0, 1, 5, 63, 64, 100, 128, 300});
    c.sinks = pick({0, 0, 0, 1}) != 0;
    c.plain = pick({0, 0, 0, 0, 0, 1});
    if (pick({0, 0, 0, 1}) != 0) {
      c.column_q = std::sqrt(static_cast<float>(most_qk));
      c.key_step = 64;
      c.key_slope = static_cast<float>(pick({-30, -9, 9, 30}));
    }
    cases.push_back(c);
  }
  for (int i = 0; i < (quick ? 16 : 120) && entry.key.logits == sm90::Logits::kChanged; ++i) {
    Case c = shape(size(), size());
    c.label = "score";
    c.left = pick({-1, -1, -1, 0, 5, 64, 200});
    c.right = pick({-1, -1, -1, 0, 5, 100});
    c.softcap = pick({0, 1, 1}) != 0 ? static_cast<float>(pick({1, 15, 30, 50, 1000})) : 0.0F;
    c.slope =
        c.softcap == 0.0F || pick({0, 1}) != 0 ? 0.25F * static_cast<float>(pick({-4, -1, 1, 2, 8})) : 0.0F;
    c.q_scale = pick({1, 1, 10}) != 1 ? 10.0F : 1.0F;
    c.sinks = pick({0, 0, 1}) != 0;
    c.lse_with_sink = pick({0, 1}) != 0;
    cases.push_back(c);
  }
}

std::vector<Case> cases_for(const cuda::KernelEntry& entry, bool quick, std::mt19937_64& random) {
  std::vector<Case> cases;
  const bool band = entry.key.mask == sm90::Mask::kBand;
  const auto pick = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  const auto shape = [&](int sq, int sk) {
    Case c;
    c.sq = sq;
    c.sk = sk;
    c.batch = pick({1, 2, 3});
    c.hk = pick({1, 2});
    c.hq = c.hk * pick({1, 2, 3, 4, 6, 8, 12});
    c.causal = band && random() % 2 == 0;
    c.bottom_right = !c.causal || random() % 2 == 0;
    c.heads_first = random() % 2 == 0;
    c.force_static = random() % 3 == 0;
    c.label = "shape";
    return c;
  };
  for (int n = 1; n <= 300; n += quick ? 37 : 1) {
    cases.push_back(shape(n, n));
    cases.push_back(shape(n, pick({1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 300})));
    cases.push_back(shape(pick({1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 300}), n));
  }
  for (const int n : {511, 512, 513, 1023, 1024, 1025}) {
    cases.push_back(shape(n, n));
    cases.push_back(shape(n, pick({100, 511, 513, 1500})));
  }
  cases.push_back(shape(100, 0));
  cases.push_back(shape(4096, 4096));
  cases.push_back(shape(1, 16384));
  if (!quick) {
    Case big = shape(16384, 16384);
    big.batch = big.hk = 1;
    big.hq = 2;
    cases.push_back(big);
    big = shape(257, 300);
    big.batch = 70;
    big.hk = 12;
    big.hq = 48;
    cases.push_back(big);
  }
  // Hard data. Column 0 adds column_q · scale · k[0] to the logits.
  const float root = std::sqrt(static_cast<float>(entry.key.head_dim_qk));
  const bool bf16 = entry.key.element == sm90::Element::kBFloat16;
  const auto hard = [&](const char* label, float slope, int step, float start) {
    for (const int n : {300, 1000}) {
      Case c = shape(n, n);
      c.batch = 2;
      c.label = label;
      c.column_q = root;
      c.key_slope = slope;
      c.key_step = step;
      c.key_start = start;
      cases.push_back(c);
    }
  };
  hard("drift up", 0.1f, 1, 0);
  hard("drift down", -0.1f, 1, 0);
  hard("steps up", 30, 128, 0);
  hard("steps down", -30, 128, 0);
  hard("steps down fine", -12, 64, 0);
  hard("all low", 0, 1 << 20, bf16 ? -1e30f : -6e4f);
  hard("all high", 0, 1 << 20, bf16 ? 1e4f : 6e4f);
  hard("cliff up", 2000, 100, 0);
  hard("cliff down", -2000, 100, 0);
  for (const float exponent : {-100.0f, -60.0f, 60.0f, 100.0f}) {
    for (int hardness = 0; hardness < 3; ++hardness) {
      Case c = shape(400, 700);
      c.label = "V 2^" + std::to_string(static_cast<int>(bf16 ? exponent : exponent / 10));
      c.v_exponent = bf16 ? exponent : exponent / 10;
      if (hardness > 0) {
        c.column_q = root;
        c.key_step = 64;
        c.key_slope = hardness == 1 ? -12 : -40;
        c.label += hardness == 1 ? " steps 12" : " steps 40";
      }
      cases.push_back(c);
    }
  }
  for (const float q_scale : {30.0f, 0.01f}) {
    Case c = shape(500, 700);
    c.label = "q scaled";
    c.q_scale = q_scale;
    cases.push_back(c);
  }
  for (const float scale : {-0.125f, -1.0f, 1.0f}) {
    Case c = shape(200, 333);
    c.label = "scale";
    c.scale = scale;
    cases.push_back(c);
  }
  Case zero = shape(200, 333);
  zero.label = "scale";
  zero.zero_scale = true;
  cases.push_back(zero);
  Case broadcast = shape(130, 200);
  broadcast.batch = 3;
  broadcast.label = "broadcast batch";
  broadcast.broadcast_batch = true;
  cases.push_back(broadcast);
  add_variants(entry, shape, pick, quick, cases);
  // Visible bad data: the reference says where NaN and Inf must appear.
  for (const std::uint16_t bits : {std::uint16_t{0x7FFF}, std::uint16_t{0x7F80}, std::uint16_t{0xFF80}}) {
    Case c = shape(200, 200);
    c.label = "visible NaN/Inf";
    c.poison_key = 150;
    c.poison_bits = bf16 ? bits : bits == 0x7FFF ? bits : bits == 0x7F80 ? 0x7C00 : 0xFC00;
    cases.push_back(c);
  }
  for (const int key : {0, 450}) {  // nearly every tile is done again
    Case c = shape(900, 900);
    c.batch = 2;
    c.hk = 8;
    c.hq = 24;
    c.label = "visible NaN, many tiles";
    c.poison_key = key;
    cases.push_back(c);
  }
  return cases;
}

// The case without and with `poison_bits` in key and value `key`, on the same data: the first run's results
// are in o_again and lse_again.
Prepared run_clean_then_poisoned(Bench& b, const cuda::KernelEntry& entry, Case& c, int key) {
  const unsigned long long seed = b.seed;
  const Prepared clean = prepare(b, entry, c);
  run(b, entry, clean, 0);
  b.gpu.copy(b.o_again, b.o, clean.o_halfwords * 2);
  b.gpu.copy(b.lse_again, b.lse, clean.lse_count * 4);
  b.seed = seed;
  c.poison_key = key;
  Prepared bad = prepare(b, entry, c);
  run(b, entry, bad, 0);
  return bad;
}

// K[j] = V[j] = NaN leaves the rows that do not see key j bit-equal.
void check_masked_poison(Bench& b, const cuda::KernelEntry& entry, Tally& tally) {
  for (const int n : {64, 100, 128, 200, 256, 500, 3000, -200, -256, -500, -3000}) {
    Case c;
    c.sq = c.sk = std::abs(n);
    if (n < 0) {  // rows of a warp redo their references at different blocks
      c.column_q = std::sqrt(static_cast<float>(entry.key.head_dim_qk));
      c.key_step = 50;
      c.key_slope = -9;
    }
    c.batch = 1;
    c.hq = c.hk = 1;
    c.causal = true;
    const Prepared bad = run_clean_then_poisoned(b, entry, c, c.sk - 1);
    // All rows but the last do not see the last key; the guard before them is the same too.
    const std::size_t until = static_cast<std::size_t>(static_cast<char*>(bad.o.data) - b.o) +
                              static_cast<std::size_t>(bad.o.seqlen) * (c.sk - 1) * 2;
    tally.fail(entry, "masked NaN, O", different(b, b.o, b.o_again, until));
    tally.fail(entry, "masked NaN, LSE", different(b, b.lse, b.lse_again, (c.sk - 1) * 4ull));
  }
}

// A key far above all others, whose rows outgrow their references and make their warpgroup take maxima first:
// the rows before it, which share warps with them, keep their bits. Offsets put it into the second block that
// the warpgroup works on, for the first one sets the references.
void check_growing_neighbours(Bench& b, const cuda::KernelEntry& entry, Tally& tally) {
  for (const int n : {384, 1000}) {
    for (const int offset : {0, 40, 90}) {
      for (const int from_end : {60, 75, 98, 200}) {
        for (const float slope : {0.0F, -9.0F}) {
          Case c;
          c.sq = n;
          c.sk = n + offset;
          c.column_q = std::sqrt(static_cast<float>(entry.key.head_dim_qk));
          c.key_step = 50;
          c.key_slope = slope;
          c.batch = 1;
          c.hq = c.hk = 1;
          c.causal = true;
          c.poison_bits = entry.key.element == sm90::Element::kBFloat16 ? 0x43C8 : 0x5E40;  // 400
          const int key = c.sk - from_end;
          const Prepared bad = run_clean_then_poisoned(b, entry, c, key);
          const int until = key - offset;  // row i sees keys up to i + offset
          const std::size_t bytes = static_cast<std::size_t>(static_cast<char*>(bad.o.data) - b.o) +
                                    static_cast<std::size_t>(bad.o.seqlen) * until * 2;
          tally.fail(entry, "a large key, O of rows before it", different(b, b.o, b.o_again, bytes));
          tally.fail(entry, "a large key, LSE of rows before it",
                     different(b, b.lse, b.lse_again, until * 4ull));
          tally.add(entry, c, judge(b, entry, c, bad));
        }
      }
    }
  }
}

// Rows 0 to 9 outgrow their references at the tile's last block, when what they have summed up still counts:
// their bits are the same whether that is found before the exponentials or after them. A large key that only
// later rows see decides which. (nvcc once fused the product of sum and factor with the addition behind it in
// one loop and not in the other.)
void check_raised_before_or_after(Bench& b, const cuda::KernelEntry& entry, Tally& tally) {
  const bool bf16 = entry.key.element == sm90::Element::kBFloat16;
  const int n = entry.config.tile_n;
  Case c;
  c.label = "raised before or after";
  c.sq = 64;
  c.sk = 3 * n + 53;  // row i sees keys up to 3n − 11 + i: rows to 10 nothing of the last block
  c.batch = 8;
  c.hq = c.hk = 32;
  c.causal = true;
  c.q_scale = 0.25F;  // logits deviate by 0.36 (log2)
  c.column_q = std::sqrt(static_cast<float>(entry.key.head_dim_qk));
  c.key_step = 1 << 20;
  // In log2: the weight of one thread's 32 keys of the second block stays below the threshold of 15 (24 and a
  // margin of 16), that of the last block's largest key does not. The row's LSE comes near 0, so that it
  // shows the sum's last bits.
  const float second = bf16 ? 34.0F : 9.5F;
  const float last = bf16 ? 42.0F : 17.0F;
  const auto k0 = [&](float log2) { return (log2 - last) * 0.6931472F; };
  c.key_start = k0(0);
  c.levels = {{n, 2 * n, k0(second)}, {8, n, k0(-20)}, {0, 8, k0(last)}};
  c.poison_bits = bf16 ? 0x43C8 : 0x5E40;  // 400
  const Prepared bad = run_clean_then_poisoned(b, entry, c, 3 * n - 1);
  unsigned long long words = 0;
  for (int head = 0; head < c.batch * c.hq; ++head) {
    words += different(b, b.lse + head * c.sq, b.lse_again + head * c.sq, 10 * sizeof(float));
  }
  tally.fail(entry, "raised before or after the exponentials, LSE", words);
  tally.add(entry, c, judge(b, entry, c, bad));
}

// The same in the middle of a window: rows that do not see the key keep their bits, on both sides of it.
void check_window_poison(Bench& b, const cuda::KernelEntry& entry, Tally& tally) {
  for (const auto& [n, left, right] :
       {std::tuple{300, 20, 0}, std::tuple{300, 20, 20}, std::tuple{900, 300, 70}, std::tuple{900, 129, 0},
        std::tuple{1300, 500, 500}}) {
    for (const int key : {n / 2, n - 1, 0, n / 3 / 64 * 64}) {
      Case c;
      c.sq = c.sk = n;
      c.left = left;
      c.right = right;
      const Prepared bad = run_clean_then_poisoned(b, entry, c, key);
      // Rows i with key <= i + right and key >= i - left see it.
      const int first = std::max(0, key - right);
      const int last = std::min(n - 1, key + left);
      const std::size_t base = static_cast<std::size_t>(static_cast<char*>(bad.o.data) - b.o);
      const auto at = [&](int row) {
        return base + static_cast<std::size_t>(bad.o.seqlen) * static_cast<std::size_t>(row) * 2;
      };
      tally.fail(entry, "NaN after the window, O", different(b, b.o, b.o_again, at(first)));
      tally.fail(entry, "NaN before the window, O",
                 different(b, b.o + at(last + 1), b.o_again + at(last + 1), at(n) - at(last + 1)));
      tally.fail(entry, "NaN after the window, LSE",
                 different(b, b.lse, b.lse_again, static_cast<std::size_t>(first) * 4));
      tally.fail(
          entry, "NaN before the window, LSE",
          different(b, b.lse + last + 1, b.lse_again + last + 1, static_cast<std::size_t>(n - 1 - last) * 4));
      tally.add(entry, c, judge(b, entry, c, bad));
    }
  }
}

void check_repeats(Bench& b, const cuda::KernelEntry& entry, Tally& tally) {
  Case c;
  c.sq = 1111;
  c.sk = 1300;
  c.batch = 4;
  c.hq = 12;
  c.hk = 4;
  c.causal = entry.key.mask == sm90::Mask::kBand;
  Prepared p = prepare(b, entry, c);
  run(b, entry, p, 0);
  b.gpu.copy(b.o_again, b.o, p.o_halfwords * 2);
  unsigned long long count = 0;
  for (int i = 0; i < 1000; ++i) {
    b.gpu.set16(b.o, kPoison, p.o_halfwords);
    run(b, entry, p, i % 2);
    count += different(b, b.o, b.o_again, p.o_halfwords * 2);
  }
  tally.fail(entry, "1000 runs", count);
}

// A graph captured on the kernel's first use, replayed with new contents.
void check_graph(Bench& b, const cuda::KernelEntry& entry, Tally& tally) {
  Case c;
  c.sq = 500;
  c.sk = 700;
  c.batch = 2;
  c.hq = 40;
  c.hk = 8;
  c.label = "graph";
  Prepared p = prepare(b, entry, c);
  CUfunction function = nullptr;  // what a plan does; the first launch is the captured one
  must(b.gpu.device->kernel(entry, &function), "kernel");
  b.gpu.sync();
  ATTN_GPU_OF(b.gpu, cuStreamBeginCapture, b.gpu.stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  run(b, entry, p, 0);
  CUgraph graph = nullptr;
  ATTN_GPU_OF(b.gpu, cuStreamEndCapture, b.gpu.stream, &graph);
  CUgraphExec executable = nullptr;
  ATTN_GPU_OF(b.gpu, cuGraphInstantiateWithFlags, &executable, graph, 0);
  for (int i = 0; i < 3; ++i) {
    p = prepare(b, entry, c);
    ATTN_GPU_OF(b.gpu, cuGraphLaunch, executable, b.gpu.stream);
    tally.add(entry, c, judge(b, entry, c, p));
  }
}

int main_of(int argc, char** argv) {
  bool quick = false, tiny = false;
  std::string only, json;
  unsigned long long seed = 20260801;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      quick = true;
    } else if (argument == "--tiny") {
      tiny = true;
    } else if (argument == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else if (argument == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else if (argument == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::fprintf(stderr, "unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  cuda::Device* device = nullptr;
  const Status status = cuda::Device::get(0, &device);
  if (!status.ok() || device->compute_major() != 9 || device->compute_minor() != 0) {
    std::printf("SKIP: %s\n", status.ok() ? "device 0 is no Hopper GPU" : status.message().c_str());
    return 77;
  }
  Bench b;
  b.open(tiny);
  b.seed = seed;
  std::printf("%s, %d SMs, seed %llu\n", b.gpu.device->name().c_str(), b.gpu.device->num_sms(), seed);
  std::string report =
      "{\"device\": \"" + b.gpu.device->name() + "\", \"seed\": " + std::to_string(seed) + ", \"kernels\": [";
  std::string table;
  int failed = 0, kernels = 0;
  std::vector<const cuda::KernelEntry*> entries;
  for (const auto& entry : cuda::kernels_table()) entries.push_back(&entry);
#ifdef ATTN_CHECK_STUDY
  for (const auto& entry : cuda::study_table()) entries.push_back(&entry);
#endif
  for (const cuda::KernelEntry* entry : entries) {
    if (!only.empty() && std::string(entry->name).find(only) == std::string::npos) continue;
    std::mt19937_64 random(seed);
    Tally tally;
    if (!tiny) check_graph(b, *entry, tally);
    for (const Case& c : tiny ? tiny_cases(*entry) : cases_for(*entry, quick, random)) {
      const Prepared p = prepare(b, *entry, c);
      run(b, *entry, p, c.force_static);
      tally.add(*entry, c, judge(b, *entry, c, p));
    }
    if (!tiny && entry->key.mask == sm90::Mask::kBand) {
      check_masked_poison(b, *entry, tally);
      check_growing_neighbours(b, *entry, tally);
      check_raised_before_or_after(b, *entry, tally);
      check_window_poison(b, *entry, tally);
    }
    if (!tiny) check_repeats(b, *entry, tally);
    char line[256];
    std::snprintf(line, sizeof(line), "%-32s %5d cases %4d failed   worst O %.3f  LSE %.4f of the bound\n",
                  entry->name, tally.cases, tally.failed, tally.o, tally.lse);
    table += line;
    std::printf("done %s", line);
    std::fflush(stdout);
    std::snprintf(
        line, sizeof(line),
        "%s\n  {\"name\": \"%s\", \"cases\": %d, \"failed\": %d, \"worst_o\": %.4f, \"worst_lse\": %.5f}",
        kernels > 0 ? "," : "", entry->name, tally.cases, tally.failed, tally.o, tally.lse);
    report += line;
    failed += tally.failed;
    ++kernels;
  }
  report += "\n]}\n";
  if (!json.empty()) {
    if (FILE* file = std::fopen(json.c_str(), "w")) {
      std::fputs(report.c_str(), file);
      if (std::fclose(file) != 0) {
        std::fprintf(stderr, "%s is not complete\n", json.c_str());
      }
    }
  }
  std::printf("\n%s%d kernels, %d failed\n", table.c_str(), kernels, failed);
  return failed == 0 && kernels > 0 ? 0 : 1;
}

}  // namespace
}  // namespace attn::check

int main(int argc, char** argv) {
  return attn::check::main_of(argc, argv);
}
