/* The memory and the codec contexts of a thread. */

#include "kernel.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

uint8_t *za_grow(struct za_worker *worker, int number, int64_t kept, int64_t size)
{
    struct za_buffer *buffer = &worker->buffers[number];
    if (size <= buffer->size)
        return buffer->data;
    if (size > INT64_MAX / 2 - ALIGNMENT || (uint64_t)size > SIZE_MAX / 2 - ALIGNMENT)
        return NULL;
    int64_t wanted = size + size / 8;
    void *block = malloc((size_t)wanted + ALIGNMENT);
    if (block == NULL)
        return NULL;
    uint8_t *data = (uint8_t *)(((uintptr_t)block + ALIGNMENT) & ~(uintptr_t)(ALIGNMENT - 1));
    if (kept > 0)
        memcpy(data, buffer->data, (size_t)kept);
    free(buffer->block);
    *buffer = (struct za_buffer){.data = data, .block = block, .size = wanted};
    return data;
}

uint8_t *za_reserve(struct za_worker *worker, int number, int64_t size) { return za_grow(worker, number, 0, size); }

/* Give large buffers back at the end of a call. */
void za_release_large(struct za_worker *worker)
{
    for (int i = 0; i < ZA_BUFFER_COUNT; i++) {
        struct za_buffer *buffer = &worker->buffers[i];
        if (buffer->size > worker->largest_kept) {
            free(buffer->block);
            *buffer = (struct za_buffer){0};
        }
    }
}

struct za_worker *zarrasync_new_worker(const struct za_functions *functions, const struct za_system *system,
                                       int64_t largest_kept)
{
    struct za_worker *worker = calloc(1, sizeof *worker);
    if (worker != NULL) {
        worker->functions = *functions;
        worker->system = system != NULL ? system : zarrasync_system();
        worker->largest_kept = largest_kept;
    }
    return worker;
}

void zarrasync_free_worker(struct za_worker *worker)
{
    if (worker == NULL)
        return;
    for (int i = 0; i < ZA_BUFFER_COUNT; i++)
        free(worker->buffers[i].block);
    if (worker->zstd_decoder != NULL)
        worker->functions.ZSTD_freeDCtx(worker->zstd_decoder);
    if (worker->zstd_encoder != NULL)
        worker->functions.ZSTD_freeCCtx(worker->zstd_encoder);
    free(worker->isal_state);
    za_free_deflater(worker);
    free(worker);
}
