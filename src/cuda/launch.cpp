#include "cuda/launch.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>

namespace attn::cuda {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));

constexpr std::int64_t kElementBytes = 2;
// Heads whose K and V together stay in L2 while the section's tiles run: half of it was as good as a quarter,
// and more was slower (an H200's 50 MB; docs/kernels/sm90_forward.md).
constexpr std::int64_t kSectionShareOfL2 = 2;
// Heads of so few tiles end evenly in any section, and have smaller ones (docs/performance.md).
constexpr std::int64_t kShortTiles = 8;

// One of the four tensors as a kernel sees it.
struct Operand {
  const char* name;
  const DenseTensor& tensor;
  std::int64_t columns;
  std::int64_t rows;
  std::int64_t heads;
  int box_rows;
  TensorMap* map;
  std::int32_t plain_bit;
};

// What TMA takes: a base and strides that are multiples of 16 bytes, strides from 0 to 2^40 - 1 bytes (CUDA
// driver API, cuTensorMapEncodeTiled). Axes of size 1 have no stride.
bool is_for_tma(const Operand& x, std::int64_t batch) {
  constexpr std::int64_t kAlign = 16;
  constexpr std::int64_t kMaxStride = ((std::int64_t{1} << 40) - 1) / kElementBytes;
  const auto fits = [](std::int64_t stride, std::int64_t size) {
    return size <= 1 || (stride >= 0 && stride <= kMaxStride && stride * kElementBytes % kAlign == 0);
  };
  const RowStrides& strides = x.tensor.strides;
  return std::bit_cast<std::uintptr_t>(x.tensor.data) % kAlign == 0 && fits(strides.seqlen, x.rows) &&
         fits(strides.heads, x.heads) && fits(strides.batch, batch);
}

// dims: (head_dim, seqlen, heads, batch). Strides of axes of size 1 are never used, and may be anything in
// the problem; the driver wants multiples of 16 bytes all the same.
Status make_map(const Device& device, const sm90::KernelKey& key, const Operand& x, std::int64_t batch) {
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(x.columns), static_cast<cuuint64_t>(x.rows),
                              static_cast<cuuint64_t>(x.heads), static_cast<cuuint64_t>(batch)};
  const auto stride_bytes = [&](std::int64_t elements, std::int64_t size) {
    return static_cast<cuuint64_t>((size == 1 ? x.columns : elements) * kElementBytes);
  };
  const cuuint64_t strides[3] = {stride_bytes(x.tensor.strides.seqlen, x.rows),
                                 stride_bytes(x.tensor.strides.heads, x.heads),
                                 stride_bytes(x.tensor.strides.batch, batch)};
  const cuuint32_t box[4] = {sm90::kBoxColumns, static_cast<cuuint32_t>(x.box_rows), 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  const CUresult result = device.driver().tensor_map_encode_tiled(
      reinterpret_cast<CUtensorMap*>(x.map),
      key.element == sm90::Element::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, const_cast<void*>(x.tensor.data), dims, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return {StatusCode::kUnsupported,
            std::string("no tensor map for ") + x.name + ": " + error_name(device.driver(), result)};
  }
  return {};
}

// Never 0, never twice in a process, and unlike what memory may hold by chance (SplitMix64 is a bijection).
std::uint64_t next_launch_id() {
  static std::atomic<std::uint64_t> count{
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())};
  std::uint64_t x = count.fetch_add(1, std::memory_order_relaxed) * 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  x ^= x >> 31;
  return x == 0 || ~x == 0 ? next_launch_id() : x;
}

// As many heads as have their K and V in half of L2 together, but enough, as far as three quarters of it
// allow, that a section's tiles, claimed longest first, end evenly: the last section's longest tile must not
// outlast what the other SMs still have. With T tiles a head whose lengths grow evenly, H heads keep num_sms
// busy for H·T²/2 / num_sms blocks, and the longest tile has T: H·T >= 2·num_sms. The remainder is spread
// over the sections for the same reason. Short heads (T <= kShortTiles) get one and a half rounds of tiles a
// section: in a larger one all SMs begin with longest tiles, each the first to read its K and V, and wait for
// DRAM, which has little to do later on.
std::int64_t heads_per_section(const DenseShape& shape, std::int64_t num_m_tiles, const GpuSize& gpu) {
  const std::int64_t heads = shape.batch * shape.heads_q;
  const std::int64_t group = shape.heads_q / shape.heads_kv;  // these share their K and V
  const std::int64_t bytes =
      std::max<std::int64_t>(1, shape.seqlen_kv * (shape.head_dim_qk + shape.head_dim_v) * kElementBytes);
  const auto heads_in = [&](std::int64_t share) {
    const std::int64_t kv_heads = std::max<std::int64_t>(1, share / bytes);
    return kv_heads > heads ? heads : kv_heads * group;
  };
  const std::int64_t most = heads_in(gpu.l2_bytes / 4 * 3);
  const auto rounds = [&](std::int64_t halves) {  // heads that make so many half rounds of the SMs
    return (halves * gpu.num_sms / 2 + num_m_tiles - 1) / std::max<std::int64_t>(1, num_m_tiles);
  };
  const std::int64_t wanted =
      num_m_tiles <= kShortTiles
          ? std::min(rounds(3), most)
          : std::max(heads_in(gpu.l2_bytes / kSectionShareOfL2), std::min(rounds(4), most));
  const auto heads_of = [&](std::int64_t sections) { return (heads + sections - 1) / sections; };
  // An empty batch has no heads, and none are wanted.
  const std::int64_t sections = std::max<std::int64_t>(1, heads / std::max<std::int64_t>(1, wanted));
  return std::max<std::int64_t>(1, heads_of(sections) <= most ? heads_of(sections) : heads_of(sections + 1));
}

}  // namespace

TileOrder order_tiles(const KernelEntry& entry, const DenseShape& shape, const GpuSize& gpu) {
  TileOrder order;
  const std::int64_t tile_m = entry.config.tile_m();
  order.num_m_tiles = (shape.seqlen_q + tile_m - 1) / tile_m;
  const std::int64_t heads = shape.batch * shape.heads_q;
  order.num_tiles = order.num_m_tiles * heads;
  // Whether some bound cuts some row: tiles then differ in length.
  const bool bounded = shape.band_upper < shape.seqlen_kv || shape.band_lower > -shape.seqlen_q;
  if (entry.key.mask == sm90::Mask::kBand && bounded) {
    order.heads_per_section = heads_per_section(shape, order.num_m_tiles, gpu);
    order.longest_first = true;
    order.dynamic = order.num_tiles > gpu.num_sms;
  } else {
    // A head's last tile is short where some warpgroup has no rows, and in a static order the same SMs would
    // get all of these.
    const std::int64_t last_rows = shape.seqlen_q - (order.num_m_tiles - 1) * tile_m;
    order.dynamic = order.num_tiles > gpu.num_sms && order.num_m_tiles > 1 && last_rows <= tile_m - 64;
  }
  return order;
}

Status make_params(const Device& device, const KernelEntry& entry, const DenseShape& shape,
                   const DenseTensors& tensors, const TileOrder& order, ForwardParams* params) {
  *params = ForwardParams{};
  const sm90::KernelKey& key = entry.key;
  const int tile_m = entry.config.tile_m();
  // No keys at all: K and V may be absent. One block, wholly masked, is read from Q in their place.
  const bool no_keys = shape.seqlen_kv == 0;
  const DenseTensor k = no_keys ? tensors.q : tensors.k;
  const DenseTensor v = no_keys ? tensors.q : tensors.v;
  const std::int64_t rows_kv = no_keys ? shape.seqlen_q : shape.seqlen_kv;
  const std::int64_t heads_kv = no_keys ? shape.heads_q : shape.heads_kv;
  const std::int64_t columns_v = no_keys ? shape.head_dim_qk : shape.head_dim_v;
  const int tile_n = entry.config.tile_n;
  const Operand operands[] = {
      {"q", tensors.q, shape.head_dim_qk, shape.seqlen_q, shape.heads_q, tile_m, &params->q, kPlainQ},
      {"k", k, shape.head_dim_qk, rows_kv, heads_kv, tile_n, &params->k, kPlainK},
      {"v", v, columns_v, rows_kv, heads_kv, tile_n, &params->v, kPlainV},
      {"o", tensors.o, shape.head_dim_v, shape.seqlen_q, shape.heads_q, sm90::o_box_rows(entry.config),
       &params->o, kPlainO},
  };
  for (const Operand& x : operands) {
    if (!is_for_tma(x, shape.batch)) {
      params->plain |= x.plain_bit;
    } else if (Status status = make_map(device, key, x, shape.batch); !status.ok()) {
      return status;
    }
  }
  params->q_data = tensors.q.data;
  params->k_data = k.data;
  params->v_data = v.data;
  params->o_data = const_cast<void*>(tensors.o.data);
  params->q_strides = tensors.q.strides;
  params->k_strides = k.strides;
  params->v_strides = v.strides;
  params->o_strides = tensors.o.strides;
  params->lse = tensors.lse;
  params->lse_strides = tensors.lse_strides;
  params->sinks = tensors.sinks;
  params->alibi_slopes = tensors.alibi_slopes;
  params->alibi_batch_stride = tensors.alibi_batch_stride;
  params->seqlen_q = static_cast<std::int32_t>(shape.seqlen_q);
  params->seqlen_kv = static_cast<std::int32_t>(shape.seqlen_kv);
  params->heads_q = static_cast<std::int32_t>(shape.heads_q);
  params->group_size = static_cast<std::int32_t>(shape.heads_q / shape.heads_kv);
  params->head_dim_qk = static_cast<std::int32_t>(shape.head_dim_qk);
  params->head_dim_v = static_cast<std::int32_t>(shape.head_dim_v);
  params->band_lower = static_cast<std::int32_t>(shape.band_lower);
  params->band_upper = static_cast<std::int32_t>(shape.band_upper);
  params->key_offset = static_cast<std::int32_t>(shape.key_offset);
  params->softcap = shape.softcap;
  params->lse_has_sink = shape.lse_has_sink ? 1 : 0;
  constexpr float kLog2E = 1.44269504088896340736F;
  params->scale_log2 = std::fabs(shape.scale) * kLog2E;
  if (key.logits == sm90::Logits::kScaled) {
    // A zero here would make 0 · (−inf) = NaN of a masked key. The backend gives problems of scale 0 to
    // kernels that scale before they mask; the smallest float does the same to finite logits (2^(s · 1.4e-45)
    // = 1 for |s| < 2^127).
    params->scale_log2 = std::max(params->scale_log2, std::numeric_limits<float>::denorm_min());
  }
  params->negate_q = std::signbit(shape.scale) ? 1 : 0;
  params->num_tiles = static_cast<std::uint32_t>(order.num_tiles);
  params->num_m_tiles = static_cast<std::uint32_t>(order.num_m_tiles);
  params->num_heads_total = static_cast<std::uint32_t>(shape.batch * shape.heads_q);
  params->heads_per_section = static_cast<std::uint32_t>(order.heads_per_section);
  params->longest_first = order.longest_first ? 1 : 0;
  return {};
}

Status launch(Device& device, const KernelEntry& entry, ForwardParams& params, const TileOrder& order,
              void* workspace, CUstream stream) {
  const Driver& driver = device.driver();
  CUfunction function = nullptr;
  if (Status status = device.kernel(entry, &function); !status.ok()) {
    return status;
  }
  params.tile_counter = nullptr;
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(order.num_tiles, device.num_sms()));
  if (order.dynamic) {
    params.tile_counter = static_cast<TileCounter*>(workspace);
    params.launch_id = next_launch_id();
  }
  CUlaunchConfig config{};
  config.gridDimX = grid;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(entry.config.threads());
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(sm90::shared_bytes(entry.key, entry.config));
  config.hStream = stream;
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = 1;
  void* arguments[] = {&params};
  return check(driver, driver.launch_kernel_ex(&config, function, arguments, nullptr), "cuLaunchKernelEx");
}

}  // namespace attn::cuda
