/* expert_layout.h - how a model's files hold its experts (enum expert_layout): their names say it.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_EXPERT_LAYOUT_H
#define ENGINE_MODEL_EXPERT_LAYOUT_H

struct model_config;
struct weight_source;

/* Sets the layout.  It is that of a tensor for each matrix where the files have no known one. */
void expert_layout_find(struct model_config *config, const struct weight_source *files);

#endif
