"""How many bytes of weights a decoded token must read: what memory bandwidth limits."""

from __future__ import annotations

from typing import Any

EXPERTS_A_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k")


def weight_bytes(model: Any, config: dict[str, Any]) -> int:
    """Bytes of weights in memory that one decode forward of one row reads.

    An input embedding counts only where it is the output head too: otherwise a token reads one line
    of it. Of experts, only as many count as a token is sent to.

    Parameters
    ----------
    model
        An mlx-lm model with its weights as they are decoded with.
    config
        Its config.json.
    """
    from mlx.nn.layers.embedding import Embedding
    from mlx.nn.layers.quantized import QuantizedEmbedding
    from mlx.utils import tree_flatten
    from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

    owners = dict(model.named_modules())
    total = embedded = vocabulary = 0
    heights = set[int]()
    arrays: list[tuple[str, Any]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    for path, array in arrays:
        owner = owners[path.rpartition(".")[0]]
        if isinstance(owner, Embedding | QuantizedEmbedding):
            embedded += array.nbytes
            vocabulary = max(vocabulary, array.shape[0])
        elif isinstance(owner, SwitchLinear | QuantizedSwitchLinear):
            experts = array.shape[0]
            total += array.nbytes * _experts_a_token(config, experts) // experts
        else:
            total += array.nbytes
            heights.add(array.shape[0])
    has_head = vocabulary in heights
    return total if has_head else total + embedded


def _experts_a_token(config: dict[str, Any], experts: int) -> int:
    for scope in (config, config.get("text_config") or {}):
        for key in EXPERTS_A_TOKEN:
            if isinstance(scope.get(key), int):
                return min(experts, int(scope[key]))
    return experts
