"""Built-in chat templates by name, for files that have none or refer to one. Data only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BuiltIn:
    """A template, and the token that identifies the vocabularies it was made for."""

    source: str
    mark: str | None = None


# For models without a system role: the system text comes before the first user message.
_SYSTEM_FIRST = """\
{%- set ns = namespace(system='') -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{%- set ns.system = m.content + '\\n\\n' -%}
"""

# A turn ends with "\n\n", so messages must not contain it.
_RWKV_TURNS = """\
{%- set names = {'system': 'System', 'user': 'User', 'tool': 'User', 'assistant': 'Assistant'} -%}
{%- for m in messages -%}
{%- set text = (m.content or '').replace('\\r\\n', '\\n') -%}
{%- if m.role == 'assistant' -%}{%- set text = text.split('</think>')[-1] -%}{%- endif -%}
{{- names[m.role] + ': ' + text.split('\\n') | select | join('\\n') | trim + '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}
"""

# RWKV-7 G1, as published on 18 July 2026. RWKV World models were not trained with <think> blocks, so these would spoil
# their answers. The last marks lack their ">": the model writes it together with the line ends after it.
_RWKV_G1 = """\
{%- set names = {'system': 'System', 'user': 'User', 'tool': 'User', 'assistant': 'Assistant'} -%}
{%- set thinks = enable_thinking is defined and enable_thinking -%}
{%- set lengths = {'low': ' (think a bit)', 'medium': ' (think)', 'high': ' (think a lot)'} -%}
{%- set ns = namespace(system='', last=-1, text='') -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if tools -%}
{%- set ns.system = 'Tools:\\n[\\n' -%}
{%- for tool in tools -%}
{%- set f = tool.function if tool.function is defined else tool -%}
{%- set arguments = (f.parameters or {}).properties or {} -%}
{%- set given = {'name': f.name, 'description': f.description or '', 'arguments': arguments} -%}
{%- set ns.system = ns.system + (given | tojson(separators=(',', ':'))) + (',\\n' if not loop.last else '\\n') -%}
{%- endfor -%}
{%- set ns.system = ns.system + ']\\nReturn only a JSON function call.' -%}
{%- if messages[0].role != 'system' -%}{{- 'System: ' + ns.system + '\\n\\n' -}}{%- endif -%}
{%- endif -%}
{%- for m in messages -%}
{%- set ns.text = (m.content or '').replace('\\r\\n', '\\n') -%}
{%- if m.role == 'assistant' -%}
{%- set ns.text = ns.text.split('</think>')[-1] -%}
{%- for call in m.tool_calls or [] -%}
{%- set made = {'name': call.function.name, 'arguments': call.function.arguments} -%}
{%- set ns.text = ns.text + '\\n```json\\n' + (made | tojson(separators=(',', ':'))) + '\\n```' -%}
{%- endfor -%}
{%- elif m.role == 'tool' -%}{%- set ns.text = 'Function output:\\n' + ns.text -%}
{%- elif m.role == 'system' and loop.first -%}{%- set ns.text = ns.text + '\\n' + ns.system -%}
{%- elif loop.index0 == ns.last and thinks and add_generation_prompt -%}
{%- set ns.text = ns.text.rstrip() + lengths.get(reasoning_effort | default(''), '') -%}
{%- endif -%}
{{- names[m.role] + ': ' + ns.text.split('\\n') | select | join('\\n') | trim + '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- 'Assistant:' -}}
{%- if enable_thinking is defined -%}{{- ' <think' if enable_thinking else ' <think>\\n</think' -}}{%- endif -%}
{%- endif -%}
"""

_CHATML = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

_LLAMA3 = """\
{{- bos_token -}}
{%- for m in messages -%}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + (m.content or '') | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""

_LLAMA2 = """\
{%- set ns = namespace(system='') -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{%- set ns.system = '<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n' -%}
{%- elif m.role == 'assistant' -%}{{- ' ' + (m.content or '') | trim + ' ' + eos_token -}}
{%- else -%}{{- bos_token + '[INST] ' + ns.system + m.content | trim + ' [/INST]' -}}{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}
"""

_MISTRAL = (
    "{{- bos_token -}}\n"
    + _SYSTEM_FIRST
    + """\
{%- elif m.role == 'assistant' -%}{{- ' ' + (m.content or '') | trim + eos_token -}}
{%- else -%}{{- '[INST] ' + ns.system + m.content + ' [/INST]' -}}{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}
"""
)

_ZEPHYR = """\
{%- for m in messages -%}
{{- '<|' + m.role + '|>\\n' + (m.content or '') + eos_token + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""

_PHI3 = """\
{%- for m in messages -%}
{{- '<|' + m.role + '|>\\n' + (m.content or '') + '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""

_GEMMA = (
    "{{- bos_token -}}\n"
    + _SYSTEM_FIRST
    + """\
{%- elif m.role == 'assistant' -%}{{- '<start_of_turn>model\\n' + (m.content or '') | trim + '<end_of_turn>\\n' -}}
{%- else -%}
{{- '<start_of_turn>user\\n' + ns.system + m.content | trim + '<end_of_turn>\\n' -}}{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""
)

_GEMMA4 = """\
{{- bos_token -}}
{%- set think = enable_thinking is defined and enable_thinking -%}
{%- if think and messages[0].role != 'system' -%}{{- '<|turn>system\\n<|think|><turn|>\\n' -}}{%- endif -%}
{%- for m in messages -%}
{%- set text = (m.content or '').split('<channel|>')[-1] | trim -%}
{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' -}}
{{- '<|think|>\\n' if think and m.role == 'system' and loop.first -}}
{{- text + '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|turn>model\\n' -}}{%- endif -%}
"""

_LLAMA4 = """\
{{- bos_token -}}
{%- for m in messages -%}
{{- '<|header_start|>' + m.role + '<|header_end|>\\n\\n' + (m.content or '') | trim + '<|eot|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|header_start|>assistant<|header_end|>\\n\\n' -}}{%- endif -%}
"""

# The system text goes into a developer message; the system message has OpenAI's wording.
_HARMONY = """\
{{- '<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\\n\\nReasoning: ' -}}
{{- reasoning_effort | default('medium') -}}
{{- '\\n\\n# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>' -}}
{%- for m in messages -%}
{%- if m.role == 'system' -%}
{{- '<|start|>developer<|message|># Instructions\\n\\n' + m.content + '<|end|>' -}}
{%- elif m.role == 'assistant' -%}
{{- '<|start|>assistant<|channel|>final<|message|>' + (m.content or '') -}}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' -}}
{%- else -%}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""

# Turns have no end mark: the mark of the next turn ends an answer.
_GLM = """\
{{- '[gMASK]<sop>' -}}
{%- set names = {'system': 'system', 'user': 'user', 'assistant': 'assistant', 'tool': 'observation'} -%}
{%- for m in messages -%}
{%- set text = m.content or '' -%}
{%- if m.role == 'assistant' -%}{%- set text = '</think>' + text.split('</think>')[-1] | trim -%}{%- endif -%}
{{- '<|' + names[m.role] + '|>' + text -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' + ('</think>' if enable_thinking is defined and not enable_thinking else '<think>') -}}
{%- endif -%}
"""

_GRANITE = """\
{%- for m in messages -%}
{{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + (m.content or '') + '<|end_of_text|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_of_role|>assistant<|end_of_role|>' -}}{%- endif -%}
"""

_DEEPSEEK = """\
{{- bos_token -}}
{%- for m in messages -%}
{%- set text = m.content or '' -%}
{%- if m.role == 'assistant' -%}{{- '<｜Assistant｜>' + text.split('</think>')[-1] | trim + eos_token -}}
{%- elif m.role == 'system' -%}{{- text -}}
{%- else -%}{{- '<｜User｜>' + text -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<｜Assistant｜>' -}}{%- endif -%}
"""

_PHI4 = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '<|im_sep|>' + (m.content or '') + '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant<|im_sep|>' -}}{%- endif -%}
"""

_MISTRAL3 = """\
{{- bos_token -}}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' -}}
{%- elif m.role == 'assistant' -%}{{- (m.content or '') + eos_token -}}
{%- else -%}{{- '[INST]' + m.content + '[/INST]' -}}
{%- endif -%}
{%- endfor -%}
"""

# Several may fit a vocabulary. The first whose identifying token it contains is used.
BUILT_IN = {
    "rwkv-world": BuiltIn(_RWKV_TURNS),
    "phi4": BuiltIn(_PHI4, "<|im_sep|>"),
    "chatml": BuiltIn(_CHATML, "<|im_start|>"),
    "llama3": BuiltIn(_LLAMA3, "<|start_header_id|>"),
    "llama2": BuiltIn(_LLAMA2),
    "mistral3": BuiltIn(_MISTRAL3, "[SYSTEM_PROMPT]"),
    "mistral": BuiltIn(_MISTRAL, "[INST]"),
    "zephyr": BuiltIn(_ZEPHYR),
    "phi3": BuiltIn(_PHI3),
    "gemma": BuiltIn(_GEMMA, "<start_of_turn>"),
    "gemma4": BuiltIn(_GEMMA4, "<|turn>"),
    "llama4": BuiltIn(_LLAMA4, "<|header_start|>"),
    "harmony": BuiltIn(_HARMONY, "<|channel|>"),
    "granite": BuiltIn(_GRANITE, "<|start_of_role|>"),
    "glm": BuiltIn(_GLM, "[gMASK]"),
    "deepseek": BuiltIn(_DEEPSEEK, "<｜User｜>"),
    "rwkv-g1": BuiltIn(_RWKV_G1),
}
