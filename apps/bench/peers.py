#!/usr/bin/env python3
"""qattn-bench beside what a user would run instead, on one core in one run.

Makes a virtual environment (--venv DIR) with PyTorch (CPU), NumPy and ml_dtypes from PyPI where it is missing, then
measures in turn, by the process's CPU time and the best of several rounds:
  - PyTorch's float32 GEMM and scaled_dot_product_attention, PyTorch's and ml_dtypes' casts to E4M3;
  - MMA-Sim's Python model of wgmma, when --mma-sim names a checkout of it;
  - qattn-bench (--bench PROGRAM).
Writes every figure to --json FILE and a table with ratios to --markdown FILE. No code of the peers is part of QAttn.

  apps/bench/peers.py --bench build/release/bin/qattn-bench --venv DIR --json results.json --markdown results.md
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

PACKAGES = ["numpy", "ml_dtypes", "torch"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
ROUNDS = 5

# What each figure of ours is held against: (name of ours, name of the peer, wanted ratio ours / peer).
COMPARISONS = [
    ("mma/sm90.wgmma.m64nNk32.f32.e4m3.e4m3/AVX3", "torch float32 GEMM", 1 / 4),
    ("mma/sm90.wgmma.m64nNk32.f32.e4m3.e4m3/AVX2", "torch float32 GEMM", 1 / 9),
    ("mma/sm90.wgmma.m64nNk32.f32.e4m3.e4m3/AVX3", "MMA-Sim wgmma e4m3", 1e5),
    ("kernel/sageattn_qk_int8_pv_fp8_cuda_sm90/4096/64", "torch float32 attention 4096 x 64", 1 / 3),
    ("attention/sage2-8b/4096/64", "torch float32 attention 4096 x 64", None),
    ("encode/e4m3/65536", "torch cast to e4m3, 65536", 3),
    ("encode/e4m3/4194304", "torch cast to e4m3, 4194304", 3),
    ("encode/e4m3/65536", "ml_dtypes cast to e4m3, 65536", None),
    ("encode/e4m3/4194304", "ml_dtypes cast to e4m3, 4194304", None),
]


def best_seconds(work):
    """The least CPU time of one call of `work`, which is repeated until it is measurable."""
    repeats = 1
    while True:
        times = []
        for _ in range(ROUNDS):
            start = time.process_time()
            for _ in range(repeats):
                work()
            times.append(time.process_time() - start)
        if min(times) > 0.02:
            return min(times) / repeats
        repeats *= 4


def measure_peers(mma_sim):
    """Rates of the peers that can be imported; runs within the virtual environment."""
    import ml_dtypes
    import numpy
    import torch

    torch.set_num_threads(1)
    rates = {}
    n = 2048
    a, b = torch.randn(n, n), torch.randn(n, n)
    rates["torch float32 GEMM"] = n**3 / best_seconds(lambda: a @ b.T)
    attention = torch.nn.functional.scaled_dot_product_attention
    for tokens, head_dim in [(1024, 64), (4096, 64), (4096, 128)]:
        q, k, v = (torch.randn(1, 1, tokens, head_dim) for _ in range(3))
        seconds = best_seconds(lambda: attention(q, k, v))
        rates[f"torch float32 attention {tokens} x {head_dim}"] = 2 * tokens**2 * head_dim / seconds
    for elements in [1 << 16, 1 << 22]:
        x, y = torch.randn(elements), torch.empty(elements, dtype=torch.float8_e4m3fn)
        rates[f"torch cast to e4m3, {elements}"] = elements / best_seconds(lambda: y.copy_(x))
        z = x.numpy()
        rates[f"ml_dtypes cast to e4m3, {elements}"] = elements / best_seconds(
            lambda: z.astype(ml_dtypes.float8_e4m3fn)
        )
    versions = {"torch": torch.__version__, "numpy": numpy.__version__, "ml_dtypes": ml_dtypes.__version__}
    if mma_sim:
        rates["MMA-Sim wgmma e4m3"] = measure_mma_sim(mma_sim, torch)
        versions["MMA-Sim"] = mma_sim
    return {"rates": rates, "versions": versions, "torch_cpu": torch.backends.cpu.get_cpu_capability()}


def measure_mma_sim(folder, torch):
    """Multiply-adds a second of MMA-Sim's Hopper wgmma m64n8k32, E4M3 to f32."""
    sys.path.insert(0, folder)
    from mmasim.simulator.nv_ptx import wgmma

    instruction = wgmma(arch="Hopper", qualifier="m64n8k32.f32.e4m3.e4m3")
    a = torch.randn(64, 32).to(torch.float8_e4m3fn)
    b = torch.randn(8, 32).T.contiguous().to(torch.float8_e4m3fn)
    c = torch.zeros(64, 8)
    return 64 * 8 * 32 / best_seconds(lambda: instruction(a, b, c))


def environment(folder):
    """The Python of a virtual environment that has the peers."""
    python = pathlib.Path(folder) / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    check = "import " + ", ".join(PACKAGES)
    if subprocess.run([python, "-c", check], stderr=subprocess.DEVNULL).returncode != 0:
        pip = [python, "-m", "pip", "install", "--quiet", "--extra-index-url", "https://download.pytorch.org/whl/cpu"]
        subprocess.run(pip + PACKAGES, check=True)
    return python


def run_bench(program, pattern, seconds):
    """Google Benchmark's report on what `pattern` chooses, each case the best of its repetitions."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "bench.json"
        command = [
            program,
            f"--benchmark_filter={pattern}",
            f"--benchmark_min_time={seconds}",
            f"--benchmark_repetitions={ROUNDS}",
            f"--benchmark_out={out}",
            "--benchmark_out_format=json",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


def rates_of(report):
    rates = {}
    for case in report["benchmarks"]:
        if case.get("run_type") != "iteration" or "items_per_second" not in case:
            continue
        name = case["run_name"]
        rates[name] = max(rates.get(name, 0.0), case["items_per_second"])
    return rates


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def human(rate):
    for factor, unit in [(1e9, "G"), (1e6, "M"), (1e3, "k")]:
        if rate >= factor:
            return f"{rate / factor:.3g} {unit}/s"
    return f"{rate:.3g} /s"


def table(result):
    """Comparisons first, then every figure."""
    ours, peers = result["qattn"], result["peers"]
    lines = [f"{result['processor']}, {result['date']}, one core, CPU time, best of {ROUNDS}.", ""]
    lines += ["| QAttn | rate | peer | rate | ratio | aim |", "|---|---:|---|---:|---:|---:|"]
    for name, peer, aim in COMPARISONS:
        if name not in ours or peer not in peers:
            continue
        ratio = ours[name] / peers[peer]
        goal = "" if aim is None else f"{aim:.3g}"
        lines.append(f"| `{name}` | {human(ours[name])} | {peer} | {human(peers[peer])} | {ratio:.3g} | {goal} |")
    lines += ["", "| | rate |", "|---|---:|"]
    lines += [f"| `{name}` | {human(rate)} |" for name, rate in ours.items()]
    lines += [f"| {name} | {human(rate)} |" for name, rate in peers.items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/release/bin/qattn-bench", help="the program")
    parser.add_argument("--venv", help="folder of the virtual environment, made where it is missing")
    parser.add_argument("--mma-sim", help="a checkout of MMA-Sim, which is then measured too")
    parser.add_argument("--filter", default="^(mma|encode|decode|scalar|quantize)/|/(1024|4096)/(64|128)$")
    parser.add_argument("--seconds", type=float, default=0.2, help="per repetition of a case")
    parser.add_argument("--json", help="file for every figure")
    parser.add_argument("--markdown", help="file for the table; default: stdout")
    parser.add_argument("--peers-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peers_only:
        print(json.dumps(measure_peers(options.mma_sim)))
        return
    if not options.venv:
        parser.error("--venv DIR is needed")
    os.environ.update(ONE_THREAD)
    command = [environment(options.venv), __file__, "--peers-only"]
    if options.mma_sim:
        command += ["--mma-sim", options.mma_sim]
    peers = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    report = run_bench(options.bench, options.filter, options.seconds)
    again = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    result = {
        "processor": processor(),
        "date": report["context"]["date"],
        "context": report["context"],
        "versions": peers["versions"],
        "torch_cpu": peers["torch_cpu"],
        "peers": {name: max(rate, again["rates"][name]) for name, rate in peers["rates"].items()},
        "qattn": rates_of(report),
    }
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    if options.markdown:
        pathlib.Path(options.markdown).write_text(table(result))
    else:
        print(table(result), end="")


if __name__ == "__main__":
    main()
