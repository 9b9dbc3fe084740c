// The whole of what Rust sees of IREE: opaque pointers, scalars and byte ranges.
//
// Functions that can fail return NULL or a status, which tw_status_take consumes. Every object is
// released once, by the function named after it. Objects of one runtime are used by one thread.
#ifndef TRACEWRIGHT_SHIM_H_
#define TRACEWRIGHT_SHIM_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct iree_status_handle_t tw_status_t;
typedef struct iree_hal_buffer_view_t tw_buffer_t;
typedef struct tw_runtime_t tw_runtime_t;
typedef struct tw_parameters_t tw_parameters_t;
typedef struct tw_program_t tw_program_t;
typedef struct tw_call_t tw_call_t;

// Element types that cross the boundary; any other one is TW_OTHER.
typedef enum {
  TW_OTHER = 0, TW_F32, TW_F16, TW_BF16, TW_I32, TW_I8, TW_I4, TW_I1
} tw_element_t;

// Writes as much of the status text as fits, its code and the length of the whole; frees the status.
void tw_status_take(tw_status_t* status, uint32_t* code, char* text, size_t capacity, size_t* length);

// Writes "+name" or "-name" and a comma for every feature that IREE can ask this CPU about, in LLVM's
// names, as far as it fits; returns the length of the whole.
size_t tw_cpu_features(char* text, size_t capacity);

// Gives memory that the process has freed back to the operating system, where the C library offers it.
void tw_give_back_memory(void);

// Drivers of devices other than the processor; those that were built in.
typedef enum { TW_VULKAN = 1, TW_CUDA } tw_driver_t;

// Calls |device| for each device of a driver, in the order of their numbers, with its name and path, and what the driver says
// about it, in lines. Fails where the driver was not built in, or the system has none.
tw_status_t* tw_driver_devices(uint32_t driver,
                               void (*device)(void* to, const char* name, size_t name_length, const char* path,
                                              size_t path_length, const char* about, size_t about_length),
                               void* to);
// A device of a driver, by its number.
tw_status_t* tw_driver_open(uint32_t driver, size_t ordinal, tw_runtime_t** out);

// The local-task device has |workers| threads, none of them pinned; zero workers is local-sync.
// A |watched| one keeps account of what it executes, from its beginning to its end: IREE's profiles begin and end
// where nothing is in flight, and what a call frees may be, even when the call has returned.
tw_status_t* tw_runtime_create(size_t workers, bool watched, tw_runtime_t** out);
// Takes over what a watched device has noted, of which it keeps a few thousand records.
tw_status_t* tw_runtime_note(tw_runtime_t* runtime);
// Calls |row| for each function that a watched device executed, with its name, how often, and for how many nanoseconds.
tw_status_t* tw_runtime_executed(tw_runtime_t* runtime,
                                 void (*row)(void* to, const char* name, size_t length, uint64_t calls,
                                             uint64_t nanoseconds),
                                 void* to);
void tw_runtime_release(tw_runtime_t* runtime);

// Dense row-major buffers. |data| may be NULL, then the contents are zero.
tw_status_t* tw_buffer_create(tw_runtime_t* runtime, uint32_t element, size_t rank, const size_t* shape,
                              const void* data, size_t size, tw_buffer_t** out);
// Reads |size| bytes from |offset| on.
tw_status_t* tw_buffer_read(tw_runtime_t* runtime, tw_buffer_t* buffer, size_t offset, void* data, size_t size);
// Overwrites |size| bytes from |offset| on.
tw_status_t* tw_buffer_write(tw_runtime_t* runtime, tw_buffer_t* buffer, size_t offset, const void* data,
                             size_t size);
// A new buffer with the same type and contents.
tw_status_t* tw_buffer_copy(tw_runtime_t* runtime, tw_buffer_t* buffer, tw_buffer_t** out);
// The |size| bytes from |offset| on, as a buffer of this shape. It shares their memory and keeps it alive.
tw_status_t* tw_buffer_part(tw_buffer_t* buffer, size_t offset, size_t size, size_t rank, const size_t* shape,
                            tw_buffer_t** out);
// Copies all of |part| over the bytes of |buffer| from |offset| on.
tw_status_t* tw_buffer_put(tw_runtime_t* runtime, tw_buffer_t* buffer, size_t offset, tw_buffer_t* part);
uint32_t tw_buffer_element(const tw_buffer_t* buffer);
size_t tw_buffer_rank(const tw_buffer_t* buffer);
size_t tw_buffer_extent(const tw_buffer_t* buffer, size_t axis);
// Names the allocation behind the buffer: two live buffers share memory only if it is equal.
uintptr_t tw_buffer_allocation(const tw_buffer_t* buffer);
// The first byte's offset in that allocation.
size_t tw_buffer_offset(const tw_buffer_t* buffer);
bool tw_buffer_is_writable(const tw_buffer_t* buffer);
void tw_buffer_release(tw_buffer_t* buffer);

// Wraps [data, data + size), which stays valid until |release(owner)| is called, once, also on failure.
tw_status_t* tw_parameters_create(const char* scope, size_t scope_length, const void* data, size_t size,
                                  void (*release)(void*), void* owner, tw_parameters_t** out);
// |offset + length| was checked against |size| by the caller.
tw_status_t* tw_parameters_add(tw_parameters_t* parameters, const char* key, size_t key_length,
                               uint64_t offset, uint64_t length);
tw_status_t* tw_parameters_add_splat(tw_parameters_t* parameters, const char* key, size_t key_length,
                                     uint64_t length, const uint8_t* pattern, size_t pattern_length);
void tw_parameters_release(tw_parameters_t* parameters);

// |vmfb| is copied. |verified| tells whether it is a whole module: then a failure is about something else.
tw_status_t* tw_program_load(tw_runtime_t* runtime, const void* vmfb, size_t size,
                             tw_parameters_t* const* parameters, size_t parameter_count,
                             bool* verified, tw_program_t** out);
size_t tw_program_export_count(const tw_program_t* program);
tw_status_t* tw_program_export_name(const tw_program_t* program, size_t ordinal, const char** text,
                                    size_t* length);
// How the compiler spells the function's type; empty where the module does not say.
tw_status_t* tw_program_export_declaration(const tw_program_t* program, size_t ordinal,
                                           const char** text, size_t* length);
tw_status_t* tw_program_export_arity(const tw_program_t* program, size_t ordinal, size_t* arguments,
                                     size_t* results);
void tw_program_release(tw_program_t* program);

tw_status_t* tw_call_create(tw_program_t* program, size_t ordinal, tw_call_t** out);
// Takes the caller's reference, also on failure.
tw_status_t* tw_call_push_buffer(tw_call_t* call, tw_buffer_t* buffer);
tw_status_t* tw_call_push_i32(tw_call_t* call, int32_t value);
// The arguments are given away: the callee may reuse their memory.
tw_status_t* tw_call_invoke(tw_call_t* call);
size_t tw_call_result_count(const tw_call_t* call);
// Sets |buffer| (a new reference), or leaves it NULL and sets |value|.
tw_status_t* tw_call_result(tw_call_t* call, size_t index, tw_buffer_t** buffer, int32_t* value);
void tw_call_release(tw_call_t* call);

#endif  // TRACEWRIGHT_SHIM_H_
