"""Sizes of cores: neurons, synapses and trainable parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nac_drive.evaluation.metric import Count
from nac_drive.experiments.paper import PaperExperiment, PaperTask, Place, ResultColumn, Row, Whole
from nac_drive.policies import build_core
from nac_drive.policies.encoders import build_encoder


@dataclass(frozen=True)
class Sizes(PaperExperiment):
    """Counts, without any training. Fields are settings of a protocol."""

    input_size: Whole = 32
    """Features that the encoder hands to the core."""
    output_size: Whole = 1
    encoder: str = "thesis"
    frame_shape: tuple[int, int, int] = (78, 200, 3)

    def places(self) -> list[Place]:
        return [()]

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return neurons, synapses, parameters of the core, encoder_parameters, and total_parameters of both."""
        core = build_core(task.core, self.input_size, self.output_size, **task.core_args)
        encoder = build_encoder(self.encoder, self.frame_shape, self.input_size, 0.0)
        sizes = {
            name: sum(each.numel() for each in part.parameters())
            for name, part in (("parameters", core), ("encoder_parameters", encoder))
        }
        return {
            "neurons": core.neurons,
            "synapses": core.synapses,
            "total_parameters": sum(sizes.values()),
            **sizes,
        }

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        count: Any = Count
        counted = {"neurons": count | None, "synapses": count | None}
        return counted | dict.fromkeys(("total_parameters", "parameters", "encoder_parameters"), count)

    def columns(self) -> list[ResultColumn]:
        names = {"encoder_parameters": "parameters of the encoder", "neurons": "neurons", "synapses": "synapses"}
        names |= {"parameters": "parameters of the core", "total_parameters": "of both"}
        return [ResultColumn(key, heading, key, {}, 0) for key, heading in names.items()]

    def describe(self) -> str:
        return (
            f"Encoder {self.encoder} on frames of {self.frame_shape[0]} x {self.frame_shape[1]} pixels, with "
            f"{self.input_size} features (CNN: bojarski with all of its own); cores have {self.output_size} output. "
            "Neurons are those of the recurrent state. A synapse is a weight from an input or a neuron to a neuron or "
            "to a gate of one."
        )
