// Files as NumPy 2.4.6 (with ml_dtypes 0.6.0) and safetensors 0.8.0 wrote them, byte for byte; the expression
// is above each. So the readers are proved against the originals where neither package is installed.
#pragma once

#include <string_view>

namespace attn::io::golden {

// clang-format off
// numpy.arange(24, dtype="<f4").reshape(1, 3, 2, 4)
inline constexpr std::string_view kNpyRowOrder{
    "\223NUMPY\001\000v\000"
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 2, 4), }"
    "                                                    \012"
    "\000\000\000\000\000\000\200\?\000\000\000@\000\000@@"
    "\000\000\200@\000\000\240@\000\000\300@\000\000\340@"
    "\000\000\000A\000\000\020A\000\000 A\000\0000A"
    "\000\000@A\000\000PA\000\000`A\000\000pA"
    "\000\000\200A\000\000\210A\000\000\220A\000\000\230A"
    "\000\000\240A\000\000\250A\000\000\260A\000\000\270A"
    , 224};

// numpy.asfortranarray of the same
inline constexpr std::string_view kNpyColumnOrder{
    "\223NUMPY\001\000v\000"
    "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 3, 2, 4), }"
    "                                                     \012"
    "\000\000\000\000\000\000\000A\000\000\200A\000\000\200@"
    "\000\000@A\000\000\240A\000\000\200\?\000\000\020A"
    "\000\000\210A\000\000\240@\000\000PA\000\000\250A"
    "\000\000\000@\000\000 A\000\000\220A\000\000\300@"
    "\000\000`A\000\000\260A\000\000@@\000\0000A"
    "\000\000\230A\000\000\340@\000\000pA\000\000\270A"
    , 224};

// numpy.arange(6, dtype="<f4").reshape(3, 2).T: column order without being asked for
inline constexpr std::string_view kNpyTransposed{
    "\223NUMPY\001\000v\000"
    "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }"
    "                                                           \012"
    "\000\000\000\000\000\000\200\?\000\000\000@\000\000@@"
    "\000\000\200@\000\000\240@"
    , 152};

// numpy.array([1, -2.5], dtype=">f2")
inline constexpr std::string_view kNpyBigF2{
    "\223NUMPY\001\000v\000"
    "{'descr': '>f2', 'fortran_order': False, 'shape': (2,), }"
    "                                                            \012"
    "<\000\301\000"
    , 132};

// numpy.array([0.1], dtype=">f8")
inline constexpr std::string_view kNpyBigF8{
    "\223NUMPY\001\000v\000"
    "{'descr': '>f8', 'fortran_order': False, 'shape': (1,), }"
    "                                                            \012"
    "\?\271\231\231\231\231\231\232"
    , 136};

// version 2.0 of numpy.array([1, 2], dtype="<f2")
inline constexpr std::string_view kNpyVersion2{
    "\223NUMPY\002\000t\000\000\000"
    "{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }"
    "                                                          \012"
    "\000<\000@"
    , 132};

// version 3.0 of the same
inline constexpr std::string_view kNpyVersion3{
    "\223NUMPY\003\000t\000\000\000"
    "{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }"
    "                                                          \012"
    "\000<\000@"
    , 132};

// numpy.array([1, 3], dtype=ml_dtypes.bfloat16)
inline constexpr std::string_view kNpyBf16{
    "\223NUMPY\001\000v\000"
    "{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }"
    "                                                            \012"
    "\200\?@@"
    , 132};

// numpy.array(2.5)
inline constexpr std::string_view kNpyScalar{
    "\223NUMPY\001\000v\000"
    "{'descr': '<f8', 'fortran_order': False, 'shape': (), }"
    "                                                              \012"
    "\000\000\000\000\000\000\004@"
    , 136};

// numpy.array([None], dtype=object): a pickle
inline constexpr std::string_view kNpyObject{
    "\223NUMPY\001\000v\000"
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    "                                                             \012"
    "\200\004\225\212\000\000\000\000\000\000\000\214\026num"
    "py._core.multiar"
    "ray\224\214\014_reconstru"
    "ct\224\223\224\214\005numpy\224\214\007n"
    "darray\224\223\224K\000\205\224C\001b"
    "\224\207\224R\224(K\001K\001\205\224h\003\214\005"
    "dtype\224\223\224\214\002O8\224\211\210\207"
    "\224R\224(K\003\214\001|\224NNNJ\377\377"
    "\377\377J\377\377\377\377K\?t\224b\211]\224N"
    "at\224b."
    , 277};

// numpy.zeros(1, dtype=[("x", "<f4"), ("y", "<i2", (2,))])
inline constexpr std::string_view kNpyStructured{
    "\223NUMPY\001\000v\000"
    "{'descr': [('x', '<f4'), ('y', '<i2', (2,))], 'fortran_order': False, 'shape': (1,), }"
    "                               \012"
    "\000\000\000\000\000\000\000\000"
    , 136};

// numpy.zeros((0, 5), dtype="<f4")
inline constexpr std::string_view kNpyNone{
    "\223NUMPY\001\000v\000"
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 5), }"
    "                                                          \012"
    , 128};

// safetensors.numpy.save of q [[1, 2], [3, 4]] float32, k [1, -2.5] float16, mask [1, 0, 1] int64
inline constexpr std::string_view kSafetensors{
    "\320\000\000\000\000\000\000\000"
    "{\"__metadata__\":{\"model\":\"tiny\"},"
    "\"mask\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[0,24]},"
    "\"q\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[24,40]},"
    "\"k\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[40,44]}}      "
    "\001\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000"
    "\001\000\000\000\000\000\000\000\000\000\200\?\000\000\000@"
    "\000\000@@\000\000\200@\000<\000\301"
    , 260};
// clang-format on

}  // namespace attn::io::golden
