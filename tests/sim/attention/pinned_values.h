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
    {"fa2-fp16", "smollm2_1.h5", "layer_06", 0, 1, 0.9999999760843518, 0.000188893177, 2.08235693e-05},
    {"fp8-tensor", "smollm2_1.h5", "layer_12", 0, 7, 0.9939872309237143, 0.10084046, 0.0272593966},
    {"int8-token", "smollm2_2.h5", "layer_24", 0, 2, 0.9997349225742749, 0.0197537164, 0.00614354151},
    {"int4-token", "kwt1_qkv.h5", "layer_05", 3, 0, 0.9996214657379342, 0.0226318762, 0.0113759201},
    {"sage1-B", "smollm2_2.h5", "layer_18", 0, 0, 0.9993369394615712, 0.0326711421, 0.0129380942},
    {"sage2-4b", "smollm2_2.h5", "layer_18", 0, 5, 0.9815366754610245, 0.175076057, 0.09322443},
    {"sage2-4b", "kwt1_qkv.h5", "layer_11", 7, 0, 0.999725828092218, 0.0216944072, 0.00437002553},
    {"sage2-8b", "smollm2_1.h5", "layer_00", 0, 8, 0.9999797823080889, 0.0140348384, 0.00043974894},
    {"sage2-8b", "smollm2_2.h5", "layer_29", 0, 3, 0.9997238905333079, 0.0217650519, 0.0246752978},
}};

}  // namespace pinned
