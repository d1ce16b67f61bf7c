// Array: an owned, row-major array of floats as files hold it (fp64 included), and its conversion to the
// types that attention takes. Nothing here throws; a size that memory cannot hold is a Status.
// Tested in tests/unit/io_array_test.cpp.
#pragma once

#include <attn/status.hpp>
#include <attn/tensor.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace attn::io {

enum class ElementType : std::int32_t { kFloat16, kBFloat16, kFloat32, kFloat64 };

[[nodiscard]] const char* to_string(ElementType type) noexcept;  // "F16", "BF16", "F32", "F64"
[[nodiscard]] std::size_t size_of(ElementType type) noexcept;    // bytes of one element
// The attention dtype with the same bits; nothing for fp64.
[[nodiscard]] std::optional<DType> to_dtype(ElementType type) noexcept;
[[nodiscard]] ElementType to_element_type(DType dtype) noexcept;

// 64-byte aligned, and not filled on resize: what is read over the bytes at once need not be cleared first.
template <class T>
struct UninitializedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  UninitializedAllocator() noexcept = default;
  // Implicit: containers convert it.
  template <class U>
  UninitializedAllocator(const UninitializedAllocator<U>&) noexcept {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
      throw std::bad_alloc();
    }
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* pointer, std::size_t) noexcept { ::operator delete(pointer, kAlignment); }
  template <class U>
  void construct(U* pointer) noexcept {
    ::new (static_cast<void*>(pointer)) U;
  }
  template <class U, class... Args>
  void construct(U* pointer, Args&&... args) {
    ::new (static_cast<void*>(pointer)) U(static_cast<Args&&>(args)...);
  }
  friend bool operator==(const UninitializedAllocator&, const UninitializedAllocator&) noexcept {
    return true;
  }
};

using Bytes = std::vector<std::byte, UninitializedAllocator<std::byte>>;

// How a file held an array; the Array itself is always row-major in the machine's byte order.
struct Storage {
  std::string dtype;          // as the file says it: ">f8", "BF16"; empty if the array comes from no file
  bool big_endian = false;    // the bytes were swapped on reading
  bool column_order = false;  // the elements were reordered on reading (.npy fortran_order)
};

struct Array {
  std::string name;  // of the tensor in a .safetensors; free otherwise
  ElementType dtype = ElementType::kFloat32;
  std::vector<std::int64_t> shape;  // empty: a scalar, one element
  Bytes bytes;                      // row-major, num_elements() · size_of(dtype)
  Storage storage;

  [[nodiscard]] std::int64_t num_elements() const noexcept;
  [[nodiscard]] void* data() noexcept { return bytes.data(); }
  [[nodiscard]] const void* data() const noexcept { return bytes.data(); }
  // Element by flat row-major index, as fp64: exact for every type.
  [[nodiscard]] double at(std::int64_t index) const noexcept;
};

// "(2, 3, 4)", "(5,)", "()": as Python writes a shape.
[[nodiscard]] std::string shape_string(std::span<const std::int64_t> shape);

// The product of the sizes times element_bytes; 0 where a size is 0. Nothing where a size is negative, or
// where the product of the sizes other than 0 passes 2⁶³ − 1: so strides computed from a shape cannot
// overflow.
[[nodiscard]] std::optional<std::int64_t> checked_bytes(std::span<const std::int64_t> shape,
                                                        std::size_t element_bytes) noexcept;

// An array of the shape, its elements not set. kInvalidArgument for a shape that is negative or too large,
// kOutOfMemory where it cannot be allocated; the message names `name`.
Status make_array(std::string name, ElementType dtype, std::vector<std::int64_t> shape, Array* array);

enum class Rounding {
  kRefuse,       // an element that the target cannot hold exactly is an error that names it
  kNearestEven,  // rounded once, from the source's own precision; past the largest finite value: infinity
};

// The same values as another type. NaN is exact as any NaN. `to` may be the type that the array has.
Status convert(const Array& array, ElementType to, Rounding rounding, Array* converted);

}  // namespace attn::io
