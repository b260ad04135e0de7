"""How published chat models write turns: facts of llama.cpp, LLaMA-Factory and ms-swift, in templates of our own."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Turns:
    """The text of a prompt, in which {} is the text of a message."""

    begin: str
    system: str  # if it is empty, the message stands before that of the first question
    question: str
    answer: str
    opening: str  # of the next answer

    @property
    def end(self) -> str:
        """What ends an answer: the text after it, or the mark of the next question."""
        return self.answer.partition("{}")[2].strip() or self.question.partition("{}")[0]

    def template(self) -> str:
        """Returns a chat template that writes these turns."""
        turns = {"system": self.system, "user": self.question, "assistant": self.answer}
        return (
            f"{{%- set turns = {json.dumps(turns)} -%}}{{{{- {json.dumps(self.begin)} -}}}}"
            "{%- set ns = namespace(before='') -%}{%- for m in messages -%}"
            "{%- if not turns[m.role] -%}{%- set ns.before = m.content ~ '\n\n' -%}{%- else -%}"
            "{{- turns[m.role].replace('{}', ns.before ~ m.content) -}}{%- set ns.before = '' -%}{%- endif -%}"
            f"{{%- endfor -%}}{{%- if add_generation_prompt -%}}{{{{- {json.dumps(self.opening)} -}}}}{{%- endif -%}}"
        )


def _named(begin: str, before: str, after: str, end: str) -> Turns:
    """Turns that begin with their role between two marks, and end with another one."""
    system, question, answer = (f"{before}{role}{after}{{}}{end}" for role in ("system", "user", "assistant"))
    return Turns(begin, system, question, answer, f"{before}assistant{after}")


TURNS = {
    "chatml": _named("", "<|im_start|>", "\n", "<|im_end|>\n"),
    "llama3": _named("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
    "llada": _named("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
    "granite": _named("", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>\n"),
    "zephyr": _named("", "<|", "|>\n", "<|endoftext|>\n"),
    "exaone-moe": _named("", "<|", "|>\n", "<|endofturn|>\n"),
    "mistral": Turns("<s>", "", "[INST] {}[/INST]", " {}</s>", ""),
    "mistral-small": Turns("<s>", "[SYSTEM_PROMPT]{}[/SYSTEM_PROMPT]", "[INST]{}[/INST]", "{}</s>", ""),
    "gemma": Turns(
        *("<bos>", "", "<start_of_turn>user\n{}<end_of_turn>\n", "<start_of_turn>model\n{}<end_of_turn>\n"),
        "<start_of_turn>model\n",
    ),
    "deepseek": Turns(
        *("<｜begin▁of▁sentence｜>", "{}\n\n", "User: {}\n\n", "Assistant: {}<｜end▁of▁sentence｜>", "Assistant:"),
    ),
    "dots1": Turns(
        *("", "<|system|>{}<|endofsystem|>", "<|userprompt|>{}<|endofuserprompt|>", "<|response|>{}<|endofresponse|>"),
        "<|response|>",
    ),
    "dots": Turns("", "{}", "<|user|>{}<|endofuser|>", "<|assistant|>{}<|endofassistant|>", "<|assistant|>"),
    "ling": Turns(
        *("", "<role>SYSTEM</role>{}<|role_end|>", "<role>HUMAN</role>{}<|role_end|>"),
        *("<role>ASSISTANT</role>{}<|role_end|>", "<role>ASSISTANT</role>"),
    ),
    "glm-5": Turns(
        *(
            "[gMASK]<sop><|system|>Reasoning Effort: Max",
            "<|system|>{}",
            "<|user|>{}",
            "<|assistant|><think></think>{}",
        ),
        "<|assistant|><think>",
    ),
    "exaone": Turns(
        *("", "[|system|]{}[|endofturn|]\n", "[|user|]{}\n", "[|assistant|]{}[|endofturn|]\n", "[|assistant|]"),
    ),
    "baichuan": Turns("", "{}", "<reserved_106>{}", "<reserved_107>{}", "<reserved_107>"),
    "ernie": Turns(
        *("<|begin_of_sentence|>", "{}\n", "User: {}\n", "Assistant: {}<|end_of_sentence|>", "Assistant: "),
    ),
    "hunyuan-moe": Turns("", "<|startoftext|>{}<|extra_4|>", "<|startoftext|>{}<|extra_0|>", "{}<|eos|>", ""),
    "hunyuan": Turns(
        *("<｜hy_begin▁of▁sentence｜>", "{}<｜hy_place▁holder▁no▁3｜>", "<｜hy_User｜>{}"),
        *("<｜hy_Assistant｜>{}<｜hy_place▁holder▁no▁2｜>", "<｜hy_Assistant｜>"),
    ),
    "hunyuan-vl": Turns(
        *("<｜hy_begin▁of▁sentence｜>", "{}<｜hy_place▁holder▁no▁3｜>", "{}<｜hy_User｜>", "{}<｜hy_Assistant｜>", ""),
    ),
    "grok-2": Turns(
        *("", "System: {}<|separator|>\n\n", "Human: {}<|separator|>\n\n", "Assistant: {}<|separator|>\n\n"),
        "Assistant:",
    ),
    "pangu": Turns(
        *("", "[unused9]系统：{}[unused10]", "[unused9]用户：{}[unused10]", "[unused9]助手：{}[unused10]"),
        "[unused9]助手：",
    ),
}
