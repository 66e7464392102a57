import ctypes
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from grpo.model import mxfp4, mxfp4_kernel

E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)  # OCP MX 1.0, table 5
ROOT = Path(__file__).parents[3]
DTYPES = (torch.bfloat16, torch.float32)
LAST = 254  # 255 is NaN (OCP MX 1.0); versions of transformers make something else of it, and no checkpoint has it


def view_bits(tensor):
    """Tell 0 from -0, and let NaN equal NaN: which of its bit patterns comes out depends on the SIMD path."""
    tensor = torch.where(tensor.isnan(), torch.nan, tensor).contiguous()
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


@pytest.fixture(scope="module", autouse=True)
def several_threads():
    """The kernel uses as many threads as PyTorch, and scripts/test.sh gives PyTorch one."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def built_kernel(tmp_path_factory):
    """The kernel of this source, compiled for the tests, not the one compiled by the setup."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
        assert mxfp4_kernel.build()
        mxfp4_kernel.load.cache_clear()
        assert mxfp4.uses_kernel(torch.bfloat16, torch.device("cpu")), "these tests need a CPU with AVX2"
        yield
    mxfp4_kernel.load.cache_clear()


@pytest.fixture(params=["kernel", "torch"])
def path(request, monkeypatch):
    """Both ways that `dequantize` has on a CPU."""
    if request.param == "torch":
        monkeypatch.setattr(mxfp4, "uses_kernel", lambda dtype, device: False)
    return request.param


def make_every_byte_and_scale():
    """2 experts of 128 rows and 32 groups: each pair of byte and scale occurs."""
    pairs = torch.arange(256 * 256)
    scales = (pairs >> 8).clamp(max=LAST).view(256, 16, 16)[..., 0].to(torch.uint8)
    blocks = (pairs & 255).view(256, 16, 16).to(torch.uint8)
    return blocks.reshape(2, 128, 16, 16), scales.reshape(2, 128, 16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantize_has_the_bits_of_transformers_for_every_byte_and_scale(dtype, path):
    blocks, scales = make_every_byte_and_scale()
    seen = (scales.long().unsqueeze(-1) * 256 + blocks.long()).unique()
    assert len(seen) == 256 * (LAST + 1)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    result = mxfp4.dequantize(blocks, scales, dtype)
    assert result.shape == (2, 16 * 32, 128) and result.dtype == dtype and result.is_contiguous()
    assert torch.equal(view_bits(result), view_bits(expected))


def test_the_kernel_has_the_bits_of_transformers_for_each_scale_alone():
    """A whole tile of one scale: the kernel's arithmetic for scales with normal results, its table for others."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(8).view(1, 128, 1, 16)
    for scale in range(LAST + 1):
        scales = torch.full((1, 128, 1), scale, dtype=torch.uint8)
        expected = convert_moe_packed_tensors(codes, scales)
        assert torch.equal(view_bits(mxfp4.dequantize(codes, scales)), view_bits(expected)), f"scale {scale}"


def draw_packed(experts, out_features, groups, seed=0, low=0, high=LAST + 1):
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, (experts, out_features, groups, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(low, high, (experts, out_features, groups), dtype=torch.uint8, generator=generator)
    return blocks, scales


@pytest.mark.parametrize("kernel", [True, False])
@settings(max_examples=25, deadline=None)
@given(
    experts=st.integers(1, 3),
    out_features=st.integers(1, 300),
    groups=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    scale_range=st.sampled_from([(0, LAST + 1), (2, 253), (110, 126)]),
)
def test_dequantize_agrees_with_transformers_for_any_shape(kernel, experts, out_features, groups, seed, scale_range):
    blocks, scales = draw_packed(experts, out_features, groups, seed, *scale_range)
    expected = convert_moe_packed_tensors(blocks, scales)
    with pytest.MonkeyPatch.context() as patch:
        if not kernel:
            patch.setattr(mxfp4, "uses_kernel", lambda dtype, device: False)
        assert torch.equal(view_bits(mxfp4.dequantize(blocks, scales)), view_bits(expected))
        # A single expert, views that are not contiguous, and one that begins at an odd byte.
        assert torch.equal(view_bits(mxfp4.dequantize(blocks[0], scales[0])), view_bits(expected[0]))
        assert torch.equal(view_bits(mxfp4.dequantize(blocks[:, ::2], scales[:, ::2])), view_bits(expected[..., ::2]))
        odd = torch.cat([torch.zeros(1, dtype=torch.uint8), blocks.flatten()])[1:].view(blocks.shape)
        assert torch.equal(view_bits(mxfp4.dequantize(odd, scales)), view_bits(expected))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_any_number_of_threads_writes_the_same(threads, path, monkeypatch):
    monkeypatch.setattr(mxfp4, "_CHUNK", 10_000)  # PyTorch's part: 3, 3 and 1 of the groups
    blocks, scales = draw_packed(3, 400, 7)
    expected = convert_moe_packed_tensors(blocks, scales)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for _ in range(5):
            assert torch.equal(view_bits(mxfp4.dequantize(blocks, scales)), view_bits(expected))
    finally:
        torch.set_num_threads(before)


def test_only_out_is_written(path):
    """This includes lines that are not aligned for the kernel's widest stores."""
    blocks, scales = draw_packed(2, 128, 3, low=2, high=250)
    expected = convert_moe_packed_tensors(blocks, scales)
    for offset in range(0, 33, 3):
        around = torch.full((expected.numel() + 64,), 7.0, dtype=torch.bfloat16)
        out = around[offset : offset + expected.numel()].view(expected.shape)
        assert mxfp4.dequantize(blocks, scales, out=out) is out
        assert torch.equal(view_bits(out), view_bits(expected))
        assert (around[:offset] == 7).all() and (around[offset + expected.numel() :] == 7).all()


M_MMAP_THRESHOLD = -3  # mallopt(3)


def measure_memory_peak(run):
    """Bytes by which `run` raises this process's resident memory at its highest."""

    def read_kilobytes(field):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))

    # Tensors get fresh memory from the operating system, not freed memory. The first run allocates small objects.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
    run()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current resident size
    before = read_kilobytes("VmRSS")
    run()
    return 1024 * (read_kilobytes("VmHWM") - before)


def check_memory(path, every):
    """Check the peak of `dequantize`, in this process."""
    if path == "torch":
        mxfp4.uses_kernel = lambda dtype, device: False
    # PyTorch's threads wait for each other after every operation, seconds where other work holds a core.
    torch.set_num_threads(1 if path == "torch" else 2)
    blocks, scales = (tensor[:, ::every] for tensor in draw_packed(8, 1024 * every, 32, low=110, high=126))
    result = torch.zeros(8, 32 * 32, 1024, dtype=torch.bfloat16)
    mxfp4.dequantize(blocks[:1], scales[:1], out=result[:1])  # allocates one-time buffers
    assert measure_memory_peak(lambda: torch.zeros_like(result)) > 0.9 * result.nbytes
    assert measure_memory_peak(lambda: mxfp4.dequantize(blocks, scales, out=result)) < result[0].nbytes


@pytest.mark.parametrize("path", ["kernel", "torch"])
def test_memory_beyond_input_and_result_is_under_one_expert(path):
    """For contiguous experts and for views of every second row."""
    # In a process of its own, which has no memory that other tests have freed.
    code = f"from tests.grpo.model.test_mxfp4 import check_memory; [check_memory({path!r}, every) for every in (1, 2)]"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_the_kernel_it_still_works():
    code = (
        "import torch; from grpo.model import mxfp4;"
        "assert not mxfp4.uses_kernel(torch.bfloat16, torch.device('cpu'));"
        "weight = torch.ones(1, 32, 4);"
        "assert torch.equal(mxfp4.dequantize(*mxfp4.quantize(weight)), weight.bfloat16())"
    )
    environ = {"PATH": "/usr/bin:/bin", "TORCH_EXTENSIONS_DIR": "/nonexistent", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)


def test_a_truncated_kernel_is_built_again(tmp_path, monkeypatch):
    whole = mxfp4_kernel.library().read_bytes()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    damaged = mxfp4_kernel.library()
    damaged.parent.mkdir()
    damaged.write_bytes(whole[: len(whole) // 2])
    assert mxfp4_kernel.build() and not mxfp4_kernel.build()
    assert len(damaged.read_bytes()) == len(whole)


def test_the_kernel_is_built_once_and_a_broken_compiler_is_reported(tmp_path, monkeypatch, capsys):
    assert not mxfp4_kernel.build()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert mxfp4_kernel.main() == 1
    assert "no-such-compiler" in capsys.readouterr().err
    assert list((tmp_path / "mxfp4").iterdir()) == []


def draw_weight(seed, spread):
    """`[2, 64, 3]` whose groups differ in size by up to 2**spread."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(2, 64, 3, generator=generator)
    exponents = torch.randint(-spread, spread + 1, (2, 2, 1, 3), generator=generator)
    return torch.ldexp(weight.view(2, 2, 32, 3), exponents).view(2, 64, 3).to(torch.bfloat16)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([0, 3, 60, 120]))
def test_quantizing_again_changes_nothing(seed, spread):
    once = mxfp4.dequantize(*mxfp4.quantize(draw_weight(seed, spread)))
    twice = mxfp4.dequantize(*mxfp4.quantize(once))
    assert torch.equal(view_bits(once), view_bits(twice))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_tiny_change_changes_nothing_with_the_scales_before_it(seed):
    blocks, scales = mxfp4.quantize(draw_weight(seed, 3))
    before = mxfp4.dequantize(blocks, scales)
    _, smallest = mxfp4.quantize(before)
    assert torch.equal(mxfp4.dequantize(*mxfp4.quantize(before.float() * 0.999, smallest)), before)
    assert not torch.equal(mxfp4.dequantize(*mxfp4.quantize(before.float() * 0.999)), before)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([0, 3, 60]))
def test_quantize_picks_the_nearest_value_of_the_grid(seed, spread):
    weight = draw_weight(seed, spread)
    blocks, scales = mxfp4.quantize(weight)
    assert blocks.shape == (2, 3, 2, 16) and scales.shape == (2, 3, 2)
    assert blocks.is_contiguous() and scales.is_contiguous()
    groups = weight.double().transpose(1, 2).unflatten(-1, (2, 32))
    amax = groups.abs().amax(-1)
    scale = torch.exp2(scales.double() - 127)
    # MX specification 1.0, 6.3: the largest power of two in the group over that of E2M1, 4.
    assert torch.all((scale * 4 <= amax) & (amax < scale * 8))
    grid = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=torch.float64) * scale[..., None, None]
    best = (groups.unsqueeze(-1) - grid).abs().amin(-1)
    result = mxfp4.dequantize(blocks, scales).double().transpose(1, 2).unflatten(-1, (2, 32))
    assert torch.equal((groups - result).abs(), best)


def test_quantize_breaks_ties_to_the_even_code_and_saturates():
    values = torch.zeros(32, 1)
    values[:10, 0] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, 7.5, -0.25])
    result = mxfp4.dequantize(*mxfp4.quantize(values), dtype=torch.float32)
    assert result[:10, 0].tolist() == [0, 1, 1, 2, 2, 4, 4, -4, 6, 0]
    assert torch.signbit(result[9, 0])


def test_quantize_refuses_what_it_cannot_hold():
    with pytest.raises(ValueError, match="MXFP4"):
        mxfp4.quantize(torch.full((32, 2), torch.nan))
