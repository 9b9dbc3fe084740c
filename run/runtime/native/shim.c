#include "shim.h"

#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "iree/async/frontier_tracker.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/base/api.h"
#include "iree/base/internal/cpu.h"
#include "iree/base/threading/call_once.h"
#include "iree/hal/api.h"
#include "iree/hal/device_group.h"
#if defined(TW_HAS_CUDA)
#include "iree/hal/drivers/cuda/api.h"
#endif
#include "iree/hal/drivers/local_sync/sync_device.h"
#include "iree/hal/drivers/local_task/task_device.h"
#if defined(TW_HAS_VULKAN)
#include "iree/hal/drivers/vulkan/api.h"
#endif
#include "iree/hal/local/loaders/embedded_elf_loader.h"
#include "iree/hal/utils/statistics_sink.h"
#include "iree/io/parameter_index_provider.h"
#include "iree/modules/hal/module.h"
#include "iree/modules/io/parameters/module.h"
#include "iree/task/api.h"
#include "iree/vm/api.h"
#include "iree/vm/bytecode/module.h"

// Reads of a mapped archive that IREE may have in flight at once.
#define TW_CONCURRENT_PARAMETER_OPERATIONS 8
// A module archive is a flatbuffer with aligned segments behind it.
#define TW_ARCHIVE_ALIGNMENT 64

struct tw_runtime_t {
  iree_vm_instance_t* instance;
  // Of a device that is not the processor.
  iree_hal_driver_t* driver;
  iree_hal_device_t* device;
  iree_hal_device_group_t* group;
  // Of a watched device: what it executed.
  iree_hal_profile_statistics_sink_t* executed;
};

struct tw_parameters_t {
  iree_io_file_handle_t* file;
  iree_io_parameter_index_t* index;
  iree_io_parameter_provider_t* provider;
};

struct tw_program_t {
  // The module reads its constants from here.
  void* archive;
  iree_vm_module_t* module;
  iree_vm_context_t* context;
};

struct tw_call_t {
  iree_vm_context_t* context;
  iree_vm_function_t function;
  iree_vm_list_t* arguments;
  iree_vm_list_t* results;
};

static iree_allocator_t tw_host(void) { return iree_allocator_system(); }

//===----------------------------------------------------------------------===//
// Status
//===----------------------------------------------------------------------===//

void tw_status_take(tw_status_t* status, uint32_t* code, char* text, size_t capacity, size_t* length) {
  *code = (uint32_t)iree_status_code(status);
  *length = 0;
  if (!iree_status_format(status, capacity, text, length)) *length = 0;
  iree_status_free(status);
}

//===----------------------------------------------------------------------===//
// CPU
//===----------------------------------------------------------------------===//

typedef struct tw_cpu_feature_t {
  bool of_this_architecture;
  const char* name;
} tw_cpu_feature_t;

#if defined(IREE_ARCH_ARM_64)
#define TW_CPU_ARCHITECTURE TW_CPU_ARM_64
#elif defined(IREE_ARCH_X86_64)
#define TW_CPU_ARCHITECTURE TW_CPU_X86_64
#elif defined(IREE_ARCH_RISCV_64)
#define TW_CPU_ARCHITECTURE TW_CPU_RISCV_64
#else
#define TW_CPU_ARCHITECTURE TW_CPU_OTHER
#endif
enum { TW_CPU_OTHER, TW_CPU_ARM_64, TW_CPU_X86_64, TW_CPU_RISCV_64 };

static const tw_cpu_feature_t tw_cpu_feature_table[] = {
#define IREE_CPU_FEATURE_BIT(arch, field, bit, bit_name, llvm_name) \
  {TW_CPU_##arch == TW_CPU_ARCHITECTURE, llvm_name},
#include "iree/schemas/cpu_feature_bits.inl"
#undef IREE_CPU_FEATURE_BIT
};

void tw_give_back_memory(void) {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

size_t tw_cpu_features(char* text, size_t capacity) {
  iree_cpu_initialize(tw_host());
  size_t length = 0;
  for (size_t i = 0; i < IREE_ARRAYSIZE(tw_cpu_feature_table); ++i) {
    if (!tw_cpu_feature_table[i].of_this_architecture) continue;
    iree_string_view_t name = iree_make_cstring_view(tw_cpu_feature_table[i].name);
    int64_t has = 0;
    iree_status_t status = iree_cpu_lookup_data_by_key(name, &has);
    if (!iree_status_is_ok(status)) {
      iree_status_free(status);
      continue;
    }
    if (length + name.size + 2 <= capacity) {
      text[length] = has ? '+' : '-';
      memcpy(text + length + 1, name.data, name.size);
      text[length + 1 + name.size] = ',';
    }
    length += name.size + 2;
  }
  return length;
}

//===----------------------------------------------------------------------===//
// Runtime
//===----------------------------------------------------------------------===//

static iree_status_t tw_device_create(size_t workers, const iree_hal_device_create_params_t* create,
                                      iree_hal_executable_loader_t* loader,
                                      iree_hal_allocator_t* heap, iree_hal_device_t** out) {
  if (workers == 0) {
    iree_hal_sync_device_params_t params;
    iree_hal_sync_device_params_initialize(&params);
    return iree_hal_sync_device_create(IREE_SV("local-sync"), &params, create, 1, &loader, heap,
                                       tw_host(), out);
  }
  // Groups made from a count alone have no affinity: a pinned worker that shares its core with
  // another process holds up all the others.
  iree_task_topology_t topology;
  iree_task_topology_initialize_from_group_count(
      iree_min(workers, (size_t)IREE_TASK_TOPOLOGY_MAX_GROUP_COUNT), &topology);
  iree_task_executor_options_t options;
  iree_task_executor_options_initialize(&options);
  // As IREE's own programs have it (--task_worker_stack_size). Left alone it is 32 KiB, as much as the compiler lets one
  // kernel's memory take, and what is called around it finds no room.
  options.worker_stack_size = 128 * 1024;
  iree_task_executor_t* executor = NULL;
  iree_status_t status = iree_task_executor_create(options, &topology, tw_host(), &executor);
  iree_task_topology_deinitialize(&topology);
  if (!iree_status_is_ok(status)) return status;
  iree_hal_task_device_params_t params;
  iree_hal_task_device_params_initialize(&params);
  status = iree_hal_task_device_create(IREE_SV("local-task"), &params, 1, &executor, 1, &loader, heap,
                                       create, tw_host(), out);
  iree_task_executor_release(executor);
  return status;
}

// One instance serves the whole process: registering a type writes a global of IREE (zero first, then
// the type), so a second registration would fail the calls that other threads are in the middle of.
static iree_once_flag tw_instance_once = IREE_ONCE_FLAG_INIT;
static iree_vm_instance_t* tw_instance = NULL;
static iree_status_code_t tw_instance_code = IREE_STATUS_OK;

static void tw_instance_create(void) {
  iree_status_t status =
      iree_vm_instance_create(IREE_VM_TYPE_CAPACITY_DEFAULT, tw_host(), &tw_instance);
  if (iree_status_is_ok(status)) status = iree_hal_module_register_all_types(tw_instance);
  tw_instance_code = iree_status_consume_code(status);
}

static iree_status_t tw_local_create(size_t workers, const iree_hal_device_create_params_t* create,
                                     iree_hal_device_t** out) {
  iree_hal_executable_loader_t* loader = NULL;
  iree_hal_allocator_t* heap = NULL;
  iree_status_t status = iree_hal_embedded_elf_loader_create(NULL, tw_host(), &loader);
  if (iree_status_is_ok(status)) {
    status = iree_hal_allocator_create_heap(IREE_SV("local"), tw_host(), tw_host(), &heap);
  }
  if (iree_status_is_ok(status)) status = tw_device_create(workers, create, loader, heap, out);
  iree_hal_allocator_release(heap);
  iree_hal_executable_loader_release(loader);
  return status;
}

// A driver loads the system's library for its devices here.
static iree_status_t tw_driver_create(uint32_t driver, iree_hal_driver_t** out) {
  switch (driver) {
#if defined(TW_HAS_VULKAN)
    case TW_VULKAN: {
      iree_hal_vulkan_driver_options_t options;
      iree_hal_vulkan_driver_options_initialize(&options);
      options.requested_features |= IREE_HAL_VULKAN_FEATURE_ENABLE_BUFFER_DEVICE_ADDRESSES;
      options.device_options.flags |= IREE_HAL_VULKAN_DEVICE_FLAG_DEDICATED_COMPUTE_QUEUE;
      return iree_hal_vulkan_driver_create(IREE_SV("vulkan"), &options, NULL, tw_host(), out);
    }
#endif
#if defined(TW_HAS_CUDA)
    case TW_CUDA: {
      iree_hal_cuda_driver_options_t options;
      iree_hal_cuda_driver_options_initialize(&options);
      iree_hal_cuda_device_params_t params;
      iree_hal_cuda_device_params_initialize(&params);
      return iree_hal_cuda_driver_create(IREE_SV("cuda"), &options, &params, tw_host(), out);
    }
#endif
    default:
      return iree_make_status(IREE_STATUS_UNIMPLEMENTED, "the driver was not built in");
  }
}

tw_status_t* tw_driver_devices(uint32_t driver,
                               void (*device)(void* to, const char* name, size_t name_length, const char* path,
                                              size_t path_length, const char* about, size_t about_length),
                               void* to) {
  iree_hal_driver_t* created = NULL;
  IREE_RETURN_IF_ERROR(tw_driver_create(driver, &created));
  iree_host_size_t count = 0;
  iree_hal_device_info_t* infos = NULL;
  iree_status_t status = iree_hal_driver_query_available_devices(created, tw_host(), &count, &infos);
  for (iree_host_size_t i = 0; iree_status_is_ok(status) && i < count; ++i) {
    iree_string_builder_t about;
    iree_string_builder_initialize(tw_host(), &about);
    status = iree_hal_driver_dump_device_info(created, infos[i].device_id, &about);
    if (iree_status_is_ok(status)) {
      device(to, infos[i].name.data, infos[i].name.size, infos[i].path.data, infos[i].path.size,
             iree_string_builder_buffer(&about), iree_string_builder_size(&about));
    }
    iree_string_builder_deinitialize(&about);
  }
  iree_allocator_free(tw_host(), infos);
  iree_hal_driver_release(created);
  return status;
}

// What a runtime runs on: the processor with so many workers, or a driver's device.
typedef struct tw_wanted_t {
  uint32_t driver;
  size_t number;
} tw_wanted_t;

static iree_status_t tw_runtime_initialize(tw_wanted_t wanted, tw_runtime_t* runtime) {
  iree_call_once(&tw_instance_once, tw_instance_create);
  if (tw_instance_code != IREE_STATUS_OK) {
    return iree_make_status(tw_instance_code, "the VM's types could not be registered");
  }
  runtime->instance = tw_instance;
  iree_vm_instance_retain(tw_instance);

  iree_hal_device_create_params_t create = iree_hal_device_create_params_default();
  iree_status_t status = iree_async_proactor_pool_create(
      1, NULL, iree_async_proactor_pool_options_default(), tw_host(), &create.proactor_pool);
  if (iree_status_is_ok(status)) {
    if (wanted.driver == 0) {
      status = tw_local_create(wanted.number, &create, &runtime->device);
    } else {
      status = tw_driver_create(wanted.driver, &runtime->driver);
      if (iree_status_is_ok(status)) {
        status = iree_hal_driver_create_device_by_ordinal(runtime->driver, wanted.number, 0, NULL, &create,
                                                          tw_host(), &runtime->device);
      }
    }
  }
  iree_async_proactor_pool_release(create.proactor_pool);
  if (!iree_status_is_ok(status)) return status;

  iree_async_frontier_tracker_t* tracker = NULL;
  IREE_RETURN_IF_ERROR(iree_async_frontier_tracker_create(
      iree_async_frontier_tracker_options_default(), tw_host(), &tracker));
  status = iree_hal_device_group_create_from_device(runtime->device, tracker, tw_host(), &runtime->group);
  iree_async_frontier_tracker_release(tracker);
  return status;
}

static iree_status_t tw_runtime_watch(tw_runtime_t* runtime) {
  iree_hal_profile_statistics_sink_t* sink = NULL;
  IREE_RETURN_IF_ERROR(iree_hal_profile_statistics_sink_create(tw_host(), &sink));
  iree_hal_device_profiling_options_t options = {0};
  options.flags = IREE_HAL_DEVICE_PROFILING_FLAG_LIGHTWEIGHT_STATISTICS;
  options.sink = iree_hal_profile_statistics_sink_base(sink);
  iree_status_t status = iree_hal_device_profiling_begin(runtime->device, &options);
  if (iree_status_is_ok(status)) {
    runtime->executed = sink;
  } else {
    iree_hal_profile_statistics_sink_release(sink);
  }
  return status;
}

static iree_status_t tw_runtime_open(tw_wanted_t wanted, bool watched, tw_runtime_t** out) {
  tw_runtime_t* runtime = NULL;
  IREE_RETURN_IF_ERROR(iree_allocator_malloc(tw_host(), sizeof(*runtime), (void**)&runtime));
  iree_status_t status = tw_runtime_initialize(wanted, runtime);
  if (iree_status_is_ok(status) && watched) status = tw_runtime_watch(runtime);
  if (iree_status_is_ok(status)) {
    *out = runtime;
  } else {
    tw_runtime_release(runtime);
  }
  return status;
}

tw_status_t* tw_runtime_create(size_t workers, bool watched, tw_runtime_t** out) {
  return tw_runtime_open((tw_wanted_t){0, workers}, watched, out);
}

tw_status_t* tw_driver_open(uint32_t driver, size_t ordinal, tw_runtime_t** out) {
  return tw_runtime_open((tw_wanted_t){driver, ordinal}, false, out);
}

typedef struct tw_rows_t {
  const iree_hal_profile_statistics_sink_t* sink;
  void (*row)(void*, const char*, size_t, uint64_t, uint64_t);
  void* to;
} tw_rows_t;

static iree_status_t tw_row(void* user_data, const iree_hal_profile_statistics_row_t* row) {
  tw_rows_t* rows = (tw_rows_t*)user_data;
  if (row->row_type != IREE_HAL_PROFILE_STATISTICS_ROW_TYPE_HOST_EXECUTION_FUNCTION) return iree_ok_status();
  iree_string_view_t name = iree_string_view_empty();
  uint64_t nanoseconds = 0;
  if (iree_hal_profile_statistics_sink_find_function_name(rows->sink, row->executable_id,
                                                          row->function_ordinal, &name) &&
      iree_hal_profile_statistics_sink_scale_duration_to_ns(rows->sink, row, row->total_duration,
                                                            &nanoseconds)) {
    rows->row(rows->to, name.data, name.size, row->sample_count, nanoseconds);
  }
  return iree_ok_status();
}

tw_status_t* tw_runtime_note(tw_runtime_t* runtime) {
  return iree_hal_device_profiling_flush(runtime->device);
}

tw_status_t* tw_runtime_executed(tw_runtime_t* runtime,
                                 void (*row)(void* to, const char* name, size_t length, uint64_t calls,
                                             uint64_t nanoseconds),
                                 void* to) {
  if (!runtime->executed) {
    return iree_make_status(IREE_STATUS_FAILED_PRECONDITION, "the device is not watched");
  }
  tw_rows_t rows = {runtime->executed, row, to};
  iree_hal_profile_statistics_row_callback_t callback = {tw_row, &rows};
  return iree_hal_profile_statistics_sink_for_each_row(runtime->executed, callback);
}

void tw_runtime_release(tw_runtime_t* runtime) {
  if (runtime->executed) iree_status_free(iree_hal_device_profiling_end(runtime->device));
  iree_hal_profile_statistics_sink_release(runtime->executed);
  iree_hal_device_group_release(runtime->group);
  iree_hal_device_release(runtime->device);
  iree_hal_driver_release(runtime->driver);
  iree_vm_instance_release(runtime->instance);
  iree_allocator_free(tw_host(), runtime);
}

//===----------------------------------------------------------------------===//
// Buffers
//===----------------------------------------------------------------------===//

static iree_hal_element_type_t tw_element_to_iree(uint32_t element) {
  switch (element) {
    case TW_F32: return IREE_HAL_ELEMENT_TYPE_FLOAT_32;
    case TW_F16: return IREE_HAL_ELEMENT_TYPE_FLOAT_16;
    case TW_BF16: return IREE_HAL_ELEMENT_TYPE_BFLOAT_16;
    case TW_I32: return IREE_HAL_ELEMENT_TYPE_INT_32;
    case TW_I8: return IREE_HAL_ELEMENT_TYPE_INT_8;
    case TW_I4: return IREE_HAL_ELEMENT_TYPE_INT_4;
    case TW_I1: return IREE_HAL_ELEMENT_TYPE_BOOL_8;
    default: return IREE_HAL_ELEMENT_TYPE_NONE;
  }
}

uint32_t tw_buffer_element(const tw_buffer_t* buffer) {
  switch (iree_hal_buffer_view_element_type(buffer)) {
    case IREE_HAL_ELEMENT_TYPE_FLOAT_32: return TW_F32;
    case IREE_HAL_ELEMENT_TYPE_FLOAT_16: return TW_F16;
    case IREE_HAL_ELEMENT_TYPE_BFLOAT_16: return TW_BF16;
    case IREE_HAL_ELEMENT_TYPE_INT_32:
    case IREE_HAL_ELEMENT_TYPE_SINT_32: return TW_I32;
    case IREE_HAL_ELEMENT_TYPE_INT_8:
    case IREE_HAL_ELEMENT_TYPE_SINT_8: return TW_I8;
    case IREE_HAL_ELEMENT_TYPE_INT_4:
    case IREE_HAL_ELEMENT_TYPE_SINT_4: return TW_I4;
    case IREE_HAL_ELEMENT_TYPE_BOOL_8: return TW_I1;
    default: return TW_OTHER;
  }
}

static iree_hal_buffer_params_t tw_buffer_params(const tw_runtime_t* runtime) {
  iree_hal_buffer_params_t params = {0};
  params.type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL;
  // Of what a graphics processor has of its own, the host may see none, or little.
  if (!runtime->driver) params.type |= IREE_HAL_MEMORY_TYPE_HOST_VISIBLE;
  params.usage = IREE_HAL_BUFFER_USAGE_DEFAULT;
  return params;
}

static iree_status_t tw_buffer_allocate(tw_runtime_t* runtime, iree_device_size_t size,
                                        iree_hal_buffer_t** out) {
  return iree_hal_allocator_allocate_buffer(iree_hal_device_allocator(runtime->device),
                                            tw_buffer_params(runtime), size, out);
}

static void tw_zeros_release(void* data, iree_hal_buffer_t* buffer) {
  iree_allocator_free_aligned(tw_host(), data);
}

// Zeros that the device writes.
static iree_status_t tw_buffer_filled(tw_runtime_t* runtime, iree_device_size_t size, iree_hal_buffer_t** out) {
  iree_hal_buffer_t* buffer = NULL;
  iree_hal_semaphore_t* done = NULL;
  IREE_RETURN_IF_ERROR(tw_buffer_allocate(runtime, size, &buffer));
  iree_status_t status = iree_hal_semaphore_create(runtime->device, IREE_HAL_QUEUE_AFFINITY_ANY, 0,
                                                   IREE_HAL_SEMAPHORE_FLAG_DEFAULT, &done);
  if (iree_status_is_ok(status)) {
    const uint8_t zero = 0;
    uint64_t filled = 1;
    iree_hal_semaphore_list_t signal = {1, &done, &filled};
    status = iree_hal_device_queue_fill(runtime->device, IREE_HAL_QUEUE_AFFINITY_ANY,
                                        iree_hal_semaphore_list_empty(), signal, buffer, 0, size, &zero,
                                        sizeof(zero), IREE_HAL_FILL_FLAG_NONE);
    if (iree_status_is_ok(status)) {
      status = iree_hal_semaphore_wait(done, filled, iree_infinite_timeout(), IREE_ASYNC_WAIT_FLAG_NONE);
    }
  }
  iree_hal_semaphore_release(done);
  if (iree_status_is_ok(status)) {
    *out = buffer;
  } else {
    iree_hal_buffer_release(buffer);
  }
  return status;
}

// Memory that the system promises to be zero: it gives each page when it is written first, so that a long
// context costs what is used of it. IREE's own allocations would be written whole.
static iree_status_t tw_buffer_zeros(tw_runtime_t* runtime, iree_device_size_t size, iree_hal_buffer_t** out) {
  if (size == 0) return tw_buffer_allocate(runtime, size, out);
  if (runtime->driver) return tw_buffer_filled(runtime, size, out);
  void* data = NULL;
  IREE_RETURN_IF_ERROR(
      iree_allocator_malloc_aligned(tw_host(), size, IREE_HAL_HEAP_BUFFER_ALIGNMENT, 0, &data));
  iree_hal_external_buffer_t external = {0};
  external.type = IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION;
  external.size = size;
  external.handle.host_allocation.ptr = data;
  iree_hal_buffer_release_callback_t callback = {tw_zeros_release, data};
  iree_status_t status = iree_hal_allocator_import_buffer(iree_hal_device_allocator(runtime->device),
                                                          tw_buffer_params(runtime), &external, callback, out);
  if (!iree_status_is_ok(status)) iree_allocator_free_aligned(tw_host(), data);
  return status;
}

tw_status_t* tw_buffer_create(tw_runtime_t* runtime, uint32_t element, size_t rank, const size_t* shape,
                              const void* data, size_t size, tw_buffer_t** out) {
  iree_hal_buffer_t* buffer = NULL;
  if (data == NULL) {
    IREE_RETURN_IF_ERROR(tw_buffer_zeros(runtime, size, &buffer));
  } else {
    IREE_RETURN_IF_ERROR(tw_buffer_allocate(runtime, size, &buffer));
  }
  iree_status_t status = iree_ok_status();
  if (data != NULL && size > 0) {
    status = iree_hal_device_transfer_h2d(runtime->device, data, buffer, 0, size,
                                          IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout());
  }
  if (iree_status_is_ok(status)) {
    status = iree_hal_buffer_view_create(buffer, rank, shape, tw_element_to_iree(element),
                                         IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, tw_host(), out);
  }
  iree_hal_buffer_release(buffer);
  return status;
}

tw_status_t* tw_buffer_read(tw_runtime_t* runtime, tw_buffer_t* buffer, size_t offset, void* data, size_t size) {
  if (size == 0) return iree_ok_status();
  return iree_hal_device_transfer_d2h(runtime->device, iree_hal_buffer_view_buffer(buffer), offset, data, size,
                                      IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout());
}

tw_status_t* tw_buffer_write(tw_runtime_t* runtime, tw_buffer_t* buffer, size_t offset, const void* data,
                             size_t size) {
  if (size == 0) return iree_ok_status();
  return iree_hal_device_transfer_h2d(runtime->device, data, iree_hal_buffer_view_buffer(buffer), offset, size,
                                      IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout());
}

tw_status_t* tw_buffer_copy(tw_runtime_t* runtime, tw_buffer_t* buffer, tw_buffer_t** out) {
  iree_device_size_t size = iree_hal_buffer_view_byte_length(buffer);
  iree_hal_buffer_t* copy = NULL;
  IREE_RETURN_IF_ERROR(tw_buffer_allocate(runtime, size, &copy));
  iree_status_t status = iree_ok_status();
  if (size > 0) {
    status = iree_hal_device_transfer_d2d(runtime->device, iree_hal_buffer_view_buffer(buffer), 0, copy, 0,
                                          size, IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT,
                                          iree_infinite_timeout());
  }
  if (iree_status_is_ok(status)) {
    status = iree_hal_buffer_view_create_like(copy, buffer, tw_host(), out);
  }
  iree_hal_buffer_release(copy);
  return status;
}

tw_status_t* tw_buffer_part(tw_buffer_t* buffer, size_t offset, size_t size, size_t rank, const size_t* shape,
                            tw_buffer_t** out) {
  iree_hal_buffer_t* part = NULL;
  IREE_RETURN_IF_ERROR(
      iree_hal_buffer_subspan(iree_hal_buffer_view_buffer(buffer), offset, size, tw_host(), &part));
  iree_status_t status =
      iree_hal_buffer_view_create(part, rank, shape, iree_hal_buffer_view_element_type(buffer),
                                  IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, tw_host(), out);
  iree_hal_buffer_release(part);
  return status;
}

tw_status_t* tw_buffer_put(tw_runtime_t* runtime, tw_buffer_t* buffer, size_t offset, tw_buffer_t* part) {
  iree_device_size_t size = iree_hal_buffer_view_byte_length(part);
  if (size == 0) return iree_ok_status();
  return iree_hal_device_transfer_d2d(runtime->device, iree_hal_buffer_view_buffer(part), 0,
                                      iree_hal_buffer_view_buffer(buffer), offset, size,
                                      IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout());
}

size_t tw_buffer_rank(const tw_buffer_t* buffer) { return iree_hal_buffer_view_shape_rank(buffer); }

size_t tw_buffer_extent(const tw_buffer_t* buffer, size_t axis) {
  return iree_hal_buffer_view_shape_dim(buffer, axis);
}

uintptr_t tw_buffer_allocation(const tw_buffer_t* buffer) {
  return (uintptr_t)iree_hal_buffer_allocated_buffer(iree_hal_buffer_view_buffer(buffer));
}

size_t tw_buffer_offset(const tw_buffer_t* buffer) {
  return iree_hal_buffer_byte_offset(iree_hal_buffer_view_buffer(buffer));
}

bool tw_buffer_is_writable(const tw_buffer_t* buffer) {
  return iree_all_bits_set(iree_hal_buffer_allowed_access(iree_hal_buffer_view_buffer(buffer)),
                           IREE_HAL_MEMORY_ACCESS_WRITE);
}

void tw_buffer_release(tw_buffer_t* buffer) { iree_hal_buffer_view_release(buffer); }

//===----------------------------------------------------------------------===//
// Parameters
//===----------------------------------------------------------------------===//

typedef struct tw_owner_t {
  void (*release)(void*);
  void* owner;
} tw_owner_t;

static void tw_owner_release(void* user_data, iree_io_file_handle_primitive_t primitive) {
  tw_owner_t* owner = (tw_owner_t*)user_data;
  owner->release(owner->owner);
  iree_allocator_free(tw_host(), owner);
}

static iree_status_t tw_file_create(const void* data, size_t size, void (*release)(void*), void* owner,
                                    iree_io_file_handle_t** out) {
  tw_owner_t* keeper = NULL;
  iree_status_t status = iree_allocator_malloc(tw_host(), sizeof(*keeper), (void**)&keeper);
  if (iree_status_is_ok(status)) {
    keeper->release = release;
    keeper->owner = owner;
    iree_io_file_handle_release_callback_t callback = {tw_owner_release, keeper};
    status = iree_io_file_handle_wrap_host_allocation(
        IREE_IO_FILE_ACCESS_READ, iree_make_byte_span((void*)data, size), callback, tw_host(), out);
  }
  if (!iree_status_is_ok(status)) {
    iree_allocator_free(tw_host(), keeper);
    release(owner);
  }
  return status;
}

tw_status_t* tw_parameters_create(const char* scope, size_t scope_length, const void* data, size_t size,
                                  void (*release)(void*), void* owner, tw_parameters_t** out) {
  iree_io_file_handle_t* file = NULL;
  IREE_RETURN_IF_ERROR(tw_file_create(data, size, release, owner, &file));
  tw_parameters_t* parameters = NULL;
  iree_status_t status = iree_allocator_malloc(tw_host(), sizeof(*parameters), (void**)&parameters);
  if (!iree_status_is_ok(status)) {
    iree_io_file_handle_release(file);
    return status;
  }
  parameters->file = file;
  status = iree_io_parameter_index_create(tw_host(), &parameters->index);
  if (iree_status_is_ok(status)) {
    status = iree_io_parameter_index_provider_create(
        iree_make_string_view(scope, scope_length), parameters->index, TW_CONCURRENT_PARAMETER_OPERATIONS,
        tw_host(), &parameters->provider);
  }
  if (iree_status_is_ok(status)) {
    *out = parameters;
  } else {
    tw_parameters_release(parameters);
  }
  return status;
}

tw_status_t* tw_parameters_add(tw_parameters_t* parameters, const char* key, size_t key_length,
                               uint64_t offset, uint64_t length) {
  iree_io_parameter_index_entry_t entry = {0};
  entry.key = iree_make_string_view(key, key_length);
  entry.length = length;
  entry.type = IREE_IO_PARAMETER_INDEX_ENTRY_STORAGE_TYPE_FILE;
  entry.storage.file.handle = parameters->file;
  entry.storage.file.offset = offset;
  return iree_io_parameter_index_add(parameters->index, &entry);
}

tw_status_t* tw_parameters_add_splat(tw_parameters_t* parameters, const char* key, size_t key_length,
                                     uint64_t length, const uint8_t* pattern, size_t pattern_length) {
  iree_io_parameter_index_entry_t entry = {0};
  if (pattern_length > sizeof(entry.storage.splat.pattern)) {
    return iree_make_status(IREE_STATUS_INVALID_ARGUMENT, "splat pattern of %zu bytes", pattern_length);
  }
  entry.key = iree_make_string_view(key, key_length);
  entry.length = length;
  entry.type = IREE_IO_PARAMETER_INDEX_ENTRY_STORAGE_TYPE_SPLAT;
  entry.storage.splat.pattern_length = (uint8_t)pattern_length;
  memcpy(entry.storage.splat.pattern, pattern, pattern_length);
  return iree_io_parameter_index_add(parameters->index, &entry);
}

void tw_parameters_release(tw_parameters_t* parameters) {
  iree_io_parameter_provider_release(parameters->provider);
  iree_io_parameter_index_release(parameters->index);
  iree_io_file_handle_release(parameters->file);
  iree_allocator_free(tw_host(), parameters);
}

//===----------------------------------------------------------------------===//
// Program
//===----------------------------------------------------------------------===//

static iree_status_t tw_program_initialize(tw_runtime_t* runtime, const void* vmfb, size_t size,
                                           tw_parameters_t* const* parameters, size_t parameter_count,
                                           bool* verified, tw_program_t* program) {
  IREE_RETURN_IF_ERROR(iree_allocator_malloc_aligned(tw_host(), iree_max(size, (size_t)1),
                                                     TW_ARCHIVE_ALIGNMENT, 0, &program->archive));
  memcpy(program->archive, vmfb, size);
  IREE_RETURN_IF_ERROR(iree_vm_bytecode_module_create(
      runtime->instance, IREE_VM_BYTECODE_MODULE_FLAG_NONE,
      iree_make_const_byte_span(program->archive, size), iree_allocator_null(), tw_host(),
      &program->module));
  *verified = true;

  iree_io_parameter_provider_t** providers = NULL;
  iree_vm_module_t* hal = NULL;
  iree_vm_module_t* io = NULL;
  iree_status_t status = iree_allocator_malloc_array(tw_host(), iree_max(parameter_count, (size_t)1),
                                                     sizeof(*providers), (void**)&providers);
  if (iree_status_is_ok(status)) {
    for (size_t i = 0; i < parameter_count; ++i) providers[i] = parameters[i]->provider;
    status = iree_io_parameters_module_create(runtime->instance, parameter_count, providers, tw_host(), &io);
  }
  if (iree_status_is_ok(status)) {
    status = iree_hal_module_create(runtime->instance, iree_hal_module_device_policy_default(),
                                    runtime->group, IREE_HAL_MODULE_FLAG_SYNCHRONOUS,
                                    iree_hal_module_debug_sink_null(), tw_host(), &hal);
  }
  if (iree_status_is_ok(status)) {
    // Runs the module's initializers: here the parameters are looked up.
    iree_vm_module_t* modules[] = {hal, io, program->module};
    status = iree_vm_context_create_with_modules(runtime->instance, IREE_VM_CONTEXT_FLAG_NONE,
                                                 IREE_ARRAYSIZE(modules), modules, tw_host(),
                                                 &program->context);
  }
  iree_vm_module_release(hal);
  iree_vm_module_release(io);
  iree_allocator_free(tw_host(), providers);
  return status;
}

tw_status_t* tw_program_load(tw_runtime_t* runtime, const void* vmfb, size_t size,
                             tw_parameters_t* const* parameters, size_t parameter_count,
                             bool* verified, tw_program_t** out) {
  *verified = false;
  tw_program_t* program = NULL;
  IREE_RETURN_IF_ERROR(iree_allocator_malloc(tw_host(), sizeof(*program), (void**)&program));
  iree_status_t status =
      tw_program_initialize(runtime, vmfb, size, parameters, parameter_count, verified, program);
  if (iree_status_is_ok(status)) {
    *out = program;
  } else {
    tw_program_release(program);
  }
  return status;
}

void tw_program_release(tw_program_t* program) {
  iree_vm_context_release(program->context);
  iree_vm_module_release(program->module);
  iree_allocator_free_aligned(tw_host(), program->archive);
  iree_allocator_free(tw_host(), program);
}

size_t tw_program_export_count(const tw_program_t* program) {
  return iree_vm_module_signature(program->module).export_function_count;
}

static iree_status_t tw_program_export(const tw_program_t* program, size_t ordinal,
                                       iree_vm_function_t* out) {
  return iree_vm_module_lookup_function_by_ordinal(program->module, IREE_VM_FUNCTION_LINKAGE_EXPORT,
                                                   ordinal, out);
}

tw_status_t* tw_program_export_name(const tw_program_t* program, size_t ordinal, const char** text,
                                    size_t* length) {
  iree_vm_function_t function;
  IREE_RETURN_IF_ERROR(tw_program_export(program, ordinal, &function));
  iree_string_view_t name = iree_vm_function_name(&function);
  *text = name.data;
  *length = name.size;
  return iree_ok_status();
}

tw_status_t* tw_program_export_declaration(const tw_program_t* program, size_t ordinal,
                                           const char** text, size_t* length) {
  iree_vm_function_t function;
  IREE_RETURN_IF_ERROR(tw_program_export(program, ordinal, &function));
  iree_string_view_t declaration =
      iree_vm_function_lookup_attr_by_name(&function, IREE_SV("iree.abi.declaration"));
  *text = declaration.data;
  *length = declaration.size;
  return iree_ok_status();
}

tw_status_t* tw_program_export_arity(const tw_program_t* program, size_t ordinal, size_t* arguments,
                                     size_t* results) {
  iree_vm_function_t function;
  IREE_RETURN_IF_ERROR(tw_program_export(program, ordinal, &function));
  iree_vm_function_signature_t signature = iree_vm_function_signature(&function);
  return iree_vm_function_call_count_arguments_and_results(&signature, arguments, results);
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

tw_status_t* tw_call_create(tw_program_t* program, size_t ordinal, tw_call_t** out) {
  tw_call_t* call = NULL;
  IREE_RETURN_IF_ERROR(iree_allocator_malloc(tw_host(), sizeof(*call), (void**)&call));
  call->context = program->context;
  iree_vm_context_retain(call->context);
  iree_status_t status = tw_program_export(program, ordinal, &call->function);
  if (iree_status_is_ok(status)) {
    status = iree_vm_list_create(iree_vm_make_undefined_type_def(), 0, tw_host(), &call->arguments);
  }
  if (iree_status_is_ok(status)) {
    status = iree_vm_list_create(iree_vm_make_undefined_type_def(), 0, tw_host(), &call->results);
  }
  if (iree_status_is_ok(status)) {
    *out = call;
  } else {
    tw_call_release(call);
  }
  return status;
}

tw_status_t* tw_call_push_buffer(tw_call_t* call, tw_buffer_t* buffer) {
  iree_vm_ref_t ref = iree_hal_buffer_view_move_ref(buffer);
  iree_status_t status = iree_vm_list_push_ref_move(call->arguments, &ref);
  iree_vm_ref_release(&ref);
  return status;
}

tw_status_t* tw_call_push_i32(tw_call_t* call, int32_t value) {
  iree_vm_value_t boxed = iree_vm_value_make_i32(value);
  return iree_vm_list_push_value(call->arguments, &boxed);
}

tw_status_t* tw_call_invoke(tw_call_t* call) {
  return iree_vm_invoke(call->context, call->function, IREE_VM_INVOCATION_FLAG_NONE, NULL,
                        call->arguments, call->results, tw_host());
}

size_t tw_call_result_count(const tw_call_t* call) { return iree_vm_list_size(call->results); }

tw_status_t* tw_call_result(tw_call_t* call, size_t index, tw_buffer_t** buffer, int32_t* value) {
  iree_vm_variant_t variant = iree_vm_variant_empty();
  IREE_RETURN_IF_ERROR(iree_vm_list_get_variant_move(call->results, index, &variant));
  iree_status_t status = iree_ok_status();
  if (iree_vm_variant_is_ref(variant)) {
    // The variant's reference becomes the caller's.
    status = iree_hal_buffer_view_check_deref(variant.ref, buffer);
    if (iree_status_is_ok(status)) return status;
  } else if (iree_vm_type_def_as_value(variant.type) == IREE_VM_VALUE_TYPE_I32) {
    *value = variant.i32;
  } else {
    status = iree_make_status(IREE_STATUS_UNIMPLEMENTED, "result %zu is neither a tensor nor an i32", index);
  }
  iree_vm_variant_reset(&variant);
  return status;
}

void tw_call_release(tw_call_t* call) {
  iree_vm_list_release(call->results);
  iree_vm_list_release(call->arguments);
  iree_vm_context_release(call->context);
  iree_allocator_free(tw_host(), call);
}
