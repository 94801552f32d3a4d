"""A cheap identity of a model's weights, for what is kept from one process to the next."""

from __future__ import annotations

from octavo.formats.gguf import GGUFFile

__all__ = ["SAMPLE_BYTES", "fingerprint"]

SAMPLE_BYTES = 4096


def fingerprint(file: GGUFFile) -> str:
    """64 hexadecimal digits that tell weights apart: milliseconds, not a read of the whole file.

    BLAKE2b over what `GGUFFile.fingerprint` covers (sizes of all files, their headers with metadata, vocabulary and
    tensor tables, 4 KiB from the middle of each tensor) and 4 KiB from the start and the end of each tensor. The same
    for copies and for every part of a split model, whatever the files are called.

    It can miss a change that keeps sizes and header and touches no sample: a single number written somewhere into a
    large tensor, or damage between the samples. Training, merging, pruning and quantizing change all blocks of the
    tensors that they touch. It is no proof against tampering.

    Raises:
        ValueError: the file is closed.
    """
    from hashlib import blake2b  # brings a whole crypto library along: 5 ms

    digest = blake2b(file.fingerprint.encode(), digest_size=32)
    for tensor in file.tensors.values():
        stored = tensor.data.reshape(-1)
        digest.update(stored[:SAMPLE_BYTES].data)
        digest.update(stored[-SAMPLE_BYTES:].data)
    return digest.hexdigest()
