import pytest
import torch
from transformers import PreTrainedTokenizerFast
from transformers.utils import ModelOutput

from grpo.model import vocabulary
from grpo.update.passes import entropy
from scripts.tiny_model.tokenizer import build_tokenizer


def test_the_rows_of_a_tokenizer_reach_to_its_largest_id():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=build_tokenizer())
    rows = vocabulary.allocated(tokenizer)
    assert rows == len(tokenizer)
    assert tokenizer.convert_ids_to_tokens(rows - 1) is not None
    assert tokenizer.convert_ids_to_tokens(rows) is None


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_mass_is_what_the_masked_rows_had(temperature):
    logits = torch.randn(2, vocabulary.CHUNK + 3, 13) * 3
    expected = (logits / temperature).softmax(-1)[..., 10:].sum(-1)
    torch.testing.assert_close(vocabulary.unallocated_mass(logits, 10, temperature), expected)
    assert not vocabulary.unallocated_mass(logits, 13).any()
    low = vocabulary.unallocated_mass(logits.bfloat16(), 10)
    assert low.dtype == torch.float32 and not low.requires_grad


def test_the_trainers_softmax_is_the_engines():
    logits = torch.randn(5, 13, dtype=torch.float64)
    masked = vocabulary.mask_(logits.clone(), 10).log_softmax(-1)
    output = ModelOutput(logits=logits[None])
    torch.testing.assert_close(vocabulary.of_tokens(output, 10, 1.0)[0].log_softmax(-1), masked[..., :10])
    torch.testing.assert_close(output.unallocated, vocabulary.unallocated_mass(logits[None], 10))
    assert not masked[..., 10:].exp().any()
    assert vocabulary.of_tokens(output, None, 1.0) is output["logits"]


def test_the_actor_gives_them_no_probability_and_no_gradient(checkpoint):
    from openrlhf.models import Actor

    actor = Actor(str(checkpoint), attn_implementation="eager")
    head = actor.model.get_output_embeddings().weight
    with torch.no_grad():
        head[90:] = head[:7] + 0.3  # likely rows, which a mask that does nothing would leave in
    ids, mask = torch.arange(2, 12).view(1, 10), torch.ones(1, 10, dtype=torch.long)
    whole = actor(ids, mask[:, 1:].bool(), mask, return_output=True, return_entropy="log")
    actor.allocated = 90
    log_probs, output = actor(ids, mask[:, 1:].bool(), mask, return_output=True, return_entropy="log")
    logits = whole[1]["logits"]
    labels = ids[:, 1:, None]
    expected = logits[:, :-1, :90].log_softmax(-1).gather(-1, labels)[..., 0]
    torch.testing.assert_close(log_probs, expected)
    assert (log_probs > whole[0] + 1e-3).all()
    torch.testing.assert_close(output.entropy, entropy(logits[..., :90], "log")[:, -10:-1])
    log_probs.sum().backward()
    assert not head.grad[90:].any() and head.grad[:90].any()


def test_the_engine_masks_after_the_models_own_code():
    """On the module that vLLM's models call for their logits; a worker that gathers none has None."""
    from grpo.lora import side_path

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits_processor = torch.nn.Identity()

        def compute_logits(self, hidden):
            return self.logits_processor(hidden)

    model = Model()
    side_path.mask_vocabulary(model, 10)
    logits = torch.randn(4, 13)
    with torch.inference_mode():
        masked = model.compute_logits(logits.clone())
    assert torch.equal(masked[:, :10], logits[:, :10]) and (masked[:, 10:] == -torch.inf).all()
    assert model.compute_logits(None) is None
