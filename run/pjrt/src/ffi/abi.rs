//! Declares the memory layout of OpenXLA's PJRT C API (`xla/pjrt/c/pjrt_c_api.h`), for the versions 0.106 to
//! 0.116. This module declares only the structs that this crate uses. Each function of the API takes a
//! pointer to one struct. In the first field of an argument struct, the caller stores the size of the struct.
//! Because an argument struct contains its own size, later versions of the API can append fields to the
//! struct.

use std::ffi::{c_char, c_int, c_void};

/// An opaque object that belongs to the plugin. Only the plugin can see the contents of an opaque object.
#[repr(C)]
pub struct Opaque {
    _opaque: [u8; 0],
}

pub type Raw = *mut Opaque;

/// Takes a pointer to its arguments, and returns an error or null.
pub type Function<A> = unsafe extern "C" fn(*mut A) -> Raw;

/// Structs that begin with their size and a list of extensions. `new` sets the size, and zeros elsewhere: a
/// null pointer, the number 0 or a missing function.
macro_rules! sized {
    ($($name:ident { $($field:ident: $ty:ty),* $(,)? })*) => { $(
        #[repr(C)]
        pub struct $name {
            size: usize,
            extensions: *mut c_void,
            $(pub $field: $ty,)*
        }

        impl $name {
            pub fn new() -> Self {
                // SAFETY: all fields are integers, raw pointers or optional functions, for which zero is a value.
                let zero: Self = unsafe { std::mem::zeroed() };
                Self { size: size_of::<Self>(), ..zero }
            }
        }
    )* };
}

sized! {
    ErrorDestroy { error: Raw }
    ErrorMessage { error: Raw, message: *const c_char, message_size: usize }
    ErrorGetCode { error: Raw, code: c_int }
    PluginInitialize {}
    EventDestroy { event: Raw }
    EventAwait { event: Raw }
    NamedNumber {
        name: *const c_char, name_size: usize, kind: c_int, number: i64, value_size: usize,
    }
    ClientCreate {
        options: *const NamedNumber, num_options: usize,
        get: Option<unsafe extern "C" fn()>, get_argument: *mut c_void,
        put: Option<unsafe extern "C" fn()>, put_argument: *mut c_void,
        client: Raw,
        try_get: Option<unsafe extern "C" fn()>, try_get_argument: *mut c_void,
    }
    ClientDestroy { client: Raw }
    ClientText { client: Raw, text: *const c_char, text_size: usize }
    ClientDevices { client: Raw, devices: *const Raw, num_devices: usize }
    Program { code: *const c_char, code_size: usize, format: *const c_char, format_size: usize }
    ClientCompile {
        client: Raw, program: *const Program, options: *const c_char, options_size: usize, executable: Raw,
    }
    BufferFromHost {
        client: Raw, data: *const c_void, element: c_int, dims: *const i64, num_dims: usize,
        byte_strides: *const i64, num_byte_strides: usize, semantics: c_int,
        device: Raw, memory: Raw, layout: *const c_void, done: Raw, buffer: Raw,
    }
    DescriptionId { description: Raw, id: c_int }
    DescriptionKind { description: Raw, kind: *const c_char, kind_size: usize }
    DeviceDescription { device: Raw, description: Raw }
    ExecutableDestroy { executable: Raw }
    LoadedGetExecutable { loaded: Raw, executable: Raw }
    ExecutableSerialize {
        executable: Raw, bytes: *const c_char, num_bytes: usize,
        serialized: Raw, delete: Option<unsafe extern "C" fn(Raw)>,
    }
    DeserializeAndLoad {
        client: Raw, bytes: *const c_char, num_bytes: usize, loaded: Raw,
        options: *const c_char, options_size: usize,
    }
    ExecutableNumOutputs { executable: Raw, num_outputs: usize }
    ExecutableOutputTypes { executable: Raw, types: *const c_int, num_types: usize }
    ExecutableOutputDims { executable: Raw, num_outputs: usize, dims: *const i64, ranks: *const usize }
    ExecuteOptions {
        send: *const c_void, receive: *const c_void, num_send: usize, num_receive: usize, launch: c_int,
        kept: *const i64, num_kept: usize, context: *const c_void, call_location: *const c_char,
        num_tasks: usize, tasks: *const c_int, incarnations: *const i64,
    }
    Execute {
        executable: Raw, options: *const ExecuteOptions, arguments: *const *const Raw,
        num_devices: usize, num_arguments: usize, results: *const *mut Raw, done: *mut Raw, device: Raw,
    }
    BufferDestroy { buffer: Raw }
    BufferToHost { buffer: Raw, layout: *const c_void, data: *mut c_void, length: usize, done: Raw }
    BufferCopyRaw { buffer: Raw, data: *mut c_void, offset: i64, length: i64, done: Raw }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ApiVersion {
    size: usize,
    extensions: *mut c_void,
    pub major: c_int,
    pub minor: c_int,
}

/// The fields of a plugin's table that are the same in every version of the API.
#[repr(C)]
pub struct Header {
    pub size: usize,
    extensions: *mut c_void,
    pub version: ApiVersion,
}

/// For storing and loading executables. A plugin without them can still run modules.
const OPTIONAL: [&str; 2] = ["executable_serialize", "executable_deserialize_and_load"];

/// Each line has the number of unused functions before a used one, and that one.
macro_rules! table {
    ($($skipped:literal $name:ident: $ty:ty;)*) => {
        /// A plugin's table of functions, up to the last function that this crate calls.
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct Table {
            pub size: usize,
            extensions: *mut c_void,
            version: ApiVersion,
            $(pub $name: Entry<$skipped, $ty>,)*
        }

        impl Table {
            /// The first missing function that is not [`OPTIONAL`].
            pub fn missing(&self) -> Option<&'static str> {
                [$((self.$name.function.is_some(), stringify!($name)),)*]
                    .into_iter()
                    .find_map(|(is_there, name)| (!is_there && !OPTIONAL.contains(&name)).then_some(name))
            }
        }
    };
}

/// A part of the table that consists of `N` unused functions, followed by a used function.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Entry<const N: usize, F> {
    _skipped: [*mut c_void; N],
    pub function: Option<F>,
}

table! {
    0 error_destroy: unsafe extern "C" fn(*mut ErrorDestroy);
    0 error_message: unsafe extern "C" fn(*mut ErrorMessage);
    0 error_get_code: Function<ErrorGetCode>;
    0 plugin_initialize: Function<PluginInitialize>;
    1 event_destroy: Function<EventDestroy>;
    2 event_await: Function<EventAwait>;
    1 client_create: Function<ClientCreate>;
    0 client_destroy: Function<ClientDestroy>;
    0 client_platform_name: Function<ClientText>;
    1 client_platform_version: Function<ClientText>;
    1 client_addressable_devices: Function<ClientDevices>;
    3 client_compile: Function<ClientCompile>;
    1 client_buffer_from_host_buffer: Function<BufferFromHost>;
    0 device_description_id: Function<DescriptionId>;
    2 device_description_kind: Function<DescriptionKind>;
    2 device_get_description: Function<DeviceDescription>;
    10 executable_destroy: Function<ExecutableDestroy>;
    3 executable_num_outputs: Function<ExecutableNumOutputs>;
    4 executable_serialize: Function<ExecutableSerialize>;
    0 loaded_executable_destroy: Function<ExecutableDestroy>;
    0 loaded_executable_get_executable: Function<LoadedGetExecutable>;
    3 loaded_executable_execute: Function<Execute>;
    0 executable_deserialize_and_load: Function<DeserializeAndLoad>;
    1 buffer_destroy: Function<BufferDestroy>;
    11 buffer_to_host_buffer: Function<BufferToHost>;
    19 executable_output_element_types: Function<ExecutableOutputTypes>;
    0 executable_output_dimensions: Function<ExecutableOutputDims>;
    8 buffer_copy_raw_to_host: Function<BufferCopyRaw>;
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Expected from the C header of version 0.114, measured with libclang on 64-bit Linux.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn layouts_equal_the_headers() {
        let offset = |entry: usize, skipped: usize| entry + 8 * skipped;
        for (name, found, expected) in [
            ("plugin_initialize", offset(offset_of!(Table, plugin_initialize), 0), 64),
            ("event_await", offset(offset_of!(Table, event_await), 2), 104),
            ("client_create", offset(offset_of!(Table, client_create), 1), 120),
            ("client_platform_version", offset(offset_of!(Table, client_platform_version), 1), 152),
            ("client_addressable_devices", offset(offset_of!(Table, client_addressable_devices), 1), 168),
            ("client_compile", offset(offset_of!(Table, client_compile), 3), 200),
            (
                "client_buffer_from_host_buffer",
                offset(offset_of!(Table, client_buffer_from_host_buffer), 1),
                216,
            ),
            ("device_description_id", offset(offset_of!(Table, device_description_id), 0), 224),
            ("device_description_kind", offset(offset_of!(Table, device_description_kind), 2), 248),
            ("device_get_description", offset(offset_of!(Table, device_get_description), 2), 272),
            ("executable_destroy", offset(offset_of!(Table, executable_destroy), 10), 360),
            ("executable_num_outputs", offset(offset_of!(Table, executable_num_outputs), 3), 392),
            ("executable_serialize", offset(offset_of!(Table, executable_serialize), 4), 432),
            ("loaded_executable_destroy", offset(offset_of!(Table, loaded_executable_destroy), 0), 440),
            ("loaded_executable_execute", offset(offset_of!(Table, loaded_executable_execute), 3), 480),
            (
                "executable_deserialize_and_load",
                offset(offset_of!(Table, executable_deserialize_and_load), 0),
                488,
            ),
            ("buffer_destroy", offset(offset_of!(Table, buffer_destroy), 1), 504),
            ("buffer_to_host_buffer", offset(offset_of!(Table, buffer_to_host_buffer), 11), 600),
            (
                "executable_output_element_types",
                offset(offset_of!(Table, executable_output_element_types), 19),
                760,
            ),
            ("executable_output_dimensions", offset(offset_of!(Table, executable_output_dimensions), 0), 768),
            ("buffer_copy_raw_to_host", offset(offset_of!(Table, buffer_copy_raw_to_host), 8), 840),
        ] {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(size_of::<NamedNumber>(), 56);
        assert_eq!(offset_of!(NamedNumber, number), 40);
        assert_eq!(size_of::<ClientCreate>(), 88);
        assert_eq!(offset_of!(ClientCreate, client), 64);
        assert_eq!(size_of::<BufferFromHost>(), 120);
        assert_eq!(offset_of!(BufferFromHost, semantics), 72);
        assert_eq!(offset_of!(BufferFromHost, buffer), 112);
        // The fields of version 0.106, which end with `incarnations`.
        assert_eq!(size_of::<ExecuteOptions>(), 112);
        assert_eq!(offset_of!(ExecuteOptions, kept), 56);
        assert_eq!(size_of::<Execute>(), 80);
        assert_eq!(size_of::<ClientCompile>(), 56);
        assert_eq!(size_of::<ExecutableSerialize>(), 56);
        assert_eq!(offset_of!(ExecutableSerialize, delete), 48);
        assert_eq!(size_of::<DeserializeAndLoad>(), 64);
        assert_eq!(offset_of!(DeserializeAndLoad, loaded), 40);
        assert_eq!(size_of::<BufferToHost>(), 56);
        assert_eq!(size_of::<BufferCopyRaw>(), 56);
        assert_eq!(size_of::<ExecutableOutputDims>(), 48);
        assert_eq!(ErrorMessage::new().size, 40);
    }
}
