"""Registers and shared memory of the pairwise kernels.

python benchmarks/layer/kernel_registers.py         # a table in Markdown
python benchmarks/layer/kernel_registers.py --json  # the same as rows, for a program

triton compiles for a card that is not there, by the ptxas of its wheel. cuobjdump of the same wheel reads the result.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "0"  # before triton is imported

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia
from triton.compiler import ASTSource

from nac_drive.policies.nac import kernel
from nac_drive.policies.nac.fused import BACKWARD, FORWARD, LARGEST, PASSES

CARDS = {75: ("T4", 64), 80: ("A100", 163), 90: ("H100", 227)}
"""Compute capability -> a card, and KB of shared memory that a program may have there."""
VALUES = 16
"""Features of a head."""
nvidia.min_dot_size = lambda target: lambda left, right: (1, 1, 16)  # before triton 3.7: (M, N, K) of `tl.dot`


def compiled(passes: str, capability: int, *, tf32: bool) -> dict[str, Any]:
    """Compile a kernel. Return registers and spilled bytes of a thread, shared bytes and instructions in TF32."""
    function: Any = kernel.attend if passes == "forward" else kernel.attend_gradients
    (wide, deep), pairs = LARGEST, FORWARD if passes == "forward" else BACKWARD
    constants: dict[str, Any] = {
        "ROWS": pairs.rows, "COLUMNS": pairs.columns, "E": wide, "EP": wide, "CP": deep, "D": VALUES, "DP": VALUES,
        "TIMES": True, "VALID": True, "CAUSAL": True, "WINDOW": True, "MODE": "exact", "PHI": "sigmoid",
        "QUADRATURE": True, "PRECISION": "tf32" if tf32 else "ieee",
    }  # fmt: skip
    if passes != "forward":
        constants["PASS"] = passes
    types = {
        name: "constexpr" if name in constants
        else "*u8" if name == "valid_ptr"
        else "*fp32" if name.endswith("_ptr")
        else "fp32" if name in ("delta_t", "omega_floor", "euler_steps")
        else "i32"
        for name in function.arg_names
    }  # fmt: skip
    options = {"num_warps": pairs.num_warps, "enable_fp_fusion": True}
    source = ASTSource(function, types, constexprs=constants)
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
        assembly = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "STACK"))
    return {
        "tile": pairs[:2], "registers": registers, "spill": stack, "shared": binary.metadata.shared,
        "tensor_cores": len(re.findall(r"\b(?:HMMA|HGMMA)\b", assembly)),
    }  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """Compile every kernel for every card and precision."""
    return [
        {"pass": passes, "capability": capability, "tf32": tf32, **compiled(passes, capability, tf32=tf32)}
        for passes in ("forward", *PASSES)
        for capability in CARDS
        for tf32 in ((False, True) if capability >= 80 and passes != "weights" else (False,))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print rows in place of a table")
    results = rows()
    if parser.parse_args().json:
        print(json.dumps(results))
        return
    print("| pass | card | precision | tile, pairs | registers | spill, bytes | shared memory, KB | on the card, KB |")
    print("|---|---|---|---|---:|---:|---:|---:|")
    for row in results:
        (name, limit), precision = CARDS[row["capability"]], "TF32" if row["tf32"] else "float32"
        print(
            f"| {row['pass']} | {name} | {precision} | {row['tile'][0]} x {row['tile'][1]} | "
            f"{row['registers']} | {row['spill']} | {row['shared'] / 1024:.1f} | {limit} |"
        )


if __name__ == "__main__":
    main()
