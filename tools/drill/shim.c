/* Injects faults into the file calls of a process (Linux, LD_PRELOAD).

   A rule is a text of four lines, given to drill_arm or in LRA_FNET_DRILL; an empty one ends all:

     ACTION A B C NTH CALLS    which fault, its numbers, at which of the matching calls, of which kind
     TRACE                     a file that gets a line for each matching call, or empty
     BELOW                     only paths that begin with this match
     PART                      only paths that contain this match; may be empty

   Kinds of calls: o open for writing, r open for reading, w write, s sync, t truncate or reserve,
   m mkdir, n rename or link, u unlink or rmdir, c connect (its path is "connect").

   Actions: count; kill (before the call); half (kills after half a write, or after the whole other
   call); fail A (that call fails with errno A); full A (that and all later ones that need space
   do); short (half a write); delay A (every call takes A microseconds longer); signal A B C (sends
   signal A after B milliseconds, C times). */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE, COUNT, KILL, HALF, FAIL, FULL, SHORT, DELAY, SIGNAL };
static const char *const ACTIONS[] = {"none", "count", "kill", "half", "fail",
                                      "full", "short", "delay", "signal", NULL};
struct rule {
  int action, trace;
  long a, b, c, nth;
  char kinds[32], below[PATH_MAX], part[PATH_MAX];
  atomic_long seen;
};
static struct rule rules[4];
static int armed;
static long error_number;

void drill_arm(const char *text) {
  char name[16], file[PATH_MAX] = "";
  struct rule *rule = &rules[armed];
  memset(rule, 0, sizeof *rule);
  int read = sscanf(text, "%15s %ld %ld %ld %ld %31s", name, &rule->a, &rule->b, &rule->c,
                    &rule->nth, rule->kinds);
  if (read != 6 || armed == 4) {
    armed = 0;
    return;
  }
  char *lines[] = {file, rule->below, rule->part};
  const char *rest = strchr(text, '\n');
  for (int i = 0; i < 3 && rest; i++) {
    size_t length = strcspn(++rest, "\n");
    snprintf(lines[i], PATH_MAX, "%.*s", (int)length, rest);
    rest = rest[length] ? rest + length : NULL;
  }
  int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  rule->trace = file[0] ? syscall(SYS_openat, AT_FDCWD, file, flags, 0644) : -1;
  for (int i = 0; ACTIONS[i]; i++)
    if (!strcmp(name, ACTIONS[i])) rule->action = i;
  armed++;
}

__attribute__((constructor)) static void begin(void) {
  if (getenv("LRA_FNET_DRILL")) drill_arm(getenv("LRA_FNET_DRILL"));
}

static void *send_signals(void *argument) {
  struct rule *rule = argument;
  for (long i = 0; i < rule->c; i++) {
    usleep(1000 * (i ? 200 : rule->b));
    kill(getpid(), rule->a);
  }
  return NULL;
}

static void send_later(struct rule *rule) {
  pthread_t thread;
  sigset_t all, before; /* Python's handlers run in the main thread */
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  if (!pthread_create(&thread, NULL, send_signals, rule)) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Counts a call and returns what a rule does to it: NONE, HALF, FAIL or SHORT. */
static int apply(struct rule *rule, char kind, const char *path) {
  char line[2 * PATH_MAX + 32];
  if (!strchr(rule->kinds, kind) || !strstr(path, rule->part)) return NONE;
  if (strncmp(path, rule->below, strlen(rule->below))) return NONE;
  long number = ++rule->seen;
  if (rule->trace >= 0) {
    int length = snprintf(line, sizeof line, "%ld %c %s\n", number, kind, path);
    syscall(SYS_write, rule->trace, line, length);
  }
  error_number = rule->a;
  if (rule->action == DELAY) usleep(rule->a);
  if (rule->action == FULL && number >= rule->nth && strchr("owmnt", kind)) return FAIL;
  if (number != rule->nth) return NONE;
  if (rule->action == KILL) kill(getpid(), SIGKILL);
  if (rule->action == SIGNAL) rule->b || rule->c > 1 ? send_later(rule) : (void)send_signals(rule);
  return rule->action == HALF || rule->action == FAIL || rule->action == SHORT ? rule->action : NONE;
}

/* Returns what the rules do to a call: NONE, HALF, FAIL or SHORT. */
static int note(char kind, int folder, const char *path) {
  char full[2 * PATH_MAX] = "", link[64];
  if (!armed) return NONE;
  int saved = errno, result = NONE;
  if (!path || path[0] != '/') {
    if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, full, PATH_MAX - 1);
    full[length > 0 ? length : 0] = 0;
    if (path) strcat(full, "/");
  }
  if (path) strncat(full, path, PATH_MAX - 1);
  for (int i = 0; i < armed && !result; i++) result = apply(&rules[i], kind, full);
  errno = saved;
  return result;
}

/* Does a system call as the noted action says. */
#define DO(kind, folder, path, ...)                \
  do {                                             \
    int todo = note(kind, folder, path);           \
    if (todo == FAIL) return errno = error_number, -1;        \
    long result = syscall(__VA_ARGS__);            \
    if (todo == HALF) kill(getpid(), SIGKILL);     \
    return result;                                 \
  } while (0)

static int open_at(int folder, const char *path, int flags, mode_t mode) {
  int writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
  DO(writes ? 'o' : 'r', folder, path, SYS_openat, folder, path, flags, mode);
}

#define MODE                                                      \
  mode_t mode = 0;                                                \
  if (flags & (O_CREAT | O_TMPFILE)) {                            \
    va_list arguments;                                            \
    va_start(arguments, flags);                                   \
    mode = va_arg(arguments, mode_t);                             \
    va_end(arguments);                                            \
  }
int open(const char *path, int flags, ...) { MODE return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return open_at(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE return open_at(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE return open_at(at, path, flags, mode); }
int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int creat(const char *path, mode_t mode) {
  return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

/* Writes half of the bytes if that is the fault. */
#define WRITE(file, length, ...)                                    \
  do {                                                              \
    int todo = note('w', file, NULL);                               \
    if (todo == FAIL) return errno = error_number, -1;                         \
    if ((todo == HALF || todo == SHORT) && length > 1) length /= 2; \
    long result = syscall(__VA_ARGS__);                             \
    if (todo == HALF) kill(getpid(), SIGKILL);                      \
    return result;                                                  \
  } while (0)

ssize_t write(int file, const void *data, size_t size) { WRITE(file, size, SYS_write, file, data, size); }
ssize_t pwrite(int file, const void *data, size_t size, off_t place) {
  WRITE(file, size, SYS_pwrite64, file, data, size, place);
}
ssize_t pwrite64(int file, const void *data, size_t size, off_t place) {
  WRITE(file, size, SYS_pwrite64, file, data, size, place);
}
ssize_t writev(int file, const struct iovec *data, int count) {
  WRITE(file, count, SYS_writev, file, data, count);
}
ssize_t pwritev(int file, const struct iovec *data, int count, off_t place) {
  WRITE(file, count, SYS_pwritev, file, data, count, place, 0L);
}
ssize_t sendfile(int to, int from, off_t *place, size_t size) {
  WRITE(to, size, SYS_sendfile, to, from, place, size);
}
ssize_t copy_file_range(int from, off_t *start, int to, off_t *place, size_t size, unsigned flags) {
  WRITE(to, size, SYS_copy_file_range, from, start, to, place, size, flags);
}

int fsync(int file) { DO('s', file, NULL, SYS_fsync, file); }
int fdatasync(int file) { DO('s', file, NULL, SYS_fdatasync, file); }
int ftruncate(int file, off_t size) { DO('t', file, NULL, SYS_ftruncate, file, size); }
int ftruncate64(int file, off_t size) { DO('t', file, NULL, SYS_ftruncate, file, size); }
int truncate(const char *path, off_t size) { DO('t', AT_FDCWD, path, SYS_truncate, path, size); }
int mkdir(const char *path, mode_t mode) { DO('m', AT_FDCWD, path, SYS_mkdirat, AT_FDCWD, path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { DO('m', at, path, SYS_mkdirat, at, path, mode); }
int unlink(const char *path) { DO('u', AT_FDCWD, path, SYS_unlinkat, AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { DO('u', at, path, SYS_unlinkat, at, path, flags); }
int rmdir(const char *path) { DO('u', AT_FDCWD, path, SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) { return unlink(path) ? errno == EISDIR ? rmdir(path) : -1 : 0; }
int rename(const char *from, const char *to) {
  DO('n', AT_FDCWD, to, SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int at, const char *from, int there, const char *to) {
  DO('n', there, to, SYS_renameat2, at, from, there, to, 0);
}
int link(const char *from, const char *to) {
  DO('n', AT_FDCWD, to, SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int symlink(const char *from, const char *to) {
  DO('n', AT_FDCWD, to, SYS_symlinkat, from, AT_FDCWD, to);
}
int posix_fallocate(int file, off_t start, off_t size) {
  if (note('t', file, NULL) == FAIL) return error_number;
  return syscall(SYS_fallocate, file, 0, start, size) ? errno : 0;
}
int connect(int file, const struct sockaddr *address, socklen_t size) {
  DO('c', AT_FDCWD, "/connect", SYS_connect, file, address, size);
}
