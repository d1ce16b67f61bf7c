#include "cuda/launch.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace attn::cuda {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));

constexpr std::int64_t kElementBytes = 2;
// Heads whose K and V together stay in L2 while the section's tiles run: half of it was as good as a quarter,
// and more was slower (an H200's 50 MB; docs/kernels/sm90_forward.md).
constexpr std::int64_t kSectionShareOfL2 = 2;

// dims: (head_dim, seqlen, heads, batch). Strides of axes of size 1 are never used, and may be anything in
// the problem; the driver wants multiples of 16 bytes all the same.
Status make_map(const Device& device, const sm90::KernelKey& key, const char* name, const DenseTensor& tensor,
                std::int64_t rows, std::int64_t heads, std::int64_t batch, int box_rows, TensorMap* map) {
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(key.head_dim), static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const auto stride_bytes = [&](std::int64_t elements, std::int64_t size) {
    return static_cast<cuuint64_t>(size == 1 ? key.head_dim * kElementBytes : elements * kElementBytes);
  };
  const cuuint64_t strides[3] = {stride_bytes(tensor.strides.seqlen, rows),
                                 stride_bytes(tensor.strides.heads, heads),
                                 stride_bytes(tensor.strides.batch, batch)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  const CUresult result = device.driver().tensor_map_encode_tiled(
      reinterpret_cast<CUtensorMap*>(map),
      key.element == sm90::Element::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, const_cast<void*>(tensor.data), dims, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Status(StatusCode::kUnsupported,
                  std::string("no tensor map for ") + name + ": " + error_name(device.driver(), result));
  }
  return {};
}

}  // namespace

TileOrder order_tiles(const KernelEntry& entry, const DenseShape& shape, std::int64_t l2_bytes) {
  TileOrder order;
  const std::int64_t tile_m = entry.config.tile_m();
  order.num_m_tiles = (shape.seqlen_q + tile_m - 1) / tile_m;
  const std::int64_t heads = shape.batch * shape.heads_q;
  order.num_tiles = order.num_m_tiles * heads;
  if (entry.key.mask == sm90::Mask::kCausal) {
    // A group of query heads shares its K and V.
    const std::int64_t group = shape.heads_q / shape.heads_kv;
    const std::int64_t bytes =
        std::max<std::int64_t>(1, 2 * shape.seqlen_kv * entry.key.head_dim * kElementBytes);
    const std::int64_t kv_heads = std::max<std::int64_t>(1, l2_bytes / kSectionShareOfL2 / bytes);
    order.heads_per_section = std::min(heads, kv_heads > heads ? heads : kv_heads * group);
    order.dynamic = true;
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
  struct {
    const char* name;
    const DenseTensor& tensor;
    std::int64_t rows;
    std::int64_t heads;
    int box_rows;
    TensorMap* map;
  } const maps[] = {
      {"q", tensors.q, shape.seqlen_q, shape.heads_q, tile_m, &params->q},
      {"k", k, rows_kv, heads_kv, entry.config.tile_n, &params->k},
      {"v", v, rows_kv, heads_kv, entry.config.tile_n, &params->v},
      {"o", tensors.o, shape.seqlen_q, shape.heads_q, tile_m, &params->o},
  };
  for (const auto& m : maps) {
    if (Status status =
            make_map(device, key, m.name, m.tensor, m.rows, m.heads, shape.batch, m.box_rows, m.map);
        !status.ok()) {
      return status;
    }
  }
  params->q_data = tensors.q.data;
  params->k_data = k.data;
  params->v_data = v.data;
  params->q_strides = tensors.q.strides;
  params->k_strides = k.strides;
  params->v_strides = v.strides;
  params->lse = tensors.lse;
  params->lse_stride_batch = tensors.lse_strides.batch;
  params->lse_stride_heads = tensors.lse_strides.heads;
  params->lse_stride_seqlen = tensors.lse_strides.seqlen;
  params->seqlen_q = static_cast<std::int32_t>(shape.seqlen_q);
  params->seqlen_kv = static_cast<std::int32_t>(shape.seqlen_kv);
  params->heads_q = static_cast<std::int32_t>(shape.heads_q);
  params->group_size = static_cast<std::int32_t>(shape.heads_q / shape.heads_kv);
  params->causal_offset = static_cast<std::int32_t>(shape.causal_offset);
  // A zero scale would make 0 · (−inf) = NaN of a masked key; the smallest float does the same to a finite
  // logit (2^(s · 1.4e-45) = 1 for |s| < 2^127) and keeps −inf.
  constexpr float kLog2E = 1.44269504088896340736F;
  params->scale_log2 = std::max(std::fabs(shape.scale) * kLog2E, std::numeric_limits<float>::denorm_min());
  params->negate_q = std::signbit(shape.scale) ? 1 : 0;
  params->num_tiles = static_cast<std::int32_t>(order.num_tiles);
  params->num_m_tiles = static_cast<std::int32_t>(order.num_m_tiles);
  params->num_heads_total = static_cast<std::int32_t>(shape.batch * shape.heads_q);
  params->heads_per_section = static_cast<std::int32_t>(order.heads_per_section);
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
  if (order.dynamic && order.num_tiles > grid) {
    params.tile_counter = static_cast<std::uint32_t*>(workspace);
    if (Status status =
            check(driver, driver.memset_d32_async(std::bit_cast<CUdeviceptr>(workspace), 0, 1, stream),
                  "cuMemsetD32Async");
        !status.ok()) {
      return status;
    }
  }
  CUlaunchConfig config{};
  config.gridDimX = grid;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(entry.config.threads());
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(sm90::shared_bytes(entry.key, entry.config));
  config.hStream = stream;
  void* arguments[] = {&params};
  return check(driver, driver.launch_kernel_ex(&config, function, arguments, nullptr), "cuLaunchKernelEx");
}

}  // namespace attn::cuda
