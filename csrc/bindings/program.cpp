#include "program.h"

#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "../dispatch/argmax.h"
#include "../dispatch/program.h"
#include "arrays.h"

namespace octavo {
namespace {

using OutI32 = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutF32x1 = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OptionalF32x1 = std::optional<F32x1>;

// A KV store's arrays, checked once and held as long as the binding lives.
struct BoundKv {
  BoundKv(std::vector<Pages> keys, std::vector<Pages> values, const std::string& dtype)
      : k(std::move(keys)), v(std::move(values)) {
    require(!k.empty() && k.size() == v.size(), "a KV store has K and V for every layer");
    for (std::size_t i = 0; i < k.size(); ++i) {
      require(k[i].ndim() == 5 && k[i].shape(0) == k[0].shape(0), "layers differ in their number of pages");
      store.layers.push_back(kv_pages(k[i], v[i], dtype));
      require(store.layers[i].page_size == store.layers[0].page_size, "layers differ in page size");
    }
    store.pages = k[0].shape(0);
  }

  std::vector<Pages> k, v;
  KvLayers store;
};

// The program reads arrays and matrices of Python in place, so it holds on to them.
template <class T> void hold(Program& p, T object) { p.keep(std::make_shared<T>(std::move(object))); }

NormArgs held_norm(Program& p, const OptionalF32x1& weight, double eps, std::size_t n, const char* what) {
  if (weight) hold(p, *weight);
  return norm_args(weight, eps, n, what);
}

int add_embedding(Program& p, const std::string& format, const Bytes& table, int columns, double scale) {
  const Format f = find_format(format);
  require_rows(f, table, columns);
  hold(p, table);
  return p.embedding({f, table.data(), table.shape(0), columns, static_cast<float>(scale)});
}

int add_linear(Program& p, int x, nb::object w, const OptionalF32x1& norm, double eps, const std::string& activation,
               std::optional<int> residual, const OptionalF32x1& post, double post_eps) {
  const auto& packed = nb::cast<const PackedLinear&>(w);
  const std::size_t n = packed.gated ? packed.rows / 2 : packed.rows;
  const NormArgs before = held_norm(p, norm, eps, packed.columns, "norm weight has the wrong length");
  const NormArgs after = held_norm(p, post, post_eps, n, "post norm weight has the wrong length");
  hold(p, std::move(w));
  return p.linear(x, {&packed, before, act_of(activation), after}, residual.value_or(-1));
}

int add_rope_kv_write(Program& p, int qkv, int layer, int heads, int kv_heads, int head_dim,
                      const std::optional<F32x2>& cos, const std::optional<F32x2>& sin, bool interleaved,
                      const OptionalF32x1& q_norm, double q_eps, const OptionalF32x1& k_norm, double k_eps) {
  require(heads > 0 && kv_heads > 0 && head_dim > 0, "heads and their dimensions must be positive");
  Program::RopeKvWrite op = {layer, kv_heads, head_dim, heads, rope_args(cos, sin, interleaved, head_dim), 0, {}, {}};
  if (cos) {
    op.positions = cos->shape(0);
    hold(p, *cos);
    hold(p, *sin);
  }
  const NormArgs q = held_norm(p, q_norm, q_eps, head_dim, "q norm has the wrong length");
  const NormArgs k = held_norm(p, k_norm, k_eps, head_dim, "k norm has the wrong length");
  op.q = {q.weight, q.eps};
  op.k = {k.weight, k.eps};
  return p.rope_kv_write(qkv, op);
}

int add_attention(Program& p, int q, int layer, int heads, int kv_heads, int head_dim, double scale, int window,
                  double softcap, const OptionalF32x1& sinks) {
  const AttentionArgs args = attention_args(heads, kv_heads, scale, window, softcap, sinks);
  if (sinks) hold(p, *sinks);
  return p.attention(q, {layer, kv_heads, head_dim, args});
}

void run(Context& c, Program& p, const BoundKv& kv, const I32x1& tokens, const I32x1& positions, const I32x1& starts,
         const I32x1& lens, const I32x2& tables, const I32x1& rows, Out out, const std::optional<U64x1>& tree) {
  StepArgs step;
  step.batch = batch_args(positions, starts, lens, tables, tree, kv.store.layers[0], kv.store.pages);
  step.tokens = tokens.data();
  step.rows = rows.data();
  step.row_count = static_cast<int>(rows.shape(0));
  require(tokens.shape(0) == positions.shape(0), "batch arrays differ in length");
  const std::size_t count = p.output_by_row() ? rows.shape(0) : tokens.shape(0);
  require(out.shape(0) == count && out.shape(1) == static_cast<std::size_t>(p.width()), "output has the wrong shape");
  nb::gil_scoped_release release;
  std::lock_guard lock(c.pool().mutex());
  p.run(c, kv.store, step, out.data());
}

void argmax_rows(Context& c, const F32x2& x, OutI32 ids, OutF32x1 values) {
  require(ids.shape(0) == x.shape(0) && values.shape(0) == x.shape(0), "output has the wrong shape");
  require(x.shape(1) > 0 || x.shape(0) == 0, "a row without numbers has no largest one");
  nb::gil_scoped_release release;
  std::lock_guard lock(c.pool().mutex());
  argmax(c.pool(), x.data(), static_cast<int>(x.shape(0)), static_cast<int>(x.shape(1)), ids.data(), values.data());
}

}  // namespace

void bind_program(nb::module_& m, nb::class_<Context>& context) {
  nb::class_<BoundKv>(m, "BoundKv")
      .def(nb::init<std::vector<Pages>, std::vector<Pages>, const std::string&>(), nb::arg("k"), nb::arg("v"),
           nb::arg("dtype"));
  nb::class_<Program>(m, "Program")
      .def(nb::init<>())
      .def("embedding", &add_embedding, nb::arg("format"), nb::arg("table"), nb::arg("columns"), nb::arg("scale"))
      .def("rms_norm", [](Program& p, int x, const F32x1& weight, double eps) {
        hold(p, weight);
        return p.rms_norm(x, {{weight.data(), static_cast<float>(eps)}});
      }, nb::arg("x"), nb::arg("weight"), nb::arg("eps"))
      .def("linear", &add_linear, nb::arg("x"), nb::arg("w"), nb::arg("norm").none(), nb::arg("eps"),
           nb::arg("activation"), nb::arg("residual").none(), nb::arg("post").none(), nb::arg("post_eps"))
      .def("rope_kv_write", &add_rope_kv_write, nb::arg("qkv"), nb::arg("layer"), nb::arg("heads"),
           nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("cos").none(), nb::arg("sin").none(),
           nb::arg("interleaved"), nb::arg("q_norm").none(), nb::arg("q_eps"), nb::arg("k_norm").none(),
           nb::arg("k_eps"))
      .def("attention", &add_attention, nb::arg("q"), nb::arg("layer"), nb::arg("heads"), nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("scale"), nb::arg("window"), nb::arg("softcap"), nb::arg("sinks") = nb::none())
      .def("select_rows", &Program::select_rows, nb::arg("x"))
      .def("softcap", [](Program& p, int x, double cap) { p.softcap(x, {static_cast<float>(cap)}); }, nb::arg("x"),
           nb::arg("cap"))
      .def("finish", &Program::finish, nb::arg("output"))
      .def_prop_ro("width", &Program::width)
      .def_prop_ro("output_by_row", &Program::output_by_row);
  context
      .def("run", &run, nb::arg("program"), nb::arg("kv"), nb::arg("tokens"), nb::arg("positions"), nb::arg("starts"),
           nb::arg("lens"), nb::arg("tables"), nb::arg("rows"), nb::arg("out"),
           nb::arg("tree") = nb::none())
      .def("argmax", &argmax_rows, nb::arg("x"), nb::arg("ids"), nb::arg("values"));
}

}  // namespace octavo
