/* expert_offload.c - see expert_offload.h. */
#include "engine/model/expert_offload.h"

#include <assert.h>

#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/offloaded.h"
#include "engine/model/model.h"

static_assert(sizeof(struct offloaded_layer) <= OFFLOADED_BYTES, "it has outgrown its place");

bool expert_offload_is_possible(struct backend *be) {
    return be->ops->host_pool && be->ops->memory(be).total > 0;
}

static struct offloaded_layer *layer_of(const struct layer_weights *w) {
    return (struct offloaded_layer *)((char *)w->gate.data - OFFLOADED_BYTES);
}

/* Copies the arrays of a weight from the device. */
static int fetch(struct backend *be, const struct weight *from, const struct weight *to,
                 struct error *err) {
    const uint64_t n_scales = weight_scale_bytes(from),
                   n_mins = from->format.has_min ? n_scales : 0,
                   n_data = weight_bytes(from) - n_scales - n_mins;
    int rc = be->ops->download(be, (void *)to->data, from->data, n_data, err);
    if (!rc && n_scales)
        rc = be->ops->download(be, (void *)to->scales, from->scales, n_scales, err);
    if (!rc && n_mins) rc = be->ops->download(be, (void *)to->mins, from->mins, n_mins, err);
    return rc ? rc : be->ops->sync(be, err);
}

int expert_offload_load(struct backend *be, const struct weight *host, bool is_gate,
                        struct weight *out, struct error *err) {
    const size_t before = is_gate ? OFFLOADED_BYTES : 0;
    struct weight on_device;
    void *memory = NULL;
    int rc = be->ops->weight_load(be, host, &on_device, err);
    if (rc) return rc;
    rc = be->ops->host_pool->alloc(be, before + weight_copy_bytes(&on_device), &memory, err);
    const struct weight copy = rc ? on_device : weight_copy_at(&on_device, (char *)memory + before);
    if (!rc) rc = fetch(be, &on_device, &copy, err);
    be->ops->weight_release(be, &on_device);
    if (rc && memory) be->ops->host_pool->free(be, memory);
    if (!rc) *out = copy;
    return rc;
}

void expert_offload_link(struct model *model) {
    struct offloaded_layer *next = NULL;
    for (uint32_t i = model->config.n_layers; i-- > 0;) {
        const struct layer_weights *w = &model->layers[i];
        if (!model->is_offloaded[i]) continue;
        struct offloaded_layer *layer = layer_of(w);
        *layer = (struct offloaded_layer){
            .mark = OFFLOADED_MARK, .gate = w->gate, .up = w->up, .down = w->down, .next = next};
        /* A step with prompts has few rows in the last layer. */
        next = i + 1 == model->config.n_layers ? NULL : layer;
    }
}

void expert_offload_release(struct backend *be, struct layer_weights *w) {
    if (w->gate.data) be->ops->host_pool->free(be, layer_of(w));
    if (w->up.data) be->ops->host_pool->free(be, (void *)w->up.data);
    if (w->down.data) be->ops->host_pool->free(be, (void *)w->down.data);
    w->gate.data = w->up.data = w->down.data = NULL;
}

uint64_t expert_offload_fetched(const struct model *model) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < model->config.n_layers && model->offload.n_layers > 0; i++)
        if (model->is_offloaded[i])
            sum += *(const volatile uint64_t *)&layer_of(&model->layers[i])->fetched_bytes;
    return sum;
}
