/* gguf_config.h - the configuration that the keys of a GGUF file stand for: config.json and
 * generation_config.json.
 *
 * A reader of config.json checks and bounds what is written here, as it does any other file's.  A
 * key of the architecture that is not known here is refused: it would change the arithmetic.
 *
 * Thread: any.  Memory: the caller owns *out. */
#ifndef ENGINE_GGUF_GGUF_CONFIG_H
#define ENGINE_GGUF_GGUF_CONFIG_H

#include <stdbool.h>
#include <jansson.h>

struct error;
struct gguf_files;

/* What the files of an architecture have that others have not: a set of these bits. */
enum {
    GGUF_LAYER_NORM = 1,     /* eps is that of LayerNorm */
    GGUF_MULTIPLIERS = 2,    /* keys multiply embeddings, scores, branches and logits */
    GGUF_LOGIT_SCALE = 4,    /* a key multiplies logits */
    GGUF_ANY_WINDOW = 8,     /* also a window that no text exceeds matters, and one may be absent */
    GGUF_LATE_FFN_NORM = 16, /* the norm before feed-forward has the name of one after attention */
    GGUF_EXACT_YARN = 32,    /* the bounds of YaRN's bands are not rounded, which no key says */
    GGUF_TWO_HEADS = 64,     /* layers with a window have heads, and maybe widths, of their own */
    GGUF_SHARED_EXPERT =
        128,                /* each token uses a shared expert, too; shares add up to 1 where a key
                                 says it */
    GGUF_SIGMOID = 256,     /* routers make shares by a sigmoid, and keys say more of them */
    GGUF_TEMPERATURE = 512, /* queries are scaled by their position */
    GGUF_RECURRENT = 1024,  /* some layers are recurrent; shares of experts always add up to 1 */
    GGUF_V_HEADS_APART = 2048,  /* as recurrent_shape.v_heads_apart */
    GGUF_GUESSES = 4096,        /* the last of the counted layers may be ones that guess tokens */
    GGUF_COHERE_EXPERTS = 8192, /* Cohere's experts: dense layers in front, and either norm */
    GGUF_CONVOLUTIONS = 16384,  /* layers without KV heads are short convolutions */
    GGUF_MAMBA = 32768, /* they are Mamba-2 layers, and one key says whether others rotate */
    GGUF_ONE_PART =
        65536, /* so they are if they have no feed-forward part, which is a layer by itself, and
                * nothing rotates */
};

struct gguf_architecture {
    const char *name, *model; /* general.architecture, and what config.json says instead */
    const char *windowed;     /* what it says of a model with a window, if that differs */
    const char *experts;      /* what it says of a model with experts; NULL: it has none */
    bool paired_rotary;       /* q and k rotate by neighbours */
    unsigned traits;
};

/* Returns the architecture of files whose config.json would name this model; NULL: there is
 * none. */
const struct gguf_architecture *gguf_architecture_for(const char *model);

/* Writes the architecture of the files.  ERR_INVALID: they name none.  ERR_UNSUPPORTED: they name
 * another one. */
int gguf_architecture_of(const struct gguf_architecture **out, const struct gguf_files *files,
                         const char *label, struct error *err);

/* Returns true if the tensor of this name is a part of the configuration. */
bool gguf_config_reads(const char *tensor);

/* Writes which key a member of the written config.json comes from, for messages.  Returns false if
 * it comes from none. */
enum { GGUF_KEY_BYTES = 128 };
bool gguf_config_key(const json_t *config, const char *member, char out[GGUF_KEY_BYTES]);

/* Writes the documents.  label names the file in messages. */
int gguf_config(json_t **out, const struct gguf_files *files, const char *label, struct error *err);
int gguf_generation(json_t **out, const struct gguf_files *files, const char *label,
                    struct error *err);

#endif
