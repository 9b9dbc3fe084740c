/* A PJRT plugin that computes nothing and fails in the way that `FAULT` selects. The table of functions has the layout
   of version 0.106 of the API. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NONE, NO_TABLE, OLD, NEXT_MAJOR, SHORT_TABLE, HOLE, NO_DRIVER, NO_DEVICE, COMPILE, COMPILE_MEMORY, UPLOAD_MEMORY };

typedef struct { int code; const char *message; } Error;
typedef struct { size_t size; void *extensions; } Head;
typedef struct { Head head; struct { Head head; int major, minor; } version; void *functions[120]; } Api;

static Api api;
static size_t outputs;

static Error *failed(int code, const char *message) {
  Error *error = malloc(sizeof *error);
  error->code = code;
  error->message = message;
  return error;
}

static Error *nothing(void *arguments) { (void)arguments; return NULL; }
static void error_destroy(struct { Head head; Error *error; } *a) { free(a->error); }
static void error_message(struct { Head head; Error *error; const char *text; size_t size; } *a) {
  a->text = a->error->message;
  a->size = strlen(a->text);
}
static Error *error_code(struct { Head head; Error *error; int code; } *a) {
  a->code = a->error->code;
  return NULL;
}

static Error *client_create(void *a) {
  (void)a;
  return FAULT == NO_DRIVER ? failed(14, "no driver of version 580 is installed") : NULL;
}
static Error *platform(struct { Head head; void *client; const char *text; size_t size; } *a) {
  a->text = PLATFORM;
  a->size = strlen(a->text);
  return NULL;
}
static void *device = &api;
static Error *devices(struct { Head head; void *client; void **devices; size_t count; } *a) {
  a->devices = &device;
  a->count = FAULT != NO_DEVICE;
  return NULL;
}
static Error *kind(struct { Head head; void *description; const char *text; size_t size; } *a) {
  a->text = "fake";
  a->size = 4;
  return NULL;
}

/* Remembers the number of results of `@main`, which is on one line. */
static Error *compile(struct { Head head; void *client; struct { Head head; const char *code; size_t size; } *program; } *a) {
  if (FAULT == COMPILE) return failed(12, "no such instruction");
  if (FAULT == COMPILE_MEMORY) return failed(8, "4.00GiB for a constant");
  char *text = calloc(1, a->program->size + 1);
  memcpy(text, a->program->code, a->program->size);
  char *line = strstr(text, "@main(");
  line = line ? strstr(line, ") -> (") : NULL;
  for (outputs = 0; line && *line != '\n' && *line; line++) outputs += !strncmp(line, "tensor<", 7);
  free(text);
  return NULL;
}
static Error *num_outputs(struct { Head head; void *executable; size_t count; } *a) {
  a->count = outputs;
  return NULL;
}
static Error *output_types(struct { Head head; void *executable; int *types; size_t count; } *a) {
  static int types[256];
  for (int i = 0; i < 256; i++) types[i] = 11;
  a->types = types;
  a->count = outputs;
  return NULL;
}
static Error *output_dims(struct { Head head; void *executable; size_t count; long long *dims; size_t *ranks; } *a) {
  static long long dims[256];
  static size_t ranks[256];
  a->count = outputs;
  a->dims = dims;
  a->ranks = ranks;
  return NULL;
}
static Error *upload(void *a) {
  (void)a;
  return FAULT == UPLOAD_MEMORY ? failed(8, "tried to allocate 1.50GiB, 0.25GiB are free") : NULL;
}

const Api *GetPjrtApi(void) {
  for (int i = 0; i < 120; i++) api.functions[i] = nothing;
  void **f = api.functions;
  f[0] = error_destroy, f[1] = error_message, f[2] = error_code;
  f[10] = FAULT == HOLE ? NULL : (void *)client_create;
  f[12] = f[14] = platform, f[16] = devices, f[20] = compile, f[22] = upload, f[26] = kind;
  f[44] = num_outputs, f[90] = output_types, f[91] = output_dims;
  /* It stores no executables. */
  f[49] = f[56] = NULL;
  api.head.size = FAULT == SHORT_TABLE ? 400 : sizeof api;
  api.version.head.size = sizeof api.version;
  api.version.major = FAULT == NEXT_MAJOR;
  api.version.minor = FAULT == OLD ? 54 : 106;
  return FAULT == NO_TABLE ? NULL : &api;
}
