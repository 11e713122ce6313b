/* some_rows.cuh - wgmma for tiles whose number of rows is known at run time only.
 *
 * The number of rows is a part of the instruction.  So there is an instruction for each step of
 * rows, and a branch to one of them; all have their sums in the same registers.  Each path has a
 * group of its own to be waited for.  Branches around single instructions, or loops for each number
 * of rows, would make the compiler wait after every wgmma, or spill sums.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_EXPERTS_SOME_ROWS_CUH
#define CUDA_EXPERTS_SOME_ROWS_CUH

#include "cuda/linear/packed_tile.cuh"

#define SOME_ROWS_LIST80                                                                           \
    SM90_LIST64                                                                                    \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"

/* Makes products of N rows.  A: operands that are matrix A; X: matrix B; P: whether to add to the
 * sums. */
#define SOME_ROWS_ONE(N, LIST, A, X, P, MODES)                                                     \
    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST "}, " A ", %" #X ", " P      \
    ", " MODES ";\n"
/* Makes the path for more than LESS rows, and up to N; ROWS is their number. */
#define SOME_ROWS_PATH(N, LESS, ROWS, PRODUCTS)                                                    \
    "setp.le.u32 q, %" #ROWS ", " #LESS ";\n@q bra fewer_than_" #N "_%=;\n"                        \
    "wgmma.fence.sync.aligned;\n" PRODUCTS "wgmma.commit_group.sync.aligned;\nbra end_%=;\n"       \
    "fewer_than_" #N "_%=:\n"
#define SOME_ROWS_BEGIN(ADD)                                                                       \
    "{\n.reg .pred p, q, r;\nsetp.ne.b32 p, %" #ADD ", 0;\nsetp.eq.b32 r, 0, 0;\n"
#define SOME_ROWS_END "end_%=:\n}"

#define SOME_ROWS_A(A0, A1, A2, A3) "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}"
#define SOME_ROWS_A_OPERANDS(a) "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3])
#define SOME_ROWS_FOUR_OPERANDS(x) "l"((x)[0]), "l"((x)[1]), "l"((x)[2]), "l"((x)[3])

/* Paths of two products with A in registers, for 256 rows at most. */
#define SOME_ROWS_TWO(N, LESS, LIST)                                                               \
    SOME_ROWS_PATH(                                                                                \
        N, LESS, 139,                                                                              \
        SOME_ROWS_ONE(N, LIST, SOME_ROWS_A(128, 129, 130, 131), 136, "p", "1, 1, 0")               \
            SOME_ROWS_ONE(N, LIST, SOME_ROWS_A(132, 133, 134, 135), 137, "r", "1, 1, 0"))
/* Paths of four products with A in registers, for 64 rows at most. */
#define SOME_ROWS_FOUR(N, LESS, LIST)                                                              \
    SOME_ROWS_PATH(                                                                                \
        N, LESS, 53,                                                                               \
        SOME_ROWS_ONE(N, LIST, SOME_ROWS_A(32, 33, 34, 35), 48, "p", "1, 1, 0")                    \
            SOME_ROWS_ONE(N, LIST, SOME_ROWS_A(36, 37, 38, 39), 49, "r", "1, 1, 0")                \
                SOME_ROWS_ONE(N, LIST, SOME_ROWS_A(40, 41, 42, 43), 50, "r", "1, 1, 0")            \
                    SOME_ROWS_ONE(N, LIST, SOME_ROWS_A(44, 45, 46, 47), 51, "r", "1, 1, 0"))
/* Paths of four products with A in shared memory. */
#define SOME_ROWS_PLAIN_256(N, LESS, LIST)                                                         \
    SOME_ROWS_PATH(N, LESS, 137,                                                                   \
                   SOME_ROWS_ONE(N, LIST, "%128", 132, "p", "1, 1, 0, 0")                          \
                       SOME_ROWS_ONE(N, LIST, "%129", 133, "r", "1, 1, 0, 0")                      \
                           SOME_ROWS_ONE(N, LIST, "%130", 134, "r", "1, 1, 0, 0")                  \
                               SOME_ROWS_ONE(N, LIST, "%131", 135, "r", "1, 1, 0, 0"))
#define SOME_ROWS_PLAIN_64(N, LESS, LIST)                                                          \
    SOME_ROWS_PATH(N, LESS, 41,                                                                    \
                   SOME_ROWS_ONE(N, LIST, "%32", 36, "p", "1, 1, 0, 0")                            \
                       SOME_ROWS_ONE(N, LIST, "%33", 37, "r", "1, 1, 0, 0")                        \
                           SOME_ROWS_ONE(N, LIST, "%34", 38, "r", "1, 1, 0, 0")                    \
                               SOME_ROWS_ONE(N, LIST, "%35", 39, "r", "1, 1, 0, 0"))

/* All paths, that of the most rows first: the others have time for branches. */
#define SOME_ROWS_UP_TO_256(PATH)                                                                  \
    PATH(256, 224, SM90_LIST128)                                                                   \
    PATH(224, 192, SM90_LIST112)                                                                   \
    PATH(192, 160, SM90_LIST96)                                                                    \
    PATH(160, 128, SOME_ROWS_LIST80)                                                               \
    PATH(128, 96, SM90_LIST64)                                                                     \
    PATH(96, 64, SM90_LIST48) PATH(64, 32, SM90_LIST32) PATH(32, 0, SM90_LIST16)
#define SOME_ROWS_UP_TO_64(PATH)                                                                   \
    PATH(64, 48, SM90_LIST32)                                                                      \
    PATH(48, 32, SM90_LIST24) PATH(32, 16, SM90_LIST16) PATH(16, 0, SM90_LIST8)

/* Starts the products of a chunk's fragments and of the first n rows of x, as all_rows does for all
 * of them.  n, at least 1, is the same in all threads of the warpgroup.  Rows of x were copied by
 * threads, so wgmma must be told that they are there. */
struct some_rows {
    uint32_t n;

    __device__ __forceinline__ void operator()(float (&d)[8], const uint32_t (&a)[4][4],
                                               const uint64_t (&x)[4], bool add) const {
        fence_async_proxy();
        all_rows()(d, a, x, add);
    }

    __device__ __forceinline__ void operator()(float (&d)[128], const uint32_t (&a)[2][4],
                                               const uint64_t (&x)[2], bool add) const {
        fence_async_proxy();
        asm volatile(SOME_ROWS_BEGIN(138) SOME_ROWS_UP_TO_256(SOME_ROWS_TWO) SOME_ROWS_END
                     : SM90_D64(d, 0), SM90_D64(d, 64)
                     : SOME_ROWS_A_OPERANDS(a[0]), SOME_ROWS_A_OPERANDS(a[1]), "l"(x[0]), "l"(x[1]),
                       "r"((int)add), "r"(n)
                     : "memory");
    }

    __device__ __forceinline__ void operator()(float (&d)[32], const uint32_t (&a)[4][4],
                                               const uint64_t (&x)[4], bool add) const {
        fence_async_proxy();
        asm volatile(SOME_ROWS_BEGIN(52) SOME_ROWS_UP_TO_64(SOME_ROWS_FOUR) SOME_ROWS_END
                     : SM90_D32(d, 0)
                     : SOME_ROWS_A_OPERANDS(a[0]), SOME_ROWS_A_OPERANDS(a[1]),
                       SOME_ROWS_A_OPERANDS(a[2]), SOME_ROWS_A_OPERANDS(a[3]),
                       SOME_ROWS_FOUR_OPERANDS(x), "r"((int)add), "r"(n)
                     : "memory");
    }

    /* The same with W in shared memory. */
    __device__ __forceinline__ void operator()(float (&d)[128], const uint64_t (&w)[4],
                                               const uint64_t (&x)[4], bool add) const {
        fence_async_proxy();
        asm volatile(SOME_ROWS_BEGIN(136) SOME_ROWS_UP_TO_256(SOME_ROWS_PLAIN_256) SOME_ROWS_END
                     : SM90_D64(d, 0), SM90_D64(d, 64)
                     : SOME_ROWS_FOUR_OPERANDS(w), SOME_ROWS_FOUR_OPERANDS(x), "r"((int)add), "r"(n)
                     : "memory");
    }

    __device__ __forceinline__ void operator()(float (&d)[32], const uint64_t (&w)[4],
                                               const uint64_t (&x)[4], bool add) const {
        fence_async_proxy();
        asm volatile(SOME_ROWS_BEGIN(40) SOME_ROWS_UP_TO_64(SOME_ROWS_PLAIN_64) SOME_ROWS_END
                     : SM90_D32(d, 0)
                     : SOME_ROWS_FOUR_OPERANDS(w), SOME_ROWS_FOUR_OPERANDS(x), "r"((int)add), "r"(n)
                     : "memory");
    }
};

#endif
