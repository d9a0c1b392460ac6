/* A fuzzer of the kernel: damaged chunks are read, and written chunks are read back.
 *
 * The first bytes of an input choose an array, with valid descriptions, and a selection. The kernel writes the array. Then
 * the rest of the input changes the stored files, and the kernel reads them. Sanitizers find what it does wrong, and
 * chunks that nobody changed must have the values that were written. `make fuzz-kernel` builds and runs it with libFuzzer,
 * for the same time with each first codec: FUZZ_CODEC is the number of a za_codec, or 0 for chains without codecs. */
#include "kernel.h"

#include <blosc.h>
#include <fcntl.h>
#include <isa-l.h>
#include <lz4.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

/* ---------------------------------------------------------------- input */

struct input {
    const uint8_t *data;
    size_t size;
};

/* Take a number below a limit. */
static int64_t take(struct input *input, int64_t limit)
{
    if (input->size == 0)
        return 0;
    input->size--;
    return *input->data++ % limit;
}

/* ---------------------------------------------------------------- descriptions */

enum { AXES = 3, LIST = 8, NO_LIMIT = 1 << 20 };

struct plan {
    struct za_array array;
    struct za_axis whole[AXES];    /* all elements */
    struct za_axis selected[AXES];
    int64_t chunks[AXES][LIST], indices[AXES][LIST], targets[AXES][LIST];
    struct za_points points; /* none if there are no point axes */
    int64_t order[LIST], offsets[LIST], edges[LIST + 1];
    int64_t elements, selected_elements; /* of the array, and of the selection */
    int64_t chunk_count, selected_chunks;
    uint8_t fill[16];
};

/* Return the first codec of all chains of a run, or -1 if the input chooses it. */
static int first_codec(void)
{
    static int codec = -2;
    if (codec == -2) {
        const char *setting = getenv("FUZZ_CODEC");
        codec = setting != NULL ? atoi(setting) : -1;
    }
    return codec;
}

static void choose_steps(struct input *input, struct za_chain *chain)
{
    int64_t size = chain->raw_size;
    int is_known = 1, first = first_codec();
    chain->step_count = first == 0 ? 0 : first > 0 ? 1 + take(input, 3) : take(input, 4);
    for (int64_t i = 0; i < chain->step_count; i++) {
        struct za_step *step = &chain->steps[i];
        step->kind = i == 0 && first > 0 ? first : 1 + take(input, 8);
        if (!is_known)
            step->kind = ZA_CRC32C; /* codecs after a compressor of unknown size */
        step->size = is_known ? size : -1;
        step->settings[0] = 1 + take(input, 5);
        if (step->kind == ZA_BLOSC) {
            static const char *names[] = {"lz4", "zstd", "blosclz", "zlib"};
            step->settings[1] = take(input, 3);
            step->settings[3] = chain->item_size;
            strncpy((char *)&step->settings[4], names[take(input, 4)], 8);
        } else if (step->kind == ZA_ZSTD) {
            step->settings[1] = take(input, 2);
        }
        if ((step->kind == ZA_SHUFFLE && size % step->settings[0] != 0) || (step->kind == ZA_DELTA && size % 4 != 0))
            step->settings[0] = 1;
        else if (step->kind == ZA_DELTA)
            step->settings[0] = 4;
        if (step->kind == ZA_CRC32C)
            size += 4;
        else if (step->kind != ZA_SHUFFLE && step->kind != ZA_DELTA)
            is_known = 0;
    }
    chain->least = chain->step_count == 0 ? chain->raw_size : 0;
    chain->most = chain->step_count == 0 ? chain->raw_size : INT64_MAX / 4;
    chain->size_hint = 1 + take(input, 250);
}

static void choose_axis(struct input *input, struct plan *plan, int i)
{
    struct za_axis *axis = &plan->whole[i];
    int is_small = plan->elements < 64; /* large arrays only cost time */
    axis->inner = 1 + take(input, is_small ? 6 : 3);
    axis->chunk = axis->inner * (plan->array.is_sharded ? 1 + take(input, is_small ? 3 : 2) : 1);
    axis->count = 1 + take(input, is_small ? 3 : 2);
    axis->length = axis->chunk * axis->count;
    axis->step = 1;
    plan->array.inner_count *= axis->chunk / axis->inner;
    plan->elements *= axis->length;
    plan->chunk_count *= axis->count;
}

/* Choose indices along an axis: a slice, a list, or those of points. */
static void choose_selection(struct input *input, struct plan *plan, int i)
{
    struct za_axis *axis = &plan->selected[i];
    int64_t size = axis->length, last = -1;
    if (plan->points.count > 0 && take(input, 3) > 0) {
        for (int64_t n = 0; n < plan->points.count; n++)
            plan->indices[i][n] = take(input, size);
        plan->points.indices[i] = plan->indices[i];
        axis->count = axis->length = 1;
    } else if (take(input, 3) > 0) {
        axis->start = take(input, size);
        axis->step = 1 + take(input, axis->chunk < size ? axis->chunk : size);
        axis->length = 1 + take(input, (size - 1 - axis->start) / axis->step + 1);
        axis->first = axis->start / axis->chunk;
        axis->count = (axis->start + (axis->length - 1) * axis->step) / axis->chunk - axis->first + 1;
    } else {
        axis->length = 1 + take(input, LIST);
        axis->count = 0;
        int64_t index = 0;
        for (int64_t n = 0; n < axis->length; n++) {
            index += take(input, (size - index + 1) / 2 + 1);
            index = index < size ? index : size - 1;
            plan->indices[i][n] = index;
            plan->targets[i][n] = axis->length - 1 - n;
            if (index / axis->chunk != last)
                plan->chunks[i][axis->count++] = last = index / axis->chunk;
        }
        axis->chunks = plan->chunks[i];
        axis->indices = plan->indices[i];
        axis->targets = take(input, 2) ? plan->targets[i] : NULL;
    }
    plan->selected_elements *= axis->length;
    plan->selected_chunks *= axis->count;
}

/* Give an array in C order its strides. */
static void set_out_strides(struct za_axis *axes, int64_t count, int64_t stride)
{
    for (int64_t i = count - 1; i >= 0; i--) {
        axes[i].out_stride = stride;
        stride *= axes[i].length;
    }
}

static void choose(struct input *input, struct plan *plan, const char *directory)
{
    static const int64_t items[] = {1, 2, 3, 4, 8, 16};
    struct za_array *array = &plan->array;
    struct za_chain *chain = &array->chain;
    memset(plan, 0, sizeof *plan);
    array->axis_count = take(input, AXES + 1);
    array->directory = directory;
    static const char *heads[] = {"scalar", "1/", "2/", "3/"}; /* files of one must not be folders of another */
    array->head = heads[array->axis_count];
    array->separator = take(input, 2) ? '/' : '.';
    array->value_limit = take(input, 4) ? NO_LIMIT : 300;
    array->is_sharded = array->axis_count > 0 && take(input, 2);
    array->index_at_end = take(input, 2);
    array->index_is_big_endian = take(input, 2);
    array->index_has_checksum = take(input, 2);
    array->inner_count = plan->elements = plan->selected_elements = plan->chunk_count = plan->selected_chunks = 1;
    for (int i = 0; i < array->axis_count; i++)
        choose_axis(input, plan, i);
    memcpy(plan->selected, plan->whole, sizeof plan->whole);
    plan->points = (struct za_points){.order = plan->order, .offsets = plan->offsets, .edges = plan->edges};
    plan->points.count = array->axis_count > 0 && take(input, 2) ? 1 + take(input, LIST) : 0;
    for (int i = 0; i < array->axis_count; i++)
        choose_selection(input, plan, i);
    chain->item_size = items[take(input, 6)];
    chain->word_size = take(input, 2) && chain->item_size % 2 == 0 ? chain->item_size : 0;
    chain->raw_size = chain->item_size;
    for (int i = 0; i < array->axis_count; i++)
        chain->raw_size *= plan->whole[i].inner;
    /* The elements in C or F order, and the inner chunks in C order. */
    int is_f = (int)take(input, 2);
    int64_t stride = chain->item_size, number = 1;
    for (int64_t n = 0; n < array->axis_count; n++) {
        int64_t i = is_f ? n : array->axis_count - 1 - n;
        chain->strides[i] = stride;
        stride *= plan->whole[i].inner;
    }
    for (int64_t i = array->axis_count - 1; i >= 0; i--) {
        array->inner_strides[i] = number;
        number *= plan->whole[i].chunk / plan->whole[i].inner;
    }
    for (int64_t i = 0; i < chain->item_size; i++)
        plan->fill[i] = (uint8_t)take(input, 3);
    chain->fill = plan->fill;
    choose_steps(input, chain);
    for (int i = 0; i < array->axis_count; i++) {
        array->lengths[i] = plan->whole[i].chunk;
        array->inner_lengths[i] = plan->whole[i].inner;
        array->order[i] = i;
    }
    set_out_strides(plan->whole, array->axis_count, chain->item_size);
    plan->points.out_stride = plan->selected_elements * chain->item_size;
    if (plan->points.count > 0)
        plan->selected_elements *= plan->points.count;
    set_out_strides(plan->selected, array->axis_count, chain->item_size);
}

/* ---------------------------------------------------------------- stored files */

/* Write the path of a chunk. */
static void name_chunk(const struct plan *plan, int64_t number, char *path, size_t room)
{
    const struct za_array *array = &plan->array;
    struct za_walk walk;
    size_t length = (size_t)snprintf(path, room, "%s%s", array->directory, array->head);
    za_walk_start(&walk, plan->whole, (int)array->axis_count, number);
    for (int64_t i = 0; i < array->axis_count; i++) {
        if (i > 0)
            path[length++] = (char)array->separator;
        length += (size_t)snprintf(path + length, room - length, "%d", (int)walk.coords[i]);
    }
}

/* Change a file: bytes at positions, its length, or all of it. */
static void damage(struct input *input, const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    int64_t changes = 1 + take(input, 4);
    for (int64_t n = 0; n < changes && input->size > 0; n++) {
        int64_t kind = take(input, 6), size = (int64_t)lseek(file, 0, SEEK_END), at = take(input, 256);
        uint8_t byte;
        at += 256 * take(input, 4);
        if (kind == 0) {
            if (ftruncate(file, at) != 0)
                break;
        } else if (kind == 1) {
            size_t count = input->size < 64 ? input->size : 64;
            if (pwrite(file, input->data, count, at) < 0)
                break;
            input->data += count;
            input->size -= count;
        } else if (kind == 2) { /* an entry of an index: another inner chunk in the place of this one */
            uint8_t entry[16];
            int64_t base = take(input, 2) ? size % 16 : size - size / 16 * 16 + 4 * take(input, 4), from = 16 * (at % 64);
            from = base + from, at = base + 16 * take(input, 64);
            if (size >= 32 && pread(file, entry, 16, from % (size - 15)) == 16 &&
                pwrite(file, entry, 16, at % (size - 15)) < 0)
                break;
        } else if (size > 0) {
            int64_t position = kind == 3 ? size - 1 - at % size : at % size; /* the index may be at the end */
            uint8_t change = (uint8_t)take(input, 256);
            if (pread(file, &byte, 1, position) == 1) {
                byte = kind == 4 ? change : byte ^ change;
                if (pwrite(file, &byte, 1, position) < 0)
                    break;
            }
        }
    }
    close(file);
}

static void remove_chunks(const struct plan *plan)
{
    char path[4096];
    for (int64_t n = 0; n < plan->chunk_count; n++) {
        name_chunk(plan, n, path, sizeof path);
        unlink(path);
        for (char *end; (end = strrchr(path, '/')) != NULL && end > path + strlen(plan->array.directory);) {
            *end = '\0';
            rmdir(path); /* fails while there are other chunks */
        }
    }
}

/* ---------------------------------------------------------------- runs */

static void require(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "violated: %s\n", what);
        abort();
    }
}

/* On 64-bit systems, zlib's stream has the layout of zlib-ng's. */
static int32_t start_deflate(void *stream, int32_t level, int32_t method, int32_t window, int32_t memory, int32_t strategy)
{
    return deflateInit2((z_streamp)stream, level, method, window, memory, strategy);
}

static struct za_worker *make_worker(void)
{
    static const struct za_functions functions = {
        .blosc_decompress_ctx = blosc_decompress_ctx,
        .blosc_compress_ctx = blosc_compress_ctx,
        .blosc_getitem = blosc_getitem,
        .ZSTD_decompressStream = (size_t(*)(void *, struct za_zstd_out *, struct za_zstd_in *))ZSTD_decompressStream,
        .ZSTD_initDStream = (size_t(*)(void *))ZSTD_initDStream,
        .ZSTD_createDCtx = (void *(*)(void))ZSTD_createDCtx,
        .ZSTD_freeDCtx = (size_t(*)(void *))ZSTD_freeDCtx,
        .ZSTD_decompressDCtx = (size_t(*)(void *, void *, size_t, const void *, size_t))ZSTD_decompressDCtx,
        .ZSTD_getFrameContentSize = ZSTD_getFrameContentSize,
        .ZSTD_findFrameCompressedSize = ZSTD_findFrameCompressedSize,
        .ZSTD_createCCtx = (void *(*)(void))ZSTD_createCCtx,
        .ZSTD_freeCCtx = (size_t(*)(void *))ZSTD_freeCCtx,
        .ZSTD_CCtx_setParameter = (size_t(*)(void *, int, int))ZSTD_CCtx_setParameter,
        .ZSTD_compress2 = (size_t(*)(void *, void *, size_t, const void *, size_t))ZSTD_compress2,
        .ZSTD_compressBound = ZSTD_compressBound,
        .LZ4_decompress_safe = LZ4_decompress_safe,
        .LZ4_compress_fast = LZ4_compress_fast,
        .LZ4_compressBound = LZ4_compressBound,
        .isal_inflate_init = (void (*)(void *))isal_inflate_init,
        .isal_inflate_stateless = (int (*)(void *))isal_inflate_stateless,
        .isal_adler32 = isal_adler32,
        .crc32_gzip_refl = crc32_gzip_refl,
        .zng_deflateInit2 = start_deflate,
        .zng_deflate = (int32_t(*)(void *, int32_t))deflate,
        .zng_deflateReset = (int32_t(*)(void *))deflateReset,
        .zng_deflateEnd = (int32_t(*)(void *))deflateEnd,
        .zng_deflateBound = (unsigned long (*)(void *, unsigned long))deflateBound,
    };
    return zarrasync_new_worker(&functions, NULL, 1 << 20);
}

/* Free the memory of earlier runs, so that sanitizers know the end of what a run uses. Contexts of codecs stay. */
static void forget_buffers(struct za_worker *worker)
{
    for (int i = 0; i < ZA_BUFFER_COUNT; i++) {
        free(worker->buffers[i].block);
        worker->buffers[i] = (struct za_buffer){0};
    }
}

static const char *scratch(void)
{
    static char directory[64];
    if (directory[0] == '\0') {
        snprintf(directory, sizeof directory, "/dev/shm/fuzz-%d/", (int)getpid());
        mkdir(directory, 0700);
    }
    return directory;
}

/* Return the element of the array that an element of the selection is, as a number in C order. */
static int64_t source_of(const struct plan *plan, int64_t number, int64_t *chunk)
{
    int64_t source = 0, stride = 1, chunk_stride = 1, point = number * plan->array.chain.item_size;
    point /= plan->points.out_stride;
    *chunk = 0;
    for (int64_t i = plan->array.axis_count - 1; i >= 0; i--) {
        const struct za_axis *axis = &plan->selected[i];
        int64_t at = number % axis->length, index;
        number /= axis->length;
        if (plan->points.indices[i] != NULL)
            index = plan->points.indices[i][point];
        else if (axis->indices != NULL)
            index = axis->indices[axis->targets != NULL ? axis->length - 1 - at : at];
        else
            index = axis->start + at * axis->step;
        source += index * stride;
        *chunk += index / axis->chunk * chunk_stride;
        stride *= plan->whole[i].length;
        chunk_stride *= plan->whole[i].count;
    }
    return source;
}

static int has_lists(const struct plan *plan)
{
    int found = plan->points.count > 0;
    for (int i = 0; i < plan->array.axis_count; i++)
        found |= plan->selected[i].indices != NULL;
    return found;
}

/* A file whose bytes are locked. */
static int lock_file(void)
{
    static int file = -1;
    if (file < 0) {
        char path[128];
        snprintf(path, sizeof path, "%slocks", scratch());
        file = open(path, O_RDWR | O_CREAT, 0600);
    }
    return file;
}

/* Find the folders of the chunks of a selection, and create those that do not exist. */
static void find_places(const struct plan *plan, const struct za_axis *axes, int64_t count, struct za_place *places)
{
    char path[4096];
    struct stat state;
    for (int64_t n = 0; n < count; n++) {
        struct za_walk walk;
        int64_t number = 0;
        za_walk_start(&walk, axes, (int)plan->array.axis_count, n);
        for (int64_t i = 0; i < plan->array.axis_count; i++)
            number = number * plan->whole[i].count + walk.coords[i];
        name_chunk(plan, number, path, sizeof path);
        for (char *end = strchr(path + strlen(scratch()), '/'); end != NULL; end = strchr(end + 1, '/')) {
            *end = '\0';
            mkdir(path, 0700);
            *end = '/';
        }
        strrchr(path, '/')[1] = '\0';
        require(stat(path, &state) == 0, "folders are created");
        places[n] = (struct za_place){(int64_t)state.st_dev, (int64_t)state.st_ino};
    }
}

/* Write a selection over what is stored. `changed` tells which of all chunks have the new values afterwards. */
static void change_chunks(struct za_worker *worker, const struct plan *plan, const uint8_t *values, int64_t keeps_fill,
                          uint8_t *changed)
{
    const volatile uint8_t cancelled = 0;
    struct za_place *places = malloc((size_t)plan->selected_chunks * sizeof *places);
    uint8_t *statuses = malloc((size_t)plan->selected_chunks);
    struct za_walk walk;
    find_places(plan, plan->selected, plan->selected_chunks, places);
    zarrasync_write(worker, &plan->array, plan->selected, values, 0, plan->selected_chunks, statuses, &cancelled, ".partial",
                    keeps_fill, places, lock_file());
    za_walk_start(&walk, plan->selected, (int)plan->array.axis_count, 0);
    for (int64_t n = 0; n < plan->selected_chunks; n++, za_walk_on(&walk)) {
        int64_t number = 0;
        for (int64_t i = 0; i < plan->array.axis_count; i++)
            number = number * plan->whole[i].count + walk.coords[i];
        require(statuses[n] == ZA_DONE || statuses[n] == ZA_LEFT || statuses[n] == ZA_EMPTY, "the status is one of a write");
        changed[number] = statuses[n] == ZA_DONE;
    }
    free(places);
    free(statuses);
}

/* Return the number of the first chunk of a selection among all chunks. */
static int64_t first_chunk(const struct plan *plan)
{
    int64_t number = 0;
    for (int64_t i = 0; i < plan->array.axis_count; i++)
        number = number * plan->whole[i].count + plan->selected[i].first;
    return number;
}

/* Return the content of a file, in memory of exactly its size; null if there is none. */
static uint8_t *content(const char *path, int64_t *size)
{
    struct stat state;
    int file = open(path, O_RDONLY);
    if (file < 0)
        return NULL;
    require(fstat(file, &state) == 0, "files have sizes");
    uint8_t *data = malloc((size_t)state.st_size);
    *size = read(file, data, (size_t)state.st_size);
    require(*size == state.st_size, "files are read");
    close(file);
    return data;
}

/* Write a selection of one chunk again, after encoding it in memory: both have the same result. */
static void change_and_encode(struct za_worker *worker, const struct plan *plan, const uint8_t *values, int64_t keeps_fill)
{
    char path[4096];
    uint8_t changed[64];
    int64_t old_size = 0, new_size = 0;
    struct za_value encoded;
    name_chunk(plan, first_chunk(plan), path, sizeof path);
    uint8_t *old = content(path, &old_size), *result = NULL;
    int64_t status = zarrasync_encode(worker, &plan->array, plan->selected, values, old, old_size, keeps_fill, &encoded);
    require(status == ZA_DONE || status == ZA_LEFT || status == ZA_EMPTY, "the status is one of encoding");
    if (status == ZA_DONE) {
        result = malloc((size_t)encoded.size);
        zarrasync_take(worker, &encoded, result);
    }
    change_chunks(worker, plan, values, keeps_fill, changed);
    uint8_t *new = content(path, &new_size);
    if (status == ZA_DONE && changed[first_chunk(plan)])
        require(new_size == encoded.size && memcmp(new, result, (size_t)new_size) == 0, "memory and files are the same");
    free(old);
    free(new);
    free(result);
}

/* Read a selection of slices as ranges: either all of its elements, or what is left to other reads. */
static void read_ranges(struct input *input, struct za_worker *worker, const struct plan *plan, const uint8_t *expected)
{
    size_t size = (size_t)(plan->selected_elements * plan->array.chain.item_size);
    struct za_ranges *ranges = malloc(sizeof *ranges + AXES * sizeof ranges->ranges[0]);
    *ranges = (struct za_ranges){worker, &plan->array, malloc(size), take(input, 2) ? NO_LIMIT : 100};
    for (int i = 0; i < plan->array.axis_count; i++) {
        const struct za_axis *axis = &plan->selected[i];
        ranges->ranges[i].start = axis->start;
        ranges->ranges[i].step = axis->step;
        ranges->ranges[i].length = axis->length;
    }
    if (!has_lists(plan) && zarrasync_read_ranges(ranges) == plan->selected_elements && expected != NULL)
        require(memcmp(ranges->out, expected, size) == 0, "ranges have the same values");
    free(ranges->out);
    free(ranges);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    static struct plan plan;
    char path[4096];
    const volatile uint8_t cancelled = 0;
    static struct za_worker *worker;
    if (worker == NULL)
        worker = make_worker();
    forget_buffers(worker);
    choose(&input, &plan, scratch());
    remove_chunks(&plan);

    if (plan.points.count > 0) {
        int64_t groups = zarrasync_sort_points(worker, &plan.array, plan.selected, &plan.points);
        require(groups > 0 && groups <= plan.points.count && plan.edges[groups] == plan.points.count, "points are sorted");
        plan.selected_chunks *= groups;
    }
    int64_t item = plan.array.chain.item_size;
    uint8_t *values = malloc((size_t)(plan.elements * item)), *out = malloc((size_t)(plan.selected_elements * item));
    uint8_t *statuses = malloc((size_t)plan.chunk_count), *read_statuses = malloc((size_t)plan.selected_chunks);
    uint32_t state = (uint32_t)take(&input, 256);
    int64_t variety = 1 + take(&input, 4);
    for (int64_t i = 0; i < plan.elements * item; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (uint8_t)(state >> 24 & (uint32_t)(variety * 85));
    }
    int64_t keeps_fill = take(&input, 2);
    zarrasync_write(worker, &plan.array, plan.whole, values, 0, plan.chunk_count, statuses, &cancelled, ".partial",
                    keeps_fill, NULL, -1);
    struct za_place *places = malloc((size_t)plan.chunk_count * sizeof *places);
    find_places(&plan, plan.whole, plan.chunk_count, places);
    for (int64_t n = 0, end; n < plan.chunk_count; n = end) {
        for (end = n + 1; end < plan.chunk_count && statuses[end] == statuses[n];)
            end++;
        if (statuses[n] == ZA_LATER)
            zarrasync_write(worker, &plan.array, plan.whole, values, n, end, statuses + n, &cancelled, ".partial",
                            keeps_fill, places + n, lock_file());
        for (int64_t k = n; k < end; k++)
            require(statuses[k] == ZA_DONE || statuses[k] == ZA_EMPTY, "whole chunks are written");
    }
    free(places);

    uint8_t *changed = calloc((size_t)plan.chunk_count, 1);
    int changes = !has_lists(&plan) && take(&input, 2);
    for (int64_t i = 0; i < plan.selected_elements * item; i++)
        out[i] = values[i % (plan.elements * item)] ^ (uint8_t)variety;
    if (changes)
        change_chunks(worker, &plan, out, keeps_fill, changed);
    for (int64_t n = 0; n < plan.selected_elements; n++) {
        int64_t chunk, source = source_of(&plan, n, &chunk);
        if (changed[chunk])
            memcpy(values + source * item, out + n * item, (size_t)item);
    }
    free(changed);

    int64_t damaged = input.size > 0 ? take(&input, plan.chunk_count) : -1;
    if (damaged >= 0) {
        name_chunk(&plan, damaged, path, sizeof path);
        damage(&input, path);
    }
    if (changes && damaged >= 0 && take(&input, 2)) { /* with the values that they have, but for the damaged chunk */
        uint8_t ignored[64];
        for (int64_t n = 0; n < plan.selected_elements; n++) {
            int64_t chunk, source = source_of(&plan, n, &chunk);
            memcpy(out + n * item, values + source * item, (size_t)item);
        }
        if (plan.selected_chunks == 1 && plan.array.is_sharded)
            change_and_encode(worker, &plan, out, keeps_fill);
        else
            change_chunks(worker, &plan, out, keeps_fill, ignored);
    }
    memset(out, 0xaa, (size_t)(plan.selected_elements * item));
    zarrasync_read(worker, &plan.array, plan.selected, plan.points.count > 0 ? &plan.points : NULL, out, 0,
                   plan.selected_chunks, read_statuses, &cancelled);
    for (int64_t n = 0; n < plan.selected_chunks; n++)
        require(read_statuses[n] <= ZA_LEFT, "the status is one of a read");
    for (int64_t n = 0; n < plan.selected_elements; n++) {
        int64_t chunk, source = source_of(&plan, n, &chunk);
        if (chunk != damaged && plan.array.value_limit == NO_LIMIT)
            require(memcmp(out + n * item, values + source * item, (size_t)item) == 0, "values are read back");
    }
    int is_complete = memchr(read_statuses, ZA_LEFT, (size_t)plan.selected_chunks) == NULL;
    read_ranges(&input, worker, &plan, is_complete ? out : NULL);
    remove_chunks(&plan);
    free(values);
    free(out);
    free(statuses);
    free(read_statuses);
    return 0;
}
