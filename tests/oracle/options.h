// What the slow program can be told about an attention method, in its own words, and the recipes written in them.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "accumulator.h"
#include "number_set.h"

namespace oracle {

/// Elements that share a scale; the last two: 16 or 32 along the axis that a product sums over.
enum class Share { tensor, block, warp, thread, token, channel, block16, block32 };
enum class ScaleSet { f32, e4m3, power_of_two };  ///< numbers that a scale can be

struct Operand {
  const NumberSet* set = nullptr;  ///< nullptr: kept as it is
  Share share = Share::tensor;
  ScaleSet scales = ScaleSet::f32;
  double range = 0;  ///< number that the largest element becomes; 0: the largest of the set

  bool in_blocks() const { return share == Share::block16 || share == Share::block32; }
};

struct Options {
  Operand q, k, v;
  Operand p;                    ///< P's share is tensor (a fixed scale), token (the row of a tile) or blocks
  bool p_row_level = false;     ///< blocks of P are taken from p / (largest of the row / largest of blocks)
  bool p_true_divisor = false;  ///< P is divided by its scale before that is rounded to its own set
  bool p_normalized = false;    ///< P is divided by the row's sum; needs one tile
  double p_scale = 0;  ///< P is multiplied by this before rounding; 0: the largest number of its set, 1 for FP16
  bool smooth_q = false;
  bool smooth_k = false;
  bool smooth_v = false;
  bool correct_by_codes = false;  ///< the means of Q times K as quantized, not as smoothed
  bool half_away = false;         ///< ties of Q's and K's codes away from zero
  int q_block = 128, q_warp = 32, k_block = 64, k_warp = 64;

  bool tiled = false;  ///< keys a tile at a time with a running maximum; else the whole row at once
  bool f32 = false;    ///< scales, scores, softmax and O rounded to FP32 after every operation; else double throughout
  Accumulator qk, pv;
  bool sum_rounded_p = false;
  bool scale_in_q = false;       ///< Q is multiplied by the softmax scale, not the scores
  bool backwards = false;        ///< tiles from the last key to the first
  bool max_of_hidden = false;    ///< the running maximum includes hidden keys of the tile
  double patience = 0;           ///< a new maximum counts when it is larger by more than this, in powers of two
  const NumberSet* s = nullptr;  ///< scores are rounded to it before the softmax scale
  int promotion = -1;            ///< instructions after which the sum moves to O: -1 once a tile, 0 never
  bool round_o_to_f32 = false;
  bool round_o_to_f16 = false;
};

inline const NumberSet* find_set(const std::string& name) {
  if (name == "exact") return nullptr;
  for (const NumberSet* set : {&int4(), &int8(), &e4m3(), &e5m2(), &e2m1(), &fp16()})
    if (set->name == name) return set;
  throw std::runtime_error("no number set is called '" + name + "'");
}

inline Share find_share(const std::string& name) {
  const std::vector<std::pair<std::string, Share>> all = {{"tensor", Share::tensor}, {"block", Share::block},
                                                          {"warp", Share::warp},     {"thread", Share::thread},
                                                          {"token", Share::token},   {"channel", Share::channel}};
  for (const auto& [n, share] : all)
    if (n == name) return share;
  throw std::runtime_error("nothing shares a scale per '" + name + "'");
}

/// "int8/thread", "e4m3/channel", "fp16", "exact"; "nvfp4", "mxfp4", "mxfp8".
inline Operand parse_operand(const std::string& text) {
  if (text == "nvfp4") return {&e2m1(), Share::block16, ScaleSet::e4m3};
  if (text == "mxfp4") return {&e2m1(), Share::block32, ScaleSet::power_of_two};
  if (text == "mxfp8") return {&e4m3(), Share::block32, ScaleSet::power_of_two};
  const std::size_t slash = text.find('/');
  const NumberSet* set = find_set(text.substr(0, slash));
  return {set, slash == std::string::npos ? Share::tensor : find_share(text.substr(slash + 1))};
}

inline void set_tiles(Options& o, const std::string& text) {
  if (text == "128x64") {
    o.q_block = 128, o.q_warp = 32, o.k_block = 64, o.k_warp = 64;
  } else if (text == "64x128") {
    o.q_block = 64, o.q_warp = 16, o.k_block = 128, o.k_warp = 128;
  } else if (text == "128xall") {
    o.q_block = 128, o.q_warp = 32, o.k_block = 65536, o.k_warp = 64;
  } else {
    throw std::runtime_error("tiles are 128x64, 64x128 or 128xall, not '" + text + "'");
  }
}

/// One choice as "key=value".
inline void choose(Options& o, const std::string& choice) {
  const std::size_t equals = choice.find('=');
  const std::string key = choice.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : choice.substr(equals + 1);
  if (key == "q") {
    o.q = parse_operand(value);
  } else if (key == "k") {
    o.k = parse_operand(value);
  } else if (key == "qk") {
    o.q = o.k = parse_operand(value);
  } else if (key == "v") {
    o.v = parse_operand(value);
    if (o.v.share != Share::tensor && o.v.share != Share::channel && !o.v.in_blocks())
      throw std::runtime_error("V is scaled per tensor, per channel or in blocks");
  } else if (key == "p") {
    o.p = parse_operand(value);
  } else if (key == "v_range") {
    o.v.range = std::stod(value);
  } else if (key == "p_level") {
    o.p_row_level = value == "row";
  } else if (key == "p_divisor") {
    o.p_true_divisor = value == "true";
  } else if (key == "p_normalized") {
    o.p_normalized = value == "yes";
  } else if (key == "scale_in") {
    o.scale_in_q = value == "q";
  } else if (key == "order") {
    o.backwards = value == "backwards";
  } else if (key == "max_of") {
    o.max_of_hidden = value == "all";
  } else if (key == "patience") {
    o.patience = std::stod(value);
  } else if (key == "s") {
    o.s = find_set(value);
  } else if (key == "p_scale") {
    o.p_scale = std::stod(value);
  } else if (key == "smooth") {
    o.smooth_k = value == "k" || value == "qk";
    o.smooth_q = value == "q" || value == "qk";
  } else if (key == "smooth_v") {
    o.smooth_v = value == "yes";
  } else if (key == "correction") {
    o.correct_by_codes = value == "codes";
  } else if (key == "ties") {
    o.half_away = value == "away";
  } else if (key == "row_sum") {
    o.sum_rounded_p = value == "rounded";
  } else if (key == "tiles") {
    set_tiles(o, value);
  } else if (key == "tiled") {
    o.tiled = value == "yes";
  } else if (key == "f32") {
    o.f32 = value == "yes";
  } else if (key == "qk_sum") {
    o.qk = find_accumulator(value);
  } else if (key == "pv_sum") {
    o.pv = find_accumulator(value);
  } else if (key == "promotion") {
    o.promotion = std::stoi(value);
  } else if (key == "o") {
    o.round_o_to_f32 = value != "exact";
    o.round_o_to_f16 = value == "fp16";
  } else {
    throw std::runtime_error("no choice is called '" + key + "'");
  }
}

struct Recipe {
  std::string name;
  std::vector<std::string> choices;
};

/// The recipes whose results are pinned. `exact` is what is left when nothing is quantized: O rounded to FP32.
inline const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = {
      {"exact", {"o=fp32"}},
      {"fa2-fp16",
       {"tiled=yes", "f32=yes", "tiles=128x64", "qk=fp16", "p=fp16", "v=fp16", "qk_sum=ampere-f16", "pv_sum=ampere-f16",
        "promotion=0", "o=fp16"}},
      {"fp8-tensor",
       {"tiled=yes", "f32=yes", "tiles=128x64", "qk=e4m3/tensor", "p=e4m3", "v=e4m3/tensor", "qk_sum=f32", "pv_sum=f32",
        "o=fp32"}},
      {"int8-token", {"tiled=yes", "f32=yes", "tiles=128x64", "qk=int8/token", "p=fp16", "v=fp16", "o=fp32"}},
      {"int4-token", {"tiled=yes", "f32=yes", "tiles=128x64", "qk=int4/token", "p=fp16", "v=fp16", "o=fp32"}},
      {"sage1-B",
       {"tiled=yes", "f32=yes", "tiles=128x64", "smooth=k", "qk=int8/block", "p=fp16", "v=fp16",
        "pv_sum=ampere-f16-to-f16", "o=fp32"}},
      {"sage2-4b",
       {"tiled=yes", "f32=yes", "tiles=128x64", "smooth=qk", "qk=int4/thread", "p=e4m3", "v=e4m3/channel",
        "pv_sum=ada-fp8", "o=fp32"}},
      {"sage2-8b",
       {"tiled=yes", "f32=yes", "tiles=64x128", "smooth=k", "qk=int8/thread", "p=e4m3", "v=e4m3/channel",
        "pv_sum=hopper-wgmma-fp8", "o=fp32"}},
  };
  return all;
}

inline Options options_of(const std::vector<std::string>& choices) {
  Options o;
  for (const std::string& c : choices) choose(o, c);
  return o;
}

inline const Recipe& find_recipe(const std::string& name) {
  for (const Recipe& r : recipes())
    if (r.name == name) return r;
  throw std::runtime_error("no recipe is called '" + name + "'");
}

}  // namespace oracle
