/* sm90_wide.cuh - prefill attention of heads of 256 on Hopper, of the list of items that
 * attn_prefill.cuh describes.
 *
 * Thread: engine.  Memory: none; the launch does not allocate or synchronise. */
#ifndef CUDA_ATTENTION_PREFILL_SM90_WIDE_CUH
#define CUDA_ATTENTION_PREFILL_SM90_WIDE_CUH

#include "cuda/attention/prefill/attn_prefill.cuh"

/* Takes pages of bf16 whose keys are stored after RoPE, and scores without a bias; the device must
 * have attn_prefill_sm90_is_there(). */
cudaError_t launch_attn_prefill_wide(const struct attn_prefill_params &p, struct launch launch);

#endif
