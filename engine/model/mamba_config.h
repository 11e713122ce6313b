/* mamba_config.h - what config.json says of Mamba-2 layers, and of families that have them.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_MAMBA_CONFIG_H
#define ENGINE_MODEL_MAMBA_CONFIG_H

struct config_reader;
struct model_config;
struct recurrent_shape;

/* Reads the shape of the family's layers. */
int mamba_read_granite(const struct config_reader *r, struct model_config *c,
                       struct recurrent_shape *shape);

/* Reads what else Granite 4's hybrids say (family_config.h). */
int family_read_granite_hybrid(const struct config_reader *r, struct model_config *c);

#endif
