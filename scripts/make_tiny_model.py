"""Build a tiny gpt-oss checkpoint in the real file format, warm-started on the synthetic task.

    python -m scripts.make_tiny_model --out DIR [--dequantized-out DIR] [--seed N]
"""
import argparse, time
from pathlib import Path
import torch
from transformers import AutoTokenizer
from scripts.dequantize_checkpoint import dequantize_checkpoint
from scripts.tiny_model.checkpoint import packed_tensors, write_config, write_shards
from scripts.tiny_model.tokenizer import STOP_TOKENS, PAD, write_tokenizer
from scripts.tiny_model.warm_start import warm_start

def main():
    p = argparse.ArgumentParser(); p.add_argument("--out", type=Path); p.add_argument("--dequantized-out", type=Path)
    p.add_argument("--seed", type=int, default=0); p.add_argument("--steps", type=int, default=100)
    a = p.parse_args()
    torch.set_num_threads(2); t0=time.time()
    a.out.mkdir(parents=True)
    write_tokenizer(a.out)
    tok = AutoTokenizer.from_pretrained(a.out)
    vocab = (len(tok) // 64 + 1) * 64
    model = warm_start(tok, vocab, a.steps, a.seed)
    write_config(a.out, model.config, tok.convert_tokens_to_ids(list(STOP_TOKENS)), tok.convert_tokens_to_ids(PAD))
    write_shards(a.out, packed_tensors(model), 400_000)
    dequantize_checkpoint(a.out, a.dequantized_out)
    print(time.time()-t0)
main()
