// octavo.ops._native: arrays in, arrays out. Shapes are checked here, once, before any pointer is formed.
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "../dispatch/dispatch.h"
#include "arrays.h"
#include "program.h"

using namespace octavo;

namespace {

std::unique_ptr<PackedLinear> pack_arrays(Context& c, const std::vector<std::string>& formats,
                                          const std::vector<Bytes>& parts, int columns,
                                          const std::optional<F32x1>& bias, bool gated) {
  require(!parts.empty() && formats.size() == parts.size(), "pack needs one format per part");
  std::vector<Part> raw;
  std::size_t rows = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Format format = find_format(formats[i]);
    require(parts[i].shape(0) > 0, "a part has no rows");
    require_rows(format, parts[i], columns);
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
                   const I32x1& positions, const I32x1& starts, const I32x1& lens, const I32x2& tables,
                   const std::optional<U64x1>& tree, int heads, const std::optional<F32x2>& cos,
                   const std::optional<F32x2>& sin, bool interleaved, const std::optional<F32x1>& q_norm, double q_eps,
                   const std::optional<F32x1>& k_norm, double k_eps, Out q) {
  const KvPages kv = kv_pages(k, v, dtype);
  const BatchArgs batch = batch_args(positions, starts, lens, tables, tree, kv, v.shape(0));
  const std::size_t m = batch.tokens, dim = kv.head_dim;
  require(qkv.shape(0) == m && qkv.shape(1) == (heads + 2 * kv.kv_heads) * dim, "qkv has the wrong shape");
  require(q.shape(0) == m && q.shape(1) == heads * dim, "output has the wrong shape");
  const RopeArgs rope = rope_args(cos, sin, interleaved, dim);
  if (cos)
    for (std::size_t t = 0; t < m; ++t)
      require(static_cast<std::size_t>(positions.data()[t]) < cos->shape(0), "position past the rotary tables");
  const NormArgs qn = norm_args(q_norm, q_eps, dim, "q norm has the wrong length");
  const NormArgs kn = norm_args(k_norm, k_eps, dim, "k norm has the wrong length");
  nb::gil_scoped_release release;
  std::lock_guard lock(c.pool().mutex());
  c.rope_kv_write(qkv.data(), kv, batch, heads, rope, {qn.weight, qn.eps}, {kn.weight, kn.eps}, q.data());
}

void attention(Context& c, const F32x2& q, const Pages& k, const Pages& v, const std::string& dtype,
               const I32x1& positions, const I32x1& starts, const I32x1& lens, const I32x2& tables,
               const std::optional<U64x1>& tree, int heads, double scale, int window, double softcap,
               const std::optional<F32x1>& sinks, Out out) {
  const KvPages kv = kv_pages(k, v, dtype);
  const BatchArgs batch = batch_args(positions, starts, lens, tables, tree, kv, v.shape(0));
  const std::size_t width = static_cast<std::size_t>(heads) * kv.head_dim;
  require(q.shape(0) == static_cast<std::size_t>(batch.tokens) && q.shape(1) == width, "q has the wrong shape");
  require(out.shape(0) == q.shape(0) && out.shape(1) == width, "output has the wrong shape");
  const AttentionArgs args = attention_args(heads, kv.kv_heads, scale, window, softcap, sinks);
  nb::gil_scoped_release release;
  std::lock_guard lock(c.pool().mutex());
  c.attention(q.data(), kv, batch, args, out.data());
}

void embedding(Context& c, const std::string& format, const Bytes& table, int columns, const I32x1& tokens,
               double scale, Out y) {
  const Format f = find_format(format);
  require_rows(f, table, columns);
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
  // A program that ends while it holds a model is no leak worth a page of warnings.
  nb::set_leak_warnings(false);
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
  nb::class_<Context> context(m, "Context");
  context
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
           nb::arg("positions"), nb::arg("starts"), nb::arg("lens"), nb::arg("tables"), nb::arg("tree").none(),
           nb::arg("heads"), nb::arg("cos").none(), nb::arg("sin").none(), nb::arg("interleaved"), nb::arg("q_norm").none(),
           nb::arg("q_eps"), nb::arg("k_norm").none(), nb::arg("k_eps"), nb::arg("q"))
      .def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("dtype"), nb::arg("positions"),
           nb::arg("starts"), nb::arg("lens"), nb::arg("tables"), nb::arg("tree").none(), nb::arg("heads"),
           nb::arg("scale"), nb::arg("window"), nb::arg("softcap"), nb::arg("sinks").none(), nb::arg("out"))
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
  bind_program(m, context);
}
