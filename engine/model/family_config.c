/* family_config.c - see family_config.h. */
#include "engine/model/family_config.h"

#include "engine/base/error.h"
#include "engine/model/config_reader.h"
#include "engine/model/model.h"

int family_read_neox(const struct config_reader *r, struct model_config *c) {
    c->parallel = true;
    return config_read_bool(r, r->root, "use_parallel_residual", &c->parallel);
}
