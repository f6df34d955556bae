"""Triton's interpreter made fit for bitwise checks: a product whose rows do not depend on their place.

The interpreter multiplies through NumPy, whose library sums the rows of one product in different orders. A tensor core
does not, and whether it does is what the proof at start-up finds out on the device. Here the product is replaced by
one that adds inputs in order for every row alike, so that what remains is the kernels' own order of additions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

ENVIRONMENT = {"TRITON_INTERPRET": "1", "INTAGLIO_TRITON": "interpret"}


def requested(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process interprets kernels. Decided before Triton is imported, once per process."""
    return environment.get("TRITON_INTERPRET") == "1"


def use_ordered_products() -> None:
    """Replace the interpreter's product in this process."""
    import numpy as np
    from triton.runtime import interpreter

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        left, right = a.data.astype(np.float32), b.data.astype(np.float32)
        total = np.zeros((left.shape[0], right.shape[1]), dtype=np.float32)
        for k in range(left.shape[1]):
            total += left[:, k : k + 1] * right[k : k + 1]
        return interpreter.TensorHandle(total + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot
