/* weight_source.c - see weight_source.h. */
#include "engine/model/weight_source.h"

#include "engine/gguf/model_document.h"

int weight_source_open(struct weight_source **out, const char *model, struct error *err) {
    return (model_is_gguf(model) ? &gguf_source : &safetensors_source)->open(out, model, err);
}
