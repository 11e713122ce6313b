/* family_config.h - what config.json says of single families only.
 *
 * Each reads keys that no other family has, once the model's shape is known: it sets what they
 * change, and refuses by name what is not served.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_FAMILY_CONFIG_H
#define ENGINE_MODEL_FAMILY_CONFIG_H

struct config_reader;
struct model_config;

int family_read_neox(const struct config_reader *r, struct model_config *c);
int family_read_opt(const struct config_reader *r, struct model_config *c);
int family_read_falcon(const struct config_reader *r, struct model_config *c);
int family_read_qwen_moe(const struct config_reader *r, struct model_config *c);
int family_read_gpt_oss(const struct config_reader *r, struct model_config *c);
int family_read_gemma4(const struct config_reader *r, struct model_config *c);
int family_read_glm4_moe(const struct config_reader *r, struct model_config *c);
int family_read_lfm2(const struct config_reader *r, struct model_config *c);
int family_read_lfm2_moe(const struct config_reader *r, struct model_config *c);
int family_read_mpt(const struct config_reader *r, struct model_config *c);
int family_read_chatglm(const struct config_reader *r, struct model_config *c);
int family_read_smollm3(const struct config_reader *r, struct model_config *c);
int family_read_granite(const struct config_reader *r, struct model_config *c);
int family_read_cohere(const struct config_reader *r, struct model_config *c);
int family_read_cohere2_moe(const struct config_reader *r, struct model_config *c);

#endif
