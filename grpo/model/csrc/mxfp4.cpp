// MXFP4 experts to bf16 `[experts, in, out]` on an x86 CPU with AVX2; called by grpo/model/mxfp4.py, built by
// grpo/model/mxfp4_kernel.py. Plain C++, since a build against PyTorch's headers takes a minute and this one a second.
//
// A tile is kRows output features of one expert: their packed bytes lie together, and while one tile is decoded
// the next one is fetched into the core's cache. Each group of a tile is transposed as 16-bit words of four codes,
// a quarter of the result's size, and decoded in integer arithmetic. Lines of the result are written past the
// cache, which saves reading them first.

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr int kRows = 128;        // with 90 groups a tile is 184 kB: two fit the L2 cache of a core
constexpr int kGroupBytes = 16;   // 32 codes
constexpr int kWords = 8;         // of 16 bits in a group, four codes each
constexpr uintptr_t kHugePage = 2 << 20;

struct Group {
    alignas(64) uint16_t words[kWords][kRows];
    alignas(64) uint8_t scales[kRows];
};

// Eight rows of eight words, `stride` bytes apart, to eight columns: interleaving the halves three times transposes.
void transpose_8x8(const uint8_t* from, int64_t stride, uint16_t* to) {
    __m128i rows[8], mixed[8];
    for (int i = 0; i < 8; ++i) rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride));
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 4; ++i) {
            mixed[2 * i] = _mm_unpacklo_epi16(rows[i], rows[i + 4]);
            mixed[2 * i + 1] = _mm_unpackhi_epi16(rows[i], rows[i + 4]);
        }
        std::copy(mixed, mixed + 8, rows);
    }
    for (int i = 0; i < 8; ++i) _mm_store_si128(reinterpret_cast<__m128i*>(to + i * kRows), rows[i]);
}

// Group `g` of `n` rows.
void load(const uint8_t* blocks, const uint8_t* scales, int64_t groups, int64_t g, int n, Group& group) {
    for (int r = 0; r < n; ++r) group.scales[r] = scales[r * groups + g];
    int r = 0;
    for (; r + 8 <= n; r += 8)
        transpose_8x8(blocks + (r * groups + g) * kGroupBytes, groups * kGroupBytes, group.words[0] + r);
    for (; r < n; ++r)
        for (int k = 0; k < kWords; ++k)
            std::memcpy(&group.words[k][r], blocks + (r * groups + g) * kGroupBytes + 2 * k, 2);
}

void store(const uint16_t* line, uint16_t* to, int n) {
    if (n < kRows || reinterpret_cast<uintptr_t>(to) % sizeof(__m256i)) {
        std::memcpy(to, line, n * sizeof(uint16_t));
        return;
    }
    for (int r = 0; r < kRows; r += 16)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + r),
                            _mm256_load_si256(reinterpret_cast<const __m256i*>(line + r)));
}

// 32 lines of the result, `out` values apart.
void decode(const Group& group, const uint16_t* table, uint16_t* result, int64_t out, int n) {
    // bf16 with the exponent of a code 1 (0.5): the code's exponent and mantissa bits are added to it.
    alignas(64) uint16_t half[kRows];
    uint8_t low = 255, high = 0;
    for (int r = 0; r < n; ++r) {
        half[r] = static_cast<uint16_t>((group.scales[r] - 1) << 7);
        low = std::min(low, group.scales[r]);
        high = std::max(high, group.scales[r]);
    }
    const bool normal = low >= 2 && high <= 252;  // else results are subnormal, infinite or NaN
    alignas(64) uint16_t line[kRows];
    for (int i = 0; i < 4 * kWords; ++i) {
        const uint16_t* words = group.words[i / 4];
        const int shift = i % 4 * 4;
        if (normal) {
            for (int r = 0; r < n; ++r) {
                const uint16_t code = words[r] >> shift, size = code & 7, sign = (code & 8) << 12;
                uint16_t bits = half[r] + (size << 6);
                bits = size == 1 ? half[r] : bits;
                bits = size == 0 ? 0 : bits;
                line[r] = bits | sign;
            }
        } else {
            for (int r = 0; r < n; ++r) line[r] = table[group.scales[r] * 16 + (words[r] >> shift & 15)];
        }
        store(line, result + i * out, n);
    }
}

// Large pages cost a tenth of the page faults of a result that was not written to yet; where they are not to be
// had, the call changes nothing.
void ask_for_huge_pages(void* start, size_t bytes) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(start);
    const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace

// blocks uint8 [experts, out, groups, 16], scales uint8 [experts, out, groups], result bf16 [experts, 32 * groups, out];
// table bf16 [256, 16]: the value of each code at each scale. All contiguous.
extern "C" void mxfp4_dequantize(const uint8_t* blocks, const uint8_t* scales, const uint16_t* table, uint16_t* result,
                                 int64_t experts, int64_t out, int64_t groups, int threads) {
    const int64_t tiles = (out + kRows - 1) / kRows;
    ask_for_huge_pages(result, experts * groups * 4 * kWords * out * sizeof(uint16_t));
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        Group group;
        for (int64_t tile; (tile = next++) < experts * tiles;) {
            const int64_t expert = tile / tiles, first = tile % tiles * kRows;
            const int n = static_cast<int>(std::min<int64_t>(kRows, out - first));
            const uint8_t* tile_blocks = blocks + (expert * out + first) * groups * kGroupBytes;
            const uint8_t* tile_scales = scales + (expert * out + first) * groups;
            for (int64_t g = 0; g < groups; ++g) {
                // The tile after this one, a group's share at a time; past the end of the input this does nothing.
                const uint8_t* ahead = tile_blocks + (n * groups + n * g) * kGroupBytes;
                for (int i = 0; i < n * kGroupBytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
                load(tile_blocks, tile_scales, groups, g, n, group);
                decode(group, table, result + (expert * groups + g) * 4 * kWords * out + first, out, n);
            }
        }
        _mm_sfence();  // makes the lines written past the cache visible to the thread that joins this one
    };
    // Threads take tiles as they come, so a busy core delays no more than its last tile.
    std::vector<std::thread> others;
    try {
        while (static_cast<int64_t>(others.size()) + 1 < std::min<int64_t>(threads, experts * tiles))
            others.emplace_back(work);
    } catch (const std::system_error&) {
        // No more threads can be started; the running ones take all tiles.
    }
    work();
    for (auto& thread : others) thread.join();
}
