"""Patches: one matrix for all of them, which is a convolution; positions and names."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from heedful.core.errors import ConfigError, InputError
from heedful.nn.context import Context, Mask
from heedful.nn.embedding import PatchEmbedding, split_patches
from tests.refusal import refused


def test_patches_are_cut_row_by_row() -> None:
    pixels = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6).float()
    found = split_patches(pixels, 2)
    assert found.shape == (2, 6, 12)
    assert torch.equal(found[1, 4].view(3, 2, 2), pixels[1, :, 2:4, 2:4])


def test_the_embedding_is_a_convolution_with_the_first_vectors_before_it() -> None:
    torch.manual_seed(0)
    embed = PatchEmbedding((4, 6), 2, 3, 8, first=2)
    for vector in embed.first:
        torch.nn.init.normal_(vector)
    pixels, pos = torch.randn(2, 3, 4, 6), torch.arange(8)[None]
    found = embed(pixels, Context(pos, pos, Mask()))
    convolved = F.conv2d(pixels, embed.token.weight.view(8, 3, 2, 2), embed.token.bias, stride=2)
    expected = torch.cat((torch.stack(list(embed.first)).expand(2, -1, -1), convolved.flatten(2).mT), 1)
    assert embed.position is not None
    assert (found - expected - embed.position(pos)).abs().max() <= 1e-6
    assert embed.piece_names() == ("[CLS]", "[DISTIL]", "1,1", "1,2", "1,3", "2,1", "2,2", "2,3")


def test_a_patch_that_does_not_fill_the_image_is_refused() -> None:
    with refused(ConfigError, "patches of 4 pixels do not fill an image of 8 × 10", hint="multiples"):
        PatchEmbedding((8, 10), 4, 1, 8)


@pytest.mark.parametrize("pixels", [torch.zeros(1, 7, dtype=torch.long), torch.zeros(2, 3, 8, 4), [[1.0]]])
def test_what_is_no_image_of_its_size_is_refused_in_one_line(pixels: object) -> None:
    with pytest.raises(InputError) as error:
        PatchEmbedding((8, 8), 4, 3, 8).check_source(pixels)  # type: ignore[arg-type]
    assert error.value.hint
    assert "\n" not in str(error.value)
