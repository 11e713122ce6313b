/* blas.c - see blas.h. */
#include "cuda/host/blas.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "engine/base/error.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
/* The major version is part of the interface, and therefore of the file's name. */
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"cublasLtCreate", offsetof(struct blas, create)},
    {"cublasLtDestroy", offsetof(struct blas, destroy)},
    {"cublasLtGetStatusString", offsetof(struct blas, status_string)},
    {"cublasLtMatmul", offsetof(struct blas, matmul)},
    {"cublasLtMatmulDescCreate", offsetof(struct blas, desc_create)},
    {"cublasLtMatmulDescDestroy", offsetof(struct blas, desc_destroy)},
    {"cublasLtMatmulDescSetAttribute", offsetof(struct blas, desc_set)},
    {"cublasLtMatrixLayoutCreate", offsetof(struct blas, layout_create)},
    {"cublasLtMatrixLayoutDestroy", offsetof(struct blas, layout_destroy)},
    {"cublasLtMatmulPreferenceCreate", offsetof(struct blas, preference_create)},
    {"cublasLtMatmulPreferenceDestroy", offsetof(struct blas, preference_destroy)},
    {"cublasLtMatmulPreferenceSetAttribute", offsetof(struct blas, preference_set)},
    {"cublasLtMatmulAlgoGetHeuristic", offsetof(struct blas, get_heuristic)},
};

static int load_functions(struct blas *blas, struct error *err) {
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = dlsym(blas->library, functions[i].name);
        if (!function) return error_set(err, ERR_UNSUPPORTED, "cuda: %s", dlerror());
        /* C has no conversion from an object's to a function's address; POSIX has the same bits. */
        memcpy((char *)blas + functions[i].offset, &function, sizeof(function));
    }
    return 0;
}

int blas_open(struct blas *blas, struct error *err) {
    blas->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!blas->library) return error_set(err, ERR_UNSUPPORTED, "cuda: %s", dlerror());
    int rc = load_functions(blas, err);
    if (rc) return rc;
    const cublasStatus_t status = blas->create(&blas->handle);
    if (status == CUBLAS_STATUS_SUCCESS) return 0;
    return error_set(err, ERR_DEVICE, "cuda: starting cuBLASLt: %s", blas->status_string(status));
}

void blas_close(struct blas *blas) {
    if (blas->handle) blas->destroy(blas->handle);
    if (blas->library) dlclose(blas->library);
}
