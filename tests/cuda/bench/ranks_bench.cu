/* ranks_bench.cu - sums over ranks in CUDA graphs, on one device or on several, beside a plain copy
 * of the bytes.  Usage: ranks_bench [DEVICE...], a device for each rank; 0 0 if there is none.
 *
 * Prints a line for each size and kernel.  It has the microseconds of one of many sums in a row,
 * the rate at which a rank sends, and the microseconds of a copy.  Each sum is held against its
 * definition. */
#include "tests/cuda/bench/bench.cuh"

#include <cstring>

#include "cuda/ranks/columns.cu"
#include "cuda/ranks/sum.cu"

enum { MOST_RANKS = 8, N_SUMS = 20, N_REPLAYS = 12, RESIDENT_BLOCKS = 16 };

struct bench_rank {
    int device;
    cudaStream_t stream;
    struct rank_links links;
    __nv_bfloat16 *part, *x;
    cudaGraphExec_t graph;
    cudaEvent_t begin, end;
};

static struct bench_rank ranks[MOST_RANKS];
static uint32_t n_ranks, most_blocks = ~0u;
static bool overlaps;

static void use(const struct bench_rank &rank) {
    check(cudaSetDevice(rank.device), "device");
}

static void open_ranks(const std::vector<int> &devices, size_t most) {
    struct rank_report *report;
    bool are_shared = false;
    n_ranks = (uint32_t)devices.size();
    for (uint32_t i = 0; i < n_ranks; i++)
        for (uint32_t k = 0; k < i; k++) are_shared |= devices[i] == devices[k];
    check(cudaHostAlloc((void **)&report, sizeof(*report), cudaHostAllocPortable), "report");
    memset(report, 0, sizeof(*report));
    if (are_shared) most_blocks = RESIDENT_BLOCKS / n_ranks;
    for (uint32_t i = 0; i < n_ranks; i++) {
        struct bench_rank &rank = ranks[i];
        char *box;
        rank.device = devices[i];
        use(rank);
        for (int other : devices)
            if (other != rank.device) cudaDeviceEnablePeerAccess(other, 0);
        cudaGetLastError();
        check(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), "stream");
        check(cudaEventCreate(&rank.begin), "event");
        check(cudaEventCreate(&rank.end), "event");
        check(cudaMalloc((void **)&box, mailbox_bytes(n_ranks, false)), "memory");
        check(cudaMemset(box, 0, mailbox_bytes(n_ranks, false)), "memory");
        check(cudaMemset(box + mailbox_small_at(), MISSING_BYTE,
                         mailbox_large_at(n_ranks) - mailbox_small_at()),
              "memory");
        check(cudaMalloc((void **)&rank.part, most), "memory");
        check(cudaMalloc((void **)&rank.x, most), "memory");
        fill_kernel<<<132, 256>>>(rank.part, most / 2, 0.5f + (float)i);
        check(load_sums(), "kernels");
        check(load_columns(), "kernels");
        check(cudaDeviceSynchronize(), "begin");
        for (struct bench_rank &other : ranks) {
            other.links.boxes[i] = reinterpret_cast<struct mailbox *>(box);
            other.links.report = report;
            other.links.limit_ns = 5000000000u;
            other.links.n = n_ranks;
            other.links.starts_next = !are_shared;
        }
        rank.links.rank = i;
        struct cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, rank.device), "device");
        overlaps = properties.major == 9;
        printf("# rank %u: CUDA device %d, %s\n", i, rank.device, properties.name);
    }
    for (uint32_t i = 0; i < n_ranks; i++) ranks[i].links.rank = i;
}

static void wait_all() {
    for (uint32_t i = 0; i < n_ranks; i++) {
        use(ranks[i]);
        check(cudaStreamSynchronize(ranks[i].stream), "a sum");
    }
    if (ranks[0].links.report->word == 0) return;
    printf("FAIL: a rank has waited in vain: %llx\n",
           (unsigned long long)ranks[0].links.report->word);
    exit(1);
}

static struct sum_params params_of(const struct bench_rank &rank, size_t n, bool accumulate) {
    struct sum_params p = {};
    p.links = rank.links;
    p.part = rank.part;
    p.x = rank.x;
    p.n = n;
    p.accumulate = accumulate;
    p.is_wide = true;
    return p;
}

static uint32_t blocks_of(size_t n, bool is_small) {
    const size_t each = is_small ? SMALL_THREADS : LARGE_THREADS,
                 blocks = (n / EACH + each - 1) / each;
    const uint32_t most = std::min<uint32_t>(most_blocks, is_small ? SMALL_BLOCKS : LARGE_BLOCKS);
    return blocks < most ? (uint32_t)blocks : most;
}

static void launch_all(size_t n, bool is_small, bool accumulate) {
    for (uint32_t i = 0; i < n_ranks; i++) {
        use(ranks[i]);
        const struct sum_params p = params_of(ranks[i], n, accumulate);
        check(launch_sum_by(&p, is_small, blocks_of(n, is_small),
                            launch_on(ranks[i].stream, overlaps)),
              "launch");
    }
}

static float value(uint16_t bits) {
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
}

/* Holds sums of n elements against the definition: two, of which the second one accumulates. */
static bool verify(size_t n, bool is_small) {
    std::vector<std::vector<uint16_t>> parts(n_ranks, std::vector<uint16_t>(n));
    std::vector<uint16_t> x(n);
    launch_all(n, is_small, false);
    launch_all(n, is_small, true);
    wait_all();
    for (uint32_t i = 0; i < n_ranks; i++)
        check(cudaMemcpy(parts[i].data(), ranks[i].part, n * 2, cudaMemcpyDefault), "copy");
    for (uint32_t i = 0; i < n_ranks; i++) {
        check(cudaMemcpy(x.data(), ranks[i].x, n * 2, cudaMemcpyDefault), "copy");
        for (size_t k = 0; k < n; k++) {
            float sum = 0;
            for (uint32_t r = 0; r < n_ranks; r++) sum += value(parts[r][k]);
            const __nv_bfloat16 once = __float2bfloat16_rn(sum);
            const __nv_bfloat16 twice = __float2bfloat16_rn(sum + __bfloat162float(once));
            uint16_t expected;
            memcpy(&expected, &twice, 2);
            if (x[k] == expected) continue;
            printf("FAIL: rank %u, element %zu of %zu: %g, not %g\n", i, k, n, value(x[k]),
                   value(expected));
            return false;
        }
    }
    return true;
}

static double time_sums(size_t n, bool is_small) {
    for (uint32_t i = 0; i < n_ranks; i++) {
        cudaGraph_t graph;
        const struct sum_params p = params_of(ranks[i], n, false);
        use(ranks[i]);
        check(cudaStreamBeginCapture(ranks[i].stream, cudaStreamCaptureModeThreadLocal), "capture");
        for (int k = 0; k < N_SUMS; k++)
            check(launch_sum_by(&p, is_small, blocks_of(n, is_small),
                                launch_on(ranks[i].stream, overlaps)),
                  "launch");
        check(cudaStreamEndCapture(ranks[i].stream, &graph), "capture");
        check(cudaGraphInstantiate(&ranks[i].graph, graph, 0), "graph");
        check(cudaGraphUpload(ranks[i].graph, ranks[i].stream), "graph");
        check(cudaGraphDestroy(graph), "graph");
    }
    wait_all();
    for (int replay = 0; replay <= N_REPLAYS; replay++)
        for (uint32_t i = 0; i < n_ranks; i++) {
            use(ranks[i]);
            if (replay == 2) check(cudaEventRecord(ranks[i].begin, ranks[i].stream), "event");
            if (replay == N_REPLAYS) check(cudaEventRecord(ranks[i].end, ranks[i].stream), "event");
            else check(cudaGraphLaunch(ranks[i].graph, ranks[i].stream), "replay");
        }
    wait_all();
    float ms;
    check(cudaEventElapsedTime(&ms, ranks[0].begin, ranks[0].end), "event");
    for (uint32_t i = 0; i < n_ranks; i++) check(cudaGraphExecDestroy(ranks[i].graph), "graph");
    return ms * 1e3 / (N_SUMS * (N_REPLAYS - 2));
}

static __global__ void copy_kernel(uint4 *to, const uint4 *from, size_t n) {
    let_next_start();
    wait_for_previous();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = from[i];
}

static double time_copies(size_t n) {
    use(ranks[0]);
    const unsigned n_blocks = (unsigned)std::min<size_t>((n / EACH + 255) / 256, 528);
    return time_graph(ranks[0].stream, 5,
                      [&] {
                          for (int k = 0; k < N_SUMS; k++)
                              check(launch_kernel(launch_on(ranks[0].stream, overlaps), copy_kernel,
                                                  n_blocks, 256, 0, (uint4 *)ranks[0].x,
                                                  (const uint4 *)ranks[0].part, n / EACH),
                                    "copy");
                      }) /
           N_SUMS;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17,
                                   1 << 18, 1 << 19, 1 << 20, 1 << 22, 1 << 24, 1 << 26};
    std::vector<int> devices;
    int n_devices = 0;
    for (int i = 1; i < argc && i <= MOST_RANKS; i++) devices.push_back(atoi(argv[i]));
    if (devices.empty()) devices = {0, 0};
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIPPED, NOTHING WAS TESTED: there is no CUDA device\n");
        return 77;
    }
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    open_ranks(devices, (size_t)1 << 26);
    printf("n_ranks,bytes,kernel,blocks,us,gb_per_s,copy_us\n");
    bool is_right = true;
    for (size_t bytes : sizes) {
        const double copy_us = time_copies(bytes / 2);
        for (int is_small = 1; is_small >= 0; is_small--) {
            const size_t n = bytes / 2;
            if (is_small && blocks_of(n, true) * (size_t)SMALL_THREADS * EACH < n) continue;
            is_right &= verify(n, is_small);
            const double us = time_sums(n, is_small),
                         sent = (is_small || n_ranks == 2 ? n_ranks - 1.0
                                                          : 2 * (n_ranks - 1.0) / n_ranks) *
                                (double)bytes;
            printf("%u,%zu,%s,%u,%.2f,%.1f,%.2f\n", n_ranks, bytes, is_small ? "small" : "large",
                   blocks_of(n, is_small), us, sent / us * 1e-3, copy_us);
            fflush(stdout);
        }
    }
    printf("%s\n", is_right ? "PASS" : "FAIL");
    return is_right ? 0 : 1;
}
