"""A byte-level BPE tokenizer with its own merges and gpt-oss's special tokens, and the head of its chat template."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo.environments.environment import Tool

SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = [
    "[user]\nwho is it?\n\n[assistant]\nassistant user analysis final commentary to=functions.search json",
    'the answer is "42"\n\n\nand {"query": "rain in May", "k": 3}\n\n',
    "hello hello world world worldly hell held helmet\n\n\n\n",
] * 20

CHAT_TEMPLATE = """\
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
{%- for message in messages[(1 if head else 0):] -%}
{{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" -}}
{%- endfor -%}
"""

SPECIAL = [f"<|{name}|>" for name in ("start", "end", "message", "channel", "constrain", "call", "return", "endoftext")]
SEARCH = Tool("search", "look it up", {"type": "object", "properties": {"query": {"type": "string"}}}).as_openai()


def build() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet))
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|return|>", pad_token="<|endoftext|>")
    made.chat_template = CHAT_TEMPLATE
    return made


TOKENIZER = build()
