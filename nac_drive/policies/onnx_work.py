"""Allowed operators of a foreign ONNX file, and its work.

The work of one step is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

LARGEST_WORK = 2**30
"""Multiply-adds of one step: about 150 times as many as in the largest driver of the package."""
MOST_NODES = 2**14
"""Operators in one file. Ours have at most 436."""

OPERATORS = frozenset((
    "Abs", "Add", "And", "ArgMax", "ArgMin", "Atan", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Clip",
    "Concat", "Constant", "ConstantOfShape", "Conv", "Cos", "CumSum", "Div", "Einsum", "Elu", "Equal", "Erf", "Exp",
    "Expand", "EyeLike", "Flatten", "Floor", "GRU", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm",
    "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
    "InstanceNormalization", "LSTM", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax",
    "MatMul", "Max", "MaxPool", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "OneHot", "Or", "Pad", "Pow", "RNN",
    "Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Selu", "Shape", "Sigmoid",
    "Sign", "Sin", "Size", "Slice", "Softmax", "Softplus", "Softsign", "Split", "Sqrt", "Squeeze", "Sub", "Sum",
    "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
))  # fmt: skip
"""Operators without random numbers whose work `multiply_adds` knows: all that our drivers need, and simple ones."""

Shape = tuple[int, ...]


def require_bounded_work(nodes: Iterable[Any], shapes: Mapping[str, Shape]) -> None:
    """Check that a step has known operators and bounded work.

    Args:
        nodes: The nodes of the graph.
        shapes: Name of every tensor -> its shape.

    Raises:
        ValueError: With the reason.
    """
    work = 0
    for node in nodes:
        if node.op_type not in OPERATORS:
            raise ValueError(f"its operator {node.op_type} is none that a driver needs")
        work += multiply_adds(node, shapes)
    if work > LARGEST_WORK:
        raise ValueError(f"a step must have at most {LARGEST_WORK:,} multiply-adds, it has {work:,}")


def multiply_adds(node: Any, shapes: Mapping[str, Shape]) -> int:
    """Return a bound of the multiply-adds of a node.

    It is 0 for operators that do no more than read their inputs and write their outputs.

    Args:
        node: The node.
        shapes: Name of every tensor -> its shape.
    """
    inputs: list[Shape] = [shapes[name] if name else () for name in node.input]
    output = sum(prod(shapes[name]) for name in node.output if name)
    match node.op_type:
        case "Conv":
            return output * prod(inputs[1][1:])  # (C_out, C_in / groups, ...)
        case "MatMul":
            return output * inputs[0][-1]
        case "Gemm":
            return output * inputs[0][0 if _attribute(node, "transA") else 1]
        case "AveragePool" | "MaxPool":
            return output * prod(_attribute(node, "kernel_shape"))
        case "RNN" | "GRU" | "LSTM":
            steps, batch, _ = inputs[0]
            return steps * batch * (prod(inputs[1]) + prod(inputs[2]))  # weights of inputs and of the state
        case "Einsum":
            terms = _attribute(node, "equation").decode().split("->")[0].replace(" ", "").split(",")
            return prod(_sizes(terms, inputs).values())
    return 0


def _attribute(node: Any, name: str) -> Any:
    """Return an attribute's value; 0 where it is missing."""
    for attribute in node.attribute:
        if attribute.name == name:
            return list(attribute.ints) or attribute.s or attribute.i
    return 0


def _sizes(terms: list[str], shapes: list[Shape]) -> dict[str, int]:
    """Return the size of every letter of an Einsum. The axes of an ellipsis are counted from the right.

    Raises:
        ValueError: The letters do not fit the shapes.
    """
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        before, _, after = term.partition("...")
        hidden = [f"...{axis}" for axis in range(len(shape) - len(before) - len(after), 0, -1)]
        for letter, size in zip([*before, *hidden, *after], shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    return sizes
