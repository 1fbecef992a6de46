"""Tiny random models of several kinds, as the mlx-lm folders a user would load."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 260
END_ID = 257
CHAT_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "eos_token_id": END_ID,
    "tie_word_embeddings": False,
}
DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 32,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "partial_rotary_factor": 0.5,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "topk_group": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "sliding": {
        "model_type": "llama",
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 12,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": 10,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16,
    },
    "qwen3_next": {"model_type": "qwen3_next", **DELTA},
    "qwen3_5": {"model_type": "qwen3_5", **{k: v for k, v in DELTA.items() if "exp" not in k}},
    "deepseek_v3": {"model_type": "deepseek_v3", **LATENT},
    "deepseek_v32": {
        "model_type": "deepseek_v32",
        **LATENT,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 8,
    },
    "nemotron_h": {
        "model_type": "nemotron_h",
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "*", "-", "M"],
    },
}


def build(kind: str, seed: int = 0, sharp: float = 3.0) -> Any:
    """A random model; `sharp` scales its weights so that its choices are far from even."""
    config = {**COMMON, **CONFIGS[kind]}
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    flat: Any = tree_flatten(model.parameters())
    weights = [
        (name, array * sharp if array.ndim > 1 and "conv" not in name else array)
        for name, array in flat
    ]
    model.load_weights(weights)
    model.eval()
    mx.eval(model.parameters())
    return model


def tokenizer() -> Tokenizer:
    """One token a byte, then start and end markers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<|start|>", "<|end|>")]
    )
    return made


def write(kind: str, folder: Path, *, chat: bool = True, **changes: Any) -> Path:
    """Write a tiny model as an mlx-lm folder; `changes` go into its config."""
    folder.mkdir(parents=True, exist_ok=True)
    model = build(kind)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    config = {**COMMON, **CONFIGS[kind], **changes}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "clean_up_tokenization_spaces": False,
    }
    if chat:
        settings["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_endless(folder: Path) -> Path:
    """Write a tiny llama with room for long answers, none of which ends by itself."""
    write("llama", folder, max_position_embeddings=100_000)
    file = str(folder / "model.safetensors")
    loaded: Any = mx.load(file)
    weights = dict(loaded)
    # The end token's logit is 0, and some other token's is always above that.
    weights["lm_head.weight"][END_ID] = 0
    mx.save_safetensors(file, weights, {"format": "mlx"})
    return folder
