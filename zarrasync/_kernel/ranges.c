/* Reading a few elements, with as little preparation by the caller as possible. */

#include "kernel.h"

/* Return an axis of a selection, without the place in the output. */
static struct za_axis describe_axis(const struct za_ranges *read, int i)
{
    int64_t start = read->ranges[i].start, step = read->ranges[i].step, length = read->ranges[i].length;
    int64_t chunk = read->array->lengths[i], first = start / chunk;
    return (struct za_axis){
        .chunk = chunk,
        .inner = read->array->inner_lengths[i],
        .first = first,
        .count = (start + (length - 1) * step) / chunk - first + 1,
        .start = start,
        .step = step,
        .length = length,
    };
}

/* Return how many (inner) chunks an axis touches at most. */
static int64_t count_chunks(const struct za_axis *axis)
{
    int64_t last = axis->start + (axis->length - 1) * axis->step;
    int64_t count = last / axis->inner - axis->start / axis->inner + 1;
    return count < axis->length ? count : axis->length;
}

/* Return how many bytes it is from the first element of a single (inner) chunk to the last. */
static int64_t span_of(const struct za_ranges *read)
{
    const struct za_chain *chain = &read->array->chain;
    int64_t span = chain->item_size;
    for (int i = 0; i < read->array->axis_count; i++)
        span += (read->ranges[i].length - 1) * read->ranges[i].step * chain->strides[i];
    return span;
}

/* Bytes that are decoded in the time that opening and closing a file takes. */
enum { FILE_BYTES = 16 << 10 };

/* Return whether this takes at most the time of decoding `limit` bytes. */
static int is_small(const struct za_ranges *read, const struct za_axis *axes)
{
    const struct za_array *array = read->array;
    const struct za_chain *chain = &array->chain;
    int64_t chunks = 1;
    for (int i = 0; i < array->axis_count; i++)
        chunks *= count_chunks(&axes[i]);
    if (array->is_sharded && za_index_size(array) > read->limit)
        return 0;
    if (chain->raw_size + (array->is_sharded ? 0 : FILE_BYTES) <= read->limit / chunks)
        return 1;
    /* Only these are read of a large raw chunk, or decoded of one that consists of blocks, unless these are long. */
    int is_partial = chunks == 1 && (chain->step_count == 0 || (za_has_blocks(chain) && chain->raw_size <= 16 * read->limit));
    return (is_partial ? span_of(read) : chain->raw_size) <= read->limit;
}

int64_t zarrasync_read_ranges(const struct za_ranges *read)
{
    const struct za_array *array = read->array;
    struct za_axis axes[ZA_MAX_AXES];
    int64_t stride = array->chain.item_size, chunks = 1;
    for (int64_t n = array->axis_count; n-- > 0;) {
        int i = (int)array->order[n];
        axes[i] = describe_axis(read, i);
        axes[i].out_stride = stride;
        stride *= axes[i].length;
        chunks *= axes[i].count;
        if (axes[i].count > axes[i].length) /* the range skips chunks */
            return -1;
    }
    return is_small(read, axes) ? zarrasync_read(read->worker, array, axes, NULL, read->out, 0, chunks, NULL, NULL) : -1;
}
