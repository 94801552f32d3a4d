// What all bindings share: the array types they take, and the checks between those and the structs of dispatch/.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "../dispatch/ops.h"

namespace octavo {

namespace nb = nanobind;

using F32x1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using F32x2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using I32x1 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using U64x1 = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using I32x2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Pages = nb::ndarray<nb::device::cpu>;

// All of these throw std::invalid_argument, a ValueError in Python.
void require(bool ok, const char* what);
NormArgs norm_args(const std::optional<F32x1>& weight, double eps, std::size_t n, const char* what);
Act act_of(const std::string& name);
// Each row of the matrix is `columns` numbers of the format.
void require_rows(Format format, const Bytes& matrix, int columns);
RopeArgs rope_args(const std::optional<F32x2>& cos, const std::optional<F32x2>& sin, bool interleaved,
                   std::size_t head_dim);
AttentionArgs attention_args(int heads, int kv_heads, double scale, int window, double softcap,
                             const std::optional<F32x1>& sinks);
KvPages kv_pages(const Pages& k, const Pages& v, const std::string& dtype);
// Every page a sequence will touch exists; positions run on from kv_len - new tokens, or are depths of a tree.
BatchArgs batch_args(const I32x1& positions, const I32x1& starts, const I32x1& lens, const I32x2& tables,
                     const std::optional<U64x1>& tree, const KvPages& kv, std::size_t pages);

}  // namespace octavo
