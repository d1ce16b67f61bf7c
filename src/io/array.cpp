#include "io/array.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/numeric.hpp"
#include "io/text.hpp"

namespace attn::io {
namespace {

std::uint16_t load_bits16(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return bits;
}

double load(const std::byte* base, ElementType type, std::int64_t index) {
  const std::byte* at = base + static_cast<std::size_t>(index) * size_of(type);
  switch (type) {
    case ElementType::kFloat16:
      return static_cast<double>(core::fp16_to_float(load_bits16(at)));
    case ElementType::kBFloat16:
      return static_cast<double>(core::bf16_to_float(load_bits16(at)));
    case ElementType::kFloat32: {
      float value = 0;
      std::memcpy(&value, at, sizeof(value));
      return static_cast<double>(value);
    }
    case ElementType::kFloat64:
      break;
  }
  double value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// To fp32 by round-to-odd: the result still tells on which side of every 16-bit rounding boundary the value
// lies, so rounding it once more is the same as rounding the value itself (fp32 has more than two further
// bits).
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const auto nearest_value = static_cast<double>(nearest);
  if (nearest_value == value || std::isnan(value)) {
    return nearest;
  }
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(nearest_value) > std::fabs(value)) {
    bits -= 1;  // truncate: the next float towards zero (from infinity: the largest finite one)
  }
  return std::bit_cast<float>(bits | 1U);
}

// Rounds once, to nearest even.
void store(std::byte* base, ElementType type, std::int64_t index, double value) {
  std::byte* at = base + static_cast<std::size_t>(index) * size_of(type);
  if (type == ElementType::kFloat64) {
    std::memcpy(at, &value, sizeof(value));
  } else if (type == ElementType::kFloat32) {
    const float rounded = static_cast<float>(value);
    std::memcpy(at, &rounded, sizeof(rounded));
  } else {
    const float odd = round_to_odd(value);
    const std::uint16_t bits =
        type == ElementType::kFloat16 ? core::float_to_fp16(odd) : core::float_to_bf16(odd);
    std::memcpy(at, &bits, sizeof(bits));
  }
}

std::string index_string(std::int64_t flat, std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return shape_string(index);
}

std::string label_of(const std::string& name) {
  return name.empty() ? std::string("array") : "tensor " + quote_text(name);
}

}  // namespace

const char* to_string(ElementType type) noexcept {
  switch (type) {
    case ElementType::kFloat16:
      return "F16";
    case ElementType::kBFloat16:
      return "BF16";
    case ElementType::kFloat32:
      return "F32";
    case ElementType::kFloat64:
      return "F64";
  }
  return "?";
}

std::size_t size_of(ElementType type) noexcept {
  switch (type) {
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return 2;
    case ElementType::kFloat32:
      return 4;
    case ElementType::kFloat64:
      break;
  }
  return 8;
}

std::optional<DType> to_dtype(ElementType type) noexcept {
  switch (type) {
    case ElementType::kFloat16:
      return DType::kFloat16;
    case ElementType::kBFloat16:
      return DType::kBFloat16;
    case ElementType::kFloat32:
      return DType::kFloat32;
    case ElementType::kFloat64:
      break;
  }
  return std::nullopt;
}

ElementType to_element_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat16:
      return ElementType::kFloat16;
    case DType::kBFloat16:
      return ElementType::kBFloat16;
    case DType::kFloat32:
      break;
  }
  return ElementType::kFloat32;
}

std::int64_t Array::num_elements() const noexcept {
  return static_cast<std::int64_t>(bytes.size() / size_of(dtype));
}

double Array::at(std::int64_t index) const noexcept {
  return load(bytes.data(), dtype, index);
}

std::string shape_string(std::span<const std::int64_t> shape) {
  std::string out = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    out += fmt::format("{}{}", axis == 0 ? "" : ", ", shape[axis]);
  }
  return out + (shape.size() == 1 ? ",)" : ")");
}

std::optional<std::int64_t> checked_bytes(std::span<const std::int64_t> shape,
                                          std::size_t element_bytes) noexcept {
  auto product = static_cast<std::int64_t>(element_bytes);
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      return std::nullopt;
    }
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

Status make_array(std::string name, ElementType dtype, std::vector<std::int64_t> shape, Array* array) {
  const std::optional<std::int64_t> size = checked_bytes(shape, size_of(dtype));
  if (!size) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format("{}: shape {} of {} is not possible: sizes must be at least 0 and all bytes together at "
                    "most 2^63 - 1",
                    label_of(name), shape_string(shape), to_string(dtype))};
  }
  try {
    array->bytes = Bytes(static_cast<std::size_t>(*size));
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory,
            fmt::format("{}: {} bytes for shape {} of {} cannot be allocated", label_of(name), *size,
                        shape_string(shape), to_string(dtype))};
  } catch (const std::length_error&) {
    return {StatusCode::kOutOfMemory,
            fmt::format("{}: {} bytes for shape {} of {} cannot be allocated", label_of(name), *size,
                        shape_string(shape), to_string(dtype))};
  }
  array->name = std::move(name);
  array->dtype = dtype;
  array->shape = std::move(shape);
  array->storage = {};
  return {};
}

Status convert(const Array& array, ElementType to, Rounding rounding, Array* converted) {
  Array result;
  if (Status status = make_array(array.name, to, array.shape, &result); !status.ok()) {
    return status;
  }
  result.storage = array.storage;
  if (to == array.dtype) {
    result.bytes = array.bytes;
    *converted = std::move(result);
    return {};
  }
  const std::int64_t count = array.num_elements();
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = load(array.bytes.data(), array.dtype, i);
    store(result.bytes.data(), to, i, value);
    if (rounding == Rounding::kRefuse && !std::isnan(value) && load(result.bytes.data(), to, i) != value) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: element {} is {:.17g}, which {} cannot hold exactly", label_of(array.name),
                          index_string(i, array.shape), value, to_string(to))};
    }
  }
  *converted = std::move(result);
  return {};
}

}  // namespace attn::io
