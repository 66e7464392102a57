"""Byte-level BPE tokenizers with their own merges, and chat templates equivalent to those of the models."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo.rollout.multi_turn.environment import Tool

SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = [
    "[user]\nwho is it?\n\n[assistant]\nassistant user analysis final commentary to=functions.search json",
    'the answer is "42"\n\n\nand {"query": "rain in May", "k": 3}\n\n',
    "hello hello world world worldly hell held helmet\n\n\n\n",
] * 20

HARMONY = """\
{%- set head = messages[0].role in ("system", "developer") -%}
{{- "<|start|>system<|message|>You are a model.\\n\\nReasoning: " + (reasoning_effort or "medium") -}}
{%- for name in builtin_tools or [] -%}{{- "\\n\\n## " + name -}}{%- endfor -%}
{{- "\\n\\n# Valid channels: analysis, commentary, final.<|end|>" -}}
{%- if head or tools -%}
{{- "<|start|>developer<|message|>" -}}
{%- if head -%}{{- "# Instructions\\n\\n" + messages[0].content + "\\n\\n" -}}{%- endif -%}
{%- for tool in tools or [] -%}
{{- "// " + tool.function.description + "\\ntype " + tool.function.name + "\\n\\n" -}}
{%- endfor -%}
{{- "<|end|>" -}}
{%- endif -%}
{%- set call = namespace(name=none) -%}
{%- for message in messages[(1 if head else 0):] -%}
{%- if message.role == "assistant" -%}
{%- set rest = messages[(1 if head else 0):][loop.index:] -%}
{%- set later = rest | selectattr("role", "equalto", "assistant") | rejectattr("tool_calls", "defined") | list -%}
{%- if message.tool_calls is defined -%}
{%- if message.thinking and not later -%}
{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" -}}
{%- endif -%}
{%- set one = message.tool_calls[0].function -%}
{{- "<|start|>assistant to=functions." + one.name + "<|channel|>commentary json<|message|>" -}}
{{- one.arguments | tojson + "<|call|>" -}}
{%- set call.name = one.name -%}
{%- else -%}
{{- "<|start|>assistant<|channel|>final<|message|>" + message.content -}}
{{- "<|return|>" if loop.last and not add_generation_prompt else "<|end|>" -}}
{%- endif -%}
{%- elif message.role == "tool" -%}
{{- "<|start|>functions." + call.name + " to=assistant<|channel|>commentary<|message|>" -}}
{{- message.content | tojson + "<|end|>" -}}
{%- else -%}
{{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" -}}
{%- endif -%}
{%- endfor -%}
{{- "<|start|>assistant" if add_generation_prompt -}}
"""

QWEN3 = """\
{%- if tools -%}
{{- "<|im_start|>system\\n" -}}
{%- if messages[0].role == "system" -%}{{- messages[0].content + "\\n\\n" -}}{%- endif -%}
{{- "# Tools\\n<tools>" -}}
{%- for tool in tools -%}{{- "\\n" -}}{{- tool | tojson -}}{%- endfor -%}
{{- "\\n</tools><|im_end|>\\n" -}}
{%- elif messages[0].role == "system" -%}
{{- "<|im_start|>system\\n" + messages[0].content + "<|im_end|>\\n" -}}
{%- endif -%}
{%- set last = namespace(question=messages | length - 1) -%}
{%- for message in messages -%}
{%- if message.role == "user" -%}{%- set last.question = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == "user" or (message.role == "system" and not loop.first) -%}
{{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" -}}
{%- elif message.role == "assistant" -%}
{{- "<|im_start|>assistant\\n" -}}
{%- set thinking = message.reasoning_content or "" -%}
{%- if loop.index0 > last.question and (loop.last or thinking) -%}
{{- "<think>\\n" + thinking.strip("\\n") + "\\n</think>\\n\\n" + message.content.lstrip("\\n") -}}
{%- else -%}
{{- message.content -}}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- if not loop.first or message.content -%}{{- "\\n" -}}{%- endif -%}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments + "}\\n</tool_call>" -}}
{%- endfor -%}
{{- "<|im_end|>\\n" -}}
{%- elif message.role == "tool" -%}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" -%}{{- "<|im_start|>user" -}}{%- endif -%}
{{- "\\n<tool_response>\\n" + message.content + "\\n</tool_response>" -}}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" -%}{{- "<|im_end|>\\n" -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{{- "<|im_start|>assistant\\n" if add_generation_prompt -}}
"""

PLAIN = """\
{%- if tools -%}{{- "[tools]\\n" -}}
{%- for tool in tools -%}{{- tool.function | tojson + "\\n" -}}{%- endfor -%}{{- "\\n" -}}
{%- endif -%}
{%- for message in messages -%}
{{- "[" + message.role + "]\\n" + message.content -}}
{%- for call in message.tool_calls or [] -%}
{%- if not loop.first or message.content -%}{{- "\\n" -}}{%- endif -%}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments + "}\\n</tool_call>" -}}
{%- endfor -%}
{{- "<|endoftext|>\\n\\n" if message.role == "assistant" else "\\n\\n" -}}
{%- endfor -%}
{{- "[assistant]\\n" if add_generation_prompt -}}
"""

HARMONY_TOKENS = [f"<|{n}|>" for n in ("start", "end", "message", "channel", "constrain", "call", "return")]
QWEN_TOKENS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
DIALECTS = {
    "harmony": (HARMONY, HARMONY_TOKENS, "<|return|>"),
    "qwen3": (QWEN3, [*QWEN_TOKENS, "<tool_response>", "</tool_response>"], "<|im_end|>"),
    "plain": (PLAIN, [], "<|endoftext|>"),
}
SEARCH = Tool("search", "look it up", {"type": "object", "properties": {"query": {"type": "string"}}}).as_openai()


def build(dialect: str) -> PreTrainedTokenizerFast:
    template, special, end = DIALECTS[dialect]
    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet))
    # As in Qwen3, what marks thinking and calls is an added token that is not special.
    backend.add_tokens([AddedToken(text, normalized=False) for text in special if "|" not in text])
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in special if "|" in text])
    backend.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end, pad_token="<|endoftext|>")
    made.chat_template = template
    return made


TOKENIZERS = {dialect: build(dialect) for dialect in DIALECTS}
