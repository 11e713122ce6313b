/* expert_layout.c - see expert_layout.h. */
#include "engine/model/expert_layout.h"

#include <stdint.h>
#include <stdio.h>

#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"

#define FUSED "model.layers.#.mlp.experts.gate_up_proj"
#define BLOCKS "_blocks" /* behind FUSED: quantised as in gpt-oss, and not transposed */

static bool has(const struct weight_source *files, const struct model_config *c, uint32_t layer,
                const char *rule, const char *suffix) {
    char name[WEIGHTS_MAX_NAME], whole[WEIGHT_SOURCE_NAME];
    weights_file_name(name, c, rule, layer, 0);
    snprintf(whole, sizeof(whole), "%s%s", name, suffix);
    return files->ops->has(files, whole);
}

void expert_layout_find(struct model_config *c, const struct weight_source *files) {
    uint32_t layer = 0;
    while (layer < c->n_layers && c->layers[layer].n_experts == 0) layer++;
    if (layer == c->n_layers) return;
    if (has(files, c, layer, "model.layers.#.mlp.experts.up_proj.weight", ""))
        c->expert_layout = EXPERTS_STACKED;
    else if (has(files, c, layer, FUSED, BLOCKS)) c->expert_layout = EXPERTS_PAIRED;
    else if (has(files, c, layer, FUSED, ""))
        c->expert_layout = c->experts_in_columns ? EXPERTS_COLUMNS : EXPERTS_FUSED;
}
