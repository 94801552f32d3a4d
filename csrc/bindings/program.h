// Bindings of dispatch/program.h and dispatch/argmax.h.
#pragma once
#include <nanobind/nanobind.h>

#include "../dispatch/ops.h"

namespace octavo {

void bind_program(nanobind::module_& m, nanobind::class_<Context>& context);

}  // namespace octavo
