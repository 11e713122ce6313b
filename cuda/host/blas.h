/* blas.h - cuBLASLt, loaded when a CUDA backend is opened and not before.
 *
 * The library is most of a gigabyte.  Linking it would relocate 200 MB at every start of the
 * program, also of `quire version` and the CPU backend.  The functions are reached through this
 * table instead; their types are those of the vendor's header.
 *
 * Thread: engine.  Memory: the library stays loaded until blas_close(). */
#ifndef CUDA_HOST_BLAS_H
#define CUDA_HOST_BLAS_H

#include <cublasLt.h>

struct error;

struct blas {
    void *library;
    cublasLtHandle_t handle;
    __typeof__(cublasLtCreate) *create;
    __typeof__(cublasLtDestroy) *destroy;
    __typeof__(cublasLtGetStatusString) *status_string;
    __typeof__(cublasLtMatmul) *matmul;
    __typeof__(cublasLtMatmulDescCreate) *desc_create;
    __typeof__(cublasLtMatmulDescDestroy) *desc_destroy;
    __typeof__(cublasLtMatmulDescSetAttribute) *desc_set;
    __typeof__(cublasLtMatrixLayoutCreate) *layout_create;
    __typeof__(cublasLtMatrixLayoutDestroy) *layout_destroy;
    __typeof__(cublasLtMatmulPreferenceCreate) *preference_create;
    __typeof__(cublasLtMatmulPreferenceDestroy) *preference_destroy;
    __typeof__(cublasLtMatmulPreferenceSetAttribute) *preference_set;
    __typeof__(cublasLtMatmulAlgoGetHeuristic) *get_heuristic;
};

/* Loads cuBLASLt and creates its handle.  ERR_UNSUPPORTED: the library or one of its functions is
 * missing, and the text names it.  ERR_DEVICE: it does not start.  After a failure blas_close() may
 * still be called. */
int blas_open(struct blas *blas, struct error *err);
void blas_close(struct blas *blas); /* a zeroed struct is allowed */

#endif
