/* The calls of the operating system that concern files, in a table that tests replace to let calls fail or be the last ones. */
#ifndef ZARRASYNC_SYSTEM_H
#define ZARRASYNC_SYSTEM_H

#include "kernel.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

/* They have the names, the results and the errors of POSIX, except where a comment says otherwise. */
struct za_system {
    int (*openat)(int folder, const char *name, int flags); /* a new file may be read and written by all, less the umask */
    /* The same for reading, if no part of the name leads out of the folder, and with `no_links`, if none is a link. ENOSYS if
     * the system cannot do that. */
    int (*open_below)(int folder, const char *name, int flags, int no_links);
    int (*close)(int file);
    ssize_t (*pread)(int file, void *memory, size_t size, off_t start);
    ssize_t (*writev)(int file, const struct iovec *parts, int count);
    /* Append bytes of a file from `*start` on to another one, and move `*start`. ENOSYS if the system cannot do that. */
    ssize_t (*copy)(int source, int64_t *start, int file, size_t size);
    int (*fstat)(int file, struct stat *state);
    int (*fstatat)(int folder, const char *name, struct stat *state, int flags);
    /* Lock or unlock a byte without waiting. On Linux, a lock belongs to the open file, elsewhere to the process. */
    int (*lock)(int file, int kind, int64_t position);
    int (*linkat)(int folder, const char *from, int other_folder, const char *to, int flags);
    int (*renameat)(int folder, const char *from, int other_folder, const char *to);
    /* Rename a file or a folder, unless the new name exists. */
    int (*rename_new)(int folder, const char *from, const char *to);
    int (*unlinkat)(int folder, const char *name, int flags);
    int (*mkdirat)(int folder, const char *name, mode_t mode);
    DIR *(*opendir)(const char *path);
    struct dirent *(*readdir)(DIR *entries);
    int (*closedir)(DIR *entries);
};

#endif
