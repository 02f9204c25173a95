"""RNN, LSTM and GRU: the loop against torch.nn, the fused kernel against the loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from heedful.nn.context import Context, Mask, Watch
from heedful.nn.recurrent import GRU, LSTM, RNN, Bidirectional, GatedUnit, Recurrence
from heedful.nn.state import RecurrentState, StateGroup

B, T, D, H = 3, 7, 5, 4
LAYERS = [RNN, LSTM, GRU]
PEERS = {RNN: nn.RNN, LSTM: nn.LSTM, GRU: nn.GRU}


def context(
    length: int = T,
    *,
    valid: Tensor | None = None,
    fresh: Tensor | None = None,
    watch: Watch | None = None,
    backend: str = "auto",
) -> Context:
    pos, mask = torch.arange(length)[None], Mask(valid=valid)
    return Context(pos, pos, mask, valid_new=valid, fresh=fresh, watch=watch, path="l", backend=backend)


def close(a: Tensor, b: Tensor, limit: float = 1e-6) -> bool:
    return a.shape == b.shape and (a - b).abs().max().item() <= limit


def like_torch(kind: type[Recurrence]) -> tuple[Recurrence, nn.RNNBase]:
    """Our layer and torch's, with the same weights."""
    ours, peer = kind(D, H), PEERS[kind](D, H, batch_first=True)
    for mine, theirs in zip(weights(ours), peer.parameters(), strict=True):
        mine.data.copy_(theirs)
    return ours, peer


def weights(layer: Recurrence) -> list[Tensor]:
    """In torch's order."""
    return [layer.x.weight, layer.h.weight, layer.x.bias, layer.h.bias]


def ragged() -> Tensor:
    """Padding on the left, on the right, inside, and a row of nothing else."""
    return torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 1, 0], [0] * 7]).bool()


def last(state: RecurrentState) -> Tensor:
    return torch.cat([state[n] for n in sorted(state.tensors)], -1)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_last_states_and_gradients_equal_those_of_torch(kind: type[Recurrence], backend: str) -> None:
    ours, peer = like_torch(kind)
    x, state = torch.randn(B, T, D), ours.new_state(B, T)
    got = ours(x, context(backend=backend), state)
    expected, final = peer(x)
    assert close(got, expected)
    for name, value in zip(ours.carried, final if isinstance(final, tuple) else (final,), strict=True):
        assert close(state[name], value[0])
    weigh = torch.randn_like(got)
    (got * weigh).sum().backward()
    (expected * weigh).sum().backward()
    for a, b in zip(weights(ours), peer.parameters(), strict=True):
        assert close(a.grad, b.grad, 1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("padded", [False, True])
def test_the_fused_kernel_equals_the_loop(
    kind: type[Recurrence], reverse: bool, bias: bool, padded: bool
) -> None:
    layer = kind(D, H, bias=bias, reverse=reverse)
    x, valid = torch.randn(4, T, D), ragged() if padded else None
    first = {name: torch.randn(4, H) for name in layer.carried}
    states = [RecurrentState(**first), RecurrentState(**first)]
    fused = layer(x, context(valid=valid), states[0])
    loop = layer(x, context(valid=valid, backend="reference"), states[1])
    assert close(fused, loop)
    assert close(last(states[0]), last(states[1]))


@pytest.mark.parametrize("kind", [*LAYERS, GatedUnit])
@pytest.mark.parametrize("reverse", [False, True])
def test_padding_leaves_the_state_as_it_was(kind: type[Recurrence], reverse: bool) -> None:
    layer, x, valid = kind(D, H, reverse=reverse), torch.randn(4, T, D), ragged()
    state = layer.new_state(4, T)
    out = layer(x, context(valid=valid), state)
    for row, keep in enumerate(valid[:3]):
        alone = layer.new_state(1, T)
        assert close(out[row, keep], layer(x[row : row + 1, keep], context(int(keep.sum())), alone)[0])
        assert close(last(state)[row], last(alone)[0])
    assert last(state)[3].abs().max() == 0


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", [*LAYERS, GatedUnit])
def test_a_packed_document_starts_from_nothing(kind: type[Recurrence], reverse: bool) -> None:
    layer, x = kind(D, H, reverse=reverse), torch.randn(2, T, D)
    fresh = torch.zeros(2, T, dtype=torch.bool)
    fresh[:, [0, 3, 4]] = True
    parts = [layer(piece, context(piece.shape[1])) for piece in x.split((3, 1, 3), 1)]
    assert close(layer(x, context(fresh=fresh)), torch.cat(parts, 1))


@pytest.mark.parametrize("kind", [*LAYERS, GatedUnit])
def test_steps_equal_one_pass(kind: type[Recurrence]) -> None:
    layer, x = kind(D, H), torch.randn(B, T, D)
    state = layer.new_state(B, T)
    steps = [layer(piece, context(piece.shape[1]), state) for piece in x.split((3, 1, 1, 2), 1)]
    assert close(torch.cat(steps, 1), layer(x, context()))


@pytest.mark.parametrize("kind", [*LAYERS, GatedUnit])
def test_every_gate_is_shown_over_time_and_watching_changes_nothing(kind: type[Recurrence]) -> None:
    layer, x, watch = kind(D, H), torch.randn(B, T, D), Watch("l.*")
    assert close(layer(x, context(watch=watch)), layer(x, context()))
    assert all(watch[f"l.{name}"].shape == (B, T, H) for name in layer.shown)
    assert close(watch["l.h"], watch["l.output"])


def test_the_gates_shown_are_those_of_the_equation() -> None:
    layer, x, watch = LSTM(D, H), torch.randn(B, T, D), Watch("l.*")
    layer(x, context(watch=watch))
    i, f, g, o, c, h = (watch[f"l.{n}"] for n in layer.shown)
    before = torch.cat((torch.zeros(B, 1, H), c[:, :-1]), 1)
    assert close(c, f * before + i * g)
    assert close(h, o * c.tanh())


def test_an_edited_gate_acts_on_all_later_steps() -> None:
    layer, x = LSTM(D, H), torch.randn(B, T, D)

    def forget(f: Tensor) -> Tensor:
        return f * (torch.arange(T) != 3)[:, None]

    def drop_input(i: Tensor) -> Tensor:
        i[:, :4] = 0  # in place
        return i

    watch = Watch("l.c", edit={"l.f": forget, "l.i": drop_input})
    got = layer(x, context(watch=watch))
    assert watch["l.c"][:, 3].abs().max() == 0
    state = RecurrentState(h=torch.zeros(B, H), c=torch.zeros(B, H))
    assert close(got[:, 4:], layer(x[:, 4:], context(T - 4), state))  # nothing was left of the first four


def test_an_edit_of_every_step_equals_the_edited_equation() -> None:
    layer, x, watch = RNN(D, H), torch.randn(B, T, D), Watch("l.h", edit={"l.h": lambda h: 0.5 * h})
    h, rows = torch.zeros(B, H), []
    for t in range(T):
        h = 0.5 * torch.tanh(layer.x(x[:, t]) + layer.h(h))
        rows.append(h)
    assert close(layer(x, context(watch=watch)), torch.stack(rows, 1))
    assert close(watch["l.h"], torch.stack(rows, 1))


def test_an_edit_that_is_never_the_same_comes_to_an_end() -> None:
    layer, watch = GRU(D, H), Watch(edit={"l.z": torch.rand_like})
    assert layer(torch.randn(B, T, D), context(watch=watch)).shape == (B, T, H)


def test_dropout_falls_on_the_output_and_not_on_the_state() -> None:
    layer, x = LSTM(D, H, dropout=0.5), torch.randn(B, T, D)
    noisy, still = layer.new_state(B, T), layer.new_state(B, T)
    dropped = layer(x, context(), noisy)
    plain = layer.eval()(x, context(), still)
    assert close(last(noisy), last(still))
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    assert close(dropped[kept], 2 * plain[kept])


def test_an_adapter_in_place_of_a_matrix_is_used() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    layer, x = LSTM(D, H), torch.randn(B, T, D)
    plain = layer(x, context())
    doubled = Doubled(D, 4 * H)
    doubled.load_state_dict(layer.x.state_dict())
    layer.x = doubled
    assert not close(layer(x, context()), plain)


@pytest.mark.parametrize("padded", [False, True])
def test_reading_both_ways_equals_torch(padded: bool) -> None:
    layer = Bidirectional(LSTM(D, H), LSTM(D, H, reverse=True))
    peer = nn.LSTM(D, H, batch_first=True, bidirectional=True)
    for a, b in zip(weights(layer.ahead) + weights(layer.back), peer.parameters(), strict=True):
        a.data.copy_(b)
    x = torch.randn(2, T, D)
    valid = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0]]).bool() if padded else None
    state = layer.new_state(2, T)
    got = layer(x, context(valid=valid), state)
    assert isinstance(state, StateGroup)
    for row, length in enumerate((7, 4) if padded else (7, 7)):
        expected, (h, c) = peer(x[row : row + 1, :length])
        assert close(got[row, :length], expected[0])
        for way, name in enumerate(("ahead", "back")):
            part = state[name]
            assert isinstance(part, RecurrentState)
            assert close(part["h"][row], h[way, 0])
            assert close(part["c"][row], c[way, 0])


def test_both_readers_show_their_gates_where_the_token_stands() -> None:
    layer, x, watch = Bidirectional(GRU(D, H), GRU(D, H, reverse=True)), torch.randn(1, T, D), Watch("*.h")
    out = layer(x, context(watch=watch))
    assert close(torch.cat((watch["l.ahead.h"], watch["l.back.h"]), -1), out)


def test_the_gated_unit_is_the_equation_of_its_paper() -> None:
    unit, x = GatedUnit(D, H), torch.randn(2, T, D)
    W, b, U, Un = unit.x.weight, unit.x.bias, unit.h.weight, unit.n.weight
    h, rows = torch.zeros(2, H), []
    for t in range(T):
        wr, wz, wn = (x[:, t] @ W.t() + b).split(H, -1)
        ur, uz = (h @ U.t()).split(H, -1)
        r, z = torch.sigmoid(wr + ur), torch.sigmoid(wz + uz)
        h = (1 - z) * h + z * torch.tanh(wn + (r * h) @ Un.t())
        rows.append(h)
    assert close(unit(x, context()), torch.stack(rows, 1))


@pytest.mark.parametrize("kind", [*LAYERS, GatedUnit])
@torch.no_grad()
def test_first_weights_can_be_made_in_half_precision(kind: type[Recurrence]) -> None:
    layer = kind(D, H).to(torch.bfloat16)
    layer.initialise()
    for gate in layer.h.weight.float().split(H):
        assert close(gate @ gate.t(), torch.eye(H), 0.02)
