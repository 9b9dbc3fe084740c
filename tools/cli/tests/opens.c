// Appends the path of each file that a program opens to the file `OPENS`; for LD_PRELOAD.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int noted(int file, const char *path) {
  const char *list = getenv("OPENS");
  char line[4096];
  int length = snprintf(line, sizeof line, "%s\n", path);
  if (list && file >= 0 && length > 0 && length < (int)sizeof line) {
    int out = syscall(SYS_openat, AT_FDCWD, list, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (out < 0 || write(out, line, length) != length) abort();
    close(out);
  }
  return file;
}

#define MODE(flags) \
  va_list rest; \
  va_start(rest, flags); \
  int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; \
  va_end(rest)

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    MODE(flags); \
    return noted(syscall(SYS_openat, AT_FDCWD, path, flags, mode), path); \
  }

#define OPENAT(name) \
  int name(int at, const char *path, int flags, ...) { \
    MODE(flags); \
    return noted(syscall(SYS_openat, at, path, flags, mode), path); \
  }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
