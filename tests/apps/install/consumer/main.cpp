// Measures INT8 attention on one head of a dump with nothing but the installed package.
#include <attention/pipeline.h>
#include <attention/reference.h>
#include <io/dump.h>
#include <metric/accuracy.h>

#include <cstdio>

int main(int argc, char** argv) {
  int unused;
  if (argc < 2) return 2;
  const qattn::io::DumpReader dump(argv[1]);
  const qattn::io::AttentionCall& call = dump.calls().front();
  const auto values = [&](const char* name) {
    const qattn::Tensor tensor = dump.read_head(call, name, 0, 0);
    const qattn::MatrixD all = qattn::decode_matrix(tensor, 0, tensor.shape[0], tensor.shape[1]);
    return qattn::MatrixD(all.topRows(100));
  };
  const qattn::attention::Problem problem{values("q"), values("k"), values("v"), call.sm_scale, call.is_causal, {}, {}};
  qattn::attention::Recipe recipe;
  qattn::attention::set(recipe, "qk_format", "int8");
  const qattn::MatrixF o = qattn::attention::run_recipe(problem, recipe, *call.q_format).o.cast<float>();
  qattn::metric::Accuracy accuracy(qattn::format::kFP32);
  accuracy.add(o, qattn::attention::reference_attention(problem).o);
  std::printf("relative L1 %g\n", accuracy.rel_l1());
  return accuracy.rel_l1() > 1e-4 && accuracy.rel_l1() < 0.5 ? 0 : 1;
}
