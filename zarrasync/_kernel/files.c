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

int za_folder_open(struct za_folder *folder, const struct za_array *array, int keeps) { return 0; }
void za_folder_close(struct za_folder *folder) NEVER_CALLED
int za_open_chunk(struct za_folder *folder, const int64_t *coords) NEVER_CALLED
void za_close(int file) NEVER_CALLED
int64_t za_read(int file, uint8_t *memory, int64_t size) NEVER_CALLED
int64_t za_read_at(int file, uint8_t *memory, int64_t size, int64_t start) NEVER_CALLED
int64_t za_file_size(int file) NEVER_CALLED
int za_store_chunk(struct za_folder *folder, const int64_t *coords, const char *suffix, const uint8_t *data, int64_t size)
NEVER_CALLED
int za_enter_place(struct za_folder *folder, const int64_t *coords, const struct za_place *place) NEVER_CALLED
int64_t za_lock(struct za_folder *folder, const int64_t *coords, int lock_file) NEVER_CALLED
void za_unlock(int lock_file, int64_t position) NEVER_CALLED
int za_version_of(int file, struct za_version *version) NEVER_CALLED
int za_swap_chunk(struct za_folder *folder, const int64_t *coords, const char *suffix, const uint8_t *data, int64_t size,
                  const struct za_version *expected) NEVER_CALLED
int za_is_new(struct za_folder *folder, const int64_t *coords) NEVER_CALLED
int za_stage(struct za_folder *folder, const int64_t *coords, const char *suffix) NEVER_CALLED
int za_create_chunk(struct za_folder *folder, const int64_t *coords, const uint8_t *data, int64_t size) NEVER_CALLED
int za_publish(struct za_folder *folder, const int64_t *coords, const char *suffix) NEVER_CALLED

#else

#include <dirent.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#if defined(O_PATH)
#define FOLDER_FLAGS (O_PATH | O_DIRECTORY | O_CLOEXEC)
#else
#define FOLDER_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC)
#endif

/* Most bytes of a single read: some systems refuse more than 2 GiB. */
#define MOST_AT_ONCE ((int64_t)1 << 30)

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

int za_folder_open(struct za_folder *folder, const struct za_array *array, int keeps)
{
    size_t directory = strlen(array->directory), head = strlen(array->head);
    folder->array = array;
    folder->handle = -1;
    folder->is_absent = 0;
    folder->keeps = keeps;
    if (directory + head + (size_t)array->axis_count * 21 + 1 > sizeof folder->path)
        return 0;
    memcpy(folder->path, array->directory, directory);
    memcpy(folder->path + directory, array->head, head + 1);
    folder->head = directory + head;
    return 1;
}

void za_folder_close(struct za_folder *folder)
{
    if (folder->handle >= 0)
        close(folder->handle);
    folder->handle = -1;
}

/* Write the name of a chunk into the path, after the head. Returns where the last part of the path begins. */
static char *write_name(struct za_folder *folder, const int64_t *coords)
{
    char *end = folder->path + folder->head, *last;
    int64_t count = folder->array->separator != 0 ? folder->array->axis_count : 0;
    for (int64_t i = 0; i < count; i++) {
        if (i > 0)
            *end++ = (char)folder->array->separator;
        end = append_number(end, coords[i]);
    }
    *end = '\0';
    last = strrchr(folder->path, '/');
    return last + 1;
}

/* ---------------------------------------------------------------- opening */

static int is_absent_error(int error) { return error == ENOENT || error == ENOTDIR; }

static int open_file(int folder, const char *name)
{
    int file;
    do
        file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a named pipe would wait */
    while (file < 0 && errno == EINTR);
    if (file >= 0)
        return file;
    return is_absent_error(errno) ? ZA_NO_FILE : ZA_FAILED;
}

/* Whether the kept folder contains a chunk: the coordinates that name folders are the same. */
static int is_same_folder(const struct za_folder *folder, const int64_t *coords)
{
    if (folder->handle < 0 && !folder->is_absent)
        return 0;
    if (folder->array->separator != '/')
        return 1;
    for (int64_t i = 0; i + 1 < folder->array->axis_count; i++)
        if (folder->parent[i] != coords[i])
            return 0;
    return 1;
}

/* Open the folder that the path up to `name` names, and remember it. Returns 0 if that fails for another reason than
 * that there is none. */
static int enter_folder(struct za_folder *folder, const int64_t *coords, char *name)
{
    za_folder_close(folder);
    name[-1] = '\0';
    folder->handle = open(folder->path, FOLDER_FLAGS);
    name[-1] = '/';
    folder->is_absent = folder->handle < 0 && is_absent_error(errno);
    folder->place.device = -1;
    for (int64_t i = 0; i + 1 < folder->array->axis_count; i++)
        folder->parent[i] = coords[i];
    return folder->handle >= 0 || folder->is_absent;
}

int za_open_chunk(struct za_folder *folder, const int64_t *coords)
{
    char *name = write_name(folder, coords);
    if (!folder->keeps || name - folder->path < 2)
        return open_file(AT_FDCWD, folder->path);
    if (!is_same_folder(folder, coords) && !enter_folder(folder, coords, name))
        return open_file(AT_FDCWD, folder->path);
    return folder->is_absent ? ZA_NO_FILE : open_file(folder->handle, name);
}

void za_close(int file) { close(file); }

/* ---------------------------------------------------------------- reading */

int64_t za_read(int file, uint8_t *memory, int64_t size)
{
    int64_t done = 0;
    while (done < size) {
        int64_t most = size - done < MOST_AT_ONCE ? size - done : MOST_AT_ONCE;
        ssize_t count = read(file, memory + done, (size_t)most);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return ZA_FAILED;
        done += count;
        if (count < most) /* the end of the file, or an unusual file system: whoever reads on finds out */
            break;
    }
    return done;
}

int64_t za_read_at(int file, uint8_t *memory, int64_t size, int64_t start)
{
    int64_t done = 0;
    while (done < size) {
        int64_t most = size - done < MOST_AT_ONCE ? size - done : MOST_AT_ONCE;
        ssize_t count = pread(file, memory + done, (size_t)most, (off_t)(start + done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return ZA_FAILED;
        if (count == 0)
            break;
        done += count;
    }
    return done;
}

int64_t za_file_size(int file)
{
    struct stat state;
    if (fstat(file, &state) != 0 || !S_ISREG(state.st_mode))
        return ZA_FAILED;
    return (int64_t)state.st_size;
}

/* ---------------------------------------------------------------- writing */

/* Create the folder of a path, and those above it. `name` is the last part of the path. */
static int make_folders(char *path, char *name)
{
    char *end = name - 1;
    if (end <= path)
        return 0;
    *end = '\0';
    int made = mkdir(path, 0777) == 0 || errno == EEXIST;
    if (!made && errno == ENOENT) {
        char *above = strrchr(path, '/');
        made = above != NULL && make_folders(path, above + 1) && (mkdir(path, 0777) == 0 || errno == EEXIST);
    }
    *end = '/';
    return made;
}

static int write_all(int file, const uint8_t *data, int64_t size)
{
    int64_t done = 0;
    while (done < size) {
        int64_t most = size - done < MOST_AT_ONCE ? size - done : MOST_AT_ONCE;
        ssize_t count = write(file, data + done, (size_t)most);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return 0;
        done += count;
    }
    return 1;
}

/* Write the content of a new file, and close it. */
static int fill_file(int file, const uint8_t *data, int64_t size)
{
    int written = write_all(file, data, size);
    return (close(file) == 0) & written;
}

/* Return the folder of a chunk, which is created if it does not exist, and the chunk's name in it. */
static int folder_to_write(struct za_folder *folder, const int64_t *coords, char **name)
{
    char *last = write_name(folder, coords);
    *name = last;
    if (folder->keeps && last - folder->path > 1) {
        if (is_same_folder(folder, coords) && !folder->is_absent)
            return folder->handle;
        if (enter_folder(folder, coords, last) && folder->is_absent && make_folders(folder->path, last))
            enter_folder(folder, coords, last);
        if (folder->handle >= 0)
            return folder->handle;
    }
    *name = folder->path;
    return AT_FDCWD;
}

static int create_file(int folder, const char *name)
{
    int file;
    do
        file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    while (file < 0 && errno == EINTR);
    return file;
}

/* Write the temporary name of a chunk's file. Returns 0 if it is too long. */
static int name_temporary(const char *name, const char *suffix, char *temporary, size_t room)
{
    size_t length = strlen(name), more = strlen(suffix);
    if (length + more + 1 > room)
        return 0;
    memcpy(temporary, name, length);
    memcpy(temporary + length, suffix, more + 1);
    return 1;
}

int za_store_chunk(struct za_folder *folder, const int64_t *coords, const char *suffix, const uint8_t *data, int64_t size)
{
    char temporary[sizeof folder->path + 256], *name;
    int handle = folder_to_write(folder, coords, &name);
    if (!name_temporary(name, suffix, temporary, sizeof temporary))
        return 0;
    int file = create_file(handle, temporary);
    if (file < 0 && errno == ENOENT && handle == AT_FDCWD && make_folders(folder->path, strrchr(folder->path, '/') + 1))
        file = create_file(handle, temporary);
    if (file < 0)
        return 0;
    int stored = fill_file(file, data, size) && renameat(handle, temporary, handle, name) == 0;
    if (!stored)
        unlinkat(handle, temporary, 0);
    return stored;
}

/* ---------------------------------------------------------------- changes */

static struct za_place to_place(const struct stat *state)
{
    return (struct za_place){(int64_t)state->st_dev, (int64_t)state->st_ino};
}

static int is_same_place(const struct za_place *one, const struct za_place *other)
{
    return one->device == other->device && one->inode == other->inode;
}

int za_enter_place(struct za_folder *folder, const int64_t *coords, const struct za_place *place)
{
    struct stat state;
    char *name = write_name(folder, coords);
    if (name - folder->path < 2 || (!is_same_folder(folder, coords) && !enter_folder(folder, coords, name)) ||
        folder->handle < 0)
        return 0;
    if (folder->place.device < 0 && fstat(folder->handle, &state) == 0)
        folder->place = to_place(&state);
    return is_same_place(&folder->place, place);
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

/* Lock or unlock a byte. On Linux, a lock belongs to the open file, elsewhere to the process. */
static int set_lock(int file, short kind, int64_t position)
{
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = (off_t)position, .l_len = 1};
#if defined(__linux__)
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
#else
    return fcntl(file, F_SETLK, &lock) == 0;
#endif
}

int64_t za_lock(struct za_folder *folder, const int64_t *coords, int lock_file)
{
    int64_t sum = sum_name(write_name(folder, coords));
    uint64_t number = (uint64_t)folder->place.device * 0x9E3779B97F4A7C15u + (uint64_t)folder->place.inode;
    number = (number * 0xD1B54A32D192ED03u + (uint64_t)sum) * 0xAEF17502108EF2D9u; /* as in local_locks.py */
    int64_t position = (int64_t)(number >> 2);
    return sum >= 0 && set_lock(lock_file, F_WRLCK, position) ? position : -1;
}

void za_unlock(int lock_file, int64_t position) { set_lock(lock_file, F_UNLCK, position); }

static struct za_version to_version(const struct stat *state)
{
#if defined(__APPLE__)
    struct timespec time = state->st_mtimespec;
#else
    struct timespec time = state->st_mtim;
#endif
    return (struct za_version){(int64_t)time.tv_sec, (int64_t)time.tv_nsec, (int64_t)state->st_ino, (int64_t)state->st_size};
}

int za_version_of(int file, struct za_version *version)
{
    struct stat state;
    if (fstat(file, &state) != 0 || !S_ISREG(state.st_mode))
        return 0;
    *version = to_version(&state);
    return 1;
}

/* Whether the path of a chunk, whose last part is `name`, still leads to the folder that was entered. */
static int is_in_place(struct za_folder *folder, char *name)
{
    struct stat state = {0};
    name[-1] = '\0';
    int exists = stat(folder->path, &state) == 0;
    name[-1] = '/';
    struct za_place found = to_place(&state);
    return exists && is_same_place(&found, &folder->place);
}

/* Whether the file of a chunk has a version. */
static int has_version(int folder, const char *name, const struct za_version *expected)
{
    struct stat state;
    if (fstatat(folder, name, &state, 0) != 0)
        return 0;
    struct za_version found = to_version(&state);
    return memcmp(&found, expected, sizeof found) == 0;
}

int za_swap_chunk(struct za_folder *folder, const int64_t *coords, const char *suffix, const uint8_t *data, int64_t size,
                  const struct za_version *expected)
{
    char temporary[sizeof folder->path + 256], *name = write_name(folder, coords);
    int handle = folder->handle;
    if (!name_temporary(name, suffix, temporary, sizeof temporary))
        return 0;
    int file = create_file(handle, temporary);
    if (file < 0)
        return 0;
    int stored = fill_file(file, data, size) && is_in_place(folder, name);
    if (stored && expected->size < 0) /* a link is not made if the name exists */
        stored = linkat(handle, temporary, handle, name, 0) == 0;
    else if (stored && has_version(handle, name, expected) && renameat(handle, temporary, handle, name) == 0)
        return 1;
    else
        stored = 0;
    unlinkat(handle, temporary, 0);
    return stored;
}

/* ---------------------------------------------------------------- whole folders */

/* Write the temporary name of the folder of a chunk, whose name is `last`. Returns 0 if it is too long. */
static int name_stage(struct za_folder *folder, const char *last, const char *suffix, char *temporary, size_t room)
{
    size_t length = (size_t)(last - 1 - folder->path), more = strlen(suffix);
    if (last - folder->path < 2 || length + more + 1 > room)
        return 0;
    memcpy(temporary, folder->path, length);
    memcpy(temporary + length, suffix, more + 1);
    return 1;
}

int za_is_new(struct za_folder *folder, const int64_t *coords)
{
    char *last = write_name(folder, coords);
    return last - folder->path > 1 && enter_folder(folder, coords, last) && folder->is_absent;
}

int za_stage(struct za_folder *folder, const int64_t *coords, const char *suffix)
{
    char temporary[sizeof folder->path + 256], *last = write_name(folder, coords);
    if (!name_stage(folder, last, suffix, temporary, sizeof temporary))
        return 0;
    int made = mkdir(temporary, 0777) == 0;
    if (!made && errno == ENOENT) {
        last[-1] = '\0';
        char *name = strrchr(folder->path, '/');
        made = name != NULL && make_folders(folder->path, name + 1) && mkdir(temporary, 0777) == 0;
        last[-1] = '/';
    }
    if (!made)
        return 0;
    folder->handle = open(temporary, FOLDER_FLAGS);
    if (folder->handle < 0)
        rmdir(temporary);
    return folder->handle >= 0;
}

int za_create_chunk(struct za_folder *folder, const int64_t *coords, const uint8_t *data, int64_t size)
{
    char *name = write_name(folder, coords);
    int file = create_file(folder->handle, name);
    if (file < 0)
        return 0;
    int stored = fill_file(file, data, size);
    if (!stored)
        unlinkat(folder->handle, name, 0);
    return stored;
}

static void remove_stage(const char *path)
{
    DIR *entries = opendir(path);
    if (entries != NULL) {
        for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
            unlinkat(dirfd(entries), entry->d_name, 0); /* fails for . and .. */
        closedir(entries);
    }
    rmdir(path);
}

/* Rename a folder, unless the name exists: another process may hold locks of files in an empty folder as well. */
static int rename_new(const char *from, const char *to)
{
#if defined(__linux__)
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 1u /* RENAME_NOREPLACE, which old headers lack */);
#elif defined(__APPLE__)
    return renamex_np(from, to, RENAME_EXCL);
#else
    return rename(from, to);
#endif
}

int za_publish(struct za_folder *folder, const int64_t *coords, const char *suffix)
{
    char temporary[sizeof folder->path + 256], *last = write_name(folder, coords);
    if (!name_stage(folder, last, suffix, temporary, sizeof temporary))
        return ZA_FAILED;
    int outcome = ZA_PUBLISHED;
    last[-1] = '\0';
    if (rename_new(temporary, folder->path) != 0)
        outcome = errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR ? ZA_TAKEN : ZA_FAILED;
    last[-1] = '/';
    za_folder_close(folder);
    if (outcome != ZA_PUBLISHED)
        remove_stage(temporary);
    return outcome;
}

#endif
