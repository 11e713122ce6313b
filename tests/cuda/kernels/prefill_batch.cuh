/* prefill_batch.cuh - what the tests of prefill attention share: random sequences in shuffled
 * pages, on the host and on the device.
 *
 * Thread: main.  Memory: the batch's, until free_batch(). */
#ifndef TESTS_CUDA_KERNELS_PREFILL_BATCH_CUH
#define TESTS_CUDA_KERNELS_PREFILL_BATCH_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cuda/attention/prefill/attn_prefill.cuh"
#include "engine/device/pages.h"
#include "tests/cuda/kernels/worst.h"

#define CHECK(call) check((call), #call, __LINE__)

static int n_failed;

static void check(cudaError_t status, const char *what, int line) {
    if (status == cudaSuccess) return;
    printf("FAIL line %d: %s: %s\n", line, what, cudaGetErrorString(status));
    exit(1);
}

static void verdict(bool good, const char *what, double error) {
    printf("%s %-64s error %.2e\n", good ? "ok  " : "FAIL", what, error);
    n_failed += !good;
}

/* --- random numbers --- */

static uint64_t random_state = 20261121;

static float random_normal() {
    float sum = -6.0f; /* of 12 uniforms */
    for (int i = 0; i < 12; i++) {
        random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
        sum += (float)(random_state >> 40) * 0x1p-24f;
    }
    return sum;
}

static uint16_t to_half(float x, enum page_format format) {
    uint16_t bits;
    if (format == PAGE_BF16) {
        const __nv_bfloat16 h = __float2bfloat16(x);
        memcpy(&bits, &h, 2);
    } else {
        const __half h = __float2half(x);
        memcpy(&bits, &h, 2);
    }
    return bits;
}

static float from_half(uint16_t bits, enum page_format format) {
    __nv_bfloat16_raw b;
    __half_raw h;
    b.x = h.x = bits;
    return format == PAGE_BF16 ? __bfloat162float(__nv_bfloat16(b)) : __half2float(__half(h));
}

template <typename T> static T *to_device(const std::vector<T> &from) {
    T *to = nullptr;
    CHECK(cudaMalloc(&to, std::max<size_t>(from.size(), 1) * sizeof(T)));
    CHECK(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}

/* --- a batch: host copies, and the same on the device --- */

struct shape {
    int n_heads, n_kv_heads, dim;
    enum page_format format;
    float q_scale; /* 1, or more for peaked weights */
    float softcap = 0;
    uint32_t window = 0;
};

struct seq_shape {
    uint32_t n_rows, n_slots;
};

struct batch {
    struct shape shape;
    uint32_t n_seqs, n_decode, n_rows, n_pages;
    std::vector<uint32_t> rows, slots;
    std::vector<int32_t> first_row, table, table_at;
    std::vector<uint16_t> q, pool; /* q rows are qkv rows: (n_heads + 2 n_kv_heads) * dim */
    struct attn_prefill_params device;
};

static size_t slot_at(const struct batch &b, int page, int is_v, int kv_head, int slot) {
    return ((((size_t)page * 2 + is_v) * b.shape.n_kv_heads + kv_head) * PAGE_TOKENS + slot) *
           b.shape.dim;
}

static void fill_pages(struct batch &b) {
    std::vector<int32_t> free;
    for (uint32_t seq = 0; seq < b.n_seqs; seq++) {
        b.table_at.push_back((int32_t)(b.n_pages + seq)); /* a -1 stands behind each list */
        b.n_pages += (b.slots[seq] + PAGE_TOKENS - 1) / PAGE_TOKENS;
    }
    b.table.assign(b.n_pages + b.n_seqs, -1);
    b.n_pages += 3;
    for (uint32_t i = 0; i < b.n_pages; i++) free.push_back((int32_t)i);
    for (size_t i = free.size(); i-- > 1;) {
        random_normal();
        std::swap(free[i], free[(random_state >> 33) % (i + 1)]);
    }
    b.pool.assign((size_t)b.n_pages * 2 * b.shape.n_kv_heads * PAGE_TOKENS * b.shape.dim, 0xffff);
    for (uint32_t seq = 0; seq < b.n_seqs; seq++)
        for (uint32_t slot = 0; slot < b.slots[seq]; slot++) {
            int32_t &page = b.table[b.table_at[seq] + slot / PAGE_TOKENS];
            if (slot % PAGE_TOKENS == 0) page = free.back(), free.pop_back();
            for (int i = 0; i < 2 * b.shape.n_kv_heads; i++) {
                uint16_t *to = &b.pool[slot_at(b, page, i / b.shape.n_kv_heads,
                                               i % b.shape.n_kv_heads, (int)(slot % PAGE_TOKENS))];
                for (int d = 0; d < b.shape.dim; d++)
                    to[d] = to_half(random_normal(), b.shape.format);
            }
        }
}

static size_t q_stride(const struct shape &s) {
    return (size_t)(s.n_heads + 2 * s.n_kv_heads) * s.dim;
}

static double score_of_product(const struct shape &s, double product) {
    const double score = product / sqrt(s.dim);
    return s.softcap > 0 ? s.softcap * tanh(score / s.softcap) : score;
}

static std::vector<int32_t> as_int(const std::vector<uint32_t> &from) {
    return std::vector<int32_t>(from.begin(), from.end());
}

static void upload(struct batch &b) {
    std::vector<struct attn_prefill_item> items(attn_prefill_max_items(b.n_rows, b.n_seqs));
    items.resize(
        attn_prefill_plan(b.rows.data(), b.slots.data(), b.n_decode, b.n_seqs, items.data()));
    struct attn_prefill_params &p = b.device;
    p.q = to_device(b.q);
    p.q_stride = q_stride(b.shape);
    p.kv = {to_device(b.pool),
            b.shape.format,
            b.n_pages,
            (uint32_t)b.shape.n_kv_heads,
            (uint32_t)b.shape.dim,
            (size_t)2 * b.shape.n_kv_heads * PAGE_TOKENS * b.shape.dim * 2,
            false};
    p.page_table = to_device(b.table);
    p.table_at = to_device(b.table_at);
    p.first_row = to_device(b.first_row);
    p.n_rows = to_device(as_int(b.rows));
    p.n_slots = to_device(as_int(b.slots));
    p.items = to_device(items);
    p.n_items = (uint32_t)items.size();
    p.n_total_rows = b.n_rows;
    p.n_heads = (uint32_t)b.shape.n_heads;
    p.scale = score_scale_of(1.0f / sqrtf((float)b.shape.dim), b.shape.softcap);
    p.window = b.shape.window;
    CHECK(cudaMalloc(&p.out, (size_t)b.n_rows * b.shape.n_heads * b.shape.dim * 2));
}

/* Sequences of one row that decode come first and are not for these kernels. */
static struct batch make_batch(const struct shape &shape, const std::vector<struct seq_shape> &seqs,
                               bool single_rows_decode = true) {
    struct batch b = {};
    b.shape = shape;
    for (const struct seq_shape &s : seqs) {
        b.first_row.push_back((int32_t)b.n_rows);
        b.rows.push_back(s.n_rows);
        b.slots.push_back(s.n_slots);
        b.n_rows += s.n_rows;
        b.n_decode += single_rows_decode && s.n_rows == 1;
        b.n_seqs++;
    }
    fill_pages(b);
    b.q.resize(b.n_rows * q_stride(shape));
    for (uint16_t &x : b.q) x = to_half(random_normal() * shape.q_scale, PAGE_BF16);
    upload(b);
    return b;
}

static void free_batch(struct batch &b) {
    const void *all[] = {b.device.q,        b.device.kv.base,   b.device.page_table,
                         b.device.table_at, b.device.first_row, b.device.n_rows,
                         b.device.n_slots,  b.device.items,     b.device.out};
    for (const void *p : all) CHECK(cudaFree((void *)p));
}

static __global__ void fill_normal(uint16_t *to, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t h = (i + 1) * 0x9e3779b97f4a7c15ull ^ seed;
        h = (h ^ h >> 32) * 0xd6e8feb86659fd93ull, h = (h ^ h >> 32) * 0xd6e8feb86659fd93ull,
        h ^= h >> 32;
        const float u = ((uint32_t)h + 1.0f) * 0x1p-32f, v = (uint32_t)(h >> 32) * 0x1p-32f;
        const __nv_bfloat16 x = __float2bfloat16(sqrtf(-2.0f * logf(u)) * cospif(2.0f * v));
        to[i] = *(const uint16_t *)&x;
    }
}

#endif
