/* The loop over small chunks in C: what a compiled extension could win. See native.py. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*blosc_function)(const void *, void *, size_t, int);
typedef int (*blosc_packer)(int, int, size_t, size_t, const void *, void *, size_t, const char *, size_t, int);
typedef size_t (*zstd_function)(void *, void *, size_t, const void *, size_t);

static ssize_t fetch(int folder, const char *name, char *memory, size_t room) {
  int handle = openat(folder, name, O_RDONLY | O_CLOEXEC);
  if (handle < 0) return -1;
  ssize_t count = read(handle, memory, room);
  close(handle);
  return count;
}

/* Reads files that hold a blosc chunk each, or a raw one where there is no function, and copies its rows to their places. */
int files(const char *path, const char *names, const int64_t *name_at, int64_t count, blosc_function decompress,
          char *out, const int64_t *place, int64_t rows, int64_t width, int64_t stride) {
  size_t size = rows * width;
  char *stored = malloc(2 * size + 4096), *chunk = malloc(size);
  int folder = open(path, O_RDONLY | O_DIRECTORY), failed = 0;
  for (int64_t i = 0; i < count && !failed; i++) {
    ssize_t length = fetch(folder, names + name_at[i], stored, 2 * size + 4096);
    failed = decompress ? length < 16 || decompress(stored, chunk, size, 1) != (int)size : length != (ssize_t)size;
    const char *from = decompress ? chunk : stored;
    for (int64_t row = 0; row < rows && !failed; row++)
      memcpy(out + place[i] + row * stride, from + row * width, width);
  }
  close(folder), free(stored), free(chunk);
  return failed;
}

/* Writes chunks to a file each, with blosc where there is a function, under another name until it is complete; the
 * folders are there. */
int store(const char *path, const char *names, const int64_t *name_at, int64_t count, const char *values,
          const int64_t *place, int64_t rows, int64_t width, int64_t stride, int64_t thread, blosc_packer compress) {
  size_t size = rows * width, room = size + 64;
  char *chunk = malloc(size), *packed = malloc(room), partial[64];
  int folder = open(path, O_RDONLY | O_DIRECTORY), failed = 0;
  for (int64_t i = 0; i < count && !failed; i++) {
    for (int64_t row = 0; row < rows; row++)
      memcpy(chunk + row * width, values + place[i] + row * stride, width);
    const char *name = names + name_at[i];
    int length = compress ? compress(5, 1, 4, size, chunk, packed, room, "lz4", 0, 1) : (int)size;
    snprintf(partial, sizeof partial, "%s.%d-partial", name, (int)thread);
    int handle = openat(folder, partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    failed = handle < 0 || length <= 0 || write(handle, compress ? packed : chunk, length) != length;
    failed |= close(handle) || renameat(folder, partial, folder, name);
  }
  close(folder), free(chunk), free(packed);
  return failed;
}

/* Decompresses blosc chunks of float32 of a shard in memory, and copies what is wanted of each to its place: per chunk
 * where that begins and ends along three axes. */
int inner(const char *shard, const int64_t *index, int64_t count, blosc_function decompress, float *out,
          const int64_t *place, const int64_t *wanted, int64_t planes, int64_t rows, int64_t columns,
          int64_t plane_stride, int64_t stride) {
  size_t size = 4 * planes * rows * columns;
  float *chunk = malloc(size);
  int failed = 0;
  for (int64_t i = 0; i < count && !failed; i++, wanted += 6) {
    failed = decompress(shard + index[2 * i], chunk, size, 1) != (int)size;
    for (int64_t plane = wanted[0]; plane < wanted[1] && !failed; plane++)
      for (int64_t row = wanted[2]; row < wanted[3]; row++)
        memcpy(out + place[i] + (plane - wanted[0]) * plane_stride + (row - wanted[2]) * stride,
               chunk + (plane * rows + row) * columns + wanted[4], 4 * (wanted[5] - wanted[4]));
  }
  free(chunk);
  return failed;
}

/* Reads files that hold a zstd chunk of float32 each, and picks points from them. */
int points(const char *path, const char *names, const int64_t *name_at, int64_t count, zstd_function decompress,
           void *context, int64_t size, const int64_t *edges, const int64_t *inside, const int64_t *order,
           float *out) {
  char *stored = malloc(2 * size);
  float *chunk = malloc(size);
  int folder = open(path, O_RDONLY | O_DIRECTORY), failed = 0;
  for (int64_t i = 0; i < count && !failed; i++) {
    ssize_t length = fetch(folder, names + name_at[i], stored, 2 * size);
    failed = length < 0 || decompress(context, chunk, size, stored, length) != (size_t)size;
    for (int64_t k = edges[i]; k < edges[i + 1] && !failed; k++) out[order[k]] = chunk[inside[k]];
  }
  close(folder), free(stored), free(chunk);
  return failed;
}

/* Reads files that hold a square zstd chunk of float32 each, and copies what steps lead to: per chunk the first row,
 * the step and the number of rows, and the same of columns. */
int steps(const char *path, const char *names, const int64_t *name_at, int64_t count, zstd_function decompress,
          void *context, int64_t side, const int64_t *wanted, float *out, const int64_t *place, int64_t stride) {
  int64_t size = 4 * side * side;
  char *stored = malloc(2 * size);
  float *chunk = malloc(size);
  int folder = open(path, O_RDONLY | O_DIRECTORY), failed = 0;
  for (int64_t i = 0; i < count && !failed; i++, wanted += 6) {
    ssize_t length = fetch(folder, names + name_at[i], stored, 2 * size);
    failed = length < 0 || decompress(context, chunk, size, stored, length) != (size_t)size;
    for (int64_t row = 0; row < wanted[2] && !failed; row++) {
      float *to = out + place[i] + row * stride;
      const float *from = chunk + (wanted[0] + row * wanted[1]) * side + wanted[3];
      if (wanted[4] == 1)
        memcpy(to, from, 4 * wanted[5]);
      else
        for (int64_t column = 0; column < wanted[5]; column++) to[column] = from[column * wanted[4]];
    }
  }
  close(folder), free(stored), free(chunk);
  return failed;
}

/* Reads files that hold a square zstd chunk of float32 each, and picks rows and columns of it: per chunk the first and
 * last place among all rows that are wanted, and among all columns. */
int picks(const char *path, const char *names, const int64_t *name_at, int64_t count, zstd_function decompress,
          void *context, int64_t side, const int64_t *wanted, const int64_t *rows, const int64_t *columns, float *out,
          int64_t stride) {
  int64_t size = 4 * side * side;
  char *stored = malloc(2 * size);
  float *chunk = malloc(size);
  int folder = open(path, O_RDONLY | O_DIRECTORY), failed = 0;
  for (int64_t i = 0; i < count && !failed; i++, wanted += 4) {
    ssize_t length = fetch(folder, names + name_at[i], stored, 2 * size);
    failed = length < 0 || decompress(context, chunk, size, stored, length) != (size_t)size;
    for (int64_t row = wanted[0]; row < wanted[1] && !failed; row++)
      for (int64_t column = wanted[2]; column < wanted[3]; column++)
        out[row * stride + column] = chunk[rows[row] * side + columns[column]];
  }
  close(folder), free(stored), free(chunk);
  return failed;
}
