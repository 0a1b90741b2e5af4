"""Reader of torchao's 8-bit integers: Int8Tensor and IntxUnpackedToInt8Tensor."""

import torch
from torch import Tensor

from foreword.model.quantized.coded import Coded
from foreword.model.quantized.layer import Format, Layer, affine, signed


def read(layer: Layer) -> Coded | Tensor:
    """Return a matrix, of 4 bits where its numbers need no more; torchao's packed forms
    are refused.
    """
    weight = layer.take("._weight_qdata", torch.int8, None, None)
    if "._weight_act_pre_scale" in layer.tensors:
        raise layer.error(
            "._weight_act_pre_scale", "scales activations, which is not supported"
        )
    scale = layer.take("._weight_scale", None, len(weight), None)
    zeros = None
    if "._weight_zero_point" in layer.tensors:
        zeros = layer.take("._weight_zero_point", None, *scale.shape).to(torch.int32)
    bits = 4 if int(weight.min()) >= -8 and int(weight.max()) < 8 else 8
    return affine(layer, signed(weight, bits), bits, scale, zeros)


FORMAT = Format(
    (
        "._weight_qdata",
        "._weight_scale",
        "._weight_zero_point",
        "._weight_scale_and_zero",
        "._weight_per_tensor_scale",
        "._weight_act_pre_scale",
        "._weight_act_quant_scale",
        "._weight_act_quant_zero_point",
    ),
    read,
)
