// logits MODEL.gguf TOKENS LOGITS THREADS [WINDOW]: llama.cpp's logits of all positions, of one sequence or of sequences of WINDOW tokens.
// TOKENS are numbers of 32 bits; LOGITS become f32 [positions, vocabulary]. Keys and values are kept in f32.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

static void quiet(enum ggml_log_level level, const char *text, void *data) {
  (void)data;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void fail(const char *what) {
  fprintf(stderr, "logits: %s\n", what);
  exit(1);
}

int main(int count, char **words) {
  if (count != 5 && count != 6) fail("expected MODEL.gguf TOKENS LOGITS THREADS [WINDOW]");
  llama_log_set(quiet, NULL);
  FILE *in = fopen(words[2], "rb"), *out = fopen(words[3], "wb");
  if (!in || !out) fail("cannot open the tokens or the logits");
  int32_t tokens[1 << 16];
  int32_t length = (int32_t)fread(tokens, sizeof *tokens, sizeof tokens / sizeof *tokens, in);

  int32_t window = count == 6 ? atoi(words[5]) : length;
  if (window < 1) fail("expected tokens in a window");

  struct llama_model *model = llama_model_load_from_file(words[1], llama_model_default_params());
  if (!model) fail("cannot load the model");
  int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = (uint32_t)window;
  params.n_threads = params.n_threads_batch = atoi(words[4]);
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.swa_full = true;
  struct llama_context *context = llama_init_from_model(model, params);
  if (!context) fail("cannot make a context");

  struct llama_batch batch = llama_batch_init(window, 0, 1);
  for (int32_t start = 0; start + window <= length; start += window) {
    llama_memory_clear(llama_get_memory(context), true);
    batch.n_tokens = window;
    for (int32_t i = 0; i < window; i++) {
      batch.token[i] = tokens[start + i];
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    if (llama_decode(context, batch)) fail("cannot decode");
    for (int32_t i = 0; i < window; i++)
      fwrite(llama_get_logits_ith(context, i), sizeof(float), (size_t)vocabulary, out);
  }
  return fclose(out) ? 1 : 0;
}
