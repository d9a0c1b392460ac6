/* Writing a stretch of the chunks of a selection. */

#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of shards above which those of untouched inner chunks are not read, but copied by the system; and bytes that are read and
 * written in the time that it takes to read an inner chunk on its own, or to copy a piece. Mean bytes of the rows of a raw chunk from
 * which on they are written from where they are; gathering shorter ones first is faster. */
#ifdef KERNEL_SMALL_LIMITS
enum { LARGE_SHARD = 64, LARGE_SHARE = 1, LEAST_ROW = 8 };
#else
enum { LARGE_SHARD = 1 << 20, LARGE_SHARE = 64 << 10, LEAST_ROW = 2 << 10 };
#endif

/* A stored shard: in memory, in a file if `data` is null, or none if its size is -1. */
struct shard {
    const uint8_t *data, *index;
    int file;
    int64_t size;
};

static const struct shard NO_SHARD = {.size = -1};

/* A write, and the chunk that it is at. */
struct write {
    struct za_worker *worker;
    const struct za_array *array;
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
    struct shard shard;
    const uint8_t *old; /* the stored (inner) chunk; null if there is none */
    int64_t old_start, old_size;
    struct za_content content; /* the encoded chunk */
    struct za_piece whole;     /* its only piece, unless it is a shard */
};

/* ---------------------------------------------------------------- values */

/* Whether all elements of the chunk that was cut are written, in order; or of the inner chunk. */
static int is_whole(const struct write *write, int is_inner)
{
    for (int i = 0; i < write->box.axis_count; i++) {
        int64_t length = is_inner ? write->box.axes[i].inner : write->box.axes[i].chunk;
        if (write->cuts[i].step != 1 || write->cuts[i].count != length)
            return 0;
    }
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
    int is_part = !is_whole(write, 1); /* without shards, chunks have the lengths of inner chunks */
    if (is_part && write->old != NULL && (old = za_decode(write->worker, chain, write->old, write->old_size, NULL)) == NULL)
        return NULL;
    uint8_t *raw = into != NULL ? into : za_reserve(write->worker, ZA_RAW, chain->raw_size);
    if (raw == NULL)
        return NULL;
    if (old != NULL)
        memmove(raw, old, (size_t)chain->raw_size); /* nothing to do if it was decoded into this buffer */
    else if (is_part)
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
    if (raw != NULL && !write->keeps_fill && za_is_fill(chain, raw, chain->raw_size))
        *status = ZA_EMPTY;
    else if (raw != NULL && (data = za_encode(write->worker, chain, raw, size)) != NULL)
        *status = ZA_DONE;
    return data;
}

/* ---------------------------------------------------------------- shards */

/* Cut the box of the inner chunk with a number in the index. Returns 0 if it is empty. */
static int cut_inner(struct write *write, const int64_t *origin, int64_t number)
{
    int64_t coords[ZA_MAX_AXES];
    for (int i = 0; i < write->box.axis_count; i++) {
        coords[i] = number / write->array->inner_strides[i];
        number %= write->array->inner_strides[i];
    }
    return za_cut_box(&write->box, origin, coords, 1) > 0;
}

/* Find the stored inner chunk with a number in the index. Returns 0 if the index is damaged. */
static int find_old(struct write *write, int64_t number)
{
    const struct shard *shard = &write->shard;
    write->old = NULL;
    write->old_size = -1;
    if (shard->size >= 0)
        write->old_size = za_find_inner_chunk(write->array, shard->index, shard->size, number, &write->old_start);
    if (shard->data != NULL && write->old_size >= 0)
        write->old = shard->data + write->old_start;
    return write->old_size != ZA_FAILED;
}

/* Read the inner chunk that was found, unless it is in memory or does not exist. Returns 0 if that fails. */
static int read_inner(struct write *write)
{
    int64_t size = write->old_size;
    if (size < 0 || write->old != NULL || is_whole(write, 1))
        return 1;
    uint8_t *data = za_reserve(write->worker, ZA_OLD, size);
    if (data == NULL || za_read_counted(write->worker, write->shard.file, data, size, write->old_start) != size)
        return 0;
    write->old = data;
    return 1;
}

/* Encode the inner chunk with a number in the index, or keep what is stored. Returns its bytes, which are null if they remain
 * in the file of the shard. */
static const uint8_t *encode_inner(struct write *write, const int64_t *origin, int64_t number, uint8_t *into,
                                   int64_t *size, int *status)
{
    int is_touched = cut_inner(write, origin, number);
    *status = ZA_LEFT;
    if (!find_old(write, number) || (is_touched && !read_inner(write)))
        return NULL;
    if (is_touched)
        return encode_chunk(write, into, size, status);
    *size = write->old_size;
    *status = write->old_size < 0 ? ZA_EMPTY : ZA_DONE;
    return write->old;
}

/* Append bytes to a value, whose last piece they may continue. */
static void append(struct za_content *content, struct za_piece *pieces, int64_t start, int64_t size, int is_in_file)
{
    struct za_piece *last = content->count > 0 ? &pieces[content->count - 1] : NULL;
    if (last != NULL && last->is_in_file == is_in_file && last->start + last->size == start)
        last->size += size;
    else
        pieces[content->count++] = (struct za_piece){start, size, is_in_file};
    content->size += size;
}

/* Encode the inner chunks of the shard that was cut, and join them in the order of the array. Returns a za_status. */
static int encode_shard(struct write *write)
{
    const struct za_array *array = write->array;
    struct za_worker *worker = write->worker;
    struct za_content *content = &write->content;
    int64_t origin[ZA_MAX_AXES], index_size = za_index_size(array), begin = array->index_at_end ? 0 : index_size, used = begin;
    int is_raw = array->chain.step_count == 0; /* such chunks are gathered where they are stored */
    int64_t room = begin + index_size + (is_raw ? array->chain.raw_size * array->inner_count : 0);
    uint8_t *index = za_reserve(worker, ZA_INDEX, index_size), *memory = za_reserve(worker, ZA_VALUE, room);
    struct za_piece *pieces = (void *)za_reserve(worker, ZA_PIECES, (array->inner_count + 2) * (int64_t)sizeof *pieces);
    if (index == NULL || memory == NULL || pieces == NULL)
        return ZA_LEFT;
    *content = (struct za_content){.file = write->shard.file, .pieces = pieces};
    append(content, pieces, 0, begin, 0);
    for (int i = 0; i < write->box.axis_count; i++)
        origin[i] = write->cuts[i].origin;
    for (int64_t n = 0; n < array->inner_count; n++) {
        int status;
        int64_t size, number = array->inner_order != NULL ? array->inner_order[n] : n;
        const uint8_t *data = encode_inner(write, origin, number, is_raw ? memory + used : NULL, &size, &status);
        if (status == ZA_LEFT)
            return ZA_LEFT;
        za_set_inner_chunk(array, index, number, status == ZA_DONE ? content->size : -1, status == ZA_DONE ? size : -1);
        if (status != ZA_DONE)
            continue;
        append(content, pieces, data != NULL ? used : write->old_start, size, data == NULL);
        if (data == NULL)
            continue;
        /* Room for all chunks of this size, so that the buffer rarely grows. */
        memory = za_grow(worker, ZA_VALUE, used, used + size * (array->inner_count - n) + index_size);
        if (memory == NULL)
            return ZA_LEFT;
        if (data != memory + used)
            memcpy(memory + used, data, (size_t)size);
        used += size;
    }
    if (content->size == begin)
        return ZA_EMPTY;
    za_seal_index(array, index);
    memcpy(memory + (array->index_at_end ? used : 0), index, (size_t)index_size);
    if (array->index_at_end)
        append(content, pieces, used, index_size, 0);
    content->memory = memory;
    return ZA_DONE;
}

/* ---------------------------------------------------------------- chunks */

/* Let the content be the rows of a whole raw chunk in the values, if they are long. Returns whether it is, and a za_status. */
static int use_rows(struct write *write, int *status)
{
    const struct za_chain *chain = &write->array->chain;
    int64_t most = chain->raw_size / LEAST_ROW;
    if (chain->step_count > 0 || chain->word_size != 0 || most == 0 || !is_whole(write, 0))
        return 0;
    struct za_piece *rows = (void *)za_reserve(write->worker, ZA_PIECES, most * (int64_t)sizeof *rows);
    int64_t count = rows != NULL ? za_rows(chain, &write->box, rows, most) : 0;
    int is_empty = !write->keeps_fill;
    for (int64_t i = 0; i < count && is_empty; i++)
        is_empty = za_is_fill(chain, write->values + rows[i].start, rows[i].size);
    *status = is_empty ? ZA_EMPTY : ZA_DONE;
    write->content = (struct za_content){.memory = write->values, .pieces = rows, .count = count, .size = chain->raw_size};
    return count > 0;
}

/* Encode the chunk that was cut. Returns a za_status. */
static int encode(struct write *write)
{
    int status;
    if (write->array->is_sharded)
        return encode_shard(write);
    if (use_rows(write, &status))
        return status;
    struct za_content *content = &write->content;
    content->memory = encode_chunk(write, NULL, &content->size, &status);
    content->pieces = &write->whole;
    content->count = 1;
    write->whole.size = content->size;
    return status;
}

/* Count a chunk that was stored. Returns the za_status. */
static int note_stored(struct write *write, int is_stored)
{
    write->worker->traffic.writes += is_stored;
    write->worker->traffic.bytes_written += is_stored ? write->content.size : 0;
    return is_stored ? ZA_DONE : ZA_LEFT;
}

static void set_status(struct write *write, int64_t begin, int64_t end, int status)
{
    memset(write->statuses + (begin - write->first), status, (size_t)(end - begin));
}

static int is_cancelled(const struct write *write) { return write->cancelled != NULL && *write->cancelled; }

/* Return where the index of a shard begins, or -1 if the shard is too short. */
static int64_t index_start(const struct za_array *array, int64_t size)
{
    int64_t index_size = za_index_size(array);
    return size < index_size ? -1 : array->index_at_end ? size - index_size : 0;
}

/* Keep the elements of a stored chunk that are not written. Returns 0 if its index is damaged. */
static int use_old(struct write *write, const uint8_t *value, int64_t size)
{
    const struct za_array *array = write->array;
    if (!array->is_sharded) {
        write->old = value;
        write->old_size = size;
        return 1;
    }
    int64_t start = index_start(array, size);
    write->shard = (struct shard){.data = value, .index = value + (start >= 0 ? start : 0), .size = size};
    return start >= 0 && za_check_index(array, write->shard.index, size);
}

/* Keep those of a shard in a file, of which only the index is read now. */
static int use_old_file(struct write *write, int file, int64_t size)
{
    const struct za_array *array = write->array;
    int64_t start = index_start(array, size), length = za_index_size(array);
    uint8_t *index = za_reserve(write->worker, ZA_OLD_INDEX, length);
    write->shard = (struct shard){.index = index, .file = file, .size = size};
    return index != NULL && start >= 0 && size <= array->value_limit &&
           za_read_counted(write->worker, file, index, length, start) == length && za_check_index(array, index, size);
}

/* Whether to read only those inner chunks of a stored shard of some size that are cut. In a row of inner chunks, those that are
 * touched are neighbours. */
static int is_large(const struct write *write, int64_t size)
{
    int64_t rows = 1, touched = 1, whole = 1;
    for (int i = 0; i < write->box.axis_count; i++) {
        const struct za_cut *cut = &write->cuts[i];
        int64_t inner = write->box.axes[i].inner, last = za_last_index(&write->box.axes[i], cut);
        int64_t more = cut->step == 1 ? (last + 1) / inner - (cut->first + inner - 1) / inner : 0;
        rows = touched;
        touched *= last / inner - cut->first / inner + 1;
        whole *= more > 0 ? more : 0;
    }
    return size > LARGE_SHARD && size / (touched - whole + rows) >= LARGE_SHARE;
}

/* Read the stored chunk, if there is one; of a large shard, its file remains open. Returns 0 if that fails. */
static int read_old(struct write *write, struct za_folder *folder, const int64_t *coords, struct za_version *version,
                    int *file)
{
    const struct za_array *array = write->array;
    uint8_t *value;
    *file = za_open_chunk(folder, coords);
    version->size = -1;
    if (*file == ZA_NO_FILE) {
        write->worker->traffic.reads++;
        write->worker->traffic.absent++;
        return 1;
    }
    if (*file == ZA_FAILED)
        return 0;
    int64_t size = za_file_size(write->worker->system, *file, version);
    if (array->is_sharded && is_large(write, size))
        return use_old_file(write, *file, size);
    if (size >= 0)
        size = za_read_value(write->worker, array, *file, ZA_OLD, size < array->value_limit ? size : array->value_limit, &value);
    return size >= 0 && size == version->size && use_old(write, value, size);
}

/* Replace the chunk that was cut. Returns a za_status. */
static int replace_chunk(struct write *write, struct za_folder *folder, const int64_t *coords, const struct za_place *place)
{
    int status = encode(write);
    if (status != ZA_DONE)
        return status;
    int64_t lock = za_lock(folder, coords, place, write->lock_file);
    if (lock < 0)
        return ZA_LEFT;
    int is_stored = za_store_chunk(folder, coords, write->suffix, &write->content, NULL);
    za_unlock(folder, write->lock_file, lock);
    return note_stored(write, is_stored);
}

/* Change a part of the chunk that was cut. Returns a za_status. */
static int change_chunk(struct write *write, struct za_folder *folder, const int64_t *coords, const struct za_place *place)
{
    struct za_version version;
    int64_t lock = za_lock(folder, coords, place, write->lock_file);
    if (lock < 0)
        return ZA_LEFT;
    int file, status = read_old(write, folder, coords, &version, &file) ? encode(write) : ZA_LEFT;
    if (status == ZA_DONE)
        status = note_stored(write, za_store_chunk(folder, coords, write->suffix, &write->content, &version));
    else if (status == ZA_EMPTY) /* there is nothing to erase, or Python erases the chunk if nobody has changed it */
        status = version.size < 0 ? ZA_DONE : ZA_LEFT;
    if (file >= 0)
        za_close(write->worker->system, file);
    write->old = NULL;
    write->shard = NO_SHARD;
    za_unlock(folder, write->lock_file, lock);
    return status;
}

/* Replace the chunks `begin` … `end - 1`, one by one. */
static void replace_chunks(struct write *write, struct za_folder *folder, int64_t begin, int64_t end)
{
    struct za_walk walk;
    za_walk_start(&walk, write->box.axes, write->box.axis_count, begin);
    for (int64_t n = begin; n < end; n++, za_walk_on(&walk)) {
        const struct za_place *place = write->places + (n - begin);
        za_cut_box(&write->box, NULL, walk.coords, 0);
        int status = ZA_LEFT;
        if (!is_cancelled(write))
            status = (is_whole(write, 0) ? replace_chunk : change_chunk)(write, folder, walk.coords, place);
        set_status(write, n, n + 1, status);
    }
}

/* Write the chunks `begin` … `end - 1`, which are in one folder, if that does not exist yet. Returns 0 if folders cannot be
 * renamed, and others would be written twice as well. */
static int create_folder(struct write *write, struct za_folder *folder, struct za_walk *walk, int64_t begin, int64_t end)
{
    struct za_traffic before = write->worker->traffic;
    if (is_cancelled(write) || !za_is_new(folder, walk->coords))
        return 1;
    for (int64_t n = begin; n < end && !is_cancelled(write); n++, za_walk_on(walk)) {
        za_cut_box(&write->box, NULL, walk->coords, 0);
        int status = encode(write);
        if (status == ZA_DONE)
            status = note_stored(write, za_create_chunk(folder, walk->coords, write->suffix, &write->content));
        set_status(write, n, n + 1, status == ZA_EMPTY ? ZA_DONE : status); /* there is nothing to erase */
    }
    za_walk_start(walk, write->box.axes, write->box.axis_count, begin);
    int outcome = za_publish(folder, walk->coords, write->suffix);
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
        za_walk_start(&walk, write->box.axes, write->box.axis_count, n);
        int64_t whole = last < 0 ? end : n + write->box.axes[last].count - walk.at[last];
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
    struct write write = {
        .worker = worker,
        .array = array,
        .values = values,
        .keeps_fill = keeps_fill != 0,
        .cancelled = cancelled,
        .suffix = suffix,
        .statuses = statuses,
        .first = begin,
        .places = places,
        .lock_file = (int)lock_file,
        .shard = NO_SHARD,
    };
    struct za_folder folder;
    write.box = (struct za_box){.axes = axes, .cuts = write.cuts, .axis_count = (int)array->axis_count};
    worker->traffic = (struct za_traffic){0};
    if (!za_folder_open(&folder, worker->system, array, end - begin > 2)) {
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
    struct write write = {
        .worker = worker, .array = array, .values = values, .keeps_fill = keeps_fill != 0, .shard = NO_SHARD
    };
    struct za_walk walk;
    int status = ZA_LEFT;
    write.box = (struct za_box){.axes = axes, .cuts = write.cuts, .axis_count = (int)array->axis_count};
    za_walk_start(&walk, axes, write.box.axis_count, 0);
    za_cut_box(&write.box, NULL, walk.coords, 0);
    if (old == NULL || use_old(&write, old, old_size))
        status = encode_shard(&write);
    if (status == ZA_DONE) { /* a signal handler of Python may use this worker before the shard is taken */
        encoded->data = write.content.memory;
        encoded->size = write.content.size;
        encoded->buffer = worker->buffers[ZA_VALUE];
        worker->buffers[ZA_VALUE] = (struct za_buffer){0};
    }
    za_release_large(worker);
    return status;
}

void zarrasync_take(struct za_worker *worker, struct za_value *encoded, uint8_t *out)
{
    struct za_buffer *buffer = &worker->buffers[ZA_VALUE];
    if (out != NULL)
        memcpy(out, encoded->data, (size_t)encoded->size);
    free(buffer->block);
    *buffer = encoded->buffer;
    za_release_large(worker);
}
