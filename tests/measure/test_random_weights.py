"""Random weights are valid in every format, and of a useful size."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.core.errors import ConfigError, UnsupportedModelError
from octavo.formats.ggml import FORMATS, dequantize_tensor
from octavo.measure.random_weights import random_tensor


@pytest.mark.parametrize("dtype", FORMATS)
def test_random_weights_decode_to_finite_numbers(dtype: str) -> None:
    tensor = random_tensor(dtype, 5, 512, seed=3)
    assert tensor.shape == (5, 512)
    assert tensor.data.shape == (5, 512 // FORMATS[dtype].block_elements * FORMATS[dtype].block_bytes)
    values = dequantize_tensor(tensor)
    assert np.isfinite(values).all()
    assert 1e-4 < np.abs(values).mean() < 1


def test_the_seed_decides() -> None:
    first, same, other = (random_tensor("Q4_K", 2, 256, seed=seed).data for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(ConfigError, match="100 columns are no multiple of the 256"):
        random_tensor("Q4_K", 4, 100)
    with pytest.raises(UnsupportedModelError, match="'Q9'"):
        random_tensor("Q9", 4, 256)
