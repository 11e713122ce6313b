/* step_nodes.cuh - notes kernels of a CUDA graph that is being recorded, and sets what they get in
 * another step (struct step_nodes).
 *
 * Thread: engine.  Memory: the caller's. */
#ifndef CUDA_COMMON_STEP_NODES_CUH
#define CUDA_COMMON_STEP_NODES_CUH

#include "cuda/host/kernels.h"

/* Notes the kernel that was launched last on the stream, which a graph is being recorded from. */
static inline cudaError_t step_nodes_note(struct step_nodes *nodes, cudaStream_t stream) {
    cudaStreamCaptureStatus capture;
    const cudaGraphNode_t *last = nullptr;
    const cudaGraphEdgeData *edges = nullptr;
    size_t n = 0;
    const cudaError_t status =
        cudaStreamGetCaptureInfo(stream, &capture, nullptr, nullptr, &last, &edges, &n);
    if (status != cudaSuccess) return status;
    if (n != 1 || nodes->n == nodes->room) return cudaErrorInvalidValue;
    nodes->nodes[nodes->n++] = last[0];
    return cudaSuccess;
}

/* Sets what the next kernel gets when its graph is launched. */
template <typename... Params, typename... Args>
static cudaError_t step_nodes_set(struct step_nodes *nodes, void (*kernel)(Params...), dim3 grid,
                                  dim3 block, size_t shared_bytes, Args... args) {
    if (nodes->next == nodes->n) return cudaErrorInvalidValue;
    const auto set = [&](Params... params) {
        void *values[sizeof...(Params) + 1] = {&params...};
        struct cudaKernelNodeParams node = {};
        node.func = reinterpret_cast<void *>(kernel);
        node.gridDim = grid;
        node.blockDim = block;
        node.sharedMemBytes = (unsigned)shared_bytes;
        node.kernelParams = values;
        return cudaGraphExecKernelNodeSetParams(nodes->graph, nodes->nodes[nodes->next++], &node);
    };
    return set(args...);
}

#endif
