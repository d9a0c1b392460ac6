/* Boxes: which chunks a selection touches, which of their elements, and copying these between chunks and the output. */

#include "kernel.h"

#include <string.h>

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* ---------------------------------------------------------------- chunks */

static void find_coords(struct za_walk *walk)
{
    for (int i = 0; i < walk->axis_count; i++) {
        const struct za_axis *axis = &walk->axes[i];
        walk->coords[i] = axis->chunks != NULL ? axis->chunks[walk->at[i]] : axis->first + walk->at[i];
    }
}

void za_walk_start(struct za_walk *walk, const struct za_axis *axes, int axis_count, int64_t number)
{
    walk->axes = axes;
    walk->axis_count = axis_count;
    for (int i = axis_count - 1; i >= 0; i--) {
        walk->at[i] = number % axes[i].count;
        number /= axes[i].count;
    }
    find_coords(walk);
}

void za_walk_on(struct za_walk *walk)
{
    for (int i = walk->axis_count - 1; i >= 0 && ++walk->at[i] == walk->axes[i].count; i--)
        walk->at[i] = 0;
    find_coords(walk);
}

/* ---------------------------------------------------------------- cuts */

static int64_t divide_up(int64_t number, int64_t by) { return number <= 0 ? 0 : (number - 1) / by + 1; }

/* Return how many of the sorted indices are less than a limit. */
static int64_t count_below(const int64_t *indices, int64_t count, int64_t limit)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (indices[middle] < limit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct za_cut za_cut_axis(const struct za_axis *axis, int64_t origin, int64_t size)
{
    struct za_cut cut = {.origin = origin};
    int64_t end, limit = origin > INT64_MAX - size ? INT64_MAX : origin + size; /* no index is that large */
    if (axis->indices != NULL) {
        cut.begin = count_below(axis->indices, axis->length, origin);
        end = count_below(axis->indices, axis->length, limit);
        cut.first = cut.begin < end ? axis->indices[cut.begin] - origin : 0;
        cut.step = 0;
    } else {
        cut.begin = divide_up(origin - axis->start, axis->step);
        end = divide_up(limit - axis->start, axis->step);
        if (end > axis->length)
            end = axis->length;
        cut.first = axis->start + cut.begin * axis->step - origin;
        cut.step = axis->step;
    }
    cut.count = end - cut.begin;
    return cut;
}

struct za_cut za_cut_part(const struct za_axis *axis, const struct za_cut *cut, int64_t at, int64_t count)
{
    struct za_cut part = {.begin = cut->begin + at, .count = count, .step = cut->step, .origin = cut->origin};
    part.first = axis->indices != NULL ? axis->indices[part.begin] - cut->origin : cut->first + at * cut->step;
    return part;
}

int64_t za_last_index(const struct za_axis *axis, const struct za_cut *cut)
{
    if (axis->indices != NULL)
        return axis->indices[cut->begin + cut->count - 1] - cut->origin;
    return cut->first + (cut->count - 1) * cut->step;
}

/* ---------------------------------------------------------------- loops */

/* One loop of a copy: `count` elements at distances, or at listed positions. */
struct loop {
    int64_t count;
    int64_t raw_stride, out_stride;
    const int64_t *indices, *targets; /* if the indices are listed */
    int64_t origin;
};

struct copy {
    struct loop loops[ZA_MAX_AXES + 1];
    int loop_count;
    int64_t raw_offset, out_offset;
    int64_t item_size, word_size;
};

static void add_points(struct copy *copy, const struct za_box *box)
{
    const struct za_points *points = box->points;
    struct loop *loop = &copy->loops[copy->loop_count++];
    *loop = (struct loop){.count = box->count, .raw_stride = 1, .out_stride = points->out_stride};
    loop->indices = points->offsets + box->begin;
    loop->targets = points->order + box->begin;
}

static void add_listed(struct copy *copy, const struct za_axis *axis, const struct za_cut *cut, int64_t raw_stride)
{
    struct loop *loop = &copy->loops[copy->loop_count++];
    *loop = (struct loop){.count = cut->count, .raw_stride = raw_stride, .out_stride = axis->out_stride};
    loop->indices = axis->indices + cut->begin;
    loop->origin = cut->origin;
    if (axis->targets != NULL)
        loop->targets = axis->targets + cut->begin;
    else
        copy->out_offset += cut->begin * axis->out_stride;
}

/* Whether the elements of an inner loop are all that an outer loop steps over. */
static int continues(const struct loop *outer, const struct loop *inner)
{
    return outer->indices == NULL && inner->indices == NULL && outer->raw_stride == inner->count * inner->raw_stride &&
           outer->out_stride == inner->count * inner->out_stride;
}

/* Prepare the loops for a box, the fastest last. */
static void plan_copy(struct copy *copy, const struct za_chain *chain, const struct za_box *box)
{
    copy->loop_count = 0;
    copy->raw_offset = copy->out_offset = 0;
    copy->item_size = chain->item_size;
    copy->word_size = chain->word_size;
    if (box->points != NULL)
        add_points(copy, box);
    for (int i = 0; i < box->axis_count; i++) {
        const struct za_axis *axis = &box->axes[i];
        const struct za_cut *cut = &box->cuts[i];
        int64_t raw_stride = chain->strides[i];
        if (axis->indices != NULL) {
            add_listed(copy, axis, cut, raw_stride);
            continue;
        }
        copy->raw_offset += cut->first * raw_stride;
        copy->out_offset += cut->begin * axis->out_stride;
        if (cut->count == 1)
            continue;
        struct loop loop = {.count = cut->count, .raw_stride = cut->step * raw_stride, .out_stride = axis->out_stride};
        int position = copy->loop_count++;
        while (position > 0 && copy->loops[position - 1].indices == NULL &&
               copy->loops[position - 1].raw_stride < loop.raw_stride) {
            copy->loops[position] = copy->loops[position - 1];
            position--;
        }
        copy->loops[position] = loop;
    }
    int last = 0;
    for (int i = 1; i < copy->loop_count; i++) {
        if (continues(&copy->loops[last], &copy->loops[i])) {
            copy->loops[last].raw_stride = copy->loops[i].raw_stride;
            copy->loops[last].out_stride = copy->loops[i].out_stride;
            copy->loops[last].count *= copy->loops[i].count;
        } else {
            copy->loops[++last] = copy->loops[i];
        }
    }
    if (copy->loop_count > 0)
        copy->loop_count = last + 1;
}

/* ---------------------------------------------------------------- copying rows */

/* Copy elements from `from` to `to`. The compiler makes a loop for each size. */
INLINE void copy_items(uint8_t *to, int64_t to_stride, const uint8_t *from, int64_t from_stride, int64_t count,
                       size_t size)
{
    for (int64_t i = 0; i < count; i++) {
        memcpy(to, from, size);
        to += to_stride;
        from += from_stride;
    }
}

static void copy_row(uint8_t *to, int64_t to_stride, const uint8_t *from, int64_t from_stride, int64_t count,
                     int64_t size)
{
    if (to_stride == size && from_stride == size) {
        memcpy(to, from, (size_t)(count * size));
        return;
    }
    switch (size) {
    case 1: copy_items(to, to_stride, from, from_stride, count, 1); break;
    case 2: copy_items(to, to_stride, from, from_stride, count, 2); break;
    case 4: copy_items(to, to_stride, from, from_stride, count, 4); break;
    case 8: copy_items(to, to_stride, from, from_stride, count, 8); break;
    case 16: copy_items(to, to_stride, from, from_stride, count, 16); break;
    default: copy_items(to, to_stride, from, from_stride, count, (size_t)size);
    }
}

INLINE uint16_t reversed16(uint16_t word) { return (uint16_t)(word << 8 | word >> 8); }
INLINE uint32_t reversed32(uint32_t word)
{
    return word << 24 | (word & 0xff00) << 8 | (word >> 8 & 0xff00) | word >> 24;
}
INLINE uint64_t reversed64(uint64_t word)
{
    return (uint64_t)reversed32((uint32_t)word) << 32 | reversed32((uint32_t)(word >> 32));
}

static void reverse_bytes(uint8_t *to, const uint8_t *from, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        to[i] = from[size - 1 - i];
}

/* Copy elements with the bytes of each word reversed. */
static void copy_reversed(uint8_t *to, int64_t to_stride, const uint8_t *from, int64_t from_stride, int64_t count,
                          int64_t size, int64_t word)
{
    for (int64_t i = 0; i < count; i++, to += to_stride, from += from_stride) {
        for (int64_t at = 0; at < size; at += word) {
            if (word == 4) {
                uint32_t value;
                memcpy(&value, from + at, 4);
                value = reversed32(value);
                memcpy(to + at, &value, 4);
            } else if (word == 8) {
                uint64_t value;
                memcpy(&value, from + at, 8);
                value = reversed64(value);
                memcpy(to + at, &value, 8);
            } else if (word == 2) {
                uint16_t value;
                memcpy(&value, from + at, 2);
                value = reversed16(value);
                memcpy(to + at, &value, 2);
            } else {
                reverse_bytes(to + at, from + at, word);
            }
        }
    }
}

INLINE void copy_last(const struct copy *copy, const struct loop *loop, uint8_t *to, int64_t to_stride,
                      const uint8_t *from, int64_t from_stride)
{
    if (copy->word_size > 1)
        copy_reversed(to, to_stride, from, from_stride, loop->count, copy->item_size, copy->word_size);
    else
        copy_row(to, to_stride, from, from_stride, loop->count, copy->item_size);
}

/* ---------------------------------------------------------------- copying boxes */

static const struct loop once = {.count = 1};

/* The position of element `i` of a loop in the raw bytes, and in the output. */
INLINE int64_t raw_position(const struct loop *loop, int64_t i)
{
    return (loop->indices != NULL ? loop->indices[i] - loop->origin : i) * loop->raw_stride;
}
INLINE int64_t out_position(const struct loop *loop, int64_t i)
{
    return (loop->targets != NULL ? loop->targets[i] : i) * loop->out_stride;
}

/* Copy listed elements. The compiler makes a loop for each size. */
INLINE void copy_listed_items(const struct loop *loop, const uint8_t *raw, uint8_t *out, size_t size)
{
    for (int64_t i = 0; i < loop->count; i++)
        memcpy(out + out_position(loop, i), raw + raw_position(loop, i), size);
}

static void copy_listed(const struct loop *loop, const uint8_t *raw, uint8_t *out, int64_t size)
{
    switch (size) {
    case 1: copy_listed_items(loop, raw, out, 1); break;
    case 2: copy_listed_items(loop, raw, out, 2); break;
    case 4: copy_listed_items(loop, raw, out, 4); break;
    case 8: copy_listed_items(loop, raw, out, 8); break;
    default: copy_listed_items(loop, raw, out, (size_t)size);
    }
}

/* Elements that are far apart in the output and are copied before their neighbours there: as many as a cache has places for
 * lines whose addresses differ by a power of two. */
enum { TILE = 8 };

/* Whether the last two loops, of which this is the first, swap axes: neighbours in the raw bytes are far apart in the output. */
static int transposes(const struct copy *copy, int depth)
{
    if (depth + 2 != copy->loop_count)
        return 0;
    const struct loop *outer = &copy->loops[depth], *inner = &copy->loops[depth + 1];
    return outer->indices == NULL && inner->indices == NULL && outer->out_stride > 0 &&
           outer->out_stride < inner->out_stride && inner->count > TILE;
}

/* Copy such loops in tiles, so that a line of the cache is used for several elements while it is there. */
static void copy_tiles(const struct copy *copy, const struct loop *outer, uint8_t *to, int64_t to_outer, int64_t to_inner,
                       const uint8_t *from, int64_t from_outer, int64_t from_inner)
{
    struct loop tile = outer[1];
    for (int64_t at = 0; at < outer[1].count; at += TILE) {
        tile.count = outer[1].count - at < TILE ? outer[1].count - at : TILE;
        for (int64_t i = 0; i < outer->count; i++)
            copy_last(copy, &tile, to + i * to_outer + at * to_inner, to_inner, from + i * from_outer + at * from_inner,
                      from_inner);
    }
}

static void place(const struct copy *copy, int depth, const uint8_t *raw, uint8_t *out)
{
    const struct loop *loop = depth < copy->loop_count ? &copy->loops[depth] : &once;
    if (transposes(copy, depth)) {
        copy_tiles(copy, loop, out, loop->out_stride, loop[1].out_stride, raw, loop->raw_stride, loop[1].raw_stride);
        return;
    }
    if (depth + 1 >= copy->loop_count && loop->indices != NULL && copy->word_size <= 1) {
        copy_listed(loop, raw, out, copy->item_size);
        return;
    }
    if (depth + 1 >= copy->loop_count && loop->indices == NULL) {
        copy_last(copy, loop, out, loop->out_stride, raw, loop->raw_stride);
        return;
    }
    for (int64_t i = 0; i < loop->count; i++)
        place(copy, depth + 1, raw + raw_position(loop, i), out + out_position(loop, i));
}

void za_place(const struct za_chain *chain, const struct za_box *box, const uint8_t *raw, uint8_t *out)
{
    struct copy copy;
    plan_copy(&copy, chain, box);
    place(&copy, 0, raw + copy.raw_offset, out + copy.out_offset);
}

static void gather(const struct copy *copy, int depth, uint8_t *raw, const uint8_t *values)
{
    const struct loop *loop = depth < copy->loop_count ? &copy->loops[depth] : &once;
    if (transposes(copy, depth)) {
        copy_tiles(copy, loop, raw, loop->raw_stride, loop[1].raw_stride, values, loop->out_stride, loop[1].out_stride);
        return;
    }
    if (depth + 1 >= copy->loop_count && loop->indices == NULL) {
        copy_last(copy, loop, raw, loop->raw_stride, values, loop->out_stride);
        return;
    }
    for (int64_t i = 0; i < loop->count; i++)
        gather(copy, depth + 1, raw + raw_position(loop, i), values + out_position(loop, i));
}

void za_gather(const struct za_chain *chain, const struct za_box *box, const uint8_t *values, uint8_t *raw)
{
    struct copy copy;
    plan_copy(&copy, chain, box);
    gather(&copy, 0, raw + copy.raw_offset, values + copy.out_offset);
}

/* ---------------------------------------------------------------- fill values */

static int is_one_byte(const uint8_t *item, int64_t size)
{
    for (int64_t i = 1; i < size; i++)
        if (item[i] != item[0])
            return 0;
    return 1;
}

static void fill(const struct copy *copy, int depth, const uint8_t *item, int one_byte, uint8_t *out)
{
    const struct loop *loop = depth < copy->loop_count ? &copy->loops[depth] : &once;
    if (depth + 1 < copy->loop_count || loop->indices != NULL) {
        for (int64_t i = 0; i < loop->count; i++)
            fill(copy, depth + 1, item, one_byte, out + out_position(loop, i));
    } else if (one_byte && loop->out_stride == copy->item_size) {
        memset(out, item[0], (size_t)(loop->count * copy->item_size));
    } else {
        copy_row(out, loop->out_stride, item, 0, loop->count, copy->item_size);
    }
}

void za_fill(const struct za_chain *chain, const struct za_box *box, uint8_t *out)
{
    struct copy copy;
    plan_copy(&copy, chain, box);
    fill(&copy, 0, chain->fill, is_one_byte(chain->fill, chain->item_size), out + copy.out_offset);
}

void za_fill_raw(const struct za_chain *chain, uint8_t *raw)
{
    int64_t word = chain->word_size > 1 ? chain->word_size : chain->item_size, count;
    for (int64_t at = 0; at < chain->item_size; at += word) {
        if (chain->word_size > 1)
            reverse_bytes(raw + at, chain->fill + at, word);
        else
            memcpy(raw + at, chain->fill + at, (size_t)word);
    }
    for (int64_t done = chain->item_size; done < chain->raw_size; done += count) {
        count = chain->raw_size - done < done ? chain->raw_size - done : done;
        memcpy(raw + done, raw, (size_t)count);
    }
}

static int is_same(const uint8_t *one, const uint8_t *other, int64_t size)
{
    return memcmp(one, other, (size_t)size) == 0;
}

static int is_reversed(const uint8_t *one, const uint8_t *other, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        if (one[i] != other[size - 1 - i])
            return 0;
    return 1;
}

int za_is_fill(const struct za_chain *chain, const uint8_t *raw)
{
    int64_t item = chain->item_size, count = chain->raw_size / item;
    int64_t word = chain->word_size > 1 ? chain->word_size : item;
    if (count == 0)
        return 1;
    /* Equal to the fill value at the beginning, and everywhere to the element before. */
    for (int64_t at = 0; at < item; at += word)
        if (!(chain->word_size > 1 ? is_reversed : is_same)(raw + at, chain->fill + at, word))
            return 0;
    return is_same(raw, raw + item, (count - 1) * item);
}

/* ---------------------------------------------------------------- direct reads */

uint8_t *za_direct(const struct za_chain *chain, const struct za_box *box, uint8_t *out)
{
    struct copy copy;
    if (chain->word_size > 1)
        return NULL;
    plan_copy(&copy, chain, box);
    const struct loop *loop = copy.loop_count > 0 ? &copy.loops[0] : &once;
    int64_t bytes = loop->count * copy.item_size;
    if (copy.loop_count > 1 || loop->indices != NULL || bytes != chain->raw_size || copy.raw_offset != 0)
        return NULL;
    if (loop->count > 1 && (loop->raw_stride != copy.item_size || loop->out_stride != copy.item_size))
        return NULL;
    return out + copy.out_offset;
}
