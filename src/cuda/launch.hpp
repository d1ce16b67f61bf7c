// From a dense problem and its device tensors to a launch: tensor maps, kernel parameters, grid. Ordinary
// host code; `run` of the backend is these calls in a row. Tested in tests/unit/cuda_launch_test.cpp
// (arithmetic) and tests/kernels (on a GPU).
#pragma once

#include <cstdint>

#include "cuda/device.hpp"
#include "cuda/params.h"

namespace attn::cuda {

struct DenseShape {
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 1;
  std::int64_t seqlen_kv = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int64_t head_dim_qk = 64;  // multiples of 8, at most the kernel's
  std::int64_t head_dim_v = 64;
  float scale = 1.0F;
  // Row i sees keys [i + band_lower, i + band_upper) as far as they exist; read by band kernels.
  std::int64_t band_lower = 0;
  std::int64_t band_upper = 0;
  std::int64_t key_offset = 0;  // `off` of the contract, for ALiBi
  float softcap = 0.0F;         // 0: none
  bool lse_has_sink = true;
};

[[nodiscard]] inline bool same_strides(const RowStrides& x, const RowStrides& y) {
  return x.batch == y.batch && x.seqlen == y.seqlen && x.heads == y.heads;
}

struct DenseTensor {
  const void* data = nullptr;
  RowStrides strides{};  // elements

  friend bool operator==(const DenseTensor& x, const DenseTensor& y) {
    return x.data == y.data && same_strides(x.strides, y.strides);
  }
};

struct DenseTensors {
  DenseTensor q;
  DenseTensor k;
  DenseTensor v;
  DenseTensor o;
  float* lse = nullptr;
  RowStrides lse_strides{};  // (batch, seqlen, heads)
  const float* sinks = nullptr;
  const float* alibi_slopes = nullptr;
  std::int64_t alibi_batch_stride = 0;

  friend bool operator==(const DenseTensors& x, const DenseTensors& y) {
    return x.q == y.q && x.k == y.k && x.v == y.v && x.o == y.o && x.lse == y.lse &&
           same_strides(x.lse_strides, y.lse_strides) && x.sinks == y.sinks &&
           x.alibi_slopes == y.alibi_slopes && x.alibi_batch_stride == y.alibi_batch_stride;
  }
};

// How tiles are ordered: a pure function of the problem, the kernel and the GPU's size.
struct TileOrder {
  std::int64_t num_m_tiles = 0;
  std::int64_t num_tiles = 0;
  std::int64_t heads_per_section = 1;
  bool longest_first = false;  // in a section; else head by head
  bool dynamic = false;        // tiles are claimed from a counter in the workspace
};
[[nodiscard]] TileOrder order_tiles(const KernelEntry& entry, const DenseShape& shape, const GpuSize& gpu);

// Everything but the tile counter. No device work.
Status make_params(const Device& device, const KernelEntry& entry, const DenseShape& shape,
                   const DenseTensors& tensors, const TileOrder& order, ForwardParams* params);

// Launches; a dynamic order needs a workspace of kCounterBytes, whose contents do not matter. A context of
// the device is current.
Status launch(Device& device, const KernelEntry& entry, ForwardParams& params, const TileOrder& order,
              void* workspace, CUstream stream);

inline constexpr std::size_t kCounterBytes =
    256;  // workspace of a dynamic order: a TileCounter on a cache line of its own

}  // namespace attn::cuda
