"""The tokenizer of the model, from transformers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tokenizers


class Tokenizer(Protocol):
    """A tokenizer of transformers.

    Attributes:
        added_tokens_decoder: the added tokens by their ids; ``str`` gives their text.
        is_fast: whether the library ``tokenizers`` does the work.
    """

    added_tokens_decoder: "Mapping[int, tokenizers.AddedToken]"
    is_fast: bool

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False, **options: Any) -> str: ...
    def get_vocab(self) -> dict[str, int]: ...
    def get_added_vocab(self) -> dict[str, int]: ...
    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], /, **options: Any) -> Any: ...


class FastTokenizer(Tokenizer, Protocol):
    """A tokenizer with ``is_fast``."""

    backend_tokenizer: "tokenizers.Tokenizer"


def explain(reason: str) -> str:
    """Return what helps if transformers cannot load a tokenizer, by the reason that it gives."""
    if "TokenizersBackend" in reason:  # transformers 5 saves this class
        return 'set "tokenizer_class": "PreTrainedTokenizerFast" in its tokenizer_config.json'
    return "download or copy the model again"
