/* Files of chunks. */

#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#if defined(_WIN32)

/* Files are read and written by Python on Windows; the kernel decodes and places what it is given. No folder can be opened, so
 * that the other functions are never called. */
#define NEVER_CALLED { abort(); }
#pragma GCC diagnostic ignored "-Wunused-parameter"

int za_folder_open(struct za_folder *folder, const struct za_system *system, const struct za_array *array, int keeps)
{
    return 0;
}
void za_folder_close(struct za_folder *folder) NEVER_CALLED
int za_open_chunk(struct za_folder *folder, const int64_t *coords) NEVER_CALLED
void za_close(const struct za_system *system, int file) NEVER_CALLED
int64_t za_read(const struct za_system *system, int file, uint8_t *memory, int64_t size, int64_t start) NEVER_CALLED
int64_t za_file_size(const struct za_system *system, int file, struct za_version *version) NEVER_CALLED
int64_t za_lock(struct za_folder *folder, const int64_t *coords, const struct za_place *place, int lock_file) NEVER_CALLED
void za_unlock(const struct za_folder *folder, int lock_file, int64_t position) NEVER_CALLED
int za_store_chunk(struct za_folder *folder, const int64_t *coords, const char *suffix, const struct za_content *content,
                   const struct za_version *expected) NEVER_CALLED
int za_is_new(struct za_folder *folder, const int64_t *coords) NEVER_CALLED
int za_create_chunk(struct za_folder *folder, const int64_t *coords, const char *suffix, const struct za_content *content)
NEVER_CALLED
int za_publish(struct za_folder *folder, const int64_t *coords, const char *suffix) NEVER_CALLED

#else

#include "system.h"

#include <unistd.h>

#if defined(O_PATH)
#define FOLDER_FLAGS (O_PATH | O_DIRECTORY | O_CLOEXEC)
#else
#define FOLDER_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC)
#endif

/* ---------------------------------------------------------------- names */

static char *append_number(char *end, int64_t number)
{
    char digits[20];
    int count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    while (count > 0)
        *end++ = digits[--count];
    return end;
}

int za_folder_open(struct za_folder *folder, const struct za_system *system, const struct za_array *array, int keeps)
{
    size_t directory = strlen(array->directory), head = strlen(array->head);
    folder->system = system;
    folder->array = array;
    folder->handle = folder->root = -1;
    folder->is_absent = 0;
    folder->keeps = keeps;
    folder->parents = array->separator == '/' ? array->axis_count - 1 : 0;
    if (directory + head + (size_t)array->axis_count * 21 + 1 > sizeof folder->path)
        return 0;
    memcpy(folder->path, array->directory, directory);
    memcpy(folder->path + directory, array->head, head + 1);
    folder->head = directory + head;
    folder->last = (size_t)(strrchr(folder->path, '/') + 1 - folder->path);
    return 1;
}

/* Leave the folder that was entered. */
static void leave_folder(struct za_folder *folder)
{
    if (folder->handle >= 0)
        folder->system->close(folder->handle);
    folder->handle = -1;
    folder->is_absent = 0;
}

void za_folder_close(struct za_folder *folder)
{
    leave_folder(folder);
    if (folder->root >= 0)
        folder->system->close(folder->root);
    folder->root = -1;
}

/* Write the name of a chunk into the path, after the head. Returns where the last part of the path begins. */
static char *write_name(struct za_folder *folder, const int64_t *coords)
{
    char *end = folder->path + folder->head, *last = folder->path + folder->last, separator = (char)folder->array->separator;
    int64_t count = separator != 0 ? folder->array->axis_count : 0;
    for (int64_t i = 0; i < count; i++) {
        if (i > 0)
            *end++ = separator;
        if (i > 0 && separator == '/')
            last = end;
        end = append_number(end, coords[i]);
    }
    *end = '\0';
    return last;
}

/* Bytes of a temporary name. */
enum { ROOM = sizeof((struct za_folder *)0)->path + 256 };

/* Write a temporary name: the first `length` characters of a name, and a suffix. Returns 0 if it is too long. */
static int add_suffix(char *temporary, const char *name, size_t length, const char *suffix)
{
    size_t more = strlen(suffix) + 1;
    if (length + more > ROOM)
        return 0;
    memcpy(temporary, name, length);
    memcpy(temporary + length, suffix, more);
    return 1;
}

/* ---------------------------------------------------------------- opening */

static int is_absent_error(int error) { return error == ENOENT || error == ENOTDIR; }

static int open_at(const struct za_system *system, int folder, const char *name, int flags)
{
    int file;
    do
        file = system->openat(folder, name, flags | O_CLOEXEC);
    while (file < 0 && errno == EINTR);
    return file;
}

/* As open_at, of an existing file, if no link leads out of the folder, and with `no_links`, if there is none. */
static int open_below(const struct za_system *system, int folder, const char *name, int flags, int no_links)
{
    int file;
    do
        file = system->open_below(folder, name, flags | O_CLOEXEC, no_links);
    while (file < 0 && errno == EINTR);
    return file;
}

/* Open the folder that no link may leave, unless that has been done: another one may have its name in the next call. Returns 0 if
 * that fails. */
static int enter_root(struct za_folder *folder)
{
    char *end = folder->path + folder->array->root, first = *end;
    if (folder->root < 0) {
        *end = '\0';
        folder->root = open_at(folder->system, AT_FDCWD, folder->path, FOLDER_FLAGS);
        *end = first;
    }
    return folder->root >= 0;
}

/* Open the path below the root. */
static int open_below_root(const struct za_folder *folder, int flags, int no_links)
{
    size_t root = (size_t)folder->array->root;
    const char *name = strlen(folder->path) > root ? folder->path + root : ".";
    return open_below(folder->system, folder->root, name, flags, no_links);
}

/* Open the path. */
static int open_path(struct za_folder *folder, int flags)
{
    if (folder->array->root == 0)
        return open_at(folder->system, AT_FDCWD, folder->path, flags);
    if (enter_root(folder))
        return open_below_root(folder, flags, 0);
    errno = EACCES; /* even if it does not exist: Python decides what that means */
    return -1;
}

/* Whether the path, which could not be opened, does not exist. A link that leads nowhere, or a path behind one, is not absent: it
 * is an error. */
static int is_missing(struct za_folder *folder)
{
    const struct za_system *system = folder->system;
    char *path = folder->path;
    struct stat state;
    if (folder->array->root != 0) { /* no link is followed to find out */
        int file = open_below_root(folder, FOLDER_FLAGS & ~O_DIRECTORY, 1);
        if (file >= 0)
            system->close(file);
        return file < 0 && is_absent_error(errno);
    }
    if (system->fstatat(AT_FDCWD, path, &state, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    for (char *end = strrchr(path, '/'); end > path;) {
        *end = '\0';
        int exists = system->fstatat(AT_FDCWD, path, &state, 0) == 0;
        int is_link = !exists && system->fstatat(AT_FDCWD, path, &state, AT_SYMLINK_NOFOLLOW) == 0;
        char *next = strrchr(path, '/');
        *end = '/';
        if (exists || is_link)
            return exists;
        end = next;
    }
    return 1;
}

/* Whether the folder that was entered, or is absent, contains a chunk: the coordinates that name folders are the same. */
static int is_entered(const struct za_folder *folder, const int64_t *coords)
{
    if (folder->handle < 0 && !folder->is_absent)
        return 0;
    for (int64_t i = 0; i < folder->parents; i++)
        if (folder->parent[i] != coords[i])
            return 0;
    return 1;
}

/* Open the folder of a chunk, whose name there is `name`, unless that has been done. Returns 0 if that fails for another
 * reason than that the folder does not exist. */
static int enter_folder(struct za_folder *folder, const int64_t *coords, char *name)
{
    if (is_entered(folder, coords))
        return 1;
    if (name - folder->path < 2)
        return 0;
    leave_folder(folder);
    name[-1] = '\0';
    folder->handle = open_path(folder, FOLDER_FLAGS);
    folder->is_absent = folder->handle < 0 && is_absent_error(errno) && is_missing(folder);
    name[-1] = '/';
    folder->place.device = -1;
    for (int64_t i = 0; i < folder->parents; i++)
        folder->parent[i] = coords[i];
    return folder->handle >= 0 || folder->is_absent;
}

int za_open_chunk(struct za_folder *folder, const int64_t *coords)
{
    char *name = write_name(folder, coords);
    int is_inside = folder->keeps && enter_folder(folder, coords, name);
    if (is_inside && folder->is_absent)
        return ZA_NO_FILE;
    /* Opening a named pipe would wait. */
    const int flags = O_RDONLY | O_NONBLOCK;
    int file;
    if (!is_inside)
        file = open_path(folder, flags);
    else if (folder->array->root == 0)
        file = open_at(folder->system, folder->handle, name, flags);
    else /* Python reads what links lead to in other folders */
        file = open_below(folder->system, folder->handle, name, flags, 0);
    if (file >= 0)
        return file;
    struct stat state;
    int is_absent = is_absent_error(errno);
    if (is_absent) /* and not a link that leads nowhere */
        is_absent = is_inside ? folder->system->fstatat(folder->handle, name, &state, AT_SYMLINK_NOFOLLOW) != 0
                              : is_missing(folder);
    return is_absent ? ZA_NO_FILE : ZA_FAILED;
}

void za_close(const struct za_system *system, int file) { system->close(file); }

/* ---------------------------------------------------------------- reading and writing */

/* Most bytes that are read or written at once: some systems refuse more than 2 GiB. */
static size_t at_once(int64_t size) { return size < 1 << 30 ? (size_t)size : 1 << 30; }

int64_t za_read(const struct za_system *system, int file, uint8_t *memory, int64_t size, int64_t start)
{
    int64_t done = 0;
    while (done < size) {
        size_t most = at_once(size - done);
        ssize_t count = system->pread(file, memory + done, most, (off_t)(start + done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return ZA_FAILED;
        done += count;
        if ((size_t)count < most) /* the end of the file, or an unusual file system: callers know how many they need */
            break;
    }
    return done;
}

static struct za_version to_version(const struct stat *state)
{
#if defined(__APPLE__)
    struct timespec time = state->st_mtimespec;
#else
    struct timespec time = state->st_mtim;
#endif
    return (struct za_version){(int64_t)time.tv_sec, (int64_t)time.tv_nsec, (int64_t)state->st_ino, (int64_t)state->st_size};
}

int64_t za_file_size(const struct za_system *system, int file, struct za_version *version)
{
    struct stat state;
    if (system->fstat(file, &state) != 0 || !S_ISREG(state.st_mode))
        return ZA_FAILED;
    if (version != NULL)
        *version = to_version(&state);
    return (int64_t)state.st_size;
}

/* Most pieces that are written at once. Systems allow at least 1,024. */
enum { PIECES_AT_ONCE = 256 };

/* Write the pieces in memory from a number on, up to the next one in a file. Returns the number of that, or ZA_FAILED. */
static int64_t write_pieces(const struct za_system *system, int file, const struct za_content *content, int64_t number)
{
    const struct za_piece *pieces = content->pieces;
    ssize_t done = 0; /* bytes of the piece */
    while (number < content->count && !pieces[number].is_in_file) {
        struct iovec parts[PIECES_AT_ONCE];
        int count = 0;
        int64_t start = done, total = 0;
        for (int64_t i = number; i < content->count && !pieces[i].is_in_file && count < PIECES_AT_ONCE; i++, start = 0) {
            size_t size = at_once(pieces[i].size - start);
            if (total + (int64_t)size > 1 << 30)
                break;
            parts[count++] = (struct iovec){(void *)(uintptr_t)(content->memory + pieces[i].start + start), size};
            total += (int64_t)size;
        }
        ssize_t written = system->writev(file, parts, count);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0 || (written == 0 && total > 0))
            return ZA_FAILED;
        for (done += written; number < content->count && done >= pieces[number].size && !pieces[number].is_in_file; number++)
            done -= pieces[number].size;
    }
    return number;
}

/* Append bytes of a file to another one, in the system where it can do that: some file systems share the blocks. */
static int copy_all(const struct za_system *system, int file, int source, int64_t start, int64_t size)
{
    uint8_t memory[16384];
    for (ssize_t count = 1; size > 0 && (count > 0 || (count < 0 && errno == EINTR));) {
        count = system->copy(source, &start, file, at_once(size));
        size -= count > 0 ? count : 0;
    }
    while (size > 0) {
        int64_t count = za_read(system, source, memory, size < (int64_t)sizeof memory ? size : (int64_t)sizeof memory, start);
        struct za_piece piece = {.size = count};
        if (count <= 0 || write_pieces(system, file, &(struct za_content){.memory = memory, .pieces = &piece, .count = 1}, 0) != 1)
            return 0;
        start += count;
        size -= count;
    }
    return 1;
}

/* Create a file. If that fails, there is none. */
static int create_file(const struct za_system *system, int folder, const char *name, const struct za_content *content)
{
    int file = open_at(system, folder, name, O_WRONLY | O_CREAT | O_EXCL);
    if (file < 0)
        return 0;
    int is_written = 1;
    for (int64_t i = 0; i < content->count && is_written; i++) {
        const struct za_piece *piece = &content->pieces[i];
        if (piece->is_in_file)
            is_written = copy_all(system, file, content->file, piece->start, piece->size);
        else /* and its successors */
            is_written = (i = write_pieces(system, file, content, i) - 1) >= 0;
    }
    is_written &= system->close(file) == 0;
    if (!is_written)
        system->unlinkat(folder, name, 0);
    return is_written;
}

/* ---------------------------------------------------------------- locks */

static int is_place(const struct stat *state, const struct za_place *place)
{
    return place->device == (int64_t)state->st_dev && place->inode == (int64_t)state->st_ino;
}

/* Return the checksum of a name, which is that of zlib, or -1 if the name may be compared in another form. */
static int64_t sum_name(const char *name)
{
    uint32_t sum = UINT32_MAX;
    for (; *name != '\0'; name++) {
        uint8_t letter = (uint8_t)*name;
        if (letter >= 0x80)
            return -1;
        sum ^= letter >= 'A' && letter <= 'Z' ? letter + 32u : letter;
        for (int i = 0; i < 8; i++)
            sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    }
    return (int64_t)~sum;
}

int64_t za_lock(struct za_folder *folder, const int64_t *coords, const struct za_place *place, int lock_file)
{
    struct stat state;
    char *name = write_name(folder, coords);
    folder->keeps = 1; /* the lock is that of this folder */
    if (!enter_folder(folder, coords, name) || folder->is_absent)
        return -1;
    if (folder->place.device < 0 && folder->system->fstat(folder->handle, &state) == 0 && is_place(&state, place))
        folder->place = *place;
    int64_t sum = sum_name(name);
    if (sum < 0 || memcmp(&folder->place, place, sizeof *place) != 0)
        return -1;
    uint64_t number = (uint64_t)place->device * 0x9E3779B97F4A7C15u + (uint64_t)place->inode;
    number = (number * 0xD1B54A32D192ED03u + (uint64_t)sum) * 0xAEF17502108EF2D9u; /* as in local_locks.py */
    int64_t position = (int64_t)(number >> 2);
    return folder->system->lock(lock_file, F_WRLCK, position) == 0 ? position : -1;
}

void za_unlock(const struct za_folder *folder, int lock_file, int64_t position)
{
    folder->system->lock(lock_file, F_UNLCK, position);
}

/* ---------------------------------------------------------------- changes */

/* Whether the path of a chunk, whose last part is `name`, still leads to the folder that was locked. */
static int is_in_place(struct za_folder *folder, char *name)
{
    struct stat state;
    name[-1] = '\0';
    int exists = folder->system->fstatat(AT_FDCWD, folder->path, &state, 0) == 0;
    name[-1] = '/';
    return exists && is_place(&state, &folder->place);
}

/* Whether the file of a chunk, which is in the folder that was entered, has a version. */
static int has_version(const struct za_folder *folder, const char *name, const struct za_version *expected)
{
    struct stat state;
    if (folder->system->fstatat(folder->handle, name, &state, 0) != 0)
        return 0;
    struct za_version found = to_version(&state);
    return memcmp(&found, expected, sizeof found) == 0;
}

int za_store_chunk(struct za_folder *folder, const int64_t *coords, const char *suffix, const struct za_content *content,
                   const struct za_version *expected)
{
    char temporary[ROOM], *name = write_name(folder, coords);
    const struct za_system *system = folder->system;
    int handle = folder->handle, is_stored, is_renamed = expected == NULL || expected->size >= 0;
    if (!add_suffix(temporary, name, strlen(name), suffix) || !create_file(system, handle, temporary, content))
        return 0;
    is_stored = expected == NULL || is_in_place(folder, name);
    if (!is_renamed) /* a link is not made if the name exists; some file systems have none */
        is_stored = is_stored && (system->linkat(handle, temporary, handle, name, 0) == 0 ||
                                  (errno != EEXIST && system->rename_new(handle, temporary, name) == 0));
    else
        is_stored = is_stored && (expected == NULL || has_version(folder, name, expected)) &&
                    system->renameat(handle, temporary, handle, name) == 0;
    if (!is_renamed || !is_stored)
        system->unlinkat(handle, temporary, 0);
    return is_stored;
}

/* ---------------------------------------------------------------- whole folders */

int za_is_new(struct za_folder *folder, const int64_t *coords)
{
    return enter_folder(folder, coords, write_name(folder, coords)) && folder->is_absent;
}

/* Create the folders between that of the array and that of a chunk, whose name is `last`. The next call shows whether they
 * exist. */
static void make_folders(struct za_folder *folder, const char *last)
{
    char *end = folder->path + strlen(folder->array->directory);
    for (; (end = strchr(end, '/')) != NULL && end < last - 1; end++) {
        *end = '\0';
        folder->system->mkdirat(AT_FDCWD, folder->path, 0777);
        *end = '/';
    }
}

/* Write the temporary name of the folder of a chunk, whose name is `last`. Returns 0 if it is too long. */
static int name_stage(const struct za_folder *folder, const char *last, const char *suffix, char *temporary)
{
    return add_suffix(temporary, folder->path, (size_t)(last - 1 - folder->path), suffix);
}

/* Create the folder of a chunk, whose name is `last`, under a temporary name, and enter it. Returns 0 if that fails. */
static int stage(struct za_folder *folder, const char *last, const char *suffix)
{
    char temporary[ROOM];
    const struct za_system *system = folder->system;
    if (!name_stage(folder, last, suffix, temporary))
        return 0;
    if (system->mkdirat(AT_FDCWD, temporary, 0777) != 0) {
        make_folders(folder, last);
        if (system->mkdirat(AT_FDCWD, temporary, 0777) != 0)
            return 0;
    }
    folder->handle = open_at(system, AT_FDCWD, temporary, FOLDER_FLAGS);
    if (folder->handle < 0)
        system->unlinkat(AT_FDCWD, temporary, AT_REMOVEDIR);
    return folder->handle >= 0;
}

int za_create_chunk(struct za_folder *folder, const int64_t *coords, const char *suffix, const struct za_content *content)
{
    char *name = write_name(folder, coords);
    return (folder->handle >= 0 || stage(folder, name, suffix)) && create_file(folder->system, folder->handle, name, content);
}

/* Remove a folder under its temporary name. */
static void remove_stage(struct za_folder *folder, const char *temporary)
{
    const struct za_system *system = folder->system;
    DIR *entries = system->opendir(temporary);
    if (entries != NULL) {
        for (struct dirent *entry; (entry = system->readdir(entries)) != NULL;)
            system->unlinkat(folder->handle, entry->d_name, 0); /* fails for . and .. */
        system->closedir(entries);
    }
    system->unlinkat(AT_FDCWD, temporary, AT_REMOVEDIR);
}

int za_publish(struct za_folder *folder, const int64_t *coords, const char *suffix)
{
    char temporary[ROOM], *last = write_name(folder, coords);
    int outcome = ZA_PUBLISHED;
    if (folder->handle < 0 || !name_stage(folder, last, suffix, temporary)) /* nothing was staged */
        return outcome;
    last[-1] = '\0';
    /* Not even an empty folder is replaced: another process may hold locks of files in it. */
    if (folder->system->rename_new(AT_FDCWD, temporary, folder->path) != 0)
        outcome = errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR ? ZA_TAKEN : ZA_FAILED;
    last[-1] = '/';
    if (outcome != ZA_PUBLISHED)
        remove_stage(folder, temporary);
    leave_folder(folder);
    return outcome;
}

#endif
