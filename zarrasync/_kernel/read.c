/* Reading a stretch of the chunks of a selection. */

#include "kernel.h"

#include <string.h>

/* A read, and the chunk that it is at. */
struct read {
    struct za_worker *worker;
    const struct za_array *array;
    const struct za_axis *axes;
    uint8_t *out;
    struct za_cut cuts[ZA_MAX_AXES]; /* of the (inner) chunk */
    struct za_box box;
    int64_t group, group_end; /* of the points in the stored chunk; without points, there is one group of all elements */
};

/* Let the box contain some groups of points; without points, nothing changes. */
static void select_groups(struct read *read, int64_t group, int64_t end)
{
    if (read->box.points == NULL)
        return;
    read->box.begin = read->box.points->edges[group];
    read->box.count = read->box.points->edges[end] - read->box.begin;
}

/* ---------------------------------------------------------------- whole values */

/* Count a read from a file, which returned a number of bytes or ZA_FAILED. */
static int64_t count_read(struct za_worker *worker, int64_t bytes)
{
    worker->traffic.reads++;
    worker->traffic.bytes_read += bytes > 0 ? bytes : 0;
    return bytes;
}

static int64_t read_at(struct read *read, int file, uint8_t *memory, int64_t size, int64_t start)
{
    return count_read(read->worker, za_read_at(file, memory, size, start));
}

/* Return whether reading from a file into memory is slow. Processors compare addresses within a page to decide whether a
 * load may precede a store: a target less than 32 bytes after the source there makes a copy at least three times slower. */
static int slows_copies(const uint8_t *memory) { return (uintptr_t)memory % 4096 - 1 < 31; }

int64_t za_read_value(struct za_worker *worker, const struct za_array *array, int file, int buffer, int64_t expected,
                      uint8_t **value)
{
    int64_t count;
    *value = za_reserve(worker, buffer, expected + 1);
    if (*value == NULL || (count = count_read(worker, za_read(file, *value, expected + 1))) < 0)
        return ZA_FAILED;
    if (count <= expected) /* the additional byte shows that the value ends here */
        return count;
    int64_t size = za_file_size(file);
    if (size < 0 || size > array->value_limit)
        return ZA_FAILED;
    *value = za_grow(worker, buffer, count, size + 1);
    if (*value == NULL)
        return ZA_FAILED;
    int64_t more = size + 1 > count ? count_read(worker, za_read(file, *value + count, size + 1 - count)) : 0;
    return more < 0 || count + more != size ? ZA_FAILED : size;
}

/* Decode a value and place its elements. */
static int place_value(struct read *read, const uint8_t *data, int64_t size)
{
    const struct za_chain *chain = &read->array->chain;
    uint8_t *direct = za_direct(chain, &read->box, read->out);
    const uint8_t *raw = za_decode(read->worker, chain, data, size, direct);
    if (raw == NULL)
        return ZA_LEFT;
    if (direct == NULL)
        za_place(chain, &read->box, raw, read->out);
    else if (raw != direct)
        memcpy(direct, raw, (size_t)chain->raw_size);
    return ZA_DONE;
}

/* ---------------------------------------------------------------- raw chunks */

/* Bytes of a raw chunk from which on only the wanted part of it is read, bytes that are read at a time, so that the cache of
 * a processor holds them, and bytes that are read in the time that a call takes. */
#ifdef KERNEL_FUZZING
enum { DIVISIBLE = 16, WINDOW = 256, CALL_BYTES = 2 };
#else
enum { DIVISIBLE = 16 << 10, WINDOW = 1 << 20, CALL_BYTES = 4 << 10 };
#endif

/* Return the range of bytes of a raw chunk that contains all elements of the box. */
static void byte_range(const struct read *read, int64_t *start, int64_t *end)
{
    const struct za_chain *chain = &read->array->chain;
    *start = 0;
    *end = chain->item_size;
    for (int i = 0; i < read->box.axis_count; i++) {
        const struct za_cut *cut = &read->cuts[i];
        *start += cut->first * chain->strides[i];
        *end += za_last_index(&read->axes[i], cut) * chain->strides[i];
    }
    if (read->box.points == NULL)
        return;
    const int64_t *offsets = read->box.points->offsets + read->box.begin;
    int64_t least = offsets[0], most = offsets[0];
    for (int64_t i = 1; i < read->box.count; i++) {
        least = offsets[i] < least ? offsets[i] : least;
        most = offsets[i] > most ? offsets[i] : most;
    }
    *start += least;
    *end += most;
}

/* Return the axis along which to cut a box: the longest in the raw bytes; -1 if there is none. */
static int axis_to_cut(const struct read *read)
{
    int longest = -1;
    for (int i = 0; i < read->box.axis_count; i++) {
        int is_longer = longest < 0 || read->array->chain.strides[i] > read->array->chain.strides[longest];
        if (is_longer && za_last_index(&read->axes[i], &read->cuts[i]) > read->cuts[i].first)
            longest = i;
    }
    return longest;
}

/* Return about how many positions of a cut, from `at` on, to read together. Those with equal indices stay together, as each
 * part reads their bytes again. */
static int64_t length_of_part(const struct za_axis *axis, const struct za_cut *whole, int64_t at, int64_t wanted)
{
    int64_t count = wanted < whole->count - at ? wanted : whole->count - at;
    if (axis->indices == NULL)
        return count;
    const int64_t *listed = axis->indices + whole->begin + at;
    while (count > 1 && at + count < whole->count && listed[count] == listed[count - 1])
        count--;
    while (at + count < whole->count && listed[count] == listed[count - 1])
        count++;
    return count;
}

/* Read the bytes between the first and the last element of the box, and place the elements. The chunk starts at a position
 * of a file. */
static int read_range(struct read *read, int file, int64_t position, int64_t start, int64_t end)
{
    uint8_t *part = za_reserve(read->worker, ZA_VALUE, end - start);
    if (part == NULL || read_at(read, file, part, end - start, position + start) != end - start)
        return ZA_LEFT;
    za_place(&read->array->chain, &read->box, part - start, read->out);
    return ZA_DONE;
}

/* As read_range, but cut a long range into several. */
static int read_box(struct read *read, int file, int64_t position)
{
    int64_t start, end;
    byte_range(read, &start, &end);
    int axis = end - start > WINDOW && read->box.points == NULL ? axis_to_cut(read) : -1;
    if (axis < 0)
        return read_range(read, file, position, start, end);
    struct za_cut whole = read->cuts[axis];
    int64_t wanted = whole.count / ((end - start - 1) / WINDOW + 1);
    int status = ZA_DONE;
    for (int64_t at = 0, count; at < whole.count && status == ZA_DONE; at += count) {
        count = length_of_part(&read->axes[axis], &whole, at, wanted < 1 ? 1 : wanted);
        read->cuts[axis] = za_cut_part(&read->axes[axis], &whole, at, count);
        status = read_box(read, file, position);
    }
    read->cuts[axis] = whole;
    return status;
}

/* Read points one by one, if that is faster than reading all bytes between them. Returns whether it is. */
static int read_each_point(struct read *read, int file, int64_t position, int64_t bytes, int *status)
{
    int64_t begin = read->box.begin, count = read->box.count, start, end;
    read->box.count = 1;
    byte_range(read, &start, &end);
    int is_faster = count <= bytes / (end - start + CALL_BYTES);
    *status = ZA_DONE;
    for (int64_t n = 0; n < count && is_faster && *status == ZA_DONE; n++) {
        read->box.begin = begin + n;
        byte_range(read, &start, &end);
        *status = read_range(read, file, position, start, end);
    }
    read->box.begin = begin;
    read->box.count = count;
    return is_faster;
}

/* Read the wanted part of a raw chunk that starts at a position of a file. */
static int read_raw_part(struct read *read, int file, int64_t position)
{
    int64_t start, end, size = read->array->chain.raw_size;
    uint8_t *direct = za_direct(&read->array->chain, &read->box, read->out);
    if (direct != NULL && !slows_copies(direct))
        return read_at(read, file, direct, size, position) == size ? ZA_DONE : ZA_LEFT;
    int status;
    byte_range(read, &start, &end);
    if (read->box.points != NULL && read->box.count > 1 && read_each_point(read, file, position, end - start, &status))
        return status;
    return read_box(read, file, position);
}

static int read_raw_chunk(struct read *read, int file)
{
    int64_t size = read->array->chain.raw_size;
    if (size >= DIVISIBLE)
        return za_file_size(file) == size ? read_raw_part(read, file, 0) : ZA_LEFT;
    uint8_t *direct = za_direct(&read->array->chain, &read->box, read->out);
    if (direct == NULL || slows_copies(direct)) {
        uint8_t *value;
        int64_t count = za_read_value(read->worker, read->array, file, ZA_VALUE, size, &value);
        return count == size ? place_value(read, value, count) : ZA_LEFT;
    }
    uint8_t extra;
    if (count_read(read->worker, za_read(file, direct, size)) != size || za_read(file, &extra, 1) != 0)
        return ZA_LEFT;
    return ZA_DONE;
}

/* ---------------------------------------------------------------- shards */

/* Bytes of inner chunks above which each is read on its own, and the most bytes that are read at once of smaller ones that
 * are stored in another order. */
#ifdef KERNEL_FUZZING
enum { LARGE_CHUNK = 64, LARGEST_WINDOW = 1024 };
#else
enum { LARGE_CHUNK = 256 << 10, LARGEST_WINDOW = 8 << 20 };
#endif

static uint64_t index_number(const struct za_array *array, const uint8_t *data)
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number |= (uint64_t)data[i] << 8 * (array->index_is_big_endian ? 7 - i : i);
    return number;
}

/* A shard, and the bytes of it that are in memory. */
struct shard {
    int file;
    int64_t size;
    const uint8_t *index;
    const uint8_t *window;
    int64_t window_start, window_end;
    int64_t end;       /* of the last inner chunk that is wanted */
    int64_t read_ahead; /* bytes to read at a time, as neighbouring inner chunks are wanted; else 0 */
};

int za_check_index(const struct za_array *array, const uint8_t *index)
{
    int64_t length = array->inner_count * 16;
    return !array->index_has_checksum || zarrasync_crc32c(0, index, (size_t)length) == za_load32(index + length);
}

/* Read the index and check it. */
static int open_shard(struct read *read, struct shard *shard)
{
    const struct za_array *array = read->array;
    int64_t length = array->inner_count * 16 + (array->index_has_checksum ? 4 : 0);
    uint8_t *index = za_reserve(read->worker, ZA_INDEX, length);
    shard->index = index;
    shard->size = za_file_size(shard->file);
    if (index == NULL || shard->size < length)
        return 0;
    if (read_at(read, shard->file, index, length, array->index_at_end ? shard->size - length : 0) != length)
        return 0;
    return za_check_index(array, index);
}

int64_t za_find_inner_chunk(const struct za_array *array, const uint8_t *index, int64_t shard_size, int64_t number,
                            int64_t *start)
{
    uint64_t first = index_number(array, index + number * 16);
    uint64_t size = index_number(array, index + number * 16 + 8);
    if (first == UINT64_MAX && size == UINT64_MAX)
        return -1;
    if (size == 0 || size > (uint64_t)shard_size || first > (uint64_t)shard_size - size ||
        (int64_t)size < array->chain.least || (int64_t)size > array->chain.most)
        return ZA_FAILED;
    *start = (int64_t)first;
    return (int64_t)size;
}

static int64_t find_inner_chunk(const struct read *read, const struct shard *shard, int64_t number, int64_t *start)
{
    return za_find_inner_chunk(read->array, shard->index, shard->size, number, start);
}

/* Return bytes of the shard, which are read with their neighbours if these are wanted as well. */
static const uint8_t *shard_bytes(struct read *read, struct shard *shard, int64_t start, int64_t size)
{
    if (start < shard->window_start || start + size > shard->window_end) {
        int64_t length = size > shard->read_ahead ? size : shard->read_ahead;
        if (length > shard->end - start)
            length = shard->end - start;
        uint8_t *window = za_reserve(read->worker, ZA_VALUE, length);
        shard->window_start = shard->window_end = 0;
        if (window == NULL || read_at(read, shard->file, window, length, start) != length)
            return NULL;
        shard->window = window;
        shard->window_start = start;
        shard->window_end = start + length;
    }
    return shard->window + (start - shard->window_start);
}

static int read_inner_chunk(struct read *read, struct shard *shard, int64_t number)
{
    const struct za_chain *chain = &read->array->chain;
    int64_t start, size = find_inner_chunk(read, shard, number, &start);
    if (size == -1) {
        za_fill(chain, &read->box, read->out);
        return ZA_DONE;
    }
    if (size < 0)
        return ZA_LEFT;
    if (chain->step_count == 0 && shard->read_ahead == 0) { /* otherwise it may be in memory already */
        shard->window_start = shard->window_end = 0;        /* this memory is used for the part */
        return read_raw_part(read, shard->file, start);
    }
    const uint8_t *value = shard_bytes(read, shard, start, size);
    return value == NULL ? ZA_LEFT : place_value(read, value, size);
}

/* The inner chunks of a shard that a selection touches: ranges along the axes, visited in C order. */
struct inner_range {
    int64_t first[ZA_MAX_AXES], count[ZA_MAX_AXES], at[ZA_MAX_AXES];
    int64_t origin[ZA_MAX_AXES]; /* of the shard */
    int64_t total;
    int64_t group, base; /* of points, and what it adds to the number of the inner chunk */
};

static void set_group(const struct read *read, struct inner_range *range, int64_t group)
{
    const struct za_points *points = read->box.points;
    int64_t coords[ZA_MAX_AXES];
    range->group = group;
    range->base = points == NULL ? 0 : za_locate_group(points, read->array, read->axes, group, coords);
}

static void start_range(const struct read *read, struct inner_range *range)
{
    set_group(read, range, read->group);
    range->total = read->group_end - read->group;
    for (int i = 0; i < read->box.axis_count; i++) {
        const struct za_cut *cut = &read->cuts[i];
        range->origin[i] = cut->origin;
        range->first[i] = cut->first / read->axes[i].inner;
        range->count[i] = za_last_index(&read->axes[i], cut) / read->axes[i].inner - range->first[i] + 1;
        range->at[i] = 0;
        range->total *= range->count[i];
    }
}

/* Return the number of the current inner chunk in the index. */
static int64_t inner_number(const struct read *read, const struct inner_range *range)
{
    int64_t number = range->base;
    for (int i = 0; i < read->box.axis_count; i++)
        number += (range->first[i] + range->at[i]) * read->array->inner_strides[i];
    return number;
}

static void advance_range(const struct read *read, struct inner_range *range)
{
    int i = read->box.axis_count - 1;
    for (; i >= 0 && ++range->at[i] == range->count[i]; i--)
        range->at[i] = 0;
    if (i < 0)
        set_group(read, range, range->group + 1 < read->group_end ? range->group + 1 : read->group);
}

/* Cut the box of the current inner chunk. Returns 0 if a step or a list of indices skips the chunk. */
static int cut_inner_chunk(struct read *read, const struct inner_range *range)
{
    select_groups(read, range->group, range->group + 1);
    for (int i = 0; i < read->box.axis_count; i++) {
        int64_t length = read->axes[i].inner;
        read->cuts[i] = za_cut_axis(&read->axes[i], range->origin[i] + (range->first[i] + range->at[i]) * length, length);
        if (read->cuts[i].count == 0)
            return 0;
    }
    return 1;
}

/* Decide how to read the wanted inner chunks: together, if they are small, and dense in the shard. */
static int plan_shard(struct read *read, struct shard *shard, struct inner_range *range)
{
    int64_t first = INT64_MAX, total = 0, before = 0, present = 0;
    int is_ascending = 1;
    shard->end = 0;
    for (int64_t n = 0; n < range->total; n++, advance_range(read, range)) {
        int64_t start, size = find_inner_chunk(read, shard, inner_number(read, range), &start);
        if (size == -1)
            continue;
        if (size < 0)
            return 0;
        is_ascending &= start >= before;
        before = start;
        present++;
        total += size;
        first = start < first ? start : first;
        shard->end = start + size > shard->end ? start + size : shard->end;
    }
    shard->read_ahead = 0;
    if (present < 2 || total / present > LARGE_CHUNK || total < (shard->end - first) / 2)
        return 1;
    if (is_ascending)
        shard->read_ahead = WINDOW;
    else if (shard->end - first <= LARGEST_WINDOW) /* read all of it, from the first byte */
        return shard->read_ahead = shard->end - first, shard_bytes(read, shard, first, 1) != NULL;
    return 1;
}

static int read_shard(struct read *read, int file)
{
    struct shard shard = {.file = file};
    struct inner_range range;
    start_range(read, &range);
    if (!open_shard(read, &shard) || !plan_shard(read, &shard, &range))
        return ZA_LEFT;
    for (int64_t n = 0; n < range.total; n++, advance_range(read, &range)) {
        if (cut_inner_chunk(read, &range) && read_inner_chunk(read, &shard, inner_number(read, &range)) != ZA_DONE)
            return ZA_LEFT;
    }
    return ZA_DONE;
}

/* ---------------------------------------------------------------- chunks */

/* Cut the box of a chunk, and return its number of elements. */
static int64_t cut_chunk(struct read *read, const int64_t *coords)
{
    int64_t size = 1;
    select_groups(read, read->group, read->group_end);
    if (read->box.points != NULL)
        size = read->box.count;
    for (int i = 0; i < read->box.axis_count; i++) {
        read->cuts[i] = za_cut_axis(&read->axes[i], coords[i] * read->axes[i].chunk, read->axes[i].chunk);
        size *= read->cuts[i].count;
    }
    return size;
}

static int read_chunk(struct read *read, struct za_folder *folder, const int64_t *coords)
{
    const struct za_chain *chain = &read->array->chain;
    int file = za_open_chunk(folder, coords), status = ZA_LEFT;
    if (file == ZA_FAILED)
        return ZA_LEFT;
    if (file == ZA_NO_FILE) {
        count_read(read->worker, 0);
        read->worker->traffic.absent++;
        za_fill(chain, &read->box, read->out);
        return ZA_ABSENT;
    }
    if (read->array->is_sharded) {
        status = read_shard(read, file);
    } else if (chain->step_count == 0) {
        status = read_raw_chunk(read, file);
    } else {
        uint8_t *value;
        int64_t count = za_read_value(read->worker, read->array, file, ZA_VALUE, chain->size_hint, &value);
        if (count >= 0)
            status = place_value(read, value, count);
    }
    za_close(file);
    return status;
}

/* Prepare a read. Returns 0 after leaving all chunks if that fails. */
static int start_read(struct read *read, struct za_folder *folder, int64_t count, uint8_t *statuses)
{
    read->box.axes = read->axes;
    read->box.cuts = read->cuts;
    read->box.axis_count = (int)read->array->axis_count;
    read->group_end = 1;
    read->worker->traffic = (struct za_traffic){0};
    if (za_folder_open(folder, read->array, count > 2))
        return 1;
    if (statuses != NULL)
        memset(statuses, ZA_LEFT, (size_t)count);
    return 0;
}

int64_t zarrasync_read(struct za_worker *worker, const struct za_array *array, const struct za_axis *axes, uint8_t *out,
                       int64_t begin, int64_t end, uint8_t *statuses, const volatile uint8_t *cancelled)
{
    struct read read = {.worker = worker, .array = array, .axes = axes, .out = out};
    struct za_folder folder;
    struct za_walk walk;
    int64_t elements = 0;
    if (!start_read(&read, &folder, end - begin, statuses))
        return 0;
    za_walk_start(&walk, axes, read.box.axis_count, begin);
    for (int64_t n = begin; n < end; n++, za_walk_on(&walk)) {
        int64_t size = cut_chunk(&read, walk.coords);
        int status = cancelled != NULL && *cancelled ? ZA_LEFT : read_chunk(&read, &folder, walk.coords);
        if (statuses != NULL)
            statuses[n - begin] = (uint8_t)status;
        elements += status == ZA_LEFT ? 0 : size;
    }
    za_folder_close(&folder);
    za_release_large(worker);
    return elements;
}

/* ---------------------------------------------------------------- points */

/* Find the groups from `read->group` on, at most `most`, that are in the same stored chunk, and its coordinates. */
static void join_groups(struct read *read, int64_t most, int64_t *coords)
{
    const struct za_points *points = read->box.points;
    int64_t others[ZA_MAX_AXES];
    za_locate_group(points, read->array, read->axes, read->group, coords);
    memcpy(others, coords, sizeof others);
    read->group_end = read->group + 1;
    if (!read->array->is_sharded)
        return;
    for (; read->group_end < read->group + most; read->group_end++) {
        za_locate_group(points, read->array, read->axes, read->group_end, others);
        if (memcmp(others, coords, sizeof others) != 0)
            return;
    }
}

int64_t zarrasync_read_points(struct za_worker *worker, const struct za_array *array, const struct za_axis *axes,
                              const struct za_points *points, uint8_t *out, int64_t begin, int64_t end,
                              uint8_t *statuses, const volatile uint8_t *cancelled)
{
    struct read read = {.worker = worker, .array = array, .axes = axes, .out = out, .box.points = points};
    struct za_folder folder;
    struct za_walk walk = {0};
    int64_t elements = 0, groups = points->group_count, coords[ZA_MAX_AXES];
    if (!start_read(&read, &folder, end - begin, statuses))
        return 0;
    za_walk_start(&walk, axes, read.box.axis_count, begin / groups);
    for (int64_t n = begin, count; n < end; n += count) {
        if (n != begin && n % groups == 0)
            za_walk_on(&walk);
        memcpy(coords, walk.coords, sizeof coords);
        read.group = n % groups;
        join_groups(&read, end - n < groups - read.group ? end - n : groups - read.group, coords);
        count = read.group_end - read.group;
        int64_t size = cut_chunk(&read, walk.coords);
        int status = cancelled != NULL && *cancelled ? ZA_LEFT : read_chunk(&read, &folder, coords);
        if (statuses != NULL)
            memset(statuses + (n - begin), status, (size_t)count);
        elements += status == ZA_LEFT ? 0 : size;
    }
    za_folder_close(&folder);
    za_release_large(worker);
    return elements;
}
