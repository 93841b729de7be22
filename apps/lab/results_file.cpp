// The layout. Root attributes: schema, configuration_hash, cells (their number), rows (their number); upstream_seed
// where gradients were measured too.
//
// inputs/N, calls/N, recipes/N, sources/N are groups with attributes alone: an input's file, bytes and sha256; a
// call's path, label and input (a number N); a recipe's name, evidence and every resolved key; a source's (one run of
// the program) version, commit, compiler, simd, threads, seed, ...
//
// rows/<column> has one element a row: call and recipe are numbers N, output a place in o, dq, dk, dv, batch and head
// are -1 in the row over a whole call; the metrics are float64 (NaN: no value), max_ulp uint64 (all ones: no value),
// locations int64 (-1: none). The rows come in the order of `qattn sweep --json`.
//
// cells/<call batch head recipe output source> say which cell is which; cells/state holds, one after the other and each
// up to its cells/state_end, the exact accumulators from which every row can be made again, also after merging.
#include "lab/results_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <span>

#include "base/error.h"
#include "io/hdf5_file.h"

namespace qattn::lab {
namespace {

constexpr std::int64_t kLargestChunk = 1 << 16;

std::string numbered(const char* group, std::size_t index) { return fmt::format("{}/{:06}", group, index); }

io::AttributeValue attribute_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return value.get<double>();
  return value.is_string() ? value.get<std::string>() : to_json(value);
}

Json json_of(const io::AttributeValue& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b;
  if (const auto* i = std::get_if<std::int64_t>(&value)) return *i;
  if (const auto* d = std::get_if<double>(&value)) return *d;
  if (const auto* s = std::get_if<std::string>(&value)) return *s;
  return nullptr;
}

io::Attributes attributes_of(const ResultRecipe& recipe) {
  io::Attributes attributes = {{"name", recipe.name}, {"evidence", recipe.evidence}};
  for (const auto& [key, value] : recipe.keys) attributes.emplace(key, value);
  return attributes;
}

void write_group(io::Hdf5Writer& file, const std::string& group, const io::Attributes& attributes) {
  file.create_group(group);
  file.set_attributes(group, attributes);
}

void write_lists(io::Hdf5Writer& file, const Results& results) {
  for (std::size_t i = 0; i < results.inputs.size(); ++i) {
    const ResultInput& input = results.inputs[i];
    write_group(file, numbered("inputs", i),
                {{"file", input.file}, {"bytes", static_cast<std::int64_t>(input.bytes)}, {"sha256", input.sha256}});
  }
  for (std::size_t i = 0; i < results.calls.size(); ++i) {
    const ResultCall& call = results.calls[i];
    write_group(file, numbered("calls", i),
                {{"input", static_cast<std::int64_t>(call.input)}, {"path", call.path}, {"label", call.label}});
  }
  for (std::size_t i = 0; i < results.recipes.size(); ++i) {
    write_group(file, numbered("recipes", i), attributes_of(results.recipes[i]));
  }
  for (std::size_t i = 0; i < results.sources.size(); ++i) {
    io::Attributes attributes;
    for (const auto& [key, value] : results.sources[i].items()) attributes.emplace(key, attribute_of(value));
    write_group(file, numbered("sources", i), attributes);
  }
}

std::vector<std::int64_t> chunk_of(std::size_t elements) {
  return {std::clamp<std::int64_t>(static_cast<std::int64_t>(elements), 1, kLargestChunk)};
}

void write_numbers(io::Hdf5Writer& file, const std::string& name, const std::vector<double>& values) {
  const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(values.size())};
  file.create_dataset(name, format::kFP64, shape, chunk_of(values.size()));
  file.write(name, {0}, shape, std::as_bytes(std::span(values)));
}

void write_codes(io::Hdf5Writer& file, const std::string& name, std::size_t element_bytes,
                 std::span<const std::byte> bytes) {
  const std::size_t elements = bytes.size() / element_bytes;
  const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(elements)};
  file.create_codes(name, element_bytes, shape, chunk_of(elements));
  file.write(name, {0}, shape, bytes);
}

void write_cells(io::Hdf5Writer& file, const Results& results) {
  std::vector<std::int64_t> call, batch, head, recipe, output, source, state_end;
  std::string states;
  for (const auto& [id, cell] : results.cells) {
    call.push_back(static_cast<std::int64_t>(id.call));
    batch.push_back(id.batch);
    head.push_back(id.head);
    recipe.push_back(static_cast<std::int64_t>(id.recipe));
    output.push_back(static_cast<std::int64_t>(id.output));
    source.push_back(static_cast<std::int64_t>(cell.source));
    ByteWriter bytes;
    bytes.put_text(cell.accuracy);
    bytes.put_text(cell.bad_input);
    states += bytes.bytes();
    state_end.push_back(static_cast<std::int64_t>(states.size()));
  }
  const std::pair<const char*, const std::vector<std::int64_t>*> columns[] = {
      {"call", &call},     {"batch", &batch},   {"head", &head},          {"recipe", &recipe},
      {"output", &output}, {"source", &source}, {"state_end", &state_end}};
  for (const auto& [name, values] : columns) file.write_integers(fmt::format("cells/{}", name), *values);
  write_codes(file, "cells/state", 1, std::as_bytes(std::span(states)));
}

/// The columns of rows/ that are plain numbers in a row's JSON.
constexpr const char* kMetrics[] = {"cos_sim", "rel_l1", "rel_l2", "rmse", "max_abs", "p50", "p90", "p99", "p999"};
constexpr const char* kCounts[] = {"elements", "nan_count", "inf_count", "bad_reference_count"};
constexpr const char* kLocations[] = {"worst_at", "first_bad"};

template <class T, class Value>
std::vector<T> column(const std::vector<Json>& rows, const Value& value) {
  std::vector<T> values;
  for (const Json& row : rows) values.push_back(value(row));
  return values;
}

std::int64_t integer_or_minus_one(const Json& value) { return value.is_null() ? -1 : value.get<std::int64_t>(); }

void write_row_columns(io::Hdf5Writer& file, const std::vector<Json>& rows) {
  for (const char* name : {"batch", "head"}) {
    file.write_integers(fmt::format("rows/{}", name), column<std::int64_t>(rows, [&](const Json& row) {
                          return integer_or_minus_one(row.at(name));
                        }));
  }
  for (const char* name : kMetrics) {
    write_numbers(file, fmt::format("rows/{}", name),
                  column<double>(rows, [&](const Json& row) { return row.at(name).get<double>(); }));
  }
  for (const char* name : kCounts) {
    file.write_integers(fmt::format("rows/{}", name),
                        column<std::int64_t>(rows, [&](const Json& row) { return row.at(name).get<std::int64_t>(); }));
  }
  for (const char* name : kLocations) {
    for (const char* part : {"batch", "head", "row", "column"}) {
      file.write_integers(fmt::format("rows/{}_{}", name, part), column<std::int64_t>(rows, [&](const Json& row) {
                            return integer_or_minus_one(find(row.at(name), part));
                          }));
    }
  }
  const auto ulps = column<std::uint64_t>(rows, [](const Json& row) {
    const Json& value = row.at("max_ulp");
    return value.is_null() ? std::numeric_limits<std::uint64_t>::max() : value.get<std::uint64_t>();
  });
  write_codes(file, "rows/max_ulp", 8, std::as_bytes(std::span(ulps)));
}

/// Which call and recipe a row is of, as numbers.
void write_row_indices(io::Hdf5Writer& file, const Results& results, const std::vector<Json>& rows) {
  std::map<std::pair<std::string, std::string>, std::int64_t> calls;
  std::map<std::string, std::int64_t> recipes;
  for (const ResultCall& call : results.calls) {
    calls.emplace(std::pair(results.inputs[call.input].file, call.path), static_cast<std::int64_t>(calls.size()));
  }
  for (const ResultRecipe& recipe : results.recipes) {
    recipes.emplace(recipe.name, static_cast<std::int64_t>(recipes.size()));
  }
  file.write_integers("rows/call", column<std::int64_t>(rows, [&](const Json& row) {
                        return calls.at({row.at("file").get<std::string>(), row.at("call").get<std::string>()});
                      }));
  file.write_integers("rows/output", column<std::int64_t>(rows, [](const Json& row) {
                        const auto place =
                            std::find(kOutputs.begin(), kOutputs.end(), row.at("output").get<std::string>());
                        return static_cast<std::int64_t>(place - kOutputs.begin());
                      }));
  file.write_integers("rows/recipe", column<std::int64_t>(rows, [&](const Json& row) {
                        return recipes.at(row.at("recipe").get<std::string>());
                      }));
}

bool is_results(const std::string& path) {
  try {
    const io::Hdf5Reader file(path);
    const io::Attributes attributes = file.own_attributes("");
    return io::find_text(attributes, "schema", path) == std::string(kResultsSchema);
  } catch (const Error&) {
    return false;
  }
}

/// The attributes of group/0, group/1, ...
std::vector<io::Attributes> read_list(const io::Hdf5Reader& file, const char* group) {
  std::vector<io::Attributes> list;
  for (const io::Hdf5Reader::Child& child : file.children(group)) {
    list.push_back(file.own_attributes(fmt::format("{}/{}", group, child.name)));
  }
  return list;
}

std::int64_t require_integer(const io::Attributes& attributes, const char* name, const std::string& where) {
  const std::optional<std::int64_t> value = io::find_integer(attributes, name, where);
  if (!value || *value < 0) throw Error(ErrorKind::input, fmt::format("{}: the attribute {} is missing", where, name));
  return *value;
}

void read_lists(const io::Hdf5Reader& file, Results& results) {
  const std::string& path = file.path();
  for (const io::Attributes& a : read_list(file, "inputs")) {
    results.inputs.push_back({io::require_text(a, "file", path),
                              static_cast<std::uint64_t>(require_integer(a, "bytes", path)),
                              io::require_text(a, "sha256", path)});
  }
  for (const io::Attributes& a : read_list(file, "calls")) {
    const auto input = static_cast<std::size_t>(require_integer(a, "input", path));
    if (input >= results.inputs.size()) throw Error(ErrorKind::input, path + ": a call is of an unknown input");
    results.calls.push_back({input, io::require_text(a, "path", path), io::require_text(a, "label", path)});
  }
  for (io::Attributes& a : read_list(file, "recipes")) {
    ResultRecipe recipe{io::require_text(a, "name", path), io::require_text(a, "evidence", path), {}};
    for (const auto& [key, value] : a) {
      if (key != "name" && key != "evidence") recipe.keys.emplace(key, io::require_text(a, key, path));
    }
    results.recipes.push_back(std::move(recipe));
  }
  for (const io::Attributes& a : read_list(file, "sources")) {
    Json source = Json::object();
    for (const auto& [key, value] : a) source[key] = json_of(value);
    results.sources.push_back(std::move(source));
  }
}

/// The root attribute upstream_seed, a decimal number as text (HDF5 integers here are signed).
std::optional<std::uint64_t> upstream_seed_of(const io::Hdf5Reader& file) {
  const std::optional<std::string> text = io::find_text(file.own_attributes(""), "upstream_seed", file.path());
  if (!text) return std::nullopt;
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), seed);
  if (error != std::errc() || end != text->data() + text->size()) {
    throw Error(ErrorKind::input, fmt::format("{}: the attribute upstream_seed is no number", file.path()));
  }
  return seed;
}

void read_cells(const io::Hdf5Reader& file, Results& results) {
  std::map<std::string, std::vector<std::int64_t>> columns;
  for (const char* name : {"call", "batch", "head", "recipe", "output", "source", "state_end"}) {
    const std::string dataset = fmt::format("cells/{}", name);
    columns[name] = io::to_integers(file.read_all(dataset), fmt::format("{}: {}", file.path(), dataset));
    if (columns[name].size() != columns["call"].size()) {
      throw Error(ErrorKind::input, fmt::format("{}: {} is of another length than cells/call", file.path(), dataset));
    }
  }
  const std::vector<std::byte> bytes = file.read_all("cells/state").bytes;
  const std::string_view states(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::size_t begin = 0;
  for (std::size_t i = 0; i < columns["call"].size(); ++i) {
    const auto at = [&](const char* name) { return static_cast<std::size_t>(columns[name][i]); };
    const CellId id = {at("call"), columns["batch"][i], columns["head"][i], at("recipe"), at("output")};
    const std::size_t end = at("state_end");
    const bool is_known = id.call < results.calls.size() && id.recipe < results.recipes.size() &&
                          id.output < (results.upstream_seed ? kOutputs.size() : 1);
    if (!is_known || at("source") >= results.sources.size() || end < begin || end > states.size()) {
      throw Error(ErrorKind::input, fmt::format("{}: cell {} is inconsistent", file.path(), i));
    }
    ByteReader state(states.substr(begin, end - begin));
    Cell cell{at("source"), std::string(state.get_text()), std::string(state.get_text())};
    accuracy_of(cell);
    results.cells.emplace(id, std::move(cell));
    begin = end;
  }
}

}  // namespace

void check_replaceable(const std::string& path) {
  if (!std::filesystem::exists(path) || is_results(path)) return;
  throw Error(ErrorKind::input, path + ": holds something else than results and is left alone; choose another output");
}

void write_results(const std::string& path, const Results& results) {
  check_replaceable(path);
  const std::vector<Json> rows = rows_of(results).rows;
  io::Hdf5Writer file(path);
  io::Attributes root = {{"schema", std::string(kResultsSchema)},
                         {"configuration_hash", configuration_hash(results, cell_ids(results))},
                         {"cells", static_cast<std::int64_t>(results.cells.size())},
                         {"rows", static_cast<std::int64_t>(rows.size())}};
  if (results.upstream_seed) root.emplace("upstream_seed", std::to_string(*results.upstream_seed));
  file.set_attributes("", root);
  write_lists(file, results);
  write_row_indices(file, results, rows);
  write_row_columns(file, rows);
  write_cells(file, results);
  file.commit();
}

Results read_results(const std::string& path) {
  const io::Hdf5Reader file(path);
  const std::string schema = io::require_text(file.own_attributes(""), "schema", path);
  if (schema != kResultsSchema) {
    throw Error(ErrorKind::input, fmt::format("{}: its schema is {}, not {}", path, schema, kResultsSchema));
  }
  Results results;
  results.upstream_seed = upstream_seed_of(file);
  read_lists(file, results);
  read_cells(file, results);
  return results;
}

}  // namespace qattn::lab
