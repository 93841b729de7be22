// Ten results of recipes on single heads of the real dumps, computed by tests/oracle/slow_attention, which shares no
// code with what they test. `slow_attention pins` prints them; `slow_attention check` computes them again.
#pragma once

#include <array>
#include <string_view>

namespace pinned {

struct Value {
  std::string_view recipe;
  std::string_view file;  ///< in data/real
  std::string_view call;
  int batch;
  int head;
  double cosine;
  double relative_l1;
  double rmse;
};

inline constexpr std::array<Value, 10> kValues{{
    {"exact", "smollm2_2.h5", "layer_18", 0, 4, 0.9999999999999997, 2.14147847e-08, 5.91461319e-09},
    {"fa2-fp16", "smollm2_1.h5", "layer_06", 0, 1, 0.9999999760822622, 0.000188899876, 2.08245647e-05},
    {"fp8-tensor", "smollm2_1.h5", "layer_12", 0, 7, 0.9939872314729666, 0.10084045, 0.0272593951},
    {"int8-token", "smollm2_2.h5", "layer_24", 0, 2, 0.9997349227067179, 0.0197537093, 0.00614354},
    {"int4-token", "kwt1_qkv.h5", "layer_05", 3, 0, 0.9996214657769281, 0.0226318739, 0.0113759199},
    {"sage1-B", "smollm2_2.h5", "layer_18", 0, 0, 0.9993369383462747, 0.032671078, 0.0129380962},
    {"sage2-4b", "smollm2_2.h5", "layer_18", 0, 5, 0.9815366768608761, 0.175076045, 0.0932244257},
    {"sage2-4b", "kwt1_qkv.h5", "layer_11", 7, 0, 0.9997258280487631, 0.0216944107, 0.00437002589},
    {"sage2-8b", "smollm2_1.h5", "layer_00", 0, 8, 0.9999797823264458, 0.0140348123, 0.000439747004},
    {"sage2-8b", "smollm2_2.h5", "layer_29", 0, 3, 0.9997238904759638, 0.0217650503, 0.0246752986},
}};

}  // namespace pinned
