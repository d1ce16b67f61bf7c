#include "io/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "io/text.hpp"

namespace attn::io {
namespace {

using Json = nlohmann::json;

// Above every array that tools make; bounds what a header can claim for one tensor.
constexpr std::size_t kMaxRank = 64;
constexpr std::size_t kMaxJsonReason = 300;

struct DtypeBits {
  std::string_view name;
  int bits;
};
// safetensors 0.6, src/tensor.rs, enum Dtype.
constexpr std::array<DtypeBits, 22> kDtypes{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

std::optional<ElementType> element_type(std::string_view dtype) {
  for (const ElementType type :
       {ElementType::kFloat16, ElementType::kBFloat16, ElementType::kFloat32, ElementType::kFloat64}) {
    if (dtype == to_string(type)) {
      return type;
    }
  }
  return std::nullopt;
}

// Receives the parser's events. A state says what may come next; all else is an error there and then, so
// depth never passes that of the format (object, tensor, list).
class Handler {
 public:
  Handler(SafetensorsHeader* header, std::string* error) : header_(header), error_(error) {}

  // NOLINTBEGIN(readability-identifier-naming): the names that nlohmann::json::sax_parse calls.
  using string_t = Json::string_t;
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using binary_t = Json::binary_t;

  bool null() { return unexpected("null"); }
  bool boolean(bool value) { return unexpected(value ? "true" : "false"); }
  bool binary(binary_t&) { return unexpected("binary data"); }
  bool number_float(number_float_t, const string_t& text) {
    return state_ == State::kShape || state_ == State::kOffsets
               ? fail(fmt::format("{} holds {}, which is not an integer from 0 to 2^63 - 1", list_name(),
                                  quote_text(text, 40)))
               : unexpected("a number");
  }
  bool number_integer(number_integer_t value) {
    return state_ == State::kShape || state_ == State::kOffsets
               ? fail(fmt::format("{} holds the negative number {}", list_name(), value))
               : unexpected("a number");
  }
  bool number_unsigned(number_unsigned_t value);
  bool string(string_t& value);
  bool start_object(std::size_t);
  bool key(string_t& name);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool parse_error(std::size_t position, const std::string&, const Json::exception& cause) {
    std::string_view what = cause.what();
    if (const std::size_t prefix = what.find("] ");
        what.starts_with('[') && prefix != std::string_view::npos) {
      what.remove_prefix(prefix + 2);  // "[json.exception.parse_error.101] "
    }
    const std::string reason = quote_text(what, kMaxJsonReason);
    return fail(fmt::format("malformed JSON at byte {} of the header: {}", position,
                            std::string_view{reason}.substr(1, reason.size() - 2)));
  }
  // NOLINTEND(readability-identifier-naming)

 private:
  enum class State {
    kStart,
    kRoot,
    kTensorValue,
    kTensor,
    kField,
    kShape,
    kOffsets,
    kMetadataValue,
    kMetadata,
    kMetadataText,
    kEnd
  };
  enum class Field { kDtype, kShape, kOffsets };

  [[nodiscard]] std::string place() const {
    switch (state_) {
      case State::kStart:
      case State::kRoot:
      case State::kEnd:
        return "header";
      case State::kMetadataValue:
      case State::kMetadata:
        return "__metadata__";
      case State::kMetadataText:
        return "__metadata__ entry " + quote_text(metadata_key_);
      default:
        return "tensor " + quote_text(tensor_.name);
    }
  }
  bool fail(const std::string& reason) {
    if (error_->empty()) {
      *error_ = fmt::format("{}: {}", place(), reason);
    }
    return false;
  }
  [[nodiscard]] const char* list_name() const { return state_ == State::kShape ? "shape" : "data_offsets"; }
  bool unexpected(const char* found) {
    switch (state_) {
      case State::kStart:
        return fail(fmt::format("a JSON object is needed, {} found", found));
      case State::kTensorValue:
        return fail(fmt::format("an object of dtype, shape and data_offsets is needed, {} found", found));
      case State::kField:
        return fail(field_ == Field::kDtype
                        ? fmt::format("dtype must be a string, {} found", found)
                        : fmt::format("{} must be a list of integers, {} found",
                                      field_ == Field::kShape ? "shape" : "data_offsets", found));
      case State::kShape:
      case State::kOffsets:
        return fail(fmt::format("{} must hold integers, {} found", list_name(), found));
      case State::kMetadataValue:
        return fail(fmt::format("an object of strings is needed, {} found", found));
      case State::kMetadataText:
        return fail(fmt::format("a string is needed, {} found", found));
      default:
        return fail(fmt::format("unexpected {}", found));
    }
  }
  bool finish_tensor();

  SafetensorsHeader* header_;
  std::string* error_;
  State state_ = State::kStart;
  Field field_ = Field::kDtype;
  bool have_dtype_ = false;
  bool have_shape_ = false;
  bool have_offsets_ = false;
  bool have_metadata_ = false;
  std::size_t num_offsets_ = 0;
  TensorInfo tensor_;
  std::string metadata_key_;
  std::unordered_set<std::string> names_;
};

bool Handler::number_unsigned(number_unsigned_t value) {
  if (state_ != State::kShape && state_ != State::kOffsets) {
    return unexpected("a number");
  }
  if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
    return fail(fmt::format("{} holds {}, above 2^63 - 1", list_name(), value));
  }
  const auto number = static_cast<std::int64_t>(value);
  if (state_ == State::kShape) {
    if (tensor_.shape.size() == kMaxRank) {
      return fail(fmt::format("shape has more than {} sizes", kMaxRank));
    }
    tensor_.shape.push_back(number);
    return true;
  }
  if (num_offsets_ == 2) {
    return fail("data_offsets must be two integers, begin and end; there are more");
  }
  (num_offsets_ == 0 ? tensor_.begin : tensor_.end) = number;
  ++num_offsets_;
  return true;
}

bool Handler::string(string_t& value) {
  if (state_ == State::kField && field_ == Field::kDtype) {
    if (safetensors_bits(value) == 0) {
      return fail(fmt::format("unknown dtype {}", quote_text(value)));
    }
    tensor_.dtype = std::move(value);
    tensor_.element_type = element_type(tensor_.dtype);
    state_ = State::kTensor;
    return true;
  }
  if (state_ == State::kMetadataText) {
    header_->metadata.emplace(std::move(metadata_key_), std::move(value));
    state_ = State::kMetadata;
    return true;
  }
  return unexpected("a string");
}

bool Handler::start_object(std::size_t) {
  switch (state_) {
    case State::kStart:
      state_ = State::kRoot;
      return true;
    case State::kTensorValue:
      state_ = State::kTensor;
      return true;
    case State::kMetadataValue:
      state_ = State::kMetadata;
      return true;
    default:
      return unexpected("an object");
  }
}

bool Handler::key(string_t& name) {
  if (state_ == State::kRoot) {
    if (name == "__metadata__") {
      if (std::exchange(have_metadata_, true)) {
        return fail("'__metadata__' occurs twice");
      }
      state_ = State::kMetadataValue;
      return true;
    }
    if (!names_.insert(name).second) {
      return fail(fmt::format("tensor {} occurs twice", quote_text(name)));
    }
    tensor_ = {};
    tensor_.name = std::move(name);
    have_dtype_ = have_shape_ = have_offsets_ = false;
    num_offsets_ = 0;
    state_ = State::kTensorValue;
    return true;
  }
  if (state_ == State::kMetadata) {
    if (header_->metadata.contains(name)) {
      return fail(fmt::format("entry {} occurs twice", quote_text(name)));
    }
    metadata_key_ = std::move(name);
    state_ = State::kMetadataText;
    return true;
  }
  bool* have = nullptr;
  if (name == "dtype") {
    field_ = Field::kDtype;
    have = &have_dtype_;
  } else if (name == "shape") {
    field_ = Field::kShape;
    have = &have_shape_;
  } else if (name == "data_offsets") {
    field_ = Field::kOffsets;
    have = &have_offsets_;
  } else {
    return fail(
        fmt::format("unknown field {} (dtype, shape and data_offsets are the fields)", quote_text(name)));
  }
  if (std::exchange(*have, true)) {
    return fail(fmt::format("field {} occurs twice", quote_text(name)));
  }
  state_ = State::kField;
  return true;
}

bool Handler::end_object() {
  switch (state_) {
    case State::kRoot:
      state_ = State::kEnd;
      return true;
    case State::kMetadata:
      state_ = State::kRoot;
      return true;
    case State::kTensor:
      return finish_tensor();
    default:
      return unexpected("the end of an object");
  }
}

bool Handler::start_array(std::size_t) {
  if (state_ == State::kField && field_ != Field::kDtype) {
    state_ = field_ == Field::kShape ? State::kShape : State::kOffsets;
    return true;
  }
  return unexpected("a list");
}

bool Handler::end_array() {
  if (state_ == State::kOffsets && num_offsets_ != 2) {
    return fail(fmt::format("data_offsets must be two integers, begin and end; there {} {}",
                            num_offsets_ == 1 ? "is" : "are", num_offsets_));
  }
  state_ = State::kTensor;
  return true;
}

bool Handler::finish_tensor() {
  if (!have_dtype_ || !have_shape_ || !have_offsets_) {
    return fail(fmt::format("{} is missing", !have_dtype_   ? "dtype"
                                             : !have_shape_ ? "shape"
                                                            : "data_offsets"));
  }
  if (tensor_.end < tensor_.begin) {
    return fail(fmt::format("data_offsets [{}, {}] end before they begin", tensor_.begin, tensor_.end));
  }
  // checked_bytes counts in bytes; here an element is some bits, eight of which make a byte.
  const std::optional<std::int64_t> bits =
      checked_bytes(tensor_.shape, static_cast<std::size_t>(safetensors_bits(tensor_.dtype)));
  if (!bits) {
    return fail(fmt::format("shape {} of {} overflows: it has more than 2^63 - 1 bits",
                            shape_string(tensor_.shape), tensor_.dtype));
  }
  if (*bits % 8 != 0) {
    return fail(fmt::format("shape {} of {} is {} bits, not whole bytes", shape_string(tensor_.shape),
                            tensor_.dtype, *bits));
  }
  if (*bits / 8 != tensor_.end - tensor_.begin) {
    return fail(fmt::format("shape {} of {} needs {} bytes, data_offsets [{}, {}] hold {}",
                            shape_string(tensor_.shape), tensor_.dtype, *bits / 8, tensor_.begin, tensor_.end,
                            tensor_.end - tensor_.begin));
  }
  header_->tensors.push_back(std::move(tensor_));
  state_ = State::kRoot;
  return true;
}

// Sorts by place and requires that the tensors cover [0, data_bytes) with no gap and no overlap.
bool check_coverage(std::int64_t data_bytes, std::vector<TensorInfo>* tensors, std::string* error) {
  // A tensor of no bytes goes before the one that begins at the same place.
  std::stable_sort(tensors->begin(), tensors->end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::int64_t covered = 0;
  const TensorInfo* before = nullptr;
  for (const TensorInfo& tensor : *tensors) {
    if (tensor.end > data_bytes) {
      *error = fmt::format("tensor {}: data_offsets [{}, {}] pass the end of the data, which has {} bytes",
                           quote_text(tensor.name), tensor.begin, tensor.end, data_bytes);
      return false;
    }
    if (tensor.begin < covered) {
      *error = fmt::format("tensor {}: data_offsets [{}, {}] overlap those of tensor {}, [{}, {}]",
                           quote_text(tensor.name), tensor.begin, tensor.end, quote_text(before->name),
                           before->begin, before->end);
      return false;
    }
    if (tensor.begin > covered) {
      *error = fmt::format("tensor {}: a gap before it, data bytes [{}, {}) belong to no tensor",
                           quote_text(tensor.name), covered, tensor.begin);
      return false;
    }
    covered = tensor.end;
    before = &tensor;
  }
  if (covered != data_bytes) {
    *error =
        before == nullptr
            ? fmt::format("no tensors, but {} bytes of data", data_bytes)
            : fmt::format("tensor {}: it is the last, and after it data bytes [{}, {}) belong to no tensor",
                          quote_text(before->name), covered, data_bytes);
    return false;
  }
  return true;
}

}  // namespace

int safetensors_bits(std::string_view dtype) noexcept {
  for (const DtypeBits& entry : kDtypes) {
    if (entry.name == dtype) {
      return entry.bits;
    }
  }
  return 0;
}

bool parse_safetensors_header(std::string_view text, std::int64_t data_bytes, SafetensorsHeader* header,
                              std::string* error) {
  error->clear();
  *header = {};
  // As upstream asks; it also keeps out the byte order mark that the JSON parser would skip.
  if (text.empty() || text.front() != '{') {
    *error = "header: a JSON object is needed, it does not begin with '{'";
    return false;
  }
  // The JSON parser takes a NUL for the end of its input and would let pass whatever comes after it.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    *error = fmt::format("header: malformed JSON: a NUL at byte {}", nul);
    return false;
  }
  Handler handler(header, error);
  if (!Json::sax_parse(text.begin(), text.end(), &handler)) {
    if (error->empty()) {
      *error = "header: malformed JSON";
    }
    return false;
  }
  return check_coverage(data_bytes, &header->tensors, error);
}

}  // namespace attn::io
