// The order of tiles, from the host's plan to the tile that a block works on: over random shapes each tile of
// each head is handed out once, its blocks hold every key that its rows see, and what a warpgroup skips holds
// none. The device's own arithmetic (decode_tile), called on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

// What next_tile and open_counter are made of, which are not called here.
#include <device_launch_parameters.h>
unsigned atomicAdd(unsigned* address, unsigned value);
unsigned long long atomicCAS(unsigned long long* address, unsigned long long compare,
                             unsigned long long value);

#include "cuda/launch.hpp"
#include "cuda/select.hpp"
#include "cuda/sm90/tile_scheduler.hpp"

namespace attn {
namespace {

using cuda::ForwardParams;
using cuda::KernelEntry;
using sm90::Mask;
using sm90::TileInfo;

using Decode = TileInfo (*)(const ForwardParams&, std::uint32_t);

template <Mask kMask, int kTileM>
Decode decode_of_rows(int tile_n) {
  switch (tile_n) {
    case 64:
      return &sm90::decode_tile<kMask, kTileM, 64>;
    case 80:
      return &sm90::decode_tile<kMask, kTileM, 80>;
    case 96:
      return &sm90::decode_tile<kMask, kTileM, 96>;
    case 128:
      return &sm90::decode_tile<kMask, kTileM, 128>;
    default:
      return nullptr;
  }
}

// Null for a tile that no kernel had when this was written.
Decode decode_of(const KernelEntry& entry) {
  const int n = entry.config.tile_n;
  if (entry.config.tile_m() == 128) {
    return entry.key.mask == Mask::kBand ? decode_of_rows<Mask::kBand, 128>(n)
                                         : decode_of_rows<Mask::kFull, 128>(n);
  }
  if (entry.config.tile_m() == 192) {
    return entry.key.mask == Mask::kBand ? decode_of_rows<Mask::kBand, 192>(n)
                                         : decode_of_rows<Mask::kFull, 192>(n);
  }
  return nullptr;
}

constexpr cuda::GpuSize kHopper{50 << 20, 132};

// As make_params writes them, which needs a device for the tensor maps.
ForwardParams params_of(const cuda::DenseShape& shape, const cuda::TileOrder& order) {
  ForwardParams params{};
  params.seqlen_q = static_cast<std::int32_t>(shape.seqlen_q);
  params.seqlen_kv = static_cast<std::int32_t>(shape.seqlen_kv);
  params.heads_q = static_cast<std::int32_t>(shape.heads_q);
  params.band_lower = static_cast<std::int32_t>(shape.band_lower);
  params.band_upper = static_cast<std::int32_t>(shape.band_upper);
  params.num_tiles = static_cast<std::uint32_t>(order.num_tiles);
  params.num_m_tiles = static_cast<std::uint32_t>(order.num_m_tiles);
  params.num_heads_total = static_cast<std::uint32_t>(shape.batch * shape.heads_q);
  params.heads_per_section = static_cast<std::uint32_t>(order.heads_per_section);
  params.longest_first = order.longest_first ? 1 : 0;
  return params;
}

// Keys [begin, end) that row i of a dense problem sees, without the code under test.
struct Keys {
  std::int64_t begin;
  std::int64_t end;
};
Keys visible(const Problem& p, std::int64_t i) {
  const std::int64_t at = i + (p.alignment == Alignment::kBottomRight ? p.seqlen_kv - p.seqlen_q : 0);
  Keys keys{0, p.seqlen_kv};
  if (p.window_left >= 0 && p.window_left < at) {
    keys.begin = at - p.window_left;
  }
  if (p.window_right >= 0 && p.window_right < p.seqlen_kv - at) {
    keys.end = at + p.window_right + 1;
  }
  if (p.causal) {
    keys.end = std::min(keys.end, at + 1);
  }
  keys.end = std::clamp<std::int64_t>(keys.end, 0, p.seqlen_kv);
  return keys;
}

// What is wrong with a tile's blocks; empty if nothing is.
std::string fault_of(const Problem& p, const KernelEntry& entry, const TileInfo& tile) {
  const std::int64_t n = entry.config.tile_n;
  if (tile.block_begin < 0 || tile.block_end <= tile.block_begin) {
    return "no block";
  }
  if (tile.unmasked_begin < tile.block_begin || tile.unmasked_end > tile.block_end ||
      tile.unmasked_end < tile.unmasked_begin) {
    return "unmasked blocks beyond the tile's";
  }
  for (int w = 0; w < entry.config.warpgroups; ++w) {
    const std::uint32_t skipped = tile.skipped >> (8 * w) & 0xff;
    const std::int64_t first = std::int64_t{tile.m_tile} * entry.config.tile_m() + 64 * w;
    if ((first >= p.seqlen_q) != (skipped == sm90::kNoRows)) {
      return "a warpgroup without rows is told so, and no other";
    }
    if (first >= p.seqlen_q) {
      continue;
    }
    const std::int64_t end = tile.block_end - static_cast<std::int64_t>(skipped);
    if (end <= tile.block_begin || skipped > (entry.config.tile_m() - 64 + n - 1) / n) {
      return "skips " + std::to_string(skipped);
    }
    for (std::int64_t i = first; i < std::min(first + 64, p.seqlen_q); ++i) {
      const Keys keys = visible(p, i);
      if (keys.begin < keys.end && (keys.begin < tile.block_begin * n || keys.end > end * n)) {
        return "row " + std::to_string(i) + " sees keys beyond the blocks";
      }
      if (tile.unmasked_begin < tile.unmasked_end &&
          (keys.begin > tile.unmasked_begin * n || keys.end < tile.unmasked_end * n)) {
        return "row " + std::to_string(i) + " does not see all of an unmasked block";
      }
    }
  }
  return "";
}

Problem random_problem(std::mt19937_64& random) {
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  const auto length = [&] {
    return between(0, 3) == 0 ? between(0, 2) : between(0, 3) == 0 ? 64 * between(1, 30) : between(1, 1500);
  };
  constexpr std::int64_t kHeadDims[] = {8, 32, 64, 80, 128, 160, 192, 256};
  Problem p;
  p.dtype = between(0, 1) == 0 ? DType::kFloat16 : DType::kBFloat16;
  p.head_dim_qk = kHeadDims[between(0, 7)];
  p.head_dim_v = kHeadDims[between(0, 7)];
  p.batch = between(0, 5) == 0 ? 0 : between(1, 6);
  p.heads_kv = between(1, 6);
  p.heads_q = p.heads_kv * between(1, 4);
  p.seqlen_q = length();
  p.seqlen_kv = length();
  p.alignment = between(0, 1) == 0 ? Alignment::kTopLeft : Alignment::kBottomRight;
  p.causal = between(0, 1) == 0;
  if (between(0, 1) == 0) {
    p.window_left = between(-1, 1) * between(1, 700);
    p.window_left = p.window_left < 0 ? -1 : p.window_left;
    p.window_right = between(0, 2) == 0 ? -1 : between(0, 300);
  }
  p.softcap = between(0, 4) == 0 ? 5.0F : 0.0F;
  return p;
}

TEST(CudaTiles, EachIsHandedOutOnceWithTheBlocksThatItsRowsSee) {
  std::mt19937_64 random(1);
  int sections = 0;
  int skipping = 0;
  for (int n = 0; n < 1500; ++n) {
    const Problem p = random_problem(random);
    ASSERT_TRUE(cuda::kernels_can(p).ok()) << to_string(p);
    const cuda::GpuSize gpu{
        static_cast<std::int64_t>(random() % 4 == 0 ? 1 : kHopper.l2_bytes >> random() % 10),
        static_cast<std::int64_t>(1 + random() % kHopper.num_sms)};
    for (const KernelEntry* entry : cuda::kernels_for(p)) {
      const Decode decode = decode_of(*entry);
      ASSERT_NE(decode, nullptr) << entry->name << ": its tile is to be added here";
      const cuda::DenseShape shape = cuda::dense_shape(p);
      const cuda::TileOrder order = cuda::order_tiles(*entry, shape, gpu);
      const std::int64_t heads = p.batch * p.heads_q;
      ASSERT_GE(order.heads_per_section, 1) << to_string(p);
      ASSERT_LE(order.heads_per_section, std::max<std::int64_t>(heads, 1)) << to_string(p);
      ASSERT_EQ(order.num_tiles, heads * order.num_m_tiles);
      sections += order.longest_first && heads > order.heads_per_section ? 1 : 0;
      const ForwardParams params = params_of(shape, order);
      std::vector<int> seen(static_cast<std::size_t>(order.num_tiles));
      for (std::uint32_t t = 0; t < params.num_tiles; ++t) {
        const TileInfo tile = decode(params, t);
        ASSERT_TRUE(tile.batch >= 0 && tile.batch < p.batch && tile.head >= 0 && tile.head < p.heads_q &&
                    tile.m_tile >= 0 && tile.m_tile < order.num_m_tiles)
            << to_string(p) << ": tile " << t;
        ++seen[static_cast<std::size_t>((tile.batch * p.heads_q + tile.head) * order.num_m_tiles +
                                        tile.m_tile)];
        if (t < 40 || t % 64 == 0) {
          ASSERT_EQ(fault_of(p, *entry, tile), "")
              << to_string(p) << ", " << entry->name << ", tile " << tile.m_tile;
          skipping += (tile.skipped & 0xff) != 0 ? 1 : 0;
        }
      }
      ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }))
          << to_string(p);
    }
  }
  EXPECT_GT(sections, 100);
  EXPECT_GT(skipping, 100);
}

// The same at the ends of what the kernels take, where 32 bits are full: the first tiles, the last, some.
TEST(CudaTiles, TheLargestProblems) {
  constexpr std::int64_t kRows = (std::int64_t{1} << 30) - 256;
  constexpr std::int64_t kHeads = (std::int64_t{1} << 31) - 1;
  std::mt19937_64 random(2);
  int accepted = 0;
  for (int n = 0; n < 3000; ++n) {
    Problem p = random_problem(random);
    const auto one_of = [&](std::initializer_list<std::int64_t> values) {
      return *(values.begin() + random() % values.size());
    };
    p.seqlen_q = one_of({0, 1, 128, 1000, 1 << 20, kRows - 129, kRows - 63, kRows - 1, kRows});
    p.seqlen_kv = one_of({0, 1, 1000, 1 << 20, kRows - 1, kRows});
    p.batch = one_of({0, 1, 3, 1 << 15, 1 << 20, kHeads});
    p.heads_kv = one_of({1, 7, 1 << 10, kHeads});
    p.heads_q = p.heads_kv * (p.heads_kv < 1 << 12 ? one_of({1, 5, 1 << 9, 1 << 20}) : 1);
    p.window_left = one_of({-1, 0, 700, kRows, INT64_MAX});
    p.window_right = one_of({-1, 0, 300, kRows, INT64_MAX});
    if (!cuda::kernels_can(p).ok()) {
      continue;
    }
    ++accepted;
    for (const KernelEntry* entry : cuda::kernels_for(p)) {
      const Decode decode = decode_of(*entry);
      ASSERT_NE(decode, nullptr) << entry->name;
      const cuda::DenseShape shape = cuda::dense_shape(p);
      const cuda::TileOrder order = cuda::order_tiles(*entry, shape, kHopper);
      ASSERT_GE(order.heads_per_section, 1) << to_string(p);
      ASSERT_LE(order.heads_per_section, std::max<std::int64_t>(p.batch * p.heads_q, 1)) << to_string(p);
      // Blocks claim past the end, up to one for each SM.
      ASSERT_LT(order.num_tiles + 2 * kHopper.num_sms, std::int64_t{1} << 32) << to_string(p);
      const ForwardParams params = params_of(shape, order);
      for (int tries = 0; tries < 8 && order.num_tiles > 0; ++tries) {
        const auto t = static_cast<std::uint32_t>(
            tries == 0   ? 0
            : tries == 1 ? order.num_tiles - 1
                         : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(order.num_tiles)));
        const TileInfo tile = decode(params, t);
        ASSERT_TRUE(tile.batch >= 0 && tile.batch < p.batch && tile.head >= 0 && tile.head < p.heads_q &&
                    tile.m_tile >= 0 && tile.m_tile < order.num_m_tiles)
            << to_string(p) << ": tile " << t;
        ASSERT_EQ(fault_of(p, *entry, tile), "")
            << to_string(p) << ", " << entry->name << ", tile " << tile.m_tile;
      }
    }
  }
  EXPECT_GT(accepted, 300);
}

}  // namespace
}  // namespace attn
