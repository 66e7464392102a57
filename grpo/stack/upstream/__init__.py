"""Types of the objects that OpenRLHF, vLLM and DeepSpeed pass to us: only the attributes that our code uses.

OpenRLHF and DeepSpeed ship no types. These protocols let mypy check every access. A test compares them with the
installed source. Nothing here imports OpenRLHF, vLLM, DeepSpeed or torch when it runs.
"""
