/* The default table of system calls. */

#include "kernel.h"

#if defined(_WIN32)

const struct za_system *zarrasync_system(void) { return NULL; }
int64_t zarrasync_can_confine(void) { return 0; }

#else

#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#if !defined(SYS_openat2) && (defined(__x86_64__) || defined(__aarch64__))
#define SYS_openat2 437 /* which old headers lack */
#endif
#endif

static int system_openat(int folder, const char *name, int flags) { return openat(folder, name, flags, 0666); }

static int system_open_below(int folder, const char *name, int flags, int no_links)
{
#if defined(SYS_openat2) /* since Linux 5.6 */
    enum { NO_MAGIC_LINKS = 2, NO_LINKS = 4, BELOW = 8 };
    struct {
        uint64_t flags, mode, resolve;
    } how = {.flags = (uint64_t)flags, .resolve = BELOW | NO_MAGIC_LINKS | (no_links ? NO_LINKS : 0u)};
    return (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
#else
    (void)folder, (void)name, (void)flags, (void)no_links;
    errno = ENOSYS;
    return -1;
#endif
}

static ssize_t system_copy(int source, int64_t *start, int file, size_t size)
{
#if defined(SYS_copy_file_range) /* old C libraries have no function of this name */
    return syscall(SYS_copy_file_range, source, start, file, NULL, size, 0u);
#else
    (void)source, (void)start, (void)file, (void)size;
    errno = ENOSYS;
    return -1;
#endif
}

static int system_lock(int file, int kind, int64_t position)
{
    struct flock lock = {.l_type = (short)kind, .l_whence = SEEK_SET, .l_start = (off_t)position, .l_len = 1};
#if defined(__linux__)
    return fcntl(file, F_OFD_SETLK, &lock);
#else
    return fcntl(file, F_SETLK, &lock);
#endif
}

static int system_rename_new(int folder, const char *from, const char *to)
{
#if defined(__linux__)
    return (int)syscall(SYS_renameat2, folder, from, folder, to, 1u /* RENAME_NOREPLACE, which old headers lack */);
#elif defined(__APPLE__)
    return renameatx_np(folder, from, folder, to, RENAME_EXCL);
#else
    struct stat state; /* only a folder with files is never replaced */
    if (fstatat(folder, from, &state, 0) != 0 || !S_ISDIR(state.st_mode))
        return -1;
    return renameat(folder, from, folder, to);
#endif
}

static const struct za_system LIBC = {
    .openat = system_openat,
    .open_below = system_open_below,
    .close = close,
    .pread = pread,
    .writev = writev,
    .copy = system_copy,
    .fstat = fstat,
    .fstatat = fstatat,
    .lock = system_lock,
    .linkat = linkat,
    .renameat = renameat,
    .rename_new = system_rename_new,
    .unlinkat = unlinkat,
    .mkdirat = mkdirat,
    .opendir = opendir,
    .readdir = readdir,
    .closedir = closedir,
};

const struct za_system *zarrasync_system(void) { return &LIBC; }

int64_t zarrasync_can_confine(void)
{
    /* A whole path leads out of any folder. */
    return system_open_below(AT_FDCWD, "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0) < 0 && errno == EXDEV;
}

#endif
