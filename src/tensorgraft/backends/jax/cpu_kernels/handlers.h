// What handlers of XLA's foreign function interface have in common. A source of kernels is compiled below this text.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <type_traits>

#include "xla/ffi/api/c_api.h"

namespace {

XLA_FFI_Error* error(XLA_FFI_CallFrame* frame, const char* message) {
  XLA_FFI_Error_Create_Args args;
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.extension_start = nullptr;
  args.message = message;
  args.errc = XLA_FFI_Error_Code_INVALID_ARGUMENT;
  return frame->api->XLA_FFI_Error_Create(&args);
}

// ---- blocks -------------------------------------------------------------------------------------------------------

// Blocks are computed by the caller and by threads of XLA's pool that are free meanwhile: the caller waits for blocks
// that were begun, never for threads.
struct Blocks {
  std::function<bool(int64_t)> run;
  int64_t count;
  std::atomic<int64_t> next{0}, finished{0};
  std::atomic<bool> valid{true};

  void work() {
    for (int64_t i; (i = next.fetch_add(1)) < count;) {
      if (!run(i)) valid = false;
      finished.fetch_add(1);
    }
  }
};

void help(void* data) {
  std::unique_ptr<std::shared_ptr<Blocks>> blocks(static_cast<std::shared_ptr<Blocks>*>(data));
  (*blocks)->work();
}

int64_t pool_size(XLA_FFI_CallFrame* frame) {
  int64_t size = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args;
  args.struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE;
  args.extension_start = nullptr;
  args.ctx = frame->ctx;
  args.num_threads = &size;
  if (XLA_FFI_Error* e = frame->api->XLA_FFI_ThreadPool_NumThreads(&args)) {
    XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, e};
    frame->api->XLA_FFI_Error_Destroy(&destroy);
    return 1;
  }
  return size;
}

// Run `run(i)` for every block; return whether all were valid.
bool for_blocks(XLA_FFI_CallFrame* frame, int64_t count, std::function<bool(int64_t)> run) {
  auto blocks = std::make_shared<Blocks>();
  blocks->run = std::move(run);
  blocks->count = count;
  const int64_t helpers = count > 1 ? std::min(pool_size(frame), count) - 1 : 0;
  for (int64_t i = 0; i < helpers; ++i) {
    auto* data = new std::shared_ptr<Blocks>(blocks);
    XLA_FFI_ThreadPool_Schedule_Args args;
    args.struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE;
    args.extension_start = nullptr;
    args.ctx = frame->ctx;
    args.task = help;
    args.data = data;
    if (XLA_FFI_Error* e = frame->api->XLA_FFI_ThreadPool_Schedule(&args)) {
      XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, e};
      frame->api->XLA_FFI_Error_Destroy(&destroy);
      delete data;
      break;
    }
  }
  blocks->work();
  while (blocks->finished.load() < count) std::this_thread::yield();
  return blocks->valid;
}

// Whether XLA asks what a handler is, which is answered here, and does not call it.
bool is_question(XLA_FFI_CallFrame* frame) {
  for (auto* e = frame->extension_start; e != nullptr; e = e->next) {
    if (e->type != XLA_FFI_Extension_Metadata) continue;
    auto* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(e)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    return true;
  }
  return false;
}

}  // namespace
