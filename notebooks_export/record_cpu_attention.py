"""Records what PyTorch's own attention functions return on a CPU, as a dump for `qattn check DUMP --recipe fa2-fp16`.

    python record_cpu_attention.py data/real/smollm2_2.h5 data/vectors/pytorch_cpu_attention.h5

One head of SmolLM2 (layer 18, the first 160 tokens, FP16, causal) goes through three functions that QAttn does not
replay: the math backend and the fused CPU kernel of scaled_dot_product_attention, and flex_attention (eager). The three
calls share q, k and v by links. Runs anywhere; the version that ran is written into the file.
"""

import sys

import h5py
import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

LAYER, HEAD, TOKENS = "layer_18", 0, 160


def call_functions(q, k, v, scale):
    """{name: (o, lse or None)}; all causal."""
    aten = torch.ops.aten
    math = aten._scaled_dot_product_attention_math(q, k, v, is_causal=True, scale=scale)
    fused = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=True, scale=scale)
    mask = create_block_mask(lambda b, h, i, j: j <= i, None, None, q.shape[2], k.shape[2], device="cpu")
    flex = flex_attention(q, k, v, block_mask=mask, scale=scale, return_lse=True)
    return {"sdpa_math": (math[0], None), "sdpa_flash_for_cpu": fused[:2], "flex_attention": flex}


def main(source, target):
    torch.manual_seed(0)
    with h5py.File(source) as dump, h5py.File(target, "w", libver="v108") as out:
        group = dump[LAYER]
        share = group["q"].shape[1] // group["k"].shape[1]
        heads = {"q": HEAD, "k": HEAD // share, "v": HEAD // share}
        scale = float(group.attrs.get("sm_scale", dump.attrs["sm_scale"]))
        arrays = {n: group[n][:, h : h + 1, :TOKENS].astype(np.float16) for n, h in heads.items()}
        out.attrs.update(
            schema="qattn-dump/1", layout="HND", is_causal=True, sm_scale=scale,
            library=f"PyTorch {torch.__version__.split('+')[0]} CPU", model=dump.attrs["model"],
            licence=dump.attrs["licence"], input=dump.attrs["input"],
            source=f"{LAYER}, query head {HEAD}, the first {TOKENS} tokens; o and lse computed on a CPU",
        )
        packed = dict(compression="gzip", compression_opts=9, shuffle=True)
        for name, array in arrays.items():
            out.create_dataset(f"sdpa_math/{name}", data=array, chunks=array.shape, **packed)
        results = call_functions(*(torch.from_numpy(arrays[n]) for n in "qkv"), scale)
        for function, (o, lse) in results.items():
            call = out.require_group(function)
            call.attrs["function"] = function
            for name in arrays:
                if name not in call:
                    call[name] = out[f"sdpa_math/{name}"]
            call.create_dataset("o", data=o.numpy(), chunks=o.shape, **packed)
            if lse is not None:
                call.create_dataset("lse", data=lse.float().numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
