"""Declarations of operators, one module for each family: what they read to write a region, and their local nodes.

May import: planner/access/declare, planner/region.
"""

__all__ = [
    "block_quantised",
    "contraction",
    "convolution",
    "data_movement",
    "einsum",
    "elementwise",
    "fourier",
    "generators",
    "image",
    "losses",
    "matrices",
    "ml",
    "ml_strings",
    "normalisation",
    "opaque",
    "pooling",
    "quantised",
    "recurrent",
    "reduction",
    "reshape",
    "resize",
    "sampling",
    "scattering",
]
