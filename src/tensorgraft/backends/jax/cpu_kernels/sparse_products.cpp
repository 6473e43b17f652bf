// Products with compressed sparse rows on the CPU, as handlers of XLA's foreign function interface.
//
// Operands are starts (rows + 1), columns (stored values) and arrays of one dtype; results are C-contiguous. Every
// start and column is checked before memory is read at it. Rows are computed in blocks.

namespace {

constexpr int64_t kTile = 64;           // columns of a result that are summed in registers
constexpr int64_t kWork = 1 << 16;      // multiplications in a block of rows
constexpr const char* kInvalid =
    "a sparse matrix has a start or a column out of bounds: starts ascend from 0 to the number of stored values, and"
    " columns lie between 0 and the number of columns";

// ---- products -----------------------------------------------------------------------------------------------------

template <typename I>
struct Pattern {
  const I* starts;
  const I* columns;
  int64_t rows, width, stored;

  bool row(int64_t r, int64_t* begin, int64_t* end) const {
    *begin = starts[r];
    *end = starts[r + 1];
    return 0 <= *begin && *begin <= *end && *end <= stored;
  }
  bool has(int64_t column) const { return static_cast<uint64_t>(column) < static_cast<uint64_t>(width); }
};

// out (rows, k): sums of values times rows of dense (width, k), `n` columns of it.
template <typename T, typename I, int64_t N>
bool row_of_product(const Pattern<I>& a, const T* values, const T* dense, T* out, int64_t k, int64_t begin,
                    int64_t end) {
  T sums[N] = {};
  for (int64_t p = begin; p < end; ++p) {
    const int64_t column = a.columns[p];
    if (!a.has(column)) return false;
    const T value = values[p];
    const T* other = dense + column * k;
    for (int64_t j = 0; j < N; ++j) sums[j] += value * other[j];
  }
  for (int64_t j = 0; j < N; ++j) out[j] = sums[j];
  return true;
}

template <typename T, typename I>
bool product(XLA_FFI_CallFrame* frame, const Pattern<I>& a, const T* values, const T* dense, int64_t k, T* out) {
  const int64_t step = std::max<int64_t>(1, kWork / std::max<int64_t>(1, a.stored / std::max<int64_t>(1, a.rows) * k));
  return for_blocks(frame, (a.rows + step - 1) / step, [=, &a](int64_t block) {
    bool valid = true;
    for (int64_t r = block * step; r < std::min(a.rows, (block + 1) * step); ++r) {
      int64_t begin, end, j = 0;
      if (!a.row(r, &begin, &end)) return false;
      for (; j + kTile <= k; j += kTile) valid &= row_of_product<T, I, kTile>(a, values, dense + j, out + r * k + j, k, begin, end);
      for (; j + 16 <= k; j += 16) valid &= row_of_product<T, I, 16>(a, values, dense + j, out + r * k + j, k, begin, end);
      for (; j + 4 <= k; j += 4) valid &= row_of_product<T, I, 4>(a, values, dense + j, out + r * k + j, k, begin, end);
      for (; j < k; ++j) valid &= row_of_product<T, I, 1>(a, values, dense + j, out + r * k + j, k, begin, end);
    }
    return valid;
  });
}

// out (width, k): rows of dense (rows, k) are added where the transposed matrix has values. Threads have columns of out.
template <typename T, typename I>
bool transposed(XLA_FFI_CallFrame* frame, const Pattern<I>& a, const T* values, const T* dense, int64_t k, T* out) {
  const int64_t lanes = a.stored * k < kWork ? 1 : std::max<int64_t>(1, std::min(pool_size(frame), k / 16));
  const int64_t step = (k + lanes - 1) / lanes;
  return for_blocks(frame, lanes, [=, &a](int64_t lane) {
    const int64_t first = lane * step, last = std::min(k, first + step);
    for (int64_t c = 0; c < a.width; ++c) std::fill(out + c * k + first, out + c * k + last, T(0));
    for (int64_t r = 0; r < a.rows; ++r) {
      int64_t begin, end;
      if (!a.row(r, &begin, &end)) return false;
      for (int64_t p = begin; p < end; ++p) {
        const int64_t column = a.columns[p];
        if (!a.has(column)) return false;
        const T value = values[p];
        const T* __restrict other = dense + r * k;
        T* __restrict sum = out + column * k;
        for (int64_t j = first; j < last; ++j) sum[j] += value * other[j];
      }
    }
    return true;
  });
}

// out (stored values): products of a row of left (rows, k) and one of right (width, k).
template <typename T, typename I>
bool sampled(XLA_FFI_CallFrame* frame, const Pattern<I>& a, const T* left, const T* right, int64_t k, T* out) {
  constexpr int64_t kLanes = 16;
  std::fill(out, out + (a.rows && a.starts[0] == 0 && a.starts[a.rows] == a.stored ? 0 : a.stored), T(0));
  const int64_t step = std::max<int64_t>(1, kWork / std::max<int64_t>(1, a.stored / std::max<int64_t>(1, a.rows) * k));
  return for_blocks(frame, (a.rows + step - 1) / step, [=, &a](int64_t block) {
    for (int64_t r = block * step; r < std::min(a.rows, (block + 1) * step); ++r) {
      int64_t begin, end;
      if (!a.row(r, &begin, &end)) return false;
      const T* x = left + r * k;
      for (int64_t p = begin; p < end; ++p) {
        const int64_t column = a.columns[p];
        if (!a.has(column)) return false;
        const T* y = right + column * k;
        T sums[kLanes] = {}, total = 0;
        int64_t j = 0;
        for (; j + kLanes <= k; j += kLanes)
          for (int64_t i = 0; i < kLanes; ++i) sums[i] += x[j + i] * y[j + i];
        for (; j < k; ++j) total += x[j] * y[j];
        for (int64_t i = 0; i < kLanes; ++i) total += sums[i];
        out[p] = total;
      }
    }
    return true;
  });
}

// ---- handlers -----------------------------------------------------------------------------------------------------

enum Kind { kProduct, kTransposed, kSampled };

template <Kind kind, typename T, typename I>
bool compute(XLA_FFI_CallFrame* frame, XLA_FFI_Buffer** x, XLA_FFI_Buffer* out) {
  const T* p = static_cast<const T*>(x[2]->data);
  const T* q = static_cast<const T*>(x[3]->data);
  T* result = static_cast<T*>(out->data);
  const int64_t width = kind == kTransposed ? out->dims[0] : x[3]->dims[0];
  Pattern<I> a{static_cast<const I*>(x[0]->data), static_cast<const I*>(x[1]->data), x[0]->dims[0] - 1, width,
               x[1]->dims[0]};
  const int64_t k = x[3]->dims[1];
  if (kind == kProduct) return product(frame, a, p, q, k, result);
  if (kind == kTransposed) return transposed(frame, a, p, q, k, result);
  return sampled(frame, a, p, q, k, result);
}

template <Kind kind, typename T>
bool by_index(XLA_FFI_CallFrame* frame, XLA_FFI_Buffer** x, XLA_FFI_Buffer* out) {
  return x[0]->dtype == XLA_FFI_DataType_S32 ? compute<kind, T, int32_t>(frame, x, out)
                                             : compute<kind, T, int64_t>(frame, x, out);
}

template <Kind kind>
XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame) {
  if (is_question(frame)) return nullptr;
  auto** x = reinterpret_cast<XLA_FFI_Buffer**>(frame->args.args);
  auto* out = static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0]);
  bool valid = false;
  switch (out->dtype) {
    case XLA_FFI_DataType_F32: valid = by_index<kind, float>(frame, x, out); break;
    case XLA_FFI_DataType_F64: valid = by_index<kind, double>(frame, x, out); break;
    default: return error(frame, "a product with a sparse matrix has values of float32 or float64");
  }
  return valid ? nullptr : error(frame, kInvalid);
}

}  // namespace
