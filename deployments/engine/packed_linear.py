"""Linear layers with their weights rearranged for the CPU kernels, in place of torch's."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel


class PackedLinear(nn.Module):
    """y = x W^T + b with packed weights; the output head gives float32, as the sampler wants it.

    Holds weights of the layer's own type, or int8 with one float32 scale for each output.
    """

    scales: torch.Tensor | None

    def __init__(self, layer: nn.Linear, float_output: bool, int8: bool) -> None:
        super().__init__()
        self.out_features = layer.out_features
        self.float_output = float_output
        weight, scales = layer.weight.detach(), None
        dtype = weight.dtype
        if int8:
            weight, scales = quantize_rows(weight)
        self.register_buffer("packed", torch.ops.servegraph.pack(weight, dtype))
        self.register_buffer("scales", scales)
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.ops.servegraph.linear(
            x, self.packed, self.scales, self.bias, self.out_features, self.float_output
        )
        return output


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric int8 [N, K] and float32 scales [N], so that weight is about int8 * scale."""
    weight = weight.float()
    scales = (weight.abs().amax(dim=1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    return (weight / scales.unsqueeze(1)).round().to(torch.int8), scales


def pack_linears(model: PreTrainedModel, *, int8: bool) -> None:
    """Replace the model's linear layers; weights that the head shares stay with the embedding, too."""
    head = model.get_output_embeddings()
    for name, layer in list(model.named_modules()):
        if type(layer) is nn.Linear and layer.in_features % 2 == 0:
            model.set_submodule(name, PackedLinear(layer, float_output=layer is head, int8=int8))
