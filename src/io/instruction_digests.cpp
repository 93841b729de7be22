#include "io/instruction_digests.h"

#include "io/fail.h"
#include "io/hdf5_file.h"
#include "io/vectors.h"

namespace qattn::io {
namespace {

InstructionDigestCase read_case(const Hdf5Reader& file, const std::string& name) {
  const std::string where = place(file.path(), name);
  const Attributes attributes = file.attributes(name);
  InstructionDigestCase result;
  result.name = name;
  result.instruction = require_text(attributes, "instruction", where);
  result.families = require_text(attributes, "families", where);
  result.gpu = find_text(attributes, "gpu", where).value_or("");
  const auto seed = find_integer(attributes, "seed", where);
  if (!seed) fail(where, "attribute 'seed' is missing; without it the operands are unknown");
  result.seed = *seed;
  const std::string dataset = name + "/digest";
  if (!file.exists(dataset)) fail(where, "dataset 'digest' is missing");
  const Array array = file.read_all(dataset);
  if (array.info.shape.size() != 1 || array.info.element_bytes != 8) {
    fail(place(file.path(), dataset), "must be a list of unsigned integers of 64 bits");
  }
  for (std::int64_t i = 0; i < array.info.shape[0]; ++i) result.sums.push_back(array.code(i));
  return result;
}

}  // namespace

std::vector<InstructionDigestCase> read_instruction_digests(const std::string& path) {
  const Hdf5Reader file(path);
  const auto schema = find_text(file.attributes(""), "schema", path);
  if (schema != kInstructionDigestSchema) {
    fail(path,
         "is a file of schema '" + schema.value_or("") + "', not of '" + std::string(kInstructionDigestSchema) + "'");
  }
  std::vector<InstructionDigestCase> cases;
  for (const Hdf5Reader::Child& child : file.children("")) {
    if (child.kind == Hdf5Reader::Kind::group) cases.push_back(read_case(file, child.name));
  }
  if (cases.empty()) fail(path, "holds no case; a case is a group with the dataset 'digest'");
  return cases;
}

void write_instruction_digests(const std::string& path, const std::vector<InstructionDigestCase>& cases) {
  Hdf5Writer writer(path);
  writer.set_attribute("", "schema", std::string(kInstructionDigestSchema));
  for (const InstructionDigestCase& entry : cases) {
    writer.create_group(entry.name);
    writer.set_attributes(
        entry.name,
        {{"instruction", entry.instruction}, {"gpu", entry.gpu}, {"seed", entry.seed}, {"families", entry.families}});
    const auto count = static_cast<std::int64_t>(entry.sums.size());
    Codes sums = make_codes({count}, 8);
    for (std::int64_t i = 0; i < count; ++i) sums.set(i, entry.sums[static_cast<std::size_t>(i)]);
    writer.create_codes(entry.name + "/digest", 8, {count}, {count});
    writer.write(entry.name + "/digest", {0}, {count}, sums.bytes);
  }
  writer.commit();
}

}  // namespace qattn::io
