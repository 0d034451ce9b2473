// Correlation along rows, forward, on tensor cores: the same sums as in correlation.cu, for rows of
// many channels. Sixteen columns of one row by eight of the other are one product of a warp, eight
// words of channels deep. The products that meet the band of wanted displacements are computed, and
// what lies off the band is left out on the way to memory.

#include "common.cuh"

constexpr int THREADS = 128;
constexpr int COLUMNS = 32;  // of a block: 16 of a warp
constexpr int REACH = 64;    // displacements of a block, at most
constexpr int DEEP = 16;     // words that are staged at once
constexpr int PITCH = COLUMNS + 8, WIDE = COLUMNS + REACH + 8;  // rows that follow start 8 banks on
constexpr int PITCH_OUT = COLUMNS + 4;
constexpr int PLACES = 5;  // products side by side of a warp, and between them another warp's
constexpr int PIECES = DEEP * (2 * COLUMNS + REACH) / 4 / THREADS;

// Four columns of two neighbouring channels: where a thread reads them, to which word they go.
struct Piece {
  i64 channel, column;
  int first, to;
  unsigned inside;  // a bit for each column
  bool across;      // all are inside, and the four of a channel lie side by side
  bool paired;      // the two of a column lie side by side

  // As they come, so that reads need not be waited for.
  template <typename T>
  __device__ __forceinline__ Pack<unsigned, 4> read(const T* from, int channels) const {
    Pack<unsigned, 4> got{};
    if (channels <= 0) return got;
    if (across) {
      const auto even = *reinterpret_cast<const Pack<unsigned, 2>*>(from);
      Pack<unsigned, 2> odd{};
      if (channels > 1) odd = *reinterpret_cast<const Pack<unsigned, 2>*>(from + channel);
      return {even.v[0], even.v[1], odd.v[0], odd.v[1]};
    }
#pragma unroll
    for (int k = 0; k < 4; ++k, from += column) {
      if (!(inside >> k & 1)) continue;
      if (paired && channels > 1) {
        got.v[k] = *reinterpret_cast<const unsigned*>(from);
      } else {
        got.v[k] = from->bits | (channels > 1 ? from[channel].bits << 16 : 0);
      }
    }
    return got;
  }

  // A word for each column.
  __device__ __forceinline__ Pack<unsigned, 4> words(const Pack<unsigned, 4>& got) const {
    if (!across) return got;
    Pack<unsigned, 4> out;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int shift = k % 2 * 16;
      out.v[k] = (got.v[k / 2] >> shift & 0xffff) | got.v[2 + k / 2] >> shift << 16;
    }
    return out;
  }
};

// A block takes `span` displacements of a row, two warps every other product of 16 columns.
template <typename T>
__global__ void __launch_bounds__(THREADS, 3) banded_forward(
    const T* left, i64 left_b, i64 left_c, i64 left_y, i64 left_x,
    const T* right, i64 right_b, i64 right_c, i64 right_y, i64 right_x,
    T* out, i64 batch_, i64 groups_, i64 channels_, i64 height_, i64 width_, i64 count_,
    i64 lines_, i64 shift_, i64 reversed, i64 span_) {
  constexpr int CHUNK = 2 * DEEP, TILE = DEEP * (PITCH + WIDE);
  __shared__ __align__(16) unsigned memory[2 * TILE];
  static_assert(2 * TILE >= REACH * PITCH_OUT, "the result is staged there too");

  const int batch = batch_, groups = groups_, channels = channels_, height = height_;
  const int width = width_, count = count_, lines = lines_, shift = shift_, span = span_;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int x = warp % 2 * 16 + g, part = warp / 2;
  const int across = (width + COLUMNS - 1) / COLUMNS, steps = (count + span - 1) / span;
  const bool last = left_c == 1 && left_x != 1;  // lanes run along what lies side by side

  EACH_TILE(tile, row, pair, across * steps, height * lines, batch * groups) {
    const int x0 = tile % across * COLUMNS, j0 = tile / across * span;
    const int line = row % lines, y = row / lines, group = pair % groups, image = pair / groups;
    const int other = y + line - lines / 2, start = x0 + shift - j0, have = least(span, count - j0);
    const bool meets = other >= 0 && other < height;
    const i64 c0 = static_cast<i64>(group) * channels;

    Piece pieces[PIECES];
    const T* at[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      const int n = threadIdx.x + i * THREADS;
      const int word = last ? n % DEEP : n / 32, k = 4 * (last ? n / DEEP : n % 32) - COLUMNS;
      const bool is_right = k >= 0;
      const int from = is_right ? start - REACH + k : x0 + COLUMNS + k;
      Piece& p = pieces[i];
      p.channel = is_right ? right_c : left_c, p.column = is_right ? right_x : left_x;
      p.first = 2 * word;
      at[i] = is_right ? right + image * right_b + other * right_y
                       : left + image * left_b + y * left_y;
      at[i] += (c0 + p.first) * p.channel + from * p.column;
      p.to = is_right ? DEEP * PITCH + word * WIDE + k : word * PITCH + COLUMNS + k;
      p.inside = 0;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const bool wanted = !is_right || k + m + have > REACH;
        p.inside |= static_cast<unsigned>(wanted && static_cast<unsigned>(from + m) < width) << m;
      }
      const auto address = reinterpret_cast<unsigned long long>(at[i]);
      p.across = p.inside == 15 && p.column == 1 && p.channel % 4 == 0 && address % 8 == 0;
      p.paired = p.channel == 1 && p.column % 2 == 0 && address % 4 == 0;
    }

    const int products = (have + 22) / 8;
    float sum[PLACES][4] = {};
    Pack<unsigned, 4> held[PIECES];
    for (int c = 0; meets && c < channels + CHUNK; c += CHUNK) {  // reads are one ahead of the sums
      unsigned* now = memory + c / CHUNK % 2 * TILE;
      if (c > 0) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
          *reinterpret_cast<Pack<unsigned, 4>*>(now + pieces[i].to) = pieces[i].words(held[i]);
        }
        __syncthreads();
      }
      if (c < channels) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
          held[i] = pieces[i].read(at[i], channels - c - pieces[i].first);
          at[i] += CHUNK * pieces[i].channel;
        }
      }
#pragma unroll
      for (int deep = 0; deep < DEEP; deep += 8) {
        if (c == 0 || c - CHUNK + 2 * deep >= channels) continue;
        const unsigned* l = now + (deep + t) * PITCH + x;
        const unsigned* r = now + DEEP * PITCH + (deep + t) * WIDE + x + REACH + 8;
        const unsigned a[4] = {l[0], l[8], l[4 * PITCH], l[4 * PITCH + 8]};
#pragma unroll
        for (int m = 0; m < PLACES; ++m) {
          const int back = 8 * (part + 2 * m);
          if (back >= 8 * products) continue;
          const unsigned b[2] = {r[-back], r[4 * WIDE - back]};
          add_product(sum[m], a, b, T{});
        }
      }
    }

    __syncthreads();
    float* found = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int m = 0; m < PLACES; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int down = i / 2 * 8, j = g + down - 2 * t - i % 2 + 8 * (part + 2 * m) - 8;
        if (j >= 0 && j < have) found[j * PITCH_OUT + x + down] = sum[m][i];
      }
    }
    __syncthreads();
    const float scale = 1.f / channels;
    const i64 area = static_cast<i64>(height) * width;
    const i64 plane = (static_cast<i64>(pair) * lines + line) * count;
    for (int i = threadIdx.x; i < have * COLUMNS / 4; i += THREADS) {
      const int j = i / (COLUMNS / 4), k = i % (COLUMNS / 4) * 4, column = x0 + k;
      if (column >= width) continue;
      float value[4];
      load4(found + j * PITCH_OUT + k, value);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const bool inside = static_cast<unsigned>(start + k + m - j) < width;
        value[m] = meets && inside ? value[m] * scale : 0.f;
      }
      T* at = out + (plane + (reversed ? count - 1 - j0 - j : j0 + j)) * area
          + static_cast<i64>(y) * width + column;
      if (width % 4 == 0) {
        store4(at, value);
      } else {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          if (column + m < width) at[m] = number<T>(value[m]);
        }
      }
    }
    __syncthreads();
  }
}
