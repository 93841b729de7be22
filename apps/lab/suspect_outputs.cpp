// Mistakes that show in the outputs alone.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "lab/suspect.h"

namespace qattn::lab {
namespace {

constexpr std::size_t kMostOtherHeads = 64;

/// The reference, with `change` applied to the sampled rows that are wrong.
template <class Change>
MatrixD wrong_rows_changed(const Suspect& suspect, const Change& change) {
  MatrixD candidate = suspect.reference();
  for (std::size_t i = 0; i < suspect.rows().size(); ++i) {
    if (suspect.is_wrong(i)) change(candidate, static_cast<Eigen::Index>(i));
  }
  return candidate;
}

std::string wrong_rows_text(const Suspect& suspect) {
  if (suspect.all_rows_wrong()) return "every row";
  return describe_indices("row", suspect.wrong().rows, suspect.first_row());
}

void zeros(Suspect& suspect) {
  const MatrixD candidate = wrong_rows_changed(suspect, [](MatrixD& o, Eigen::Index r) { o.row(r).setZero(); });
  const bool whole = suspect.all_rows_wrong();
  suspect.offer(candidate, whole ? "all zeros" : "unwritten rows", [&] {
    return whole ? std::string("o is zero everywhere; nothing was written, or the launch failed")
                 : wrong_rows_text(suspect) + " are zero, as if their tile was never written";
  });
}

// ---- Rows that belong elsewhere ----

/// The row, of float64's output or of the recipe's, that a row of the output is nearest to.
std::int64_t nearest_row(const Suspect& suspect, Eigen::Index sampled) {
  std::int64_t best = 0;
  double smallest = -1;
  for (const MatrixD* right : {&suspect.whole_reference(), &suspect.whole_emulated()}) {
    for (Eigen::Index r = 0; r < right->rows(); ++r) {
      double distance = 0;
      for (Eigen::Index c = 0; c < right->cols() && (smallest < 0 || distance < smallest); ++c) {
        distance += std::fabs(suspect.output()(sampled, c) - (*right)(r, c));
      }
      if (smallest >= 0 && distance >= smallest) continue;
      smallest = distance;
      best = r;
    }
  }
  return best;
}

/// The value that nine of ten have, if one does: rows that are alike, and a shift that wraps around, leave a few.
std::optional<std::int64_t> common(const std::vector<std::int64_t>& values) {
  for (const std::int64_t value : {values.front(), values[values.size() / 2]}) {
    const auto count = static_cast<std::size_t>(std::count(values.begin(), values.end(), value));
    if (10 * count >= 9 * values.size()) return value;
  }
  return std::nullopt;
}

/// What the mapping of rows is called, if it is regular: a shift or a reversal.
std::string mapping_text(const Suspect& suspect, const std::vector<std::int64_t>& sources) {
  const std::vector<std::int64_t>& rows = suspect.rows();
  std::vector<std::int64_t> shifts, mirrors;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!suspect.is_wrong(i)) continue;
    shifts.push_back(sources[i] - rows[i]);
    mirrors.push_back(sources[i] + rows[i]);
  }
  if (const auto shift = common(shifts)) return fmt::format("holds what the row {:+} away should", *shift);
  if (const auto mirror = common(mirrors)) return fmt::format("r holds what row {} - r should", *mirror);
  std::size_t first = 0;
  while (!suspect.is_wrong(first)) ++first;
  return fmt::format("holds what another should: row {} that of {}, row {} that of {}", rows[first], sources[first],
                     rows.back(), sources.back());
}

/// All rows moved by `shift`, around the ends.
void rolled_rows(Suspect& suspect, std::int64_t shift) {
  const std::int64_t count = suspect.whole_reference().rows();
  const auto rolled = [&](const MatrixD& whole) {
    MatrixD o(suspect.output().rows(), whole.cols());
    for (Eigen::Index i = 0; i < o.rows(); ++i) {
      o.row(i) = whole.row((suspect.rows()[static_cast<std::size_t>(i)] + shift + count) % count);
    }
    return o;
  };
  // Hidden mistakes are directions from float64's output.
  suspect.offer(suspect.hidden() ? rolled(suspect.whole_reference()) : suspect.changed(rolled), "permuted rows",
                [&] { return fmt::format("each row holds what the row {:+} away should, around the ends", shift); });
}

/// All rows moved by as much as most of the wrong ones are. Under a noisy recipe many of the moved rows do not stand
/// out: their neighbours are too much like them.
void rolled_as_most(Suspect& suspect, const std::vector<std::int64_t>& sources) {
  const std::int64_t count = suspect.whole_reference().rows();
  std::map<std::int64_t, int> votes;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (suspect.is_wrong(i)) ++votes[((sources[i] - suspect.rows()[i]) % count + count) % count];
  }
  const auto most =
      std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == votes.end() || most->first == 0) return;
  rolled_rows(suspect, most->first > count / 2 ? most->first - count : most->first);
}

void moved_rows(Suspect& suspect) {
  std::vector<std::int64_t> sources;
  for (std::size_t i = 0; i < suspect.rows().size(); ++i) {
    sources.push_back(suspect.is_wrong(i) ? nearest_row(suspect, static_cast<Eigen::Index>(i)) : suspect.rows()[i]);
  }
  std::int64_t wrong = 0, moved = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    wrong += suspect.is_wrong(i) ? 1 : 0;
    moved += sources[i] != suspect.rows()[i] ? 1 : 0;
  }
  if (2 * moved < wrong || moved == 0) return;  // most are where they belong
  rolled_as_most(suspect, sources);
  const MatrixD candidate = suspect.changed([&](const MatrixD& whole) {
    return wrong_rows_changed(
        suspect, [&](MatrixD& o, Eigen::Index r) { o.row(r) = whole.row(sources[static_cast<std::size_t>(r)]); });
  });
  const bool whole = suspect.all_rows_wrong();
  suspect.offer(candidate, whole ? "permuted rows" : "stale tile", [&] {
    const bool one = suspect.wrong().rows.size() == 1;
    const std::string text =
        fmt::format("{} {}", whole ? "each row" : (one ? "" : "each of ") + wrong_rows_text(suspect),
                    mapping_text(suspect, sources));
    return whole ? text : text + ": a tile of o that was not written anew";
  });
}

/// Sentences for a head whose output is another's.
std::pair<std::string, std::string> other_head_text(Suspect& suspect, std::int64_t batch, std::int64_t head) {
  const Piece& own = suspect.head().piece;
  const Tensor codes = suspect.dumps().read_codes(suspect.dumps().calls()[own.call], "o", batch, head);
  const MatrixD o = decode_matrix(codes, 0, codes.shape.at(0), codes.shape.at(1));
  const MatrixD theirs = suspect.rows_of_head(batch, head, suspect.rows());
  double off = 0, own_off = 0;
  for (std::size_t i = 0; i < suspect.rows().size(); ++i) {
    const auto r = static_cast<Eigen::Index>(i);
    for (std::int64_t c = 0; c < suspect.channels(); ++c) {
      const double there = o(suspect.first_row() + suspect.rows()[i], c);
      off += std::fabs(there - suspect.reference()(r, c));
      own_off += std::fabs(there - theirs(r, c));
    }
  }
  // A head that holds a copy of another is no swap: the other still has what belongs to it.
  const bool swapped = off < 0.5 * own_off;
  const std::string where = batch == own.batch ? fmt::format("head {}", head)
                            : head == own.head ? fmt::format("batch {}", batch)
                                               : fmt::format("batch {}, head {}", batch, head);
  if (batch != own.batch && head == own.head) {
    return {"permuted batch",
            fmt::format("o is what {} should return{}", where, swapped ? ", and there stands what belongs here" : "")};
  }
  if (swapped)
    return {"two heads swapped", fmt::format("o is what {} should return, and there stands what belongs here", where)};
  return {"another head's output", fmt::format("o is what {} should return, a copy", where)};
}

void other_heads(Suspect& suspect) {
  const Piece& own = suspect.head().piece;
  std::vector<std::pair<std::int64_t, std::int64_t>> others;
  for (std::int64_t h = 0; h < suspect.call().q_heads; ++h) others.emplace_back(own.batch, h);
  for (std::int64_t b = 0; b < suspect.call().batch; ++b) others.emplace_back(b, own.head);
  for (std::int64_t b = 0; b < suspect.call().batch; ++b) {
    for (std::int64_t h = 0; h < suspect.call().q_heads; ++h) others.emplace_back(b, h);
  }
  if (others.size() > kMostOtherHeads) others.resize(kMostOtherHeads);
  for (const auto& [b, h] : others) {
    if (b == own.batch && h == own.head) continue;
    const MatrixD rows = suspect.rows_of_head(b, h, suspect.rows());
    const MatrixD candidate = wrong_rows_changed(suspect, [&](MatrixD& o, Eigen::Index r) { o.row(r) = rows.row(r); });
    const std::int64_t batch = b, head = h;
    // Under a noisy recipe rows that are wrong may not all stand out.
    const bool as_a_whole = suspect.all_rows_wrong() || suspect.residual(rows) < suspect.residual(candidate);
    if (as_a_whole) {
      const auto text = [&suspect, batch, head] { return other_head_text(suspect, batch, head); };
      if (suspect.hidden() || suspect.residual(rows) < 0.5 * suspect.residual(suspect.reference())) {
        const auto [name, detail] = text();
        const std::string sentence = detail;
        suspect.offer(rows, name, [&sentence] { return sentence; });
      }
    } else {
      suspect.offer(candidate, "stale tile", [&suspect, batch, head] {
        return fmt::format("{} hold what batch {}, head {} should there: a tile that was not written anew",
                           wrong_rows_text(suspect), batch, head);
      });
    }
  }
}

// ---- Layouts ----

/// o was written in one layout and read in the other: element (h, n) of this head is element (h', n') of the call.
void other_layout(Suspect& suspect) {
  const std::int64_t heads = suspect.call().q_heads, tokens = suspect.call().q_tokens;
  if (heads == 1 || tokens == 1 || suspect.packed()) return;
  const Piece& own = suspect.head().piece;
  for (const bool written_nhd : {true, false}) {
    MatrixD candidate(suspect.output().rows(), suspect.channels());
    for (std::size_t i = 0; i < suspect.rows().size(); ++i) {
      const std::int64_t n = suspect.rows()[i];
      const std::int64_t flat = written_nhd ? own.head * tokens + n : n * heads + own.head;
      const std::int64_t h = written_nhd ? flat % heads : flat / tokens;
      const std::int64_t row = written_nhd ? flat / heads : flat % tokens;
      candidate.row(static_cast<Eigen::Index>(i)) = suspect.rows_of_head(own.batch, h, {row}).row(0);
    }
    suspect.offer(candidate, "transposed layout", [written_nhd] {
      return fmt::format("o was written as {} and is read as {}", written_nhd ? "NHD" : "HND",
                         written_nhd ? "HND" : "NHD");
    });
  }
}

/// q, k and v were taken in the other layout: every token attends over the heads.
void attention_over_heads(Suspect& suspect) {
  const io::AttentionCall& call = suspect.call();
  if (call.q_heads == 1 || call.q_tokens != call.kv_tokens || suspect.packed() || call.has("mask")) return;
  const Piece& own = suspect.head().piece;
  const std::int64_t group = call.q_heads / call.kv_heads;
  MatrixD candidate(suspect.output().rows(), suspect.channels());
  for (std::size_t i = 0; i < suspect.rows().size(); ++i) {
    const std::int64_t n = suspect.rows()[i];
    attention::Problem token;
    token.sm_scale = call.sm_scale;
    token.q = suspect.problem().q.row(n);
    token.k.resize(call.kv_heads, token.q.cols());
    token.v.resize(call.kv_heads, suspect.problem().v.cols());
    for (std::int64_t h = 0; h < call.kv_heads; ++h) {
      const attention::Problem& other = suspect.problem_of_head(own.batch, h * group);
      token.k.row(h) = other.k.row(n);
      token.v.row(h) = other.v.row(n);
    }
    const std::int64_t visible = call.is_causal ? std::min(own.head + 1, call.kv_heads) : call.kv_heads;
    candidate.row(static_cast<Eigen::Index>(i)) =
        attend(scores_of(token, {0}), {visible}, token.v, suspect.channels()).row(0);
  }
  suspect.offer(candidate, "transposed layout",
                [] { return "every token attends over the heads: q, k and v were read in the other of NHD and HND"; });
}

// ---- Channels ----

void moved_channels(Suspect& suspect) {
  const std::int64_t channels = suspect.channels();
  const MatrixD &output = suspect.output(), &reference = suspect.reference();
  std::vector<std::int64_t> sources;
  for (std::int64_t c = 0; c < channels; ++c) {
    std::int64_t best = c;
    double smallest = (output.col(c) - reference.col(c)).cwiseAbs().sum();
    for (std::int64_t d = 0; d < channels; ++d) {
      const double distance = (output.col(c) - reference.col(d)).cwiseAbs().sum();
      if (distance >= 0.5 * smallest) continue;
      smallest = distance;
      best = d;
    }
    sources.push_back(best);
  }
  MatrixD candidate(reference.rows(), channels);
  for (std::int64_t c = 0; c < channels; ++c) candidate.col(c) = reference.col(sources[static_cast<std::size_t>(c)]);
  const auto every = [&](auto&& expected) {
    for (std::int64_t c = 0; c < channels; ++c) {
      if (sources[static_cast<std::size_t>(c)] != expected(c)) return false;
    }
    return true;
  };
  if (every([](std::int64_t c) { return c; })) return;  // nothing moved, nothing to name
  if (every([&](std::int64_t c) { return channels - 1 - c; })) {
    suspect.offer(candidate, "reversed channels", [] { return "the channels of o stand in reverse order"; });
  } else if (every([&](std::int64_t c) { return (c + channels / 2) % channels; })) {
    suspect.offer(candidate, "permuted channels", [] { return "the two halves of the channels are swapped"; });
  } else {
    suspect.offer(candidate, "permuted channels", [&] {
      std::int64_t c = 0;
      while (sources[static_cast<std::size_t>(c)] == c) ++c;
      return fmt::format("channels of o stand in other places: channel {} holds what channel {} should", c,
                         sources[static_cast<std::size_t>(c)]);
    });
  }
}

// ---- Copies of an input ----

void copy_of_input(Suspect& suspect, const MatrixD& input, std::string_view name) {
  const std::int64_t offset = input.rows() - suspect.whole_output().rows();
  for (const std::int64_t shift : {std::int64_t{0}, offset}) {
    MatrixD candidate(suspect.output().rows(), suspect.channels());
    for (std::size_t i = 0; i < suspect.rows().size(); ++i) {
      const std::int64_t row = suspect.rows()[i] + shift;
      if (row < 0 || row >= input.rows()) return;
      candidate.row(static_cast<Eigen::Index>(i)) = input.row(row).leftCols(suspect.channels());
    }
    suspect.offer(candidate, fmt::format("o = {}", name), [name] {
      return fmt::format("o is a copy of {}: the weights are those of an identity, or nothing was computed", name);
    });
    if (offset == 0) return;
  }
}

// ---- Factors ----

void negated(Suspect& suspect) {
  const MatrixD candidate = suspect.changed([&](const MatrixD& whole) {
    MatrixD o(suspect.output().rows(), whole.cols());
    for (Eigen::Index i = 0; i < o.rows(); ++i) o.row(i) = -whole.row(suspect.rows()[static_cast<std::size_t>(i)]);
    return o;
  });
  suspect.offer(candidate, "negated output", [] { return "o is minus what it should be: a sign is wrong"; });
}

/// What a constant factor usually means. Under a noisy recipe it is known to a few per cent.
std::string factor_text(const Suspect& suspect, double factor) {
  const double p_scale = attention::resolved_p_scale(suspect.recipe());
  const auto near = [factor](double x) { return std::fabs(factor - x) <= 0.04 * std::fabs(x); };
  if (p_scale != 1 && near(p_scale)) return fmt::format("P's scale {} is not divided out", p_scale);
  if (p_scale != 1 && near(1 / p_scale))
    return fmt::format("P's scale {} is divided out, but was not applied", p_scale);
  for (const double known : {448.0, 127.0, 256.0}) {
    if (near(known)) return fmt::format("a P scale of {} is not divided out", known);
    if (near(1 / known)) return fmt::format("a P scale of {} is divided out, but was not applied", known);
  }
  return "a scale of V or P is wrong";
}

double least_squares_factor(const Eigen::Ref<const Eigen::VectorXd>& output,
                            const Eigen::Ref<const Eigen::VectorXd>& reference) {
  double dot = 0, square = 0;
  for (Eigen::Index i = 0; i < output.size(); ++i) {
    dot += output[i] * reference[i];
    square += reference[i] * reference[i];
  }
  return square > 0 ? dot / square : 1;
}

void constant_factor(Suspect& suspect) {
  double dot = 0, square = 0;
  for (std::size_t i = 0; i < suspect.rows().size(); ++i) {
    if (!suspect.is_wrong(i)) continue;
    const auto r = static_cast<Eigen::Index>(i);
    for (std::int64_t c = 0; c < suspect.channels(); ++c) {
      dot += suspect.output()(r, c) * suspect.reference()(r, c);
      square += suspect.reference()(r, c) * suspect.reference()(r, c);
    }
  }
  if (!(square > 0)) return;
  const double factor = dot / square;
  const MatrixD candidate = wrong_rows_changed(suspect, [&](MatrixD& o, Eigen::Index r) { o.row(r) *= factor; });
  suspect.offer(candidate, "constant factor", [&] {
    return fmt::format("{} is {:.6g} times what it should be: {}",
                       suspect.all_rows_wrong() ? "o" : "o in " + wrong_rows_text(suspect), factor,
                       factor_text(suspect, factor));
  });
}

/// Channels off by a factor of their own: V's scales.
void channel_factors(Suspect& suspect) {
  MatrixD candidate = suspect.reference();
  std::vector<std::int64_t> scaled;
  double first_factor = 1;
  for (std::int64_t c = 0; c < suspect.channels(); ++c) {
    const double factor = least_squares_factor(suspect.output().col(c), suspect.reference().col(c));
    const double off = (suspect.output().col(c) - suspect.reference().col(c)).cwiseAbs().sum();
    const double left = (suspect.output().col(c) - factor * suspect.reference().col(c)).cwiseAbs().sum();
    if (!(left < 0.5 * off) || std::fabs(factor - 1) < 0.02) continue;
    if (scaled.empty()) first_factor = factor;
    candidate.col(c) *= factor;
    scaled.push_back(c);
  }
  if (scaled.empty()) return;
  suspect.offer(candidate, "one wrong scale group", [&] {
    return fmt::format("{} of o {} {:.6g} times what {} should be: V's scale there is wrong",
                       describe_indices("channel", scaled), scaled.size() == 1 ? "is" : "are (the first of them)",
                       first_factor, scaled.size() == 1 ? "it" : "they");
  });
}

/// The same row added everywhere: V's mean.
void constant_row(Suspect& suspect) {
  if (!suspect.all_rows_wrong()) return;
  const Eigen::RowVectorXd added = (suspect.output() - suspect.reference()).colwise().mean();
  suspect.offer(suspect.reference().rowwise() + added, "constant row added", [&] {
    const Eigen::RowVectorXd mean = suspect.problem().v.leftCols(suspect.channels()).colwise().mean();
    const double size = mean.cwiseAbs().sum();
    if ((added + mean).cwiseAbs().sum() < 0.1 * size)
      return "every row lacks V's mean: smoothing V takes it out, and it was not added back";
    if ((added - mean).cwiseAbs().sum() < 0.1 * size) return "V's mean is in every row once too often";
    return "the same row is added to every row of o";
  });
}

}  // namespace

void suspect_outputs(Suspect& suspect) {
  if (suspect.hidden()) {
    for (const std::int64_t shift : {1, -1}) rolled_rows(suspect, shift);
    other_heads(suspect);
    other_layout(suspect);
    return;
  }
  zeros(suspect);
  copy_of_input(suspect, suspect.problem().v, "V");
  copy_of_input(suspect, suspect.problem().q, "Q");
  copy_of_input(suspect, suspect.problem().k, "K");
  other_heads(suspect);
  moved_channels(suspect);
  moved_rows(suspect);
  other_layout(suspect);
  attention_over_heads(suspect);
  negated(suspect);
  constant_factor(suspect);
  channel_factors(suspect);
  constant_row(suspect);
}

}  // namespace qattn::lab
