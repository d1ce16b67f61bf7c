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
  int batch, heads_q, heads_kv, seqlen_q, seqlen_kv, dim;
  int causal, offset;
  float scale;
  long long num_rows;
  long long row_step;
  double* scores;
  float u;
  float* ratio_o;
  float* ratio_lse;
};

// One problem. Logits beyond noise come from column 0: q[0] · k[0] with k[0] = key_start +
// key_slope·(j/step).
struct Case {
  int batch = 1, sq = 1, sk = 1, hq = 1, hk = 1;
  bool bottom_right = true;
  float scale = 0;  // 0 here: the default; use `zero_scale` for a real zero
  bool zero_scale = false;
  float q_scale = 1, v_exponent = 0;
  float column_q = 0, key_start = 0, key_slope = 0;
  int key_step = 0;
  bool heads_first = false;      // memory order b, h, s, d
  bool broadcast_batch = false;  // K and V with batch stride 0
  int poison_key = -1;           // this key's K and V are NaN (seen only by rows that see it)
  unsigned short poison_bits = 0x7FFF;
  int force_static = 0;
  std::string label;
  std::string text() const {
    return label + " b" + std::to_string(batch) + " hq" + std::to_string(hq) + " hk" + std::to_string(hk) +
           " sq" + std::to_string(sq) + " sk" + std::to_string(sk) + (bottom_right ? " br" : " tl") +
           (heads_first ? " bhsd" : "") + (scale != 0 ? " scale=" + std::to_string(scale) : "") +
           (zero_scale ? " scale=0" : "") + (force_static ? " static" : "");
  }
};

constexpr int kCheckBlocks = 264;
constexpr unsigned short kPoison = 0x7FA5;  // NaN in bf16 and in fp16

struct Bench {
  Gpu gpu;
  std::size_t capacity = 1ull << 29;  // bytes of each tensor's arena
  std::size_t score_bytes = 1ull << 26;
  char *q, *k, *v, *o, *o_again, *workspace;
  unsigned char* inside;
  float *lse, *lse_again, *ratios;
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
    gpu.set16(q, kPoison, capacity / 2);
  }
};

struct Prepared {
  View q, k, v, o;
  cuda::DenseShape shape;
  cuda::DenseTensors tensors;
  std::size_t o_halfwords = 0;
  std::size_t lse_count = 0;
};

View view_of(void* base, int rows, int heads, int dim, bool heads_first, int pad_rows) {
  // Rows are padded by 8 elements and each batch entry (or head) by pad_rows rows, so that there are gaps.
  const long long row = dim + 8;
  if (heads_first) {
    return {base, heads * (rows + pad_rows) * row, row, (rows + pad_rows) * row};
  }
  return {base, (rows + pad_rows) * heads * row, heads * row, row};
}

Prepared prepare(Bench& b, const cuda::KernelEntry& entry, const Case& c) {
  const int dim = entry.key.head_dim;
  const bool bf16 = entry.key.element == sm90::Element::kBFloat16;
  const char* fill = bf16 ? "fill_bf16" : "fill_fp16";
  Prepared p;
  // A guard of 64 rows' worth before each tensor, NaN everywhere that is not input.
  const std::size_t guard = 64 * (dim + 8) * 2;
  p.q = view_of(b.q + guard, c.sq, c.hq, dim, c.heads_first, 1);
  p.k = view_of(b.k + guard, c.sk, c.hk, dim, c.heads_first, 3);
  p.v = view_of(b.v + guard, c.sk, c.hk, dim, c.heads_first, 3);
  p.o = view_of(b.o + guard, c.sq, c.hq, dim, c.heads_first, 2);
  const int kv_batch = c.broadcast_batch ? 1 : c.batch;
  const auto extent = [&](const View& v, int batch) { return std::size_t(v.batch) * batch * 2 + 2 * guard; };
  b.gpu.set16(b.q, kPoison, extent(p.q, c.batch) / 2);
  b.gpu.set16(b.k, kPoison, extent(p.k, kv_batch) / 2);
  b.gpu.set16(b.v, kPoison, extent(p.v, kv_batch) / 2);
  b.gpu.set16(b.o, kPoison, extent(p.o, c.batch) / 2);
  p.o_halfwords = extent(p.o, c.batch) / 2;
  const unsigned long long seed = b.seed++;
  b.gpu.launch(fill, 264, 256, p.q, c.sq, c.hq, c.batch, dim, seed * 3, c.q_scale, c.column_q, 0.0f,
               c.key_step > 0 ? 1 : 0);
  if (c.sk > 0) {
    b.gpu.launch(fill, 264, 256, p.k, c.sk, c.hk, kv_batch, dim, seed * 3 + 1, 1.0f, c.key_start, c.key_slope,
                 c.key_step);
    b.gpu.launch(fill, 264, 256, p.v, c.sk, c.hk, kv_batch, dim, seed * 3 + 2, std::exp2(c.v_exponent), 0.0f,
                 0.0f, 0);
  }
  if (c.poison_key >= 0) {
    b.gpu.launch("set_row", 16, 256, p.k, c.poison_key, c.hk, kv_batch, dim, c.poison_bits);
    b.gpu.launch("set_row", 16, 256, p.v, c.poison_key, c.hk, kv_batch, dim, c.poison_bits);
  }
  if (c.broadcast_batch) {
    p.k.batch = p.v.batch = 0;
  }
  p.shape = {c.batch, c.sq, c.sk, c.hq, c.hk, 0.0F, c.bottom_right ? c.sk - c.sq : 0};
  p.shape.scale = c.zero_scale ? 0.0F : c.scale != 0 ? c.scale : 1.0F / std::sqrt(static_cast<float>(dim));
  const auto tensor = [](const View& v) { return cuda::DenseTensor{v.data, {v.batch, v.seqlen, v.heads}}; };
  p.tensors = {tensor(p.q), tensor(p.k), tensor(p.v), tensor(p.o), b.lse, {1ll * c.hq * c.sq, 1, c.sq}};
  p.lse_count = std::size_t(c.batch) * c.hq * c.sq;
  return p;
}

void run(Bench& b, const cuda::KernelEntry& entry, const Prepared& p, int force_static) {
  cuda::TileOrder order = cuda::order_tiles(entry, p.shape, b.gpu.device->l2_bytes());
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
               entry.key.head_dim,
               entry.key.mask == sm90::Mask::kCausal,
               static_cast<int>(p.shape.causal_offset),
               p.shape.scale,
               0,
               1,
               b.scores,
               bf16 ? 0x1p-9f : 0x1p-12f,
               b.ratios,
               b.ratios + kCheckBlocks};
  const long long all = 1ll * c.batch * c.hq * c.sq;
  // Contract, judging large problems: above 2^24 scores by chosen rows; an odd step meets all places in a
  // tile.
  rows.row_step = all * c.sk > (1ll << 26) ? std::max<long long>(1, all * c.sk >> 26) | 1 : 1;
  rows.num_rows = (all + rows.row_step - 1) / rows.row_step;
  b.gpu.set(b.ratios, 0, 2 * kCheckBlocks * sizeof(float));
  b.gpu.launch(bf16 ? "check_rows_bf16" : "check_rows_fp16", kCheckBlocks, 128, rows);
  unsigned long long counts[2] = {0, 0};
  b.gpu.set(b.counter, 0, 16);
  b.gpu.set(b.inside, 0, p.o_halfwords);
  const int dim = entry.key.head_dim;
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
  const float root = std::sqrt(static_cast<float>(entry.key.head_dim));
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
  cases.push_back(cases[1]);
  cases.back().hq = 80;  // more tiles than SMs
  return cases;
}

std::vector<Case> cases_for(const cuda::KernelEntry& entry, bool quick, std::mt19937_64& random) {
  std::vector<Case> cases;
  const bool causal = entry.key.mask == sm90::Mask::kCausal;
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
    c.bottom_right = !causal || random() % 2 == 0;
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
  const float root = std::sqrt(static_cast<float>(entry.key.head_dim));
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

// K[j] = V[j] = NaN leaves the rows that do not see key j bit-equal.
void check_masked_poison(Bench& b, const cuda::KernelEntry& entry, Tally& tally) {
  for (const int n : {64, 100, 128, 200, 256, 500, 3000, -200, -256, -500, -3000}) {
    Case c;
    c.sq = c.sk = std::abs(n);
    if (n < 0) {  // rows of a warp redo their references at different blocks
      c.column_q = std::sqrt(static_cast<float>(entry.key.head_dim));
      c.key_step = 50;
      c.key_slope = -9;
    }
    c.batch = 1;
    c.hq = c.hk = 1;
    const unsigned long long seed = b.seed;
    Prepared clean = prepare(b, entry, c);
    run(b, entry, clean, 0);
    b.gpu.copy(b.o_again, b.o, clean.o_halfwords * 2);
    b.gpu.copy(b.lse_again, b.lse, clean.lse_count * 4);
    b.seed = seed;
    c.poison_key = c.sk - 1;
    Prepared bad = prepare(b, entry, c);
    run(b, entry, bad, 0);
    // All rows but the last do not see the last key; the guard before them is the same too.
    const std::size_t until = static_cast<std::size_t>(static_cast<char*>(bad.o.data) - b.o) +
                              static_cast<std::size_t>(bad.o.seqlen) * (c.sk - 1) * 2;
    tally.fail(entry, "masked NaN, O", different(b, b.o, b.o_again, until));
    tally.fail(entry, "masked NaN, LSE", different(b, b.lse, b.lse_again, (c.sk - 1) * 4ull));
  }
}

void check_repeats(Bench& b, const cuda::KernelEntry& entry, Tally& tally) {
  Case c;
  c.sq = 1111;
  c.sk = 1300;
  c.batch = 4;
  c.hq = 12;
  c.hk = 4;
  Prepared p = prepare(b, entry, c);
  run(b, entry, p, 0);
  b.gpu.copy(b.o_again, b.o, p.o_halfwords * 2);
  unsigned long long count = 0;
  for (int i = 0; i < 200; ++i) {
    b.gpu.set16(b.o, kPoison, p.o_halfwords);
    run(b, entry, p, i % 2);
    count += different(b, b.o, b.o_again, p.o_halfwords * 2);
  }
  tally.fail(entry, "200 runs", count);
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
    if (argument == "--quick")
      quick = true;
    else if (argument == "--tiny")
      tiny = true;
    else if (argument == "--only" && i + 1 < argc)
      only = argv[++i];
    else if (argument == "--json" && i + 1 < argc)
      json = argv[++i];
    else if (argument == "--seed" && i + 1 < argc)
      seed = std::strtoull(argv[++i], nullptr, 10);
    else {
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
    if (!tiny && entry->key.mask == sm90::Mask::kCausal) check_masked_poison(b, *entry, tally);
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
      std::fclose(file);
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
