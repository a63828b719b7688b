"""Parameters of every named variant of the layer, d_model 64 and 8 heads: stored, and those behind a synapse.

python benchmarks/layer/nac_variants.py
"""

from __future__ import annotations

from nac_drive.policies import NAC, NAC_VARIANTS


def main() -> None:
    print("| variant | settings | parameters | of these active |")
    print("|:--|:--|--:|--:|")
    for name, settings in NAC_VARIANTS.items():
        layer = NAC(64, 8, **settings)
        stored = sum(p.numel() for p in layer.parameters())
        missing = sum(int((~gate.mask).sum()) for gate in (layer.query_gate, layer.context_gate))
        circuit = (mask for key, mask in layer.backbone.named_buffers() if "mask" in key)
        missing += layer.num_heads * sum(int((~mask).sum()) for mask in circuit)
        written = ", ".join(f"`{key}={value!r}`" for key, value in settings.items())
        print(f"| {name} | {written} | {stored:,} | {stored - missing:,} |")


if __name__ == "__main__":
    main()
