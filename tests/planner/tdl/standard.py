"""Operators of ONNX in TDL. edgepart has hand-written access maps for all of them, with which these have to agree.

Left out is what the language cannot say, or says less well than the maps do:

- Reshape, Flatten, DepthToSpace, Resize, grouped Conv: their indices are divided, which is not affine.
- Concat, Split, Tile, Slice along their own axis: which input is read, or how far, depends on the index.
- Gather, Scatter*, NonMaxSuppression: what they read depends on values. An Opaque function reads all of the axis.
- ConvTranspose, and Conv with auto_pad: what is read does not follow the index in equal steps, or not from attributes.

An operator is run as it is on a part of its inputs. So an axis whose length is in an attribute or in an input stays whole:
the channels of a depthwise Conv, the sliced axis of Slice, the pieces of Split.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from edgepart.tdl import Max, Min, Opaque, Prod, Sum, operator, padded

SCALAR = (1, 1)


@operator("", "Relu")
def relu(x):
    return lambda: Opaque(x[...])


@operator("", "Add")
def add(a, b):
    return lambda: a[...] + b[...]


@operator("", "Where")
def where(condition, a, b):
    return lambda: Opaque(condition[...], a[...], b[...])


@operator("", "MatMul")
def matmul(a, b):
    return lambda i, j: Sum(lambda k: a[..., i, k] * b[..., k, j])


@operator("", "Gemm")
def gemm(a, b):
    return lambda i, j: Sum(lambda k: a[i, k] * b[k, j])


@operator("", "Gemm")
def gemm_transposed(a, b, c):
    return lambda i, j: Sum(lambda k: a[k, i] * b[j, k]) + c[j]


@operator("", "Transpose")
def transpose(x):
    return lambda i, j, k: x[j, k, i]


@operator("", "Conv")
def conv1d(data, filters, *, strides=(1,), dilations=(1,), pads=(0, 0)):
    return lambda b, co, x: Sum(
        lambda ci, dx: padded(data)[b, ci, x * strides[0] + dx * dilations[0] - pads[0]] * filters[co, ci, dx]
    )


@operator("", "Conv")
def conv2d(data, filters, bias=None, *, strides=SCALAR, dilations=SCALAR, pads=(0, 0, 0, 0)):
    return lambda b, co, y, x: (
        Sum(
            lambda ci, dy, dx: (
                padded(data)[
                    b,
                    ci,
                    y * strides[0] + dy * dilations[0] - pads[0],
                    x * strides[1] + dx * dilations[1] - pads[1],
                ]
                * filters[co, ci, dy, dx]
            )
        )
        + bias[co]
    )


@operator("", "Conv")
def unpadded_conv1d(data, filters):
    return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[co, ci, dx])


@operator("", "Conv", whole=["c"])  # The attribute `group` is the number of channels.
def depthwise_conv1d(data, filters, *, strides=(1,), pads=(0, 0)):
    return lambda b, c, x: Sum(
        lambda one, dx: padded(data)[b, c, x * strides[0] + dx - pads[0]] * filters[c, one, dx]
    )


@operator("", "MaxPool")
def max_pool(data, *, kernel_shape, strides=SCALAR, pads=(0, 0, 0, 0)):
    return lambda b, c, y, x: Max(
        lambda dy, dx: padded(data)[b, c, y * strides[0] + dy - pads[0], x * strides[1] + dx - pads[1]],
        dy=kernel_shape[0],
        dx=kernel_shape[1],
    )


@operator("", "AveragePool")
def average_pool(data, *, kernel_shape, strides=SCALAR, pads=(0, 0, 0, 0)):
    return lambda b, c, y, x: (
        Sum(
            lambda dy, dx: padded(data)[b, c, y * strides[0] + dy - pads[0], x * strides[1] + dx - pads[1]],
            dy=kernel_shape[0],
            dx=kernel_shape[1],
        )
        / kernel_shape[0]
    )


@operator("", "Softmax")
def softmax(x):
    return lambda i, j: Opaque(x[i, j]) / Sum(lambda k: Opaque(x[i, k]))


@operator("", "LayerNormalization")
def layer_normalization(x, scale, bias):
    return lambda i: Opaque(x[..., :], scale[:], bias[:])[i]


@operator("", "BatchNormalization")
def batch_normalization(x, scale, bias, mean, variance):
    return lambda b, c, y, x_: Opaque(x[b, c, y, x_], scale[c], bias[c], mean[c], variance[c])


@operator("", "InstanceNormalization")
def instance_normalization(x, scale, bias):
    return lambda b, c, y, x_: Opaque(x[b, c, :, :], scale[c], bias[c])[y, x_]


@operator("", "ReduceSum")
def reduce_sum(x, axes):
    return lambda i, j: Sum(lambda k: x[i, k, j])


@operator("", "ReduceMax")
def reduce_max(x):
    return lambda i, j: Max(lambda k: x[i, k, j])


@operator("", "ReduceMin")
def reduce_min(x):
    return lambda i, j: Min(lambda k: x[i, k, j])


@operator("", "ReduceProd")
def reduce_prod(x):
    return lambda i, j: Prod(lambda k: x[i, k, j])


@operator("", "ArgMax")
def arg_max(x):
    return lambda i, j: Opaque(x[i, :, j])


@operator("", "TopK")
def top_k(x, count):
    return (lambda i, rank: Opaque(x[i, :], count[0])[rank], lambda i, rank: Opaque(x[i, :], count[0])[rank])


@operator("", "CumSum")
def cumulative_sum(x, axis):
    return lambda i, j: Opaque(x[i, :], axis[:])[j]


@operator("", "Gather")
def gather(data, indices):
    return lambda i, j: Opaque(data[:, j], indices[i])


@operator("", "Concat")
def concat(a, b):
    return lambda i, j: Opaque(a[:, j], b[:, j])[i]


@operator("", "Pad")
def pad(data, *, pads):
    return lambda i, j: Opaque(padded(data)[i - pads[0], j - pads[1]])


@operator("", "Einsum")
def einsum(a, b):
    return lambda i, j, c: Sum(lambda k: a[k, i, c] * b[j, k, c])


@operator("com.microsoft", "MultiHeadAttention")
def attention(query, key, value):
    return lambda b, i, d: Opaque(query[b, i, :], key[b, :, :], value[b, :, :])[d]
