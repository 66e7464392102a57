import socket

from grpo.stack import cluster


def test_workers_get_what_they_need_and_no_secret():
    needed = {"GRPO_RUN_DIR": "/run", "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": "/checkout", "DS_ACCELERATOR": "cpu"}
    # the instructions that the user allows
    needed |= {"ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    keys = dict.fromkeys(("GEMINI_API_KEY", "WANDB_API_KEY", "HF_TOKEN", "VLLM_API_KEY"), "secret")
    others = {"HOME": "/home/me", "TMPDIR": "/tmp/grpo-a/tmp"}
    of_openrlhf = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN"}
    assert cluster.runtime_env(needed | keys | others)["env_vars"] == needed | of_openrlhf


def is_ephemeral(port: int) -> bool:
    """Return whether the kernel may assign this port to a process that asks for any port."""
    first, last = map(int, cluster.EPHEMERAL_PORTS.read_text().split())
    return first <= port <= last


def test_free_port_is_outside_the_ephemeral_range():
    with socket.socket() as anybody:
        anybody.bind(("", 0))
        assert is_ephemeral(anybody.getsockname()[1])  # the control: ports assigned by the kernel are in that range
    ports = {cluster.free_port() for _ in range(50)}
    assert not any(map(is_ephemeral, ports))
    assert min(ports) >= 20000  # below are Ray's
    assert len(ports) > 40  # two runs that start together do not meet


def test_a_port_in_use_is_not_chosen(monkeypatch, tmp_path):
    with socket.socket() as server:
        server.bind(("", cluster.free_port()))
        server.listen()
        port = server.getsockname()[1]
        (tmp_path / "range").write_text(f"{port + 2}\t65535\n")  # the kernel gives away every port above
        monkeypatch.setattr(cluster, "EPHEMERAL_PORTS", tmp_path / "range")
        monkeypatch.setattr(cluster, "FIRST_PORT", port)
        assert {cluster.free_port() for _ in range(20)} == {port + 1}
