//! Calls the functions of a plugin. The module declares an owner type for each kind of object that a plugin
//! creates. All methods of the owner types are safe for all arguments. A value of an owner type keeps the
//! plugin and the client alive, and destroys its object exactly once.
#![allow(unsafe_code)]

mod abi;
mod serialized;

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::{ptr, slice};

use abi::{Entry, Function, Raw, Table};
use ops::{ElementType, TensorType};

use crate::error::{PjrtError, PjrtStatus};
use crate::library_file::missing_end;

/// The first version whose structs end as those of `abi` do.
pub const OLDEST_MINOR: i32 = 106;

/// Other major versions have other fields.
const MAJOR: i32 = 0;

/// Bytes. Some messages of XLA contain the text of a whole module.
const MESSAGE_LIMIT: usize = 2000;

/// Tables of functions, because a process must initialize each plugin only once.
static INITIALIZED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Never unloaded, because its threads and exit handlers can run until the process ends.
pub struct Library {
    table: Table,
    pub version: (i32, i32),
}

impl Library {
    /// Loads a plugin library, checks the version and the table of functions, and initializes the plugin.
    pub fn load(path: &Path) -> Result<Rc<Self>, PjrtError> {
        let at = || path.to_owned();
        // For a path without a separator, the operating system would search its own folders.
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        // If the file cannot be read, loading the library fails below with the reason.
        if let Ok(Some((expected, found))) = missing_end(&absolute) {
            return Err(PjrtError::Cut { path: at(), expected, found });
        }
        // SAFETY: loading runs the library's own code. That it is a plugin which may run is the caller's choice.
        let library = unsafe { libloading::Library::new(&absolute) };
        let library = library.map_err(|source| PjrtError::Library { path: at(), source })?;
        type GetApi = unsafe extern "C" fn() -> *const abi::Header;
        // SAFETY: `GetPjrtApi` of every version takes nothing, and returns the address of a table.
        let header = match unsafe { library.get::<GetApi>(b"GetPjrtApi\0") } {
            // SAFETY: the function is the library's, which is loaded.
            Ok(get) => unsafe { get() },
            Err(_) => return Err(PjrtError::NoApi { path: at() }),
        };
        std::mem::forget(library);
        // SAFETY: the address is null, or that of a table which lives as long as the library, so forever.
        let Some(known) = (unsafe { header.as_ref() }) else { return Err(PjrtError::NoApi { path: at() }) };
        let version = (known.version.major, known.version.minor);
        if version.0 != MAJOR || version.1 < OLDEST_MINOR {
            return Err(PjrtError::Version { path: at(), found: version });
        }
        let size = known.size.min(size_of::<Table>());
        // SAFETY: the table's version has this layout. The functions after the end of a short table are null.
        let table = unsafe {
            let mut table: Table = std::mem::zeroed();
            ptr::copy_nonoverlapping(header.cast::<u8>(), ptr::from_mut(&mut table).cast(), size);
            table
        };
        if let Some(function) = table.missing() {
            return Err(PjrtError::Missing { path: at(), function });
        }
        let library = Rc::new(Self { table, version });
        let mut initialized = INITIALIZED.lock().unwrap_or_else(PoisonError::into_inner);
        if !initialized.contains(&header.addr()) {
            let mut args = abi::PluginInitialize::new();
            // SAFETY: the struct is that of the function.
            let started = unsafe { library.call(&library.table.plugin_initialize, &mut args) };
            started.map_err(|status| PjrtError::Start { path: at(), status })?;
            initialized.insert(header.addr());
        }
        Ok(library)
    }

    /// # Safety
    /// The pointers in `args` must be valid for this function, as documented in the C header.
    unsafe fn call<const N: usize, A>(
        &self,
        entry: &Entry<N, Function<A>>,
        args: &mut A,
    ) -> Result<(), PjrtStatus> {
        let Some(function) = entry.function else { unreachable!("`load` checked the table") };
        // SAFETY: the caller vouches for the arguments.
        self.check(unsafe { function(args) })
    }

    /// Copies the code and the message of a plugin's error object, and destroys this object.
    fn check(&self, error: Raw) -> Result<(), PjrtStatus> {
        if error.is_null() {
            return Ok(());
        }
        let table = &self.table;
        let (Some(tell), Some(code_of)) = (table.error_message.function, table.error_get_code.function)
        else {
            unreachable!("`load` checked the table")
        };
        let mut message = abi::ErrorMessage::new();
        let mut code = abi::ErrorGetCode::new();
        (message.error, code.error) = (error, error);
        // SAFETY: the error is alive until it is destroyed below, and so is its message.
        let text = unsafe {
            tell(&mut message);
            // If the plugin cannot return the message, the error has no message.
            code_of(&mut code);
            text(message.message, message.message_size)
        };
        let mut destroyed = abi::ErrorDestroy::new();
        destroyed.error = error;
        if let Some(destroy) = table.error_destroy.function {
            // SAFETY: nothing refers to the error any more.
            unsafe { destroy(&mut destroyed) };
        }
        Err(PjrtStatus { code: code.code, message: shortened(text) })
    }

    fn finish(&self, event: Raw) -> Result<(), PjrtStatus> {
        if event.is_null() {
            return Ok(());
        }
        let mut awaited = abi::EventAwait::new();
        awaited.event = event;
        // SAFETY: the event is alive until `release`.
        let done = unsafe { self.call(&self.table.event_await, &mut awaited) };
        self.release(event)?;
        done
    }

    /// Without waiting.
    fn release(&self, event: Raw) -> Result<(), PjrtStatus> {
        if event.is_null() {
            return Ok(());
        }
        let mut destroyed = abi::EventDestroy::new();
        destroyed.event = event;
        // SAFETY: the event is alive, and the caller is its only owner.
        unsafe { self.call(&self.table.event_destroy, &mut destroyed) }
    }
}

/// # Safety
/// The pointer must be null, or point to `size` bytes.
unsafe fn text(data: *const c_char, size: usize) -> String {
    if data.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for the bytes.
    String::from_utf8_lossy(unsafe { slice::from_raw_parts(data.cast(), size) }).into_owned()
}

/// # Safety
/// The pointer must be null, or point to `count` values that live as long as `'a`.
unsafe fn list<'a, T>(data: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller vouches for the values.
    if data.is_null() { &[] } else { unsafe { slice::from_raw_parts(data, count) } }
}

fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_LIMIT {
        message.truncate(message.floor_char_boundary(MESSAGE_LIMIT));
        message.push('…');
    }
    message
}

/// XLA's number. `None` for four-bit integers, because XLA stores each in a whole byte.
fn element_code(element: ElementType) -> Option<c_int> {
    Some(match element {
        ElementType::I1 => 1,
        ElementType::I8 => 2,
        ElementType::I32 => 4,
        ElementType::F16 => 10,
        ElementType::F32 => 11,
        ElementType::Bf16 => 13,
        ElementType::I4 => return None,
    })
}

/// Declares a type that destroys a client's object when dropped.
macro_rules! owner {
    ($name:ident, $args:ident, $field:ident, $function:ident) => {
        impl Drop for $name {
            fn drop(&mut self) {
                let mut args = abi::$args::new();
                args.$field = self.raw;
                // SAFETY: this is the object's only owner. An error has no reader here.
                let _ = unsafe { self.library().call(&self.library().table.$function, &mut args) };
            }
        }
    };
}

/// Owns the devices.
pub struct RawClient {
    library: Rc<Library>,
    raw: Raw,
}

/// A device object of a client. The device object is valid as long as the client exists.
#[derive(Clone, Copy)]
pub struct RawDevice(Raw);

pub struct RawExecutable {
    client: Rc<RawClient>,
    raw: Raw,
}

/// A tensor, or a part of one, on one device.
pub struct RawTensor {
    client: Rc<RawClient>,
    raw: Raw,
}

owner!(RawClient, ClientDestroy, client, client_destroy);
owner!(RawExecutable, ExecutableDestroy, executable, loaded_executable_destroy);
owner!(RawTensor, BufferDestroy, buffer, buffer_destroy);

impl RawClient {
    /// Starts the platform, with an option of the plugin.
    pub fn new(library: &Rc<Library>, option: Option<(&str, i64)>) -> Result<Rc<Self>, PjrtStatus> {
        /// The number with which the PJRT C API identifies options whose value is a 64-bit integer.
        const NUMBER: c_int = 1;
        let named = option.map(|(name, number)| {
            let mut named = abi::NamedNumber::new();
            (named.name, named.name_size) = (name.as_ptr().cast(), name.len());
            (named.kind, named.number, named.value_size) = (NUMBER, number, 1);
            named
        });
        let mut args = abi::ClientCreate::new();
        let options = named.as_slice();
        (args.options, args.num_options) = (options.as_ptr(), options.len());
        // SAFETY: the option and its name outlive the call, and there are no callbacks.
        unsafe { library.call(&library.table.client_create, &mut args) }?;
        Ok(Rc::new(Self { library: library.clone(), raw: args.client }))
    }

    fn library(&self) -> &Library {
        &self.library
    }

    pub fn platform(&self) -> Result<String, PjrtStatus> {
        self.describe(&self.library.table.client_platform_name)
    }

    pub fn platform_version(&self) -> Result<String, PjrtStatus> {
        self.describe(&self.library.table.client_platform_version)
    }

    fn describe<const N: usize>(
        &self,
        function: &Entry<N, Function<abi::ClientText>>,
    ) -> Result<String, PjrtStatus> {
        let mut args = abi::ClientText::new();
        args.client = self.raw;
        // SAFETY: the client is alive, and its text lives as long.
        unsafe {
            self.library.call(function, &mut args)?;
            Ok(text(args.text, args.text_size))
        }
    }

    /// Those that this process can use.
    pub fn devices(&self) -> Result<Vec<RawDevice>, PjrtStatus> {
        let mut args = abi::ClientDevices::new();
        args.client = self.raw;
        // SAFETY: the client is alive, and its list of devices lives as long.
        unsafe {
            self.library.call(&self.library.table.client_addressable_devices, &mut args)?;
            Ok(list(args.devices, args.num_devices).iter().copied().map(RawDevice).collect())
        }
    }

    /// Id and hardware name.
    pub fn described(&self, device: RawDevice) -> Result<(i32, String), PjrtStatus> {
        let table = &self.library.table;
        let mut of = abi::DeviceDescription::new();
        let (mut id, mut kind) = (abi::DescriptionId::new(), abi::DescriptionKind::new());
        of.device = device.0;
        // SAFETY: the device and its description live as long as the client.
        unsafe {
            self.library.call(&table.device_get_description, &mut of)?;
            (id.description, kind.description) = (of.description, of.description);
            self.library.call(&table.device_description_id, &mut id)?;
            self.library.call(&table.device_description_kind, &mut kind)?;
            Ok((id.id, text(kind.kind, kind.kind_size)))
        }
    }

    /// `options` is a `CompileOptionsProto`.
    pub fn compile(self: &Rc<Self>, module: &str, options: &[u8]) -> Result<RawExecutable, PjrtStatus> {
        const FORMAT: &str = "mlir";
        let mut program = abi::Program::new();
        (program.code, program.code_size) = (module.as_ptr().cast(), module.len());
        (program.format, program.format_size) = (FORMAT.as_ptr().cast(), FORMAT.len());
        let mut args = abi::ClientCompile::new();
        (args.client, args.program) = (self.raw, &program);
        (args.options, args.options_size) = (options.as_ptr().cast(), options.len());
        // SAFETY: the client is alive; module and options outlive the call.
        unsafe { self.library.call(&self.library.table.client_compile, &mut args) }?;
        Ok(RawExecutable { client: self.clone(), raw: args.executable })
    }

    /// `None` if XLA and the host have different byte formats for the element type.
    pub fn upload(
        self: &Rc<Self>,
        device: RawDevice,
        ty: &TensorType,
        bytes: &[u8],
    ) -> Option<Result<RawTensor, PjrtStatus>> {
        /// The plugin copies the bytes of the tensor before the function returns.
        const DURING_CALL: c_int = 0;
        /// The plugin reads the bytes until the event `done`; the caller must not change them before.
        const UNTIL_DONE: c_int = 1;
        /// The most bytes that the plugin copies immediately. Uploads of a decode call are smaller, so it
        /// does not wait.
        const COPIED: usize = 4096;
        assert!(bytes.len() == ty.bytes(), "the caller checked the length");
        let dims: Vec<i64> = ty.shape.iter().map(|&extent| extent as i64).collect();
        let mut args = abi::BufferFromHost::new();
        args.element = element_code(ty.element)?;
        (args.client, args.device, args.data) = (self.raw, device.0, bytes.as_ptr().cast());
        let semantics = if bytes.len() <= COPIED { DURING_CALL } else { UNTIL_DONE };
        (args.dims, args.num_dims, args.semantics) = (dims.as_ptr(), dims.len(), semantics);
        // SAFETY: client and device are alive, the bytes have the length of the type, and they are borrowed for the call, and
        // with `UNTIL_DONE` until `finish` has waited for the event.
        let sent =
            unsafe { self.library.call(&self.library.table.client_buffer_from_host_buffer, &mut args) };
        Some(sent.and_then(|()| {
            let tensor = RawTensor { client: self.clone(), raw: args.buffer };
            let finish = if semantics == DURING_CALL { Library::release } else { Library::finish };
            finish(&self.library, args.done).map(|()| tensor)
        }))
    }
}

impl RawExecutable {
    fn library(&self) -> &Library {
        &self.client.library
    }

    /// `None` for unsupported element types.
    pub fn results(&self) -> Result<Vec<Option<TensorType>>, PjrtStatus> {
        let (library, table) = (self.library(), &self.library().table);
        let mut of = abi::LoadedGetExecutable::new();
        of.loaded = self.raw;
        // SAFETY: the executable is alive.
        unsafe { library.call(&table.loaded_executable_get_executable, &mut of) }?;
        let mut types = abi::ExecutableOutputTypes::new();
        let mut dims = abi::ExecutableOutputDims::new();
        let mut count = abi::ExecutableNumOutputs::new();
        (types.executable, dims.executable, count.executable) = (of.executable, of.executable, of.executable);
        // SAFETY: the object that describes the executable is alive until it is destroyed below, and so are its lists: the
        // extents of all results are in one list, whose length is the sum of the ranks.
        let described = unsafe {
            (library.call(&table.executable_num_outputs, &mut count))
                .and_then(|()| library.call(&table.executable_output_element_types, &mut types))
                .and_then(|()| library.call(&table.executable_output_dimensions, &mut dims))
                .map(|()| {
                    let ranks = list(dims.ranks, dims.num_outputs.min(count.num_outputs));
                    let extents = list(dims.dims, ranks.iter().sum());
                    tensor_types(list(types.types, types.num_types), ranks, extents)
                })
        };
        let mut destroyed = abi::ExecutableDestroy::new();
        destroyed.executable = of.executable;
        // SAFETY: this function is the only owner of that object.
        unsafe { library.call(&table.executable_destroy, &mut destroyed) }?;
        described
    }

    /// Calls the program with one list of tensors per device, and returns `results` results of each. They can
    /// reuse the memory of arguments that are not in `kept`. All arguments must belong to the executable's
    /// client.
    pub fn execute(
        &self,
        arguments: &[Vec<&RawTensor>],
        kept: &[i64],
        results: usize,
    ) -> Result<Vec<Vec<RawTensor>>, PjrtStatus> {
        let count = arguments.first().map_or(0, Vec::len);
        assert!(arguments.iter().all(|list| list.len() == count), "devices have equally many arguments");
        let of_device = |list: &Vec<&RawTensor>| list.iter().map(|tensor| tensor.raw).collect();
        let passed: Vec<Vec<Raw>> = arguments.iter().map(of_device).collect();
        let mut returned: Vec<Vec<Raw>> = arguments.iter().map(|_| vec![ptr::null_mut(); results]).collect();
        let of_devices: Vec<*const Raw> = passed.iter().map(|list| list.as_ptr()).collect();
        let to_devices: Vec<*mut Raw> = returned.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut options = abi::ExecuteOptions::new();
        (options.kept, options.num_kept) = (kept.as_ptr(), kept.len());
        let mut args = abi::Execute::new();
        (args.executable, args.options) = (self.raw, &options);
        (args.arguments, args.num_devices, args.num_arguments) =
            (of_devices.as_ptr(), of_devices.len(), count);
        args.results = to_devices.as_ptr();
        // SAFETY: executable and arguments are alive; each device has a list of arguments, and a list with a place for each
        // result.
        let called =
            unsafe { self.library().call(&self.library().table.loaded_executable_execute, &mut args) };
        // After a failed call, the function also takes ownership of the results that exist.
        let owned = |list: Vec<Raw>| {
            let list = list.into_iter().filter(|raw| !raw.is_null());
            list.map(|raw| RawTensor { client: self.client.clone(), raw }).collect()
        };
        let returned: Vec<Vec<RawTensor>> = returned.into_iter().map(owned).collect();
        called.map(|()| returned)
    }
}

/// `extents` has the sizes of the first result's axes, then of the second's, and so on.
fn tensor_types(elements: &[c_int], ranks: &[usize], extents: &[i64]) -> Vec<Option<TensorType>> {
    let mut rest = extents;
    let mut types = Vec::with_capacity(ranks.len());
    for (&code, &rank) in elements.iter().zip(ranks) {
        let (shape, others) = rest.split_at(rank.min(rest.len()));
        rest = others;
        let element = ElementType::ALL.into_iter().find(|&element| element_code(element) == Some(code));
        let shape: Option<Vec<usize>> = shape.iter().map(|&extent| usize::try_from(extent).ok()).collect();
        types.push(element.zip(shape).map(|(element, shape)| TensorType::new(element, shape)));
    }
    types
}

impl RawTensor {
    fn library(&self) -> &Library {
        &self.client.library
    }

    pub fn belongs_to(&self, client: &Rc<RawClient>) -> bool {
        Rc::ptr_eq(&self.client, client)
    }

    /// `bytes` must have the size of the tensor.
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), PjrtStatus> {
        let mut args = abi::BufferToHost::new();
        args.buffer = self.raw;
        (args.data, args.length) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: the tensor is alive, and the bytes are borrowed until `finish` has waited for the event.
        unsafe { self.library().call(&self.library().table.buffer_to_host_buffer, &mut args) }?;
        self.library().finish(args.done)
    }

    /// From byte `offset` on. The plugin checks the range.
    pub fn read_part(&self, offset: usize, bytes: &mut [u8]) -> Result<(), PjrtStatus> {
        let mut args = abi::BufferCopyRaw::new();
        (args.buffer, args.data) = (self.raw, bytes.as_mut_ptr().cast());
        (args.offset, args.length) = (offset as i64, bytes.len() as i64);
        // SAFETY: the tensor is alive, and the bytes are borrowed until `finish` has waited for the event.
        unsafe { self.library().call(&self.library().table.buffer_copy_raw_to_host, &mut args) }?;
        self.library().finish(args.done)
    }
}
