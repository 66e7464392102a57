"""Makes Python collect garbage less often. Every process that scripts/test.sh's pytest starts imports this module.

Many of them import PyTorch, vLLM and DeepSpeed. By default Python spends a sixth of such an import on it.
"""

import gc

gc.set_threshold(20_000, 20, 50)
