/* Writing a stretch of the chunks of a selection. */

#include "kernel.h"

#include <string.h>

/* A write, and the chunk that it is at. */
struct write {
    struct za_worker *worker;
    const struct za_array *array;
    const struct za_axis *axes;
    const uint8_t *values;
    int keeps_fill; /* whether to store chunks that contain only the fill value */
    const volatile uint8_t *cancelled;
    const char *suffix; /* of temporary names */
    uint8_t *statuses;
    int64_t first; /* the number of the chunk whose status and place are the first ones */
    const struct za_place *places; /* null if only new folders are written */
    int lock_file;
    struct za_cut cuts[ZA_MAX_AXES];
    struct za_box box;
    int is_inner;                 /* whether the box is in an inner chunk */
    const uint8_t *shard, *old;   /* the stored shard, and the stored (inner) chunk; null if there is none */
    int64_t shard_size, old_size;
};

/* Count a file that was written. */
static void count_write(struct write *write, int64_t size)
{
    write->worker->traffic.writes++;
    write->worker->traffic.bytes_written += size;
}

/* ---------------------------------------------------------------- values */

/* Cut the box of a chunk, or of an inner chunk. Returns 0 if it is empty. */
static int cut_box(struct write *write, const int64_t *origin, int is_inner)
{
    int touched = 1;
    write->is_inner = is_inner;
    for (int i = 0; i < write->box.axis_count; i++) {
        int64_t length = is_inner ? write->axes[i].inner : write->axes[i].chunk;
        write->cuts[i] = za_cut_axis(&write->axes[i], origin[i], length);
        touched &= write->cuts[i].count > 0;
    }
    return touched;
}

/* Whether all elements of the (inner) chunk are written, in order. */
static int is_whole(const struct write *write)
{
    for (int i = 0; i < write->box.axis_count; i++)
        if (write->cuts[i].step != 1 ||
            write->cuts[i].count != (write->is_inner ? write->axes[i].inner : write->axes[i].chunk))
            return 0;
    return 1;
}

/* Return the elements of a chunk as raw bytes: in place if they lie so in the values, else in `into`, or in a buffer if that
 * is null. Those that are not written are the stored ones, or the fill value. */
static const uint8_t *raw_elements(struct write *write, uint8_t *into)
{
    const struct za_chain *chain = &write->array->chain;
    const uint8_t *direct = za_direct(chain, &write->box, (uint8_t *)write->values); /* only the address is computed */
    const uint8_t *old = NULL;
    if (direct != NULL)
        return direct;
    int keeps_old = !is_whole(write) && write->old != NULL;
    if (keeps_old && (old = za_decode(write->worker, chain, write->old, write->old_size, NULL)) == NULL)
        return NULL;
    uint8_t *raw = into != NULL ? into : za_reserve(write->worker, ZA_RAW, chain->raw_size);
    if (raw == NULL)
        return NULL;
    if (old != NULL)
        memmove(raw, old, (size_t)chain->raw_size); /* nothing to do if it was decoded into this buffer */
    else if (!is_whole(write))
        za_fill_raw(chain, raw);
    za_gather(chain, &write->box, write->values, raw);
    return raw;
}

/* Encode the elements of a chunk. Returns its bytes, and a za_status. The elements may be copied to `into`. */
static const uint8_t *encode_chunk(struct write *write, uint8_t *into, int64_t *size, int *status)
{
    const struct za_chain *chain = &write->array->chain;
    const uint8_t *raw = raw_elements(write, into), *data = NULL;
    *status = ZA_LEFT;
    if (raw != NULL && !write->keeps_fill && za_is_fill(chain, raw))
        *status = ZA_EMPTY;
    else if (raw != NULL && (data = za_encode(write->worker, chain, raw, size)) != NULL)
        *status = ZA_DONE;
    return data;
}

/* ---------------------------------------------------------------- shards */

static void store64(uint8_t *data, uint64_t value, int is_big_endian)
{
    for (int i = 0; i < 8; i++)
        data[is_big_endian ? 7 - i : i] = (uint8_t)(value >> 8 * i);
}

static void write_index(const struct za_array *array, const uint8_t *entries, uint8_t *index)
{
    int64_t length = array->inner_count * 16;
    for (int64_t at = 0; at < length; at += 8) {
        uint64_t number;
        memcpy(&number, entries + at, 8);
        store64(index + at, number, (int)array->index_is_big_endian);
    }
    if (array->index_has_checksum)
        za_store32(index + length, zarrasync_crc32c(0, index, (size_t)length));
}

/* Cut the box of the inner chunk with a number in the index. Returns 0 if it is empty. */
static int cut_inner(struct write *write, const int64_t *origin, int64_t number)
{
    int64_t inner[ZA_MAX_AXES];
    for (int i = 0; i < write->box.axis_count; i++) {
        int64_t stride = write->array->inner_strides[i], offset = number / stride * write->axes[i].inner;
        if (offset > INT64_MAX - origin[i]) /* beyond all indices */
            return 0;
        inner[i] = origin[i] + offset;
        number %= stride;
    }
    return cut_box(write, inner, 1);
}

/* Find the stored bytes of an inner chunk. Returns 0 if the index is damaged. */
static int find_old(struct write *write, int64_t number)
{
    const struct za_array *array = write->array;
    int64_t index_size = array->inner_count * 16 + (array->index_has_checksum ? 4 : 0), start;
    write->old = NULL;
    if (write->shard == NULL)
        return 1;
    const uint8_t *index = write->shard + (array->index_at_end ? write->shard_size - index_size : 0);
    write->old_size = za_find_inner_chunk(array, index, write->shard_size, number, &start);
    if (write->old_size >= 0)
        write->old = write->shard + start;
    return write->old_size != ZA_FAILED;
}

/* Encode the inner chunk with a number in the index, or keep what is stored. */
static const uint8_t *encode_inner(struct write *write, const int64_t *origin, int64_t number, uint8_t *into,
                                   int64_t *size, int *status)
{
    int is_touched = cut_inner(write, origin, number);
    *status = ZA_LEFT;
    if (!find_old(write, number))
        return NULL;
    if (is_touched)
        return encode_chunk(write, into, size, status);
    *size = write->old_size;
    *status = write->old == NULL ? ZA_EMPTY : ZA_DONE;
    return write->old;
}

/* Encode the inner chunks, and join them in the order of the array. */
static const uint8_t *encode_shard(struct write *write, const int64_t *origin, int64_t *size, int *status)
{
    const struct za_array *array = write->array;
    int64_t index_size = array->inner_count * 16 + (array->index_has_checksum ? 4 : 0);
    int64_t end = array->index_at_end ? 0 : index_size;
    int is_raw = array->chain.step_count == 0; /* such chunks are gathered where they are stored */
    uint8_t *entries = za_reserve(write->worker, ZA_INDEX, array->inner_count * 16);
    int64_t room = array->chain.raw_size * (is_raw ? array->inner_count : 1) + index_size;
    uint8_t *shard = za_reserve(write->worker, ZA_VALUE, end + room);
    int is_empty = 1;
    *status = ZA_LEFT;
    for (int64_t n = 0; n < array->inner_count && entries != NULL && shard != NULL; n++) {
        uint64_t entry[2] = {UINT64_MAX, UINT64_MAX};
        int64_t length = 0, number = array->inner_order != NULL ? array->inner_order[n] : n;
        int outcome;
        const uint8_t *data = encode_inner(write, origin, number, is_raw ? shard + end : NULL, &length, &outcome);
        if (outcome == ZA_LEFT)
            return NULL;
        if (outcome == ZA_DONE) {
            /* Room for all chunks of this size, so that the buffer rarely grows. */
            int64_t wanted = end + length * (array->inner_count - n) + index_size;
            shard = za_grow(write->worker, ZA_VALUE, end, wanted);
            if (shard == NULL)
                return NULL;
            if (data != shard + end)
                memcpy(shard + end, data, (size_t)length);
            entry[0] = (uint64_t)end;
            entry[1] = (uint64_t)length;
            end += length;
            is_empty = 0;
        }
        memcpy(entries + number * 16, entry, 16);
    }
    if (entries == NULL || shard == NULL)
        return NULL;
    if (is_empty) {
        *status = ZA_EMPTY;
        return NULL;
    }
    write_index(array, entries, shard + (array->index_at_end ? end : 0));
    *size = array->index_at_end ? end + index_size : end;
    *status = ZA_DONE;
    return shard;
}

/* ---------------------------------------------------------------- chunks */

/* Encode a chunk. Returns its bytes, and a za_status. */
static const uint8_t *encode(struct write *write, const int64_t *coords, int64_t *size, int *status)
{
    int64_t origin[ZA_MAX_AXES];
    for (int i = 0; i < write->box.axis_count; i++)
        origin[i] = coords[i] * write->axes[i].chunk;
    cut_box(write, origin, 0);
    return write->array->is_sharded ? encode_shard(write, origin, size, status) : encode_chunk(write, NULL, size, status);
}

static void set_status(struct write *write, int64_t begin, int64_t end, int status)
{
    memset(write->statuses + (begin - write->first), status, (size_t)(end - begin));
}

static int is_cancelled(const struct write *write) { return write->cancelled != NULL && *write->cancelled; }

/* Keep the elements of a stored chunk that are not written. Returns 0 if its index is damaged. */
static int use_old(struct write *write, const uint8_t *value, int64_t size)
{
    const struct za_array *array = write->array;
    int64_t index_size = array->inner_count * 16 + (array->index_has_checksum ? 4 : 0);
    if (!array->is_sharded) {
        write->old = value;
        write->old_size = size;
        return 1;
    }
    write->shard = value;
    write->shard_size = size;
    return size >= index_size && za_check_index(array, value + (array->index_at_end ? size - index_size : 0));
}

/* Read the stored chunk, if there is one. Returns 0 if that fails. */
static int read_old(struct write *write, struct za_folder *folder, const int64_t *coords, struct za_version *version)
{
    const struct za_array *array = write->array;
    int file = za_open_chunk(folder, coords);
    uint8_t *value;
    version->size = -1;
    if (file == ZA_NO_FILE) {
        write->worker->traffic.reads++;
        write->worker->traffic.absent++;
        return 1;
    }
    if (file == ZA_FAILED)
        return 0;
    int64_t size = ZA_FAILED;
    if (za_version_of(file, version)) {
        int64_t expected = version->size < array->value_limit ? version->size : array->value_limit;
        size = za_read_value(write->worker, array, file, ZA_OLD, expected, &value);
    }
    za_close(file);
    return size >= 0 && size == version->size && use_old(write, value, size);
}

/* Whether a chunk is written in part. */
static int is_part(struct write *write, const int64_t *coords)
{
    int64_t origin[ZA_MAX_AXES];
    for (int i = 0; i < write->box.axis_count; i++)
        origin[i] = coords[i] * write->axes[i].chunk;
    cut_box(write, origin, 0);
    return !is_whole(write);
}

/* Lock a chunk among processes. Returns the position of the lock, or -1. */
static int64_t lock_chunk(struct write *write, struct za_folder *folder, const int64_t *coords, int64_t number)
{
    folder->keeps = 1; /* the lock is that of this folder */
    return za_enter_place(folder, coords, write->places + (number - write->first))
               ? za_lock(folder, coords, write->lock_file)
               : -1;
}

/* Replace a chunk. Returns a za_status. */
static int replace_chunk(struct write *write, struct za_folder *folder, const int64_t *coords, int64_t number)
{
    int64_t size, lock;
    int status;
    const uint8_t *data = encode(write, coords, &size, &status);
    if (data == NULL)
        return status;
    if ((lock = lock_chunk(write, folder, coords, number)) < 0)
        return ZA_LEFT;
    int stored = za_store_chunk(folder, coords, write->suffix, data, size);
    za_unlock(write->lock_file, lock);
    if (stored)
        count_write(write, size);
    return stored ? ZA_DONE : ZA_LEFT;
}

/* Change a chunk, whose lock is held. Returns a za_status. */
static int change_locked(struct write *write, struct za_folder *folder, const int64_t *coords)
{
    struct za_version version;
    int64_t size;
    int status = ZA_LEFT;
    const uint8_t *data = read_old(write, folder, coords, &version) ? encode(write, coords, &size, &status) : NULL;
    if (data == NULL) /* there is nothing to erase, or Python erases the chunk if nobody has changed it */
        return status == ZA_EMPTY && version.size < 0 ? ZA_DONE : ZA_LEFT;
    if (!za_swap_chunk(folder, coords, write->suffix, data, size, &version))
        return ZA_LEFT;
    count_write(write, size);
    return ZA_DONE;
}

/* Change a part of a chunk. Returns a za_status. */
static int change_chunk(struct write *write, struct za_folder *folder, const int64_t *coords, int64_t number)
{
    int64_t lock = lock_chunk(write, folder, coords, number);
    if (lock < 0)
        return ZA_LEFT;
    int status = change_locked(write, folder, coords);
    write->shard = write->old = NULL;
    za_unlock(write->lock_file, lock);
    return status;
}

/* Replace the chunks `begin` … `end - 1`, one by one. */
static void replace_chunks(struct write *write, struct za_folder *folder, int64_t begin, int64_t end)
{
    struct za_walk walk;
    za_walk_start(&walk, write->axes, write->box.axis_count, begin);
    for (int64_t n = begin; n < end; n++, za_walk_on(&walk)) {
        int status = ZA_LEFT;
        if (!is_cancelled(write))
            status = is_part(write, walk.coords) ? change_chunk(write, folder, walk.coords, n)
                                                 : replace_chunk(write, folder, walk.coords, n);
        set_status(write, n, n + 1, status);
    }
}

/* Write the chunks `begin` … `end - 1`, which are in one folder, if that does not exist yet. Returns 0 if folders cannot be
 * renamed, and others would be written twice as well. */
static int create_folder(struct write *write, struct za_folder *folder, struct za_walk *walk, int64_t begin, int64_t end)
{
    struct za_traffic before = write->worker->traffic;
    int is_staged = 0, outcome = ZA_PUBLISHED;
    if (is_cancelled(write) || !za_is_new(folder, walk->coords))
        return 1;
    for (int64_t n = begin; n < end && !is_cancelled(write); n++, za_walk_on(walk)) {
        int64_t size;
        int status;
        const uint8_t *data = encode(write, walk->coords, &size, &status);
        if (data != NULL && !is_staged && !(is_staged = za_stage(folder, walk->coords, write->suffix))) {
            set_status(write, begin, end, ZA_LATER);
            return 1;
        }
        if (data != NULL && za_create_chunk(folder, walk->coords, data, size))
            count_write(write, size);
        else if (data != NULL)
            status = ZA_LEFT;
        set_status(write, n, n + 1, status == ZA_EMPTY ? ZA_DONE : status); /* there is nothing to erase */
    }
    za_walk_start(walk, write->axes, write->box.axis_count, begin);
    if (is_staged)
        outcome = za_publish(folder, walk->coords, write->suffix);
    if (outcome != ZA_PUBLISHED) {
        write->worker->traffic = before;
        set_status(write, begin, end, ZA_LATER);
    }
    return outcome != ZA_FAILED;
}

/* Write the folders that do not exist yet, of those whose selected chunks are all among `begin` … `end - 1`. The others may
 * be filled by several threads. */
static void create_folders(struct write *write, struct za_folder *folder, int64_t begin, int64_t end)
{
    int last = write->box.axis_count - 1;
    int stages = 1;
    for (int64_t n = begin, next; n < end; n = next) {
        struct za_walk walk;
        za_walk_start(&walk, write->axes, write->box.axis_count, n);
        int64_t whole = last < 0 ? end : n + write->axes[last].count - walk.at[last];
        next = whole < end ? whole : end;
        set_status(write, n, next, ZA_LATER);
        if (stages && last >= 0 && next == whole && walk.at[last] == 0 && write->array->separator == '/')
            stages = create_folder(write, folder, &walk, n, next);
    }
}

void zarrasync_write(struct za_worker *worker, const struct za_array *array, const struct za_axis *axes,
                     const uint8_t *values, int64_t begin, int64_t end, uint8_t *statuses,
                     const volatile uint8_t *cancelled, const char *suffix, int64_t keeps_fill,
                     const struct za_place *places, int64_t lock_file)
{
    struct write write = {.worker = worker, .array = array, .axes = axes, .values = values, .suffix = suffix};
    struct za_folder folder;
    write.box = (struct za_box){.axes = axes, .cuts = write.cuts, .axis_count = (int)array->axis_count};
    write.keeps_fill = keeps_fill != 0;
    write.cancelled = cancelled;
    write.statuses = statuses;
    write.first = begin;
    write.places = places;
    write.lock_file = (int)lock_file;
    worker->traffic = (struct za_traffic){0};
    if (!za_folder_open(&folder, array, end - begin > 2)) {
        set_status(&write, begin, end, ZA_LEFT);
        return;
    }
    if (places == NULL)
        create_folders(&write, &folder, begin, end);
    else
        replace_chunks(&write, &folder, begin, end);
    za_folder_close(&folder);
    za_release_large(worker);
}

int64_t zarrasync_encode(struct za_worker *worker, const struct za_array *array, const struct za_axis *axes,
                         const uint8_t *values, const uint8_t *old, int64_t old_size, int64_t keeps_fill,
                         struct za_value *encoded)
{
    struct write write = {.worker = worker, .array = array, .axes = axes, .values = values};
    struct za_walk walk;
    int status = ZA_LEFT;
    write.box = (struct za_box){.axes = axes, .cuts = write.cuts, .axis_count = (int)array->axis_count};
    write.keeps_fill = keeps_fill != 0;
    za_walk_start(&walk, axes, write.box.axis_count, 0);
    if (old == NULL || use_old(&write, old, old_size))
        encoded->data = encode(&write, walk.coords, &encoded->size, &status);
    return status;
}

void zarrasync_take(struct za_worker *worker, const struct za_value *encoded, uint8_t *out)
{
    memcpy(out, encoded->data, (size_t)encoded->size);
    za_release_large(worker);
}
