/* mamba_config.h - what config.json says of Mamba-2 layers, and of families that have them.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_MAMBA_CONFIG_H
#define ENGINE_MODEL_MAMBA_CONFIG_H

#include <stdint.h>

struct config_reader;
struct model_config;
struct recurrent_shape;

/* Reads the shape of the family's layers. */
int mamba_read_granite(const struct config_reader *r, struct model_config *c,
                       struct recurrent_shape *shape);

int mamba_read_nemotron(const struct config_reader *r, struct model_config *c,
                        struct recurrent_shape *shape);
/* Returns how many layers the list or the pattern of Nemotron-H has; 0: there is neither. */
uint32_t mamba_count_nemotron(const struct config_reader *r);
/* Reads what each layer of Nemotron-H is: one part, a mixer or a feed-forward part. */
int mamba_place_nemotron(const struct config_reader *r, struct model_config *c);

/* Reads what else Granite 4's hybrids say (family_config.h), and Nemotron-H. */
int family_read_granite_hybrid(const struct config_reader *r, struct model_config *c);
int family_read_nemotron(const struct config_reader *r, struct model_config *c);

#endif
