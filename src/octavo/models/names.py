"""Canonical weight names: what programs ask a checkpoint for, whatever the file calls it."""

EMBED = "embed"
FINAL_NORM = "final_norm"
HEAD = "head"

# Of a layer, after "layers.{i}."
ATTN_NORM = "attn_norm"
Q, K, V, O = "q", "k", "v", "o"  # noqa: E741
Q_BIAS, K_BIAS, V_BIAS, O_BIAS = "q_bias", "k_bias", "v_bias", "o_bias"
Q_NORM, K_NORM = "q_norm", "k_norm"
POST_ATTN_NORM, POST_MLP_NORM = "post_attn_norm", "post_mlp_norm"
MLP_NORM = "mlp_norm"
GATE, UP, DOWN = "gate", "up", "down"
GATE_BIAS, UP_BIAS, DOWN_BIAS = "gate_bias", "up_bias", "down_bias"


def layer(index: int, part: str) -> str:
    """The name of one layer's weight."""
    return f"layers.{index}.{part}"
