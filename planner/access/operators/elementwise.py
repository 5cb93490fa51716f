"""Element-wise operators, with broadcasting: output element i reads element i of each input. Rules only."""

from __future__ import annotations

from onnx import TensorProto

from edgepart.planner.access.declare.aligned import Aligned, broadcast
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.declare.protocol import Local, LocalNode, Outputs


def elementwise(bound: BoundOperator) -> Derived:
    """Declares an operator with any number of inputs, each broadcast to the output as numpy does."""
    if bound.attribute("broadcast") or (bound.version < 7 and bound.attribute("axis") is not None):
        return WholeOperator(bound, "it broadcasts the way opsets before 7 did")
    return Aligned(bound, [broadcast(shape, bound.output) for shape in bound.inputs])


def same_type(bound: BoundOperator) -> Derived:
    """Declares CastLike. Only the type of the second input matters, so the local node is a Cast."""
    return _CastLike(bound, [broadcast(bound.inputs[0], bound.output), None])


class _CastLike(Aligned):
    def nodes(self, computed: Outputs) -> Local:
        to = TensorProto.DataType.Value(self.bound.dtype(0).upper())
        kept = {k: v for k, v in self.bound.operator.attributes.items() if k in ("saturate", "round_mode")}
        return (LocalNode("Cast", (0,), (0,), {"to": to, **kept}),)


def dropout(bound: BoundOperator) -> Derived:
    if bound.version < 7:
        return WholeOperator(bound, "it is of an opset before 7, where it may drop at inference too")
    if bound.has(2):
        training = bound.constant(2)
        if training is None or bool(training.any()):
            return WholeOperator(bound, "it may be in training mode, which is random")
    return Aligned(bound, [broadcast(shape, bound.output) for shape in bound.inputs], family="move", work=0.0)


def identity(bound: BoundOperator) -> Derived:
    """Declares Identity."""
    return Aligned(bound, [broadcast(bound.inputs[0], bound.output)], family="move", work=0.0)


_UNARY = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu
    HardSigmoid HardSwish IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid
    Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
"""
_BROADCASTING = """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max
    Mean Min Mod Mul Or PRelu Pow Sub Sum SwiGLU Where Xor
"""
_MICROSOFT = """
    BiasGelu FastGelu Gelu QLinearAdd QLinearLeakyRelu QLinearMul QLinearSigmoid QuickGelu
"""

DECLARATIONS = {
    **dict.fromkeys((_UNARY + _BROADCASTING).split(), elementwise),
    "CastLike": same_type,
    "Dropout": dropout,
    "Identity": identity,
}
MICROSOFT = dict.fromkeys(_MICROSOFT.split(), elementwise)
