/* model_support.c - see model_support.h. */
#include "server/model_support.h"

#include <stddef.h>

#include "engine/base/error.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/settings/chat_template.h"

int model_support_check(const char *path, struct backend *backend, struct error *err) {
    struct model_config config = {0};
    struct model *model = NULL;
    struct tokenizer *tokenizer = NULL;
    struct chat_template chat = {0};
    int rc = model_config_load(&config, path, 0, err);
    if (rc) return rc;
    rc = tokenizer_load(&tokenizer, path, err);
    if (!rc) rc = chat_template_load(&chat, NULL, path, err);
    if (!rc && backend) rc = model_measure(&model, path, NULL, backend, err);
    model_destroy(model, backend);
    chat_template_fini(&chat);
    tokenizer_destroy(tokenizer);
    model_config_fini(&config);
    return rc;
}
