/* inflight.h - what a step that has failed leaves behind.
 *
 * Thread: engine, or the one that resumes ranks.  Memory: the backend's. */
#ifndef CUDA_HOST_INFLIGHT_H
#define CUDA_HOST_INFLIGHT_H

struct cuda_backend;

/* Forgets all results that have not been delivered.  Where they were to go may be freed, because
 * nothing waits for a step that has failed.  Nothing runs on the backend's stream. */
void inflight_forget(struct cuda_backend *cuda);

#endif
