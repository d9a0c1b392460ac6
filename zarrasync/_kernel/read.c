/* Reading a stretch of the chunks of a selection. */

#include "kernel.h"

#include <string.h>

/* A read, and the chunk that it is at. */
struct read {
    struct za_worker *worker;
    const struct za_array *array;
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

int64_t za_read_counted(struct za_worker *worker, int file, uint8_t *memory, int64_t size, int64_t start)
{
    return count_read(worker, za_read(worker->system, file, memory, size, start));
}

static int64_t read_at(struct read *read, int file, uint8_t *memory, int64_t size, int64_t start)
{
    return za_read_counted(read->worker, file, memory, size, start);
}

/* Return whether reading from a file into memory is slow. Processors compare addresses within a page to decide whether a
 * load may precede a store: a target less than 32 bytes after the source there makes a copy at least three times slower. */
static int slows_copies(const uint8_t *memory) { return (uintptr_t)memory % 4096 - 1 < 31; }

int64_t za_read_value(struct za_worker *worker, const struct za_array *array, int file, int buffer, int64_t expected,
                      uint8_t **value)
{
    int64_t count;
    *value = za_reserve(worker, buffer, expected + 1);
    if (*value == NULL || (count = za_read_counted(worker, file, *value, expected + 1, 0)) < 0)
        return ZA_FAILED;
    if (count <= expected) /* the additional byte shows that the value ends here */
        return count;
    int64_t size = za_file_size(worker->system, file, NULL);
    if (size < 0 || size > array->value_limit)
        return ZA_FAILED;
    *value = za_grow(worker, buffer, count, size + 1);
    if (*value == NULL)
        return ZA_FAILED;
    int64_t more = size + 1 > count ? za_read_counted(worker, file, *value + count, size + 1 - count, count) : 0;
    return more < 0 || count + more != size ? ZA_FAILED : size;
}

/* Return the range of bytes of a raw chunk that contains all elements of the box. */
static void byte_range(const struct read *read, int64_t *start, int64_t *end);

/* Decode only the part of a value that contains the elements of the box, and place these. Returns ZA_LEFT if the value has to be
 * decoded entirely. */
static int place_part(struct read *read, const uint8_t *data, int64_t size)
{
    const struct za_chain *chain = &read->array->chain;
    int64_t start, end;
    byte_range(read, &start, &end);
    const uint8_t *part = za_decode_part(read->worker, chain, data, size, &start, end);
    if (part == NULL)
        return ZA_LEFT;
    za_place(chain, &read->box, part - start, read->out);
    return ZA_DONE;
}

/* Decode a value and place its elements. `direct` is their destination if they lie there in the order of the raw bytes. */
static int place_value(struct read *read, const uint8_t *data, int64_t size, uint8_t *direct)
{
    const struct za_chain *chain = &read->array->chain;
    if (direct == NULL && place_part(read, data, size) == ZA_DONE)
        return ZA_DONE;
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
#ifdef KERNEL_SMALL_LIMITS
enum { DIVISIBLE = 16, WINDOW = 256, CALL_BYTES = 2 };
#else
enum { DIVISIBLE = 16 << 10, WINDOW = 1 << 20, CALL_BYTES = 4 << 10 };
#endif

static void byte_range(const struct read *read, int64_t *start, int64_t *end)
{
    const struct za_chain *chain = &read->array->chain;
    *start = 0;
    *end = chain->item_size;
    for (int i = 0; i < read->box.axis_count; i++) {
        const struct za_cut *cut = &read->cuts[i];
        *start += cut->first * chain->strides[i];
        *end += za_last_index(&read->box.axes[i], cut) * chain->strides[i];
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
        if (is_longer && za_last_index(&read->box.axes[i], &read->cuts[i]) > read->cuts[i].first)
            longest = i;
    }
    return longest;
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
    int i = end - start > WINDOW && read->box.points == NULL ? axis_to_cut(read) : -1;
    if (i < 0)
        return read_range(read, file, position, start, end);
    struct za_cut whole = read->cuts[i], *part = &read->cuts[i];
    int64_t limit = za_last_index(&read->box.axes[i], &whole) + 1;
    int64_t length = (limit - whole.first) / ((end - start - 1) / WINDOW + 1);
    int status = ZA_DONE;
    length = length > 0 ? length : 1;
    for (int64_t at = whole.first; at < limit && status == ZA_DONE; at += length) {
        *part = za_cut_axis(&read->box.axes[i], whole.origin + at, length < limit - at ? length : limit - at);
        part->origin = whole.origin;
        part->first += at;
        if (part->count > 0)
            status = read_box(read, file, position);
    }
    *part = whole;
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
static int read_part(struct read *read, int file, int64_t position)
{
    int64_t start, end;
    int status;
    byte_range(read, &start, &end);
    if (read->box.points != NULL && read->box.count > 1 && read_each_point(read, file, position, end - start, &status))
        return status;
    return read_box(read, file, position);
}

/* As read_part, but read an entire chunk to its place, if it has one. */
static int read_raw(struct read *read, int file, int64_t position, uint8_t *direct)
{
    int64_t size = read->array->chain.raw_size;
    if (direct == NULL || slows_copies(direct))
        return read_part(read, file, position);
    return read_at(read, file, direct, size, position) == size ? ZA_DONE : ZA_LEFT;
}

/* Read a file that is not a shard. */
static int read_file(struct read *read, int file)
{
    const struct za_chain *chain = &read->array->chain;
    uint8_t *value, *direct = za_direct(chain, &read->box, read->out);
    if (chain->step_count == 0 && (chain->raw_size >= DIVISIBLE || (direct != NULL && !slows_copies(direct))))
        return za_file_size(read->worker->system, file, NULL) == chain->raw_size ? read_raw(read, file, 0, direct) : ZA_LEFT;
    int64_t size = za_read_value(read->worker, read->array, file, ZA_VALUE, chain->size_hint, &value);
    return size < 0 ? ZA_LEFT : place_value(read, value, size, direct);
}

/* ---------------------------------------------------------------- shards */

/* Bytes of inner chunks above which each is read on its own, and the most bytes that are read at once of smaller ones that
 * are stored in another order. */
#ifdef KERNEL_SMALL_LIMITS
enum { LARGE_CHUNK = 64, LARGEST_WINDOW = 1024 };
#else
enum { LARGE_CHUNK = 256 << 10, LARGEST_WINDOW = 8 << 20 };
#endif

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

/* Read the index and check it. */
static int open_shard(struct read *read, struct shard *shard)
{
    int64_t length = za_index_size(read->array);
    uint8_t *index = za_reserve(read->worker, ZA_INDEX, length);
    shard->index = index;
    shard->size = za_file_size(read->worker->system, shard->file, NULL);
    if (index == NULL || shard->size < length)
        return 0;
    int64_t start = read->array->index_at_end ? shard->size - length : 0;
    return read_at(read, shard->file, index, length, start) == length && za_check_index(read->array, index, shard->size);
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

/* Start to walk through the inner chunks that the box touches, for each group of points: groups are the first axis. Returns how
 * many there are. */
static int64_t start_inner_walk(const struct read *read, struct za_axis *ranges, struct za_walk *walk)
{
    int64_t total = ranges[0].count = read->group_end - read->group;
    ranges[0].first = read->group;
    ranges[0].chunks = NULL;
    for (int i = 0; i < read->box.axis_count; i++) {
        const struct za_cut *cut = &read->cuts[i];
        int64_t inner = read->box.axes[i].inner, first = cut->first / inner;
        ranges[i + 1].first = first;
        ranges[i + 1].count = za_last_index(&read->box.axes[i], cut) / inner - first + 1;
        ranges[i + 1].chunks = NULL;
        total *= ranges[i + 1].count;
    }
    za_walk_start(walk, ranges, read->box.axis_count + 1, 0);
    return total;
}

/* Find the current inner chunk, as za_find_inner_chunk does. */
static int64_t find_inner_chunk(const struct read *read, const struct shard *shard, const struct za_walk *walk, int64_t *start)
{
    const struct za_points *points = read->box.points;
    int64_t number = points != NULL ? za_locate_group(points, read->array, read->box.axes, walk->coords[0], NULL) : 0;
    for (int i = 0; i < read->box.axis_count; i++)
        number += walk->coords[i + 1] * read->array->inner_strides[i];
    return za_find_inner_chunk(read->array, shard->index, shard->size, number, start);
}

/* Read the inner chunk of the box. */
static int read_inner_chunk(struct read *read, struct shard *shard, const struct za_walk *walk)
{
    const struct za_chain *chain = &read->array->chain;
    int64_t start, size = find_inner_chunk(read, shard, walk, &start);
    if (size == -1) {
        za_fill(chain, &read->box, read->out);
        return ZA_DONE;
    }
    if (size < 0)
        return ZA_LEFT;
    uint8_t *direct = za_direct(chain, &read->box, read->out);
    if (chain->step_count == 0 && shard->read_ahead == 0) { /* otherwise it may be in memory already */
        shard->window_start = shard->window_end = 0;        /* this memory is used for the part */
        return read_raw(read, shard->file, start, direct);
    }
    const uint8_t *value = shard_bytes(read, shard, start, size);
    return value == NULL ? ZA_LEFT : place_value(read, value, size, direct);
}

/* Decide how to read the wanted inner chunks: together, if they are small, and dense in the shard. */
static int plan_shard(struct read *read, struct shard *shard, struct za_walk *walk, int64_t count)
{
    int64_t first = INT64_MAX, total = 0, before = 0, present = 0;
    int is_ascending = 1;
    shard->end = 0;
    for (int64_t n = 0; n < count; n++, za_walk_on(walk)) {
        int64_t start, size = find_inner_chunk(read, shard, walk, &start);
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
    int64_t window = is_ascending ? WINDOW : shard->end - first; /* in another order, it has to contain all of them */
    int is_together = present > 1 && total / present <= LARGE_CHUNK && total >= (shard->end - first) / 2 &&
                      window <= LARGEST_WINDOW;
    shard->read_ahead = is_together ? window : 0;
    return !is_together || is_ascending || shard_bytes(read, shard, first, 1) != NULL;
}

static int read_shard(struct read *read, int file)
{
    struct shard shard = {.file = file};
    struct za_axis ranges[ZA_MAX_AXES + 1];
    struct za_walk walk;
    int64_t origin[ZA_MAX_AXES], count = start_inner_walk(read, ranges, &walk);
    for (int i = 0; i < read->box.axis_count; i++)
        origin[i] = read->cuts[i].origin;
    if (!open_shard(read, &shard) || !plan_shard(read, &shard, &walk, count))
        return ZA_LEFT;
    for (int64_t n = 0; n < count; n++, za_walk_on(&walk)) {
        select_groups(read, walk.coords[0], walk.coords[0] + 1);
        /* A step or a list of indices may skip an inner chunk. */
        if (za_cut_box(&read->box, origin, walk.coords + 1, 1) > 0 && read_inner_chunk(read, &shard, &walk) != ZA_DONE)
            return ZA_LEFT;
    }
    return ZA_DONE;
}

/* ---------------------------------------------------------------- chunks */

static int read_chunk(struct read *read, struct za_folder *folder, const int64_t *coords)
{
    int file = za_open_chunk(folder, coords);
    if (file == ZA_FAILED)
        return ZA_LEFT;
    if (file == ZA_NO_FILE) {
        count_read(read->worker, 0);
        read->worker->traffic.absent++;
        za_fill(&read->array->chain, &read->box, read->out);
        return ZA_ABSENT;
    }
    int status = read->array->is_sharded ? read_shard(read, file) : read_file(read, file);
    za_close(read->worker->system, file);
    return status;
}

/* Find the groups from `group` on, at most `most`, that are in the same stored chunk, and its coordinates along their axes.
 * Returns how many they are. */
static int64_t join_groups(struct read *read, int64_t group, int64_t most, int64_t *coords)
{
    const struct za_points *points = read->box.points;
    int64_t others[ZA_MAX_AXES], end = group + 1;
    size_t size = (size_t)read->box.axis_count * sizeof *coords;
    za_locate_group(points, read->array, read->box.axes, group, coords);
    memcpy(others, coords, size);
    for (; read->array->is_sharded && end < group + most; end++) {
        za_locate_group(points, read->array, read->box.axes, end, others);
        if (memcmp(others, coords, size) != 0)
            break;
    }
    read->group = group;
    read->group_end = end;
    return end - group;
}

int64_t zarrasync_read(struct za_worker *worker, const struct za_array *array, const struct za_axis *axes,
                       const struct za_points *points, uint8_t *out, int64_t begin, int64_t end, uint8_t *statuses,
                       const volatile uint8_t *cancelled)
{
    struct read read = {.worker = worker, .array = array, .out = out, .group_end = 1};
    struct za_folder folder;
    struct za_walk walk;
    int64_t elements = 0, groups = points != NULL ? points->group_count : 1, coords[ZA_MAX_AXES];
    read.box = (struct za_box){.axes = axes, .cuts = read.cuts, .axis_count = (int)array->axis_count, .points = points};
    worker->traffic = (struct za_traffic){0};
    if (!za_folder_open(&folder, worker->system, array, end - begin > 2)) {
        if (statuses != NULL)
            memset(statuses, ZA_LEFT, (size_t)(end - begin));
        return 0;
    }
    za_walk_start(&walk, axes, read.box.axis_count, begin / groups);
    for (int64_t n = begin, group = begin % groups, count = 1; n < end; n += count) {
        const int64_t *at = walk.coords;
        if (points != NULL) {
            at = memcpy(coords, walk.coords, sizeof coords);
            count = join_groups(&read, group, end - n < groups - group ? end - n : groups - group, coords);
            select_groups(&read, group, group + count);
        }
        int64_t size = za_cut_box(&read.box, NULL, walk.coords, 0) * (points != NULL ? read.box.count : 1);
        int status = cancelled != NULL && *cancelled ? ZA_LEFT : read_chunk(&read, &folder, at);
        if (statuses != NULL)
            memset(statuses + (n - begin), status, (size_t)count);
        elements += status == ZA_LEFT ? 0 : size;
        group += count;
        if (group == groups) {
            group = 0;
            za_walk_on(&walk);
        }
    }
    za_folder_close(&folder);
    za_release_large(worker);
    return elements;
}
