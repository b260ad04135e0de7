"""The folders that are compared with llama.cpp's converter: each family in its publishers' forms."""

from typing import Any

from tests.convert.hub_folders import INNER, SIZES, WIDTH, Folder, bert, dense, lfm2, mamba2, qwen35
from tests.convert.hub_tokenizers import Tokenizer

TEMPLATE = "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": TEMPLATE}
BEGINS = FAST | {"bos_token": "<|begin|>", "clean_up_tokenization_spaces": False}
SPM: dict[str, Any] = {
    "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>", "normalized": False}, "unk_token": "<unk>",
    "legacy": False,
    "added_tokens_decoder": {
        "0": {"content": "<unk>", "special": True}, "1": {"content": "<s>", "special": True},
        "2": {"content": "</s>", "special": True}, "267": {"content": "<|user|>", "special": False},
        "268": {"content": "<think>", "special": False}, "269": {"content": "<end_of_turn>", "special": True},
    },
}  # fmt: skip
BERT_TOKENS = {
    "tokenizer_class": "BertTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]",
    "unk_token": "[UNK]", "mask_token": "[MASK]", "do_lower_case": True,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CARD = """---
license: apache-2.0
language:
- en
- fr
tags:
- chat
base_model: someone/Tiny-Base-1B
---
# Tiny
"""
QWEN35: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": WIDTH, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "vocab_size": 272, "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 16, "mtp_num_hidden_layers": 1,
    "attn_output_gate": True, "eos_token_id": 260,
    "rope_parameters": {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default",
                        "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}  # fmt: skip
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
BERT = {
    "num_hidden_layers": 2, "hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": 4,
    "max_position_embeddings": 256, "vocab_size": 272, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    "model_type": "bert", "pad_token_id": 0,
}  # fmt: skip
POOLING = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def named(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    """Returns a config.json with the usual sizes. A value of None omits a key."""
    config = SIZES | {"architectures": [architecture], "model_type": model_type} | more
    return {key: value for key, value in config.items() if value is not None}


KINDS: dict[str, Folder] = {
    # Llama 3.2: shards, bfloat16, positions of Llama 3; the head is the embedding.
    "llama3": Folder(
        "Tiny-Llama-3.2-90K-Instruct",
        named("LlamaForCausalLM", "llama", rope_theta=500000.0, rope_scaling=LLAMA3, tie_word_embeddings=True,
              bos_token_id=258, eos_token_id=[260, 261], head_dim=16, torch_dtype="bfloat16"),
        dense(head=False), Tokenizer("llama-bpe", True, BEGINS), kind="BF16", shards=2,
        files={"generation_config.json": {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1, "top_k": 20}},
    ),
    # Llama 2 and its finetunes: SentencePiece, no head_dim, an older form of the rotation, a model card.
    "llama2": Folder(
        "tiny-llama-chat",
        named("LlamaForCausalLM", "llama", rope_scaling={"type": "linear", "factor": 2.0}, num_key_value_heads=None),
        lambda config: dense()(config | {"num_key_value_heads": 4}),
        Tokenizer("spm", config=SPM | {"add_prefix_space": False, "chat_template": TEMPLATE}),
        files={"README.md": CARD},
    ),
    "smollm2": Folder(
        "SmolTiny-Instruct", named("LlamaForCausalLM", "llama", rope_theta=100000),
        dense(), Tokenizer("smollm", config=FAST),
    ),
    "mistral": Folder(
        "Tiny-Mistral-Instruct-v0.3", named("MistralForCausalLM", "mistral", rope_theta=1e6, sliding_window=None),
        dense(), Tokenizer("spm", config=SPM), kind="BF16",
    ),
    "nemo": Folder(
        "Tiny-Nemo", named("MistralForCausalLM", "mistral", rope_theta=1e6, head_dim=32),
        dense(), Tokenizer("tekken", True, BEGINS),
    ),
    "smollm3": Folder(
        "SmolTiny3", named("SmolLM3ForCausalLM", "smollm3", rope_theta=5e6, pad_token_id=261),
        dense(head=False), Tokenizer("smaug-bpe", config=FAST), files={"chat_template.jinja": "not this one"},
    ),
    "qwen2": Folder(
        "Tiny-Qwen2.5",
        named("Qwen2ForCausalLM", "qwen2", rope_theta=1e6,
              rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
        dense(biases=True), Tokenizer("qwen2", config=FAST | {"pad_token": "<|pad|>"}),
    ),
    # The form that newer programs save: rope_parameters, and the template in its own file.
    "qwen3": Folder(
        "Tiny-Qwen3",
        named("Qwen3ForCausalLM", "qwen3", head_dim=32, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
        dense(head=False, norms=True),
        Tokenizer("qwen2", config={key: value for key, value in FAST.items() if key != "chat_template"}),
        files={"chat_template.jinja": TEMPLATE},
    ),
    "qwen3-embedding": Folder(
        "Tiny-Qwen3-Embedding", named("Qwen3ForCausalLM", "qwen3", head_dim=32, rope_theta=1e6),
        lambda config: {n.removeprefix("model."): s for n, s in dense(head=False, norms=True)(config).items()},
        Tokenizer("qwen2", config=FAST),
        files={"modules.json": POOLING, "1_Pooling/config.json": {"pooling_mode_lasttoken": True}},
    ),
    "qwen35": Folder(
        "Tiny-Qwen3.5",
        {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "vision_config": {},
         "text_config": QWEN35 | {"intermediate_size": INNER, "model_type": "qwen3_5_text"}},
        qwen35(), Tokenizer("qwen35", config=FAST), kind="BF16",
    ),
    "qwen35moe": Folder(
        "Tiny-Qwen3.5-A1B",
        {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
         "text_config": QWEN35 | EXPERTS | {"model_type": "qwen3_5_moe_text"}},
        qwen35(experts="fused"), Tokenizer("qwen35", config=FAST), kind="BF16",
    ),
    "qwen35moe-separate": Folder(
        "Tiny-Qwen3.5-experts",
        {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
         "text_config": QWEN35 | EXPERTS | {"model_type": "qwen3_5_moe_text"}},
        qwen35(experts="separate"), Tokenizer("qwen35", config=FAST),
    ),
    "gemma3": Folder(
        "tiny-gemma-3-it",
        named("Gemma3ForCausalLM", "gemma3_text", head_dim=16, sliding_window=32, rope_theta=1000000,
              rope_local_base_freq=10000, sliding_window_pattern=2, query_pre_attn_scalar=16, rms_norm_eps=1e-6),
        dense(head=False, norms=True, more=("pre_feedforward_layernorm", "post_feedforward_layernorm")),
        Tokenizer("spm", config=SPM | {"tokenizer_class": "GemmaTokenizer"}), kind="BF16",
        files={"added_tokens.json": {"<image_soft_token>": 270}},
    ),
    # The larger models have vision, and leave out the defaults of the family.
    "gemma3-sees": Folder(
        "tiny-gemma-3-sees",
        {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 269],
         "vision_config": {"model_type": "siglip_vision_model"},
         "text_config": {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2, "vocab_size": 272,
                         "model_type": "gemma3_text", "sliding_window": 32, "num_attention_heads": 4, "head_dim": 16,
                         "num_key_value_heads": 2, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}},
        lambda config: {f"language_model.{n}": s for n, s in dense(
            head=False, norms=True, more=("pre_feedforward_layernorm", "post_feedforward_layernorm"),
        )(config["text_config"]).items()} | {"vision_tower.vision_model.post_layernorm.weight": (8,),
                                             "multi_modal_projector.mm_soft_emb_norm.weight": (8,)},
        Tokenizer("spm", config=SPM | {"tokenizer_class": "GemmaTokenizer"}),
    ),
    "lfm2": Folder(
        "LFM2-Tiny",
        named("Lfm2ForCausalLM", "lfm2", layer_types=["conv", "full_attention"], conv_L_cache=3, norm_eps=1e-5,
              block_auto_adjust_ff_dim=False, block_ffn_dim_multiplier=1.0, block_multiple_of=32, rope_theta=1e6,
              block_ff_dim=INNER, rms_norm_eps=None, intermediate_size=None),
        lfm2, Tokenizer("llama-bpe", True, BEGINS, pre="lfm2"), kind="BF16",
    ),
    # An older form: it lists the layers with attention, and the inner width is computed: 2/3 of 144, rounded up to 32s.
    "lfm2-older": Folder(
        "LFM2-Tiny-older",
        named("Lfm2ForCausalLM", "lfm2", full_attn_idxs=[1], conv_L_cache=3, norm_eps=1e-5, theta=1e6,
              block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.0, block_multiple_of=32, block_ff_dim=144,
              rms_norm_eps=None, intermediate_size=None),
        lfm2, Tokenizer("llama-bpe", True, BEGINS, pre="lfm2"),
    ),
    "mamba2": Folder(
        "mamba2-tiny-hf",
        {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": WIDTH, "num_hidden_layers": 2,
         "vocab_size": 270, "head_dim": 16, "n_groups": 2, "state_size": 16, "conv_kernel": 4, "expand": 2,
         "layer_norm_epsilon": 1e-5, "eos_token_id": 0, "pad_token_id": 0},
        mamba2, Tokenizer("gpt-2", config=FAST, pre="olmo"),
    ),
    "codestral-mamba": Folder(
        "Tiny-Mamba-Codestral",
        {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": WIDTH, "num_hidden_layers": 2,
         "vocab_size": 272, "head_dim": 16, "n_groups": 2, "state_size": 16, "tie_word_embeddings": False},
        mamba2, Tokenizer("spm", config=SPM), kind="BF16", prefix="model.",
    ),
    "bert": Folder(
        "bge-tiny-en", BERT | {"architectures": ["BertModel"], "id2label": {"0": "LABEL_0"}}, bert(),
        Tokenizer("bert", config=BERT_TOKENS, pre="jina-v2-en"), kind="F32",
        files={"modules.json": POOLING,
               "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}},
    ),
    "minilm": Folder(
        "tiny-MiniLM", BERT | {"architectures": ["BertForMaskedLM"]}, bert(prefix="bert.", weight="gamma", bias="beta"),
        Tokenizer("bert", config=BERT_TOKENS, pre="jina-v2-en"), kind="F32",
        files={"modules.json": POOLING, "1_Pooling/config.json": {"pooling_mode": "mean"}},
    ),
    "cross-encoder": Folder(
        "tiny-cross-encoder",
        BERT | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"},
                "label2id": {"LABEL_0": 0}},
        bert(prefix="bert.", labels=1), Tokenizer("bert", config=BERT_TOKENS, pre="jina-v2-en"), kind="F32",
    ),
}  # fmt: skip
