"""Sizes of cores: neurons, synapses and trainable parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from nac_drive.policies import Driver, DriverConfig, build_core
from nac_drive.policies.ops.liquid import Synapses
from nac_drive.policies.ops.sparse import SparseMatrix
from nac_drive.reproduce.experiment import Column, Experiment, Place, Row, Task


@dataclass(frozen=True)
class Size(Experiment):
    """Counts, without any training. Fields are settings of a protocol."""

    input_size: int = 32
    """Features that the encoder hands to the core."""
    output_size: int = 64
    encoder: str = "compact"

    def places(self) -> list[Place]:
        return [(("input_size", self.input_size),)]

    def measure(self, folder: Path, task: Task) -> Row:
        """Return neurons, synapses, parameters of the core, and encoder_parameters."""
        core = build_core(task.core, self.input_size, self.output_size, **task.core_args)
        driver = Driver(DriverConfig("cnn", encoder=self.encoder, d_model=self.input_size))
        shapes = [shape for (shape, _), name in zip(core.state_shapes(), core.neuron_names, strict=False) if name]
        return {
            "neurons": shapes[0][0] if shapes else None,
            "synapses": synapses(core),
            "parameters": sum(each.numel() for each in core.parameters()),
            "encoder_parameters": sum(each.numel() for each in driver.encoder.parameters()),
        }

    def columns(self) -> list[Column]:
        names = {"encoder_parameters": "parameters of the encoder", "neurons": "neurons", "synapses": "synapses"}
        names |= {"parameters": "parameters of the core"}
        return [Column(key, heading, key, {}, 0) for key, heading in names.items()]

    def describe(self) -> str:
        return (
            f"Encoder {self.encoder} with {self.input_size} features; cores have {self.output_size} outputs. "
            "Neurons are those of the recurrent state. A synapse is a weight from an input or a neuron to a neuron or "
            "to a gate of one."
        )


def synapses(core: nn.Module) -> int:
    """Return the number of connections of a recurrent core: weights that are not fixed at zero, without a readout."""
    kinds = {Synapses: "weight", SparseMatrix: "values", nn.RNNBase: "weight_"}
    return sum(
        values.numel()
        for module in core.modules()
        for kind, prefix in kinds.items()
        if isinstance(module, kind)
        for name, values in module.named_parameters(recurse=False)
        if name.startswith(prefix)
    )
