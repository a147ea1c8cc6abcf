"""Number formats: how a weight matrix is cut into codes and scales, and put together again.

Matrices are [..., rows, columns] in float32; blocks run along the columns, the dimension that a
product sums over.  Every step is exact or rounded as IEEE 754 says, so that the same weights
give the same bytes on every machine; hence ``frexp`` where a logarithm would do.

Sources: NVFP4 as NVIDIA's ModelOpt exports it (blocks of 16, e4m3 scales, one float32 scale of
the matrix); the OCP Microscaling Formats specification 1.0 for MXFP4 (blocks of 32, power-of-two
scales) and for e2m1; compressed-tensors 0.13 for ``pack-quantized`` and
``mxfp4-pack-quantized``; DeepSeek-V3's checkpoint for FP8 blocks of 128×128.
"""

from __future__ import annotations

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the eight codes without sign; code 8 + i is the negative of code i."""
E2M1_MAX = 6.0
E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
NVFP4_BLOCK = 16
MXFP4_BLOCK = 32
INT4_GROUP = 32
INT4_OFFSET = 8
FP8_BLOCK = 128
E8M0_BIAS = 127


def blocks(matrix: Tensor, size: int) -> Tensor:
    """Return [..., rows, blocks, size]."""
    return matrix.float().unflatten(-1, (-1, size))


def largest(matrix: Tensor) -> Tensor:
    """Return the largest magnitude of each matrix, [..., 1, 1]."""
    return matrix.float().abs().amax((-2, -1), keepdim=True)


# e2m1, the four-bit float of NVFP4 and MXFP4


def e2m1_codes(values: Tensor) -> Tensor:
    """Return the uint8 codes of the nearest representable values; ties go to the even code."""
    magnitudes = values.abs().clamp(max=E2M1_MAX)
    step = torch.where(magnitudes < 2.0, 0.5, torch.where(magnitudes < 4.0, 1.0, 2.0))
    nearest = (torch.round(magnitudes / step) * step).clamp(max=E2M1_MAX)
    codes = torch.searchsorted(torch.tensor(E2M1, device=values.device), nearest.contiguous())
    negative = (values < 0) & (nearest > 0)
    return codes.to(torch.uint8) | (negative.to(torch.uint8) << 3)


def e2m1_values(codes: Tensor) -> Tensor:
    """Return the float32 values of uint8 codes."""
    table = torch.tensor(E2M1 + tuple(-value for value in E2M1), device=codes.device)
    return table[codes.long()]


def packed_pairs(codes: Tensor) -> Tensor:
    """Pack two codes a byte, [..., columns] → [..., columns / 2]; the first is the low half."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).contiguous()


def unpacked_pairs(packed: Tensor) -> Tensor:
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


# NVFP4


def nvfp4_matrix_scale(*matrices: Tensor) -> Tensor:
    """Return the float32 scale [..., 1, 1] that ``matrices`` share, for scales of blocks ≤ 448."""
    shared = torch.stack([largest(matrix) for matrix in matrices]).amax(0)
    return (shared / (E2M1_MAX * E4M3_MAX)).clamp(min=1e-12)


def nvfp4_encoded(matrix: Tensor, matrix_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes [..., rows, columns] and e4m3 scales [..., rows, columns / 16]."""
    cut = blocks(matrix, NVFP4_BLOCK)
    scales = (cut.abs().amax(-1) / E2M1_MAX / matrix_scale).clamp(max=E4M3_MAX).to(E4M3)
    step = (scales.float() * matrix_scale)[..., None]
    codes = e2m1_codes(torch.where(step > 0, cut / step.clamp(min=1e-30), 0.0))
    return codes.flatten(-2), scales


def nvfp4_decoded(codes: Tensor, scales: Tensor, matrix_scale: Tensor) -> Tensor:
    step = (scales.float() * matrix_scale)[..., None]
    return (blocks(e2m1_values(codes), NVFP4_BLOCK) * step).flatten(-2)


# MXFP4


def power_of_two(exponents: Tensor) -> Tensor:
    """Return 2^exponents exactly, for int32 exponents from -126 to 127."""
    return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32)


def mxfp4_encoded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes [..., rows, columns] and uint8 e8m0 scales [..., rows, columns / 32].

    Scales are the smallest powers of two with which nothing is clipped.
    """
    cut = blocks(matrix, MXFP4_BLOCK)
    wanted = cut.abs().amax(-1).clamp(min=2.0**-100) / E2M1_MAX
    fraction, exponent = torch.frexp(wanted)
    exponent = torch.where(fraction > 0.5, exponent, exponent - 1)
    codes = e2m1_codes(cut / power_of_two(exponent)[..., None])
    return codes.flatten(-2), (exponent + E8M0_BIAS).to(torch.uint8)


def mxfp4_decoded(codes: Tensor, scales: Tensor) -> Tensor:
    step = power_of_two(scales.to(torch.int32) - E8M0_BIAS)[..., None]
    return (blocks(e2m1_values(codes), MXFP4_BLOCK) * step).flatten(-2)


# int4


def int4_encoded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes from 0 to 15 (8 means 0) and bf16 scales [..., rows, columns / 32]."""
    cut = blocks(matrix, INT4_GROUP)
    scales = (cut.abs().amax(-1) / 7.0).clamp(min=1e-8).to(torch.bfloat16)
    values = torch.round(cut / scales.float()[..., None]).clamp(-8, 7)
    return (values + INT4_OFFSET).to(torch.uint8).flatten(-2), scales


def int4_decoded(codes: Tensor, scales: Tensor) -> Tensor:
    values = blocks(codes.float() - INT4_OFFSET, INT4_GROUP)
    return (values * scales.float()[..., None]).flatten(-2)


def packed_words(codes: Tensor) -> Tensor:
    """Pack eight codes into an int32, [..., columns] → [..., columns / 8]; first one lowest."""
    eights = codes.to(torch.int32).unflatten(-1, (-1, 8))
    words = torch.zeros_like(eights[..., 0])
    for place in range(8):
        words |= eights[..., place] << (4 * place)
    return words


def unpacked_words(words: Tensor) -> Tensor:
    codes = torch.stack([(words >> (4 * place)) & 15 for place in range(8)], -1)
    return codes.flatten(-2).to(torch.uint8)


# FP8


def fp8_block_encoded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return e4m3 values and float32 scales [..., rows / 128, columns / 128].

    Rows and columns are multiples of 128.
    """
    cut = _tiles(matrix)
    scales = cut.abs().amax((-3, -1), keepdim=True).clamp(min=1e-12) / E4M3_MAX
    values = (cut / scales).to(E4M3)
    return values.reshape(matrix.shape), scales[..., 0, :, 0].contiguous()


def fp8_block_decoded(values: Tensor, scales: Tensor) -> Tensor:
    return (_tiles(values) * scales[..., :, None, :, None]).reshape(values.shape)


def _tiles(matrix: Tensor) -> Tensor:
    """Return [..., row tiles, 128, column tiles, 128]."""
    return matrix.float().unflatten(-1, (-1, FP8_BLOCK)).unflatten(-3, (-1, FP8_BLOCK))


def fp8_tensor_scale(*matrices: Tensor) -> Tensor:
    """Return the one float32 scale that ``matrices`` share."""
    return torch.stack([matrix.float().abs().max() for matrix in matrices]).max() / E4M3_MAX


def fp8_tensor_encoded(matrix: Tensor, scale: Tensor) -> Tensor:
    return (matrix.float() / scale).to(E4M3)
