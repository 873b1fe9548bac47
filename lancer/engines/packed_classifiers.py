"""Sequence classifiers of transformers on packs: an encoder, and the model's own head over what it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lancer.engines.packed_encoders import PackedEncoder, Placement, packed_encoder, tensor

if TYPE_CHECKING:
    import torch

    from lancer.engines.pair_packing import Pack


class PackedClassifier(Protocol):
    """A sequence classifier over packs."""

    @property
    def max_tokens(self) -> int:
        """The longest input that the model has positions for."""
        ...

    def logits(self, pack: Pack) -> torch.Tensor:
        """float32, shape (sequences, labels), on the device."""
        ...


def packed_classifier(model: Any, placement: Placement) -> PackedClassifier | None:
    """The model of transformers as a `PackedClassifier`; None when its type is not one of `packed_encoders.TYPES`."""
    encoder = packed_encoder(model.base_model, placement)
    if encoder is None:
        return None
    head = ModernBertClassifier if model.config.model_type == "modernbert" else BertClassifier
    return head(model, encoder, placement)


class BertClassifier:
    """BERT and XLM-R read the first token. Heads see one row per pair: they stay in float32."""

    def __init__(self, model: Any, encoder: PackedEncoder, placement: Placement) -> None:
        self._encoder, self.max_tokens = encoder, encoder.max_tokens
        pooler = model.base_model.pooler
        self._pooler = None if pooler is None else pooler.to(placement.device)
        self._classifier = model.classifier.to(placement.device)

    def logits(self, pack: Pack) -> torch.Tensor:
        """See `PackedClassifier.logits`."""
        x = self._encoder.hidden(pack, first_only=True)[:, None]
        return tensor(self._classifier(x if self._pooler is None else self._pooler(x)))


class ModernBertClassifier:
    """ModernBERT reads the first token or the mean of all."""

    def __init__(self, model: Any, encoder: PackedEncoder, placement: Placement) -> None:
        self._encoder, self.max_tokens = encoder, encoder.max_tokens
        self._mean = model.config.classifier_pooling == "mean"
        self._head, self._classifier = model.head.to(placement.device), model.classifier.to(placement.device)

    def logits(self, pack: Pack) -> torch.Tensor:
        """See `PackedClassifier.logits`."""
        import torch

        x = self._encoder.hidden(pack, first_only=not self._mean)
        if self._mean:
            x = torch.segment_reduce(x, "mean", lengths=torch.from_numpy(pack.lengths).to(x.device), axis=0)
        return tensor(self._classifier(self._head(x)))
