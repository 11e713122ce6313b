/* config_reader.h - single values out of config.json, each checked and bounded; refusals name the
 * key, of a GGUF file its own.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_CONFIG_READER_H
#define ENGINE_MODEL_CONFIG_READER_H

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

struct error;

enum { CONFIG_MAX_LAYERS = 1024 };

struct config_reader {
    const json_t *root;
    const char *label; /* names the directory in messages */
    uint32_t context;  /* longest text that is asked for, in tokens; 0: the model's own */
    struct error *err;
};

/* Sets the error "'key' why" and returns code. */
int config_refuse(const struct config_reader *r, int code, const char *key, const char *why);

/* Returns the value, NULL if it is absent or null: to the library that writes these files both mean
 * the same. */
const json_t *config_get(const json_t *object, const char *key);

/* Reads one value; all three leave *out alone when the key is absent. */
int config_read_count(const struct config_reader *r, const json_t *object, const char *key,
                      uint32_t max, uint32_t *out);
int config_read_number(const struct config_reader *r, const json_t *object, const char *key,
                       double min, double max, double *out);
int config_read_bool(const struct config_reader *r, const json_t *object, const char *key,
                     bool *out);

#endif
