"""GLM-5.3-Flash by its publisher's code in transformers, with weights in float64. llama.cpp does not know this model.

pip install torch transformers
"""

from typing import Any

import numpy as np

NAMES = {  # of a layer in transformers
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj",
    "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "indexer.attn_q_b": "self_attn.indexer.wq_b", "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.k_norm": "self_attn.indexer.k_norm", "indexer.proj": "self_attn.indexer.weights_proj",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "ssm_f_a": "self_attn.forget_gate.f_a_proj", "ssm_f_b": "self_attn.forget_gate.f_b_proj",
    "ssm_g_a": "self_attn.g_a_proj", "ssm_g_b": "self_attn.g_b_proj", "ssm_beta": "self_attn.b_proj",
    "ssm_norm": "self_attn.o_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj",
}  # fmt: skip
BARE = {  # parameters that are no modules
    "indexer_compressor_ape.weight": "self_attn.indexer.index_kpool_compress_ape",
    "indexer_compressor_gate.weight": "self_attn.indexer.index_kpool_compress_gate",
    "ssm_dt.bias": "self_attn.forget_gate.dt_bias", "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    **{f"hc_{at}_{name}.weight": f"{at}_hc.{name}" for at in ("attn", "ffn") for name in ("fn", "base", "scale")},
}  # fmt: skip


class Forward:
    """The forward pass of a model given as arrays in float32, by name, and the keys of its file."""

    def __init__(self, tensors: dict[str, np.ndarray], keys: dict[str, Any]) -> None:
        self.tensors, self.keys = tensors, keys

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the logits of every position."""
        import torch
        from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextModel

        torch.set_default_dtype(torch.float64)
        model = Glm5NextTextModel(self.config())
        found = {name: torch.from_numpy(np.ascontiguousarray(one)).double() for name, one in self.state().items()}
        model.load_state_dict(found)
        model = model.double().eval()
        with torch.no_grad():
            hidden = model(torch.from_numpy(tokens)[None], use_cache=False).last_hidden_state[0].numpy()
        return hidden @ self.tensors["output.weight"].astype(np.float64).T

    def config(self) -> Any:
        """Returns transformers' configuration."""
        from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig

        k, layers = self.keys, self.keys["block_count"]
        dense = k["leading_dense_block_count"]
        return Glm5NextTextConfig(
            num_hidden_layers=layers, hidden_size=k["embedding_length"], intermediate_size=k["feed_forward_length"],
            num_attention_heads=k["attention.head_count"], num_key_value_heads=k["attention.head_count"],
            vocab_size=len(self.tensors["token_embd.weight"]), rms_norm_eps=k["attention.layer_norm_rms_epsilon"],
            q_lora_rank=k["attention.q_lora_rank"], kv_lora_rank=k["attention.kv_lora_rank"],
            qk_nope_head_dim=k["attention.key_length_mla"], qk_rope_head_dim=0,
            v_head_dim=k["attention.value_length_mla"], moe_intermediate_size=k["expert_feed_forward_length"],
            num_experts_per_tok=k["expert_used_count"], n_routed_experts=k["expert_count"], n_shared_experts=1,
            routed_scaling_factor=k["expert_weights_scale"], norm_topk_prob=True, n_group=1, topk_group=1,
            swiglu_limit=k["swiglu_clamp_exp"][0], linear_head_dim=k["kda.head_dim"],
            linear_num_heads=k["attention.head_count"], linear_conv_kernel_dim=k["ssm.conv_kernel"],
            linear_lower_bound=k["kda.gate_lower_bound"], hc_mult=k["hyper_connection.count"],
            hc_eps=k["hyper_connection.epsilon"], hc_sinkhorn_iters=k["hyper_connection.sinkhorn_iterations"],
            index_topk=k["attention.indexer.top_k"], index_head_dim=k["attention.indexer.key_length"],
            index_n_heads=k["attention.indexer.head_count"], index_kpool=k["attention.indexer.kpool"],
            indexer_types=["full"] * layers, mlp_layer_types=["dense"] * dense + ["sparse"] * (layers - dense),
            layer_types=["indexed_attention" if kv else "linear_attention" for kv in k["attention.head_count_kv"]],
            pad_token_id=None, attn_implementation="eager", experts_implementation="eager",
        )  # fmt: skip

    def state(self) -> dict[str, np.ndarray]:
        """Returns the weights by transformers' names."""
        found = {
            "embed_tokens.weight": self.tensors["token_embd.weight"],
            "norm.weight": self.tensors["output_norm.weight"],
        }
        for i in range(self.keys["block_count"]):
            own = {n.removeprefix(f"blk.{i}."): one for n, one in self.tensors.items() if n.startswith(f"blk.{i}.")}
            for name, one in own.items():
                module, _, kind = name.rpartition(".")
                if name in BARE:
                    found[f"layers.{i}.{BARE[name]}"] = one
                elif module in NAMES:
                    found[f"layers.{i}.{NAMES[module]}.{kind}"] = one
            found |= {f"layers.{i}.{name}": one for name, one in self.made(own).items()}
        return found

    def made(self, own: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the weights of a layer that a file has in other forms."""
        made = {}
        if "ssm_a" in own:
            made["self_attn.forget_gate.A_log"] = np.log(-own["ssm_a"].reshape(-1))
            taps = [own[f"ssm_conv1d_{name}.weight"].reshape(-1, 1, self.keys["ssm.conv_kernel"]) for name in "qkv"]
            made["self_attn.conv1d.weight"] = np.concatenate(taps)
        else:
            both = [own["attn_k_b.weight"].transpose(0, 2, 1), own["attn_v_b.weight"]]
            made["self_attn.kv_b_proj.weight"] = np.concatenate(both, axis=1).reshape(-1, both[0].shape[2])
        if "ffn_gate_exps.weight" in own:
            both = [own[f"ffn_{name}_exps.weight"] for name in ("gate", "up")]
            made["mlp.experts.gate_up_proj"] = np.concatenate(both, axis=1)
        return made
