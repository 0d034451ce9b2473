// Gathers the neighbours of a face and combines them, and collects the gradients the other way round:
// a face looks up where it took part, so that nothing is added atomically. Lanes run along channels.

#include "common.cuh"

// A channel of a face; NaN where a table names a face that there is not. Something is read all the
// same: no branch keeps the reads of several neighbours from being under way at once.
template <typename T>
__device__ __forceinline__ float channel_of(const T* at, i64 face, i64 faces, i64 pitch) {
  const bool there = face >= 0 && face < faces;
  const float x = to_float(at[there ? face * pitch : 0]);
  return there ? x : undefined();
}

// Neighbour `slot` of a row; without a table the siblings 4 row, 4 row + 1 and 4 row + 2.
__device__ __forceinline__ i64 neighbour(const int* table, i64 slots, i64 row, int slot) {
  return table ? table[row * slots + slot] : 4 * row + slot;
}

__device__ __forceinline__ i64 centre_face(i64 row, i64 stride) {
  return stride == 1 ? row : 4 * row + 3;
}

__device__ __forceinline__ float sign(float x) {
  return x != x ? x : static_cast<float>((x > 0.f) - (x < 0.f));
}

// To out[row, 4, channels] the face itself, the sum of its neighbours, that of the differences round
// the cycle, and that of the differences to the face.
template <typename T>
__global__ void __launch_bounds__(128) mesh_forward(
    const T* features, i64 pitch, const int* table, T* out,
    i64 first, i64 rows, i64 slots, i64 channels, i64 stride, i64 faces) {
  for (i64 i = blockIdx.x * 128ll + threadIdx.x; i < rows * channels; i += gridDim.x * 128ll) {
    const i64 row = divided(i, channels), c = i - row * channels;
    const T* at = features + c;
    const float centre = to_float(at[centre_face(first + row, stride) * pitch]);
    float begin = 0.f, before = 0.f, sum = 0.f, around = 0.f, away = 0.f;
    for (int slot = 0; slot < slots; ++slot) {
      const float x = channel_of(at, neighbour(table, slots, first + row, slot), faces, pitch);
      if (slot == 0) {
        begin = x;
      } else {
        around += fabsf(x - before);
      }
      sum += x, away += fabsf(x - centre), before = x;
    }
    around += fabsf(begin - before);
    T* to = out + row * 4 * channels + c;
    to[0] = number<T>(centre), to[channels] = number<T>(sum);
    to[2 * channels] = number<T>(around), to[3 * channels] = number<T>(away);
  }
}

// Gradient of the features from that of the combinations, back[row, 4, channels]. `inverse` holds for
// each face the places slot * rows + row that name it, and slots * rows where there are fewer.
template <typename T>
__global__ void __launch_bounds__(128) mesh_backward(
    const T* features, i64 pitch, const int* table, const int* inverse, i64 places,
    const T* back, T* out, i64 out_pitch, i64 faces, i64 rows, i64 slots, i64 channels, i64 stride) {
  for (i64 i = blockIdx.x * 128ll + threadIdx.x; i < faces * channels; i += gridDim.x * 128ll) {
    const i64 face = divided(i, channels), c = i - face * channels;
    const T* at = features + c;
    const float own = to_float(at[face * pitch]);
    float sum = 0.f;
    const i64 centred = stride == 1 ? face : (face % 4 == 3 ? face / 4 : -1);
    if (centred >= 0) {
      const T* given = back + centred * 4 * channels + c;
      float signs = 0.f;
      for (int slot = 0; slot < slots; ++slot) {
        signs += sign(own - channel_of(at, neighbour(table, slots, centred, slot), faces, pitch));
      }
      sum = to_float(given[0]) + to_float(given[3 * channels]) * signs;
    }
#pragma unroll 3
    for (i64 place = 0; place < places; ++place) {
      // Places are 32-bit numbers, and so are the rows then.
      const i64 named = table ? inverse[face * places + place]
                              : (face % 4 == 3 ? slots : face % 4) * rows + face / 4;
      const bool there = named >= 0 && named < slots * rows;
      const unsigned read = there ? static_cast<unsigned>(named) : 0u;
      const unsigned slot = read / static_cast<unsigned>(rows);
      const i64 row = read - slot * static_cast<unsigned>(rows);
      const i64 before = neighbour(table, slots, row, slot ? slot - 1 : slots - 1);
      const i64 after = neighbour(table, slots, row, slot + 1 < slots ? slot + 1 : 0);
      const T* given = back + row * 4 * channels + c;
      const float bends = sign(own - channel_of(at, before, faces, pitch))
          + sign(own - channel_of(at, after, faces, pitch));
      const float centre = to_float(at[centre_face(row, stride) * pitch]);
      const float value = to_float(given[channels]) + to_float(given[2 * channels]) * bends
          + to_float(given[3 * channels]) * sign(own - centre);
      if (there) sum += value;
    }
    out[face * out_pitch + c] = number<T>(sum);
  }
}
