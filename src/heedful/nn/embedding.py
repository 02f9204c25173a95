"""From token ids to vectors, and from pixels: an image is a sequence of patches."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.errors import ConfigError, InputError
from heedful.nn.context import Context
from heedful.nn.norm import show_norm
from heedful.nn.position import Learned, SineTable, Sinusoidal


class Embedding(nn.Module):
    """x_t = drop(project(norm(scale · token[w_t] + position(t) + type[s_t])))

    (Devlin et al. 2019 §3; a scale of √D: Vaswani et al. 2017 §3.4.) Every term but the token's is optional.
    `widen` is a matrix that makes token vectors as wide as the positions added to them (Zhang et al. 2022),
    `project` one that makes the whole sum as wide as the layers (Lan et al. 2020).
    """

    def __init__(
        self,
        vocab: int,
        dim: int,
        *,
        position: Learned | Sinusoidal | SineTable | None = None,
        types: int = 0,
        norm: nn.Module | None = None,
        widen: nn.Module | None = None,
        project: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, dim)
        self.position = position
        self.types = nn.Embedding(types, dim) if types else None  # `type` is a method of nn.Module
        self.widen, self.norm, self.project = widen, norm, project
        self.scale, self.dropout = scale, dropout

    @property
    def table(self) -> nn.Parameter:
        """The token vectors, (V, D), which a tied head multiplies with."""
        return cast(nn.Parameter, self.token.weight)

    @property
    def vocab(self) -> int:
        """The number of tokens in the vocabulary."""
        return self.token.num_embeddings

    @property
    def context(self) -> int | None:
        """The longest sequence the positions reach; None if there is no such limit."""
        return None if self.position is None else self.position.context

    def blank(self, batch: int, length: int) -> Tensor:
        """An input without a meaning: `batch` rows of `length` tokens."""
        return torch.zeros(batch, length, dtype=torch.long, device=self.table.device)

    def vectors(self, tokens: Tensor) -> Tensor:
        """The vectors of what is read, (B, T, D), before anything is added: rows of the table."""
        vectors: Tensor = self.token(tokens)
        return vectors if self.widen is None else self.widen(vectors)

    def forward(self, tokens: Tensor, ctx: Context, types: Tensor | None = None) -> Tensor:
        x = ctx.see("token", self.vectors(tokens)) * self.scale  # (B, T, D)
        if self.position is not None:
            x = x + ctx.see("position", self.position(ctx.q_pos).to(x.dtype))
        if self.types is not None:
            x = x + ctx.see("types", self.types(torch.zeros_like(tokens) if types is None else types))
        if self.norm is not None:
            x = show_norm(self.norm, x, ctx.at("norm"))
        if self.project is not None:
            x = self.project(x)
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):  # the residual stream too is narrow
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return ctx.see("output", F.dropout(x, self.dropout, self.training))


def split_patches(pixels: Tensor, size: int) -> Tensor:
    """(B, C, H, W) → (B, H/P · W/P, C·P·P), the patches row by row."""
    rows = pixels.unfold(2, size, size).unfold(3, size, size)  # (B, C, H/P, W/P, P, P)
    return rows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


class MediaEmbedding(Embedding):
    """An embedding of `count` pieces of what is not text: of patches of `images`, of moments of `sounds`."""

    media: str
    count: int  # vectors of an image or a sound

    @property
    def vocab(self) -> int:
        """0: what is read are numbers and no tokens."""
        return 0

    def check_source(self, source: Tensor) -> None:
        """Raise InputError for anything but a batch of numbers in the size of the positions."""
        raise NotImplementedError

    def check_unpadded(self, source: Tensor, valid: Tensor | None) -> int:
        """Check the source, which has no padding; return `count`."""
        self.check_source(source)
        if valid is not None:
            raise InputError(f"{self.media} have no padding", hint="leave valid out")
        return self.count

    def piece_names(self) -> tuple[str, ...]:
        """Return a name for every vector."""
        raise NotImplementedError


class PatchEmbedding(MediaEmbedding):
    """x = drop([first; E · patch_1; …; E · patch_N] + position)   (Dosovitskiy et al. 2021, eq. 1)

    A patch is a square of `patch` × `patch` pixels with all its channels, E one matrix for all of them. The
    `first` vectors are learned and belong to no patch: the class token, and perhaps one for distillation.
    CLIP has a norm after the sum, and E has no bias.
    """

    media = "images"

    def __init__(
        self,
        image: tuple[int, int],
        patch: int,
        channels: int,
        dim: int,
        *,
        first: int = 1,
        bias: bool = True,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        height, width = image
        if height % patch or width % patch:
            raise ConfigError(
                f"patches of {patch} pixels do not fill an image of {height} × {width}",
                hint="both sides must be multiples of the patch",
            )
        grid = (height // patch, width // patch)
        position = Learned(first + grid[0] * grid[1], dim)
        super().__init__(1, dim, position=position, norm=norm, dropout=dropout)
        self.token = nn.Linear(channels * patch * patch, dim, bias=bias)  # type: ignore[assignment]
        self.first = nn.ParameterList([nn.Parameter(torch.zeros(dim)) for _ in range(first)])
        self.image, self.patch, self.channels, self.grid = image, patch, channels, grid
        self.count = first + grid[0] * grid[1]

    def check_source(self, source: Tensor) -> None:
        pixels = source
        size = (self.channels, *self.image)
        if not isinstance(pixels, Tensor) or pixels.dim() != 4 or not pixels.is_floating_point():
            got = f"{tuple(pixels.shape)} of {pixels.dtype}" if isinstance(pixels, Tensor) else repr(pixels)
            raise InputError(
                f"this model reads images, (B, {', '.join(map(str, size))}) tensors; got {got:.60}",
                hint="model.image_processor makes one of an image",
            )
        if tuple(pixels.shape[1:]) != size:
            raise InputError(
                f"an image is {' × '.join(map(str, pixels.shape[1:]))} (channels, height, width)",
                hint=f"this model reads {' × '.join(map(str, size))}: model.image_processor resizes",
            )

    def piece_names(self) -> tuple[str, ...]:
        """A name for every vector: the class token, then each patch by its row and column, from 1."""
        names = ["[CLS]", "[DISTIL]"][: len(self.first)]
        rows, columns = self.grid
        return (*names, *(f"{r},{c}" for r in range(1, rows + 1) for c in range(1, columns + 1)))

    def blank(self, batch: int, length: int) -> Tensor:
        """`batch` images of one colour."""
        return torch.zeros(batch, self.channels, *self.image, device=self.table.device)

    def vectors(self, tokens: Tensor) -> Tensor:
        """[first; E · patch_1; …] of pixels (B, C, H, W): (B, first + N, D)."""
        x = self.token(split_patches(tokens.to(self.token.weight.dtype), self.patch))  # (B, N, D)
        return torch.cat((*(vector.expand(len(x), 1, -1).to(x.dtype) for vector in self.first), x), 1)


class SoundEmbedding(MediaEmbedding):
    """x_t = drop(gelu(W₂ [y_{2t−1}; y_{2t}; y_{2t+1}]) + p_t),  y_t = gelu(W₁ [m_{t−1}; m_t; m_{t+1}])

    (Radford et al. 2022 §2.2.) m_t are the mel bands of a frame. Two convolutions over three frames each, the
    second with a step of two, make a vector for every fiftieth of a second.
    """

    media = "sounds"

    def __init__(self, bands: int, count: int, dim: int, *, dropout: float = 0.0) -> None:
        super().__init__(1, dim, position=SineTable(count, dim), dropout=dropout)
        self.token = nn.Linear(3 * bands, dim)  # type: ignore[assignment]
        self.halve = nn.Linear(3 * dim, dim)
        self.bands, self.count = bands, count

    def check_source(self, source: Tensor) -> None:
        size = (self.bands, 2 * self.count)
        if not isinstance(source, Tensor) or source.dim() != 3 or tuple(source.shape[1:]) != size:
            got = tuple(source.shape) if isinstance(source, Tensor) else repr(source)
            raise InputError(
                f"this model reads sounds, (B, {size[0]}, {size[1]}) tensors of mel bands; got {got!s:.60}",
                hint="model.sound_processor makes one of a .wav file",
            )

    def piece_names(self) -> tuple[str, ...]:
        return tuple(f"{i / 50:.2f}s" for i in range(self.count))

    def blank(self, batch: int, length: int) -> Tensor:
        """`batch` sounds of silence."""
        return torch.zeros(batch, self.bands, 2 * self.count, device=self.table.device)

    def vectors(self, tokens: Tensor) -> Tensor:
        frames = lambda x, step: F.pad(x, (1, 1)).unfold(2, 3, step).transpose(1, 2).flatten(2)  # (B, T, 3·C)
        x = F.gelu(self.token(frames(tokens.to(self.token.weight.dtype), 1)))
        return F.gelu(self.halve(frames(x.mT, 2)))
