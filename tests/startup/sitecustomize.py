"""Imported by every Python that scripts/test.sh starts: collect garbage less often.

A whole run of the tests starts about two hundred processes that import PyTorch, vLLM or DeepSpeed. By default Python
spends a sixth of such an import on looking for garbage among the new modules.
"""

import gc

gc.set_threshold(20_000, 20, 50)
