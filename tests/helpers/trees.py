"""Trees of new tokens, as bit masks (see RaggedBatch.tree)."""

from __future__ import annotations

import numpy as np

__all__ = ["chain", "depths", "random_tree"]


def chain(n: int) -> np.ndarray:
    """u64 [n], each token after the one before it."""
    return np.array([(2 << j) - 1 for j in range(n)], np.uint64)


def random_tree(n: int, rng: np.random.Generator) -> np.ndarray:
    """u64 [n], each token after an earlier one or after none."""
    masks: list[int] = []
    for j in range(n):
        parent = int(rng.integers(-1, j))
        masks.append((masks[parent] if parent >= 0 else 0) | 1 << j)
    return np.array(masks, np.uint64)


def depths(tree: np.ndarray) -> np.ndarray:
    """i32 [n], how many tokens come before each in the tree."""
    return np.array([int(mask).bit_count() - 1 for mask in tree], np.int32)
