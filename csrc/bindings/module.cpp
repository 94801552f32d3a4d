// octavo.ops._native: arrays in, arrays out. Shapes are checked here, once, before any pointer is formed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "../dispatch/dispatch.h"
#include "../dispatch/ops.h"

namespace nb = nanobind;
using namespace octavo;

namespace {

using F32x1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using F32x2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using I32x1 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using I32x2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Pages = nb::ndarray<nb::c_contig, nb::device::cpu>;

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

NormArgs norm_args(const std::optional<F32x1>& weight, double eps, std::size_t n, const char* what) {
  if (!weight) return {};
  require(weight->shape(0) == n, what);
  return {weight->data(), static_cast<float>(eps)};
}

Act act_of(const std::string& name) {
  if (name.empty()) return Act::None;
  if (name == "silu") return Act::Silu;
  if (name == "gelu_tanh") return Act::GeluTanh;
  throw std::invalid_argument("activation '" + name + "' is not known; possible: silu, gelu_tanh");
}

KvPages kv_pages(const Pages& k, const Pages& v, const std::string& dtype) {
  require(k.ndim() == 5 && v.ndim() == 4 && k.shape(4) == kLanes, "KV arrays do not have the layout of ops/kv.py");
  const KvType type = dtype == "float32" ? KvType::F32 : dtype == "float16" ? KvType::F16 : KvType::BF16;
  const std::size_t size = type == KvType::F32 ? 4 : 2, page = v.shape(2), dim = v.shape(3);
  require(k.itemsize() == size && v.itemsize() == size, "KV arrays do not have the storage size of their dtype");
  require(k.shape(0) == v.shape(0) && k.shape(1) == v.shape(1) && k.shape(2) * kLanes == page && k.shape(3) == dim,
          "K and V pages differ in shape");
  require(dim % 16 == 0 && dim <= 512, "head_dim must be a multiple of 16, at most 512");
  return {type, k.data(), v.data(), static_cast<int>(page), static_cast<int>(v.shape(1)), static_cast<int>(dim)};
}

// Every page a sequence will touch exists; positions run on from kv_len - new tokens.
BatchArgs batch_args(const I32x1& positions, const I32x1& starts, const I32x1& lens, const I32x2& tables,
                     const KvPages& kv, std::size_t pages) {
  const int tokens = static_cast<int>(positions.shape(0)), n = static_cast<int>(lens.shape(0));
  const int width = static_cast<int>(tables.shape(1));
  require(starts.shape(0) == lens.shape(0) + 1 && tables.shape(0) == lens.shape(0), "batch arrays differ in length");
  require(starts.data()[0] == 0 && starts.data()[n] == tokens, "query_starts do not cover the batch");
  for (int s = 0; s < n; ++s) {
    const int begin = starts.data()[s], end = starts.data()[s + 1], len = lens.data()[s];
    require(end >= begin && len >= end - begin, "query_starts or kv_lens are out of order");
    for (int t = begin; t < end; ++t)
      require(positions.data()[t] == len - (end - t), "positions do not run on to kv_len");
    const int used = (len + kv.page_size - 1) / kv.page_size;
    require(used <= width, "page table is shorter than kv_len");
    for (int p = 0; p < used; ++p) {
      const int32_t page = tables.data()[static_cast<std::ptrdiff_t>(s) * width + p];
      require(page >= 0 && static_cast<std::size_t>(page) < pages, "page number out of range");
    }
  }
  return {positions.data(), starts.data(), lens.data(), tables.data(), tokens, n, width};
}

std::unique_ptr<PackedLinear> pack_arrays(Context& c, const std::vector<std::string>& formats,
                                          const std::vector<Bytes>& parts, int columns,
                                          const std::optional<F32x1>& bias, bool gated) {
  require(!parts.empty() && formats.size() == parts.size(), "pack needs one format per part");
  std::vector<Part> raw;
  std::size_t rows = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Format format = find_format(formats[i]);
    const FormatInfo& f = kFormats[static_cast<int>(format)];
    require(columns > 0 && columns % f.block == 0, "columns are not a multiple of the format's block");
    require(parts[i].shape(0) > 0 && parts[i].shape(1) == row_bytes(format, columns),
            "row bytes do not match the number of columns");
    raw.push_back({format, parts[i].data(), parts[i].shape(0)});
    rows += parts[i].shape(0);
  }
  require(!gated || (raw.size() == 2 && raw[0].rows == raw[1].rows), "a gated matrix has two parts of equal shape");
  require(!bias || bias->shape(0) == rows, "bias does not have one number per row");
  std::vector<float> b;
  if (bias) b.assign(bias->data(), bias->data() + rows);
  nb::gil_scoped_release release;
  std::lock_guard lock(c.pool().mutex());
  return pack(raw, columns, std::move(b), gated, c.pool(), c.arena());
}

void linear(Context& c, const F32x2& x, const PackedLinear& w, Out y, const std::optional<F32x1>& norm, double eps,
            const std::string& activation, const std::optional<F32x2>& residual, const std::optional<F32x1>& post,
            double post_eps) {
  const Act act = act_of(activation);
  require(w.gated == (act != Act::None), "an activation belongs to a gated matrix, and only to it");
  const std::size_t m = x.shape(0), n = w.gated ? w.rows / 2 : w.rows;
  require(x.shape(1) == static_cast<std::size_t>(w.columns), "x does not have the matrix's number of columns");
  require(y.shape(0) == m && y.shape(1) == n, "output has the wrong shape");
  require(!residual || (residual->shape(0) == m && residual->shape(1) == n), "residual has the wrong shape");
  const NormArgs before = norm_args(norm, eps, w.columns, "norm weight has the wrong length");
  const NormArgs after = norm_args(post, post_eps, n, "post norm weight has the wrong length");
  nb::gil_scoped_release release;
  std::lock_guard lock(c.pool().mutex());
  c.linear(x.data(), static_cast<int>(m), w, before, act, residual ? residual->data() : nullptr, after, y.data());
}

void rope_kv_write(Context& c, const F32x2& qkv, const Pages& k, const Pages& v, const std::string& dtype,
                   const I32x1& positions, const I32x1& starts, const I32x1& lens, const I32x2& tables, int heads,
                   const std::optional<F32x2>& cos, const std::optional<F32x2>& sin, bool interleaved,
                   const std::optional<F32x1>& q_norm, double q_eps, const std::optional<F32x1>& k_norm, double k_eps,
                   Out q) {
  const KvPages kv = kv_pages(k, v, dtype);
  const BatchArgs batch = batch_args(positions, starts, lens, tables, kv, v.shape(0));
  const std::size_t m = batch.tokens, dim = kv.head_dim;
  require(qkv.shape(0) == m && qkv.shape(1) == (heads + 2 * kv.kv_heads) * dim, "qkv has the wrong shape");
  require(q.shape(0) == m && q.shape(1) == heads * dim, "output has the wrong shape");
  RopeArgs rope;
  if (cos) {
    require(sin && sin->shape(0) == cos->shape(0) && sin->shape(1) == cos->shape(1), "cos and sin differ in shape");
    require(2 * cos->shape(1) <= dim, "rotary dimensions exceed the head");
    for (std::size_t t = 0; t < m; ++t)
      require(static_cast<std::size_t>(positions.data()[t]) < cos->shape(0), "position past the rotary tables");
    rope = {cos->data(), sin->data(), static_cast<int>(2 * cos->shape(1)), interleaved};
  }
  const NormArgs qn = norm_args(q_norm, q_eps, dim, "q norm has the wrong length");
  const NormArgs kn = norm_args(k_norm, k_eps, dim, "k norm has the wrong length");
  nb::gil_scoped_release release;
  std::lock_guard lock(c.pool().mutex());
  c.rope_kv_write(qkv.data(), kv, batch, heads, rope, {qn.weight, qn.eps}, {kn.weight, kn.eps}, q.data());
}

void attention(Context& c, const F32x2& q, const Pages& k, const Pages& v, const std::string& dtype,
               const I32x1& positions, const I32x1& starts, const I32x1& lens, const I32x2& tables, int heads,
               double scale, int window, double softcap, Out out) {
  const KvPages kv = kv_pages(k, v, dtype);
  const BatchArgs batch = batch_args(positions, starts, lens, tables, kv, v.shape(0));
  require(heads % kv.kv_heads == 0 && heads / kv.kv_heads <= 32, "heads must be 1 to 32 times kv_heads");
  const std::size_t width = static_cast<std::size_t>(heads) * kv.head_dim;
  require(q.shape(0) == static_cast<std::size_t>(batch.tokens) && q.shape(1) == width, "q has the wrong shape");
  require(out.shape(0) == q.shape(0) && out.shape(1) == width, "output has the wrong shape");
  const AttentionArgs args = {heads, heads / kv.kv_heads, static_cast<float>(scale), window, static_cast<float>(softcap)};
  nb::gil_scoped_release release;
  std::lock_guard lock(c.pool().mutex());
  c.attention(q.data(), kv, batch, args, out.data());
}

void embedding(Context& c, const std::string& format, const Bytes& table, int columns, const I32x1& tokens,
               double scale, Out y) {
  const Format f = find_format(format);
  const FormatInfo& info = kFormats[static_cast<int>(f)];
  require(columns > 0 && columns % info.block == 0 && table.shape(1) == row_bytes(f, columns),
          "row bytes do not match the number of columns");
  require(y.shape(0) == tokens.shape(0) && y.shape(1) == static_cast<std::size_t>(columns), "output has the wrong shape");
  for (std::size_t t = 0; t < tokens.shape(0); ++t)
    require(tokens.data()[t] >= 0 && static_cast<std::size_t>(tokens.data()[t]) < table.shape(0), "token id out of range");
  nb::gil_scoped_release release;
  std::lock_guard lock(c.pool().mutex());
  c.embedding(f, table.data(), columns, tokens.data(), static_cast<int>(tokens.shape(0)), static_cast<float>(scale),
              y.data());
}

void rms_norm(Context& c, const F32x2& x, const F32x1& weight, double eps, Out y) {
  const NormArgs norm = norm_args(weight, eps, x.shape(1), "norm weight has the wrong length");
  require(y.shape(0) == x.shape(0) && y.shape(1) == x.shape(1), "output has the wrong shape");
  nb::gil_scoped_release release;
  std::lock_guard lock(c.pool().mutex());
  c.rms_norm(x.data(), static_cast<int>(x.shape(0)), static_cast<int>(x.shape(1)), norm, y.data());
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Octavo's CPU kernels";
  m.def("tiers", &available_tiers, "Instruction-set tiers this machine can run, best first.");
  m.def("formats", [] {
    std::vector<std::string> names;
    for (const FormatInfo& f : kFormats) names.emplace_back(f.name);
    return names;
  });
  m.def("block_size", [](const std::string& format) { return kFormats[static_cast<int>(find_format(format))].block; });
  nb::class_<PackedLinear>(m, "PackedLinear")
      .def_ro("rows", &PackedLinear::rows)
      .def_ro("columns", &PackedLinear::columns)
      .def_ro("gated", &PackedLinear::gated)
      .def_ro("packed_bytes", &PackedLinear::bytes);
  nb::class_<Context>(m, "Context")
      .def("__init__", [](Context* self, int threads, const std::string& tier) {
        new (self) Context(threads, find_kernels(tier));
      }, nb::arg("threads"), nb::arg("tier"))
      .def_prop_ro("threads", [](Context& c) { return c.pool().threads(); })
      .def_prop_ro("tier", [](Context& c) { return std::string(c.kernels().name); })
      .def("pack", &pack_arrays, nb::arg("formats"), nb::arg("parts"), nb::arg("columns"), nb::arg("bias").none(),
           nb::arg("gated"))
      .def("linear", &linear, nb::arg("x"), nb::arg("w"), nb::arg("y"), nb::arg("norm").none(), nb::arg("eps"),
           nb::arg("activation"), nb::arg("residual").none(), nb::arg("post").none(), nb::arg("post_eps"))
      .def("rope_kv_write", &rope_kv_write, nb::arg("qkv"), nb::arg("k"), nb::arg("v"), nb::arg("dtype"),
           nb::arg("positions"), nb::arg("starts"), nb::arg("lens"), nb::arg("tables"), nb::arg("heads"),
           nb::arg("cos").none(), nb::arg("sin").none(), nb::arg("interleaved"), nb::arg("q_norm").none(),
           nb::arg("q_eps"), nb::arg("k_norm").none(), nb::arg("k_eps"), nb::arg("q"))
      .def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("dtype"), nb::arg("positions"),
           nb::arg("starts"), nb::arg("lens"), nb::arg("tables"), nb::arg("heads"), nb::arg("scale"),
           nb::arg("window"), nb::arg("softcap"), nb::arg("out"))
      .def("embedding", &embedding, nb::arg("format"), nb::arg("table"), nb::arg("columns"), nb::arg("tokens"),
           nb::arg("scale"), nb::arg("y"))
      .def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("y"))
      .def("softcap", [](Context& c, Out x, double cap) {
        nb::gil_scoped_release release;
        std::lock_guard lock(c.pool().mutex());
        c.softcap(x.data(), static_cast<std::ptrdiff_t>(x.size()), static_cast<float>(cap));
      }, nb::arg("x"), nb::arg("cap"))
      .def("stream_gb_s", [](Context& c, std::size_t bytes, double seconds) {
        nb::gil_scoped_release release;
        std::lock_guard lock(c.pool().mutex());
        return stream_gb_s(c.pool(), c.kernels(), bytes, seconds);
      }, nb::arg("bytes"), nb::arg("seconds"), "Gigabytes per second of the fastest of repeated reads of a buffer.")
      .def("dot_gmac_s", [](Context& c, double seconds, const std::string& kind) {
        require(kind == "int8" || kind == "bf16" || kind == "f32", "kind must be int8, bf16 or f32");
        nb::gil_scoped_release release;
        std::lock_guard lock(c.pool().mutex());
        return peak_gmac_s(c.pool(), c.kernels(), kind == "int8" ? Peak::Int8 : kind == "bf16" ? Peak::Bf16 : Peak::F32, seconds);
      }, nb::arg("seconds"), nb::arg("kind") = "int8",
         "Giga multiply-accumulates per second of the dot instructions alone: of int8, of what multiplies bf16, of f32.");
}
