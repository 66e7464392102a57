import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from grpo.model import vocabulary
from grpo.train.log_probs import token_scores
from scripts.tiny_model.tokenizer import build_tokenizer


def test_allocated_rows_end_at_the_tokenizers_largest_id():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=build_tokenizer())
    rows, reserved = vocabulary.find_allocated(tokenizer)
    assert rows == len(tokenizer)
    assert tokenizer.convert_ids_to_tokens(reserved) == [f"<|reserved_{number}|>" for number in range(4)]
    assert tokenizer.convert_ids_to_tokens(rows - 1) is not None
    assert tokenizer.convert_ids_to_tokens(rows) is None


def test_ids_that_no_text_has_are_reserved():
    """Their names say so, or they have none."""
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<|reserved_3|>": 3, "<|reserved|>": 4}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert vocabulary.find_allocated(tokenizer) == (5, (2, 3))


def test_trainer_and_engine_have_the_same_softmax():
    hidden, weight = torch.randn(5, 8), torch.randn(13, 8)
    kept = vocabulary.Allocated(10, (1, 8))
    engine = vocabulary.mask_(hidden @ weight.T, kept).log_softmax(-1)
    targets = torch.tensor([0, 3, 9, 4, 4])
    trainer = token_scores(hidden, weight, targets, kept)
    torch.testing.assert_close(trainer.log_probs, engine[torch.arange(5), targets])
    assert not engine[..., 10:].exp().any() and not engine[..., [1, 8]].exp().any()


def test_actor_gives_unallocated_rows_no_probability(either_checkpoint):
    from openrlhf.models import Actor

    actor = Actor(str(either_checkpoint), attn_implementation="eager")
    head = actor.model.get_output_embeddings().weight
    with torch.no_grad():
        head[90:] = head[:7] + 0.3  # likely rows, which a mask that does nothing would leave in
    ids, mask = torch.arange(2, 12).view(1, 10), torch.ones(1, 10, dtype=torch.long)
    whole, _ = actor(ids, mask[:, 1:].bool(), mask, return_output=True)
    actor.allocated = vocabulary.Allocated(90)
    log_probs, output = actor(ids, mask[:, 1:].bool(), mask, return_output=True)
    with torch.no_grad():
        logits = actor.model(ids, attention_mask=mask).logits[:, :-1].float()
    distribution = torch.distributions.Categorical(logits=logits[..., :90])
    torch.testing.assert_close(log_probs, distribution.log_prob(ids[:, 1:]), rtol=0, atol=0.02)
    torch.testing.assert_close(output.scores.entropy[:, :-1], distribution.entropy(), rtol=0, atol=0.02)
    full = logits.softmax(-1)
    torch.testing.assert_close(output.scores.unallocated[:, :-1], full[..., 90:].sum(-1), rtol=0.01, atol=1e-4)
    assert (log_probs > whole + 1e-3).all()


def test_the_engine_masks_after_the_models_own_code():
    """Tested on the module that vLLM's models call for logits. A worker that gathers no logits gets None."""
    from grpo.lora import vllm_lora

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits_processor = torch.nn.Identity()

        def compute_logits(self, hidden):
            return self.logits_processor(hidden)

    model = Model()
    vllm_lora.mask_vocabulary(model, vocabulary.Allocated(10, (3,)))
    logits = torch.randn(4, 13)
    with torch.inference_mode():
        masked = model.compute_logits(logits.clone())
    tokens = [row for row in range(10) if row != 3]
    assert torch.equal(masked[:, tokens], logits[:, tokens]) and (masked[:, [3, 10, 11, 12]] == -torch.inf).all()
    assert model.compute_logits(None) is None
