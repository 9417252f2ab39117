/* Preloaded by faults.py: fails the n-th call that changes something below a folder, and lets the
   clock of the day jump. Counts are shared with forked children. Linux, glibc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static struct { long calls, failed; } *shared;
static char place[PATH_MAX];
static long number;
static int with, stays, jumps;

__attribute__((constructor)) static void begin(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* Call `which` below `folder` fails with `error`, 0 for none; all later ones too where it `lasts`. */
void faults_arm(const char *folder, long which, int error, int lasts) {
    snprintf(place, sizeof place, "%s/", folder);
    number = which, with = error, stays = lasts;
    shared->calls = shared->failed = 0;
}
void faults_clock(int on) { jumps = on; }
long faults_calls(void) { return shared->calls; }
long faults_failed(void) { return shared->failed; }

static int path_fails(const char *path) {
    if (!*place || strncmp(path, place, strlen(place))) return 0;
    long call = __atomic_add_fetch(&shared->calls, 1, __ATOMIC_SEQ_CST);
    if (!number || (stays ? call < number : call != number)) return 0;
    __atomic_add_fetch(&shared->failed, 1, __ATOMIC_SEQ_CST);
    errno = with;
    return 1;
}
static int fails(int file) {
    char link[64], path[PATH_MAX];
    if (!*place) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return path_fails(path);
}

#define REAL(name) ({ static __typeof__(&name) real; \
    real = real ? real : (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })
#define ON_FILE(type, name, parameters, arguments) \
    type name parameters { return fails(file) ? -1 : REAL(name) arguments; }
#define ON_PATH(type, name, parameters, arguments) \
    type name parameters { return path_fails(path) ? -1 : REAL(name) arguments; }
#define OPENS(name, parameters, arguments) \
    int name parameters { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        if ((flags & (O_CREAT | O_TRUNC)) && path_fails(path)) return -1; \
        return REAL(name) arguments; \
    }

ON_FILE(ssize_t, write, (int file, const void *from, size_t size), (file, from, size))
ON_FILE(ssize_t, writev, (int file, const struct iovec *from, int count), (file, from, count))
ON_FILE(ssize_t, pwrite, (int file, const void *from, size_t size, off_t at), (file, from, size, at))
ON_FILE(ssize_t, pwrite64, (int file, const void *from, size_t size, off64_t at), (file, from, size, at))
ON_FILE(int, fsync, (int file), (file))
ON_FILE(int, fdatasync, (int file), (file))
ON_FILE(int, ftruncate, (int file, off_t size), (file, size))
ON_FILE(int, ftruncate64, (int file, off64_t size), (file, size))
ON_FILE(ssize_t, sendfile64, (int file, int from, off64_t *at, size_t size), (file, from, at, size))
ON_FILE(ssize_t, sendfile, (int file, int from, off_t *at, size_t size), (file, from, at, size))
ON_FILE(ssize_t, copy_file_range,
        (int from, off64_t *at, int file, off64_t *to, size_t size, unsigned flags),
        (from, at, file, to, size, flags))
ON_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(int, mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode))
ON_PATH(int, rename, (const char *from, const char *path), (from, path))
ON_PATH(int, renameat, (int a, const char *from, int b, const char *path), (a, from, b, path))
ON_PATH(int, renameat2, (int a, const char *from, int b, const char *path, unsigned flags),
        (a, from, b, path, flags))
OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPENS(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))

/* Every look at the clock of the day sees another day. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int looks;
    int code = REAL(clock_gettime)(clock, now);
    if (jumps && !code && clock == CLOCK_REALTIME) now->tv_sec += looks++ % 2 ? 86400 : -86400;
    return code;
}
