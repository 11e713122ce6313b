/* present.h - which instruction sets this processor has, of those that there are kernels for.
 *
 * isa.c asks when the program runs, used_kernels.c when it is built for one processor. */
#ifndef ENGINE_CPU_PRESENT_H
#define ENGINE_CPU_PRESENT_H

#include <stdbool.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline bool avx2_present(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static inline bool avxvnni_present(void) {
    return avx2_present() && __builtin_cpu_supports("avxvnni");
}

static inline bool avx512_present(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static inline bool avx512vnni_present(void) {
    return avx512_present() && __builtin_cpu_supports("avx512vnni");
}

static inline bool avx512bf16_present(void) {
    return avx512vnni_present() && __builtin_cpu_supports("avx512bf16");
}

/* Tells whether the processor has AMX with bf16 and the kernel lets this process use it.  Asks for
 * that permission, which threads created later inherit. */
static inline bool amx_present(void) {
    enum { LEAF = 7, HAS_BF16 = 1 << 22, HAS_TILES = 1 << 24, REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx512bf16")) return false;
    if (!__get_cpuid_count(LEAF, 0, &a, &b, &c, &d)) return false;
    if (!(d & HAS_BF16) || !(d & HAS_TILES)) return false;
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static inline bool dotprod_present(void) {
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}

/* Looks for two extensions that came together, with Armv8.6. */
static inline bool bf16_i8mm_present(void) {
    const unsigned long both = HWCAP2_BF16 | HWCAP2_I8MM;
    return dotprod_present() && (getauxval(AT_HWCAP2) & both) == both;
}
#endif

/* Returns which of the tables of kernels.c the processor uses, and which of int8_kernels.c: what
 * isa_find() takes. */
static inline const char *used_kernels(void) {
#if defined(__x86_64__)
    if (avx512_present()) return "avx512";
    if (avx2_present()) return "avx2";
#endif
    return "plain";
}

static inline const char *used_int8_kernels(void) {
#if defined(__x86_64__)
    if (avx512vnni_present()) return "avx512vnni";
    if (avxvnni_present() && !avx512_present()) return "avxvnni";
    if (avx2_present()) return "avx2";
#elif defined(__aarch64__)
    return bf16_i8mm_present() ? "i8mm" : dotprod_present() ? "dotprod" : "neon";
#endif
    return "plain";
}

#endif
