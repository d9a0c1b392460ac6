/* Points: which chunk contains each, and sorting them by chunk. */

#include "kernel.h"

/* A point while points are sorted. */
struct record {
    uint64_t key; /* of the stored chunk and the inner chunk */
    int64_t number;
    int64_t offset;
};

/* A point axis, and how the coordinates of chunks along it become keys. */
struct point_axis {
    const int64_t *indices;
    int64_t chunk, inner;
    int64_t first, count; /* of the chunks that the indices can be in */
    int64_t inner_stride, raw_stride;
};

/* Division of numbers that are not negative; most processors divide shorter numbers faster. */
static inline int64_t divide(int64_t number, int64_t by)
{
    return (number | by) >> 32 == 0 ? (int64_t)((uint32_t)number / (uint32_t)by) : number / by;
}

int64_t za_locate_group(const struct za_points *points, const struct za_array *array, const struct za_axis *axes,
                        int64_t group, int64_t *coords)
{
    int64_t number = points->order[points->edges[group]], inner = 0;
    for (int64_t i = 0; i < array->axis_count; i++) {
        if (points->indices[i] == NULL)
            continue;
        int64_t index = points->indices[i][number], chunk = divide(index, axes[i].chunk);
        inner += (index - chunk * axes[i].chunk) / axes[i].inner * array->inner_strides[i];
        if (coords != NULL)
            coords[i] = chunk;
    }
    return inner;
}

/* List the point axes. Returns how many keys there can be; 0 if they are too many, or an index is negative. */
static int64_t plan_keys(const struct za_array *array, const struct za_axis *axes, const struct za_points *points,
                         struct point_axis *listed, int *listed_count)
{
    int64_t keys = array->inner_count;
    *listed_count = 0;
    for (int64_t i = 0; i < array->axis_count; i++) {
        const int64_t *indices = points->indices[i];
        if (indices == NULL)
            continue;
        int64_t low = indices[0], high = indices[0];
        for (int64_t n = 1; n < points->count; n++) {
            low = indices[n] < low ? indices[n] : low;
            high = indices[n] > high ? indices[n] : high;
        }
        struct point_axis *axis = &listed[(*listed_count)++];
        *axis = (struct point_axis){indices, axes[i].chunk, axes[i].inner, 0, 0, array->inner_strides[i],
                                    array->chain.strides[i]};
        axis->first = low / axis->chunk;
        axis->count = high / axis->chunk - axis->first + 1;
        if (low < 0 || keys > INT64_MAX / axis->count)
            return 0;
        keys *= axis->count;
    }
    return keys;
}

/* Compute the keys and the offsets of all points. Returns whether they are sorted. */
static int find_keys(const struct za_array *array, const struct za_points *points, const struct point_axis *listed,
                     int listed_count, struct record *records)
{
    int is_sorted = 1;
    for (int64_t n = 0; n < points->count; n++) {
        int64_t chunk_number = 0, inner_number = 0, offset = 0;
        for (int i = 0; i < listed_count; i++) {
            const struct point_axis *axis = &listed[i];
            int64_t index = axis->indices[n], chunk = divide(index, axis->chunk);
            chunk_number = chunk_number * axis->count + (chunk - axis->first);
            index -= chunk * axis->chunk;
            if (array->is_sharded) {
                int64_t inner = divide(index, axis->inner);
                inner_number += inner * axis->inner_stride;
                index -= inner * axis->inner;
            }
            offset += index * axis->raw_stride;
        }
        uint64_t key = (uint64_t)(chunk_number * array->inner_count + inner_number);
        records[n] = (struct record){.key = key, .number = n, .offset = offset};
        is_sorted &= n == 0 || key >= records[n - 1].key;
    }
    return is_sorted;
}

/* Bits of a key by which a pass sorts: so few that the counters stay in the nearest cache. */
enum { DIGIT = 11, LAST_DIGIT = (1 << DIGIT) - 1 };

/* Sort by one digit of the keys; records with the same digit keep their order. */
static void sort_by_digit(const struct record *from, struct record *to, int64_t count, int shift)
{
    int64_t places[1 << DIGIT] = {0}, place = 0;
    for (int64_t n = 0; n < count; n++)
        places[from[n].key >> shift & LAST_DIGIT]++;
    for (int64_t digit = 0; digit <= LAST_DIGIT; digit++) {
        int64_t size = places[digit];
        places[digit] = place;
        place += size;
    }
    for (int64_t n = 0; n < count; n++)
        to[places[from[n].key >> shift & LAST_DIGIT]++] = from[n];
}

/* Write the order of the sorted points, and where groups begin. Returns the number of groups. */
static int64_t list_groups(const struct record *records, struct za_points *points)
{
    int64_t groups = 0;
    for (int64_t n = 0; n < points->count; n++) {
        points->order[n] = records[n].number;
        points->offsets[n] = records[n].offset;
        if (n == 0 || records[n].key != records[n - 1].key)
            points->edges[groups++] = n;
    }
    points->edges[groups] = points->count;
    return groups;
}

int64_t zarrasync_sort_points(struct za_worker *worker, const struct za_array *array, const struct za_axis *axes,
                              struct za_points *points)
{
    struct point_axis listed[ZA_MAX_AXES];
    int listed_count, is_sorted;
    if (points->count < 1 || points->count > INT64_MAX / (int64_t)sizeof(struct record))
        return -1;
    int64_t keys = plan_keys(array, axes, points, listed, &listed_count);
    if (keys == 0)
        return -1;
    int64_t size = points->count * (int64_t)sizeof(struct record);
    struct record *from = (struct record *)(void *)za_reserve(worker, ZA_VALUE, size);
    struct record *to = (struct record *)(void *)za_reserve(worker, ZA_RAW, size);
    if (from == NULL || to == NULL) {
        za_release_large(worker);
        return -1;
    }
    is_sorted = find_keys(array, points, listed, listed_count, from);
    for (int shift = 0; !is_sorted && shift < 63 && (keys - 1) >> shift > 0; shift += DIGIT) {
        sort_by_digit(from, to, points->count, shift);
        struct record *sorted = to;
        to = from;
        from = sorted;
    }
    points->group_count = list_groups(from, points);
    za_release_large(worker);
    return points->group_count;
}
