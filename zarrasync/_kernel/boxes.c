/* Boxes: which chunks a selection touches, which of their elements, and copying these between chunks and the output. */

#include "kernel.h"

#include <string.h>

/* ---------------------------------------------------------------- chunks */

static void move_to(struct za_walk *walk, int i, int64_t at)
{
    const struct za_axis *axis = &walk->axes[i];
    walk->at[i] = at;
    walk->coords[i] = axis->chunks != NULL ? axis->chunks[at] : axis->first + at;
}

void za_walk_start(struct za_walk *walk, const struct za_axis *axes, int axis_count, int64_t number)
{
    walk->axes = axes;
    walk->axis_count = axis_count;
    for (int i = axis_count - 1; i >= 0; i--) {
        move_to(walk, i, number % axes[i].count);
        number /= axes[i].count;
    }
}

void za_walk_on(struct za_walk *walk)
{
    int is_last = 1; /* continue with the axis before this one */
    for (int i = walk->axis_count - 1; i >= 0 && is_last; i--) {
        is_last = walk->at[i] + 1 == walk->axes[i].count;
        move_to(walk, i, is_last ? 0 : walk->at[i] + 1);
    }
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

int64_t za_cut_box(const struct za_box *box, const int64_t *origin, const int64_t *coords, int is_inner)
{
    int64_t elements = 1;
    for (int i = 0; i < box->axis_count; i++) {
        const struct za_axis *axis = &box->axes[i];
        int64_t length = is_inner ? axis->inner : axis->chunk, start = coords[i] * length;
        if (origin != NULL && start > INT64_MAX - origin[i]) /* beyond all indices */
            return 0;
        box->cuts[i] = za_cut_axis(axis, start + (origin != NULL ? origin[i] : 0), length);
        if (box->cuts[i].count <= 0)
            return 0;
        elements *= box->cuts[i].count;
    }
    return elements;
}

int64_t za_last_index(const struct za_axis *axis, const struct za_cut *cut)
{
    if (axis->indices != NULL)
        return axis->indices[cut->begin + cut->count - 1] - cut->origin;
    return cut->first + (cut->count - 1) * cut->step;
}

/* ---------------------------------------------------------------- loops */

/* Where the elements of a loop are: at distances, or at listed positions. */
struct side {
    int64_t stride;
    const int64_t *listed; /* null for 0, 1, 2 … */
    int64_t origin;        /* what is subtracted from those that are listed */
};

struct loop {
    int64_t count;
    struct side from, to;
};

struct copy {
    struct loop loops[ZA_MAX_AXES + 1]; /* at least one; the fastest is the last */
    int loop_count;
    int is_tiled;
    int64_t raw_offset, out_offset;
    int64_t item_size, word_size;
};

/* Elements that are far apart in the output and are copied before their neighbours there: as many as a cache has places for
 * lines whose addresses differ by a power of two. */
enum { TILE = 8 };

/* Add a loop over listed elements. Such loops stay in the order of the axes. */
static void add_listed(struct copy *copy, const struct za_axis *axis, const struct za_cut *cut, int64_t raw_stride)
{
    struct loop *loop = &copy->loops[copy->loop_count++];
    loop->count = cut->count;
    loop->from = (struct side){raw_stride, axis->indices + cut->begin, cut->origin};
    loop->to = (struct side){axis->out_stride, NULL, 0};
    if (axis->targets != NULL)
        loop->to.listed = axis->targets + cut->begin;
    else
        copy->out_offset += cut->begin * axis->out_stride;
}

/* Add a loop over a slice, before those with shorter strides. */
static void add_slice(struct copy *copy, const struct za_axis *axis, const struct za_cut *cut, int64_t raw_stride)
{
    int at = copy->loop_count;
    copy->raw_offset += cut->first * raw_stride;
    copy->out_offset += cut->begin * axis->out_stride;
    if (cut->count == 1)
        return;
    int64_t stride = cut->step * raw_stride;
    for (; at > 0 && copy->loops[at - 1].from.listed == NULL && copy->loops[at - 1].from.stride < stride; at--)
        copy->loops[at] = copy->loops[at - 1];
    copy->loops[at] = (struct loop){cut->count, {stride, NULL, 0}, {axis->out_stride, NULL, 0}};
    copy->loop_count++;
}

static int is_listed(const struct loop *loop) { return loop->from.listed != NULL || loop->to.listed != NULL; }

/* Whether the elements of an inner loop are all that an outer loop steps over. */
static int continues(const struct loop *outer, const struct loop *inner)
{
    return !is_listed(outer) && !is_listed(inner) && outer->from.stride == inner->count * inner->from.stride &&
           outer->to.stride == inner->count * inner->to.stride;
}

/* Whether two loops swap axes: neighbours in the raw bytes are far apart in the output. */
static int transposes(const struct loop *outer, const struct loop *inner)
{
    return !is_listed(outer) && !is_listed(inner) && outer->to.stride > 0 && outer->to.stride < inner->to.stride &&
           inner->count > TILE;
}

static void join_loops(struct copy *copy)
{
    struct loop *last = copy->loops;
    for (struct loop *loop = last + 1; loop < copy->loops + copy->loop_count; loop++) {
        int64_t outer_count = continues(last, loop) ? last->count : 0;
        if (outer_count == 0)
            last++;
        *last = *loop;
        last->count *= outer_count == 0 ? 1 : outer_count;
    }
    copy->loop_count = (int)(last - copy->loops) + 1;
}

/* Plan to copy a box from the raw bytes of a chunk to the output. */
static void plan_copy(struct copy *copy, const struct za_chain *chain, const struct za_box *box)
{
    const struct za_points *points = box->points;
    copy->loop_count = 0;
    copy->raw_offset = copy->out_offset = 0;
    copy->item_size = chain->item_size;
    copy->word_size = chain->word_size;
    if (points != NULL)
        copy->loops[copy->loop_count++] = (struct loop){
            box->count, {1, points->offsets + box->begin, 0}, {points->out_stride, points->order + box->begin, 0}};
    for (int i = 0; i < box->axis_count; i++) {
        if (box->axes[i].indices != NULL)
            add_listed(copy, &box->axes[i], &box->cuts[i], chain->strides[i]);
        else
            add_slice(copy, &box->axes[i], &box->cuts[i], chain->strides[i]);
    }
    if (copy->loop_count == 0)
        copy->loops[copy->loop_count++] = (struct loop){1, {chain->item_size, NULL, 0}, {chain->item_size, NULL, 0}};
    join_loops(copy);
    const struct loop *last = &copy->loops[copy->loop_count - 1];
    copy->is_tiled = copy->loop_count > 1 && transposes(last - 1, last);
}

/* ---------------------------------------------------------------- copying rows */

INLINE int64_t position(const struct side *side, int64_t i)
{
    return (side->listed != NULL ? side->listed[i] - side->origin : i) * side->stride;
}

INLINE void reverse_word(uint8_t *to, const uint8_t *from, size_t size)
{
    uint64_t word = 0;
    memcpy(&word, from, size);
    word = za_reversed(word);
    memcpy(to, (const uint8_t *)&word + sizeof word - size, size);
}

/* Copy an element; the bytes of words of some size are reversed, unless this is 0. */
INLINE void copy_item(uint8_t *to, const uint8_t *from, int64_t size, int64_t word)
{
    if (word == 0)
        memcpy(to, from, (size_t)size);
    for (int64_t at = 0; at < size && word != 0; at += word) {
        if (word <= 8)
            reverse_word(to + at, from + at, (size_t)word);
        else
            for (int64_t i = 0; i < word; i++)
                to[at + i] = from[at + word - 1 - i];
    }
}

/* Copy the elements of a loop. The compiler makes loops for each size. */
INLINE void copy_items(const struct loop *loop, uint8_t *to, const uint8_t *from, int64_t size, int64_t word)
{
    const struct side to_side = loop->to, from_side = loop->from; /* which no copied byte can overlap */
    int64_t count = loop->count, to_stride = to_side.stride, from_stride = from_side.stride;
    if (is_listed(loop)) {
        for (int64_t i = 0; i < count; i++)
            copy_item(to + position(&to_side, i), from + position(&from_side, i), size, word);
    } else {
        for (; count > 0; count--, to += to_stride, from += from_stride)
            copy_item(to, from, size, word);
    }
}

static int is_dense(const struct side *side, int64_t size) { return side->listed == NULL && side->stride == size; }

static int is_one_byte(const uint8_t *item, int64_t size)
{
    for (int64_t i = 1; i < size; i++)
        if (item[i] != item[0])
            return 0;
    return 1;
}

static void copy_reversed(const struct loop *loop, uint8_t *to, const uint8_t *from, int64_t size, int64_t word)
{
    switch (word) {
    case 2: copy_items(loop, to, from, size, 2); break;
    case 4: copy_items(loop, to, from, size, 4); break;
    case 8: copy_items(loop, to, from, size, 8); break;
    default: copy_items(loop, to, from, size, word);
    }
}

/* Copy the elements of a loop one by one. */
static void copy_each(const struct loop *loop, uint8_t *to, const uint8_t *from, int64_t size, int64_t word)
{
    if (word != 0) {
        copy_reversed(loop, to, from, size, word);
        return;
    }
    switch (size) {
    case 1: copy_items(loop, to, from, 1, 0); break;
    case 2: copy_items(loop, to, from, 2, 0); break;
    case 4: copy_items(loop, to, from, 4, 0); break;
    case 8: copy_items(loop, to, from, 8, 0); break;
    case 16: copy_items(loop, to, from, 16, 0); break;
    default: copy_items(loop, to, from, size, 0);
    }
}

static void copy_row(const struct loop *loop, uint8_t *to, const uint8_t *from, int64_t size, int64_t word)
{
    int is_dense_row = is_dense(&loop->to, size);
    if (word == 0 && is_dense_row && is_dense(&loop->from, size))
        memcpy(to, from, (size_t)(loop->count * size));
    else if (is_dense_row && is_dense(&loop->from, 0) && is_one_byte(from, size))
        memset(to, from[0], (size_t)(loop->count * size));
    else
        copy_each(loop, to, from, size, word);
}

/* ---------------------------------------------------------------- copying boxes */

/* Copy two loops that swap axes in tiles, so that a line of the cache is used for several elements while it is there. */
static void copy_tiles(const struct loop *outer, uint8_t *to, const uint8_t *from, int64_t size, int64_t word)
{
    struct loop tile = outer[1];
    int64_t total = tile.count;
    for (int64_t at = 0; at < total; at += TILE) {
        uint8_t *row_to = to + at * tile.to.stride;
        const uint8_t *row_from = from + at * tile.from.stride;
        tile.count = total - at < TILE ? total - at : TILE;
        for (int64_t i = 0; i < outer->count; i++, row_to += outer->to.stride, row_from += outer->from.stride)
            copy_each(&tile, row_to, row_from, size, word);
    }
}

static void copy_loops(const struct copy *copy, int depth, uint8_t *to, const uint8_t *from)
{
    const struct loop *loop = &copy->loops[depth];
    if (depth + 1 == copy->loop_count) {
        copy_row(loop, to, from, copy->item_size, copy->word_size);
    } else if (depth + 2 == copy->loop_count && copy->is_tiled) {
        copy_tiles(loop, to, from, copy->item_size, copy->word_size);
    } else {
        for (int64_t i = 0; i < loop->count; i++)
            copy_loops(copy, depth + 1, to + position(&loop->to, i), from + position(&loop->from, i));
    }
}

void za_place(const struct za_chain *chain, const struct za_box *box, const uint8_t *raw, uint8_t *out)
{
    struct copy copy;
    plan_copy(&copy, chain, box);
    copy_loops(&copy, 0, out + copy.out_offset, raw + copy.raw_offset);
}

void za_gather(const struct za_chain *chain, const struct za_box *box, const uint8_t *values, uint8_t *raw)
{
    struct copy copy;
    plan_copy(&copy, chain, box);
    for (int i = 0; i < copy.loop_count; i++) {
        struct side from = copy.loops[i].to;
        copy.loops[i].to = copy.loops[i].from;
        copy.loops[i].from = from;
    }
    copy_loops(&copy, 0, raw + copy.raw_offset, values + copy.out_offset);
}

uint8_t *za_direct(const struct za_chain *chain, const struct za_box *box, uint8_t *out)
{
    struct copy copy;
    if (chain->word_size != 0)
        return NULL;
    plan_copy(&copy, chain, box);
    const struct loop *row = &copy.loops[0];
    int is_direct = copy.loop_count == 1 && copy.raw_offset == 0 && row->count * chain->item_size == chain->raw_size &&
                    is_dense(&row->from, chain->item_size) && is_dense(&row->to, chain->item_size);
    return is_direct ? out + copy.out_offset : NULL;
}

/* List the rows of the loops from a depth on; returns where the next one is to be listed. */
static struct za_piece *list_rows(const struct copy *copy, int depth, int64_t start, struct za_piece *rows)
{
    const struct loop *loop = &copy->loops[depth];
    if (depth + 1 == copy->loop_count) {
        *rows = (struct za_piece){start, loop->count * copy->item_size, 0};
        return rows + 1;
    }
    for (int64_t i = 0; i < loop->count; i++)
        rows = list_rows(copy, depth + 1, start + i * loop->to.stride, rows);
    return rows;
}

int64_t za_rows(const struct za_chain *chain, const struct za_box *box, struct za_piece *rows, int64_t most)
{
    struct copy copy;
    plan_copy(&copy, chain, box);
    const struct loop *row = &copy.loops[copy.loop_count - 1];
    int is_contiguous = is_dense(&row->from, chain->item_size) && is_dense(&row->to, chain->item_size);
    if (!is_contiguous || chain->raw_size / (row->count * chain->item_size) > most)
        return 0;
    return list_rows(&copy, 0, copy.out_offset, rows) - rows;
}

/* ---------------------------------------------------------------- fill values */

void za_fill(const struct za_chain *chain, const struct za_box *box, uint8_t *out)
{
    struct copy copy;
    plan_copy(&copy, chain, box);
    copy.word_size = 0; /* the fill value has the byte order of memory already */
    for (int i = 0; i < copy.loop_count; i++)
        copy.loops[i].from = (struct side){0};
    copy_loops(&copy, 0, out + copy.out_offset, chain->fill);
}

void za_fill_raw(const struct za_chain *chain, uint8_t *raw)
{
    const struct loop all = {.count = chain->raw_size / chain->item_size, .to.stride = chain->item_size};
    copy_row(&all, raw, chain->fill, chain->item_size, chain->word_size);
}

int za_is_fill(const struct za_chain *chain, const uint8_t *raw, int64_t size)
{
    int64_t item = chain->item_size, word = chain->word_size;
    /* Equal to the fill value at the beginning, and everywhere to the element before. */
    for (int64_t i = 0; i < item; i++)
        if (raw[i] != chain->fill[word == 0 ? i : i - i % word + (word - 1 - i % word)])
            return 0;
    return memcmp(raw, raw + item, (size_t)(size - item)) == 0;
}
