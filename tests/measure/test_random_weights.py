"""Random weights are valid in every format, and of a useful size."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.core.errors import ConfigError, UnsupportedModelError
from octavo.formats.ggml import FORMATS, dequantize_tensor, row_bytes
from octavo.measure.random_weights import random_tensor


@pytest.mark.parametrize("dtype", FORMATS)
def test_random_weights_decode_to_finite_numbers(dtype: str) -> None:
    tensor = random_tensor(dtype, 5, 512, seed=3)
    assert tensor.shape == (5, 512)
    assert tensor.data.shape == (5, row_bytes(dtype, 512))
    values = dequantize_tensor(tensor)
    assert np.isfinite(values).all()
    assert 1e-4 < np.abs(values).mean() < 1
    assert len(np.unique(values)) > 20


def test_the_seed_decides() -> None:
    first, same, other = (random_tensor("Q4_K", 2, 256, seed=seed).data for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_zero_points_are_those_that_checkpoints_have() -> None:
    zeros = random_tensor("INT4_G32_Z", 64, 1024).data.reshape(-1, 19)[:, 2]
    assert sorted(set(zeros.tolist())) == list(range(17))


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(ConfigError, match="100 columns are no multiple of the 256"):
        random_tensor("Q4_K", 4, 100)
    with pytest.raises(UnsupportedModelError, match="'Q9'"):
        random_tensor("Q9", 4, 256)
