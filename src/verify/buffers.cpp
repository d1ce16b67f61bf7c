// Guarded blocks, and the buffers of a case after they are built (buffer_builder.cpp). Contract: buffers.hpp.
#include "verify/buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/geometry.hpp"
#include "core/numeric.hpp"

namespace attn::verify {
namespace {

// A NaN in all three dtypes and an impossible length: what a read beyond a block brings back.
constexpr std::uint16_t kGuard = 0xFFFB;

void fill_guard(std::byte* p) {
  for (std::size_t i = 0; i < kGuardBytes; i += 2) {
    std::memcpy(p + i, &kGuard, 2);
  }
}

}  // namespace

void Block::Free::operator()(std::byte* p) const noexcept {
  std::free(p);
}

Block::Block(std::string name, std::size_t payload_bytes, bool output)
    : name_(std::move(name)), payload_bytes_(payload_bytes), output_(output) {
  const std::size_t total = payload_bytes + 2 * kGuardBytes;
  const std::size_t rounded = (total + 63) / 64 * 64;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
  if (memory_ == nullptr) {
    throw std::bad_alloc();
  }
  base_ = memory_.get();
  fill_guard(base_);
  fill_guard(payload() + payload_bytes_);
}

std::optional<std::int64_t> Block::broken_guard() const noexcept {
  for (std::size_t i = 0; i < kGuardBytes; i += 2) {
    if (std::memcmp(base_ + i, &kGuard, 2) != 0) {
      return static_cast<std::int64_t>(i) - static_cast<std::int64_t>(kGuardBytes);
    }
  }
  const std::byte* after = payload() + payload_bytes_;
  for (std::size_t i = 0; i < kGuardBytes; i += 2) {
    if (std::memcmp(after + i, &kGuard, 2) != 0) {
      return static_cast<std::int64_t>(payload_bytes_ + i);
    }
  }
  return std::nullopt;
}

std::uint32_t Buffers::poison_bits(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat16:
      return 0x7CA5;
    case DType::kBFloat16:
      return 0x7FA5;
    case DType::kFloat32:
      break;
  }
  return 0x7FA5A5A5;
}

Buffers::~Buffers() = default;

const Block* Buffers::find(std::string_view name) const noexcept {
  for (const Block& block : blocks_) {
    if (block.name() == name) {
      return &block;
    }
  }
  return nullptr;
}

const std::vector<std::byte>& Buffers::pristine(const Block& block) const {
  return pristine_.at(static_cast<std::size_t>(&block - blocks_.data()));
}

void Buffers::seal() {
  pristine_.clear();
  for (const Block& block : blocks_) {
    std::vector<std::byte> copy;
    if (block.name() != "o" && block.name() != "lse") {
      copy.assign(block.payload(), block.payload() + block.payload_bytes());
    }
    pristine_.push_back(std::move(copy));
  }
}

void Buffers::rewrite(Which which, const std::function<void(const RowId&, std::span<float>)>& fill) {
  const Problem& p = case_.problem;
  const auto change = [&](const TensorView& t, std::int64_t at, const RowId& id) {
    std::vector<float> row(static_cast<std::size_t>(t.shape[3]));
    for (std::size_t n = 0; n < row.size(); ++n) {
      row[n] = core::load_element(t.data, t.dtype, at + static_cast<std::int64_t>(n));
    }
    fill(id, row);
    for (std::size_t n = 0; n < row.size(); ++n) {
      core::store_element(t.data, t.dtype, at + static_cast<std::int64_t>(n), row[n]);
    }
  };
  const std::int64_t heads = which == Which::kQ ? p.heads_q : p.heads_kv;
  const TensorView& cache = which == Which::kK ? tensors_.k : tensors_.v;
  const TensorView& fresh = which == Which::kK ? tensors_.k_new : tensors_.v_new;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence_of(p, tensors_, b);
    const core::KeyRange seen = core::visible_keys_of_rows(p, s, 0, s.seqlen_q);
    const std::int64_t cached = s.seqlen_kv - p.seqlen_new;
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; which == Which::kQ && i < s.seqlen_q; ++i) {
        change(tensors_.q, core::q_row_offset(tensors_.q, s, i, h), {b, h, i});
      }
      for (std::int64_t j = seen.begin; which != Which::kQ && j < std::min(seen.end, cached); ++j) {
        change(cache, core::kv_row_offset(p, tensors_, cache, s, j, h), {b, h, j});
      }
      for (std::int64_t n = 0; which != Which::kQ && n < p.seqlen_new; ++n) {
        change(fresh, b * fresh.strides[0] + n * fresh.strides[1] + h * fresh.strides[2], {b, h, cached + n});
      }
    }
  }
  seal();
}

void Buffers::reset() {
  for (std::size_t n = 0; n < blocks_.size(); ++n) {
    const Block& block = blocks_[n];
    if (!block.output()) {
      continue;
    }
    if (!pristine_[n].empty()) {
      std::memcpy(block.payload(), pristine_[n].data(), block.payload_bytes());
      continue;
    }
    const DType dtype = block.name() == "lse" ? DType::kFloat32 : case_.problem.dtype;
    const std::uint32_t bits = poison_bits(dtype);
    const std::size_t size = size_of(dtype);
    for (std::size_t at = 0; at + size <= block.payload_bytes(); at += size) {
      std::memcpy(block.payload() + at, &bits, size);
    }
  }
}

}  // namespace attn::verify
