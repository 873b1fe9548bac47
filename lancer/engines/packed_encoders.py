"""Encoders of transformers, computed on packs without padding: the weights are theirs, the loop is ours.

transformers pads every batch to its longest input. Here the tokens of a pack are one matrix, attention looks inside
each sequence, and the last layer is computed only for the first token, where that is all that is read (a sixth of the
work in a model of six layers). On CPUs the linear layers go through oneDNN with weights packed once.

BERT and MiniLM (Devlin et al., 2019; Wang et al., 2020), XLM-R (Conneau et al., 2020), ModernBERT (Warner et al.,
2024).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from lancer.engines.packed_attention import Layout, attend, varlen_available

if TYPE_CHECKING:
    import torch

    from lancer.engines.pair_packing import Pack

TYPES: Final = ("bert", "roberta", "xlm-roberta", "modernbert")


class PackedEncoder(Protocol):
    """An encoder over packs."""

    @property
    def max_tokens(self) -> int:
        """The longest input that the model has positions for."""
        ...

    def hidden(self, pack: Pack, *, first_only: bool = False) -> torch.Tensor:
        """float32, on the device: shape (tokens, size), or of the first token of each sequence (sequences, size)."""
        ...


class Placement:
    """Where weights go and how linear layers are computed there; `packs`: with weights packed for oneDNN."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype, self.varlen = device, dtype, varlen_available(device, dtype)
        self.packs = device == "cpu" and _onednn_packs(dtype)

    def weight(self, parameter: torch.Tensor) -> torch.Tensor:
        """A copy in place."""
        return parameter.detach().to(self.device, self.dtype)

    def norm(self, module: Any) -> Any:
        """A norm. It keeps float32, as the sums over layers do: a third less error of bfloat16 for 4 % of the speed."""
        return module.to(self.device)

    def linear(self, *modules: Any) -> Linear:
        """One linear layer out of several that read the same input."""
        import torch

        weight = torch.cat([self.weight(m.weight) for m in modules])
        bias = None if modules[0].bias is None else torch.cat([self.weight(m.bias) for m in modules])
        return Linear(weight, bias, packed=self.packs)

    def layout(self, pack: Pack) -> Layout:
        """Of the sequences of a pack."""
        import torch

        starts = torch.from_numpy(pack.lengths.cumsum() - pack.lengths)
        return Layout(pack.lengths.tolist(), starts.to(self.device), self.varlen)


class Linear:
    """x W^T + b.

    `packed`: through oneDNN's own operator, the one that PyTorch's compiler uses. `torch.nn.functional.linear` takes
    MKL for float32, which is half as fast on AMD processors, and cannot fuse what follows.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, packed: bool) -> None:
        import torch

        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if packed else weight
        self._bias, self._packed = bias, packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, inputs) -> (rows, outputs), in the type of the weights as `x`."""
        import torch

        if self._packed:
            return tensor(torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], ""))
        return torch.nn.functional.linear(x, self._weight, self._bias)

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """The exact GELU of it, fused where packed."""
        import torch

        if self._packed:
            return tensor(torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "gelu", [], "none"))
        return torch.nn.functional.gelu(self(x))

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """It and `other`, added, in the type of `other`; fused where packed and of one type."""
        import torch

        if self._packed and other.dtype == x.dtype:
            return tensor(torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, self._bias, "add"))
        return self(x) + other


class PaddedEncoder:
    """A model of any other family, in the type that it has, by transformers: it pads a pack to its longest sequence."""

    def __init__(self, backbone: Any, placement: Placement, pad_token_id: int) -> None:
        self._model, self._pad_token_id = backbone.to(placement.device), pad_token_id
        self._device = placement.device
        self.max_tokens = int(getattr(backbone.config, "max_position_embeddings", sys.maxsize))

    def hidden(self, pack: Pack, *, first_only: bool = False) -> torch.Tensor:
        """See `PackedEncoder.hidden`."""
        import torch

        mask = torch.from_numpy(np.arange(pack.lengths.max()) < pack.lengths[:, None])
        ids = torch.full(mask.shape, self._pad_token_id)
        ids[mask] = torch.from_numpy(pack.ids)
        ids, mask = ids.to(self._device), mask.to(self._device)
        states = self._model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
        return tensor(states[:, 0] if first_only else states[mask])


def packed_encoder(backbone: Any, placement: Placement) -> PackedEncoder | None:
    """A model of transformers without its head as a `PackedEncoder`; None when its type is not one of `TYPES`."""
    match backbone.config.model_type:
        case "bert" | "xlm-roberta" | "roberta":
            return BertEncoder(backbone, placement)
        case "modernbert":
            return ModernBertEncoder(backbone, placement)
        case _:
            return None


class BertEncoder:
    """BERT and XLM-R: norms after each block, learned positions, token types."""

    def __init__(self, backbone: Any, placement: Placement) -> None:
        config = backbone.config
        self._placement = placement
        self._first_position = 0 if config.model_type == "bert" else config.pad_token_id + 1
        self._heads = config.num_attention_heads
        self.max_tokens = config.max_position_embeddings - self._first_position
        embeddings = backbone.embeddings
        self._words = placement.weight(embeddings.word_embeddings.weight)
        self._positions = placement.weight(embeddings.position_embeddings.weight)
        self._types = placement.weight(embeddings.token_type_embeddings.weight)
        self._norm = placement.norm(embeddings.LayerNorm)
        gelu = config.hidden_act == "gelu"
        self._layers = [_BertLayer(layer, placement, gelu=gelu) for layer in backbone.encoder.layer]

    def hidden(self, pack: Pack, *, first_only: bool = False) -> torch.Tensor:
        """See `PackedEncoder.hidden`."""
        import torch

        device, layout = self._placement.device, self._placement.layout(pack)
        ids, types, positions = (
            torch.from_numpy(x).to(device) for x in (pack.ids, pack.types, pack.positions + self._first_position)
        )
        x = tensor(self._norm(self._words[ids].float() + self._types[types] + self._positions[positions]))
        for layer in self._layers[:-1]:
            x = layer(x, self._heads, layout)
        return self._layers[-1](x, self._heads, layout, first_only=first_only)


class _BertLayer:
    def __init__(self, layer: Any, placement: Placement, *, gelu: bool) -> None:
        attention = layer.attention.self
        self._dtype = placement.dtype
        self._query = placement.linear(attention.query)
        self._key_value = placement.linear(attention.key, attention.value)
        self._attended = placement.linear(layer.attention.output.dense)
        self._attention_norm = placement.norm(layer.attention.output.LayerNorm)
        self._wide = placement.linear(layer.intermediate.dense)
        self._activation = None if gelu else layer.intermediate.intermediate_act_fn
        self._narrow = placement.linear(layer.output.dense)
        self._norm = placement.norm(layer.output.LayerNorm)

    def __call__(self, x: torch.Tensor, heads: int, layout: Layout, *, first_only: bool = False) -> torch.Tensor:
        """New states of all tokens, or of the first of each sequence."""
        inputs = x.to(self._dtype)
        key, value = self._key_value(inputs).view(len(x), 2, heads, -1).unbind(1)
        if first_only:
            x, inputs = x[layout.starts], inputs[layout.starts]
        query = self._query(inputs).view(len(x), heads, -1)
        x = self._attention_norm(self._attended.plus(attend(query, key, value, layout), x))
        inputs = x.to(self._dtype)
        wide = self._wide.gelu(inputs) if self._activation is None else self._activation(self._wide(inputs))
        return tensor(self._norm(self._narrow.plus(wide, x)))


class ModernBertEncoder:
    """ModernBERT: norms before each block, rotary positions, gated layers, most of them with a window."""

    def __init__(self, backbone: Any, placement: Placement) -> None:
        config = backbone.config
        self._placement = placement
        self._heads = config.num_attention_heads
        self.max_tokens = config.max_position_embeddings
        self._words = placement.weight(backbone.embeddings.tok_embeddings.weight)
        self._norm = placement.norm(backbone.embeddings.norm)
        self._rotary = backbone.rotary_emb.to(placement.device)
        self._layer_types = list(config.layer_types)
        self._layers = [
            _ModernBertLayer(layer, placement, None if kind == "full_attention" else config.sliding_window)
            for layer, kind in zip(backbone.layers, self._layer_types, strict=True)
        ]
        self._final_norm = placement.norm(backbone.final_norm)

    def hidden(self, pack: Pack, *, first_only: bool = False) -> torch.Tensor:
        """See `PackedEncoder.hidden`."""
        import torch

        device, layout = self._placement.device, self._placement.layout(pack)
        ids, positions = (torch.from_numpy(x).to(device) for x in (pack.ids, pack.positions))
        x = self._norm(self._words[ids].float())
        rotations = {
            kind: [part[0, :, None] for part in self._rotary(x, positions[None], kind)]
            for kind in set(self._layer_types)
        }
        spare = first_only and self._layers[-1].window is None  # the last layer need not compute the others
        for number, (layer, kind) in enumerate(zip(self._layers, self._layer_types, strict=True)):
            last = number == len(self._layers) - 1
            x = layer(x, self._heads, rotations[kind], layout, first_only=last and spare)
        if first_only and not spare:
            x = x[layout.starts]
        return tensor(self._final_norm(x))


class _ModernBertLayer:
    def __init__(self, layer: Any, placement: Placement, window: int | None) -> None:
        self.window = window
        self._dtype = placement.dtype
        self._attention_norm = placement.norm(layer.attn_norm)
        self._query_key_value = placement.linear(layer.attn.Wqkv)
        self._attended = placement.linear(layer.attn.Wo)
        self._norm = placement.norm(layer.mlp_norm)
        self._wide, self._activation = placement.linear(layer.mlp.Wi), layer.mlp.act
        self._narrow = placement.linear(layer.mlp.Wo)

    def __call__(
        self, x: torch.Tensor, heads: int, rotation: list[torch.Tensor], layout: Layout, *, first_only: bool
    ) -> torch.Tensor:
        """New states of all tokens, or of the first of each sequence."""
        states = self._query_key_value(self._attention_norm(x).to(self._dtype)).view(len(x), 3, heads, -1)
        query, key = (_rotate(states[:, i], *rotation) for i in (0, 1))
        if first_only:
            query, x = query[layout.starts], x[layout.starts]
        x = self._attended.plus(attend(query, key, states[:, 2], layout, self.window), x)
        wide, gate = self._wide(self._norm(x).to(self._dtype)).chunk(2, dim=-1)
        return self._narrow.plus(self._activation(wide) * gate, x)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding (Su et al., 2021) of (tokens, heads, size), in float32."""
    import torch

    wide = x.float()
    left, right = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)


def _onednn_packs(dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch and this processor have the operator that `Linear` wants."""
    import torch

    try:
        x = torch.zeros(1, 16, dtype=dtype)
        Linear(torch.zeros(16, 16, dtype=dtype), None, packed=True).plus(x, x)
    except (AttributeError, RuntimeError):  # NotImplementedError is a RuntimeError
        return False
    return True


def tensor(x: Any) -> torch.Tensor:
    """Untyped calls of PyTorch return tensors."""
    tensor: torch.Tensor = x
    return tensor
