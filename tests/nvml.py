"""A machine with GPUs, for tests: a library in place of NVIDIA's, which says what two variables tell it."""

import subprocess
from pathlib import Path

_SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* $FAKE_GPUS: "COUNT MAJOR.MINOR MIB USED_MIB"; $FAKE_FAULT: "FUNCTION CODE" fails, "FUNCTION CODE INDEX" for one GPU. */
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
static int count, major, minor, mib, used;
static int fails(const char *function, long index) {
    char name[64]; int code, only = -1;
    const char *fault = getenv("FAKE_FAULT");
    if (!fault || sscanf(fault, "%63s %d %d", name, &code, &only) < 2) return 0;
    return strcmp(name, function) || (only >= 0 && only != index) ? 0 : code;
}
int nvmlInitWithFlags(unsigned flags) {
    const char *gpus = getenv("FAKE_GPUS");
    if (!gpus || sscanf(gpus, "%d %d.%d %d %d", &count, &major, &minor, &mib, &used) < 5) return 9;
    return fails("init", -1);
}
int nvmlDeviceGetCount_v2(unsigned *out) { *out = count; return fails("count", -1); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) { *out = (void *)(long)(index + 1); return fails("handle", index); }
int nvmlDeviceGetName(void *gpu, char *out, unsigned size) { snprintf(out, size, "NVIDIA Test %d.%d", major, minor); return 0; }
int nvmlDeviceGetUUID(void *gpu, char *out, unsigned size) { snprintf(out, size, "GPU-%ld", (long)gpu - 1); return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *gpu, Memory *out) {
    out->total = (unsigned long long)mib << 20; out->used = (unsigned long long)used << 20;
    return fails("memory", (long)gpu - 1);
}
int nvmlDeviceGetCudaComputeCapability(void *gpu, int *a, int *b) { *a = major; *b = minor; return fails("capability", (long)gpu - 1); }
int nvmlDeviceGetPciInfo_v3(void *gpu, Pci *out) { snprintf(out->bus_id, 32, "00000000:%02lX:00.0", (long)gpu + 16); return 0; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "570.86.15"); return fails("driver", -1); }
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : code == 18 ? "Driver/library version mismatch" : "Unknown Error"; }
"""  # noqa: E501


def make_variables(
    folder: Path, gpus: int, capability: str = "9.0", mib: int = 81559, used: int = 4, fault: str = ""
) -> dict[str, str]:
    """Return the variables of a process on a machine with these GPUs, after compiling the library into the folder."""
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        source = folder / "nvml.c"
        source.write_text(_SOURCE, encoding="ascii")
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_GPUS": f"{gpus} {capability} {mib} {used}",
        "FAKE_FAULT": fault,
    }
