// Host memory for one case: inputs and metadata made from the seed, outputs full of poison, every block
// between guard zones. A runner for another memory copies blocks() there whole and rebases the views. Tested
// in tests/conformance/buffers_test.cpp.
#pragma once

#include <attn/plan.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verify/case.hpp"

namespace attn::verify {

inline constexpr std::size_t kGuardBytes = 4096;  // on each side of every block

// One allocation: guard, payload, guard. The payload starts at a multiple of 64 bytes, or `offset` elements
// after.
class Block {
 public:
  Block() = default;
  Block(std::string name, std::size_t payload_bytes, bool output);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool output() const noexcept { return output_; }  // whether run may write to the payload
  [[nodiscard]] std::byte* payload() const noexcept { return base_ + kGuardBytes; }
  [[nodiscard]] std::size_t payload_bytes() const noexcept { return payload_bytes_; }
  // The whole allocation, guards included.
  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return payload_bytes_ + 2 * kGuardBytes; }
  // Offset of the first guard byte that was overwritten, from the payload's start (negative: before it).
  [[nodiscard]] std::optional<std::int64_t> broken_guard() const noexcept;

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept;
  };
  std::string name_;
  std::unique_ptr<std::byte, Free> memory_;
  std::byte* base_ = nullptr;
  std::size_t payload_bytes_ = 0;
  bool output_ = false;
};

class Buffers {
 public:
  // Throws std::bad_alloc where the memory cannot be had, std::invalid_argument where pages= is too small.
  // The case must be complete.
  explicit Buffers(Case c);
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers();

  [[nodiscard]] const Case& what() const noexcept { return case_; }
  [[nodiscard]] const Problem& problem() const noexcept { return case_.problem; }
  [[nodiscard]] const Tensors& tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::vector<Block>& blocks() noexcept { return blocks_; }
  [[nodiscard]] const std::vector<Block>& blocks() const noexcept { return blocks_; }
  // A block by name ("q", "k", "v", "o", "lse", "kv", "qkv", "page_table", …); null if the case has none.
  [[nodiscard]] const Block* find(std::string_view name) const noexcept;

  // Passes every row of Q, K or V that has influence (appended ones in k_new, v_new) to `fill`, which may
  // change the values, and stores them. The rows so changed are what reset() restores.
  void rewrite(Which which, const std::function<void(const RowId&, std::span<float>)>& fill);
  // Takes what the blocks hold now as their built state: after writing to metadata directly.
  void seal();

  // Fills O and LSE with poison again, and restores the caches that an append wrote.
  void reset();
  // The payload as it was built; empty for O and LSE, which are all poison.
  [[nodiscard]] const std::vector<std::byte>& pristine(const Block& block) const;

  // The bits that fill outputs: a signalling NaN, which no arithmetic produces.
  [[nodiscard]] static std::uint32_t poison_bits(DType dtype) noexcept;

 private:
  friend class BufferBuilder;
  Case case_;
  Tensors tensors_;
  std::vector<Block> blocks_;
  std::vector<std::vector<std::byte>> pristine_;  // of each block, as built
};

}  // namespace attn::verify
