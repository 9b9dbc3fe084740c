//! Calls the C shim. The module contains the declarations of `native/shim.h`, and an owner type for each kind
//! of object that the shim creates. All methods of the owner types are safe for all arguments. The owner
//! types are neither `Send` nor `Sync`, because only one thread at a time may use IREE's contexts and lists.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use ops::{ElementType, TensorType};

use crate::error::{RuntimeError, Status};
use crate::parameters::{ParameterData, SharedBytes};

/// Declares an opaque C type, and one that releases its objects exactly once.
macro_rules! owner {
    ($(#[$doc:meta])* $owner:ident, $opaque:ident, $release:ident) => {
        #[repr(C)]
        struct $opaque {
            _opaque: [u8; 0],
        }

        $(#[$doc])*
        pub(crate) struct $owner(NonNull<$opaque>);

        impl $owner {
            /// The status and the out parameter of a C function.
            fn take(status: *mut RawStatus, raw: *mut $opaque) -> Result<Self, Status> {
                check(status)?;
                NonNull::new(raw).map(Self).ok_or_else(Status::no_object)
            }
        }

        impl Drop for $owner {
            fn drop(&mut self) {
                // SAFETY: the pointer came from the shim with one reference, which is given back here.
                unsafe { $release(self.0.as_ptr()) }
            }
        }
    };
}

#[repr(C)]
struct RawStatus {
    _opaque: [u8; 0],
}

owner!(Runtime, RawRuntime, tw_runtime_release);
owner!(Buffer, RawBuffer, tw_buffer_release);
owner!(Parameters, RawParameters, tw_parameters_release);
owner!(Program, RawProgram, tw_program_release);
owner!(
    /// Stores first the arguments and later the results.
    Call, RawCall, tw_call_release
);

/// Called by C for each executed function: the list to extend, name and length, calls, nanoseconds.
type TakeRow = extern "C" fn(*mut c_void, *const c_char, usize, u64, u64);

/// Called by C for each device: the list to extend, and the texts of a [`RawDevice`] with their lengths.
type TakeDevice =
    extern "C" fn(*mut c_void, *const c_char, usize, *const c_char, usize, *const c_char, usize);

unsafe extern "C" {
    fn tw_status_take(
        status: *mut RawStatus,
        code: *mut u32,
        text: *mut c_char,
        capacity: usize,
        length: *mut usize,
    );
    fn tw_cpu_features(text: *mut c_char, capacity: usize) -> usize;
    fn tw_give_back_memory();

    fn tw_driver_devices(driver: u32, device: TakeDevice, to: *mut c_void) -> *mut RawStatus;
    fn tw_driver_open(driver: u32, ordinal: usize, out: *mut *mut RawRuntime) -> *mut RawStatus;

    fn tw_runtime_create(workers: usize, watched: bool, out: *mut *mut RawRuntime) -> *mut RawStatus;
    fn tw_runtime_note(runtime: *mut RawRuntime) -> *mut RawStatus;
    fn tw_runtime_executed(runtime: *mut RawRuntime, row: TakeRow, to: *mut c_void) -> *mut RawStatus;
    fn tw_runtime_release(runtime: *mut RawRuntime);

    fn tw_buffer_create(
        runtime: *mut RawRuntime,
        element: u32,
        rank: usize,
        shape: *const usize,
        data: *const c_void,
        size: usize,
        out: *mut *mut RawBuffer,
    ) -> *mut RawStatus;
    fn tw_buffer_read(
        runtime: *mut RawRuntime,
        buffer: *mut RawBuffer,
        offset: usize,
        data: *mut c_void,
        size: usize,
    ) -> *mut RawStatus;
    fn tw_buffer_write(
        runtime: *mut RawRuntime,
        buffer: *mut RawBuffer,
        offset: usize,
        data: *const c_void,
        size: usize,
    ) -> *mut RawStatus;
    fn tw_buffer_copy(
        runtime: *mut RawRuntime,
        buffer: *mut RawBuffer,
        out: *mut *mut RawBuffer,
    ) -> *mut RawStatus;
    fn tw_buffer_part(
        buffer: *mut RawBuffer,
        offset: usize,
        size: usize,
        rank: usize,
        shape: *const usize,
        out: *mut *mut RawBuffer,
    ) -> *mut RawStatus;
    fn tw_buffer_put(
        runtime: *mut RawRuntime,
        buffer: *mut RawBuffer,
        offset: usize,
        part: *mut RawBuffer,
    ) -> *mut RawStatus;
    fn tw_buffer_element(buffer: *const RawBuffer) -> u32;
    fn tw_buffer_rank(buffer: *const RawBuffer) -> usize;
    fn tw_buffer_extent(buffer: *const RawBuffer, axis: usize) -> usize;
    fn tw_buffer_allocation(buffer: *const RawBuffer) -> usize;
    fn tw_buffer_offset(buffer: *const RawBuffer) -> usize;
    fn tw_buffer_is_writable(buffer: *const RawBuffer) -> bool;
    fn tw_buffer_release(buffer: *mut RawBuffer);

    fn tw_parameters_create(
        scope: *const c_char,
        scope_length: usize,
        data: *const c_void,
        size: usize,
        release: extern "C" fn(*mut c_void),
        owner: *mut c_void,
        out: *mut *mut RawParameters,
    ) -> *mut RawStatus;
    fn tw_parameters_add(
        parameters: *mut RawParameters,
        key: *const c_char,
        key_length: usize,
        offset: u64,
        length: u64,
    ) -> *mut RawStatus;
    fn tw_parameters_add_splat(
        parameters: *mut RawParameters,
        key: *const c_char,
        key_length: usize,
        length: u64,
        pattern: *const u8,
        pattern_length: usize,
    ) -> *mut RawStatus;
    fn tw_parameters_release(parameters: *mut RawParameters);

    fn tw_program_load(
        runtime: *mut RawRuntime,
        vmfb: *const c_void,
        size: usize,
        parameters: *const *mut RawParameters,
        parameter_count: usize,
        verified: *mut bool,
        out: *mut *mut RawProgram,
    ) -> *mut RawStatus;
    fn tw_program_export_count(program: *const RawProgram) -> usize;
    fn tw_program_export_name(
        program: *const RawProgram,
        ordinal: usize,
        text: *mut *const c_char,
        length: *mut usize,
    ) -> *mut RawStatus;
    fn tw_program_export_declaration(
        program: *const RawProgram,
        ordinal: usize,
        text: *mut *const c_char,
        length: *mut usize,
    ) -> *mut RawStatus;
    fn tw_program_export_arity(
        program: *const RawProgram,
        ordinal: usize,
        arguments: *mut usize,
        results: *mut usize,
    ) -> *mut RawStatus;
    fn tw_program_release(program: *mut RawProgram);

    fn tw_call_create(program: *mut RawProgram, ordinal: usize, out: *mut *mut RawCall) -> *mut RawStatus;
    fn tw_call_push_buffer(call: *mut RawCall, buffer: *mut RawBuffer) -> *mut RawStatus;
    fn tw_call_push_i32(call: *mut RawCall, value: i32) -> *mut RawStatus;
    fn tw_call_invoke(call: *mut RawCall) -> *mut RawStatus;
    fn tw_call_result_count(call: *const RawCall) -> usize;
    fn tw_call_result(
        call: *mut RawCall,
        index: usize,
        buffer: *mut *mut RawBuffer,
        value: *mut i32,
    ) -> *mut RawStatus;
    fn tw_call_release(call: *mut RawCall);
}

/// Bytes. IREE's own texts have a few hundred.
const STATUS_TEXT_LIMIT: usize = 4096;

fn check(status: *mut RawStatus) -> Result<(), Status> {
    if status.is_null() {
        return Ok(());
    }
    let mut text = vec![0u8; STATUS_TEXT_LIMIT];
    let (mut code, mut length) = (0, 0);
    // SAFETY: `status` is a status that nobody consumed yet; `text` has the capacity that is given.
    unsafe { tw_status_take(status, &mut code, text.as_mut_ptr().cast(), text.len(), &mut length) };
    text.truncate(length);
    let text = String::from_utf8_lossy(&text);
    Err(Status::new(code, text.trim_end_matches('\0')))
}

/// All that IREE can detect, by LLVM's name, and whether this CPU has them.
pub(crate) fn cpu_features() -> Vec<(String, bool)> {
    let mut text = vec![0u8; 4096];
    // SAFETY: `text` has the capacity that is given.
    let length = unsafe { tw_cpu_features(text.as_mut_ptr().cast(), text.len()) };
    text.truncate(length);
    let text = String::from_utf8_lossy(&text);
    let words = text.split(',').filter_map(|word| word.split_at_checked(1));
    words.map(|(sign, name)| (name.to_owned(), sign == "+")).collect()
}

/// Gives memory that the process has freed back to the operating system. glibc would keep most of it, because blocks that
/// are still in use lie above it. With other C libraries, the function does nothing.
pub fn give_back_memory() {
    // SAFETY: the function has no preconditions, and locks the allocator against other threads.
    unsafe { tw_give_back_memory() }
}

/// Name, path, and the driver's description.
type RawDevice = (String, String, String);

/// `driver` is the C shim's number.
pub(crate) fn devices(driver: u32) -> Result<Vec<RawDevice>, Status> {
    let mut devices: Vec<RawDevice> = Vec::new();
    // SAFETY: `take_device` gets the list that is given with it.
    check(unsafe { tw_driver_devices(driver, take_device, (&raw mut devices).cast()) })?;
    Ok(devices)
}

extern "C" fn take_device(
    to: *mut c_void,
    name: *const c_char,
    name_length: usize,
    path: *const c_char,
    path_length: usize,
    about: *const c_char,
    about_length: usize,
) {
    let text = |data: *const c_char, length: usize| {
        if data.is_null() {
            return String::new();
        }
        // SAFETY: the shim vouches for its texts for the time of this call.
        unsafe { String::from_utf8_lossy(slice::from_raw_parts(data.cast::<u8>(), length)).into_owned() }
    };
    let device = (text(name, name_length), text(path, path_length), text(about, about_length));
    // SAFETY: `to` is the list that `devices` lent for the time of its call, and nothing else looks at it then.
    unsafe { &mut *to.cast::<Vec<RawDevice>>() }.push(device);
}

impl Runtime {
    /// `driver` is the C shim's number.
    pub(crate) fn open(driver: u32, ordinal: usize) -> Result<Self, Status> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is an out parameter.
        let status = unsafe { tw_driver_open(driver, ordinal, &mut raw) };
        Self::take(status, raw)
    }

    /// `local-task` with unpinned threads, or `local-sync` for 0. `watched` counts and times functions.
    pub(crate) fn new(workers: usize, watched: bool) -> Result<Self, Status> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is an out parameter.
        let status = unsafe { tw_runtime_create(workers, watched, &mut raw) };
        Self::take(status, raw)
    }

    /// Collects the counts and times of executed functions from the device.
    pub(crate) fn note(&self) -> Result<(), Status> {
        // SAFETY: the runtime is alive.
        check(unsafe { tw_runtime_note(self.0.as_ptr()) })
    }

    /// Name, calls and nanoseconds of each function.
    pub(crate) fn executed(&self) -> Result<Vec<(String, u64, u64)>, Status> {
        let mut rows: Vec<(String, u64, u64)> = Vec::new();
        // SAFETY: the runtime is alive, and `take_row` gets the list that is given with it.
        check(unsafe { tw_runtime_executed(self.0.as_ptr(), take_row, (&raw mut rows).cast()) })?;
        Ok(rows)
    }
}

extern "C" fn take_row(to: *mut c_void, name: *const c_char, length: usize, calls: u64, nanoseconds: u64) {
    // SAFETY: `to` is the list that `Runtime::executed` lent for the time of its call, and nothing else looks at it then;
    // the shim vouches for the name.
    let (rows, name) = unsafe {
        (&mut *to.cast::<Vec<(String, u64, u64)>>(), slice::from_raw_parts(name.cast::<u8>(), length))
    };
    rows.push((String::from_utf8_lossy(name).into_owned(), calls, nanoseconds));
}

fn element_code(element: ElementType) -> u32 {
    match element {
        ElementType::F32 => 1,
        ElementType::F16 => 2,
        ElementType::Bf16 => 3,
        ElementType::I32 => 4,
        ElementType::I8 => 5,
        ElementType::I4 => 6,
        ElementType::I1 => 7,
    }
}

impl Buffer {
    /// Zeros, or a copy of `bytes`, whose length must match the type.
    pub(crate) fn new(runtime: &Runtime, ty: &TensorType, bytes: Option<&[u8]>) -> Result<Self, Status> {
        assert!(bytes.is_none_or(|bytes| bytes.len() == ty.bytes()), "the caller checked the length");
        let mut raw = ptr::null_mut();
        // SAFETY: the runtime is alive, rank and shape describe one slice, and the data, if any, has the
        // size that is given.
        let status = unsafe {
            tw_buffer_create(
                runtime.0.as_ptr(),
                element_code(ty.element),
                ty.rank(),
                ty.shape.as_ptr(),
                bytes.map_or(ptr::null(), |bytes| bytes.as_ptr().cast()),
                ty.bytes(),
                &mut raw,
            )
        };
        Self::take(status, raw)
    }

    /// From byte `offset` on.
    pub(crate) fn read(&self, runtime: &Runtime, offset: usize, target: &mut [u8]) -> Result<(), Status> {
        let (data, size) = (target.as_mut_ptr().cast(), target.len());
        // SAFETY: both objects are alive; IREE checks the range against the buffer's own length.
        check(unsafe { tw_buffer_read(runtime.0.as_ptr(), self.0.as_ptr(), offset, data, size) })
    }

    /// `&mut self`, because nothing else may use the buffer meanwhile.
    pub(crate) fn write(&mut self, runtime: &Runtime, offset: usize, bytes: &[u8]) -> Result<(), Status> {
        let (data, size) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: both objects are alive; IREE checks the range against the buffer's own length.
        check(unsafe { tw_buffer_write(runtime.0.as_ptr(), self.0.as_ptr(), offset, data, size) })
    }

    pub(crate) fn copy(&self, runtime: &Runtime) -> Result<Self, Status> {
        let mut raw = ptr::null_mut();
        // SAFETY: both objects are alive.
        let status = unsafe { tw_buffer_copy(runtime.0.as_ptr(), self.0.as_ptr(), &mut raw) };
        Self::take(status, raw)
    }

    /// From byte `offset` on.
    pub(crate) fn part(&self, ty: &TensorType, offset: usize) -> Result<Self, Status> {
        let (mut raw, buffer) = (ptr::null_mut(), self.0.as_ptr());
        // SAFETY: the buffer is alive, rank and shape describe one slice, and IREE checks the range against the
        // buffer's own length.
        let status =
            unsafe { tw_buffer_part(buffer, offset, ty.bytes(), ty.rank(), ty.shape.as_ptr(), &mut raw) };
        Self::take(status, raw)
    }

    /// From byte `offset` on.
    pub(crate) fn put(&mut self, runtime: &Runtime, offset: usize, part: &Self) -> Result<(), Status> {
        // SAFETY: all three objects are alive; IREE checks the range against the buffer's own length.
        check(unsafe { tw_buffer_put(runtime.0.as_ptr(), self.0.as_ptr(), offset, part.0.as_ptr()) })
    }

    /// If Tracewright supports it.
    pub(crate) fn element(&self) -> Option<ElementType> {
        // SAFETY: the buffer is alive.
        let code = unsafe { tw_buffer_element(self.0.as_ptr()) };
        ElementType::ALL.into_iter().find(|&element| element_code(element) == code)
    }

    pub(crate) fn shape(&self) -> Vec<usize> {
        // SAFETY: the buffer is alive and every axis is below the rank.
        unsafe {
            let rank = tw_buffer_rank(self.0.as_ptr());
            (0..rank).map(|axis| tw_buffer_extent(self.0.as_ptr(), axis)).collect()
        }
    }

    /// The allocation, and the offset in it.
    pub(crate) fn place(&self) -> (usize, usize) {
        // SAFETY: the buffer is alive.
        unsafe { (tw_buffer_allocation(self.0.as_ptr()), tw_buffer_offset(self.0.as_ptr())) }
    }

    /// Not for constants and mapped parameters.
    pub(crate) fn is_writable(&self) -> bool {
        // SAFETY: the buffer is alive.
        unsafe { tw_buffer_is_writable(self.0.as_ptr()) }
    }

    fn into_raw(self) -> *mut RawBuffer {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }
}

/// Drops the reference to the bytes that [`Parameters::new`] passed to C.
extern "C" fn release_bytes(owner: *mut c_void) {
    // SAFETY: `owner` is the box that `Parameters::new` made, and C calls this once.
    drop(unsafe { Box::from_raw(owner.cast::<SharedBytes>()) });
}

impl Parameters {
    /// Ranges of shared bytes, which live as long as a program or a buffer uses them.
    pub(crate) fn new(parameters: &crate::Parameters) -> Result<Self, RuntimeError> {
        let scope = &parameters.scope;
        let refused = |status| RuntimeError::Parameters { scope: scope.clone(), status };
        let owner: Box<SharedBytes> = Box::new(Arc::clone(&parameters.bytes));
        let bytes: &[u8] = (**owner).as_ref();
        let (data, size) = (bytes.as_ptr(), bytes.len());
        let mut raw = ptr::null_mut();
        // SAFETY: the bytes stay where they are while the box holds its reference, which C gives back
        // through `release_bytes`. They are `Send` and `Sync`, so any thread may read and release them.
        let status = unsafe {
            tw_parameters_create(
                scope.as_ptr().cast(),
                scope.len(),
                data.cast(),
                size,
                release_bytes,
                Box::into_raw(owner).cast(),
                &mut raw,
            )
        };
        let created = Self::take(status, raw).map_err(refused)?;
        for (name, entry) in &parameters.entries {
            let (key, key_length) = (name.as_ptr().cast(), name.len());
            let status = match entry {
                ParameterData::Range(range) if range.start > range.end || range.end > size => {
                    let (scope, name, range) = (scope.clone(), name.clone(), range.clone());
                    return Err(RuntimeError::ParameterRange { scope, name, range, size });
                }
                // SAFETY: the scope is alive, the key is copied, the range was checked.
                ParameterData::Range(range) => unsafe {
                    let length = range.len() as u64;
                    tw_parameters_add(created.0.as_ptr(), key, key_length, range.start as u64, length)
                },
                // SAFETY: the scope is alive, key and pattern are copied, the shim checks the pattern.
                ParameterData::Splat { length, pattern } => unsafe {
                    let (pattern, pattern_length) = (pattern.as_ptr(), pattern.len());
                    let created = created.0.as_ptr();
                    tw_parameters_add_splat(created, key, key_length, *length, pattern, pattern_length)
                },
            };
            check(status).map_err(refused)?;
        }
        Ok(created)
    }
}

impl Program {
    /// Also runs its initializers. After a failure, the flag is true if IREE had verified the bytes.
    pub(crate) fn load(
        runtime: &Runtime,
        vmfb: &[u8],
        parameters: &[Parameters],
    ) -> Result<Self, (Status, bool)> {
        let parameters: Vec<_> = parameters.iter().map(|p| p.0.as_ptr()).collect();
        let (mut raw, mut verified) = (ptr::null_mut(), false);
        // SAFETY: everything is alive; the vmfb is copied and IREE retains the scopes.
        let status = unsafe {
            tw_program_load(
                runtime.0.as_ptr(),
                vmfb.as_ptr().cast(),
                vmfb.len(),
                parameters.as_ptr(),
                parameters.len(),
                &mut verified,
                &mut raw,
            )
        };
        Self::take(status, raw).map_err(|status| (status, verified))
    }

    pub(crate) fn export_count(&self) -> usize {
        // SAFETY: the program is alive.
        unsafe { tw_program_export_count(self.0.as_ptr()) }
    }

    pub(crate) fn export_name(&self, ordinal: usize) -> Result<String, Status> {
        // SAFETY: the shim's function of this signature, which sets a text that the module owns.
        unsafe { self.text(tw_program_export_name, ordinal) }
    }

    /// MLIR; empty if the module does not contain it.
    pub(crate) fn export_declaration(&self, ordinal: usize) -> Result<String, Status> {
        // SAFETY: the shim's function of this signature, which sets a text that the module owns.
        unsafe { self.text(tw_program_export_declaration, ordinal) }
    }

    /// # Safety
    /// The text that the function `get` returns must live as long as the program.
    unsafe fn text(
        &self,
        get: unsafe extern "C" fn(*const RawProgram, usize, *mut *const c_char, *mut usize) -> *mut RawStatus,
        ordinal: usize,
    ) -> Result<String, Status> {
        let (mut text, mut length) = (ptr::null(), 0);
        // SAFETY: the program is alive; IREE checks the ordinal.
        check(unsafe { get(self.0.as_ptr(), ordinal, &mut text, &mut length) })?;
        if text.is_null() {
            return Ok(String::new());
        }
        // SAFETY: the caller vouches for the text.
        let bytes = unsafe { slice::from_raw_parts(text.cast::<u8>(), length) };
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// Arguments and results.
    pub(crate) fn export_arity(&self, ordinal: usize) -> Result<(usize, usize), Status> {
        let (mut arguments, mut results) = (0, 0);
        // SAFETY: the program is alive; IREE checks the ordinal.
        check(unsafe { tw_program_export_arity(self.0.as_ptr(), ordinal, &mut arguments, &mut results) })?;
        Ok((arguments, results))
    }
}

pub(crate) enum RawValue {
    Buffer(Buffer),
    I32(i32),
}

impl Call {
    pub(crate) fn new(program: &Program, ordinal: usize) -> Result<Self, Status> {
        let mut raw = ptr::null_mut();
        // SAFETY: the program is alive, and the call retains what it needs of it.
        let status = unsafe { tw_call_create(program.0.as_ptr(), ordinal, &mut raw) };
        Self::take(status, raw)
    }

    pub(crate) fn push_buffer(&mut self, buffer: Buffer) -> Result<(), Status> {
        // SAFETY: the call is alive and takes over the buffer's reference.
        check(unsafe { tw_call_push_buffer(self.0.as_ptr(), buffer.into_raw()) })
    }

    pub(crate) fn push_i32(&mut self, value: i32) -> Result<(), Status> {
        // SAFETY: the call is alive.
        check(unsafe { tw_call_push_i32(self.0.as_ptr(), value) })
    }

    pub(crate) fn invoke(self) -> Result<Vec<RawValue>, Status> {
        // SAFETY: the call is alive.
        check(unsafe { tw_call_invoke(self.0.as_ptr()) })?;
        // SAFETY: the call is alive.
        let count = unsafe { tw_call_result_count(self.0.as_ptr()) };
        (0..count).map(|index| self.result(index)).collect()
    }

    fn result(&self, index: usize) -> Result<RawValue, Status> {
        let (mut buffer, mut value) = (ptr::null_mut(), 0);
        // SAFETY: the call is alive and the index is below the number of results.
        check(unsafe { tw_call_result(self.0.as_ptr(), index, &mut buffer, &mut value) })?;
        Ok(NonNull::new(buffer).map_or(RawValue::I32(value), |raw| RawValue::Buffer(Buffer(raw))))
    }
}
