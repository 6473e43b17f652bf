// Running sums, products and extremes on the CPU, as handlers of XLA's foreign function interface.

namespace {

struct Sum {
  template <typename T> static constexpr T unit() { return std::is_floating_point_v<T> ? T(-0.0) : T(0); }
  template <typename T> static T join(T total, T x) { return total + x; }
  template <typename T> using Total = std::conditional_t<std::is_same_v<T, float>, double, T>;
};

struct Product {
  template <typename T> static constexpr T unit() { return T(1); }
  template <typename T> static T join(T total, T x) { return total * x; }
  template <typename T> using Total = std::conditional_t<std::is_same_v<T, float>, double, T>;
};

template <typename T>
constexpr T greatest() {
  return std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
}

struct Maximum {  // of equal values the last, and NaN from the first one on
  template <typename T> static constexpr T unit() {
    return std::is_floating_point_v<T> ? -greatest<T>() : std::numeric_limits<T>::lowest();
  }
  template <typename T> static bool takes(T total, T x) { return x >= total || x != x; }
  template <typename T> static T join(T total, T x) { return takes<T>(total, x) ? x : total; }
  template <typename T> using Total = T;
};

struct Minimum {
  template <typename T> static constexpr T unit() { return greatest<T>(); }
  template <typename T> static bool takes(T total, T x) { return x <= total || x != x; }
  template <typename T> static T join(T total, T x) { return takes<T>(total, x) ? x : total; }
  template <typename T> using Total = T;
};

template <typename I>
I* offset(I* positions, int64_t by) {
  if constexpr (std::is_void_v<I>) return nullptr;
  else return positions + by;
}

constexpr int64_t kLanes = 8;    // rows whose totals depend on each other's in no way, so that the processor overlaps them
constexpr int64_t kColumns = 256;

// Totals of N sequences, and the positions at which extremes were taken (`I`: none where it is void).
template <typename Op, typename T, typename I, int64_t N>
struct Scan {
  using A = typename Op::template Total<T>;
  static constexpr bool kHasPositions = !std::is_void_v<I>;
  A total[N];
  int32_t at[kHasPositions ? N : 1];

  explicit Scan(int64_t used) {
    for (int64_t j = 0; j < used; ++j) total[j] = Op::template unit<A>();
    if constexpr (kHasPositions)
      for (int64_t j = 0; j < used; ++j) at[j] = 0;
  }

  // Join `used` elements, which are `step` apart.
  void next(const T* __restrict x, T* __restrict out, I* __restrict positions, int64_t i, int64_t used, int64_t step) {
    for (int64_t j = 0; j < used; ++j) {
      const A value = static_cast<A>(x[j * step]);
      if constexpr (kHasPositions) {
        const bool takes = Op::template takes<A>(total[j], value);
        total[j] = takes ? value : total[j];
        at[j] = takes ? static_cast<int32_t>(i) : at[j];
        positions[j * step] = at[j];
      } else {
        total[j] = Op::template join<A>(total[j], value);
      }
      out[j * step] = static_cast<T>(total[j]);
    }
  }
};

// Scan N rows of contiguous elements.
template <typename Op, typename T, typename I, int64_t N>
void scan_rows(const T* x, T* out, I* positions, int64_t n) {
  Scan<Op, T, I, N> scan(N);
  for (int64_t i = 0; i < n; ++i) scan.next(x + i, out + i, offset(positions, i), i, N, n);
}

// Scan columns of a matrix with rows of `inner` elements, all of them at a time.
template <typename Op, typename T, typename I>
void scan_columns(const T* x, T* out, I* positions, int64_t n, int64_t inner, int64_t columns) {
  Scan<Op, T, I, kColumns> scan(columns);
  for (int64_t i = 0; i < n; ++i)
    scan.next(x + i * inner, out + i * inner, offset(positions, i * inner), i, columns, 1);
}

// x, out and positions: (outer, n, inner), scanned along n, which is less than 2^31 where there are positions.
template <typename Op, typename T, typename I>
void scan(XLA_FFI_CallFrame* frame) {
  auto* in = static_cast<XLA_FFI_Buffer*>(frame->args.args[0]);
  const T* x = static_cast<const T*>(in->data);
  T* out = static_cast<T*>(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0])->data);
  I* positions = nullptr;
  if constexpr (!std::is_void_v<I>) positions = static_cast<I*>(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[1])->data);
  const int64_t outer = in->dims[0], n = in->dims[1], inner = in->dims[2];
  if (inner == 1) {
    for_blocks(frame, (outer + kLanes - 1) / kLanes, [=](int64_t block) {
      int64_t r = block * kLanes;
      const int64_t end = std::min(outer, r + kLanes);
      for (; r + kLanes <= end; r += kLanes)
        scan_rows<Op, T, I, kLanes>(x + r * n, out + r * n, offset(positions, r * n), n);
      for (; r < end; ++r) scan_rows<Op, T, I, 1>(x + r * n, out + r * n, offset(positions, r * n), n);
      return true;
    });
    return;
  }
  const int64_t tiles = (inner + kColumns - 1) / kColumns;
  for_blocks(frame, outer * tiles, [=](int64_t block) {
    const int64_t j = block % tiles * kColumns, at = block / tiles * n * inner + j;
    scan_columns<Op, T, I>(x + at, out + at, offset(positions, at), n, inner, std::min(kColumns, inner - j));
    return true;
  });
}

template <typename Op, typename I>
XLA_FFI_Error* scan_handler(XLA_FFI_CallFrame* frame) {
  if (is_question(frame)) return nullptr;
  switch (static_cast<XLA_FFI_Buffer*>(frame->args.args[0])->dtype) {
    case XLA_FFI_DataType_F32: scan<Op, float, I>(frame); break;
    case XLA_FFI_DataType_F64: scan<Op, double, I>(frame); break;
    case XLA_FFI_DataType_S32: scan<Op, int32_t, I>(frame); break;
    case XLA_FFI_DataType_S64: scan<Op, int64_t, I>(frame); break;
    default: return error(frame, "a scan has no kernel for this dtype");
  }
  return nullptr;
}

}  // namespace
