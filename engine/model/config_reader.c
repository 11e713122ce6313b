/* config_reader.c - see config_reader.h. */
#include "engine/model/config_reader.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/model_document.h"

enum { WHY_BYTES = 80 };

int config_refuse(const struct config_reader *r, int code, const char *key, const char *why) {
    char own[GGUF_KEY_BYTES];
    if (model_is_gguf(r->label) && gguf_config_key(r->root, key, own))
        return error_set(r->err, code, "%.200s: '%s' %s", r->label, own, why);
    return error_set(r->err, code, "%.200s: config.json: '%s' %s", r->label, key, why);
}

const json_t *config_get(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

int config_read_count(const struct config_reader *r, const json_t *object, const char *key,
                      uint32_t max, uint32_t *out) {
    const json_t *value = config_get(object, key);
    if (!value) return 0;
    const json_int_t n = json_integer_value(value); /* 0 for other types */
    char why[WHY_BYTES];
    snprintf(why, sizeof(why), "is not a whole number from 1 to %" PRIu32, max);
    if (n < 1 || n > (json_int_t)max) return config_refuse(r, ERR_INVALID, key, why);
    *out = (uint32_t)n;
    return 0;
}

int config_read_number(const struct config_reader *r, const json_t *object, const char *key,
                       double min, double max, double *out) {
    const json_t *value = config_get(object, key);
    if (!value) return 0;
    const double n = json_number_value(value); /* 0 for other types */
    char why[WHY_BYTES];
    snprintf(why, sizeof(why), "is not a number from %g to %g", min, max);
    if (!json_is_number(value) || !(n >= min && n <= max))
        return config_refuse(r, ERR_INVALID, key, why);
    *out = n;
    return 0;
}

int config_read_bool(const struct config_reader *r, const json_t *object, const char *key,
                     bool *out) {
    const json_t *value = config_get(object, key);
    if (!value) return 0;
    if (!json_is_boolean(value)) return config_refuse(r, ERR_INVALID, key, "is not true or false");
    *out = json_is_true(value);
    return 0;
}
