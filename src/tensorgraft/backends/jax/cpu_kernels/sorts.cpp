// Sorted integers on the CPU, as a handler of XLA's foreign function interface.

namespace {

constexpr int kDigit = 8;      // bits that a pass sorts by: 256 places are written at a time, which caches hold
constexpr int kMostBits = 40;  // of which keys differ, where all are sorted by

// Rows of n keys. `sign`: the bit that is reversed where keys are compared.
struct Keys {
  const uint64_t* x;
  int64_t n;
  uint64_t sign;

  // Whether the lowest `bits` ascend already, as those of keys that contain their positions do.
  bool ascend(int bits) const {
    const uint64_t mask = (uint64_t(1) << bits) - 1;
    for (int64_t i = 1; i < n; ++i)
      if ((x[i] & mask) < (x[i - 1] & mask)) return false;
    return true;
  }

  // Sort by the digits from the bit `low` on, so that equal ones keep their order.
  void by_digits(uint64_t* out, uint64_t* scratch, int low, int passes) const {
    const uint64_t* from = x;
    for (int p = 0; p < passes; ++p) {
      const int shift = low + p * kDigit;
      const auto digit = [shift, s = sign](uint64_t key) { return (key ^ s) >> shift & ((1 << kDigit) - 1); };
      uint64_t* to = (passes - p) % 2 ? out : scratch;
      int64_t starts[1 << kDigit] = {}, before = 0;
      for (int64_t i = 0; i < n; ++i) ++starts[digit(from[i])];
      for (auto& start : starts) {
        const int64_t count = start;
        start = before;
        before += count;
      }
      for (int64_t i = 0; i < n; ++i) to[starts[digit(from[i])]++] = from[i];
      from = to;
    }
  }

  // Sort keys that are almost in order; false where they are not, and then they are in some other order.
  bool insertion_sort(uint64_t* keys) const {
    int64_t moves = 4 * n;
    for (int64_t i = 1; i < n; ++i) {
      const uint64_t key = keys[i];
      int64_t at = i;
      for (; at > 0 && (keys[at - 1] ^ sign) > (key ^ sign); --at, --moves) keys[at] = keys[at - 1];
      keys[at] = key;
      if (moves < 0) return false;
    }
    return true;
  }

  // Of many bits, the highest are sorted by: so many that few keys, if they are random, are equal in these, and then
  // the order is almost that of all.
  void sort(uint64_t* out) const {
    uint64_t differ = 0;
    for (int64_t i = 1; i < n; ++i) differ |= x[i] ^ x[0];
    if (differ == 0) {
      std::copy(x, x + n, out);
      return;
    }
    const int high = 64 - __builtin_clzll(differ), positions = 64 - __builtin_clzll(n - 1);
    int low = __builtin_ctzll(differ);
    for (const int bits : {32, positions})
      if (low < bits && bits < high && ascend(bits)) {
        low = bits;
        break;
      }
    const bool all = high - low <= kMostBits;
    const int passes = ((all ? high - low : positions + 4) + kDigit - 1) / kDigit;
    if (!all) low = std::max(0, high - passes * kDigit);
    std::unique_ptr<uint64_t[]> scratch(new uint64_t[n]);
    by_digits(out, scratch.get(), low, passes);
    if (!all && !insertion_sort(out))
      std::sort(out, out + n, [s = sign](uint64_t a, uint64_t b) { return (a ^ s) < (b ^ s); });
  }
};

// x and out: (rows, n) of 64-bit integers.
XLA_FFI_Error* sort_handler(XLA_FFI_CallFrame* frame) {
  if (is_question(frame)) return nullptr;
  auto* in = static_cast<XLA_FFI_Buffer*>(frame->args.args[0]);
  if (in->dtype != XLA_FFI_DataType_S64 && in->dtype != XLA_FFI_DataType_U64)
    return error(frame, "sorted integers have 64 bits");
  const uint64_t sign = in->dtype == XLA_FFI_DataType_S64 ? uint64_t(1) << 63 : 0;
  auto* x = static_cast<const uint64_t*>(in->data);
  auto* out = static_cast<uint64_t*>(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0])->data);
  const int64_t n = in->dims[1];
  for_blocks(frame, in->dims[0], [=](int64_t row) {
    Keys{x + row * n, n, sign}.sort(out + row * n);
    return true;
  });
  return nullptr;
}

}  // namespace
