/* family_names.h - what families call by other names than Llama: keys of config.json, and tensors.
 *
 * Everything else in this room reads and refuses by Llama's names.  A family's row (family.h) has
 * two lists of the names that differ.
 *
 * Thread: any.  Memory: constant. */
#ifndef ENGINE_MODEL_FAMILY_NAMES_H
#define ENGINE_MODEL_FAMILY_NAMES_H

/* The last of a list has NULL for usual.  A tensor's names lack the '.weight' or '.bias' at the
 * end, or are whole; '#' and '@' are as in struct weight_rule (weights.h). */
struct family_name {
    const char *usual, *own;
};

extern const struct family_name gemma4_tensors[];
extern const struct family_name neox_keys[], neox_tensors[];
extern const struct family_name opt_keys[], opt_tensors[];
/* The second list is that of blocks with two norms side by side. */
extern const struct family_name falcon_keys[], falcon_tensors[], falcon_two_norms_tensors[];
extern const struct family_name mpt_keys[], mpt_tensors[];
extern const struct family_name qwen2_moe_keys[], qwen2_moe_tensors[], mixtral_tensors[],
    gpt_oss_tensors[];
extern const struct family_name chatglm_keys[], chatglm_tensors[];
extern const struct family_name lfm2_keys[], lfm2_tensors[];
extern const struct family_name granite_hybrid_tensors[];
extern const struct family_name nemotron_keys[], nemotron_tensors[];
extern const struct family_name cohere_keys[];

/* Returns the family's own name, or the usual one if the list lacks it; names may be NULL. */
const char *family_own_name(const struct family_name *names, const char *usual);

#endif
